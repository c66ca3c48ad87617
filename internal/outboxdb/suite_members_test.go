package outboxdb_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

func ofMembers(test suiteTest) {
	test("Claim_NeedsAMemberThatLives", needsMember)           // S2-09, C-44
	test("Takeover_S3_24_RowsOfADeadWorkerGoOn", takeover)     // S2-29, S2-30, C-45, A20, C-45, S2-29, S2-30
	test("Takeover_F_13_LateSettleChangesNothing", lateSettle) // S2-33, C-25, C-44
	test("Takeover_C_10_S2_30_AllOrNothing", takeoverAllOrNothing)
	test("Takeover_F_09_F_12_RecoveredRowsComeFirst", recoveredRowsFirst)
	test("Lease_N1_TheDeadAreForgotten", theDead)
	test("Lease_F_06_F_19_NobodyTakesFromARunningLease", runningLease) // S2-13, S2-32, C-45
	test("Lease_F_19_RenewalExtendsOnlyItsOwn", renewal)               // S2-30, S2-33
	test("Lease_C_42_AMissedRenewalLosesNothing", missedRenewal)
	test("Lease_ReleasedPartitionsAreFreeAtOnce", release) // C-45
	test("Lease_A20_FreeFromItsEndOn", leaseEnd)
	test("Lease_F_17_ConcurrentWorkersShareWithoutOverlap", concurrentTakes)
	test("Lease_C_43_RacingWorkersShareEvenly", racingWorkers)
	test("Take_C_26_PassesLockedPartitions", lockedPartitions) // S3-21
}

func (b *bench) poll(m *member) relay.PolledLane {
	b.T.Helper()
	p, err := b.Poll(b.T.Context(), []relay.LaneID{m.Lane})
	require.NoError(b.T, err)
	return p.Lanes[0]
}

// renew prolongs a member's lease and returns what is its own; ok is false if it is dead.
func (b *bench) renew(m *member, lease time.Duration) (parts []int, ok bool) {
	b.T.Helper()
	renewed, err := b.Renew(b.T.Context(), []relay.Renewal{{Member: m.ID, Target: "default", Healthy: true}}, lease)
	require.NoError(b.T, err)
	if len(renewed) == 0 {
		return nil, false
	}
	return renewed[0].Parts, true
}

func needsMember(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	rows := m.Look(10)
	b.Expire()
	require.Len(t, m.claim(1).rows, 1, "nobody has ended it")
	heir := b.heir(m)
	c, err := b.Claim(t.Context(), m.Next(rows...))
	require.NoError(t, err)
	require.False(t, c.Alive)
	require.Empty(t, c.Rows)
	require.Len(t, heir.claim(10).rows, 1)
	forged := relay.ClaimRequest{Member: heir.ID + 1000, Lane: heir.Lane, N: 1, Rows: heir.Next(rows...).Rows}
	c, err = b.Claim(t.Context(), forged)
	require.NoError(t, err)
	require.False(t, c.Alive, "a number that was never given")
}

func takeover(t *testing.T, b *bench) {
	b.Insert("a", "a", "b")
	dead := b.worker("dead")
	require.Len(t, dead.claim(2).rows, 2)
	require.Empty(t, b.worker("early").Parts, "the lease still runs")
	require.False(t, b.reap(dead, false).Done)
	b.Expire()
	require.Equal(t, relay.Reaped{Parts: outboxdbtest.Partitions, Rows: 2, Done: true}, b.reap(dead, false))
	heir := b.worker("heir")
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending, outbox.Pending}, b.statuses())
	c := heir.claim(10)
	require.Equal(t, []string{"a", "a", "b"}, keys(c))
	require.Equal(t, []int{1, 1, 0}, []int{c.rows[0].Losses, c.rows[1].Losses, c.rows[2].Losses})
	require.Zero(t, c.rows[0].Attempts, "nothing of it was counted")
	heir.settle(c, failed(time.Hour))
	require.Zero(t, b.entries()[0].Losses, "settled, they have killed nobody")
	require.Equal(t, 1, b.entries()[0].Attempts)
}

func lateSettle(t *testing.T, b *bench) {
	b.Insert("a", "b")
	slow := b.worker("slow")
	late := slow.claim(2)
	heir := b.heir(slow)
	require.False(t, slow.Settle(slow.settlement(late, published)), "after the takeover, before the next claim")
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, b.statuses())
	c := heir.claim(1)
	require.False(t, slow.Settle(slow.settlement(late, failed(time.Hour))), "while the heir has one of them")
	require.True(t, heir.settle(c, published))
	require.False(t, slow.Settle(slow.settlement(late, failed(time.Hour))), "after the heir has published it")
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, b.statuses())
}

// A takeover frees partitions and the rows in the dead one's hand: all of it or nothing.
func takeoverAllOrNothing(t *testing.T, b *bench) {
	b.Insert("a", "b", "c")
	dead := b.worker("dead")
	dead.claim(2)
	b.Expire()
	before := b.entries()
	b.Exec("ALTER TABLE outbox_queue RENAME COLUMN losses TO away")
	_, err := b.Reap(t.Context(), dead.ID, false)
	require.Error(t, err)
	b.Exec("ALTER TABLE outbox_queue RENAME COLUMN away TO losses")
	require.Equal(t, before, b.entries())
	lane := b.poll(dead)
	require.Zero(t, lane.Free)
	require.Len(t, lane.Members, 1)

	heir := b.heir(dead)
	require.Len(t, heir.Parts, outboxdbtest.Partitions)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending, outbox.Pending}, b.statuses())
	for i, losses := range []int{1, 1, 0} {
		require.Equal(t, losses, b.entries()[i].Losses, "the row keeps the memory of it")
	}
	require.Equal(t, []string{"a", "b", "c"}, keys(heir.claim(10)))
}

func recoveredRowsFirst(t *testing.T, b *bench) {
	old := b.Insert("a", "a", "a")
	dead := b.worker("dead")
	dead.settles(failed(0), back, back)
	require.Len(t, dead.claim(2).rows, 2, "the retry and the one behind it: in the hand of a worker that dies")
	fresh := b.Insert("a")
	require.Empty(t, dead.claim(10).rows)
	var got []string
	for _, row := range b.heir(dead).claim(10).rows {
		got = append(got, row.MessageID)
	}
	require.Equal(t, []string{old[0].MessageID, old[1].MessageID, old[2].MessageID, fresh[0].MessageID}, got)
}

// A member whose process is known to be dead is ended at once, as if its lease had
// passed; nobody else loses anything.
func theDead(t *testing.T, b *bench) {
	b.Insert("a", "b")
	dead, other := b.join("dead", outboxdbtest.Partitions-2), b.join("other", 2)
	mine, theirs := dead.claim(10), other.claim(10)
	require.Len(t, append(mine.rows, theirs.rows...), 2)
	require.True(t, b.reap(dead, true).Done)
	require.False(t, b.reap(dead, true).Done, "once")
	lane := b.poll(other)
	require.Len(t, lane.Members, 1)
	require.Equal(t, "other", lane.Members[0].Name)
	require.Equal(t, outboxdbtest.Partitions-2, lane.Free)

	heir := b.worker("heir")
	require.Len(t, heir.Parts, outboxdbtest.Partitions-2)
	require.False(t, dead.Settle(dead.settlement(mine, published)), "it changes nothing any more")
	_, alive := b.renew(dead, time.Hour)
	require.False(t, alive)
	c := heir.claim(10)
	require.Len(t, c.rows, len(mine.rows))
	for _, row := range c.rows {
		require.Equal(t, 1, row.Losses, "its claim was ended as after any death")
	}
	require.True(t, heir.settle(c, published))
	require.True(t, other.settle(theirs, published))
}

func runningLease(t *testing.T, b *bench) {
	require.Len(t, b.join("w1", 5).Parts, 5, "no more than was asked for")
	require.Len(t, b.worker("w2").Parts, outboxdbtest.Partitions-5)
	require.Empty(t, b.worker("w3").Parts)
}

func renewal(t *testing.T, b *bench) {
	m := b.join("w1", 3)
	b.Expire() // ran out, and nobody came
	parts, ok := b.renew(m, time.Minute)
	require.True(t, ok)
	require.ElementsMatch(t, m.Parts, parts)
	require.Equal(t, outboxdbtest.Partitions-3, b.poll(m).Free)
	require.False(t, b.reap(m, false).Done)

	other := b.heir(m)
	require.Len(t, other.Parts, outboxdbtest.Partitions)
	_, ok = b.renew(m, time.Minute)
	require.False(t, ok, "it is dead, and learns it")
	lane := b.poll(other)
	require.Len(t, lane.Members, 1, "the dead are forgotten")
	require.NoError(t, b.Leave(t.Context(), []relay.MemberID{other.ID}))
	lane = b.poll(other)
	require.Empty(t, lane.Members)
	require.Equal(t, outboxdbtest.Partitions, lane.Free)
}

// A renewal comes three times per lease: while any of it is left nobody ends the
// member, and afterwards it lives on if nobody came.
func missedRenewal(t *testing.T, b *bench) {
	m := b.worker("w1")
	_, ok := b.renew(m, 20*time.Second) // two of three were missed
	require.True(t, ok)
	require.False(t, b.reap(m, false).Done)
	require.Empty(t, b.worker("w2").Parts)
	b.Expire()
	parts, ok := b.renew(m, time.Minute)
	require.True(t, ok)
	require.ElementsMatch(t, m.Parts, parts)
	require.False(t, b.reap(m, false).Done)
	require.Len(t, b.heir(m).Parts, outboxdbtest.Partitions)
	_, ok = b.renew(m, time.Minute)
	require.False(t, ok)
}

func release(t *testing.T, b *bench) {
	m := b.worker("w1")
	require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts[:3]))
	require.Len(t, b.worker("w2").Parts, 3)
	require.NoError(t, b.Release(t.Context(), m.ID, m.Lane, m.Parts), "what isn't its own stays")
	require.Equal(t, outboxdbtest.Partitions-3, b.poll(m).Free)
}

func leaseEnd(t *testing.T, b *bench) {
	b.Insert("a")
	m := b.worker("w1")
	require.Len(t, m.claim(1).rows, 1)
	require.False(t, b.reap(m, false).Done, "it is held before")
	b.Exec("UPDATE outbox_members SET until = " + dbtime.In(b.DB.Dialect(), 300*time.Millisecond))
	for {
		ended := b.Count("SELECT count(*) FROM outbox_members WHERE until <= "+now(b)) > 0
		r := b.reap(m, false)
		if !r.Done {
			require.False(t, ended, "a lease that has ended is free")
			continue
		}
		require.Equal(t, 1, r.Rows)
		break
	}
	require.Len(t, b.worker("w2").claim(1).rows, 1)
}

// together runs f for several members at once, and returns who has which partition.
func (b *bench) together(members []*member, take func(m *member) ([]int, error)) map[int][]string {
	b.T.Helper()
	owners := map[int][]string{}
	var errs []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			parts, err := take(m)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			for _, p := range parts {
				owners[p] = append(owners[p], fmt.Sprint("w", i))
			}
		})
	}
	wg.Wait()
	require.NoError(b.T, errors.Join(errs...))
	for p, names := range owners {
		require.Len(b.T, names, 1, "partition %d", p)
	}
	return owners
}

func concurrentTakes(t *testing.T, b *bench) {
	for range 5 {
		members := []*member{b.join("w0", 0), b.join("w1", 0), b.join("w2", 0), b.join("w3", 0)}
		b.together(members, func(m *member) ([]int, error) { return b.Take(t.Context(), m.ID, m.Lane, outboxdbtest.Partitions/2) })
		for _, m := range members {
			require.NoError(t, b.Leave(t.Context(), []relay.MemberID{m.ID}))
		}
	}
}

// Workers that come at the same moment, to partitions that never had an owner and to
// those of the dead, get different ones, and all of them.
func racingWorkers(t *testing.T, b *bench) {
	const share = outboxdbtest.Partitions / 4
	for range 5 {
		members := []*member{b.join("w0", 0), b.join("w1", 0), b.join("w2", 0), b.join("w3", 0)}
		owners := b.together(members, func(m *member) (all []int, err error) {
			for len(all) < share && err == nil {
				var parts []int
				parts, err = b.Take(t.Context(), m.ID, m.Lane, share-len(all))
				all = append(all, parts...)
			}
			return all, err
		})
		require.Len(t, owners, outboxdbtest.Partitions)
		for _, m := range members {
			require.Equal(t, relay.Reaped{Parts: share, Done: true}, b.reap(m, true))
		}
	}
}

// A take passes over partitions that somebody has locked, without waiting.
func lockedPartitions(t *testing.T, b *bench) {
	m := b.join("w1", 0)
	take := func(d time.Duration) ([]int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return b.Take(ctx, m.ID, m.Lane, 100)
	}
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	if b.SQLite() { // one writer: it waits, and takes nothing if that is too long
		_, err := take(100 * time.Millisecond)
		require.Error(t, err)
		require.NoError(t, tx.Rollback())
		parts, err := take(time.Minute)
		require.NoError(t, err)
		require.Len(t, parts, outboxdbtest.Partitions)
		return
	}
	_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM outbox_partitions WHERE part < 3 FOR UPDATE")
	require.NoError(t, err)
	parts, err := take(time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, []int{3, 4, 5, 6, 7}, parts)
	require.NoError(t, tx.Rollback())
	parts, err = take(time.Minute)
	require.NoError(t, err)
	require.ElementsMatch(t, []int{0, 1, 2}, parts)
}
