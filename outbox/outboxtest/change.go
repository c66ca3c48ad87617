package outboxtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/outbox"
)

// change is Change by somebody.
func (b *Bench) change(f outbox.Filter, c outbox.Change) outbox.ChangeResult {
	b.T.Helper()
	c.Actor = "ada"
	r, err := b.Change(b.T.Context(), f, c)
	require.NoError(b.T, err)
	return r
}

func (b *Bench) actions() []outbox.Action {
	b.T.Helper()
	actions, err := b.Actions(b.T.Context(), 100)
	require.NoError(b.T, err)
	return actions
}

// A change is done to those rows that a filter chooses and whose status allows
// it; the others are counted. A dry run says the same, and who asked is on
// record.
func changeByFilter(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	seqs := map[string]int64{}
	for _, s := range []outbox.Status{outbox.Processing, outbox.Published, outbox.Failed, outbox.Abandoned} {
		seqs[string(s)] = b.inState(w, "k-"+string(s), s, false)
	}
	seqs["held"] = b.inState(w, "k-held", outbox.Abandoned, true)
	seqs["pending"] = b.inState(w, "k-pending", outbox.Pending, false)
	before := b.Entries()
	all := outbox.Filter{Type: "Ordering.OrderPlaced.v1"}
	want := outbox.ChangeResult{
		Changed: 3, OutOfOrder: 1, Refused: map[outbox.Status]int64{outbox.Processing: 1, outbox.Pending: 1}, Missing: []int64{}, UpTo: seqs["pending"],
	}
	r, err := b.Change(t.Context(), all, outbox.Change{Verb: outbox.VerbRetry, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, want, r)
	require.Equal(t, before, b.Entries())
	require.Empty(t, b.actions())

	b.Insert("later") // after the dry run
	r = b.change(all, outbox.Change{Verb: outbox.VerbRetry, UpTo: r.UpTo})
	want.Action = 1
	require.Equal(t, want, r)
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

	r = b.change(outbox.Filter{Seqs: []int64{seqs["published"], seqs["processing"], seqs["failed"], 999999, 888888}}, outbox.Change{Verb: outbox.VerbAbandon, Retention: outbox.Retention{Abandoned: time.Hour}})
	require.Equal(t, outbox.ChangeResult{
		Changed: 1, Refused: map[outbox.Status]int64{outbox.Published: 1, outbox.Processing: 1}, Missing: []int64{888888, 999999}, UpTo: r.UpTo, Action: 2,
	}, r, "what is named is counted, published or not")
	e := b.entry(seqs["failed"])
	require.Equal(t, outbox.Abandoned, e.Status)
	require.NotNil(t, e.ExpiresAt)

	r = b.change(all, outbox.Change{Verb: outbox.VerbSkip})
	require.Zero(t, r.Changed+r.Action, "nothing is held, and that leaves no trace")
	require.EqualValues(t, 1, r.Refused[outbox.Abandoned])
	require.Len(t, b.actions(), 2)
}

// What is held is skipped by filter, and its followers go on.
func changeSkips(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	for _, key := range []string{"a", "b", "c"} {
		b.inState(w, key, outbox.Abandoned, true)
	}
	b.Insert("a", "b", "c")
	require.Empty(t, w.Claim(10).Rows)
	r := b.change(outbox.Filter{Held: true, Target: "default"}, outbox.Change{Verb: outbox.VerbSkip, Limit: 2, Retention: outbox.Retention{Abandoned: time.Hour}})
	require.EqualValues(t, 2, r.Changed)
	require.Equal(t, []string{"a", "b"}, Keys(w.Claim(10)))
	require.Equal(t, b.Entries()[1].Seq, r.UpTo)
	require.NotNil(t, b.Entries()[0].ExpiresAt)
	require.True(t, b.Entries()[2].Held)
}

// A rate spreads retries in the order of seq, by the database's clock, over all
// transactions.
func changeRate(t *testing.T, b *Bench) {
	const n = 1003
	b.insertMany(Numbered("k", n)...)
	w := b.Worker("w1", Partitions, time.Minute)
	for got := 0; got < n; {
		c := w.Claim(500)
		w.Settle(c, All(c, failed(time.Hour))...)
		got += len(c.Rows)
	}
	r := b.change(outbox.Filter{Statuses: []outbox.Status{outbox.Failed}}, outbox.Change{Verb: outbox.VerbRetry, Rate: 4, Limit: n - 1})
	require.EqualValues(t, n-1, r.Changed)
	all := b.Entries()
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
func changeRefused(t *testing.T, b *Bench) {
	b.Insert("a")
	before := b.Entries()
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
	require.Equal(t, before, b.Entries())
	require.Empty(t, b.actions())
}

// Of two operators who ask for the same at the same time, one gets each row; and
// processors are not in their way.
func changeTogether(t *testing.T, b *Bench) {
	const n = 2500
	b.insertMany(Numbered("k", n)...)
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var wg, busy sync.WaitGroup
	w := b.Worker("w1", Partitions, time.Minute)
	busy.Go(func() {
		for !stopped() {
			c, err := b.Claim(t.Context(), w.Request(outbox.ClaimRequest{Target: w.Target, Worker: w.Name, Leases: w.Leases, Limit: 20, MaxAttempts: 5}))
			if err != nil {
				t.Error(err)
				return
			}
			w.Took(c)
			all := All(c, failed(time.Hour))
			stale, err := b.Store.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: w.Target, Outcomes: all})
			if err != nil || stale > 0 {
				t.Errorf("%d rows were not written back: %v", stale, err)
				return
			}
			w.Landed(c.ID, all, stale)
		}
	})
	var changed [3]int64
	for i := range changed {
		wg.Go(func() {
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
	wg.Wait()
	close(stop)
	busy.Wait()
	require.EqualValues(t, n, changed[0]+changed[1]+changed[2])
	var rows int64
	for _, a := range b.actions() {
		rows += a.Rows
	}
	require.EqualValues(t, n, rows)
}

// What ends early is on record as far as it came, and goes on when it is asked
// for again.
func changeInterrupted(t *testing.T, b *Bench) {
	const n = 1500
	b.insertMany(Numbered("k", n)...)
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

// Rows are found whatever stands in a filter, and what no row can have is said.
func findHostile(t *testing.T, b *Bench) {
	ctx := t.Context()
	row := Row(`50% off' OR '1'='1 "?" \_ ü🙂`)
	row.CorrelationID = "a'b\\c%"
	b.InsertRows(row, Row("50x off"))
	w := b.Worker("w1", Partitions, time.Minute)
	c := w.Claim(10)
	o := failed(time.Hour)
	o.Error = `no % _ 'leader' \ ?`
	o.Seq = c.Rows[0].Seq
	w.Settle(c, o)
	for name, f := range map[string]outbox.Filter{
		"key":         {PartitionKey: row.PartitionKey},
		"correlation": {CorrelationID: row.CorrelationID},
		"error":       {Error: "% _ 'leader' \\ ?"},
		"id":          {MessageID: "urn:uuid:" + row.MessageID},
		"all":         {Limit: math.MaxInt, From: row.OccurredAt.AddDate(-1000, 0, 0), Until: time.Now().AddDate(1000, 0, 0), Error: "%"},
	} {
		found, err := b.Find(ctx, f)
		require.NoError(t, err, name)
		require.Len(t, found, 1, name)
		require.Equal(t, row.PartitionKey, found[0].PartitionKey)
	}
	for _, f := range []outbox.Filter{{Error: "%%"}, {PartitionKey: "50%"}, {Error: "x.*"}, {MessageID: uuid.NewString()}, {Seqs: []int64{-1, math.MaxInt64}}, {After: math.MaxInt64}, {Until: time.Unix(0, 0)}, {From: time.Now().AddDate(1, 0, 0)}} {
		found, err := b.Find(ctx, f)
		require.NoError(t, err)
		require.Empty(t, found)
	}
	for want, f := range map[string]outbox.Filter{
		"is not the id of a message, which is a UUID": {MessageID: "x"},
		`the filter's message_type, "\xc3("`:          {Type: "\xc3("},
		`the filter's stream, "a\x00"`:                {Stream: "a\x00"},
		`"PENDING" is not a status`:                   {Statuses: []outbox.Status{"PENDING"}},
	} {
		_, err := b.Find(ctx, f)
		require.ErrorContains(t, err, want)
	}
}

// Each combination of statuses is answered in the order of seq, page by page.
func findByStatus(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	for i := range 3 {
		for _, s := range []outbox.Status{outbox.Published, outbox.Failed, outbox.Abandoned, outbox.Processing} {
			b.inState(w, fmt.Sprintf("%s-%d", s, i), s, i == 1)
		}
	}
	b.Insert("p", "q", "r")
	all := b.Entries()
	require.Len(t, all, 15)
	for set := range 1 << 5 {
		var f outbox.Filter
		for i, s := range outbox.Statuses() {
			if set&(1<<i) != 0 {
				f.Statuses = append(f.Statuses, s)
			}
		}
		for _, held := range []bool{false, true} {
			f.After, f.Held, f.Limit = 0, held, 2
			var want, got []int64
			for _, e := range all {
				if (e.Held || !held) && (set == 0 || slices.Contains(f.Statuses, e.Status)) {
					want = append(want, e.Seq)
				}
			}
			for {
				page, err := b.Find(t.Context(), f)
				require.NoError(t, err)
				for _, e := range page {
					got = append(got, e.Seq)
				}
				if len(page) < f.Limit {
					break
				}
				f.After = page[len(page)-1].Seq
			}
			require.Equal(t, want, got, "%v, held %v", f.Statuses, held)
		}
	}
}

// A message is shown with all of its rows, and what each waits for.
func messageOf(t *testing.T, b *Bench) {
	w := b.Worker("w1", Partitions, time.Minute)
	head := b.inState(w, "k", outbox.Failed, false)
	row := Row("k")
	row.Payload = []byte{0, 0xff, '{'}
	partner := row
	partner.ID, partner.TargetBroker = newID(), "partner"
	b.Insert("k")
	b.InsertRows(row, partner)
	m, err := b.Message(t.Context(), row.MessageID)
	require.NoError(t, err)
	require.Equal(t, row.MessageID, m.MessageID)
	require.WithinDuration(t, time.Now(), m.Now, time.Minute)
	require.Len(t, m.Rows, 2)
	require.Equal(t, row.Payload, m.Rows[0].Payload)
	require.EqualValues(t, 2, m.Rows[0].Before)
	require.Equal(t, head, m.Rows[0].Head.Seq)
	require.Equal(t, outbox.Failed, m.Rows[0].Head.Status)
	require.Equal(t, "partner", m.Rows[1].TargetBroker)
	require.Zero(t, m.Rows[1].Before)
	require.Nil(t, m.Rows[1].Head)

	other := b.inState(w, "other", outbox.Processing, false)
	of := func(seq int64) outbox.MessageRow {
		m, err := b.Message(t.Context(), b.entry(seq).MessageID)
		require.NoError(t, err)
		return m.Rows[0]
	}
	require.False(t, of(other).Stale)
	require.Equal(t, "w1", of(other).LockedBy)
	b.Expire()
	require.True(t, of(other).Stale)

	_, err = b.Message(t.Context(), uuid.NewString())
	require.ErrorIs(t, err, outbox.ErrNoMessage)
	_, err = b.Message(t.Context(), "x")
	require.ErrorContains(t, err, "is not the id of a message")
	_, err = b.Message(t.Context(), "")
	require.ErrorContains(t, err, "which message?")
}

// Who owns which partition, and what is in it.
func owners(t *testing.T, b *Bench) {
	all, err := b.Owners(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	lonely := Row("b")
	lonely.TargetBroker = "partner"
	b.InsertRows(lonely)
	w := b.Worker("w1", 3, time.Minute)
	require.Len(t, w.Leases, 3)
	full := b.Worker("w2", Partitions, time.Minute)
	b.inState(full, keyIn(full.Leases[0].Partition), outbox.Abandoned, true)
	b.Insert(keyIn(full.Leases[0].Partition))
	b.Exec("UPDATE outbox SET created_at = " + past(b.DB) + " WHERE held")
	at := func(target string, partition int) outbox.Owned {
		all, err := b.Owners(t.Context())
		require.NoError(t, err)
		require.Len(t, all, Partitions+1)
		for _, o := range all {
			if o.Target == target && o.Partition == partition {
				return o
			}
		}
		require.Fail(t, "it is not there")
		return outbox.Owned{}
	}
	free := at("default", w.Leases[0].Partition)
	require.Equal(t, outbox.Owned{Target: "default", Partition: w.Leases[0].Partition, Owner: new("w1"), Fence: w.Leases[0].Fence, Until: free.Until, Live: true}, free)
	require.WithinDuration(t, time.Now().Add(time.Minute), *free.Until, 30*time.Second)
	busy := at("default", full.Leases[0].Partition)
	require.Equal(t, "w2", *busy.Owner)
	require.EqualValues(t, 2, busy.Unfinished)
	require.EqualValues(t, 1, busy.Held)
	require.InDelta(t, 3600, *busy.OldestSeconds, 60)
	nobody := at("partner", lonely.Partition)
	require.Equal(t, outbox.Owned{Target: "partner", Partition: lonely.Partition, Unfinished: 1, OldestSeconds: nobody.OldestSeconds}, nobody)
	b.Expire()
	require.False(t, at("default", w.Leases[0].Partition).Live)
	require.NoError(t, b.Release(t.Context(), "default", w.Leases))
}

// keyIn is a key of a partition.
func keyIn(partition int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key-", i); outbox.PartitionOf(key, Partitions) == partition {
			return key
		}
	}
}
