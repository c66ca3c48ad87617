package outboxdb_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

func ofRetention(test suiteTest) {
	test("Purge_RemovesOnlyWhatHasExpired", purgeExpired)   // C-27
	test("Purge_A67_F_48_OnlyWhatIsEligible", onlyEligible) // S1-19, S2-25, C-27
	test("Purge_C_27_WhatIsInHandStays", purgeLeavesWhatIsInHand)
	test("Purge_F_48_HeldUntilSkipped", heldUntilSkipped)
	test("Purge_A67_F_47_BacklogOfManyBatches", backlogOfBatches)
	test("Purge_S1_19_ExpiredOutOfTurn", expiredOutOfTurn)
	test("Purge_S2_25_KeptForEver", keptForEver) // S2-48
	test("Purge_S3_18_EachRetentionIsItsOwn", retentions)
	test("Purge_F_47_WaitsForNobody", purgeOfAnother) // U-11
	test("Purge_F_48_AndAnOperator", purgeAndOperator)
	test("CleanUp_WhatAnOperatorWantsGone", cleanUp)
	test("CleanUp_GoesOnAfterAnEnd", cleanUpInterrupted)
	test("TakeTurn_OncePerInterval", takeTurn) // A69
}

// minute is how long rows are kept that aged makes an hour old.
var minute = outbox.Retention{Published: time.Minute, Abandoned: time.Minute}

func (b *bench) purge(r outbox.Retention) outbox.Purged {
	b.T.Helper()
	p, err := b.Purge(b.T.Context(), r)
	require.NoError(b.T, err)
	return p
}

func purgeExpired(t *testing.T, b *bench) {
	b.Insert("a", "b", "c", "d", "e", "f")
	m := b.worker("w1")
	m.settles(published)
	m.settles(published, given, held, failed(time.Hour))
	require.Zero(t, b.purge(minute))
	b.Exec("UPDATE outbox_log SET at = " + past(b.Bench) + " WHERE id = 1")
	b.Exec("UPDATE outbox_abandoned SET at = " + past(b.Bench))
	require.Equal(t, outbox.Purged{Published: 1, Abandoned: 1}, b.purge(minute))
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Abandoned, outbox.Failed, outbox.Pending}, b.statuses())
}

func onlyEligible(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("published", "abandoned", "failed", "held", "held and followed", "in hand", "pending", "held and followed")
	m.settles(published, given, failed(time.Hour), held, held)
	require.Len(t, m.claim(1).rows, 1)
	require.Zero(t, b.purge(minute), "nothing has expired")
	b.aged()
	require.Equal(t, outbox.Purged{Published: 1, Abandoned: 1}, b.purge(minute))
	want := []outbox.Status{outbox.Failed, outbox.Abandoned, outbox.Abandoned, outbox.Processing, outbox.Pending, outbox.Pending}
	require.Equal(t, want, b.statuses())
	require.Zero(t, b.purge(outbox.Retention{Delete: true, Abandoned: time.Nanosecond}))
	require.Equal(t, want, b.statuses())
	b.consistent()
}

func purgeLeavesWhatIsInHand(t *testing.T, b *bench) {
	b.Insert("a", "b", "c")
	m := b.worker("w1")
	m.settles(published)
	c := m.claim(1)
	b.aged()
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(minute))
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Pending}, b.statuses())
	require.True(t, m.settle(c, published))
}

func heldUntilSkipped(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("a")
	c := m.settles(held)
	b.Exec("UPDATE outbox_queue SET failed_at = " + past(b.Bench))
	require.Zero(t, b.purge(minute))
	b.Insert("a")
	require.Empty(t, m.claim(1).rows, "what comes later is held, too")
	require.Equal(t, 1, b.do(outbox.VerbSkip, c.rows[0].Seq))
	require.Zero(t, b.purge(minute), "its retention begins with the decision")
	b.aged()
	require.Equal(t, outbox.Purged{Abandoned: 1}, b.purge(minute))
	require.Equal(t, []string{"a"}, keys(m.claim(2)))
}

func backlogOfBatches(t *testing.T, b *bench) {
	const n = 1200
	b.insertMany(n)
	m := b.worker("w1")
	left := 0
	for range 12 {
		outcomes := make([]outcome, n/12)
		for i := range outcomes {
			switch i % 5 {
			case 0:
				outcomes[i] = given
			case 1:
				outcomes[i] = failed(time.Hour)
				left++
			default:
				outcomes[i] = published
			}
		}
		m.settles(outcomes...)
	}
	b.aged()
	b.Insert("new")
	m.settles(published) // not expired
	require.Equal(t, outbox.Purged{Published: n * 3 / 5, Abandoned: n / 5}, b.purge(minute))
	require.Len(t, b.entries(), left+1)
	require.Zero(t, b.purge(minute))
}

// A row that came back to life behind the others is found by the next purge.
func expiredOutOfTurn(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("late", "b", "c")
	c := m.settles(given, published, published)
	require.Equal(t, 1, b.do(outbox.VerbRetry, c.rows[0].Seq))
	b.aged()
	require.Equal(t, outbox.Purged{Published: 2}, b.purge(minute))
	m.settles(published)
	require.Zero(t, b.purge(minute))
	b.aged()
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(minute))
	require.Empty(t, b.entries())
}

func keptForEver(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("a", "b")
	m.settles(published, given)
	b.aged()
	require.Zero(t, b.purge(outbox.Retention{Published: -1, Abandoned: -1}))
	require.Equal(t, outbox.Purged{Abandoned: 1}, b.purge(outbox.Retention{Published: -1, Abandoned: time.Minute}))
	require.Equal(t, []outbox.Status{outbox.Published}, b.statuses())
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(outbox.Retention{Delete: true, Published: -1}), "what was kept before deleting was chosen")
}

func retentions(t *testing.T, b *bench) {
	m := b.worker("w1")
	for name, c := range map[string]struct {
		retention outbox.Retention
		want      []outbox.Status
	}{
		"published go first": {outbox.Retention{Published: time.Minute, Abandoned: 2 * time.Hour}, []outbox.Status{outbox.Abandoned}},
		"abandoned go first": {outbox.Retention{Published: 2 * time.Hour, Abandoned: time.Minute}, []outbox.Status{outbox.Published}},
		"both go":            {minute, nil},
		"abandoned are kept": {outbox.Retention{Published: time.Minute, Abandoned: -1}, []outbox.Status{outbox.Abandoned}},
		"published are kept": {outbox.Retention{Published: -1, Abandoned: time.Minute}, []outbox.Status{outbox.Published}},
	} {
		b.Insert("a", "b", "c", "d")
		m.settles(published, given, failed(time.Hour), back)
		hand := m.claim(1)
		require.Equal(t, []string{"d"}, keys(hand))
		b.Insert("e")
		b.aged()
		b.purge(c.retention)
		require.Equal(t, append(slices.Clone(c.want), outbox.Failed, outbox.Processing, outbox.Pending), b.statuses(), name)
		m.settle(hand, published)
		for _, table := range []string{"outbox_messages", "outbox_queue", "outbox_log", "outbox_abandoned"} {
			b.Exec("DELETE FROM " + table)
		}
	}
}

func purgeOfAnother(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("a", "b")
	m.settles(published)
	m.settles(published)
	b.aged()
	if b.SQLite() { // one writer: nobody else has a row
		require.Equal(t, outbox.Purged{Published: 2}, b.purge(minute))
		return
	}
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM outbox_log WHERE id = 1 FOR UPDATE")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	removed, err := b.Purge(ctx, minute)
	require.NoError(t, ctx.Err(), "it waits for nobody: %v, %v", removed, err)
	require.NoError(t, tx.Rollback())
	require.Equal(t, 2, removed.Published+b.purge(minute).Published)
}

// A purge and an operator who wants the same rows: each row is removed or pending
// again, and none is both.
func purgeAndOperator(t *testing.T, b *bench) {
	m := b.worker("w1")
	for round := range 5 {
		b.Insert(outboxdbtest.Numbered(fmt.Sprintf("k%d", round), 20)...)
		c := m.claim(20)
		require.True(t, m.settle(c, given))
		b.aged()
		retried := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, row := range slices.Backward(c.rows) {
				r, err := b.Change(t.Context(), outbox.Filter{Seqs: []int64{row.Seq}}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"})
				if err != nil {
					t.Error(err)
				}
				retried += int(r.Changed)
			}
		})
		n, err := b.Purge(t.Context(), minute)
		wg.Wait()
		require.NoError(t, err)
		n.Abandoned += b.purge(minute).Abandoned // what it left to the operator
		require.Equal(t, 20, n.Abandoned+retried)
		for _, s := range b.statuses() {
			require.Equal(t, outbox.Pending, s)
		}
		require.Len(t, b.entries(), retried)
		b.consistent()
		m.settle(m.claim(20), published)
		b.aged()
		b.purge(minute)
	}
}

// An operator's purge takes what has expired, or what was finished long enough ago
// whatever its expiry; a dry run counts that, and who asked is on record.
func cleanUp(t *testing.T, b *bench) {
	m := b.worker("w1")
	b.Insert("old", "old too", "young", "young too", "held", "failed", "in hand", "pending")
	m.settles(published, given)
	b.aged()
	m.settles(published, given, held, failed(time.Hour))
	m.claim(1)
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: outbox.Retention{Published: 30 * time.Minute, Abandoned: -1}}))
	before := b.entries()
	clean := func(c outbox.CleanUp) outbox.CleanedUp {
		c.Actor = "ada"
		d, err := b.CleanUp(t.Context(), c)
		require.NoError(t, err)
		return d
	}
	var told []outbox.Purged
	require.Equal(t, outbox.Purged{Published: 1, Abandoned: 1}, clean(outbox.CleanUp{OlderThan: 30 * time.Minute, DryRun: true, Progress: func(p outbox.Purged) { told = append(told, p) }}).Purged)
	require.Equal(t, []outbox.Purged{{Abandoned: 1}, {Published: 1, Abandoned: 1}}, told)
	require.Equal(t, outbox.Purged{Published: 1}, clean(outbox.CleanUp{DryRun: true}).Purged)
	require.Zero(t, clean(outbox.CleanUp{OlderThan: 1 << 62}))
	require.Equal(t, before, b.entries())
	require.Empty(t, b.actions())

	require.Equal(t, outbox.CleanedUp{Purged: outbox.Purged{Published: 1}, Action: 1}, clean(outbox.CleanUp{}))
	d := clean(outbox.CleanUp{OlderThan: 30 * time.Minute, Statuses: []outbox.Status{outbox.Abandoned}})
	require.Equal(t, outbox.CleanedUp{Purged: outbox.Purged{Abandoned: 1}, Action: 2}, d)
	d = clean(outbox.CleanUp{OlderThan: time.Nanosecond})
	require.Equal(t, outbox.CleanedUp{Purged: outbox.Purged{Published: 1, Abandoned: 1}, Action: 3}, d)
	require.Equal(t, []outbox.Status{outbox.Abandoned, outbox.Failed, outbox.Processing, outbox.Pending}, b.statuses())
	require.True(t, b.entries()[0].Held)
	actions := b.actions()
	require.Len(t, actions, 3)
	require.Equal(t, "purge", actions[0].Action)
	require.EqualValues(t, 2, actions[0].Rows)
	require.JSONEq(t, `{"older_than":"1ns"}`, string(actions[0].Filter))
	require.JSONEq(t, `{"older_than":"30m0s","statuses":["abandoned"]}`, string(actions[1].Filter))
	require.JSONEq(t, `{}`, string(actions[2].Filter))
	require.EqualValues(t, 2, b.stats("default").Counts[outbox.Published], "they were published all the same")

	for want, c := range map[string]outbox.CleanUp{
		`"failed" rows stay`:   {Actor: "ada", Statuses: []outbox.Status{outbox.Failed}},
		"Actor is missing":     {},
		`Actor is "a\x00"`:     {Actor: "a\x00"},
		"OlderThan is -1ns":    {Actor: "ada", OlderThan: -1},
		`"published'" rows st`: {Actor: "ada", Statuses: []outbox.Status{"published'"}},
	} {
		_, err := b.CleanUp(t.Context(), c)
		require.ErrorContains(t, err, want)
	}
}

// It takes many transactions, and ended in the middle it is on record as far as it
// came.
func cleanUpInterrupted(t *testing.T, b *bench) {
	const n = 1500
	b.insertMany(n)
	m := b.worker("w1")
	for range 15 {
		m.settles(slices.Repeat([]outcome{published}, n/15)...)
	}
	b.aged()
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: minute}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d, err := b.CleanUp(ctx, outbox.CleanUp{Actor: "ada", Progress: func(outbox.Purged) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "run it again for the others")
	require.Positive(t, d.Published)
	require.Less(t, d.Published, n)
	require.EqualValues(t, d.Published, b.actions()[0].Rows)
	require.Len(t, b.entries(), n-d.Published)
	d, err = b.CleanUp(t.Context(), outbox.CleanUp{Actor: "ada"})
	require.NoError(t, err)
	require.Empty(t, b.entries())
	require.EqualValues(t, d.Published, b.actions()[0].Rows)
}

func takeTurn(t *testing.T, b *bench) {
	var turns int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			mine, err := b.TakeTurn(t.Context(), "job", time.Hour)
			if err != nil {
				t.Error(err)
			}
			if mine {
				mu.Lock()
				defer mu.Unlock()
				turns++
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, turns)
	for _, due := range []string{past(b.Bench), "'2999-01-01T00:00:00.000Z'"} { // which a clock that was wrong has left
		b.Exec("UPDATE outbox_jobs SET due_at = " + due)
		for _, first := range []bool{true, false} {
			mine, err := b.TakeTurn(t.Context(), "job", time.Hour)
			require.NoError(t, err)
			require.Equal(t, first, mine)
		}
	}
}
