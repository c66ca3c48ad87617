package process_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/subscription"
)

// What came early goes one after the other once the process begins: what can't be heard
// holds the rest of it, and what comes then. None is handed to the process meanwhile.
func TestProcess_WhatComesEarlyGoesBeforeWhatComesNow(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		w.billingSays("l1", Step{"l1", 1}, Step{"l1", 2})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 2 }, "both are set aside")
		id := "l1"
		failing.Store(&id)
		w.place("l1")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'parked'") > 0 }, "the first is handled in vain")
		w.billingSays("l1", Step{"l1", 3})
		w.until(func() bool {
			return w.count("SELECT count(*) FROM dead_letters WHERE status IN ('parked', 'held')") >= 2
		}, "the third has come")
		status := func(status string) int {
			return w.count("SELECT count(*) FROM dead_letters WHERE status = ?", status)
		}
		require.Equal(t, []int{1, 1, 1}, []int{status("parked"), status("replay"), status("held")})

		failing.Store(nil)
		_, err := subscription.NewDeadLetters(w.db).Replay(t.Context(), subscription.DeadLetterFilter{Subscription: "library.lending"}, subscription.ReplayOptions{Actor: "ann"})
		require.NoError(t, err)
		w.until(func() bool { return w.count("SELECT COALESCE(sum(version), 0) FROM processes") == 4 }, "all are heard")
		p, _, err := process.Get[*Lending](t.Context(), w.units, "l1")
		require.NoError(t, err)
		require.Equal(t, []int{1, 2, 3}, p.Steps)
	})
}

// Dead letters of a process are told from those of its other streams by their topic, which
// has the broker's prefix where it arrives. Those of an older build have it in their row, too.
func TestProcess_DeadLettersBehindAPrefix(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		w.start()
		w.billingSays("l1", Step{"l1", 1})
		w.billingSays("l2", Step{"l2", 1})
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'early'") == 2 }, "both are set aside")
		list, err := subscription.List(t.Context(), w.db.Reader())
		require.NoError(t, err)
		i := slices.IndexFunc(list, func(l subscription.Listed) bool { return l.Name == "library.lending" })
		require.True(t, list[i].Running, "who runs its streams runs it")
		letters, err := subscription.NewDeadLetters(w.db).List(t.Context(), subscription.DeadLetterFilter{}, subscription.DeadLetterPage{})
		require.NoError(t, err)
		for _, l := range letters.Letters {
			require.True(t, l.Of("library.lending.billing.charge"), l.Topic)
		}
		_, err = w.db.DB().ExecContext(t.Context(), "UPDATE dead_letters SET topic = ? || topic WHERE key_id = 'l2'", prefix)
		require.NoError(t, err)

		w.place("l1")
		w.place("l2")
		w.until(func() bool { return w.count("SELECT count(*) FROM dead_letters WHERE status = 'replayed'") == 2 }, "both are handled")
		p, _, err := process.Get[*Lending](t.Context(), w.units, "l2")
		require.NoError(t, err)
		require.Equal(t, []int{1}, p.Steps)
	})
}
