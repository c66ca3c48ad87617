package subscription_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/subscription"
)

// C-17: what waits for somebody is counted, and what is over is not.
func TestDeadLetters_CountOpen_C_17(t *testing.T) {
	databases(t, func(t *testing.T, w *world) {
		s := subscription.NewDeadLetters(w.provider)
		counts, err := s.CountOpen(t.Context())
		require.NoError(t, err)
		require.Empty(t, counts)
		keep(
			w,
			keptRow{}, keptRow{status: "held"}, keptRow{status: "replay"}, keptRow{status: "replayed"}, keptRow{status: "discarded"},
			keptRow{subscription: "billing"}, keptRow{subscription: "over", status: "discarded"},
		)
		counts, err = s.CountOpen(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"shipping": 3, "billing": 1}, counts)
	})
}
