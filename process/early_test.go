package process_test

import (
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
