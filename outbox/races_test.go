package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// Races that a model, in which a claim is one step, can't show. Each was seen on
// PostgreSQL with a rule left out, and fails again without it.

// hold locks a row of the outbox until it is let go, as a statement in the
// middle of its work does.
func hold(t *testing.T, b *outboxtest.Bench, seq int64) (release func()) {
	t.Helper()
	tx := begin(t, b)
	_, err := tx.ExecContext(t.Context(), "SELECT 1 FROM outbox WHERE seq = ? FOR UPDATE", seq)
	require.NoError(t, err)
	return func() { require.NoError(t, tx.Rollback()) }
}

// blocked waits until n sessions wait for a lock in this bench's schema.
func blocked(t *testing.T, b *outboxtest.Bench, n int) {
	t.Helper()
	var schema string
	require.NoError(t, b.DB.NewRaw("SELECT current_schema()").Scan(t.Context(), &schema))
	require.Eventually(t, func() bool {
		var waiting int
		require.NoError(t, b.DB.NewRaw("SELECT count(DISTINCT w.pid) FROM pg_locks AS w JOIN pg_locks AS h ON h.pid = w.pid"+
			" WHERE NOT w.granted AND h.relation = (?::regclass)", bun.Safe("'"+schema+".outbox'")).Scan(context.Background(), &waiting))
		return waiting >= n
	}, 10*time.Second, 5*time.Millisecond)
}

// S3-21: a claim that waits for an earlier owner's write-back doesn't publish past the
// row that failed in it. Without the sweep, which waits for that write-back too,
// the claim's snapshot still shows the key's rows as takeable, and rows 2 and 3
// leave before 1.
func TestRace_ClaimBehindAZombiesWriteBack(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("k", "k", "k")
	zombie := b.Worker("zombie", outboxtest.Partitions, time.Minute)
	late := zombie.Claim(3)
	release := hold(t, b, late.Rows[2].Seq)
	settled := make(chan int)
	go func() {
		settled <- zombie.Settle(late,
			outbox.Outcome{Seq: late.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "no", After: time.Hour},
			outbox.Outcome{Seq: late.Rows[1].Seq, Status: outbox.Pending, Unspent: true},
			outbox.Outcome{Seq: late.Rows[2].Seq, Status: outbox.Pending, Unspent: true})
	}()
	blocked(t, b, 1) // row 1 has failed, and nobody sees it yet
	b.Expire()
	claimed := make(chan outbox.Claim)
	go func() {
		claimed <- b.Worker("heir", outboxtest.Partitions, time.Minute).Claim(10)
	}()
	blocked(t, b, 2)
	release()
	require.Zero(t, <-settled, "the zombie was first")
	require.Empty(t, (<-claimed).Rows, "row 1 has failed and holds its key")
	require.Equal(t, []outbox.Status{outbox.Failed, outbox.Pending, outbox.Pending}, b.Statuses())
}

// C-26: a claim waits for a head that somebody has locked. Were it to skip locked rows,
// it would take the followers.
func TestRace_ClaimWaitsForALockedHead(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("k", "k", "k")
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	release := hold(t, b, b.Entries()[0].Seq)
	claimed := make(chan outbox.Claim)
	go func() { claimed <- w.Claim(10) }()
	blocked(t, b, 1)
	release()
	c := <-claimed
	require.Len(t, c.Rows, 3)
	require.Equal(t, b.Entries()[0].Seq, c.Rows[0].Seq)
}

// Nobody takes over a partition in the middle of a claim. Without the lock on it
// the heir's sweep would see nothing of the claim, which then leaves its rows in
// the hand of a worker that has no lease: nobody ever takes them, or two publish
// them.
func TestRace_TakeoverInTheMiddleOfAClaim(t *testing.T) {
	t.Parallel()
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("k", "k", "k")
	// Long enough for the claim to find it running, however slow the machine is.
	w := b.Worker("w1", outboxtest.Partitions, 3*time.Second)
	release := hold(t, b, b.Entries()[0].Seq)
	claimed := make(chan outbox.Claim)
	go func() { claimed <- w.Claim(10) }()
	blocked(t, b, 1)
	expired := func() bool {
		m, err := b.Membership(context.Background(), "default")
		return err == nil && m.Free == outboxtest.Partitions
	}
	require.Eventually(t, expired, 10*time.Second, 10*time.Millisecond)
	early, _, err := b.Acquire(t.Context(), outboxtest.Owner("early", time.Minute), outboxtest.Partitions)
	require.NoError(t, err)
	require.Empty(t, early, "the claim holds them")
	release()
	late := <-claimed
	require.Len(t, late.Rows, 3)

	heir := b.Worker("heir", outboxtest.Partitions, time.Minute)
	require.Len(t, heir.Leases, outboxtest.Partitions)
	c := heir.Claim(10)
	require.Len(t, c.Rows, 3, "the sweep has seen them")
	require.Equal(t, 1, c.Rows[0].Losses)
	require.Equal(t, 3, w.Settle(late, outboxtest.All(late, outbox.Outcome{Status: outbox.Published})...), "too late")
	require.Zero(t, heir.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Published})...))
}

// An operator's change waits for the claim that runs, and the next claim for it.
func TestRace_OperatorAndClaim(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("k", "k")
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	head := b.Entries()[0].Seq
	release := hold(t, b, head)
	claimed := make(chan outbox.Claim)
	go func() { claimed <- w.Claim(10) }()
	blocked(t, b, 1)
	abandoned := make(chan error)
	go func() { abandoned <- b.Abandon(context.Background(), outbox.Retention{}, head) }()
	blocked(t, b, 1)
	release()
	require.Len(t, (<-claimed).Rows, 2)
	require.ErrorContains(t, <-abandoned, "is processing")
}

// F-24: a row that somebody has locked for long holds up its key: not its worker,
// nor its leases.
func TestProcessor_F_24_ALockedRowHoldsUpItsKeyOnly(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("locked", "locked")
	release := hold(t, b, b.Entries()[0].Seq)
	m := memory.New(memory.Config{})
	cfg := quick()
	cfg.Workers = 1
	p := processor(t, b, cfg, lane(m))
	for range 3 {
		before := len(m.Messages(topic))
		b.Insert(outboxtest.Numbered("k", 50)...)
		require.Eventually(t, func() bool { return len(m.Messages(topic)) == before+50 }, 20*time.Second, time.Millisecond)
		require.Equal(t, outboxtest.Partitions, p.Status()["default"].Partitions)
	}
	require.Zero(t, p.Status()["default"].TakenOver)
	require.NotContains(t, byKey(m.Messages(topic)), "locked")
	release()
	statuses(t, b, map[outbox.Status]int{outbox.Published: 152})
	require.Len(t, byKey(m.Messages(topic))["locked"], 2)
}

// C-17: an operator's change of many rows that meets a locked one doesn't keep the
// partitions from their owners: it lets go, and is tried again.
func TestRace_C_17_ChangeBehindALockedRow(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	b.Insert("a", "b", "c")
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	release := hold(t, b, b.Entries()[2].Seq)
	changed := make(chan outbox.ChangeResult)
	go func() {
		r, err := b.Change(context.Background(), outbox.Filter{Target: "default"}, outbox.Change{Verb: outbox.VerbAbandon, Actor: "ada"})
		if err != nil {
			t.Error(err)
		}
		changed <- r
	}()
	blocked(t, b, 1)
	require.Eventually(t, func() bool { return len(w.Claim(1).Rows) == 1 }, 10*time.Second, 5*time.Millisecond, "between two tries")
	release()
	r := <-changed
	require.EqualValues(t, 2, r.Changed)
	require.Equal(t, map[outbox.Status]int64{outbox.Processing: 1}, r.Refused, "the claim was first")
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Abandoned, outbox.Abandoned}, b.Statuses())
}
