package whole

import (
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// plan is what a seed decides before anything happens.
type plan struct {
	seed  uint64
	epoch time.Time
	// patience is how long all may take to come to an end, once all is well again.
	patience time.Duration

	acts      int // that are chosen by chance; then everything is there and comes to an end
	processes int // at the begin
	keys      int
	units     int // at most
	kills     int // at most
	lanes     int
	batch     int
	policy    subscription.Policy
	warm      bool // what is started at the begin is up before anything else happens
	fine      bool // statements within a transaction wait for their turn, too
	trips     bool // handlers write in round trips of their own
	tally     bool // and change an aggregate
	exact     bool // relays publish in transactions
	tells     bool // the broker says what it delivers again
	timers    bool // units set and stop timers, and send commands
	journeys  bool // and begin processes
	poison    string
	poisoned  int64
	// In a hundred.
	faults int // requests that don't go well
	slow   int // acts that let time pass
	moves  int // acts that change the group, or what is there
}

// timed is the first seed whose units have timers and commands, too.
const timed = 3_000_000_000

// travelled is the first one that has processes with that.
const travelled = 3_500_000_000

func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 5))
	p := plan{
		seed: seed, patience: patience, acts: 80 + r.IntN(240), processes: 1 + r.IntN(3), keys: 1 + r.IntN(4), units: 3 + r.IntN(10), kills: r.IntN(3),
		lanes: 1 + r.IntN(3), batch: 1 + 2*r.IntN(2), policy: subscription.Policy(r.IntN(2)),
		fine: r.IntN(4) == 0, trips: r.IntN(3) == 0, tally: r.IntN(3) == 0, poisoned: 1 + r.Int64N(3),
		faults: []int{0, 3, 10, 25}[r.IntN(4)], slow: []int{2, 6, 15}[r.IntN(3)], moves: []int{0, 3, 10}[r.IntN(3)], warm: r.IntN(4) != 0,
	}
	p.poison = []string{"", "", "", "fails", "hopeless", "later", "panics", "deadly"}[r.IntN(8)]
	p.tells, p.exact = r.IntN(2) == 0, r.IntN(3) == 0
	if p.timers = seed >= timed; p.timers {
		p.acts, p.units, p.keys = p.acts+250, p.units+4+r.IntN(14), 1+r.IntN(2)
		p.slow, p.moves, p.faults = 2+2*r.IntN(2), []int{0, 2, 4}[r.IntN(3)], []int{0, 2, 5, 12}[r.IntN(4)]
	}
	p.journeys = seed >= travelled
	return p
}

func (p plan) outbox() outbox.Config {
	timeout := time.Second
	if p.exact {
		timeout = 2500 * time.Millisecond // nearly a lease
	}
	return outbox.Config{
		Lease: lease, PublishTimeout: timeout, PollInterval: 500 * time.Millisecond, MaxPollInterval: time.Second, Calls: 2, BatchSize: 5,
		Retry:     outbox.RetryPolicy{MaxAttempts: 1000, BaseDelay: 300 * time.Millisecond, MaxBackoff: time.Second},
		Retention: outbox.Retention{Every: 5 * time.Second},
	}
}
