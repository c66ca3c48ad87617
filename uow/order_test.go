package uow_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/domain"
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
	return newWorld(t, open, func(c *uow.Config) {
		c.Domain = depot
		c.MaxRetries = -1
	})
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
		require.Contains(t, w.db.texts[3], "INSERT INTO outbox")
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

// F-02: a unit that has drawn its seq keeps others of the same key from drawing
// theirs until it has committed. Others it doesn't keep.
func TestOrderedBy_F02_WaitsForTheFirst(t *testing.T) {
	w := newDepot(t, openPostgres)
	drawn, commit := make(chan int), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- w.units.Do(t.Context(), func(ctx context.Context) error {
			if err := w.save(ctx, parcel("van")); err != nil {
				return err
			}
			db, err := uow.DB(ctx)
			if err != nil {
				return err
			}
			var pid int
			err = db.NewRaw("SELECT pg_backend_pid()").Scan(ctx, &pid)
			drawn <- pid
			<-commit
			return err
		})
	}()
	pid := <-drawn
	units := w.another(t)
	second := make(chan error, 1)
	go func() {
		second <- units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, parcel("van")) })
	}()
	waits := func() bool {
		var n int
		err := w.db.Reader().NewRaw("SELECT count(*) FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid))", pid).Scan(t.Context(), &n)
		return err == nil && n == 1
	}
	require.Eventually(t, waits, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, w.another(t).Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, parcel("another van")) }))
	require.True(t, waits())
	close(commit)
	require.NoError(t, errors.Join(<-first, <-second))
}

// F-02: over many units at once, what becomes visible of a key is always behind
// what was visible before.
func TestOrderedBy_F02_SeqIsCommitOrder(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newDepot(t, open)
		const writers, each = 4, 40
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

// Two keys, in the one order and in the other: nobody waits for each other.
func TestOrderedBy_NoDeadlock(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newDepot(t, open)
		errs := make([]error, 4)
		var wg sync.WaitGroup
		for i := range errs {
			units := w.another(t)
			vans := []string{"a", "b", "c", "d"}
			if i%2 == 0 {
				slices.Reverse(vans)
			}
			wg.Go(func() {
				for range 50 {
					errs[i] = errors.Join(errs[i], units.Do(context.Background(), func(ctx context.Context) error {
						for _, van := range vans {
							if err := w.save(ctx, parcel(van)); err != nil {
								return err
							}
						}
						return nil
					}))
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Len(t, rows(t, w.db), 4*50*4*2)
	})
}
