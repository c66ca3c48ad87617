package historydb_test

import (
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/waittest"
)

var bothTables = []string{"history", "events"}

// D13, S2-40. The second of two positions is committed first: a cursor would be past the
// first one when that is.
func TestRace_APositionThatCommitsLateHoldsBackHigherOnes(t *testing.T) {
	t.Parallel()
	for _, late := range bothTables {
		for _, early := range bothTables {
			t.Run(late+" behind "+early, func(t *testing.T) {
				t.Parallel()
				w := onPostgres(t)
				r := w.reading(historydb.Filter{})
				w.write(w.DB(), early, "before")
				require.Equal(t, []string{"before"}, r.all(10))
				open := w.begin()
				w.write(open, late, "late")
				w.write(w.DB(), early, "early")
				require.Empty(t, r.all(10))
				require.Empty(t, r.all(10))
				var pid int
				require.NoError(t, open.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
				held, err := r.Page(t.Context(), r.at, 0, 10)
				require.NoError(t, err)
				who, err := historydb.Writers(t.Context(), w.DB(), held.Writers)
				require.NoError(t, err)
				require.Len(t, who, 1, "it says whom it waits for")
				require.Equal(t, []any{pid, "idle in transaction", ""}, []any{who[0].PID, who[0].State, who[0].Prepared})
				require.WithinDuration(t, time.Now(), who[0].Since, time.Minute)
				require.NotEmpty(t, who[0].User)
				// What is written from now on isn't waited for.
				other := w.begin()
				w.write(other, late, "later")
				require.NoError(t, open.Commit())
				who, err = historydb.Writers(t.Context(), w.DB(), held.Writers)
				require.NoError(t, err)
				require.Empty(t, who)
				require.Equal(t, []string{"late", "early"}, r.all(10))
				held, err = r.Page(t.Context(), r.at, 0, 10)
				require.NoError(t, err)
				require.Empty(t, held.Writers, "who is open now, and behind whom there is nothing, isn't waited for")
				require.NoError(t, other.Commit())
				require.Equal(t, []string{"later"}, r.all(10))
			})
		}
	}
}

// Who looks for the first time while others write knows of no end: an empty page is none.
func TestReader_AnEmptyPageBesideWritersIsNoEnd(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	page := func(r *historydb.Reader, after int64) historydb.Page {
		p, err := r.Page(t.Context(), after, 0, 10)
		require.NoError(t, err)
		return p
	}
	require.False(t, page(historydb.NewReader(w.Reader(), historydb.Filter{}), 0).Unknown, "there is nothing")
	w.write(w.DB(), "history", "one")
	w.write(w.DB(), "history", "two")
	open := w.begin()
	w.write(open, "history", "late")
	for _, after := range []int64{0, 1} {
		r := historydb.NewReader(w.Reader(), historydb.Filter{})
		p := page(r, after)
		require.Empty(t, p.Events)
		require.True(t, p.Unknown)
		require.False(t, p.More)
	}
	r := historydb.NewReader(w.Reader(), historydb.Filter{})
	require.True(t, page(r, 0).Unknown)
	require.NoError(t, open.Commit())
	p := page(r, 0)
	require.False(t, p.Unknown)
	require.Len(t, p.Events, 3)
}

// The rows are read with a snapshot of after the wait, and not of when the highest
// position was noted.
func TestRace_WhatCommitsDuringTheWaitIsRead(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	open := w.begin()
	w.write(open, "events", "late")
	w.write(w.DB(), "history", "early")
	var h historydb.Horizon
	upTo, err := h.Advance(t.Context(), w.DB())
	require.NoError(t, err)
	require.Zero(t, upTo)
	require.NoError(t, open.Commit())
	upTo, err = h.Advance(t.Context(), w.DB())
	require.NoError(t, err)
	events, _, err := historydb.Between(t.Context(), w.DB(), historydb.Filter{}, 0, upTo, 10)
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, upTo, events[1].Position)
}

// model/history.pml, WRITERSFIRST: what commits after it was looked who writes isn't counted,
// as somebody may have drawn a lower position meanwhile. Here the look at pg_locks is over
// and the statement isn't: a view of that name comes before the server's own.
func TestRace_WhatCommitsBehindTheLookAtTheLocksIsNotCounted(t *testing.T) {
	t.Parallel()
	p, cfg := dbtest.Postgres(t)
	migrated(t, p)
	w := world{p, t}
	exec := func(db bun.IDB, query string, args ...any) {
		_, err := db.ExecContext(t.Context(), query, args...)
		require.NoError(t, err)
	}
	exec(p.DB(), `CREATE FUNCTION slow_locks() RETURNS SETOF pg_catalog.pg_locks LANGUAGE plpgsql VOLATILE AS $$
		BEGIN RETURN QUERY SELECT * FROM pg_catalog.pg_locks; PERFORM pg_advisory_xact_lock_shared(hashtext(current_schema())); END $$`)
	exec(p.DB(), "CREATE VIEW pg_locks AS SELECT * FROM slow_locks()")
	reader, err := p.DB().Conn(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	exec(reader, "SET search_path = ?, pg_catalog", bun.Ident(cfg.Schema))
	defer func() { exec(reader, "RESET search_path") }()

	gate := w.begin()
	exec(gate, "SELECT pg_advisory_xact_lock(hashtext(current_schema()))")
	var h historydb.Horizon
	looked := make(chan error, 1)
	var upTo int64
	go func() {
		var err error
		upTo, err = h.Advance(t.Context(), reader)
		looked <- err
	}()
	waittest.Until(t, func() bool {
		n, err := p.Reader().NewSelect().TableExpr("pg_catalog.pg_locks").Where("locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").
			Where("objid = (hashtext(?)::bigint & 4294967295)", cfg.Schema).Count(t.Context())
		require.NoError(t, err)
		require.Empty(t, looked, "it has looked at the locks")
		return n > 0
	}, "it has looked at the locks")
	late := w.begin()
	w.write(late, "history", "late")
	w.write(w.DB(), "history", "early")
	require.NoError(t, gate.Commit())
	require.NoError(t, <-looked)
	require.Zero(t, upTo)
	require.NoError(t, late.Commit())
	require.Equal(t, []string{"late", "early"}, w.reading(historydb.Filter{}).all(10))
}

// Only who writes events holds a reader back.
func TestHorizon_WaitsForNobodyElse(t *testing.T) {
	t.Parallel()
	w := onPostgres(t)
	idle := w.begin()
	_, err := idle.ExecContext(t.Context(), "INSERT INTO other VALUES (1)")
	require.NoError(t, err)
	reads := w.begin()
	_, err = reads.ExecContext(t.Context(), "SELECT * FROM history, events")
	require.NoError(t, err)
	vain := w.begin()
	w.write(vain, "history", "never")
	require.NoError(t, vain.Rollback())
	w.write(w.DB(), "history", "a")
	w.write(w.DB(), "events", "b")
	require.Equal(t, []string{"a", "b"}, w.reading(historydb.Filter{}).all(10))
}

// Writers of both tables, some of whom roll back, and a reader: it reads each once, in
// order.
// Conformance: S2-40.
func TestReader_ReadsAllInOrderBesideWriters(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		d := 300 * time.Millisecond
		if os.Getenv("WAYBILL_LONG") != "" {
			d = 20 * time.Second
		}
		end := time.Now().Add(d)
		var writers sync.WaitGroup
		for range 4 {
			writers.Go(func() {
				for time.Now().Before(end) {
					tx, err := w.DB().BeginTx(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					for range 1 + rand.IntN(3) {
						w.write(tx, bothTables[rand.IntN(2)], uuid.NewString())
					}
					if rand.IntN(8) == 0 {
						_ = tx.Rollback()
					} else if err := tx.Commit(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() { writers.Wait(); close(ended) }()
		r := w.reading(historydb.Filter{})
		var read []int64
		for last := false; !last; {
			select {
			case <-ended:
				last = true
			default:
			}
			for {
				p, err := r.Page(t.Context(), r.at, 0, 50)
				require.NoError(t, err)
				for _, e := range p.Events {
					if len(read) > 0 {
						require.Greater(t, e.Position, read[len(read)-1])
					}
					read = append(read, e.Position)
				}
				if p.UpTo == r.at {
					break
				}
				r.at = p.UpTo
			}
		}
		var stored []int64
		require.NoError(t, w.DB().NewRaw("SELECT position FROM history UNION ALL SELECT position FROM events ORDER BY position").Scan(t.Context(), &stored))
		require.Equal(t, stored, read)
		require.NotEmpty(t, read)
	})
}
