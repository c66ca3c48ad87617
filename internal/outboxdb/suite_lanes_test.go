package outboxdb_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/waittest"
	"github.com/waybill-go/waybill/outbox"
)

// What a lane chooses of a real database, seen by the calls that it makes.
func ofLanes(test suiteTest) {
	test("Claim_A17_TakesPendingAndFailedThatIsDue", claimTakesDue)            // S2-09, S2-36, C-22, C-28
	test("Claim_A18_A19_WhatIsInHandAndItsKeyAreLeft", keyInHand)              // S2-09, C-24, C-32, C-45, F-06
	test("Claim_A22_S3_10_OnlyItsTarget", onlyItsTarget)                       // C-11
	test("Claim_A24_C_23_RespectsLimitAndKeepsLeadingRuns", respectsLimit)     // S2-09
	test("Claim_S4_06_S4_09_OldestFirstAndPastBlockedHeads", pastBlockedHeads) // S2-09, C-29, C-31, U-06
	test("Claim_F_05_FailedHeadHoldsItsKeyAndNothingElse", failedHead)         // S2-34, S2-35, C-24, C-32, U-04
	test("Claim_S2_16_CarriesTheMessage", carriesTheMessage)                   //
	test("Claim_S2_41_ALongKeyHidesNoOther", longKey)                          // U-27
	test("Claim_A43_A63_PrioritiesFirst", prioritiesFirst)                     // A64
	test("Claim_A42_D6_NeverWithinAKey", neverWithinAKey)                      //
}

// calls is a broker whose calls a test answers.
type calls struct {
	broker.Broker

	made chan *call
}

type call struct {
	messages []broker.Message
	answer   chan error
}

func (c *calls) Publish(ctx context.Context, messages []broker.Message) error {
	made := &call{messages, make(chan error, 1)}
	select {
	case c.made <- made:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-made.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lane is a relay with one lane, whose broker is the test.
type lane struct {
	*calls

	t     *testing.T
	relay *relay.Relay
}

// lane starts a relay that has so many calls out at once, of so many rows.
func (b *bench) lane(t *testing.T, callsOut, rows int) *lane {
	t.Helper()
	l := &lane{&calls{memory.New(memory.Config{}), make(chan *call)}, t, nil}
	r, err := relay.New(relay.Config{
		Provider: "test", Store: b.Store, Lanes: []relay.Lane{{Target: "default", Broker: l}}, Logger: slog.New(slog.DiscardHandler),
		Outbox: outbox.Config{
			Calls: callsOut, BatchSize: rows, PollInterval: 20 * time.Millisecond, MaxPollInterval: 50 * time.Millisecond,
			Lease: 5 * time.Minute, PublishTimeout: 2 * time.Minute, Retry: outbox.RetryPolicy{MaxAttempts: 2, BaseDelay: time.Hour, MaxBackoff: time.Hour},
		},
	})
	require.NoError(t, err)
	l.relay = r
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- r.Stop(ctx) }()
		for {
			select {
			case c := <-l.made:
				c.answer <- nil
			case err := <-ended:
				require.NoError(t, err)
				return
			}
		}
	})
	return l
}

// next is the next call.
func (l *lane) next() *call {
	l.t.Helper()
	select {
	case c := <-l.made:
		return c
	case <-time.After(2 * time.Minute):
		l.t.Fatal("no call is made")
		return nil
	}
}

func (c *call) keys() (keys []string) {
	for _, m := range c.messages {
		keys = append(keys, m.Key)
	}
	return keys
}

// publishes answers calls until rows of these keys have left, and returns the keys of
// all that did in their order.
func (l *lane) publishes(n int) (keys []string) {
	l.t.Helper()
	for len(keys) < n {
		c := l.next()
		keys = append(keys, c.keys()...)
		c.answer <- nil
	}
	return keys
}

// refused answers a call: rows of these keys failed, the rest was stored.
func (c *call) refuse(class broker.Class, keys ...string) {
	failed := map[int]error{}
	for i, m := range c.messages {
		if slices.Contains(keys, m.Key) {
			failed[i] = &broker.Error{Of: class, In: broker.ScopeRow, Err: errors.New("no")}
		}
	}
	if len(failed) == 0 {
		c.answer <- nil
		return
	}
	c.answer <- &broker.PublishError{Failed: failed}
}

func claimTakesDue(t *testing.T, b *bench) {
	b.Insert("a", "b", "c")
	l := b.lane(t, 1, 10)
	var seen []string
	for len(seen) < 3 { // a lane that doesn't have all of its partitions yet may take them one by one
		c := l.next()
		seen = append(seen, c.keys()...)
		c.refuse(broker.Transient, "a", "b")
	}
	require.ElementsMatch(t, []string{"a", "b", "c"}, seen)
	waittest.Until(t, func() bool {
		return slices.Equal([]outbox.Status{outbox.Failed, outbox.Failed, outbox.Published}, b.statuses())
	})
	b.Insert("d")
	require.Equal(t, []string{"d"}, l.publishes(1), "what isn't due isn't claimed")
	b.Exec("UPDATE outbox_queue SET due_at = " + past(b.Bench) + " WHERE seq = 2")
	c := l.next()
	require.Equal(t, []string{"b"}, c.keys(), "what is, is")
	require.Equal(t, outbox.Processing, b.entry(2).Status)
	c.answer <- nil
	b.Insert("e")
	require.Equal(t, []string{"e"}, l.publishes(1), "once")
	waittest.Until(t, func() bool { return b.entry(2).Attempts == 2 && b.entry(2).Status == outbox.Published })
}

func keyInHand(t *testing.T, b *bench) {
	b.Insert("a")
	l := b.lane(t, 2, 10)
	first := l.next()
	require.Equal(t, []string{"a"}, first.keys())
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, l.publishes(1), "a has an unsettled call")
	b.Insert("c")
	require.Equal(t, []string{"c"}, l.publishes(1))
	first.answer <- nil
	require.Equal(t, []string{"a"}, l.publishes(1))
}

func onlyItsTarget(t *testing.T, b *bench) {
	mine, other := outboxdbtest.Row("a"), outboxdbtest.Row("b")
	other.TargetBroker = "partner"
	b.InsertRows(other, mine)
	l := b.lane(t, 4, 10)
	require.Equal(t, []string{"a"}, l.publishes(1))
	b.Insert("c")
	require.Equal(t, []string{"c"}, l.publishes(1))
	require.Equal(t, outbox.Pending, b.entry(1).Status)
}

func respectsLimit(t *testing.T, b *bench) {
	for limit, want := range map[int][]int{5: {5, 1}, 6: {6}, 7: {6}} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			l := b.lane(t, 1, limit) // stops with the test
			// A lane that has some of its partitions sends their rows without the others'.
			waittest.Until(t, func() bool { return l.relay.Status()["default"].Partitions == outboxdbtest.Partitions })
			b.Insert("a", "b", "a", "a", "b", "c")
			for _, n := range want {
				c := l.next()
				require.Len(t, c.messages, n)
				c.answer <- nil
			}
		})
	}
}

func pastBlockedHeads(t *testing.T, b *bench) {
	b.Insert("bad")
	l := b.lane(t, 1, 10)
	l.next().refuse(broker.Transient, "bad")
	b.Insert(slices.Repeat([]string{"bad"}, 450)...)
	b.Insert("x", "y", "x")
	require.Equal(t, []string{"x", "y", "x"}, l.publishes(3), "450 rows behind a failed head hide nothing")
	old := outboxdbtest.Numbered("k", 40) // of all partitions
	b.Insert(old...)
	require.Equal(t, old, l.publishes(40), "the oldest first")
}

func failedHead(t *testing.T, b *bench) {
	l := b.lane(t, 1, 10)
	waittest.Until(t, func() bool { return l.relay.Status()["default"].Partitions == outboxdbtest.Partitions })
	rows := b.Insert("a", "b", "a")
	c := l.next()
	require.Len(t, c.messages, 3)
	no := &broker.Error{Of: broker.Transient, In: broker.ScopeRow, Err: errors.New("no")}
	behind := &broker.Error{Of: broker.Unavailable, In: broker.ScopeRow, Err: errors.New("one before it failed")}
	failed := map[int]error{}
	for i, m := range c.messages {
		switch m.ID {
		case rows[0].MessageID:
			failed[i] = no
		case rows[2].MessageID:
			failed[i] = behind
		}
	}
	c.answer <- &broker.PublishError{Failed: failed}
	b.Insert("a", "b")
	require.Equal(t, []string{"b"}, l.publishes(1))
	require.Zero(t, b.entry(3).Attempts)
	require.Equal(t, 1, b.do(outbox.VerbRetry, 1))
	var order []string
	for len(order) < 3 {
		c := l.next()
		for _, m := range c.messages {
			order = append(order, m.ID)
		}
		c.answer <- nil
	}
	require.Equal(t, []string{rows[0].MessageID, rows[2].MessageID, b.entry(4).MessageID}, order)
}

func carriesTheMessage(t *testing.T, b *bench) {
	row := outboxdbtest.Row("a")
	row.Payload = []byte("{\"data\":\"\\u0000 'quoted' \\\\ ü\"}")
	row.TenantID, row.Traceparent, row.CausationID = "acme", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", outboxdbtest.Row("").ID
	other := outboxdbtest.Row("b")
	other.Topic, other.CorrelationID = "elsewhere", ""
	other.CloudEvent = `{"id":"1","subject":"ü \"x\""}`
	b.InsertRows(row, other)
	got := map[string]broker.Message{}
	l := b.lane(t, 1, 10)
	for len(got) < 2 {
		c := l.next()
		for _, m := range c.messages {
			for header := range m.Headers {
				if len(header) > 8 && header[:8] == "waybill-" {
					delete(m.Headers, header) // what its sender promises
				}
			}
			got[m.Key] = m
		}
		c.answer <- nil
	}
	require.Equal(t, broker.Message{
		ID: row.MessageID, Topic: "ordering.order", Key: "a", Body: row.Payload,
		Headers: map[string]string{
			"id": row.MessageID, "type": "Ordering.OrderPlaced.v1", "time": "2026-01-02T03:04:05.678000Z", "content-type": "application/json",
			"correlation-id": "c-a", "tenant-id": "acme", "traceparent": row.Traceparent,
		},
	}, got["a"])
	require.Equal(t, "elsewhere", got["b"].Topic)
	require.Equal(t, map[string]string{"id": "1", "subject": `ü "x"`}, got["b"].CloudEvent)
	require.NotContains(t, got["b"].Headers, "tenant-id")
	require.NotContains(t, got["b"].Headers, "correlation-id")
}

// With one call out the next has what other keys have, however much the first key has
// in front of them.
func longKey(t *testing.T, b *bench) {
	b.Insert(slices.Repeat([]string{"long"}, 900)...)
	short := outboxdbtest.Numbered("short", 100)
	b.Insert(short...)
	l := b.lane(t, 2, 150)
	first, other := l.next(), l.next() // both are out, and either may reach the broker first
	if first.messages[0].Key != "long" {
		first, other = other, first
	}
	require.Equal(t, "long", first.messages[0].Key, "the oldest is among the first")
	keys := append(first.keys(), other.keys()...)
	other.answer <- nil
	if len(slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == "long" })) < len(short) {
		c := l.next()
		keys = append(keys, c.keys()...)
		c.answer <- nil
	}
	require.ElementsMatch(t, short, slices.DeleteFunc(keys, func(k string) bool { return k == "long" }))
	first.answer <- nil
	c := l.next()
	require.Equal(t, []string{"long"}, slices.Compact(c.keys()), "the long one goes on")
	c.answer <- nil
}

// insertWith stores one row of a key with a priority.
func (b *bench) insertWith(key string, priority int) {
	b.T.Helper()
	row := outboxdbtest.Row(key)
	row.Priority = priority
	b.InsertRows(row)
}

// Above 0 goes before what has no priority, that before what is below 0, and what has
// the same sign goes by age; now and then the oldest of all goes, so that none starves.
func prioritiesFirst(t *testing.T, b *bench) {
	l := b.lane(t, 1, 1)
	// All rows come at once to a lane that has all partitions: of those that it hasn't taken yet it
	// knows nothing.
	waittest.Until(t, func() bool { return l.relay.Status()["default"].Partitions == outboxdbtest.Partitions })
	var rows []outbox.Row
	for i, priority := range []int{-100, 0, 7, 0, 7, -100, 100} {
		row := outboxdbtest.Row([]string{"bulk", "a", "high", "b", "higher", "bulk too", "urgent"}[i])
		row.Priority = priority
		rows = append(rows, row)
	}
	b.InsertRows(rows...)
	order := l.publishes(7)
	at := func(key string) int { return slices.Index(order, key) }
	for _, first := range []string{"high", "higher", "urgent"} {
		require.Less(t, at(first), 4, "%v", order)
		require.Less(t, at(first), at("b"), "%v", order)
		require.Less(t, at(first), at("bulk too"), "%v", order)
	}
	require.Less(t, at("high"), at("higher"), "%v", order)
	require.Less(t, at("higher"), at("urgent"), "%v", order)
	require.Less(t, at("b"), at("bulk too"), "%v", order)
	require.LessOrEqual(t, at("bulk"), 4, "the oldest of all doesn't starve: %v", order)
}

// What is before an urgent row in its key goes along, and before it; what is behind it
// waits for its own turn. A head that waits holds an urgent row as any other.
func neverWithinAKey(t *testing.T, b *bench) {
	var want []string
	for _, priority := range []int{0, -100, 100, 0} {
		b.insertWith("k", priority)
	}
	for seq := range int64(4) {
		want = append(want, b.entry(seq+1).MessageID)
	}
	l := b.lane(t, 4, 3)
	var order []string
	for len(order) < 4 {
		c := l.next()
		for _, m := range c.messages {
			order = append(order, m.ID)
		}
		c.answer <- nil
	}
	require.Equal(t, want, order)
	b.insertWith("bad", 0)
	l.next().refuse(broker.Transient, "bad")
	b.insertWith("bad", 100)
	for i := range 3 {
		key := fmt.Sprint("other-", i)
		b.Insert(key)
		require.Equal(t, []string{key}, l.publishes(1))
	}
}
