package timerdb_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/internal/timerdb"
)

// A timer that waits for months is for the broker that was its context's own when it
// was set. When that has another name, it goes there, and is otherwise what it was.
func TestRetarget_WhatWaitsFollowsItsContext(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		of := func(owner, category string) timerdb.Timer {
			t := timer(owner, "due", noon)
			t.Row.StreamCategory, t.Row.Payload = category, []byte{0, '"', 0xff}
			t.Row.CloudEvent = `{"id":"\u0000 it's"}`
			return t
		}
		mine, process, others, elsewhere := of("a", "library::commands"), of("b", "library::processes"), of("c", "billing::commands"), of("d", "library::commands")
		w.commit(timerdb.Set(mine), timerdb.Set(process), timerdb.Set(others), timerdb.Set(to("third", elsewhere)))
		require.NoError(t, dbtx.Run(t.Context(), w.DB, func(tx bun.Tx) error { return timerdb.Retarget(t.Context(), tx, "library", "default", "main") }))
		w.Exec("UPDATE timers SET available_at = set_at")
		store := timerdb.New(w.DB, w.DB)
		for target, want := range map[string][]timerdb.Timer{"main": {to("main", mine), to("main", process)}, "default": {others}, "third": {to("third", elsewhere)}} {
			done, err := store.Promote(t.Context(), target, 10)
			require.NoError(t, err)
			require.Empty(t, done.Broken)
			require.Equal(t, len(want), done.Sent, target)
			for _, timer := range want {
				m, err := w.Message(t.Context(), timer.Row.MessageID)
				require.NoError(t, err)
				require.Len(t, m.Rows, 1)
				require.Equal(t, target, m.Rows[0].TargetBroker)
				require.Equal(t, timer.Row.StreamCategory, m.Rows[0].StreamCategory)
			}
		}
	})
}
