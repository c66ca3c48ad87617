package outboxdb_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

func ofChanges(test suiteTest) {
	test("Operate_A49_RetryMakesFailedAndAbandonedPending", retryVerb) // C-19
	test("Operate_A49_S3_14_OtherStatesAreRefused", refusedVerbs)
	test("Operate_AbandonLetsFollowersGo", abandonVerb) // C-19
	test("Operate_HeldHeadIsRetriedOrSkipped", heldVerbs)
	test("Operate_C_19_RescheduledOrCancelled", rescheduled)
	test("Operate_C_28_ARetryIsClaimedOnce", retryOnce)
	test("Change_A86_C_17_ByFilter", changeByFilter)
	test("Change_A86_HeldRowsAreSkipped", changeSkips)
	test("Change_C_17_Rate", changeRate)
	test("Change_C_17_RefusedWhole", changeRefused)
	test("Change_C_17_OperatorsTogether", changeTogether)
	test("Change_C_17_GoesOnAfterAnEnd", changeInterrupted)
}

func (b *bench) change(f outbox.Filter, c outbox.Change) outbox.ChangeResult {
	b.T.Helper()
	c.Actor = "ada"
	r, err := b.Change(b.T.Context(), f, c)
	require.NoError(b.T, err)
	return r
}

// do does what a verb says to rows, and returns how many it changed.
func (b *bench) do(verb outbox.Verb, seqs ...int64) int {
	b.T.Helper()
	return int(b.change(outbox.Filter{Seqs: seqs}, outbox.Change{Verb: verb}).Changed)
}

func (b *bench) actions() []outbox.Action {
	b.T.Helper()
	actions, err := b.Actions(b.T.Context(), 100)
	require.NoError(b.T, err)
	return actions
}

// insertMany stores rows in transactions of a size that both databases take.
func (b *bench) insertMany(n int) {
	b.T.Helper()
	for part := range slices.Chunk(outboxdbtest.Numbered("k", n), 1000) {
		b.Insert(part...)
	}
}

func retryVerb(t *testing.T, b *bench) {
	m := b.worker("w1")
	f, a := b.inState(m, "f", failed(time.Hour)), b.inState(m, "a", given)
	require.Equal(t, 2, b.do(outbox.VerbRetry, a, f))
	for _, seq := range []int64{f, a} {
		e := b.entry(seq)
		require.Equal(t, outbox.Pending, e.Status)
		require.Zero(t, e.Attempts)
		require.Nil(t, e.ExpiresAt)
	}
	require.ElementsMatch(t, []string{"f", "a"}, keys(m.claim(10)), "due at once")
}

func refusedVerbs(t *testing.T, b *bench) {
	m := b.worker("w1")
	seqs := map[outbox.Status]int64{}
	for _, o := range []outcome{inHand, published, failed(time.Hour), given, back} {
		seqs[o.status] = b.inState(m, "k-"+string(o.status), o)
	}
	before := b.entries()
	for verb, from := range map[outbox.Verb][]outbox.Status{
		outbox.VerbRetry:   {outbox.Failed, outbox.Abandoned},
		outbox.VerbAbandon: {outbox.Pending, outbox.Failed},
		outbox.VerbSkip:    {},
	} {
		for s, seq := range seqs {
			if slices.Contains(from, s) {
				continue
			}
			r := b.change(outbox.Filter{Seqs: []int64{seq}}, outbox.Change{Verb: verb})
			require.Zero(t, r.Changed, "%s of %s", verb, s)
			require.Equal(t, map[outbox.Status]int64{s: 1}, r.Refused)
		}
		require.Equal(t, []int64{999999}, b.change(outbox.Filter{Seqs: []int64{999999}}, outbox.Change{Verb: verb}).Missing)
	}
	require.Equal(t, before, b.entries())
	require.Empty(t, b.actions())
}

func abandonVerb(t *testing.T, b *bench) {
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: outbox.Retention{Abandoned: time.Hour}}))
	m := b.worker("w1")
	f := b.inState(m, "k", failed(time.Hour))
	b.Insert("k")
	require.Empty(t, m.claim(10).rows)
	require.Equal(t, 1, b.do(outbox.VerbAbandon, f))
	e := b.entry(f)
	require.Equal(t, outbox.Abandoned, e.Status)
	require.Equal(t, "no", e.LastError, "the broker's words stay")
	require.InDelta(t, 3600, e.ExpiresAt.Sub(*e.LastAttemptAt).Seconds(), 120)
	due, _, err := b.Due(t.Context(), m.Lane, m.Parts, relay.DueAt{}, 10)
	require.NoError(t, err)
	require.Len(t, due, 1, "its follower's lane is told")
	require.Equal(t, []string{"k"}, keys(m.claim(10)), "its follower goes on")

	p := b.inState(m, "other", back)
	require.Equal(t, 1, b.do(outbox.VerbAbandon, p))
	require.Equal(t, "abandoned by an operator", b.entry(p).LastError)
	require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: outbox.Retention{Abandoned: -1}}))
	require.Nil(t, b.entry(p).ExpiresAt)
}

func heldVerbs(t *testing.T, b *bench) {
	m := b.worker("w1")
	first, second := b.inState(m, "k", held), b.inState(m, "l", held)
	b.Insert("k", "k", "l")
	require.Empty(t, m.claim(10).rows)
	waits, err := b.Held(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string]outbox.Held{"default": {Keys: 2, Behind: 3}}, waits)

	require.Equal(t, 1, b.do(outbox.VerbSkip, second))
	e := b.entry(second)
	require.Equal(t, outbox.Abandoned, e.Status)
	require.False(t, e.Held)
	require.Equal(t, []string{"l"}, keys(m.claim(10)), "the row behind the skipped one")
	require.Zero(t, b.do(outbox.VerbSkip, second), "it isn't held any more")

	require.Equal(t, 1, b.do(outbox.VerbRetry, first))
	c := m.claim(10)
	require.Equal(t, []string{"k", "k", "k"}, keys(c), "head first")
	require.Equal(t, first, c.rows[0].Seq)
	waits, err = b.Held(t.Context())
	require.NoError(t, err)
	require.Empty(t, waits)
}

// A retry that is scheduled can be made due at once or cancelled, also for all rows of
// a type.
func rescheduled(t *testing.T, b *bench) {
	rows := []outbox.Row{outboxdbtest.Row("a"), outboxdbtest.Row("b"), outboxdbtest.Row("c"), outboxdbtest.Row("d")}
	rows[2].MessageType, rows[3].MessageType = "Ordering.OrderCancelled.v2", "Ordering.OrderCancelled.v2"
	b.InsertRows(rows...)
	m := b.worker("w1")
	c := m.claim(10)
	m.settle(c, failed(time.Hour))
	require.Empty(t, m.claim(10).rows, "all are scheduled")
	require.Equal(t, 1, b.do(outbox.VerbRetry, c.rows[0].Seq))
	require.Equal(t, []string{"a"}, keys(m.claim(10)))
	require.Equal(t, 1, b.do(outbox.VerbAbandon, c.rows[1].Seq))
	require.EqualValues(t, 2, b.change(outbox.Filter{Type: "Ordering.OrderCancelled.v2"}, outbox.Change{Verb: outbox.VerbAbandon}).Changed)
	b.due()
	require.Empty(t, m.claim(10).rows, "what is cancelled never comes")
	require.Equal(t, []outbox.Status{outbox.Processing, outbox.Abandoned, outbox.Abandoned, outbox.Abandoned}, b.statuses())
}

// Whoever asks for it again while it is in hand, or again due, changes nothing.
func retryOnce(t *testing.T, b *bench) {
	m := b.worker("w1")
	seq := b.inState(m, "a", failed(time.Hour))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := b.Change(t.Context(), outbox.Filter{Seqs: []int64{seq}}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Len(t, b.actions(), 1)
	c := m.claim(10)
	require.Len(t, c.rows, 1)
	require.Zero(t, b.do(outbox.VerbRetry, seq))
	require.Empty(t, m.claim(10).rows)
	require.True(t, m.settle(c, published))
	require.Empty(t, m.claim(10).rows)
	require.Equal(t, 1, b.entry(seq).Attempts)
}

// A change is done to those rows that a filter chooses and whose status allows it; the
// others are counted. A dry run says the same, and who asked is on record.
func changeByFilter(t *testing.T, b *bench) {
	m := b.worker("w1")
	seqs := map[string]int64{}
	for _, o := range []outcome{inHand, published, failed(time.Hour), given} {
		seqs[string(o.status)] = b.inState(m, "k-"+string(o.status), o)
	}
	seqs["held"] = b.inState(m, "k-held", held)
	seqs["pending"] = b.inState(m, "k-pending", back)
	before := b.entries()
	all := outbox.Filter{Type: "Ordering.OrderPlaced.v1"}
	want := outbox.ChangeResult{
		Changed: 3, OutOfOrder: 1, Refused: map[outbox.Status]int64{outbox.Processing: 1, outbox.Pending: 1}, Missing: []int64{}, UpTo: seqs["pending"],
	}
	r, err := b.Change(t.Context(), all, outbox.Change{Verb: outbox.VerbRetry, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, want, r)
	require.Equal(t, before, b.entries())
	require.Empty(t, b.actions())

	b.Insert("later") // after the dry run
	want.Action = 1
	require.Equal(t, want, b.change(all, outbox.Change{Verb: outbox.VerbRetry, UpTo: r.UpTo}))
	for _, name := range []string{"failed", "abandoned", "held"} {
		e := b.entry(seqs[name])
		require.Equal(t, outbox.Pending, e.Status)
		require.False(t, e.Held)
		require.Zero(t, e.Attempts)
	}
	actions := b.actions()
	require.Len(t, actions, 1)
	require.WithinDuration(t, time.Now(), actions[0].At, time.Minute)
	require.JSONEq(t, fmt.Sprintf(`{"type":"Ordering.OrderPlaced.v1","up_to":%d}`, want.UpTo), string(actions[0].Filter))
	require.Equal(t, outbox.Action{ID: 1, At: actions[0].At, Actor: "ada", Action: "retry", Filter: actions[0].Filter, Rows: 3}, actions[0])

	r = b.change(outbox.Filter{Seqs: []int64{seqs["published"], seqs["processing"], seqs["failed"], 999999, 888888}}, outbox.Change{Verb: outbox.VerbAbandon})
	require.Equal(t, outbox.ChangeResult{
		Changed: 1, Refused: map[outbox.Status]int64{outbox.Published: 1, outbox.Processing: 1}, Missing: []int64{888888, 999999}, UpTo: r.UpTo, Action: 2,
	}, r, "what is named is counted, published or not")
	require.Equal(t, outbox.Abandoned, b.entry(seqs["failed"]).Status)

	r = b.change(all, outbox.Change{Verb: outbox.VerbSkip})
	require.Zero(t, r.Changed+r.Action, "nothing is held, and that leaves no trace")
	require.EqualValues(t, 1, r.Refused[outbox.Abandoned])
	require.Len(t, b.actions(), 2)
}

// What is held is skipped by filter, and its followers go on.
func changeSkips(t *testing.T, b *bench) {
	m := b.worker("w1")
	for _, key := range []string{"a", "b", "c"} {
		b.inState(m, key, held)
	}
	b.Insert("a", "b", "c")
	require.Empty(t, m.claim(10).rows)
	r := b.change(outbox.Filter{Held: true, Target: "default"}, outbox.Change{Verb: outbox.VerbSkip, Limit: 2})
	require.EqualValues(t, 2, r.Changed)
	require.Equal(t, []string{"a", "b"}, keys(m.claim(10)))
	require.Equal(t, b.entries()[1].Seq, r.UpTo)
	require.True(t, b.entries()[2].Held)
}

// A rate spreads retries in the order of seq, by the database's clock, over all
// transactions.
func changeRate(t *testing.T, b *bench) {
	const n = 1003
	b.insertMany(n)
	m := b.worker("w1")
	m.settle(m.claim(n), failed(time.Hour))
	r := b.change(outbox.Filter{Statuses: []outbox.Status{outbox.Failed}}, outbox.Change{Verb: outbox.VerbRetry, Rate: 4, Limit: n - 1})
	require.EqualValues(t, n-1, r.Changed)
	all := b.entries()
	first := all[0].AvailableAt
	require.WithinDuration(t, time.Now(), first, time.Minute)
	for i, e := range all[:n-1] {
		require.Equal(t, outbox.Pending, e.Status)
		require.WithinDuration(t, first.Add(time.Duration(i)*250*time.Millisecond), e.AvailableAt, 2*time.Millisecond)
	}
	require.Equal(t, outbox.Failed, all[n-1].Status)
	require.JSONEq(t, `{"statuses":["failed"],"rate":4,"limit":1002}`, string(b.actions()[0].Filter))
	require.EqualValues(t, n-1, b.actions()[0].Rows, "of both transactions")
	require.Len(t, b.actions(), 1)
}

// Nothing is half done: what makes no sense is refused with what to say instead.
func changeRefused(t *testing.T, b *bench) {
	b.Insert("a")
	before := b.entries()
	is := outbox.Filter{Type: "x"}
	for want, c := range map[string]struct {
		f outbox.Filter
		c outbox.Change
	}{
		`"publish" is not a verb: retry, abandon or skip`: {is, outbox.Change{Verb: "publish", Actor: "ada"}},
		"retry: the filter is empty":                      {outbox.Filter{After: 3, Limit: 2, Statuses: []outbox.Status{}}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}},
		"Actor is missing":                                {is, outbox.Change{Verb: outbox.VerbRetry}},
		"Rate is -1":                                      {is, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada", Rate: -1}},
		"Rate is NaN":                                     {is, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada", Rate: math.NaN()}},
		"Rate is +Inf":                                    {is, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada", Rate: math.Inf(1)}},
		"Limit -1":                                        {is, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada", Limit: -1}},
		"Rate is for retries only":                        {is, outbox.Change{Verb: outbox.VerbAbandon, Actor: "ada", Rate: 1}},
		"chooses none but [pending published] rows, and only [failed abandoned] ones can be retried": {outbox.Filter{Statuses: []outbox.Status{"pending", "published"}}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}},
		`Actor is "a\x00"`:                     {is, outbox.Change{Verb: outbox.VerbRetry, Actor: "a\x00"}},
		`"lost" is not a status`:               {outbox.Filter{Statuses: []outbox.Status{"failed", "lost"}}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}},
		`"1" is not the id of a message`:       {outbox.Filter{MessageID: "1"}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}},
		`the filter's partition_key, "a\xff"`:  {outbox.Filter{PartitionKey: "a\xff"}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}},
		`the filter's last_error, "a\x00' OR"`: {outbox.Filter{Error: "a\x00' OR"}, outbox.Change{Verb: outbox.VerbRetry, Actor: "ada"}},
	} {
		_, err := b.Change(t.Context(), c.f, c.c)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "outbox: "+string(c.c.Verb)+": ")
	}
	require.Equal(t, before, b.entries())
	require.Empty(t, b.actions())
}

// Of operators who ask for the same at the same time one gets each row, and who
// publishes isn't in their way.
func changeTogether(t *testing.T, b *bench) {
	const n = 2500
	b.insertMany(n)
	m := b.worker("w1")
	operators, ended := &sync.WaitGroup{}, make(chan struct{})
	var changed [3]int64
	for i := range changed {
		operators.Go(func() {
			for {
				r, err := b.Change(t.Context(), outbox.Filter{Category: "ordering::order"}, outbox.Change{Verb: outbox.VerbAbandon, Actor: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
					return
				}
				changed[i] += r.Changed
				if r.Changed == 0 && r.Refused[outbox.Processing] == 0 {
					return
				}
			}
		})
	}
	go func() {
		defer close(ended)
		operators.Wait()
	}()
	for {
		select {
		case <-ended:
			require.EqualValues(t, n, changed[0]+changed[1]+changed[2])
			var rows int64
			for _, a := range b.actions() {
				rows += a.Rows
			}
			require.EqualValues(t, n, rows)
			b.consistent()
			return
		default:
			require.True(t, m.settle(m.claim(20), failed(time.Hour)))
		}
	}
}

// What ends early is on record as far as it came, and goes on when it is asked for
// again.
func changeInterrupted(t *testing.T, b *bench) {
	const n = 1500
	b.insertMany(n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := outbox.Filter{Category: "ordering::order"}
	var told []int64
	c := outbox.Change{Verb: outbox.VerbAbandon, Actor: "ada", Progress: func(r outbox.ChangeResult) {
		told = append(told, r.Changed)
		cancel()
	}}
	r, err := b.Change(ctx, f, c)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "with 1000 rows abandoned; run it again for the others")
	require.Equal(t, []int64{1000}, told)
	require.EqualValues(t, 1000, r.Changed)
	require.EqualValues(t, 1000, b.actions()[0].Rows)
	c.Progress = nil
	r, err = b.Change(t.Context(), f, c)
	require.NoError(t, err)
	require.EqualValues(t, n-1000, r.Changed)
	require.Equal(t, map[outbox.Status]int64{outbox.Abandoned: 1000}, r.Refused)
}
