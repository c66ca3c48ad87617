package simulation

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
	"github.com/waybill-go/waybill/internal/verdict"
	"github.com/waybill-go/waybill/outbox"
)

func (w *world) theft(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	w.say("VIOLATION %s", what)
	w.thefts = append(w.thefts, what)
}

// tokens are those of a state, by name.
func tokens(s relaytest.State) map[token][]relay.RowRef {
	all := make(map[token][]relay.RowRef, len(s.Tokens))
	for _, t := range s.Tokens {
		all[token{t.Member, t.N}] = t.Rows
	}
	return all
}

// witness sees what a statement has changed, as the triggers of the fault runs do.
func (w *world) witness(s *statement, before, after relaytest.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, is := tokens(before), tokens(after)
	for _, t := range after.Tokens {
		name := token{t.Member, t.N}
		if _, known := was[name]; !known {
			w.claimed(s, name, t.Rows, before, after)
		}
	}
	for _, t := range before.Tokens {
		name := token{t.Member, t.N}
		if _, left := is[name]; !left {
			w.ended(s, name, t.Rows, before, after)
		}
	}
	w.owners(before, after)
	if settled, ok := s.request.(relay.Settlement); ok {
		w.settled(s, settled, was, before, after)
	}
	as, calls := *s, maps.Clone(w.procs[s.proc-1].last)
	w.takes(s.kind, func(m *machine) error { return m.statement(&as, before, after, calls) })
}

// claimed sees a token that is there now.
func (w *world) claimed(s *statement, of token, rows []relay.RowRef, before, after relaytest.State) {
	w.ghosts[of], w.claimers[of] = s.ghost, s.proc
	for _, ref := range rows {
		q, queued := before.Queue[ref.Seq]
		if !queued {
			continue
		}
		w.steps = append(w.steps, verdict.Step{
			Seq: ref.Seq, At: time.Now(), Old: "pending", New: "processing", Owner: owner(s.proc), Member: int64(of.member), Claim: of.n,
		})
		if s.ghost {
			continue
		}
		if by := after.Owners[q.Lane][q.Part]; by != of.member {
			w.theft("row %d: member %d claimed it, and its partition belongs to %d", ref.Seq, of.member, by)
		}
		for _, other := range before.Tokens {
			has := slices.ContainsFunc(other.Rows, func(r relay.RowRef) bool { return r.Seq == ref.Seq })
			if has && !w.ghosts[token{other.Member, other.N}] {
				w.theft("row %d: member %d claimed it while member %d has it in hand", ref.Seq, of.member, other.Member)
			}
		}
	}
}

func owner(process int) string { return fmt.Sprintf("simulation-%d-x", process) }

// ended sees that a token is gone, and what became of its rows.
func (w *world) ended(s *statement, of token, rows []relay.RowRef, before, after relaytest.State) {
	proc := w.claimers[of]
	if (s.kind == string(relaytest.Reap) || s.kind == string(relaytest.Finish)) && !w.procs[proc-1].killed {
		now := time.Now()
		w.losses++
		w.incidents = append(w.incidents, verdict.Incident{Kind: "late renewal", PID: proc, From: now.Add(-2 * lease), Until: now})
	}
	for _, ref := range rows {
		was, queued := before.Queue[ref.Seq]
		if !queued {
			continue
		}
		step := verdict.Step{Seq: ref.Seq, At: time.Now(), Old: "processing", New: "pending", Owner: owner(proc), Member: int64(of.member), Claim: of.n}
		q, left := after.Queue[ref.Seq]
		gone, abandoned := after.Abandoned[ref.Seq]
		switch {
		case abandoned, left && q.Held:
			step.New, step.Paid = "abandoned", max(q.Attempts, gone.Attempts) > was.Attempts
		case !left:
			step.New = "published"
		case q.Attempts != was.Attempts || !q.Due.Equal(was.Due):
			step.New, step.Paid = "failed", q.Attempts > was.Attempts
		case q.Losses > was.Losses:
			step.Lost = true
		}
		w.rows[ref.Seq].losses = max(w.rows[ref.Seq].losses, q.Losses, gone.Losses)
		w.steps = append(w.steps, step)
	}
}

// owners sees that partitions changed hands.
func (w *world) owners(before, after relaytest.State) {
	for lane, owners := range after.Owners {
		for part, now := range owners {
			was := before.Owners[lane][part]
			if was != now && was != 0 && now != 0 {
				w.theft("partition %d: %d took it from %d", part, now, was)
			}
			if _, there := after.Members[now]; was != now && now != 0 && !there {
				w.theft("partition %d: %d took it after its end", part, now)
			}
		}
	}
}

// settled sees what a settle has decided.
func (w *world) settled(s *statement, t relay.Settlement, was map[token][]relay.RowRef, before, after relaytest.State) {
	if len(before.Queue) == len(after.Queue) && len(t.Failed)+len(t.Lost) == 0 {
		return
	}
	_, known := was[token{t.Member, t.N}]
	changed := !maps.Equal(before.Queue, after.Queue)
	if _, alive := before.Members[t.Member]; changed && (!alive || !known) {
		w.theft("member %d decided about rows, and its claim %d was not in hand", t.Member, t.N)
	}
	if !known {
		return
	}
	for _, f := range t.Failed {
		if q, ok := before.Queue[f.Seq]; ok && f.Attempts > q.Attempts {
			w.pays(s, t, q, before)
		}
	}
	for _, a := range t.Abandoned {
		if q, ok := before.Queue[a.Seq]; ok && a.Attempts > q.Attempts && a.Class != "crash" {
			w.pays(s, t, q, before)
		}
	}
}

// pays sees that a row pays: it is the first undecided one of its key, and nobody else is
// to blame for it.
func (w *world) pays(s *statement, t relay.Settlement, q relaytest.Queued, before relaytest.State) {
	decided := func(seq int64) bool {
		return slices.ContainsFunc(t.Published, func(r relay.RowRef) bool { return r.Seq == seq }) ||
			slices.ContainsFunc(t.Abandoned, func(a relay.Abandonment) bool { return a.Seq == seq })
	}
	for seq, first := range before.Queue {
		if first.Key == q.Key && seq < q.Seq && !decided(seq) && !w.rows[seq].moved {
			w.theft("row %d pays, and row %d of its key is before it", q.Seq, seq)
		}
	}
	j, called := w.procs[s.proc-1].last[q.Seq]
	hanging := slices.ContainsFunc(w.calls, func(c *call) bool { return c.proc == s.proc && slices.Contains(c.seqs, q.Seq) })
	if !called || hanging || !w.plan.prefix || w.rows[q.Seq].poison != "" {
		return
	}
	if broker.ClassOf(j.said) == broker.Unknown && !j.answered && !j.convicts {
		w.theft("row %d pays, and nothing of its topic was answered", q.Seq)
	}
	if errors.Is(j.said, errNoLeader) || errors.Is(j.said, errNoService) {
		w.theft("row %d pays for what its topic or broker answered", q.Seq)
	}
}

// sendable sees what is handed to the broker. The lock is held.
func (w *world) sendable(c *call) {
	state := w.store.State()
	for _, t := range state.Tokens {
		if w.ghosts[token{t.Member, t.N}] || w.claimers[token{t.Member, t.N}] != c.proc {
			continue
		}
		for _, ref := range t.Rows {
			if !slices.Contains(c.seqs, ref.Seq) {
				continue
			}
			q, queued := state.Queue[ref.Seq]
			if !queued || q.Held || q.Due.After(time.Now()) {
				w.theft("row %d is sent, and it was decided that it doesn't go now", ref.Seq)
			}
		}
	}
}

// judge has the checker of the fault runs judge what is left.
func (w *world) judge() verdict.Report {
	state := w.store.State()
	e := verdict.Evidence{Moves: map[string]int64{}, Deliveries: w.stored, Steps: w.steps, Incidents: w.incidents}
	for _, seq := range slices.Sorted(maps.Keys(w.rows)) {
		r := w.rows[seq]
		if !r.committed {
			continue
		}
		e.Moves[r.key] = max(e.Moves[r.key], r.number)
		q, queued := state.Queue[seq]
		gone, abandoned := state.Abandoned[seq]
		as := verdict.Row{Seq: seq, ID: r.id, Key: r.key, Status: "published", Body: r.body, Class: gone.Class, Attempts: cmp.Or(gone.Attempts, q.Attempts), Losses: cmp.Or(gone.Losses, q.Losses)}
		switch {
		case abandoned, r.skipped && !queued, queued && q.Held:
			as.Status, as.Held = "abandoned", q.Held
		case queued && q.Failed:
			as.Status = "failed"
		case queued:
			as.Status = "pending"
		}
		if r.moved {
			e.Moved = append(e.Moved, r.id)
		}
		if w.mayBeAbandoned(r) {
			e.MayBeAbandoned = append(e.MayBeAbandoned, r.id)
		}
		e.Rows = append(e.Rows, as)
	}
	// A member whose leave wasn't answered, and didn't happen, is there until its lease has
	// passed, and its claims with it: the next process reaps it.
	orphans := slices.DeleteFunc(state.Tokens, func(t relaytest.Claims) bool { _, there := state.Members[t.Member]; return there })
	if n := len(orphans); n > 0 {
		w.theft("%d claims are left whose members are gone", n)
	}
	// A failure that is written makes it innocent.
	failed := func(r *row) bool { return r.poison == "deadly" && r.failures > 0 }
	if w.crashes > 5+w.losses && !slices.ContainsFunc(slices.Collect(maps.Values(w.rows)), failed) {
		w.theft("poison killed %d processes", w.crashes)
	}
	e.Thefts = w.thefts
	return e.Judge()
}

// mayBeAbandoned: its calls gave reasons enough, or so many processes or leases ended over
// it that nobody can tell it from poison [EARLY, STRICT].
func (w *world) mayBeAbandoned(r *row) bool {
	return r.moved || r.unfit || r.failures >= maxAttempts || r.poison != "" || r.losses >= 5 && w.losses >= 3
}

// finished says that nothing is left to do, but behind what is held. A claim that its
// process knows nothing of goes with its membership: when the process stops, or, where it was
// killed or its leave was refused, when another one finds that its lease has ended.
func (w *world) finished() bool {
	state := w.store.State()
	if len(unheld(state)) > 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(state.Tokens, func(t relaytest.Claims) bool {
		of := token{t.Member, t.N}
		p := w.procs[w.claimers[of]-1]
		return !w.ghosts[of] || p.killed || p.stopping
	})
}

// unheld are the queued rows that are neither held nor behind one that is.
func unheld(state relaytest.State) (seqs []int64) {
	held := map[int64]bool{}
	for _, seq := range slices.Sorted(maps.Keys(state.Queue)) {
		q := state.Queue[seq]
		if held[q.Key] = held[q.Key] || q.Held; !held[q.Key] {
			seqs = append(seqs, seq)
		}
	}
	return seqs
}

// neighbours commits rows beside those that are never answered, of their topics and
// partitions: nothing else tells them from an outage.
func (w *world) neighbours() {
	if time.Since(w.neighbour) < time.Second {
		return
	}
	w.neighbour = time.Now()
	for _, seq := range unheld(w.store.State()) {
		r := w.rows[seq]
		if r.poison != "mute" {
			continue
		}
		at := 100 + r.topic - 1
		for outbox.PartitionOf(account(at), partitions) != r.part {
			at += topics
		}
		w.commitRow(at)
	}
}
