package outboxdb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// More rows than a transaction takes are changed in several, with one record of all,
// and paced over all.
func TestChange_ManyRowsInBatchesWithOneRecord(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const n = 1100
		b.Insert(outboxdbtest.Numbered("key", n)...)
		all := outbox.Filter{Target: "default"}
		abandon := outbox.Change{Verb: outbox.VerbAbandon, DryRun: true}
		plan, err := b.Change(t.Context(), all, abandon)
		require.NoError(t, err)
		require.EqualValues(t, n, plan.Changed)
		require.Zero(t, plan.Action)
		require.Zero(t, b.Count("SELECT count(*) FROM outbox_abandoned"))

		var so []int64
		abandon.DryRun, abandon.Actor, abandon.UpTo = false, "ada", plan.UpTo
		abandon.Progress = func(r outbox.ChangeResult) { so = append(so, r.Changed) }
		done, err := b.Change(t.Context(), all, abandon)
		require.NoError(t, err)
		require.Equal(t, []int64{1000, n}, so)
		require.EqualValues(t, n, done.Changed)
		require.EqualValues(t, n, b.Count("SELECT rows FROM outbox_actions WHERE id = ?", done.Action))
		require.EqualValues(t, n, b.Count("SELECT count(*) FROM outbox_abandoned"))

		retry := outbox.Change{Verb: outbox.VerbRetry, Actor: "ada", Rate: 1, Limit: n - 1}
		back, err := b.Change(t.Context(), all, retry)
		require.NoError(t, err)
		require.EqualValues(t, n-1, back.Changed)
		require.EqualValues(t, n-1, back.OutOfOrder)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_abandoned"))
		require.EqualValues(t, n-1, b.Count("SELECT count(DISTINCT due_at) FROM outbox_queue"), "one after the other, over both transactions")
		actions, err := b.Actions(t.Context(), 1)
		require.NoError(t, err)
		require.JSONEq(t, `{"target": "default", "rate": 1, "limit": 1099}`, string(actions[0].Filter))
	})
}

// The filter is asked again under the locks: what somebody has put back since the look has other
// attempts to come, and isn't given up as one that failed, though its status would allow it.
func TestChange_AsksTheFilterAgainUnderTheLocks(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, b *outboxdbtest.Bench) {
		const n = 1001 // the last is in a batch of its own
		b.Insert(outboxdbtest.Numbered("key", n)...)
		b.Exec("UPDATE outbox_queue SET attempts = 1, due_at = '2026-01-02T03:04:05.000Z'") // each has failed once
		give := outbox.Change{Verb: outbox.VerbAbandon, Progress: func(outbox.ChangeResult) {
			if mustFind(t, b, n).Status == outbox.Failed {
				require.EqualValues(t, 1, change(t, b, outbox.Filter{Seqs: []int64{n}}, outbox.Change{Verb: outbox.VerbRetry}).Changed)
			}
		}}
		r := change(t, b, outbox.Filter{Statuses: []outbox.Status{outbox.Failed}}, give)
		require.EqualValues(t, n-1, r.Changed)
		require.Equal(t, map[outbox.Status]int64{outbox.Pending: 1}, r.Refused)
		require.Equal(t, outbox.Pending, mustFind(t, b, n).Status)
	})
}
