package outboxtest

import "github.com/waybill-go/waybill/outbox"

// Flights is what a worker knows from one claim to the next: what it has in hand,
// and what it has seen. It is used by one goroutine at a time.
type Flights struct {
	Memory outbox.Memory
	claims map[int64][]outbox.Claimed
}

// Request completes a request.
func (f *Flights) Request(r outbox.ClaimRequest) outbox.ClaimRequest {
	r.Memory = &f.Memory
	for _, rows := range f.claims {
		r.Hand = append(r.Hand, rows...)
	}
	return r
}

// Took notes a claim.
func (f *Flights) Took(c outbox.Claim) {
	if f.claims == nil {
		f.claims = map[int64][]outbox.Claimed{}
	}
	if len(c.Rows) > 0 {
		f.claims[c.ID] = c.Rows
	}
}

// Landed notes that a claim was settled. Stale is how many of its rows were no
// longer in its hand.
func (f *Flights) Landed(claim int64, outcomes []outbox.Outcome, stale int) {
	delete(f.claims, claim)
	for _, o := range outcomes {
		if o.Status != outbox.Published || stale > 0 {
			f.Memory.Spilled()
		}
	}
}
