package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill/internal/verdict"
)

// effectOf is one of the account's n-th event.
func effectOf(n int64, at time.Time) effect {
	return effect{verdict.Effect{At: at, Key: AccountID(1), Number: n}, fmt.Sprintf("m%d", n)}
}

// says has a consumer say that it is committed.
func (f *found) says(e effect, heard time.Time) {
	f.told = append(f.told, told{did{e.message, e.At, e.Key, e.Number}, "consumer-1", heard})
}

// forgetful is a run whose account has four events. The effects of the second and the third were
// forgotten; then that of the fourth came, which was new, and the third again, and the second
// never. With them went a fifth event that had been told as saved, was published and has had its
// effect.
func forgetful(asynchronous bool) (*run, *found) {
	r := &run{cfg: Config{Asynchronous: asynchronous}}
	f := &found{losses: []loss{{"00000002", second(30), second(61), 2}}}
	f.Moves = map[string]int64{AccountID(1): 4}
	for n := int64(1); n <= 4; n++ {
		id, body := fmt.Sprintf("m%d", n), fmt.Appendf(nil, `{"data":{"number":%d}}`, n)
		f.Rows = append(f.Rows, verdict.Row{Seq: n, ID: id, Key: AccountID(1), Status: "published", Body: body})
		f.Deliveries = append(f.Deliveries, verdict.Delivery{Topic: "t", Offset: n, ID: id, Key: AccountID(1), Body: body, At: second(20)})
	}
	f.effects = []effect{effectOf(1, second(25)), effectOf(4, second(62)), effectOf(3, second(64))}
	for _, e := range []effect{f.effects[0], effectOf(2, second(31)), effectOf(3, second(32)), f.effects[1], f.effects[2]} {
		f.says(e, e.At.Add(time.Second/2))
	}
	ghost := effect{verdict.Effect{At: second(70), Key: AccountID(1), Number: 5}, "gone"}
	f.Deliveries = append(f.Deliveries, verdict.Delivery{Topic: "t", Offset: 5, ID: "gone", Key: AccountID(1), At: second(40)})
	f.effects = append(f.effects, ghost)
	f.says(ghost, second(71))
	r.history.note(entry{At: second(41), What: "saved", Key: AccountID(1), Number: 5})
	return r, f
}

func violations(r *run, f *found) (all []string) {
	for _, v := range r.judge(f, 0).Violations {
		all = append(all, v.What)
	}
	return all
}

// What PostgreSQL has forgotten is told apart from what is lost or out of turn by others: only at
// the time of a loss, and only if it may forget.
func TestPardon_OnlyWhatPostgreSQLMayForget(t *testing.T) {
	r, f := forgetful(true)
	result := r.judge(f, 0)
	require.Empty(t, result.Violations)
	require.Equal(t, map[string]int{"commits of the run's own": 2, "events in Kafka": 1, "effects": 1, "effects that came again": 1}, result.Forgotten)
	require.Equal(t, 1, result.Failovers)
	require.Equal(t, 3, result.Effects)

	for name, c := range map[string]struct {
		spoil       func(r *run, f *found)
		synchronous bool
		finds       string
	}{
		"it may forget no commits":       {func(*run, *found) {}, true, "lost: PostgreSQL, now with timeline 00000002, lacks 2 commits"},
		"it may forget no effects":       {func(*run, *found) {}, true, "lost: consumer-1 was told that the effect of event 3 of account-001, message m3, is committed"},
		"a ghost at another time":        {func(_ *run, f *found) { f.Deliveries[4].At = second(20) }, false, "ghost"},
		"a ghost long after":             {func(_ *run, f *found) { f.Deliveries[4].At = second(92) }, false, "ghost"},
		"an answer before":               {func(r *run, _ *found) { r.history.entries[0].At = second(29) }, false, "lost: a writer was told that event 5"},
		"an effect that nobody was told": {func(_ *run, f *found) { f.told = slices.Delete(f.told, 1, 2) }, false, "no effect: of 4 events of account-001 3 took effect"},
		"disorder that nobody was told":  {func(_ *run, f *found) { f.told = slices.Delete(f.told, 2, 3) }, false, "disorder: event 4 of account-001 took effect after 2"},
		"an effect before the loss":      {func(_ *run, f *found) { f.told[1].heard = second(29) }, false, "lost: consumer-1 was told that the effect of event 2"},
		"an effect after the loss":       {func(_ *run, f *found) { f.told[1].At = second(61) }, false, "lost: consumer-1 was told that the effect of event 2"},
		"disorder before the loss":       {func(_ *run, f *found) { f.told[1].At = second(33) }, false, "disorder: event 3 of account-001 took effect after 1"},
		"an effect twice":                {func(_ *run, f *found) { f.effects = append(f.effects, f.effects[0]) }, false, "doubled"},
		"an effect twice since":          {func(_ *run, f *found) { f.effects = append(f.effects, f.effects[2]) }, false, "doubled"},
		"without a loss":                 {func(_ *run, f *found) { f.losses = nil }, false, "lost: consumer-1 was told that the effect of event 3"},
		"a published row isn't in Kafka": {func(_ *run, f *found) { f.Deliveries = slices.Delete(f.Deliveries, 1, 2) }, false, "lost: row 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := forgetful(!c.synchronous)
			c.spoil(r, f)
			require.Contains(t, strings.Join(violations(r, f), "\n"), c.finds)
		})
	}
}

// A line that was cut off by a kill says nothing.
func TestDone_ReadsWholeLines(t *testing.T) {
	r := &run{}
	r.done("consumer-1", `{"message":"m1","at":"2024-01-01T00:00:01Z","key":"account-001","number":1}`)
	r.done("consumer-1", `{"message":"m2","at":"2024-0`)
	require.Len(t, r.told, 1)
	require.Equal(t, did{"m1", second(1), AccountID(1), 1}, r.told[0].did)
}

// A message that was acknowledged just before a loss, and of which nothing is left by which that
// could be, was put aside, or had an effect that was not said. It may take effect again, or never.
func TestPardon_OfWhatWasAcknowledgedNothingIsLeft(t *testing.T) {
	aside := func(asynchronous bool) (*run, *found) {
		r, f := forgetful(asynchronous)
		f.told = slices.DeleteFunc(f.told, func(t told) bool { return t.Message == "m2" })
		f.acked = map[string]time.Time{"m1": second(26), "m2": second(31), "m3": second(33), "m4": second(63), "gone": second(72)}
		return r, f
	}
	r, f := aside(true)
	result := r.judge(f, 0)
	require.Empty(t, result.Violations)
	require.Equal(t, map[string]int{"commits of the run's own": 2, "events in Kafka": 1, "messages that were put aside": 1, "effects that came again": 1}, result.Forgotten)
	r, f = aside(true)
	f.effects = append(f.effects, effectOf(2, second(66)))
	require.Empty(t, violations(r, f), "it comes again")

	for name, spoil := range map[string]func(f *found){
		"it was not acknowledged": func(f *found) { delete(f.acked, "m2") },
		"it was before the loss":  func(f *found) { f.acked["m2"] = second(29) },
		"it was after the loss": func(f *found) {
			f.acked = map[string]time.Time{"m2": second(61)}
			f.effects[1], f.effects[2] = effectOf(3, second(62)), effectOf(4, second(64))
			f.told = nil // nothing was forgotten
		},
		"it is aside":                   func(f *found) { f.letters = map[string]bool{"m2": true} },
		"nothing may be forgotten then": func(f *found) { f.losses = nil },
	} {
		t.Run(name, func(t *testing.T) {
			r, f := aside(true)
			spoil(f)
			require.Contains(t, strings.Join(violations(r, f), "\n"), "of account-001 took effect after 1")
		})
	}
	r, f = aside(false)
	require.Contains(t, strings.Join(violations(r, f), "\n"), "of account-001 took effect after 1")

	// What was said to be done, or is, needs no other reason.
	r, f = aside(true)
	f.says(effectOf(2, second(31).Add(-time.Second/2)), second(31))
	require.Zero(t, r.judge(f, 0).Forgotten["messages that were put aside"])
	r, f = aside(true)
	f.effects = slices.Insert(f.effects, 1, effectOf(2, second(29)))
	require.Zero(t, r.judge(f, 0).Forgotten["messages that were put aside"])
}

func TestAcknowledges_KeepsTheFirst(t *testing.T) {
	r := &run{acked: map[string]time.Time{"m1": second(1)}}
	r.acknowledges([]string{"m1", "m2"})
	require.Equal(t, second(1), r.acked["m1"])
	require.Contains(t, r.acked, "m2")
}

// A run is not over while it isn't known of a partition whether anything is left in it.
func TestNothingLeft_IsOfAllPartitions(t *testing.T) {
	lags := map[int32]kadm.GroupMemberLag{}
	require.False(t, nothingLeft(lags))
	for p := range int32(partitions) {
		require.False(t, nothingLeft(lags), "%d are known", len(lags))
		lags[p] = kadm.GroupMemberLag{}
	}
	require.True(t, nothingLeft(lags))
	lags[3] = kadm.GroupMemberLag{Lag: 1}
	require.False(t, nothingLeft(lags))
	lags[3] = kadm.GroupMemberLag{Lag: -1, Err: kerr.NotLeaderForPartition}
	require.False(t, nothingLeft(lags))
}
