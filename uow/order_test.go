package uow_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// depot has aggregates that share an order.
var depot = domain.MustNew("depot",
	domain.Aggregate[*Parcel]("parcel", domain.Event[Loaded](domain.Published(), domain.OrderedBy(func(e Loaded) string { return e.Van }))),
)

type Parcel struct{ domain.Root }

type Loaded struct{ Van string }

func parcel(vans ...string) *Parcel {
	p := &Parcel{domain.NewRoot()}
	for _, van := range vans {
		p.Raise(Loaded{Van: van})
	}
	return p
}

func newDepot(t *testing.T, open providers) *world {
	w := newWorld(t, open, func(c *uow.Config) { c.Domain = depot })
	w.retries = -1 // which would hide a deadlock
	return w
}

func (w *world) load(ctx context.Context, parcels ...*Parcel) error {
	return w.units.Do(ctx, func(ctx context.Context) error {
		for _, p := range parcels {
			if err := w.save(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// The key is that of every row, and decides the partition. One statement takes
// all locks, between the state and the rows.
func TestOrderedBy_Rows(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newDepot(t, open)
		require.NoError(t, w.load(t.Context(), parcel("b", "b"), parcel("a")))
		var keys []struct {
			PartitionKey, AggregateID string
			Partition                 int
		}
		require.NoError(t, w.db.Reader().NewRaw("SELECT partition_key, aggregate_id, partition FROM outbox ORDER BY seq").Scan(t.Context(), &keys))
		require.Len(t, keys, 6)
		for i, key := range []string{"b", "b", "b", "b", "a", "a"} {
			require.Equal(t, key, keys[i].PartitionKey)
			require.Equal(t, outbox.PartitionOf(key, 64), keys[i].Partition)
			require.NotEqual(t, key, keys[i].AggregateID)
		}
		if w.db.DB().Dialect().Name() == dialect.SQLite {
			require.Equal(t, []string{"commit 3"}, w.db.calls, "one writer needs no lock")
			return
		}
		require.Equal(t, []string{"commit 4"}, w.db.calls, "in the one trip")
		require.Contains(t, w.db.texts[2], "pg_advisory_xact_lock")
		require.Contains(t, w.db.texts[3], "INSERT INTO outbox_")
	})
}

func TestOrderedBy_Refuses(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newDepot(t, open)
		require.ErrorContains(t, w.load(t.Context(), parcel("")), "Depot.Loaded.v1 of parcel")
		require.ErrorContains(t, w.load(t.Context(), parcel("")), "has an empty key: let its domain.OrderedBy return")
		require.ErrorContains(t, w.load(t.Context(), parcel("a", "b")), `has the key "b" and the event before it "a"`)
		w.nothing(t)
	})
}

// unfinished is a unit that has written its rows and not committed yet.
type unfinished struct {
	pid    int
	commit func() error
}

func (w *world) begin(t *testing.T, p *Parcel) unfinished {
	t.Helper()
	pids, done, ended := make(chan int, 1), make(chan struct{}), make(chan error, 1)
	units := w.another(t)
	go func() {
		ended <- units.Do(context.WithoutCancel(t.Context()), func(ctx context.Context) error {
			if err := w.save(ctx, p); err != nil {
				return err
			}
			db, err := uow.DB(ctx)
			if err != nil {
				return err
			}
			var pid int
			err = db.NewRaw("SELECT pg_backend_pid()").Scan(ctx, &pid)
			pids <- pid
			<-done
			return err
		})
	}()
	commit := sync.OnceValue(func() error {
		close(done)
		return <-ended
	})
	t.Cleanup(func() { _ = commit() })
	return unfinished{<-pids, commit}
}

// waiting waits until n transactions wait for u, be it through one another.
func (u unfinished) waiting(t *testing.T, w *world, n int) {
	t.Helper()
	const query = "WITH RECURSIVE w(pid) AS (SELECT ?::int UNION SELECT a.pid FROM pg_stat_activity AS a, w WHERE w.pid = ANY (pg_blocking_pids(a.pid))) SELECT count(*) - 1 FROM w"
	waittest.Until(t, func() bool {
		var have int
		err := w.db.Reader().NewRaw(query, u.pid).Scan(t.Context(), &have)
		return err == nil && have == n
	})
}

// loading is load, by units of its own.
func (w *world) loading(t *testing.T, parcels ...*Parcel) <-chan error {
	t.Helper()
	units, ended := w.another(t), make(chan error, 1)
	go func() {
		ended <- units.Do(context.WithoutCancel(t.Context()), func(ctx context.Context) error {
			for _, p := range parcels {
				if err := w.save(ctx, p); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	return ended
}

// F-02: a unit that has drawn its seq keeps others of the same key from drawing
// theirs until it has committed. Others it doesn't keep.
// Conformance: U-01.
func TestOrderedBy_F02_WaitsForTheFirst(t *testing.T) {
	w := newDepot(t, openPostgres)
	first := w.begin(t, parcel("van"))
	second := w.loading(t, parcel("van"))
	first.waiting(t, w, 1)
	require.NoError(t, <-w.loading(t, parcel("another van")))
	first.waiting(t, w, 1)
	require.NoError(t, errors.Join(first.commit(), <-second))
}

// O11: schemas of one database have keys of their own.
// Conformance: U-17.
func TestOrderedBy_O11_OtherSchemasDoNotWait(t *testing.T) {
	w, other := newDepot(t, openPostgres), newDepot(t, openPostgres)
	first := w.begin(t, parcel("van"))
	select {
	case err := <-other.loading(t, parcel("van")):
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Error("a unit of another schema waits")
	}
	require.NoError(t, first.commit())
}

// Two keys, in the one order and in the other: nobody waits for each other.
func TestOrderedBy_NoDeadlock(t *testing.T) {
	w := newDepot(t, openPostgres)
	first := w.begin(t, parcel("a"))
	one := w.loading(t, parcel("a"), parcel("b"))
	first.waiting(t, w, 1)
	two := w.loading(t, parcel("b"), parcel("a"))
	first.waiting(t, w, 2)
	require.NoError(t, errors.Join(first.commit(), <-one, <-two))
}

// F-02: over many units at once, what becomes visible of a key is always behind
// what was visible before.
// Conformance: U-01.
func TestOrderedBy_F02_SeqIsCommitOrder(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newDepot(t, open)
		const writers, each = 4, 25
		vans := []string{"a", "b"}
		errs := make([]error, writers)
		var wg sync.WaitGroup
		for i := range writers {
			units := w.another(t)
			wg.Go(func() {
				for n := range each {
					errs[i] = errors.Join(errs[i], units.Do(context.Background(), func(ctx context.Context) error {
						err := w.save(ctx, parcel(vans[(i+n)%2]))
						if n%3 == 0 { // draw now, and commit later
							_, dbErr := uow.DB(ctx)
							err = errors.Join(err, dbErr)
						}
						return err
					}))
				}
			})
		}
		done := make(chan struct{})
		go func() {
			wg.Wait()
			close(done)
		}()
		last := map[string]int64{}
		seen := 0
		look := func() {
			var visible []struct {
				Seq          int64
				PartitionKey string
			}
			err := w.db.Reader().NewRaw("SELECT seq, partition_key FROM outbox WHERE target_broker = 'default' ORDER BY seq").Scan(t.Context(), &visible)
			require.NoError(t, err)
			added := 0
			for _, v := range visible {
				if v.Seq > last[v.PartitionKey] {
					added++
				}
			}
			require.Equal(t, len(visible)-seen, added, "a row appeared in front of one that was there")
			seen = len(visible)
			for _, v := range visible {
				last[v.PartitionKey] = v.Seq
			}
		}
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			look()
		}
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, writers*each, seen)
	})
}
