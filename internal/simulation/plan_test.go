package simulation

import (
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

const maxUnits = 3

// plan is what a seed decides before anything happens.
type plan struct {
	seed  uint64
	epoch time.Time

	acts      int // that are chosen by chance; then everything is there and comes to an end
	processes int // at the begin
	lanes     int // of each process
	keys      int
	rows      int // at most
	kills     int // at most
	hold      bool
	prefix    bool
	calls     int
	batch     int
	poison    string // the kind of the row that is
	poisons   int
	dead      int // this topic comes back later than all else
	hushed    bool
	backlog   bool
	steer     string // what chance alone seldom makes
	exact     bool   // the relays publish in transactions
	crashes   int    // of the database's server, at most
	silences  int    // of processes, at most
	model     bool   // its machine looks on also if a rule is left out
	// In a hundred.
	faults int // statements and calls that don't go well
	slow   int // acts that let time pass
	verbs  int // acts of operators
	picky  int // rows that are refused at first
}

func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 3))
	p := plan{
		seed: seed, acts: 60 + r.IntN(240), processes: 1 + r.IntN(3), lanes: 1, keys: 1 + r.IntN(5), rows: 3 + r.IntN(14), kills: r.IntN(3),
		hold: r.IntN(4) == 0, prefix: r.IntN(4) != 0, calls: 1 + r.IntN(3), batch: 1 + r.IntN(6),
		faults: []int{0, 3, 10, 25}[r.IntN(4)], slow: []int{2, 6, 15}[r.IntN(3)], verbs: []int{0, 0, 2, 6}[r.IntN(4)],
	}
	if p.backlog = r.IntN(150) == 0; p.backlog {
		p.batch = 500
	}
	if r.IntN(40) == 0 {
		p.dead, p.hushed = 1+r.IntN(topics), r.IntN(2) == 0
	}
	switch r.IntN(8) {
	case 0:
		p.poison, p.poisons = "deadly", 1
	case 1:
		p.poison, p.poisons, p.keys = "mute", 1+r.IntN(2), 4+r.IntN(4)
	}
	switch {
	case seed >= transacted:
		p.transacts(r.IntN)
	case seed >= twoLanes:
		p.inLanes(r)
	case seed >= steered:
		p.steered(r)
	}
	return p
}

// steered is the first seed of schedules in which what chance alone seldom makes is likely:
// some rules are for that.
const steered = 1_000_000_000

func (p *plan) steered(r *rand.Rand) {
	p.poison, p.poisons, p.dead, p.backlog, p.kills, p.prefix = "", 0, 0, false, 0, true
	switch p.steer = []string{meddling, cutting}[p.seed%2]; p.steer {
	case meddling:
		p.processes, p.keys, p.rows, p.batch, p.verbs, p.faults, p.slow = 1, 1+r.IntN(2), 6+r.IntN(6), 2+r.IntN(3), 0, 0, 6
	case cutting:
		p.processes, p.keys, p.rows, p.calls, p.batch, p.verbs, p.faults, p.slow = 1, 6+2*r.IntN(3), 40, 4, 1, 0, 0, 4
		p.acts = 500
	}
}

const (
	// meddling: rows fail, and an operator holds what is behind them, and skips it while
	// they are in hand.
	meddling = "meddling"
	// cutting: calls of one key are cut, as by short outages, and others of its topic are
	// answered meanwhile.
	cutting = "cutting"
)

// twoLanes is the first seed of schedules in which each process has a lane for each topic,
// as there is a broker for each. In half of them a row kills whoever publishes it: it must
// take nothing of the other lane with it.
const twoLanes = 2_000_000_000

func (p *plan) inLanes(r *rand.Rand) {
	p.lanes, p.keys = topics, max(p.keys, 2)
	if r.IntN(2) == 0 {
		p.poison, p.poisons = "deadly", 1
	}
}

// target is where rows of a topic go to.
func (p plan) target(topic int) string { return p.targets()[(topic-1)%p.lanes] }

func (p plan) targets() []string { return []string{"default", "other"}[:p.lanes] }

func (p plan) outbox() outbox.Config {
	c := outbox.Config{
		Lease: lease, PublishTimeout: time.Second, PollInterval: 500 * time.Millisecond, MaxPollInterval: time.Second, Calls: p.calls, BatchSize: p.batch,
		Retry:     outbox.RetryPolicy{MaxAttempts: maxAttempts, BaseDelay: 500 * time.Millisecond, MaxBackoff: 2 * time.Second},
		Retention: outbox.Retention{Every: 5 * time.Second},
	}
	if p.exact { // a call may last as long as its member's lease, nearly
		c.PublishTimeout = 2500 * time.Millisecond
	}
	if p.hold {
		c.OnAbandoned = outbox.Hold
	}
	return c
}

const maxAttempts = 3
