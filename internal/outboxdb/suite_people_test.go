package outboxdb_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

func ofPeople(test suiteTest) {
	test("Find_S3_30_OperatorQueries", find)
	test("Find_S3_30_WhateverTheFilterHolds", findHostile)
	test("Find_S3_30_ByStatus", findByStatus)
	test("Find_S2_20_FailedSayWhy", failedSayWhy)
	test("Find_C_01_C_02_FoundUntilRemoved", foundUntilRemoved)
	test("Message_S3_30_AllItsRows", messageOf)
	test("Owners_WhoHasWhat", owners)
	test("Stats_CountPerTarget", countPerTarget) // C-06, C-07
	test("Stats_S2_13_WhatNobodyPublishes", nobodyPublishes)
	test("Stats_S3_27_Attempts", attempts)
	test("Stats_F_50_PublishedIsCounted", publishedIsCounted)
	test("Stats_S2_22_OfNothing", statsOfNothing)
}

func find(t *testing.T, b *bench) {
	rows := b.Insert("a", "b", "c")
	partner := rows[0]
	partner.ID, partner.TargetBroker, partner.CausationID, partner.MessageType = uuid.NewString(), "partner", uuid.NewString(), "Ordering.OrderCancelled.v2"
	b.InsertRows(partner)
	m := b.worker("w1")
	m.claim(1)           // a
	m.settles(failed(0)) // b
	expect := func(f outbox.Filter, keysAndTargets ...string) {
		t.Helper()
		found, err := b.Find(t.Context(), f)
		require.NoError(t, err)
		var got []string
		for _, e := range found {
			got = append(got, e.PartitionKey+"@"+e.TargetBroker)
		}
		require.Equal(t, keysAndTargets, got)
	}
	expect(outbox.Filter{}, "a@default", "b@default", "c@default", "a@partner")
	expect(outbox.Filter{MessageID: rows[0].MessageID}, "a@default", "a@partner")
	expect(outbox.Filter{Type: "Ordering.OrderCancelled.v2"}, "a@partner")
	expect(outbox.Filter{CorrelationID: "c-b"}, "b@default")
	expect(outbox.Filter{CausationID: partner.CausationID}, "a@partner")
	expect(outbox.Filter{Stream: "ordering::order-c"}, "c@default")
	expect(outbox.Filter{Statuses: []outbox.Status{outbox.Processing}}, "a@default")
	expect(outbox.Filter{RetryReady: true}, "b@default")
	expect(outbox.Filter{Stale: true})
	b.Expire()
	expect(outbox.Filter{Stale: true}, "a@default")
	expect(outbox.Filter{Limit: 2}, "a@default", "b@default")
	all := b.entries()
	expect(outbox.Filter{Limit: 2, After: all[1].Seq}, "c@default", "a@partner")
	require.Equal(t, rows[0].OccurredAt, all[0].OccurredAt)
	require.Equal(t, rows[0].MessageID, all[0].MessageID)
}

// Rows are found whatever stands in a filter, and what no row can have is said.
func findHostile(t *testing.T, b *bench) {
	row := outboxdbtest.Row(`50% off' OR '1'='1 "?" \_ ü🙂`)
	row.CorrelationID = "a'b\\c%"
	b.InsertRows(row, outboxdbtest.Row("50x off"))
	o := failed(time.Hour)
	o.err = `no % _ 'leader' \ ?`
	b.worker("w1").settles(o, back)
	for name, f := range map[string]outbox.Filter{
		"key":         {PartitionKey: row.PartitionKey},
		"correlation": {CorrelationID: row.CorrelationID},
		"error":       {Error: "% _ 'leader' \\ ?"},
		"id":          {MessageID: "urn:uuid:" + row.MessageID},
		"all":         {Limit: math.MaxInt, From: row.OccurredAt.AddDate(-1000, 0, 0), Until: time.Now().AddDate(1000, 0, 0), Error: "%"},
	} {
		found, err := b.Find(t.Context(), f)
		require.NoError(t, err, name)
		require.Len(t, found, 1, name)
		require.Equal(t, row.PartitionKey, found[0].PartitionKey)
	}
	for _, f := range []outbox.Filter{{Error: "%%"}, {PartitionKey: "50%"}, {Error: "x.*"}, {MessageID: uuid.NewString()}, {Seqs: []int64{-1, math.MaxInt64}}, {After: math.MaxInt64}, {Until: time.Unix(0, 0)}, {From: time.Now().AddDate(1, 0, 0)}} {
		found, err := b.Find(t.Context(), f)
		require.NoError(t, err)
		require.Empty(t, found)
	}
	for want, f := range map[string]outbox.Filter{
		"is not the id of a message, which is a UUID": {MessageID: "x"},
		`the filter's message_type, "\xc3("`:          {Type: "\xc3("},
		`the filter's stream, "a\x00"`:                {Stream: "a\x00"},
		`"PENDING" is not a status`:                   {Statuses: []outbox.Status{"PENDING"}},
	} {
		_, err := b.Find(t.Context(), f)
		require.ErrorContains(t, err, want)
	}
}

// Each combination of statuses is answered in the order of seq, page by page.
func findByStatus(t *testing.T, b *bench) {
	m := b.worker("w1")
	for i := range 3 {
		give := given
		give.held = i == 1
		for _, o := range []outcome{published, failed(time.Hour), give, inHand} {
			b.inState(m, fmt.Sprintf("%s-%d", o.status, i), o)
		}
	}
	b.Insert("p", "q", "r")
	all := b.entries()
	require.Len(t, all, 15)
	for set := range 1 << 5 {
		var f outbox.Filter
		for i, s := range outbox.Statuses() {
			if set&(1<<i) != 0 {
				f.Statuses = append(f.Statuses, s)
			}
		}
		for _, held := range []bool{false, true} {
			f.Held = held
			var want []int64
			for _, e := range all {
				if (e.Held || !held) && (set == 0 || slices.Contains(f.Statuses, e.Status)) {
					want = append(want, e.Seq)
				}
			}
			require.Equal(t, want, b.pages(f, 2), "%v, held %v", f.Statuses, held)
		}
	}
}

// pages are the seqs of what is found, page by page.
func (b *bench) pages(f outbox.Filter, size int) (seqs []int64) {
	b.T.Helper()
	f.After, f.Limit = 0, size
	for {
		page, err := b.Find(b.T.Context(), f)
		require.NoError(b.T, err)
		for _, e := range page {
			seqs = append(seqs, e.Seq)
		}
		if len(page) < size {
			return seqs
		}
		f.After = page[len(page)-1].Seq
	}
}

func failedSayWhy(t *testing.T, b *bench) {
	rows := b.Insert("a", "b", "c", "d")
	first, third := failed(time.Hour), failed(time.Hour)
	first.err, third.err = "first", "third"
	b.worker("w1").settles(first, published, third)
	found, err := b.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Failed}})
	require.NoError(t, err)
	require.Len(t, found, 2)
	for i, row := range []outbox.Row{rows[0], rows[2]} {
		require.Equal(t, row.MessageID, found[i].MessageID)
		require.Equal(t, row.MessageType, found[i].MessageType)
		require.Equal(t, 1, found[i].Attempts)
		require.Equal(t, "transient", found[i].FailureClass)
		require.WithinDuration(t, *found[i].LastAttemptAt, found[i].CreatedAt, time.Minute)
	}
	require.Equal(t, []string{"first", "third"}, []string{found[0].LastError, found[1].LastError})
}

// A message is found with a row per target until its rows are removed; once all are
// published nothing is left to do for it.
func foundUntilRemoved(t *testing.T, b *bench) {
	row := outboxdbtest.Row("a")
	partner := row
	partner.ID, partner.TargetBroker = uuid.NewString(), "partner"
	b.InsertRows(row, partner)
	b.Insert("other")
	find := func() (targets []string, statuses []outbox.Status) {
		found, err := b.Find(t.Context(), outbox.Filter{MessageID: row.MessageID})
		require.NoError(t, err)
		for _, e := range found {
			targets, statuses = append(targets, e.TargetBroker), append(statuses, e.Status)
		}
		return targets, statuses
	}
	targets, statuses := find()
	require.Equal(t, []string{"default", "partner"}, targets)
	require.Equal(t, []outbox.Status{outbox.Pending, outbox.Pending}, statuses)

	m := b.worker("w1")
	require.Equal(t, row.MessageID, m.settles(published).rows[0].MessageID)
	_, statuses = find()
	require.Equal(t, []outbox.Status{outbox.Published, outbox.Pending}, statuses, "it is known, and done for one target")
	require.Equal(t, []string{"other"}, keys(m.claim(10)), "nothing of it is left to publish there")
	b.aged()
	purge(t, b.Bench, outbox.Retention{Published: time.Minute})
	targets, _ = find()
	require.Equal(t, []string{"partner"}, targets)
}

// A message is shown with all of its rows, and what each waits for.
func messageOf(t *testing.T, b *bench) {
	m := b.worker("w1")
	head := b.inState(m, "k", failed(time.Hour))
	row := outboxdbtest.Row("k")
	row.Payload = []byte{0, 0xff, '{'}
	partner := row
	partner.ID, partner.TargetBroker = uuid.NewString(), "partner"
	b.Insert("k")
	b.InsertRows(row, partner)
	found, err := b.Message(t.Context(), row.MessageID)
	require.NoError(t, err)
	require.Equal(t, row.MessageID, found.MessageID)
	require.WithinDuration(t, time.Now(), found.Now, time.Minute)
	require.Len(t, found.Rows, 2)
	require.Equal(t, row.Payload, found.Rows[0].Payload)
	require.EqualValues(t, 2, found.Rows[0].Before)
	require.Equal(t, head, found.Rows[0].Head.Seq)
	require.Equal(t, outbox.Failed, found.Rows[0].Head.Status)
	require.Equal(t, "partner", found.Rows[1].TargetBroker)
	require.Zero(t, found.Rows[1].Before)
	require.Nil(t, found.Rows[1].Head)

	other := b.inState(m, "other", inHand)
	of := func(seq int64) outbox.MessageRow {
		found, err := b.Message(t.Context(), b.entry(seq).MessageID)
		require.NoError(t, err)
		return found.Rows[0]
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
func owners(t *testing.T, b *bench) {
	all, err := b.Owners(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	lonely := outboxdbtest.Row("b")
	lonely.TargetBroker = "partner"
	b.InsertRows(lonely)
	few, full := b.join("w1", 3), b.worker("w2")
	b.inState(full, keyIn(full.Parts[0]), held)
	b.Insert(keyIn(full.Parts[0]))
	b.Exec("UPDATE outbox_messages SET created_at = " + past(b.Bench) + " WHERE seq = 2")
	at := func(target string, partition int) outbox.Owned {
		all, err := b.Owners(t.Context())
		require.NoError(t, err)
		require.Len(t, all, outboxdbtest.Partitions+1)
		i := slices.IndexFunc(all, func(o outbox.Owned) bool { return o.Target == target && o.Partition == partition })
		require.GreaterOrEqual(t, i, 0)
		return all[i]
	}
	free := at("default", few.Parts[0])
	require.Equal(t, outbox.Owned{Target: "default", Partition: few.Parts[0], Owner: new("w1"), Fence: int64(few.ID), Until: free.Until, Live: true}, free)
	require.WithinDuration(t, time.Now().Add(time.Minute), *free.Until, 50*time.Second)
	busy := at("default", full.Parts[0])
	require.Equal(t, "w2", *busy.Owner)
	require.EqualValues(t, 2, busy.Unfinished)
	require.EqualValues(t, 1, busy.Held)
	require.InDelta(t, 3600, *busy.OldestSeconds, 60)
	nobody := at("partner", lonely.Partition)
	require.Equal(t, outbox.Owned{Target: "partner", Partition: lonely.Partition, Unfinished: 1, OldestSeconds: nobody.OldestSeconds}, nobody)
	b.Expire()
	require.False(t, at("default", few.Parts[0]).Live)
}

// keyIn is a key of a partition.
func keyIn(partition int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key-", i); outbox.PartitionOf(key, outboxdbtest.Partitions) == partition {
			return key
		}
	}
}

func countPerTarget(t *testing.T, b *bench) {
	b.Insert("a", "b", "c")
	partner := outboxdbtest.Row("a")
	partner.TargetBroker = "partner"
	b.InsertRows(partner)
	o := failed(time.Hour)
	o.err = "the broker's words"
	b.worker("w1").settles(published, o)
	s := b.stats("default")
	require.Equal(t, map[outbox.Status]int64{"pending": 1, "processing": 0, "published": 1, "failed": 1, "abandoned": 0}, s.Counts)
	require.Equal(t, "the broker's words", *s.LastError)
	require.Equal(t, []string{"w1"}, s.LeaseOwners)
	require.Less(t, *s.OldestPending, time.Minute)
	s = b.stats("partner")
	require.EqualValues(t, 1, s.Counts[outbox.Pending])
	require.Empty(t, s.LeaseOwners)
	require.Nil(t, s.LastError)
}

// A target whose rows nobody publishes, or of whose partitions some have no owner, is
// seen from outside.
func nobodyPublishes(t *testing.T, b *bench) {
	b.Insert("a")
	lonely := outboxdbtest.Row("b")
	lonely.TargetBroker = "partner"
	b.InsertRows(lonely)
	m := b.join("w1", 3)
	require.Len(t, m.Parts, 3, "no more than its share")
	require.Equal(t, outboxdbtest.Partitions-3, b.poll(m).Free)
	require.Equal(t, []string{"w1"}, b.stats("default").LeaseOwners)
	require.Empty(t, b.stats("partner").LeaseOwners, "nobody ever came")
	require.EqualValues(t, 1, b.stats("partner").Counts[outbox.Pending])
	before := *b.stats("partner").OldestPending
	b.Exec("UPDATE outbox_messages SET created_at = " + past(b.Bench))
	require.Greater(t, *b.stats("partner").OldestPending, before+50*time.Minute, "its age grows")
	b.Expire()
	require.Empty(t, b.stats("default").LeaseOwners, "its only worker died")
	require.Greater(t, *b.stats("default").OldestPending, 50*time.Minute)
	require.False(t, b.stats("default").Bodiless)
	b.Exec("DELETE FROM outbox_messages")
	require.True(t, b.stats("default").Bodiless)
	require.Nil(t, b.stats("default").OldestPending)
}
