package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/verdict"
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

// forgetful is a run whose account has three events; the third was forgotten with its effect
// and a later one, which had been told as saved and published.
func forgetful(asynchronous bool) (*run, *found) {
	r := &run{cfg: Config{Asynchronous: asynchronous}}
	f := &found{losses: []loss{{"00000002", second(30), second(61), 2}}}
	f.Moves = map[string]int64{AccountID(1): 3}
	for n := int64(1); n <= 3; n++ {
		id, body := fmt.Sprintf("m%d", n), fmt.Appendf(nil, `{"data":{"number":%d}}`, n)
		f.Rows = append(f.Rows, verdict.Row{Seq: n, ID: id, Key: AccountID(1), Status: "published", Body: body})
		f.Deliveries = append(f.Deliveries, verdict.Delivery{Topic: "t", Offset: n, ID: id, Key: AccountID(1), Body: body, At: second(25 + int(n))})
		if n < 3 {
			f.effects = append(f.effects, effect{verdict.Effect{At: second(26 + int(n)), Key: AccountID(1), Number: n}, id})
		}
	}
	f.Deliveries = append(f.Deliveries, verdict.Delivery{Topic: "t", Offset: 4, ID: "gone", Key: AccountID(1), At: second(40)})
	f.effects = append(f.effects, effect{verdict.Effect{At: second(70), Key: AccountID(1), Number: 4}, "gone"})
	r.history.note(entry{At: second(41), What: "saved", Key: AccountID(1), Number: 4})
	return r, f
}

// What PostgreSQL has forgotten is told apart from what is lost by others: only at the time of
// a loss, and only if it may forget.
func TestPardon_OnlyWhatPostgreSQLMayForget(t *testing.T) {
	r, f := forgetful(true)
	result := r.judge(f, 0)
	require.Empty(t, result.Violations)
	require.Equal(t, map[string]int{"commits of the run's own": 2, "events in Kafka": 1, "effects": 1}, result.Forgotten)
	require.Equal(t, 1, result.Failovers)

	for name, c := range map[string]struct {
		spoil       func(r *run, f *found)
		synchronous bool
		finds       string
	}{
		"it may forget nothing":          {func(*run, *found) {}, true, "lost: PostgreSQL, now with timeline 00000002, lacks 2 commits"},
		"a ghost at another time":        {func(_ *run, f *found) { f.Deliveries[3].At = second(20) }, false, "ghost"},
		"a ghost long after":             {func(_ *run, f *found) { f.Deliveries[3].At = second(92) }, false, "ghost"},
		"an answer before":               {func(r *run, _ *found) { r.history.entries[0].At = second(29) }, false, "lost: a writer was told that event 4"},
		"an effect that was missing":     {func(_ *run, f *found) { f.Deliveries[2].At = second(-31) }, false, "no effect"},
		"an effect twice":                {func(_ *run, f *found) { f.effects = append(f.effects, f.effects[0]) }, false, "doubled"},
		"a published row isn't in Kafka": {func(_ *run, f *found) { f.Deliveries = slices.Delete(f.Deliveries, 1, 2) }, false, "lost: row 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := forgetful(!c.synchronous)
			c.spoil(r, f)
			var all []string
			for _, v := range r.judge(f, 0).Violations {
				all = append(all, v.What)
			}
			require.Contains(t, strings.Join(all, "\n"), c.finds)
		})
	}
}
