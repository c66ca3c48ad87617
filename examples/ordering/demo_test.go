package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	return r
}

func TestDemo_BalancesAndGoesOnFromItsData(t *testing.T) {
	dir := t.TempDir()
	first := balanced(t, succeed(t, dir, "--orders", "60", "--json"))
	require.Equal(t, []int64{60, 6, 0}, []int64{first.Orders, first.Cancelled, first.Duplicates})
	require.Greater(t, first.Events, int64(2*66), "and notes")
	require.Positive(t, first.Seconds)

	second := balanced(t, succeed(t, dir, "--orders", "40", "--json"))
	require.Equal(t, []int64{100, 10}, []int64{second.Orders, second.Cancelled})
	require.Greater(t, second.Events, first.Events)

	text := succeed(t, dir, "--orders", "0")
	require.Contains(t, text, "waybill-data")
	require.Regexp(t, `orders +100\n`, text)
	require.Contains(t, text, "The books balance")
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
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "ordering.db"))
		return err == nil
	}, patient, tick)
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
	begin := time.Now()
	r := balanced(t, succeed(t, work, "--dir", dir, "--orders", "20", "--json"))
	require.EqualValues(t, before+20, r.Orders)
	require.Less(t, time.Since(begin), patient)
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
