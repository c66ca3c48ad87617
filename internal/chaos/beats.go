package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/verdict"
	"github.com/waybill-go/waybill/uow/postgres"
)

// What PostgreSQL forgets is told by commits of the run's own, which come all the time: of each
// it is known when PostgreSQL confirmed it and on which timeline, and in the end, whether it is
// there. An event that was committed after the last one that is left may have been forgotten as
// well; one that was committed before it was not, as commits are forgotten from the end.

const (
	beatsTable = "CREATE TABLE beats (n bigint PRIMARY KEY)"
	nextBeat   = "INSERT INTO beats (n) VALUES ($1) RETURNING substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
	betweenTwo = 100 * time.Millisecond
)

// beat is a commit that PostgreSQL confirmed.
type beat struct {
	n               int64
	timeline        string
	sent, confirmed time.Time
}

// loss is a failover, or another end of PostgreSQL after which it lacks what it had confirmed.
type loss struct {
	timeline string    // that it went on with
	from     time.Time // Nothing is missing that was committed before.
	until    time.Time // It had gone on.
	beats    int       // that are missing
}

// heart is the commits of a run.
type heart struct {
	mu  sync.Mutex
	all []beat
}

// run commits until ctx is done, as well as it can.
func (h *heart) run(ctx context.Context, r *run) {
	for n := int64(1); ; n++ {
		b := beat{n: n, sent: r.clock()}
		// It waits as long as a failover takes: one that is given up may be committed all the same.
		patient, cancel := context.WithTimeout(ctx, commandPatience)
		err := r.db.QueryRowContext(patient, nextBeat, n).Scan(&b.timeline)
		cancel()
		if err == nil {
			b.confirmed = r.clock()
			h.mu.Lock()
			h.all = append(h.all, b)
			h.mu.Unlock()
		}
		if wait(ctx, betweenTwo); ctx.Err() != nil {
			return
		}
	}
}

// losses tells them by which of the commits are left.
func (h *heart) losses(left map[int64]bool, now time.Time) (all []loss) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := -1
	for i, b := range append(slices.Clone(h.all), beat{confirmed: now}) {
		end := i == len(h.all)
		if !end && !left[b.n] {
			continue
		}
		l := loss{timeline: b.timeline, until: b.confirmed, beats: i - last - 1}
		if last >= 0 {
			l.from = h.all[last].sent
		}
		if l.beats > 0 || last >= 0 && !end && h.all[last].timeline != b.timeline {
			all = append(all, l)
		}
		last = i
	}
	return all
}

// accept has engines go on with a PostgreSQL that has another timeline, as an operator does
// with `waybill database accept`.
func (r *run) accept(ctx context.Context) error {
	for _, schema := range []string{r.schema, r.consumers} {
		p, err := postgres.Open(ctx, postgres.Config{DSN: r.cfg.Postgres, Schema: schema, NoCreate: true, MaxConns: nodeConns})
		if err != nil {
			return err
		}
		moved, err := outboxdb.New(p.DB(), p.Reader()).AcceptIdentity(ctx, "waybill-chaos")
		if closed := p.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
		if moved != "" {
			r.history.note(entry{At: r.clock(), What: "accepted", Text: schema + ": " + moved})
		}
	}
	return nil
}

// aftermath is how long after a failover a process may still publish what PostgreSQL has
// forgotten, or say that it was saved: it may have been stopped with it, or its connections be
// silent.
const aftermath = 30 * time.Second

// behind is how long after it was published an event may take effect, while there are faults.
const behind = time.Minute

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
		return
	}
	rows := map[string]verdict.Row{}
	for _, row := range f.Rows {
		rows[row.ID] = row
	}
	gone, published := map[string]bool{}, map[string]bool{} // by id; the latter only if its effect may be forgotten
	f.Deliveries = slices.DeleteFunc(f.Deliveries, func(d verdict.Delivery) bool {
		row, known := rows[d.ID]
		if known && !published[d.ID] && f.forgotten(d.At, behind) {
			published[row.ID] = true
		}
		if known || !f.forgotten(d.At, time.Second) {
			return false
		}
		gone[d.ID] = true
		return true
	})
	f.gone["events in Kafka"] = len(gone)
	f.effects = slices.DeleteFunc(f.effects, func(e effect) bool { return gone[e.message] })
	r.supply(f, published)
}

// supply adds the effects that may have been forgotten where they were.
func (r *run) supply(f *found, published map[string]bool) {
	done := map[string]bool{}
	for _, e := range f.effects {
		done[e.message] = true
	}
	for _, row := range f.Rows {
		if done[row.ID] || !published[row.ID] {
			continue
		}
		missing := effect{Effect: verdict.Effect{Key: row.Key, Number: verdict.Number(row.Body)}, message: row.ID}
		at := slices.IndexFunc(f.effects, func(e effect) bool { return e.Key == row.Key && e.Number > missing.Number })
		if at < 0 {
			at = len(f.effects)
		}
		f.effects = slices.Insert(f.effects, at, missing)
		f.gone["effects"]++
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
