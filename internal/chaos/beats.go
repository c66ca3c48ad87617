package chaos

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
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
