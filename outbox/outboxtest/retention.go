package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// settleAll takes as many rows as there are outcomes, oldest first, and settles
// them.
func (w Worker) settleAll(outcomes ...outbox.Outcome) {
	w.bench.T.Helper()
	c := w.Claim(len(outcomes))
	require.Len(w.bench.T, c.Rows, len(outcomes))
	for i := range outcomes {
		outcomes[i].Seq = c.Rows[i].Seq
	}
	require.Zero(w.bench.T, w.Settle(c, outcomes...))
}

func abandoned(hold bool) outbox.Outcome {
	return outbox.Outcome{Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: hold}
}

func (b *Bench) purge(r outbox.Retention) outbox.Purged {
	b.T.Helper()
	n, err := b.Purge(b.T.Context(), r)
	require.NoError(b.T, err)
	return n
}

// expireAll puts every row past any retention, also those that have none.
func (b *Bench) expireAll() {
	b.T.Helper()
	b.Exec("UPDATE outbox SET expires_at = " + past(b.DB))
}

func onlyEligible(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("published", "abandoned", "failed", "held", "held and followed", "in hand", "pending", "held and followed")
	w.settleAll(published(), abandoned(false), failed(time.Hour), abandoned(true), abandoned(true))
	require.Len(t, w.Claim(1).Rows, 1)
	require.Zero(t, b.purge(outbox.Retention{}), "nothing has expired")
	b.expireAll()
	require.Equal(t, outbox.Purged{Published: 1, Abandoned: 1}, b.purge(outbox.Retention{}))
	want := []outbox.Status{outbox.Failed, outbox.Abandoned, outbox.Abandoned, outbox.Processing, outbox.Pending, outbox.Pending}
	require.Equal(t, want, b.Statuses())
	require.Zero(t, b.purge(outbox.Retention{Delete: true}))
	require.Equal(t, want, b.Statuses())
}

func heldUntilSkipped(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("a")
	w.settleAll(abandoned(true))
	b.expireAll()
	require.Zero(t, b.purge(outbox.Retention{}))
	b.Insert("a")
	require.Empty(t, w.Claim(1).Rows, "what comes later is held, too")
	require.NoError(t, b.Skip(t.Context(), outbox.Retention{}, b.Entries()[0].Seq))
	require.Zero(t, b.purge(outbox.Retention{}), "its retention begins with the decision")
	b.expireAll()
	require.Equal(t, outbox.Purged{Abandoned: 1}, b.purge(outbox.Retention{}))
	require.Equal(t, []string{"a"}, Keys(w.Claim(2)))
}

func backlogOfBatches(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert(Numbered("k", 60)...)
	outcomes := make([]outbox.Outcome, 60)
	left := 0
	for i := range outcomes {
		switch i % 5 {
		case 0:
			outcomes[i] = abandoned(false)
		case 1:
			outcomes[i] = failed(time.Hour)
			left++
		default:
			outcomes[i] = published()
		}
	}
	w.settleAll(outcomes...)
	b.expireAll()
	b.Insert("new")
	w.settleAll(published()) // not expired
	require.Equal(t, outbox.Purged{Published: 36, Abandoned: 12}, b.purge(outbox.Retention{Batch: 7}))
	require.Len(t, b.Entries(), left+1)
	require.Zero(t, b.purge(outbox.Retention{Batch: 7}))
}

// A row that came back to life behind the others is found by the next purge.
func expiredOutOfTurn(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("late", "b", "c")
	w.settleAll(abandoned(false), published(), published())
	late := b.Entries()[0].Seq
	require.NoError(t, b.Retry(t.Context(), late))
	b.Exec("UPDATE outbox SET expires_at = "+past(b.DB)+" WHERE seq > ?", late)
	require.Equal(t, outbox.Purged{Published: 2}, b.purge(outbox.Retention{Batch: 1}))
	w.settleAll(published())
	b.expireAll()
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(outbox.Retention{Batch: 1}))
	require.Empty(t, b.Entries())
}

func keptForEver(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("a", "b")
	w.settleAll(published(), abandoned(false))
	b.expireAll()
	require.Zero(t, b.purge(outbox.Retention{Published: -1, Abandoned: -1}))
	require.Equal(t, outbox.Purged{Abandoned: 1}, b.purge(outbox.Retention{Published: -1}))
	require.Equal(t, []outbox.Status{outbox.Published}, b.Statuses())
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(outbox.Retention{Delete: true, Published: -1}), "what was kept before deleting was chosen")
}

// Rows that were kept for ever, by an earlier setting, don't hide those that
// come behind them.
func keptRowsHideNothing(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert(Numbered("k", 10)...)
	w.settleAll(make10(published())...)
	b.Exec("UPDATE outbox SET expires_at = NULL")
	b.Insert("old")
	w.settleAll(published())
	b.Exec("UPDATE outbox SET expires_at = "+past(b.DB)+" WHERE partition_key = ?", "old")
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(outbox.Retention{Batch: 3}))
	require.Len(t, b.Entries(), 10)
}

func make10(o outbox.Outcome) []outbox.Outcome {
	all := make([]outbox.Outcome, 10)
	for i := range all {
		all[i] = o
	}
	return all
}

func purgeOfAnother(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("a", "b")
	w.settleAll(published(), published())
	b.expireAll()
	if b.sqlite() { // one writer: nobody else has a row
		require.Equal(t, outbox.Purged{Published: 2}, b.purge(outbox.Retention{}))
		return
	}
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM outbox WHERE partition_key = 'a' FOR UPDATE")
	require.NoError(t, err)
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(outbox.Retention{}), "it waits for nobody")
	require.NoError(t, tx.Rollback())
	require.Equal(t, outbox.Purged{Published: 1}, b.purge(outbox.Retention{}))
}

// A purge and an operator who wants the same rows: each row is removed or
// pending again, and none is both.
func purgeAndOperator(t *testing.T, b *Bench) {
	for round := range 5 {
		b.Exec("DELETE FROM outbox")
		b.Expire()
		w := b.Worker("w1", Partitions, time.Minute)
		b.Insert(Numbered(fmt.Sprintf("k%d", round), 20)...)
		w.settleAll(append(make10(abandoned(false)), make10(abandoned(false))...)...)
		b.expireAll()
		entries := b.Entries()
		retried := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, e := range slices.Backward(entries) {
				if b.Retry(t.Context(), e.Seq) == nil {
					retried++
				}
			}
		})
		n, err := b.Purge(t.Context(), outbox.Retention{Batch: 3})
		wg.Wait()
		require.NoError(t, err)
		require.Equal(t, 20, n.Abandoned+retried)
		for _, s := range b.Statuses() {
			require.Equal(t, outbox.Pending, s)
		}
		require.Len(t, b.Entries(), retried)
	}
}

func settledMixed(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("a", "b", "c", "d", "e")
	r := outbox.Retention{Published: 3 * time.Hour, Abandoned: 48 * time.Hour}
	c := w.Claim(5)
	_, err := b.Store.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Retention: r, Outcomes: []outbox.Outcome{
		{Seq: c.Rows[0].Seq, Status: outbox.Failed, Class: "transient", Error: "first", After: time.Hour},
		{Seq: c.Rows[1].Seq, Status: outbox.Published},
		{Seq: c.Rows[2].Seq, Status: outbox.Abandoned, Class: "permanent", Error: "third"},
		{Seq: c.Rows[3].Seq, Status: outbox.Published},
		{Seq: c.Rows[4].Seq, Status: outbox.Failed, Class: "unknown", Error: "fifth", After: time.Hour},
	}})
	require.NoError(t, err)
	entries := b.Entries()
	require.Equal(t, []outbox.Status{outbox.Failed, outbox.Published, outbox.Abandoned, outbox.Published, outbox.Failed}, b.Statuses())
	for i, want := range []string{"first", "", "third", "", "fifth"} {
		require.Equal(t, want, entries[i].LastError)
		require.Equal(t, 1, entries[i].Attempts)
	}
	for i, hours := range map[int]float64{1: 3, 2: 48, 3: 3} {
		require.InDelta(t, hours, entries[i].ExpiresAt.Sub(*entries[i].LastAttemptAt).Hours(), 0.05)
	}
	require.Nil(t, entries[0].ExpiresAt)
	require.NotNil(t, entries[1].PublishedAt)
	require.WithinDuration(t, *entries[1].LastAttemptAt, *entries[1].PublishedAt, time.Minute)
	require.Nil(t, entries[2].PublishedAt)
}

// publishedCount is what signals say of target "default".
func (b *Bench) publishedCount() int64 {
	b.T.Helper()
	s, err := b.Stats(b.T.Context())
	require.NoError(b.T, err)
	return s["default"].Counts[outbox.Published]
}

func publishedIsCounted(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("a", "b", "c", "d")
	w.settleAll(published(), abandoned(false), published(), failed(time.Hour))
	require.EqualValues(t, 2, b.publishedCount())
	b.expireAll()
	require.Equal(t, outbox.Purged{Published: 2, Abandoned: 1}, b.purge(outbox.Retention{}))
	require.EqualValues(t, 2, b.publishedCount(), "it was published, wherever its row is")

	b.Exec("UPDATE outbox SET available_at = " + past(b.DB))
	late := w.Claim(1)
	b.Expire()
	heir := b.Worker("heir", Partitions, time.Minute)
	require.Equal(t, 1, w.Settle(late, All(late, published())...))
	require.EqualValues(t, 2, b.publishedCount(), "a write-back that came too late")
	heir.settleAll(published())
	require.EqualValues(t, 3, b.publishedCount())

	// Both modes side by side, by many workers at the same time.
	b.Insert(Numbered("many", 40)...)
	var wg sync.WaitGroup
	for i := range 40 {
		c := heir.Claim(1)
		r := outbox.Config{}.WithDefaults().Retention
		r.Delete = i%2 == 0
		wg.Go(func() {
			if _, err := b.Store.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: All(c, published()), Retention: r}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 43, b.publishedCount())
	require.Len(t, b.Entries(), 21)
}

func statsOfNothing(t *testing.T, b *Bench) {
	s, err := b.Stats(t.Context())
	require.NoError(t, err)
	require.Empty(t, s)
	_, err = b.EnsurePartitions(t.Context(), "default")
	require.NoError(t, err)
	s, err = b.Stats(t.Context())
	require.NoError(t, err)
	counts := map[outbox.Status]int64{outbox.Pending: 0, outbox.Processing: 0, outbox.Published: 0, outbox.Failed: 0, outbox.Abandoned: 0}
	require.Equal(t, map[string]outbox.Stats{"default": {Counts: counts}}, s)
}

// An operator's purge takes what has expired, or what was finished long enough
// ago whatever its expiry; a dry run counts that, and who asked is on record.
func cleanUp(t *testing.T, b *Bench) {
	ctx := t.Context()
	w := b.Worker("w1", Partitions, time.Minute)
	b.Insert("old", "expired", "young", "abandoned", "old abandoned", "held", "failed", "in hand", "pending")
	w.settleAll(published(), published(), published(), abandoned(false), abandoned(false), abandoned(true), failed(time.Hour))
	require.Len(t, w.Claim(1).Rows, 1)
	b.Exec("UPDATE outbox SET created_at = " + past(b.DB))
	b.Exec("UPDATE outbox SET finished_at = "+past(b.DB)+", expires_at = NULL WHERE partition_key IN (?, ?)", "old", "old abandoned")
	b.Exec("UPDATE outbox SET expires_at = "+past(b.DB)+" WHERE partition_key = ?", "expired")
	before := b.Entries()
	clean := func(c outbox.CleanUp) outbox.CleanedUp {
		t.Helper()
		c.Actor = "ada"
		d, err := b.CleanUp(ctx, c)
		require.NoError(t, err)
		return d
	}
	counted := func(published, abandoned int) outbox.CleanedUp {
		return outbox.CleanedUp{Purged: outbox.Purged{Published: published, Abandoned: abandoned}}
	}
	var told []outbox.Purged
	require.Equal(t, counted(1, 1), clean(outbox.CleanUp{OlderThan: time.Minute, DryRun: true, Progress: func(p outbox.Purged) { told = append(told, p) }}))
	require.Equal(t, []outbox.Purged{{Abandoned: 1}, {Published: 1, Abandoned: 1}}, told)
	require.Equal(t, counted(1, 0), clean(outbox.CleanUp{DryRun: true}))
	require.Equal(t, counted(0, 0), clean(outbox.CleanUp{OlderThan: 1 << 62}))
	require.Equal(t, before, b.Entries())
	require.Empty(t, b.actions())

	d := clean(outbox.CleanUp{})
	require.Equal(t, outbox.CleanedUp{Purged: outbox.Purged{Published: 1}, Action: 1}, d)
	d = clean(outbox.CleanUp{OlderThan: time.Minute, Statuses: []outbox.Status{outbox.Abandoned}})
	require.Equal(t, outbox.CleanedUp{Purged: outbox.Purged{Abandoned: 1}, Action: 2}, d)
	d = clean(outbox.CleanUp{OlderThan: time.Millisecond})
	require.Equal(t, outbox.CleanedUp{Purged: outbox.Purged{Published: 2, Abandoned: 1}, Action: 3}, d)
	require.Equal(t, []outbox.Status{outbox.Abandoned, outbox.Failed, outbox.Processing, outbox.Pending}, b.Statuses())
	require.True(t, b.Entries()[0].Held)
	actions := b.actions()
	require.Len(t, actions, 3)
	require.Equal(t, "purge", actions[0].Action)
	require.EqualValues(t, 3, actions[0].Rows)
	require.JSONEq(t, `{"older_than":"1ms"}`, string(actions[0].Filter))
	require.JSONEq(t, `{"older_than":"1m0s","statuses":["abandoned"]}`, string(actions[1].Filter))
	require.JSONEq(t, `{}`, string(actions[2].Filter))
	stats, err := b.Stats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, stats["default"].Counts[outbox.Published], "they were published all the same")

	for want, c := range map[string]outbox.CleanUp{
		`"failed" rows stay`:   {Actor: "ada", Statuses: []outbox.Status{outbox.Failed}},
		"Actor is missing":     {},
		`Actor is "a\x00"`:     {Actor: "a\x00"},
		"OlderThan is -1ns":    {Actor: "ada", OlderThan: -1},
		`"published'" rows st`: {Actor: "ada", Statuses: []outbox.Status{"published'"}},
	} {
		_, err := b.CleanUp(ctx, c)
		require.ErrorContains(t, err, want)
	}
}

// It takes many transactions, and ended in the middle it is on record as far as it
// came.
func cleanUpInterrupted(t *testing.T, b *Bench) {
	const n = 1200
	b.insertMany(Numbered("k", n)...)
	w := b.Worker("w1", Partitions, time.Minute)
	for got := 0; got < n; {
		c := w.Claim(500)
		w.Settle(c, All(c, published())...)
		got += len(c.Rows)
	}
	b.expireAll()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d, err := b.CleanUp(ctx, outbox.CleanUp{Actor: "ada", Progress: func(outbox.Purged) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "run it again for the others")
	require.Positive(t, d.Published)
	require.Less(t, d.Published, n)
	require.EqualValues(t, d.Published, b.actions()[0].Rows)
	require.Len(t, b.Entries(), n-d.Published)
	d, err = b.CleanUp(t.Context(), outbox.CleanUp{Actor: "ada"})
	require.NoError(t, err)
	require.Empty(t, b.Entries())
	require.EqualValues(t, d.Published, b.actions()[0].Rows)
}
