package relay

import "time"

const (
	paceMax    = 50 * time.Millisecond // of a rest
	paceShare  = 4                     // rows for which a rest is as long as a look waits
	paceWorst  = 16                    // times the best look: one that takes longer says no more
	paceWeight = 16                    // looks that the mean is about
	paceDrift  = 1 << 14               // the best one is forgotten after about so many looks
)

// pace says for how long a lane that keeps up rests after a turn. Each turn takes about
// as much from the machine for one row as for many. Where busy writers make looks wait,
// which shows in what they take longer than the best one did, few rows a turn are too
// few: the more rows come and the longer looks wait, the longer the lane rests, and the
// more rows the next turn has. A machine that has time is hardly waited for. The measure,
// a queue that shows in the round trip, is TCP Vegas's (Brakmo and Peterson, 1995). It is
// not safe for concurrent use.
type pace struct {
	best  [2]time.Duration // of looks, and of those that claim
	waits time.Duration    // paceWeight times what a look takes longer than the best one, about
}

// looked notes how long a look took.
func (p *pace) looked(claims bool, took time.Duration) {
	best := &p.best[0]
	if claims {
		best = &p.best[1]
	}
	took = max(took, 1)
	if *best == 0 {
		*best = took
	}
	p.waits += min(took, paceWorst**best) - *best - p.waits/paceWeight
	*best = min(took, *best+max(*best/paceDrift, 1))
}

// rest is for how long nothing is to be read or claimed after a turn of so many rows.
func (p *pace) rest(rows int) time.Duration {
	return min(time.Duration(rows)*(p.waits/paceWeight)/paceShare, paceMax)
}
