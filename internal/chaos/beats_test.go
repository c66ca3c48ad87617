package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func second(n int) time.Time { return time.Date(2024, 1, 1, 0, 0, n, 0, time.UTC) }

// failedOver is a heart that beats every ten seconds: the fourth and the fifth were forgotten by the failover after
// them.
func failedOver() *heart {
	h := new(heart)
	for n := 1; n <= 8; n++ {
		timeline := "00000001"
		if n > 5 {
			timeline = "00000002"
		}
		h.all = append(h.all, beat{int64(n), timeline, second(10 * n), second(10*n + 1)})
	}
	return h
}

func TestLosses_AreMeasured(t *testing.T) {
	h := failedOver()
	left := map[int64]bool{1: true, 2: true, 3: true, 6: true, 7: true, 8: true}
	require.Equal(t, []loss{{"00000002", second(30), second(61), 2}}, h.losses(left, second(100)))
	left[4], left[5] = true, true
	require.Equal(t, []loss{{"00000002", second(50), second(61), 0}}, h.losses(left, second(100)), "what came after the last one may be missing")
	delete(left, 8)
	require.Equal(t, loss{"", second(70), second(100), 1}, h.losses(left, second(100))[1], "nothing came after it")
	require.Empty(t, new(heart).losses(nil, second(100)))
}
