package whole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	partitions = 3
	lease      = 3 * time.Second
)

// request is what a process wants of the world outside: a statement, a call of the
// broker, time for its handler. It waits until the schedule has it go on.
type request struct {
	p    *process
	kind string
	n    int // of its kind and process
	what string

	ready    func() bool // it can go on; nil: always
	do       func()
	half     func() // of it, if it has halves
	changes  bool   // it may change something also when nobody waits for it any more
	database bool
	tx       *transaction

	ghost bool // nobody waits for it
	err   error
	done  chan struct{} // closed: it is answered
}

var (
	errDead    = errors.New("whole: the process is dead")
	errRefused = errors.New("whole: connection refused")
	errBusy    = errors.New("whole: the database is busy")
	errLost    = errors.New("whole: the connection is lost, and the answer with it")
)

// world is a database, a broker and processes, in which acts happen one by one.
type world struct {
	plan  plan
	acts  []act
	trace *strings.Builder
	db    *database
	waits uint32

	mu       sync.Mutex
	requests []*request
	procs    []*process
	group    group    // of the events' topic
	commands group    // of the commands' topic
	more     []*group // of the topics of processes
	ids      map[string]*transactions
	away     [2]bool // database, broker

	healed    bool           // handlers don't fail any more
	tried     map[string]int // by account and number: calls of its handler
	settled   map[string]bool
	ops       map[string]*op
	deaths    int // of poison
	begun     int // processes, before all is well
	operators sync.WaitGroup
	wrongs    []string
	rang      int            // timers, as the judge finds
	asked     int            // commands that were done
	journeys  map[string]int // by their end
}

// say writes what happens, if anybody wants to read it.
func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%8.3f "+format+"\n", append([]any{time.Since(w.plan.epoch).Seconds()}, args...)...)
	}
}

// wrong notes a violation.
func (w *world) wrong(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	w.say("VIOLATION %s", what)
	w.wrongs = append(w.wrongs, what)
}

// quiet waits until nobody has anything to do. Each time another little bit of time
// passes: no two timers are to be for the same instant.
func (w *world) quiet() {
	w.waits++
	time.Sleep(time.Duration(1000 + w.waits*w.waits*7919%997)) //nolint:forbidigo // in a bubble
}

// ask waits until the schedule has a request answered.
func (w *world) ask(ctx context.Context, p *process, r *request) error {
	r.p, r.done = p, make(chan struct{})
	w.mu.Lock()
	if p.killed {
		w.mu.Unlock()
		return errDead
	}
	p.sent[r.kind]++
	r.n = p.sent[r.kind]
	w.requests = append(w.requests, r)
	w.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-p.dead:
		return errDead
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		// What a call of the broker has not sent by now is never sent.
		if r.ghost = true; !r.changes || r.kind == "publish" {
			w.forget(r)
		}
		return ctx.Err()
	}
}

// atOnce does something that waits for no turn.
func (w *world) atOnce(ctx context.Context, p *process, do func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p.killed:
		return errDead
	case ctx.Err() != nil:
		return ctx.Err()
	case w.away[0]:
		return errRefused
	}
	do()
	return nil
}

// forget takes a request out. The lock is held.
func (w *world) forget(r *request) {
	w.requests = slices.DeleteFunc(w.requests, func(other *request) bool { return other == r })
}

// waiting are the requests that can go on, in an order that doesn't depend on who came
// first: those that somebody waits for, or the others.
func (w *world) waiting(ghosts bool) (all []*request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.requests {
		if r.ghost == ghosts && (!r.p.hangs || r.p.killed) && (r.ready == nil || r.ready()) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *request) int {
		return cmp.Or(cmp.Compare(a.p.number, b.p.number), cmp.Compare(a.kind, b.kind), cmp.Compare(a.n, b.n))
	})
	return all
}

// can says whether a request can go on so.
func (r *request) can(v verb) bool {
	switch v {
	case busy:
		return r.kind == "begin" || r.kind == "write"
	case half:
		return r.half != nil
	case linger:
		return r.changes && r.kind != "publish"
	}
	return true
}

// answer has a request go on as a verb says.
func (w *world) answer(r *request, v verb) {
	w.mu.Lock()
	defer w.mu.Unlock()
	away := w.away[1]
	if r.database {
		away = w.away[0]
	}
	if r.kind == "handle" {
		away = false
	}
	switch {
	case v == drop:
		w.forget(r)
		w.rollback(r.tx)
		return
	case v == late:
		r.do()
		w.forget(r)
		return
	case away, v == refuse:
		r.err = errRefused
	case v == busy:
		r.err = errBusy
	case v == lose:
		r.do()
		r.err = errLost
	case v == half:
		r.half()
		r.err = errLost
	case v == linger:
		r.err, r.ghost = errLost, true
	default:
		r.do()
	}
	close(r.done)
	if !r.ghost {
		w.forget(r)
	}
}

// crash is kill -9: of what it has sent, some may still arrive.
func (w *world) crash(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.killed {
		return
	}
	w.say("process %d is killed", p.number)
	p.killed = true
	close(p.dead)
	committing := map[*transaction]bool{}
	var left []*request
	for _, r := range w.requests {
		if r.p == p {
			if r.ghost = true; !r.changes {
				continue
			}
			committing[r.tx] = true
		}
		left = append(left, r)
	}
	w.requests = left
	if tx := w.db.holder; tx != nil && tx.p == p && !committing[tx] {
		w.rollback(tx)
	}
	p.end()
	if !p.stopping {
		p.stopping = true
		go p.halt()
	}
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

// bury has the group find that members are dead, or never knew that they are.
func (w *world) bury() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.groups() {
		for _, m := range slices.Clone(g.members) {
			if m.p.killed || m.lost {
				g.expel(m)
			}
		}
	}
}
