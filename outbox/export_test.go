package outbox

// AtOnce is b without the wait for writers with an old list of targets.
func (b Backfill) AtOnce() Backfill {
	b.atOnce = true
	return b
}
