package simulation

import (
	"slices"
	"time"
)

// drain lets everything be there, and all come to an end.
func (w *world) drain() {
	w.away, w.hushed = [topics + 1]bool{}, [topics + 1]bool{}
	w.say("everything is there from now on")
	for slot := range w.units {
		w.act(act{commit, name{proc: slot + 1}})
	}
	w.dropGhosts()
	w.deadTopic()
	w.until(5*time.Minute, w.finished)
	w.backlog()
}

// until has everything go on until something is so, and says whether it is.
func (w *world) until(limit time.Duration, done func() bool) bool {
	busy := 0 // acts without a pause
	for begun := time.Now(); time.Since(begun) < limit; {
		w.quiet()
		switch {
		case w.next():
			if busy++; busy > 2000 {
				w.theft("the processes go round and round")
				return false
			}
			continue
		case done():
			return true
		case len(w.procs) > 60:
			w.theft("%d processes were started", len(w.procs))
			return false
		case len(w.alive()) == 0: // poison has killed the last one
			w.act(act{verb: start})
			continue
		}
		busy = 0
		w.neighbours()
		wait := 100 * time.Millisecond
		if time.Since(begun) > 10*time.Second {
			wait = time.Second
		}
		time.Sleep(wait) //nolint:forbidigo // in a bubble
	}
	return done()
}

// commitRow commits a row that nobody is told of.
func (w *world) commitRow(ats ...int) {
	w.units[0] = &unit{tx: w.store.Begin()}
	for _, at := range ats {
		w.insert(w.units[0], at)
	}
	w.act(act{commit, name{proc: 1, n: 2}})
}

// deadTopic leaves a topic away for a while, which has new keys without end: the rows of the
// others leave all the same [SAMEPROBE, NOTOPIC].
func (w *world) deadTopic() {
	dead := w.plan.dead
	if dead == 0 {
		return
	}
	w.hushed[dead], w.away[dead] = w.plan.hushed, !w.plan.hushed
	live := func() (seqs []int64) {
		stopped := map[string]bool{} // by a row that is never answered
		for _, seq := range unheld(w.store.State()) {
			r := w.rows[seq]
			stopped[r.key] = stopped[r.key] || r.poison != ""
			if r.topic != dead && !stopped[r.key] {
				seqs = append(seqs, seq)
			}
		}
		return seqs
	}
	for i := range 40 {
		w.commitRow(1000+topics*i+dead-1, 2000+topics*i+2-dead)
		w.until(time.Second, func() bool { return false })
	}
	if !w.until(time.Minute, func() bool { return len(live()) == 0 }) {
		w.theft("rows %v wait for a topic that isn't theirs", live())
	}
	w.away, w.hushed = [topics + 1]bool{}, [topics + 1]bool{}
}

// backlog has all rows in unanswered calls for minutes: then they leave in a few calls
// [ALONEATONCE, PROBESCOUNT].
func (w *world) backlog() {
	if !w.plan.backlog {
		return
	}
	var ats []int
	for i := range backlogged {
		ats = append(ats, 3000+topics*i)
	}
	w.hushed[0] = true
	w.commitRow(ats...)
	w.until(6*time.Minute, func() bool { return false })
	w.hushed[0] = false
	before := w.calledFor()
	w.until(5*time.Minute, w.finished)
	if calls := w.calledFor() - before; calls > 4*len(w.alive())+4 {
		w.theft("%d rows left in %d calls after an outage", backlogged, calls)
	}
}

const backlogged = 24

func (w *world) calledFor() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.called
}

// next has the first of what waits go on.
func (w *world) next() bool {
	if all := w.waiting(false); len(all) > 0 {
		w.act(act{answer, all[0].name})
		return true
	}
	all := w.outside()
	if len(all) == 0 {
		return false
	}
	v := reply
	if all[0].ghost {
		v = drop
	}
	return w.act(act{v, all[0].name})
}

// dropGhosts: what nobody waits for, and didn't run late, never does.
func (w *world) dropGhosts() {
	w.quiet()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statements = slices.DeleteFunc(w.statements, func(s *statement) bool { return s.ghost })
}

// close stops all processes and waits until nothing runs any more.
func (w *world) close() {
	for _, p := range w.alive() {
		w.stops(p)
	}
	for {
		w.quiet()
		if w.next() {
			continue
		}
		if w.over() {
			return
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a bubble
	}
}
