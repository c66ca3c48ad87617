package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/verdict"
)

// aftermath is how long after a failover a process may still publish what PostgreSQL has
// forgotten, or say that it was saved: it may have been stopped with it, or its connections be
// silent.
const aftermath = 30 * time.Second

// near says that what was at a time may have been forgotten.
func (l loss) near(at time.Time, before time.Duration) bool {
	return at.After(l.from.Add(-before)) && at.Before(l.until.Add(aftermath))
}

func (f *found) forgotten(at time.Time, before time.Duration) bool {
	return slices.ContainsFunc(f.losses, func(l loss) bool { return l.near(at, before) })
}

// pardon takes out of the evidence what is so because PostgreSQL has forgotten commits, and
// counts it; without the operator's leave to forget, that it has is a violation by itself.
func (r *run) pardon(f *found) {
	f.gone = map[string]int{}
	for _, l := range f.losses {
		if f.gone["commits of the run's own"] += l.beats; l.beats > 0 && !r.cfg.Asynchronous {
			f.violations = append(f.violations, fmt.Sprintf("lost: PostgreSQL, now with timeline %s, lacks %d commits of the run's own that it had confirmed between %s and %s",
				l.timeline, l.beats, l.from.Format(time.RFC3339Nano), l.until.Format(time.RFC3339Nano)))
		}
		for i, in := range f.Incidents {
			if in.Undoes && in.From.Before(l.until) && in.Until.After(l.from) && l.from.Before(in.From) {
				f.Incidents[i].From = l.from
			}
		}
	}
	if !r.cfg.Asynchronous {
		r.restore(f, nil)
		return
	}
	known, ghosts := map[string]bool{}, map[string]bool{}
	for _, row := range f.Rows {
		known[row.ID] = true
	}
	f.Deliveries = slices.DeleteFunc(f.Deliveries, func(d verdict.Delivery) bool {
		if known[d.ID] || !f.forgotten(d.At, time.Second) {
			return false
		}
		ghosts[d.ID] = true
		return true
	})
	f.gone["events in Kafka"] = len(ghosts)
	f.effects = slices.DeleteFunc(f.effects, func(e effect) bool { return ghosts[e.message] })
	r.restore(f, ghosts)
}

// told is an effect that a consumer was told is committed.
type told struct {
	did

	process string
	heard   time.Time // when the run was told in its turn
}

// done notes what a consumer was told.
func (r *run) done(process, text string) {
	t := told{process: process, heard: r.clock()}
	if json.Unmarshal([]byte(text), &t.did) != nil {
		return // it was killed while it said so
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, t)
}

// acknowledges notes what a consumer acknowledges.
func (r *run) acknowledges(messages []string) {
	at := r.clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		if _, ok := r.acked[m]; !ok {
			r.acked[m] = at
		}
	}
}

// letters reads which messages consumers have put aside. What waited for its time, as the
// database was away, or behind that, is handled by itself.
func (r *run) letters(ctx context.Context, f *found) error {
	f.letters = map[string]bool{}
	return Each(ctx, r.db, "SELECT message_id, format('parked: message %s of %s, as %s', message_id, partition_key, reason), status = 'replayed' AND reason IN ('waiting', 'held') FROM "+quoted(r.consumers)+".dead_letters", func(scan func(...any) error) error {
		var message, what string
		var aside bool
		err := scan(&message, &what, &aside)
		if f.letters[message] = true; aside {
			f.aside++
		} else {
			f.violations = append(f.violations, what)
		}
		return err
	})
}

// mayForget says that an effect may have been forgotten: its commit, which was between its time
// and when the run heard of it, may have come after the last one that is left of those before a
// loss, and on the primary before it.
func (f *found) mayForget(t told) bool {
	return slices.ContainsFunc(f.losses, func(l loss) bool { return t.heard.After(l.from) && t.At.Before(l.until) })
}

// restore puts the effects that are missing though they were committed where they were, as
// forgotten ones, if PostgreSQL may have forgotten them; otherwise that is a violation. ghosts
// are messages whose events it has forgotten, too.
func (r *run) restore(f *found, ghosts map[string]bool) {
	type commit struct {
		message string
		at      int64
	}
	there, again := map[commit]bool{}, map[string]bool{}
	for _, e := range f.effects {
		there[commit{e.message, e.At.UnixMicro()}], again[e.message] = true, true
	}
	missing := map[string][]effect{} // by account
	for _, t := range f.told {
		switch {
		case ghosts[t.Message] || there[commit{t.Message, t.At.UnixMicro()}]:
			continue
		case !r.cfg.Asynchronous || !f.mayForget(t):
			f.violations = append(f.violations, fmt.Sprintf("lost: %s was told that the effect of event %d of %s, message %s, is committed, and the database lacks it", t.process, t.Number, t.Key, t.Message))
			continue
		case again[t.Message]:
			f.gone["effects that came again"]++
		default:
			f.gone["effects"]++
		}
		missing[t.Key] = append(missing[t.Key], effect{verdict.Effect{At: t.At, Key: t.Key, Number: t.Number, Forgotten: true}, t.Message})
	}
	r.unsaid(f, missing)
	for _, of := range missing {
		slices.SortStableFunc(of, func(a, b effect) int { return a.At.Compare(b.At) })
	}
	var all []effect
	for _, e := range f.effects { // in their own order, which no clock decides
		of := missing[e.Key]
		n := 0
		for n < len(of) && of[n].At.Before(e.At) {
			n++
		}
		all, missing[e.Key] = append(append(all, of[:n]...), e), of[n:]
	}
	for _, of := range missing {
		all = append(all, of...)
	}
	f.effects = all
}

// unsaid adds the messages that a consumer acknowledged just before a loss, and of which nothing
// is left that let it do so: no effect that was there by then, or that it had said to be, and no
// letter. They were put aside, or were duplicates of what it had done and not said, as that
// commit wasn't answered.
func (r *run) unsaid(f *found, missing map[string][]effect) {
	if !r.cfg.Asynchronous {
		return
	}
	said, by := map[string]bool{}, map[string]time.Time{}
	for _, t := range f.told {
		said[t.Message] = said[t.Message] || t.At.Before(f.acked[t.Message])
	}
	for _, e := range f.effects {
		by[e.message] = e.At
	}
	for _, row := range f.Rows {
		at, acked := f.acked[row.ID]
		there, has := by[row.ID]
		lost := slices.ContainsFunc(f.losses, func(l loss) bool { return at.After(l.from) && at.Before(l.until) })
		if !acked || !lost || said[row.ID] || f.letters[row.ID] || has && there.Before(at) {
			continue
		}
		missing[row.Key] = append(missing[row.Key], effect{verdict.Effect{At: at, Key: row.Key, Number: verdict.Number(row.Body), Forgotten: true}, row.ID})
		f.gone["messages that were put aside"]++
	}
}

// answered is, by account, the last event that a writer was told is committed, unless
// PostgreSQL was allowed to forget it.
func (r *run) answered(f *found) map[string]int64 {
	all := map[string]int64{}
	r.history.mu.Lock()
	defer r.history.mu.Unlock()
	for _, e := range r.history.entries {
		if e.What == "saved" && (!r.cfg.Asynchronous || !f.forgotten(e.At, 0)) {
			all[e.Key] = max(all[e.Key], e.Number)
		}
	}
	return all
}
