package whole

import (
	"math/rand/v2"
	"time"
)

// director decides what happens next: by chance, or as it was recorded.
type director struct {
	w        *world
	random   *rand.Rand
	replays  bool
	recorded []act
	kills    int
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
			w.do(act{verb: start})
		}
		for all := w.waiting(false); w.plan.warm && len(all) > 0; all = w.waiting(false) {
			w.do(act{answer, all[0].p.number, all[0].kind, all[0].n})
		}
		for range w.plan.acts {
			d.step()
		}
		d.latecomers()
	}
	w.drain()
	w.close()
}

// latecomers are requests of those who are gone, or don't wait any more: some happen after
// all when others have gone on for longer than a lease.
func (d *director) latecomers() {
	w := d.w
	if len(w.waiting(true)) == 0 || d.chance(50) {
		return
	}
	for range 6 {
		w.do(act{verb: pass, n: 1100})
		for range 40 {
			all := w.waiting(false)
			if len(all) == 0 {
				break
			}
			w.do(act{answer, all[0].p.number, all[0].kind, all[0].n})
		}
	}
	for _, r := range w.waiting(true) {
		if d.chance(60) {
			w.do(act{late, r.p.number, r.kind, r.n})
		}
	}
}

var spans = []int{1, 5, 20, 100, 300, 1100, 4000}

// step chooses an act and does it.
func (d *director) step() {
	w, plan := d.w, d.w.plan
	switch p := d.random.IntN(100); {
	case p < plan.slow:
		d.pass()
	case p < plan.slow+plan.moves:
		d.move()
	case p < plan.slow+plan.moves+2:
		d.process()
	case p < plan.slow+plan.moves+14 && len(w.ops) < plan.units:
		if p := d.one(); p != nil {
			n := d.random.IntN(84)
			if plan.timers {
				n += 84 * d.random.IntN(changes)
			}
			w.do(act{verb: unit, proc: p.number, n: n})
		}
	default:
		if !d.request() {
			d.pass()
		}
	}
}

func (d *director) pass() { d.w.do(act{verb: pass, n: spans[d.random.IntN(len(spans))]}) }

// one is a process that runs.
func (d *director) one() *process {
	all := d.w.alive()
	if len(all) == 0 {
		return nil
	}
	return all[d.random.IntN(len(all))]
}

// move changes what is outside, or has an operator do something.
func (d *director) move() {
	w := d.w
	switch d.random.IntN(9) {
	case 6:
		if p := d.one(); p != nil {
			w.do(act{verb: hang, proc: p.number})
		}
	case 7:
		for _, p := range w.alive() {
			w.do(act{verb: thaw, proc: p.number})
		}
	case 8:
		w.do(act{verb: pass, n: 35_000}) // longer than whatever is taken lasts
	case 0:
		if w.plan.faults > 0 {
			w.do(act{verb: away, n: d.random.IntN(2)})
		}
	case 1:
		w.do(act{verb: back, n: 0})
		w.do(act{verb: back, n: 1})
	case 2:
		w.do(act{verb: share, n: d.random.IntN(2) + d.which()})
	case 3:
		w.do(act{verb: expel, n: d.random.IntN(4) + d.which()})
	default:
		v := replay
		if d.chance(15) {
			v = discard
		}
		if p := d.one(); p != nil {
			w.do(act{verb: v, proc: p.number})
		}
	}
}

// which group an act is about.
func (d *director) which() int {
	switch plan := d.w.plan; {
	case plan.journeys:
		return ofOthers * d.random.IntN(2+len(journeyTopics))
	case plan.timers && d.chance(50):
		return ofOthers
	}
	return 0
}

// busy is most often a process that has asked for what can't be taken back.
func (d *director) busy(otherwise *process) *process {
	for _, kind := range []string{"transact", "commit", "publish"} {
		for _, r := range d.w.waiting(false) {
			if r.kind == kind && d.chance(50) {
				return r.p
			}
		}
	}
	return otherwise
}

// process starts or ends one.
func (d *director) process() {
	w := d.w
	p := d.one()
	switch {
	case p == nil || len(w.procs) < 5 && d.chance(40):
		w.do(act{verb: start})
	case d.kills < w.plan.kills && d.chance(70):
		d.kills++
		w.do(act{verb: kill, proc: d.busy(p).number})
	case d.chance(30):
		w.do(act{verb: stop, proc: p.number})
	}
}

// request has one go on; false if there is none.
func (d *director) request() bool {
	w := d.w
	if ghosts := w.waiting(true); len(ghosts) > 0 && d.chance(6) {
		r := ghosts[d.random.IntN(len(ghosts))]
		v := late
		if d.chance(40) {
			v = drop
		}
		return w.do(act{v, r.p.number, r.kind, r.n})
	}
	all := w.waiting(false)
	if len(all) == 0 {
		return false
	}
	r := all[d.random.IntN(len(all))]
	v := answer
	if d.chance(w.plan.faults) {
		v = []verb{refuse, busy, lose, half, linger}[d.random.IntN(5)]
	}
	if w.do(act{v, r.p.number, r.kind, r.n}) {
		return true
	}
	return w.do(act{answer, r.p.number, r.kind, r.n})
}

const (
	mostAtOnce = 6000
	patience   = 20 * time.Minute // some things are taken for dead after ten
)

// drain lets everything be there and be well, and all come to an end.
func (w *world) drain() {
	w.say("everything is there from now on")
	w.begun = len(w.procs) + 1
	w.mu.Lock()
	w.away, w.healed = [2]bool{}, w.plan.poison != "deadly"
	for _, p := range w.procs {
		p.hangs = false
	}
	w.mu.Unlock()
	for _, r := range w.waiting(true) {
		w.answer(r, drop)
	}
	w.dropGhosts()
	w.bury()
	var replayed time.Time
	for begun, atOnce := time.Now(), 0; time.Since(begun) < w.plan.patience; {
		w.quiet()
		switch {
		case w.next():
			if atOnce++; atOnce > mostAtOnce {
				w.wrong("round: the processes go round and round")
				return
			}
			continue
		case len(w.procs) > 30:
			w.wrong("poison: %d processes were started", len(w.procs))
			return
		case len(w.alive()) == 0:
			w.act(act{verb: start})
			continue
		case w.finished():
			return
		}
		atOnce = 0
		w.bury()
		if w.parked() {
			w.heal()
		}
		if w.parked() && time.Since(replayed) > 3*time.Second {
			replayed = time.Now()
			w.operate(w.alive()[0], replay)
			continue
		}
		wait := 100 * time.Millisecond
		if time.Since(begun) > 20*time.Second {
			wait = 2 * time.Second
		}
		time.Sleep(wait) //nolint:forbidigo // in a bubble
	}
	w.wrong("unfinished: %s", w.left())
}

// heal has no handler fail any more.
func (w *world) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.healed = true
}

// dropGhosts: what nobody waits for, and didn't happen late, never does.
func (w *world) dropGhosts() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range append([]*request(nil), w.requests...) {
		if r.ghost {
			w.forget(r)
			w.rollback(r.tx)
		}
	}
}

// next has the first of what waits go on.
func (w *world) next() bool {
	all := w.waiting(false)
	return len(all) > 0 && w.act(act{answer, all[0].p.number, all[0].kind, all[0].n})
}

// close stops all processes and waits until nothing runs any more.
func (w *world) close() {
	for _, p := range w.alive() {
		p.stop()
	}
	for {
		w.quiet()
		if w.next() {
			continue
		}
		if w.over() {
			break
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a bubble
	}
	w.operators.Wait()
	for _, p := range w.procs {
		if err := p.provider.Close(); err != nil {
			w.wrong("closes: %v", err)
		}
	}
}

func (w *world) over() bool {
	for _, p := range w.procs {
		select {
		case <-p.ended:
		default:
			return false
		}
	}
	return true
}
