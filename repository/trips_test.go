package repository_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/repository"
)

// TestRoundTrips counts what a network would cost.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	dsn, trips := countTrips(t, postgresDSN(t))
	db := openPostgres(t, dsn)
	ctx := t.Context()
	tallies := repository.New[*Tally](db.units)
	baskets := repository.Mapped(db.units, basketMapping)
	ledgers := repository.EventSourced[*Ledger](db.units)
	require.NoError(t, tallies.Save(ctx, newTally("warm")))
	a := newTally("first event reads the partition count")
	a.Add(1)
	require.NoError(t, tallies.Save(ctx, a))

	costs := func(want int64, what string, do func() error) {
		t.Helper()
		before := trips()
		require.NoError(t, do())
		require.Equal(t, want, trips()-before, what)
	}
	tally, basket, ledger := newTally("1"), newBasket("1"), newLedger("1")
	for range 3 {
		tally.Add(1)
		basket.Add(1)
		ledger.Add(1)
	}
	costs(1, "a new document and its events", func() error { return tallies.Save(ctx, tally) })
	costs(1, "new rows with children and events", func() error { return baskets.Save(ctx, basket) })
	costs(1, "new events", func() error { return ledgers.Save(ctx, ledger) })
	tally.Add(1)
	costs(1, "a changed document", func() error { return tallies.Save(ctx, tally) })
	costs(1, "reading alone", func() error { _, err := tallies.GetMany(ctx, "1", "warm"); return err })
	costs(1, "reading a history", func() error { _, err := ledgers.Get(ctx, "1"); return err })
	costs(3, "reading a row and two tables of children", func() error { _, err := baskets.Get(ctx, "1"); return err })
	costs(2, "Update: a read and a commit", func() error {
		return tallies.Update(ctx, "1", func(a *Tally) error { a.Add(1); return nil })
	})
	costs(1, "Update of a history that changes nothing: a read", func() error {
		return ledgers.Update(ctx, "1", func(*Ledger) error { return nil })
	})
	costs(3, "a unit with three kinds: two reads and a commit", func() error {
		return db.units.Do(ctx, func(ctx context.Context) error {
			tally, err := tallies.Get(ctx, "1")
			require.NoError(t, err)
			ledger, err := ledgers.Get(ctx, "1")
			require.NoError(t, err)
			basket := newBasket("2")
			basket.Add(1)
			tally.Add(1)
			ledger.Add(1)
			require.NoError(t, baskets.Save(ctx, basket))
			require.NoError(t, tallies.Save(ctx, tally))
			return ledgers.Save(ctx, ledger)
		})
	})
	costs(3, "Find: a select and two tables of children", func() error {
		_, err := baskets.Find(ctx, func(q *bun.SelectQuery) *bun.SelectQuery { return q.Where("sum > 0") })
		return err
	})
}

// countTrips returns a DSN through a relay that counts requests which begin
// after an answer.
func countTrips(t testing.TB, dsn string) (through string, trips func() int64) {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	server := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var n atomic.Int64
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			var asked atomic.Bool
			relay := func(to, from net.Conn, seen func()) {
				defer to.Close() // which ends the other direction too
				defer from.Close()
				_, _ = io.Copy(watcher{to, seen}, from)
			}
			wg.Go(func() {
				relay(upstream, client, func() {
					if !asked.Swap(true) {
						n.Add(1)
					}
				})
			})
			wg.Go(func() { relay(client, upstream, func() { asked.Store(false) }) })
		}
	})
	u.Host = listener.Addr().String()
	return u.String(), n.Load
}

// watcher tells of each write before it happens.
type watcher struct {
	io.Writer
	seen func()
}

func (w watcher) Write(b []byte) (int, error) {
	w.seen()
	return w.Writer.Write(b)
}
