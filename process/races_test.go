package process_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/process"
)

// begun is the state of a process that somebody else has begun.
const begun = `{"Steps":[9],"Notes":0}`

// early starts a world in which the first steps of a loan are set aside.
func early(t *testing.T, steps int) (w *world, stop func()) {
	t.Helper()
	w = newWorld(t, openPostgres(t))
	stop = w.start()
	for n := range steps {
		w.billingSays("l1", Step{"l1", n + 1})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == n+1 }, "it is set aside")
	}
	return w, stop
}

// racing runs a test on PostgreSQL with a transaction that is about to begin a process.
// meanwhile lets something else come, and what that does has to wait; then begin commits.
func racing(t *testing.T, steps int, begin func(tx bun.Tx), meanwhile func(w *world)) *world {
	t.Helper()
	w, _ := early(t, steps)
	tx, err := w.db.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	begin(tx)
	var pid int
	require.NoError(t, tx.NewRaw("SELECT pg_backend_pid()").Scan(t.Context(), &pid))
	meanwhile(w)
	w.until(func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE ? = ANY (pg_blocking_pids(pid))", pid) == 1
	}, "it waits for who begins the process")
	require.NoError(t, tx.Commit())
	return w
}

// The models' NORECHECK and OLDSNAPSHOT: the second answer has been let in while the first
// was early, and comes behind the lock when that is to be handled.
func TestRace_AnAnswerThatWasLetInBeforeTheStartLooksAgain(t *testing.T) {
	w := racing(t, 1, func(tx bun.Tx) {
		_, err := tx.ExecContext(t.Context(), "UPDATE processes SET status = 'running', forget_at = NULL, state = ?, version = 1", begun)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "UPDATE dead_letters SET status = 'replay', holds = TRUE, due_at = NULL WHERE status = 'early'")
		require.NoError(t, err)
	}, func(w *world) { w.billingSays("l1", Step{"l1", 2}) })
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 3 }, "both are heard")
	p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{9, 1, 2}, p.Steps)
}

// The model's LETTERSGO: so does a letter that an operator has replayed meanwhile.
func TestRace_ALetterThatIsReplayedBeforeTheStartLooksAgain(t *testing.T) {
	w := racing(t, 2, func(tx bun.Tx) {
		_, err := tx.ExecContext(t.Context(), "UPDATE processes SET status = 'running', forget_at = NULL, state = ?, version = 1", begun)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "UPDATE dead_letters SET status = 'replay', holds = TRUE, due_at = NULL WHERE status = 'early' AND message_id = (SELECT min(message_id) FROM dead_letters)")
		require.NoError(t, err)
	}, func(w *world) {
		_, err := w.db.DB().NewRaw("UPDATE dead_letters SET status = 'replay', holds = TRUE, due_at = NULL WHERE status = 'early' AND message_id = (SELECT max(message_id) FROM dead_letters)").Exec(t.Context())
		require.NoError(t, err)
	})
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 3 }, "both are heard")
	p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{9, 1, 2}, p.Steps)
}

func insertBegun(t *testing.T, tx bun.Tx) {
	t.Helper()
	_, err := tx.ExecContext(t.Context(), "INSERT INTO processes (process, id, version, status, state) VALUES ('library.lending', 'l1', 1, 'running', ?)", begun)
	require.NoError(t, err)
}

// The model's NOROW: whoever sets a message aside meets the start at the process's row.
func TestRace_WhatIsSetAsideFindsThatTheProcessHasBegun(t *testing.T) {
	w := racing(t, 0, func(tx bun.Tx) { insertBegun(t, tx) }, func(w *world) { w.billingSays("l1", Step{"l1", 1}) })
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 2 }, "it is heard")
	require.Zero(t, w.count("SELECT count(*) FROM dead_letters"))
	p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{9, 1}, p.Steps)
}

// The model's UPSERTS: of two that begin it, the second is heard as the second.
func TestRace_S0_14_TwoThatBeginIt(t *testing.T) {
	w := racing(t, 0, func(tx bun.Tx) { insertBegun(t, tx) }, func(w *world) { w.place("l1") })
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 2 }, "it is heard")
	p, i, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{9}, p.Steps)
	require.Contains(t, i.Timers, "pay-by")
}

// holdUp has a message of a stream be let in by what the database says once an engine
// runs, and go on when goOn is called: until then a transaction has its inbox row.
func (w *world) holdUp(stream string, happen func()) (goOn func()) {
	w.t.Helper()
	happen()
	var id string
	require.NoError(w.t, w.db.DB().NewRaw("SELECT message_id FROM outbox ORDER BY seq DESC LIMIT 1").Scan(w.t.Context(), &id))
	tx, err := w.db.DB().BeginTx(w.t.Context(), nil)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = tx.Rollback() })
	_, err = tx.ExecContext(w.t.Context(), "INSERT INTO inbox (subscription, message_id) VALUES (?, ?)", "library.lending."+stream, id)
	require.NoError(w.t, err)
	var pid int
	require.NoError(w.t, tx.NewRaw("SELECT pg_backend_pid()").Scan(w.t.Context(), &pid))
	w.heldUp = append(w.heldUp, pid)
	return func() {
		w.t.Helper()
		require.NoError(w.t, tx.Rollback())
	}
}

// startHeldUp starts an engine, and returns when it has let in all that is held up.
func (w *world) startHeldUp() {
	w.t.Helper()
	w.start()
	w.until(func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) && ARRAY[?]::int[]", bun.List(w.heldUp)) == len(w.heldUp)
	}, "they wait for their inbox rows")
}

// waitsItsTurn waits until a message is behind the letters of its process, which has heard
// so many; then these are handled, too.
func (w *world) waitsItsTurn(heard int) {
	w.t.Helper()
	version := func() int { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") }
	held := func() int { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'held'") }
	w.until(func() bool { return held() == 1 || version() > heard }, "it is looked at")
	require.Equal(w.t, heard, version())
	_, err := w.db.DB().NewRaw("UPDATE dead_letters SET due_at = NULL WHERE status = 'replay'").Exec(w.t.Context())
	require.NoError(w.t, err)
}

const replayLater = "UPDATE dead_letters SET status = 'replay', holds = TRUE, due_at = now() + interval '1 hour' WHERE status = 'early'"

// The model's FLAGLATE: an operator has replayed the only letter, so that the start finds
// none to mark, and the second answer was let in before.
func TestRace_AnAnswerThatWasLetInBeforeAnOperatorsReplayLooksAgain(t *testing.T) {
	w, stop := early(t, 1)
	stop()
	begin := w.holdUp("library.loan", func() { w.place("l1") })
	goOn := w.holdUp("billing.charge", func() { w.billingSays("l1", Step{"l1", 2}) })
	w.startHeldUp()
	_, err := w.db.DB().NewRaw(replayLater).Exec(t.Context())
	require.NoError(t, err)
	begin()
	w.until(func() bool { return w.status("l1") == "running" }, "it begins")
	goOn()
	w.waitsItsTurn(1)
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 3 }, "both are heard")
	p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, p.Steps)
}

// The model's CLEARSSOON: the first letter is handled, the second one is not, and the third
// answer was let in before either was marked.
func TestRace_AnAnswerThatWasLetInBeforeTheStartLooksAgainWhoeverHasLooked(t *testing.T) {
	w, stop := early(t, 2)
	stop()
	goOn := w.holdUp("billing.charge", func() { w.billingSays("l1", Step{"l1", 3}) })
	w.startHeldUp()
	tx, err := w.db.DB().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for _, statement := range []string{
		"UPDATE processes SET status = 'running', forget_at = NULL, state = '" + begun + "', version = 1",
		replayLater,
		"UPDATE dead_letters SET due_at = NULL WHERE seq = (SELECT min(seq) FROM dead_letters)",
	} {
		_, err = tx.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit())
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 2 }, "the first letter is handled")
	goOn()
	w.waitsItsTurn(2)
	w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 4 }, "all are heard")
	p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
	require.NoError(t, err)
	require.Equal(t, []int{9, 1, 2, 3}, p.Steps)
}
