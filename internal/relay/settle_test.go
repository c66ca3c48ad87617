package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// judging is a call of rows 1 to n: of keys, in topic 1, as far as not said.
type judging struct {
	keys     []int64
	topics   map[int64]int64 // of keys
	attempts int
	losses   int
	hold     bool
}

func (j judging) judge(t *testing.T, errs map[int]error) (*track, *choice, outcome) {
	t.Helper()
	tr := newTrack(newBreakers(func() float64 { return 0.5 }))
	tr.take(0)
	var rows []QueueRow
	var claimed []Claimed
	for i, key := range j.keys {
		topic := max(1, j.topics[key])
		rows = append(rows, QueueRow{Seq: int64(i + 1), Key: key, Topic: topic, Bytes: 1})
		claimed = append(claimed, Claimed{Seq: int64(i + 1), KeyHash: key, Attempts: j.attempts, Losses: j.losses})
	}
	l, ok := tr.beginLook(100)
	require.True(t, ok)
	tr.looked(l, rows, time.Unix(1, 0))
	c := tr.choose(time.Unix(1, 0), limits{rows: 100, bytes: 100})
	require.Len(t, c.rows, len(rows))
	claimed = tr.claimed(c, claimed)
	v := verdict{retry: outbox.Config{}.WithDefaults().Retry, hold: j.hold, random: func() float64 { return 0.5 }}
	return tr, c, tr.judge(time.Unix(1, 0), v, c, claimed, errs)
}

func seqsOf(refs []RowRef) (seqs []int64) {
	for _, ref := range refs {
		seqs = append(seqs, ref.Seq)
	}
	return seqs
}

// S2-35, S2-42, C-60: the first of a key that wasn't acknowledged takes the failure, those behind it
// aren't written; one that was acknowledged all the same leaves, and is counted.
// Without NOCUT two of a key pay for one call.
func TestJudge_OnlyTheFirstOfAKeyPays(t *testing.T) {
	tr, c, o := judging{keys: []int64{7, 7, 7, 8}, attempts: 1}.judge(t, map[int]error{0: errRefused, 1: errRefused})
	require.Equal(t, []int64{3, 4}, seqsOf(o.settlement.Published))
	require.Equal(t, []Failure{{RowRef: RowRef{0, 1, 7}, Attempts: 2, DueIn: 2 * time.Minute, Class: "transient", Error: "refused"}}, o.settlement.Failed)
	require.Equal(t, 1, o.breaks)
	require.Equal(t, 3, o.settlement.Retries)
	require.Equal(t, errRefused, o.first)

	require.True(t, tr.busy(0), "until the settle is known")
	tr.settled(c, o)
	require.False(t, tr.busy(0))
	require.EqualValues(t, 1, tr.keys[7].rest)
	require.Empty(t, tr.keys[7].list, "what is due finds it")
	require.Nil(t, tr.keys[8], "nothing is left to remember")
}

func TestJudge_WhatIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		judging

		err   error
		class string
		maybe bool
	}{
		"the last attempt": {judging{keys: []int64{7, 7, 8}, attempts: 4}, errRefused, "transient", false},
		"unfit at once":    {judging{keys: []int64{7, 7, 8}}, errUnfit, "permanent", false},
		"crash":            {judging{keys: []int64{7, 7, 8}, losses: 5}, errCrash, "crash", true},
		"unanswered last":  {judging{keys: []int64{7, 7, 8}, attempts: 4}, errSilent, "unknown", true},
	} {
		t.Run(name, func(t *testing.T) {
			errs := map[int]error{0: c.err, 1: errUnsent}
			tr, ch, o := c.judge(t, errs)
			require.Len(t, o.settlement.Abandoned, 1)
			a := o.settlement.Abandoned[0]
			require.Equal(t, c.class, a.Class)
			require.Equal(t, c.maybe, a.MaybeDelivered)
			require.EqualValues(t, 7, a.Key)
			tr.settled(ch, o)
			require.EqualValues(t, 2, tr.keys[7].list[0].seq, "the one behind goes on")

			c.hold = true
			tr, ch, o = c.judge(t, errs)
			require.Empty(t, o.settlement.Abandoned)
			require.True(t, o.settlement.Failed[0].Held)
			require.Zero(t, o.settlement.Failed[0].DueIn)
			tr.settled(ch, o)
			require.Empty(t, tr.keys[7].list, "the one behind waits")
		})
	}
}

// What wasn't answered pays if another row of its topic was; else nobody does,
// and its topic is shut, but not others.
func TestJudge_SilencePaysOnlyBesideAnAnswer(t *testing.T) {
	_, _, o := judging{keys: []int64{7, 8}}.judge(t, map[int]error{0: errSilent})
	require.Equal(t, 1, o.settlement.Failed[0].Attempts)
	require.Empty(t, o.changes)

	tr, c, o := judging{keys: []int64{7, 8}, topics: map[int64]int64{8: 2}}.judge(t, map[int]error{0: errSilent})
	require.Empty(t, o.settlement.Failed)
	require.Equal(t, []change{{1, true}}, o.changes)
	require.Equal(t, 1, tr.breakers.silentCalls(7))
	tr.settled(c, o)
	require.Len(t, tr.keys[7].list, 1, "to probe with")

	tr, _, o = judging{keys: []int64{7, 8}, topics: map[int64]int64{8: 2}}.judge(t, map[int]error{0: errSilent, 1: errSilent})
	require.Equal(t, []change{{0, true}, {1, true}, {2, true}}, o.changes)
	require.True(t, tr.breakers.lane.open())

	_, _, o = judging{keys: []int64{7, 8}}.judge(t, map[int]error{0: errors.New("whatever"), 1: errUnfit})
	require.Empty(t, o.settlement.Failed, "that a row is unfit the client may know by itself: nobody has answered")
	require.Len(t, o.settlement.Abandoned, 1)
}

// A refused connection says nothing of rows, so they don't go in smaller calls.
func TestJudge_WhatSaysNothingOfRowsRaisesNoSuspicion(t *testing.T) {
	for _, err := range []error{errRefuses, errLeader, errUnsent} {
		tr, c, o := judging{keys: []int64{7, 8}}.judge(t, map[int]error{0: err, 1: err})
		require.Zero(t, tr.suspected())
		require.Empty(t, o.settlement.Failed)
		tr.settled(c, o)
		require.Equal(t, 2, tr.listed, "what nothing was decided about is listed again at once")
	}
}

// Rows of an unanswered call that go to another process with their partition are not checked here
// any more, also when it comes back without them.
func TestJudge_KeysOfSilentCallsAreLeftOnlyWhereTheirRowsAre(t *testing.T) {
	tr, c, o := judging{keys: []int64{7, 8}, topics: map[int64]int64{8: 2}}.judge(t, map[int]error{0: errSilent})
	tr.settled(c, o)
	require.Equal(t, 1, tr.suspected())
	tr.retire(0)
	tr.drop(0)
	require.Zero(t, tr.suspected())
	tr.take(0)
	require.Zero(t, tr.suspected())
	l, ok := tr.beginLook(100)
	require.True(t, ok)
	tr.looked(l, []QueueRow{{Seq: 9, Key: 7, Topic: 1, Bytes: 1}}, time.Unix(2, 0))
	require.Equal(t, 1, tr.suspected(), "what is new of the key goes in a small call")
}

func TestJudge_APanicIsALossOfAllThatWasSent(t *testing.T) {
	panicking := &panicError{"index out of range"}
	tr, c, o := judging{keys: []int64{7, 8}, losses: 1}.judge(t, map[int]error{0: panicking, 1: panicking})
	require.Equal(t, []int64{1, 2}, seqsOf(o.settlement.Lost))
	require.Empty(t, o.settlement.Failed)
	require.Empty(t, o.changes, "it says nothing of the broker")
	tr.settled(c, o)
	require.Equal(t, 1, tr.keys[7].list[0].losses)
	require.True(t, condemned(Claimed{Losses: crashLosses}))
	require.False(t, condemned(Claimed{Losses: crashLosses - 1}))
}
