package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A head whose time came while its worker had no lease to look with is found by
// the poll: what is known of its partition hides it no longer.
func TestAreas_AHeadThatIsDueHidesNothing(t *testing.T) {
	w := newWorker(&lane{target: "default"}, "worker")
	w.own.add([]Lease{{Partition: 3, Fence: 7}}, time.Now().Add(time.Hour))
	after := func(k past) int64 {
		w.known = map[int]past{3: k}
		return w.areas()[0].After
	}
	require.EqualValues(t, 9, after(past{fence: 7, after: 9}), "it is held")
	require.EqualValues(t, 9, after(past{fence: 7, after: 9, next: time.Now().Add(time.Minute)}))
	require.Zero(t, after(past{fence: 7, after: 9, next: time.Now().Add(-time.Millisecond)}))
	require.Zero(t, after(past{fence: 6, after: 9}), "another may have looked meanwhile")
}
