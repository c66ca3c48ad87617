package repository_test

import (
	"context"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Events of a database of the version before get their positions in the order of time,
// but for what the clocks got wrong within an aggregate.
func TestMigrations_EventsFromBeforeGetPositions(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, p uow.Provider) {
		t.Helper()
		before := fstest.MapFS{}
		for _, name := range []string{"postgres/0001_repository.sql", "sqlite/0001_repository.sql", "postgres/0002_state_version.sql", "sqlite/0002_state_version.sql"} {
			b, err := fs.ReadFile(repository.Migrations().Files, name)
			require.NoError(t, err)
			before[name] = &fstest.MapFile{Data: b}
		}
		require.NoError(t, migrate.Set{Feature: "repository", Files: before}.Up(t.Context(), p.DB()))
		_, err := p.DB().ExecContext(t.Context(), `INSERT INTO events (category, id, version, n, message_id, type, data, occurred_at) VALUES
			('shop::ledger', 'b', 1, 1, '019a0000-0000-7000-8000-000000000001', 'Shop.LedgerAdded.v2', '{}', '2026-01-02T03:00:02.000Z'),
			('shop::ledger', 'b', 2, 1, NULL, 'waybill.saved', NULL, '2026-01-02T03:00:09.000Z'),
			('shop::ledger', 'b', 3, 1, '019a0000-0000-7000-8000-000000000002', 'Shop.LedgerAdded.v2', '{}', '2026-01-02T03:00:01.000Z'),
			('shop::ledger', 'b', 3, 2, '019a0000-0000-7000-8000-000000000003', 'Shop.LedgerAdded.v2', '{}', '2026-01-02T03:00:01.000Z'),
			('shop::ledger', 'a', 1, 1, '019a0000-0000-7000-8000-000000000004', 'Shop.LedgerAdded.v2', '{}', '2026-01-02T03:00:05.000Z')`)
		require.NoError(t, err)
		require.NoError(t, repository.Migrations().Up(t.Context(), p.DB()))
		require.NoError(t, historydb.Migrations().Up(t.Context(), p.DB()))
		_, err = p.DB().ExecContext(t.Context(), `INSERT INTO events (category, id, version, n, message_id, type, data, occurred_at) VALUES
			('shop::ledger', 'a', 2, 1, '019a0000-0000-7000-8000-000000000005', 'Shop.LedgerAdded.v2', '{}', '2026-01-02T03:00:00.000Z')`)
		require.NoError(t, err)
		read, err := historydb.NewReader(p.Reader(), historydb.Filter{}).Page(t.Context(), 0, 0, 10)
		require.NoError(t, err)
		var got []string
		for _, e := range read.Events {
			got = append(got, e.AggregateID+e.Sequence)
		}
		require.Equal(t, []string{"b1.1", "a1.1", "b3.1", "b3.2", "a2.1"}, got)
		require.EqualValues(t, 6, read.UpTo)
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, dbtest.SQLite(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		p, _ := dbtest.Postgres(t)
		test(t, p)
	})
}

// What is written over the mark of a refused version comes after what was read meanwhile.
func TestEventSourced_WhatReplacesARefusalGetsANewPosition(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		ledgers := repository.EventSourced[*Ledger](db.units)
		var lost uow.Change
		require.ErrorIs(t, db.units.Do(ctx, func(ctx context.Context) error {
			u, err := uow.From(ctx)
			require.NoError(t, err)
			l := newLedger("l")
			l.Add(1)
			return u.Save(ctx, l, spyOn{func(c uow.Change) { lost = c }})
		}), errBroken)
		tx, err := db.provider.DB().BeginTx(ctx, nil)
		require.NoError(t, err)
		outcome, err := repository.Persister(ledgers).Resolve(ctx, tx, lost)
		require.NoError(t, err)
		require.Equal(t, uow.NotCommitted, outcome)
		require.NoError(t, tx.Commit())

		other := newLedger("other")
		other.Add(1)
		require.NoError(t, ledgers.Save(ctx, other))
		reader := historydb.NewReader(db.provider.Reader(), historydb.Filter{})
		page, err := reader.Page(ctx, 0, 0, 10)
		require.NoError(t, err)
		require.Len(t, page.Events, 1)
		again := newLedger("l")
		again.Add(1)
		again.Add(2)
		require.NoError(t, ledgers.Save(ctx, again))
		page, err = reader.Page(ctx, page.UpTo, 0, 10)
		require.NoError(t, err)
		require.Len(t, page.Events, 2)
		require.Equal(t, []string{"1.1", "1.2"}, []string{page.Events[0].Sequence, page.Events[1].Sequence})
	})
}

// spyOn sees a change, which then fails.
type spyOn struct{ see func(uow.Change) }

func (spyOn) Provider() string { return "" }

func (s spyOn) Persist(c uow.Change) ([]uow.Statement, error) {
	s.see(c)
	return nil, errBroken
}

func (spyOn) Resolve(context.Context, bun.Tx, uow.Change) (uow.Outcome, error) { return 0, errBroken }
