package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/internal/verdict"
)

const (
	partitions = 3
	topics     = 2
	lease      = 3 * time.Second
)

// row is what a unit of work has written, as its writer knows it.
type row struct {
	seq, number int64
	id, key     string
	topic, part int
	body        []byte
	poison      string // "deadly": who publishes it dies; "mute": it is never answered
	committed   bool
	skipped     bool // by an operator
	moved       bool // an operator took it away or back, so its key goes on without it
	failures    int  // calls in which it wasn't acknowledged
	unfit       bool
	picky       int // how often the broker refuses it, in transactions
	copies      int // at the broker
	losses      int // the most that it had
}

// unit is a unit of work that has begun.
type unit struct {
	tx   *relaytest.Tx
	rows []*row
}

// process is one that runs a relay.
type process struct {
	number   int
	joins    int
	relay    *relay.Relay
	dead     chan struct{} // closed: it was killed
	killed   bool
	sent     map[name]int64 // statements, by what their names begin with
	stopping bool
	up       chan struct{} // closed: it has started, or was killed before
	ended    chan struct{} // closed: its relay has stopped
	life     context.Context
	end      context.CancelFunc
	topics   [topics + 1]hearing
	last     map[int64]judgement // by seq: its last call that has returned
}

func (p *process) name() string {
	p.joins++
	return fmt.Sprintf("simulation-%d-%d", p.number, p.joins)
}

// world is a store, a broker and some processes, in which acts happen one by one.
type world struct {
	t       *testing.T
	plan    plan
	without map[string]bool // rules that are left out
	chance  *rand.Rand      // of the relays
	acts    []act           // that have happened
	trace   *strings.Builder
	store   *relaytest.Store
	running *statement

	mu         sync.Mutex
	procs      []*process
	statements []*statement
	calls      []*call
	machine    *machine // nil: a rule is left out
	recorder   *recorder
	tick       int // counts calls that begin or end
	called     int // counts calls

	rows    map[int64]*row
	seqOf   map[string]int64
	numbers map[string]int64 // by key: of its last event
	locks   map[string]*unit
	units   [maxUnits]*unit
	ids     int
	slots   map[string]*transactions // by transactional id

	away, hushed [topics + 1]bool // 0: the broker

	stored    []verdict.Delivery
	steps     []verdict.Step
	incidents []verdict.Incident
	thefts    []string
	ghosts    map[token]bool // that nobody waits for
	claimers  map[token]int  // processes
	neighbour time.Time      // when they last had a row
	waits     uint32         // for quiet
	kills     int
	losses    int // kills from outside, and leases that live members lost
	crashes   int // that poison made
}

type token struct {
	member relay.MemberID
	n      int64
}

func newWorld(t *testing.T, p plan, off []string) *world {
	w := &world{
		t: t, plan: p, without: map[string]bool{}, chance: rand.New(rand.NewPCG(p.seed, 1)), store: relaytest.New(partitions),
		rows: map[int64]*row{}, seqOf: map[string]int64{}, numbers: map[string]int64{}, locks: map[string]*unit{}, ghosts: map[token]bool{}, claimers: map[token]int{}, slots: map[string]*transactions{},
	}
	for _, rule := range off {
		w.without[rule] = true
	}
	w.store.LeaveOut(off...)
	w.store.Shuffle(w.chance.Perm)
	_, _, _ = w.store.Lanes(t.Context(), p.targets()) // so that they have their numbers
	if p.exact {
		w.store.Crashes()
	} else if p.model || len(off) == 0 && os.Getenv(withoutVar) == "" {
		w.machine = newMachine()
	}
	return w
}

// say writes what happens, if anybody wants to read it.
func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%8.3f "+format+"\n", append([]any{time.Since(w.plan.epoch).Seconds()}, args...)...)
	}
}

// start starts a process.
func (w *world) start() {
	p := &process{number: len(w.procs) + 1, dead: make(chan struct{}), up: make(chan struct{}), ended: make(chan struct{}), sent: map[name]int64{}, last: map[int64]judgement{}}
	p.life, p.end = context.WithCancel(context.Background())
	cfg := relay.Config{
		Provider: "simulation", Store: &conn{Store: w.store.Connect(), w: w, p: p}, Outbox: w.plan.outbox(), Logger: slog.New(slog.DiscardHandler), Random: w.random(100 + uint64(p.number)),
	}
	for i, target := range w.plan.targets() {
		l := relay.Lane{Target: target, Broker: w.broker(p)}
		if i > 0 { // the first one shares the relay's
			l.Random = w.random(1000*uint64(i) + uint64(p.number))
		}
		cfg.Lanes = append(cfg.Lanes, l)
	}
	var err error
	if p.relay, err = relay.New(cfg); err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	go func() {
		defer close(p.up)
		for p.relay.Start(context.Background()) != nil && !w.isDead(p) { // the database didn't answer
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a bubble
		}
	}()
}

// random are numbers of the seed's, of a stream of their own.
func (w *world) random(stream uint64) func() float64 {
	chance := rand.New(rand.NewPCG(w.plan.seed, stream))
	return func() float64 {
		w.mu.Lock()
		defer w.mu.Unlock()
		return chance.Float64()
	}
}

func (w *world) isDead(p *process) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.killed
}

// crash is kill -9: of what it has sent, some may still arrive. The lock is held.
func (w *world) crash(p *process) {
	if p.killed {
		return
	}
	w.say("process %d is killed", p.number)
	p.killed = true
	close(p.dead)
	now := time.Now()
	w.incidents = append(w.incidents, verdict.Incident{Kind: "kill", PID: p.number, From: now, Until: now})
	var left []*statement
	for _, s := range w.statements {
		if s.proc == p.number {
			s.ghost = true
			if s.ran || !s.changes {
				continue
			}
		}
		left = append(left, s)
	}
	w.statements = left
	for _, c := range w.calls {
		if c.p == p {
			c.ghost, c.mute = true, false
		}
	}
	if p.end(); !p.stopping {
		p.stopping = true
		go w.halt(p)
	}
}

// halt stops a process's relay: hard, if it was killed.
func (w *world) halt(p *process) {
	<-p.up
	_ = p.relay.Stop(p.life)
	p.end()
	close(p.ended)
}

// alive are the processes that run.
func (w *world) alive() (all []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if !p.killed && !p.stopping {
			all = append(all, p)
		}
	}
	return all
}
