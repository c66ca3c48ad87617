package timerdb_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// race is units that set and stop timers, handlers and promoters, side by side, in the
// order of locks that model/timers.pml asks for.
type race struct {
	*world

	mu   sync.Mutex
	seen []string // messages that were sent, which arrive again and again
	of   sync.Map // owners, by message

	conflicts, stopped, handled atomic.Int64
}

var (
	errConflict = errors.New("conflict")
	errStopped  = errors.New("stopped")
)

const owners = 10

func newRace(w *world) *race {
	w.Exec("CREATE TABLE aggregates (owner text PRIMARY KEY, version int NOT NULL)")
	w.Exec("CREATE TABLE effects (id uuid NOT NULL)")
	w.Exec("CREATE TABLE stops (id uuid NOT NULL)")
	for i := range owners {
		w.Exec("INSERT INTO aggregates VALUES (?, 0)", fmt.Sprint(i))
	}
	return &race{world: w}
}

// save is the versioned update of a loaded aggregate, and its lock.
func (r *race) save(owner string) uow.Statement {
	version := r.Count("SELECT version FROM aggregates WHERE owner = ?", owner)
	return uow.Statement{Query: bun.SafeQuery("UPDATE aggregates SET version = version + 1 WHERE owner = ? AND version = ?", owner, version), Rows: 1, Else: errConflict}
}

// unit sets or stops both timers of an owner, in any order.
func (r *race) unit() error {
	owner := fmt.Sprint(rand.IntN(owners))
	all := []uow.Statement{r.save(owner)}
	names := []string{"x", "y"}
	rand.Shuffle(2, func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		change := timerdb.Stop(owner, name)
		if rand.IntN(3) > 0 {
			t := timer(owner, name, past.Add(time.Duration(rand.IntN(10))*time.Second))
			r.of.Store(t.Row.MessageID, owner)
			change = timerdb.Set(t)
		}
		all = append(all, uow.Statement{Query: bun.SafeQuery("INSERT INTO stops SELECT id FROM timers WHERE owner = ? AND name = ?", owner, name), Rows: -1},
			uow.Statement{Query: change, Rows: -1})
	}
	return r.send(all...)
}

// handler is the transaction of a message that may arrive for the tenth time.
func (r *race) handler(id string) error {
	if !r.waits(id) {
		return errStopped
	}
	owner, _ := r.of.Load(id)
	return r.send(r.save(owner.(string)),
		uow.Statement{Query: timerdb.Handled(id), Rows: 1, Else: errStopped},
		uow.Statement{Query: bun.SafeQuery("INSERT INTO effects VALUES (?)", id), Rows: -1})
}

func (r *race) promoter() error {
	_, err := r.store().Promote(r.T.Context(), "default", 5)
	var ids []string
	if err == nil {
		err = r.DB.NewRaw("SELECT id FROM timers WHERE status = 'sent'").Scan(r.T.Context(), &ids)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, ids...)
	return err
}

func (r *race) message() (id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 {
		return ""
	}
	return r.seen[len(r.seen)-1-rand.IntN(min(len(r.seen), 20))]
}

// count takes errors that belong to it, and returns the others.
func (r *race) count(err error) error {
	switch {
	case errors.Is(err, errConflict):
		r.conflicts.Add(1)
	case errors.Is(err, errStopped):
		r.stopped.Add(1)
	case err == nil:
		r.handled.Add(1)
	default:
		return err
	}
	return nil
}

// Each timer that isn't stopped or moved has one effect, none other has any, and nobody
// waits for ever.
func TestRace_EachTimerHasOneEffectOrWasStopped(t *testing.T) {
	t.Parallel()
	r := newRace(openWorld(t, outboxdbtest.PostgreSQL(t)))
	const units = 150
	var setters, others sync.WaitGroup
	errs := make(chan error, 100)
	done := make(chan struct{})
	until := func(do func() error) {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := do(); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range 2 {
		setters.Go(func() {
			for range units {
				if err := r.unit(); err != nil && !errors.Is(err, errConflict) {
					errs <- err
					return
				}
			}
		})
		until(r.promoter)
		until(func() error {
			if id := r.message(); id != "" {
				return r.count(r.handler(id))
			}
			return nil
		})
	}
	setters.Wait()
	close(done)
	others.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	for r.promote(500).Sent > 0 {
	}
	require.NoError(t, r.promoter())
	for _, id := range r.seen {
		require.NoError(t, r.count(r.handler(id)))
	}
	require.Zero(t, r.Count("SELECT count(*) FROM timers"))
	require.Zero(t, r.Count("SELECT count(*) FROM effects JOIN stops USING (id)"), "none was both stopped and handled")
	require.Zero(t, r.Count("SELECT count(*) - count(DISTINCT id) FROM effects"), "none was handled twice")
	require.Zero(t, r.Count("SELECT count(*) FROM outbox WHERE message_id NOT IN (SELECT id FROM effects UNION SELECT id FROM stops)"), "none was lost")
	t.Log("handled", r.handled.Load(), "stopped", r.stopped.Load(), "conflicts", r.conflicts.Load())
}

// With a million timers, a look reads few pages, whatever the statistics say.
func TestPlans_ByIndexWhateverTheStatisticsSay(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string][]string{
		"none":               nil,
		"of an empty table":  {"VACUUM ANALYZE timers"},
		"when all were sent": {"fill", "UPDATE timers SET status = 'sent', sent_at = set_at", "ANALYZE timers", "DELETE FROM timers"},
		"when all waited":    {"fill", "VACUUM ANALYZE timers", "DELETE FROM timers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, outboxdbtest.PostgreSQL(t))
			w.Exec("ALTER TABLE timers SET (autovacuum_enabled = false)")
			for _, query := range prepare {
				if query == "fill" {
					w.fill()
					continue
				}
				w.Exec(query)
			}
			w.fill()
			for step, args := range map[string][]any{
				"due":         {bun.Safe("clock_timestamp()"), 500, "default", bun.Safe("TRUE")},
				"next":        {bun.Safe("1")},
				"unpublished": {50000, "default"},
			} {
				plan := w.plan(step, args...)
				require.NotRegexp(t, `Seq Scan on timers|Sort`, plan)
				require.NotRegexp(t, `actual rows=\d{4,}`, plan)
			}
			require.NotContains(t, w.plan("count", bun.Safe("clock_timestamp()")), "Seq Scan on timers")
		})
	}
}

// A page of timers is read by an index, whatever it asks for of their times and states: with
// a million of them people would wait, or be refused.
func TestFind_APageReadsItsRowsOnly(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.PostgreSQL(t))
	w.fill()
	w.Exec("VACUUM ANALYZE timers")
	for _, f := range []outbox.TimerFilter{
		{},
		{Status: outbox.TimerWaiting},
		{From: time.Now()},
		{Until: time.Now()},
		{Owner: "7"},
		{After: "2020-01-01T00:00:00Z," + uuid.NewString()},
	} {
		f.Limit = 100
		args, err := w.store().Finding(f)
		require.NoError(t, err)
		plan := w.explain(w.DB, "find", args)
		require.NotContains(t, plan, "Seq Scan on timers")
		require.NotRegexp(t, `actual rows=\d{4,}`, plan)
	}
}

// SQLite plans without statistics.
func TestFind_APageReadsItsRowsOnlyOnSQLite(t *testing.T) {
	t.Parallel()
	w := openWorld(t, outboxdbtest.SQLite(t))
	for want, f := range map[string]outbox.TimerFilter{
		"SEARCH t USING PRIMARY KEY (id=?)":                        {IDs: []string{uuid.NewString()}},
		"(owner=?)":                                                {Owner: "7"},
		"(owner=? AND name=?)":                                     {Owner: "7", Name: "x"},
		"SEARCH t USING INDEX timers_at (available_at>?)":          {From: time.Now()},
		"SEARCH t USING INDEX timers_at ((available_at,id)>(?,?))": {After: "2020-01-01T00:00:00Z," + uuid.NewString()},
		"SCAN t USING INDEX timers_broken":                         {Status: outbox.TimerBroken},
		"SCAN t USING INDEX timers_at":                             {},
	} {
		args, err := w.store().Finding(f)
		require.NoError(t, err)
		var plan []struct {
			ID, Parent, Notused int
			Detail              string
		}
		require.NoError(t, w.DB.NewRaw("EXPLAIN QUERY PLAN "+timerdb.Text("find"), args).Scan(t.Context(), &plan))
		require.Contains(t, plan[0].Detail, want)
	}
}

// fill sets timers.
func (w *world) fill() {
	w.Exec("INSERT INTO timers (id, owner, name, available_at, key, message, payload)" +
		" SELECT gen_random_uuid(), n, 'x', now() + (n - 10000) * interval '1 second', n, '{\"target\": \"default\"}', '' FROM generate_series(1, 50000) AS n")
}

// plan is that of a step of the promoter.
func (w *world) plan(step string, args ...any) string {
	w.T.Helper()
	tx, err := w.DB.BeginTx(w.T.Context(), nil)
	require.NoError(w.T, err)
	defer func() { require.NoError(w.T, tx.Rollback()) }()
	_, err = tx.ExecContext(w.T.Context(), timerdb.Text("begin"))
	require.NoError(w.T, err)
	return w.explain(tx, step, args...)
}

func (w *world) explain(db bun.IDB, step string, args ...any) string {
	w.T.Helper()
	var plan []string
	require.NoError(w.T, db.NewRaw("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+timerdb.Text(step), args...).Scan(w.T.Context(), &plan))
	return fmt.Sprintln(step, plan)
}
