package waybilltest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/waybill-go/waybill/domain"
)

// maxCrashes is at how many points a service is killed at most.
const maxCrashes = 200

// Crash runs a service once for each point at which a commit of a unit of work, a
// publication or an acknowledgement is about to happen or has just happened, and kills
// it there, as kill -9 would. start wires it, now and after the crash; run is called
// until it returns nil, so its commands need [command.Once]; then the service settles,
// and check looks. Each point is a subtest, such as "before commit 3".
//
// The points are those of a first run without a crash, all contexts and brokers
// counted together. As what goes on at a time has no order, the same number may mean
// another one in the next run, and a run may get by without reaching its point: it is
// checked all the same, and says so. Of more than 200 points 200 are chosen, evenly.
//
// run must return its errors, and not fail the test for them: the process that it calls
// may be dead. An error without a crash fails the test.
func Crash[W any](t *testing.T, start func(k *Kit) W, run func(ctx context.Context, w W) error, check func(t *testing.T, w W)) {
	t.Helper()
	migrated := &templates{dir: t.TempDir()}
	var all []point
	if !t.Run("without a crash", func(t *testing.T) {
		all = crash(t, migrated, point{}, start, run, check).seen()
	}) {
		return
	}
	if len(all) == 0 {
		t.Error("waybilltest: run committed, published and acknowledged nothing, so there is no point to crash at")
	}
	chosen := evenly(all, maxCrashes)
	if len(chosen) < len(all) {
		t.Logf("waybilltest: %d of %d points are tried: make run do less to have all of them", len(chosen), len(all))
	}
	for _, at := range chosen {
		t.Run(at.String(), func(t *testing.T) {
			if !crash(t, migrated, at, start, run, check).hit() {
				t.Log("waybilltest: this run got by without reaching its point")
			}
		})
	}
}

// evenly is all, or most of them.
func evenly(all []point, most int) []point {
	if len(all) <= most {
		return all
	}
	chosen := make([]point, most)
	for i := range chosen {
		chosen[i] = all[i*len(all)/most]
	}
	return chosen
}

// crash is one run, killed at a point; the zero point is none.
func crash[W any](t *testing.T, migrated *templates, at point, start func(k *Kit) W, run func(ctx context.Context, w W) error, check func(t *testing.T, w W)) *points {
	k := New(t)
	k.points, k.migrated = &points{at: at}, migrated
	w := start(k)
	if k.running() == nil {
		k.fatal("Crash: start has to call Kit.Start")
	}
	k.points.arm(true)
	for {
		err := run(k.Context(domain.Origin{}), w)
		if k.running().dies() {
			w = start(k)
			continue
		}
		if err != nil {
			k.fatal("Crash: run failed, and not because of a crash: %v", err)
		}
		break
	}
	for {
		if err := k.settle(); err != nil {
			t.Fatal(err)
		}
		if !k.running().dies() {
			break
		}
		w = start(k)
	}
	k.points.arm(false)
	check(t, w)
	return k.points
}

func (k *Kit) running() *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

type kind string

const (
	commit          kind = "commit"
	publication     kind = "publication"
	acknowledgement kind = "acknowledgement"
)

// point is where a service may be killed: before or after the n-th of a kind. n begins
// at 1.
type point struct {
	after bool
	kind  kind
	n     int
}

func (p point) String() string {
	when := "before"
	if p.after {
		when = "after"
	}
	return fmt.Sprintf("%s %s %d", when, p.kind, p.n)
}

// points counts them, and knows the one to be killed at. It is safe for concurrent use.
type points struct {
	at point

	mu    sync.Mutex
	armed bool
	was   bool // killed there
	count map[kind]int
	order []point
}

func (p *points) arm(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = on
}

// before counts one more of a kind.
func (p *points) before(of kind) (n int, die bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed {
		return 0, false
	}
	if p.count == nil {
		p.count = map[kind]int{}
	}
	p.count[of]++
	return p.count[of], p.reach(point{kind: of, n: p.count[of]})
}

// after is called for what has happened.
func (p *points) after(of kind, n int) (die bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed && n > 0 && p.reach(point{after: true, kind: of, n: n})
}

func (p *points) reach(at point) bool {
	p.order = append(p.order, at)
	if p.was || at != p.at {
		return false
	}
	p.was = true
	return true
}

// seen are all, in the order in which they were reached.
func (p *points) seen() []point {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.order
}

func (p *points) hit() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.was
}

// around does something that can be crashed before and after.
func (p *process) around(ctx context.Context, of kind, do func() error) error {
	if p.killed() {
		return errKilled
	}
	n, die := p.k.points.before(of)
	if die {
		p.kill(ctx)
		return errKilled
	}
	if err := do(); err != nil {
		return err
	}
	if p.k.points.after(of, n) {
		p.kill(ctx)
		return errKilled
	}
	return nil
}
