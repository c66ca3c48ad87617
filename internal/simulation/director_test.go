package simulation

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/verdict"
)

// director decides what happens next: by chance, or as it was recorded.
type director struct {
	w        *world
	random   *rand.Rand
	replays  bool
	recorded []act

	silent            silent
	silences, crashes int
}

func (d *director) chance(percent int) bool { return d.random.IntN(100) < percent }

// run is a schedule from its begin to its end.
func (d *director) run() {
	w := d.w
	if d.replays {
		for _, a := range d.recorded {
			w.do(a)
		}
	} else {
		for range w.plan.processes {
			d.do(act{verb: start})
		}
		for range w.plan.acts {
			d.step()
		}
		d.latecomers()
	}
	w.drain()
	w.close()
}

// quiet waits until nobody has anything to do. A little time passes, each time another: of
// timers for the same instant a bubble takes any first, so no two may be.
func (w *world) quiet() {
	w.waits++
	time.Sleep(time.Duration(1000 + w.waits*w.waits*7919%997)) //nolint:forbidigo // in a bubble
}

func (d *director) do(a act) { d.w.do(a) }

// step chooses an act and does it.
func (d *director) step() {
	plan := d.w.plan
	if d.breaks() {
		return
	}
	if plan.steer == meddling && d.chance(30) && d.meddle() {
		return
	}
	switch p := d.random.IntN(100); {
	case p < plan.slow:
		d.pass()
	case p < plan.slow+plan.verbs:
		d.operator()
	case p < plan.slow+plan.verbs+2:
		d.process()
	case p < plan.slow+plan.verbs+4 && plan.faults > 0:
		d.outage()
	case p < plan.slow+plan.verbs+24:
		d.unit()
	default:
		if !d.pending() {
			d.pass()
		}
	}
}

var spans = []int64{1, 5, 20, 100, 300, 1100, 1100, 4000}

func (d *director) pass() {
	n := len(spans)
	if d.silent.acts > 0 {
		n-- // what a process waits for meanwhile isn't given up at once
	}
	d.do(act{pass, name{n: spans[d.random.IntN(n)]}})
}

// pending has something go on that waits: a statement or a call.
func (d *director) pending() bool {
	w := d.w
	statements, calls := w.waiting(false), w.outside()
	silent := d.silence(statements)
	statements = slices.DeleteFunc(statements, func(s *statement) bool { return s.proc == silent })
	ghosts := w.waiting(true)
	n := len(statements) + len(calls)
	if len(ghosts) > 0 && d.chance(8) {
		d.do(act{late, ghosts[d.random.IntN(len(ghosts))].name})
		return true
	}
	if n == 0 {
		return false
	}
	if i := d.random.IntN(n); i < len(statements) {
		d.statement(statements[i])
	} else {
		d.call(calls[i-len(statements)])
	}
	return true
}

func (d *director) statement(s *statement) {
	v := answer
	switch {
	case d.chance(d.w.plan.faults / 2):
		v = []verb{refuse, lose}[d.random.IntN(2)]
	case !s.ran && d.chance(30):
		v = run
	}
	d.do(act{v, s.name})
}

func (d *director) call(c *call) {
	v := reply
	switch {
	case c.ghost:
		v = []verb{store, store, drop}[d.random.IntN(3)]
	case d.w.plan.steer == meddling && d.chance(40):
		v = reject
	case d.w.plan.steer == cutting && d.w.rows[c.seqs[0]].key == account(0):
		v = []verb{ignore, ignore, ignore, reply}[d.random.IntN(4)]
	case d.chance(d.w.plan.faults):
		v = []verb{mumble, reject, reject, ignore, drop, drop, hang, reject, ignore, mumble, drop, reject, unfit}[d.random.IntN(13)]
	case d.chance(60):
		v = store
	}
	d.do(act{v, c.name})
}

func (d *director) unit() {
	w := d.w
	slot := d.random.IntN(maxUnits)
	of := name{proc: slot + 1}
	switch u := w.units[slot]; {
	case u == nil:
		if w.ids < w.plan.rows {
			d.do(act{begin, of})
		}
	case w.ids < w.plan.rows && len(u.rows) < 3 && (len(u.rows) == 0 || d.chance(40)):
		of.n = int64(d.random.IntN(w.plan.keys))
		d.do(act{insert, of})
	case d.chance(94):
		of.n = int64(d.random.IntN(3)) // whom it pokes
		d.do(act{commit, of})
	default:
		d.do(act{rollback, of})
	}
}

func (d *director) operator() {
	w := d.w
	if w.ids == 0 {
		return
	}
	seq := int64(1 + d.random.IntN(w.ids))
	d.do(act{[]verb{skip, retry, hold, retry}[d.random.IntN(4)], name{n: seq}})
}

// meddle has an operator hold what is behind a row that failed, or skip what is held
// behind one that is in hand; false if there is nothing of the kind.
func (d *director) meddle() bool {
	state := d.w.store.State()
	inHand := map[int64]bool{}
	for _, t := range state.Tokens {
		for _, r := range t.Rows {
			inHand[r.Seq] = true
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(state.Queue)) {
		q := state.Queue[seq]
		for _, behind := range slices.Sorted(maps.Keys(state.Queue)) {
			next := state.Queue[behind]
			switch {
			case behind <= seq || next.Key != q.Key:
			case inHand[seq] && next.Held && !inHand[behind]:
				d.do(act{skip, name{n: behind}})
				return true
			case q.Failed && !inHand[seq] && !next.Held && !inHand[behind]:
				d.do(act{hold, name{n: behind}})
				return true
			}
			if behind > seq && next.Key == q.Key {
				break // only the one that is next
			}
		}
	}
	return false
}

func (d *director) process() {
	w := d.w
	alive := w.alive()
	switch {
	case len(alive) == 0 || len(alive) < 3 && len(w.procs) < 6 && d.chance(50):
		d.do(act{verb: start})
	case w.kills < w.plan.kills && d.chance(60):
		d.do(act{kill, name{proc: alive[d.random.IntN(len(alive))].number}})
	case d.chance(30):
		d.do(act{stop, name{proc: alive[d.random.IntN(len(alive))].number}})
	}
}

func (d *director) outage() {
	at := int64(d.random.IntN(topics + 1))
	d.do(act{[]verb{away, hush, back, back, back}[d.random.IntN(5)], name{n: at}})
}

// latecomers are statements and messages of those who are gone, which run after all or
// never.
func (d *director) latecomers() {
	for _, s := range d.w.waiting(true) {
		if d.chance(50) {
			d.do(act{late, s.name})
		}
	}
	for _, c := range d.w.outside() {
		if c.ghost {
			d.do(act{[]verb{reply, drop}[d.random.IntN(2)], c.name})
		}
	}
}

// simulate runs a schedule in a bubble: what was decided, and what is wrong.
func simulate(t *testing.T, p plan, off []string, recorded []act, tell bool) (o outcome) {
	synctest.Test(t, func(t *testing.T) {
		p.epoch = time.Now()
		w := newWorld(t, p, off)
		if tell {
			w.trace = &strings.Builder{}
		}
		d := &director{w: w, random: rand.New(rand.NewPCG(p.seed, 2)), recorded: recorded, replays: recorded != nil}
		d.run()
		o = outcome{acts: w.acts, report: w.judge()}
		if tell {
			o.trace = w.trace.String()
		}
	})
	return o
}

// outcome is what became of a schedule.
type outcome struct {
	acts   []act
	report verdict.Report
	trace  string
}
