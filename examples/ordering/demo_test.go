package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/uow/sqlite"
)

func balanced(t *testing.T, stdout string) result {
	t.Helper()
	require.Equal(t, 1, strings.Count(stdout, "\n"), "one line: %s", stdout)
	r := decode[result](t, stdout)
	require.True(t, r.OK)
	require.Equal(t, r.Orders, r.Shipments)
	require.Equal(t, map[string]int64{"default": r.Events, "partner": r.Orders + r.Cancelled}, r.Published)
	require.Equal(t, r.Published["partner"], r.PartnerReceived)
	require.Equal(t, r.Orders, r.Released+r.Cancelled)
	require.Equal(t, r.Released, r.Dispatched)
	require.Equal(t, []int64{r.Orders, r.Orders, 0, 0}, []int64{r.Charges, r.Purchases, r.Running, r.Timers})
	require.Equal(t, r.Shipped, r.Paid-r.Refunded)
	return r
}

func TestDemo_BalancesAndGoesOnFromItsData(t *testing.T) {
	dir := t.TempDir()
	first := balanced(t, succeed(t, dir, "--orders", "60", "--json"))
	require.Equal(t, []int64{60, 0}, []int64{first.Orders, first.Duplicates})
	require.GreaterOrEqual(t, first.Cancelled, int64(6+2+2), "by customers, without credit, never paid; and what is paid late")
	require.Positive(t, first.Released)
	require.Positive(t, first.Commands)
	require.Greater(t, first.Events, int64(2*66), "and notes")
	require.Positive(t, first.Seconds)

	second := balanced(t, succeed(t, dir, "--orders", "40", "--json"))
	require.EqualValues(t, 100, second.Orders)
	require.Greater(t, second.Cancelled, first.Cancelled)
	require.Greater(t, second.Events, first.Events)

	text := succeed(t, dir, "--orders", "0")
	require.Contains(t, text, "waybill-data")
	require.Regexp(t, `orders +100\n`, text)
	require.Contains(t, text, "The books balance")
	booksNotice(t, filepath.Join(dir, "waybill-data", "ordering.db"))
}

// booksNotice makes changes behind the backs of the contexts, each of which the books
// tell of.
func booksNotice(t *testing.T, path string) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	const one = " WHERE (category, id) = (SELECT category, min(id) FROM documents WHERE category = ? AND state ->> 'Status' = ?)"
	for _, c := range []struct {
		change string
		args   []any
		want   []string
	}{
		{"UPDATE documents SET state = json_set(state, '$.Refunded', 0)" + one, []any{chargeCategory, "refunded"}, []string{"cents were paid"}},
		{"UPDATE documents SET state = json_set(state, '$.Status', 'paid')" + one, []any{chargeCategory, "refunded"}, []string{"1 orders are not both released and paid for"}},
		{"UPDATE documents SET state = json_set(state, '$.Status', 'prepared')" + one, []any{shipmentCategory, "dispatched"}, []string{"shipments dispatched", "1 orders are not both released and shipped"}},
		{"UPDATE documents SET state = json_set(state, '$.Status', 'placed')" + one, []any{orderCategory, "released"}, []string{"1 orders are neither released nor cancelled yet"}},
		{"DELETE FROM documents" + one, []any{chargeCategory, "declined"}, []string{"1 orders have no charge"}},
		{"UPDATE processes SET status = 'running', ended_at = NULL, forget_at = NULL WHERE id = (SELECT min(id) FROM processes)", nil, []string{"1 purchases have not ended yet"}},
	} {
		done, err := db.DB().NewRaw(c.change, c.args...).Exec(t.Context())
		require.NoError(t, err)
		n, err := done.RowsAffected()
		require.NoError(t, err)
		require.EqualValues(t, 1, n, c.change)
		b, err := readBooks(t.Context(), db, []string{"default", "partner"})
		require.NoError(t, err)
		for _, want := range c.want {
			require.Contains(t, strings.Join(b.Differences, "\n"), want)
		}
	}
}

// S10: nobody else looks into the directory that the demo makes.
func TestDirectory_S10_IsPrivate(t *testing.T) {
	dir := t.TempDir()
	succeed(t, dir, "--orders", "0")
	for name, want := range map[string]os.FileMode{"waybill-data": 0o700, "waybill-data/ordering.db": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), name)
	}
}

// orderCount looks into the database of a demo that runs.
func orderCount(t *testing.T, dir string) func() int {
	t.Helper()
	waittest.Until(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "ordering.db"))
		return err == nil
	})
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "ordering.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return func() (n int) {
		err := db.Reader().NewRaw("SELECT count(*) FROM documents WHERE category = ?", orderCategory).Scan(t.Context(), &n)
		if err != nil {
			return 0 // not migrated yet
		}
		return n
	}
}

// Killed with orders placed and messages on their way, twice; the run after
// that goes on within seconds, and its books are those of all runs.
func TestDemo_BalancesAfterKills(t *testing.T) {
	work := t.TempDir()
	dir := filepath.Join(work, "data")
	before := 0
	for range 2 {
		p := start(t, work, orderingProgram, "--dir", dir, "--orders", "5000", "--json")
		orders := orderCount(t, dir)
		p.eventually(func() bool { return orders() > before+40 }, "places orders")
		if before == 0 {
			other := runIn(t, work, "--dir", dir)
			require.Equal(t, exitFailed, other.code)
			require.Contains(t, other.stderr, dir+" can't be used")
			require.Contains(t, other.stderr, "another server has it")
		}
		p.kill()
		before = orders()
	}
	r := balanced(t, succeed(t, work, "--dir", dir, "--orders", "20", "--json"))
	require.EqualValues(t, before+20, r.Orders)
}

func TestDemo_StopsInTheMiddle(t *testing.T) {
	work := t.TempDir()
	dir := filepath.Join(work, "data")
	p := start(t, work, orderingProgram, "--dir", dir, "--orders", "5000")
	orders := orderCount(t, dir)
	p.eventually(func() bool { return orders() > 10 }, "places orders")
	p.signal(syscall.SIGINT)
	require.Equal(t, exitFailed, p.wait(), "the books were not closed")
	require.Contains(t, p.stderr.String(), "the next run goes on")
	balanced(t, succeed(t, work, "--dir", dir, "--orders", "0", "--json"))
}
