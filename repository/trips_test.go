package repository_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/netfault"
	"github.com/waybill-go/waybill/repository"
)

// TestRoundTrips counts what a network would cost.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	dsn, relay := through(t, postgresDSN(t))
	db := openPostgres(t, dsn)
	quietly(t, db)
	db.keepsHistory(t)
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
		before := relay.Trips()
		require.NoError(t, do())
		require.Equal(t, want, relay.Trips()-before, what)
	}
	tally, basket, ledger := newTally("1"), newBasket("1"), newLedger("1")
	for range 3 {
		tally.Add(1)
		basket.Add(1)
		ledger.Add(1)
	}
	costs(1, "a new document, its events and the history", func() error { return tallies.Save(ctx, tally) })
	costs(1, "new rows with children and events", func() error { return baskets.Save(ctx, basket) })
	costs(1, "new events", func() error { return ledgers.Save(ctx, ledger) })
	parcel := &Parcel{Root: domain.NewRoot(), Van: "v"}
	parcel.Raise(ParcelLoaded{Van: "v"})
	costs(1, "a new document with the lock of its key", func() error { return repository.New[*Parcel](db.units).Save(ctx, parcel) })
	r, units := members(t, db, library)
	quietly(t, testDB{units: units})
	require.NoError(t, r.Save(ctx, newMember("warm", "warm@x", "Riga")))
	member := newMember("1", "1@x", "Riga")
	costs(1, "a new document with its indexes", func() error { return r.Save(ctx, member) })
	member.Email, member.City = "2@x", ""
	costs(1, "a document with other values in its indexes", func() error { return r.Save(ctx, member) })
	costs(1, "what is in an index", func() error { _, err := r.By(ctx, "email", "2@x", repository.Page{}); return err })
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

// through returns a DSN whose connections can be counted and broken.
func through(t testing.TB, dsn string) (string, *netfault.Relay) {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	relay, err := netfault.New(t.Context(), u.Host)
	require.NoError(t, err)
	t.Cleanup(relay.Close)
	u.Host = relay.Address
	return u.String(), relay
}
