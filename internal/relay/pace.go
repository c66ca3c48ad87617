package relay

import "time"

const (
	paceMax    = 50 * time.Millisecond // of a rest
	paceSlow   = 3                     // times the best look: the machine is busy
	paceWorst  = 16                    // times the best look: one that takes longer says no more
	paceTimes  = 16                    // looks that a rest is as long as, when they are slow
	paceWeight = 16                    // looks that the mean is about
	paceDrift  = 1 << 14               // looks after which the best one is forgotten, about
)

// pace says for how long a lane that keeps up rests after a turn. On a machine that has
// time it is not at all. Where busy writers make a look take several times as long as the
// best one did, each turn takes from them what they would need, and is for few rows: the
// longer the rest, the more rows are in the next turn, which costs little more for many
// than for one. The same idea, of a queue that shows in the round trip, is TCP Vegas's
// (Brakmo and Peterson, 1995). It is not safe for concurrent use.
type pace struct {
	best, mean time.Duration
}

// looked notes how long a look took.
func (p *pace) looked(took time.Duration) {
	took = max(took, 1)
	if p.best == 0 {
		p.best, p.mean = took, took
	}
	p.mean += (min(took, paceWorst*p.best) - p.mean) / paceWeight
	p.best = min(took, p.best+max(p.best/paceDrift, 1))
}

// rest is for how long nothing is to be read or claimed.
func (p *pace) rest() time.Duration {
	if p.mean <= paceSlow*p.best {
		return 0
	}
	return min(paceTimes*p.mean, paceMax)
}
