package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func topicAway(topic int64, err error) func(QueueRow, []QueueRow) error {
	return func(row QueueRow, _ []QueueRow) error {
		if row.Topic == topic {
			return err
		}
		return nil
	}
}

// O1: whatever a topic or the broker can't, no row pays for it, however long it
// takes; others go on, and it all goes when the topic is back. Without "only a
// row's own failure pays" (PAYALL, PAYTOPIC of model/breaker.pml) this falls.
func TestBreakers_OnlyARowsOwnFailurePays(t *testing.T) {
	for name, err := range map[string]error{"leader": errLeader, "refused connections": errRefuses, "silence": errSilent} {
		t.Run(name, func(t *testing.T) {
			p := newPump(1, append(queue(1, 1000, 1), queue(2001, 100, 2)...)...)
			p.answer = topicAway(1, err)
			p.until(300, func() bool { return false })
			require.Equal(t, 1000, p.of(1))
			require.Zero(t, p.of(2), "the other topic's rows have gone")
			require.Empty(t, p.abandoned)
			require.Empty(t, p.paid, "nothing was written")
			require.Equal(t, []int64{1}, p.b.open())
			require.Less(t, p.calls, 90, "one probe in some 8 s")

			p.answer = topicAway(0, nil)
			calls := p.calls
			require.True(t, p.until(100, func() bool { return p.of(1) == 0 }))
			require.Less(t, p.calls-calls, 30, "and in calls of many")
			require.Empty(t, p.b.open())
			require.Equal(t, change{1, false}, p.changes[len(p.changes)-1])
		})
	}
}

// O1: a part of a topic is away, such as a partition without a leader: its rows
// wait without paying, the topic's others go on.
func TestBreakers_APartOfATopicThatIsAwayWaits(t *testing.T) {
	p := newPump(1, queue(1, 1000, 1)...)
	p.answer = func(row QueueRow, _ []QueueRow) error {
		if row.Seq%10 == 0 {
			return errLeader
		}
		return nil
	}
	require.True(t, p.until(50, func() bool { return len(p.rows) == 100 }))
	for _, attempts := range p.paid {
		require.Zero(t, attempts)
	}
	p.until(50, func() bool { return false })
	p.answer = topicAway(0, nil)
	require.True(t, p.until(60, func() bool { return len(p.rows) == 0 }))
	require.Empty(t, p.abandoned)
}

// O2: after a restart in the outage of one topic, its 5,000 rows in front keep no
// other topic waiting: the first probes go past them.
func TestBreakers_ADeadTopicInFrontStarvesNoOther(t *testing.T) {
	p := newPump(4, append(queue(1, 5000, 1), queue(6001, 200, 2)...)...)
	for _, err := range []error{errSilent, errLeader} {
		p.answer = topicAway(1, err)
		p.restart()
		p.calls = 0
		require.True(t, p.until(20, func() bool { return p.of(2) == 0 }), "%v, %d calls", err, p.calls)
		require.Less(t, p.calls, 16)
		p.add(queue(7001, 200, 2)...)
	}
}

// O3: a dead topic's backlog is read once; what comes meanwhile costs what it is.
func TestBreakers_ADeadTopicIsNotWalkedAgain(t *testing.T) {
	p := newPump(1, queue(1, 20000, 1)...)
	p.answer = topicAway(1, errLeader)
	require.True(t, p.until(20, func() bool { p.look(); return p.t.parts[0].low >= 20000 }))
	p.read = 0
	for i := range int64(100) {
		p.add(queue(30001+100*i, 10, 2)...)
		require.True(t, p.until(10, func() bool { return p.of(2) == 0 }))
	}
	require.Equal(t, 1000, p.read)
	require.LessOrEqual(t, p.t.listed, p.t.bounds.sample+500, "some stay listed, to probe with")

	p.answer = topicAway(0, nil)
	ok := p.until(200, func() bool { return len(p.rows) == 0 })
	require.True(t, ok, "left %d listed %d low %+v dead %v open %v calls %d", len(p.rows), p.t.listed, p.t.parts[0], p.t.dead, p.b.open(), p.calls)
}

// After an outage 10,000 rows that were in silent calls leave in some 80: sizes
// of 128 first, not alone at once. ALONEATONCE falls here.
func TestBreakers_ABacklogOfSilentCallsLeavesInFewCalls(t *testing.T) {
	p := newPump(1, queue(1, 10000, 1)...)
	p.answer = topicAway(1, errSilent)
	var out []*choice
	for range 20 {
		c := p.choose()
		require.Len(t, c.rows, 500)
		out = append(out, c)
	}
	for _, c := range out {
		p.end(c)
	}
	require.Equal(t, 10000, p.t.suspected())
	p.until(100, func() bool { return false }) // a long one
	p.answer = topicAway(0, nil)
	p.calls = 0
	require.True(t, p.until(400, func() bool { return len(p.rows) == 0 }))
	require.LessOrEqual(t, p.calls, 10000/128+4)
	require.Empty(t, p.paid)
	again := queue(1, 500, 1)
	for i := range again {
		again[i].Seq += 10000
	}
	p.add(again...)
	require.Len(t, p.choose().rows, 500, "who was answered is above suspicion")
	require.Zero(t, p.t.suspected())
}

// Poison silences whatever call it is in. It is found, pays and is abandoned;
// no neighbour pays. NOBODY and TOGETHER fall here.
func TestBreakers_PoisonIsFoundAndNobodyElsePays(t *testing.T) {
	poison := map[int64]bool{100: true, 101: true}
	p := newPump(1, queue(1, 300, 1)...)
	p.answer = func(_ QueueRow, with []QueueRow) error {
		for _, row := range with {
			if poison[row.Seq] {
				return errSilent
			}
		}
		return nil
	}
	next := int64(1000)
	gone := p.until(3000, func() bool {
		next++
		p.now = p.now.Add(time.Second)
		p.add(queue(next, 1, 1)...) // a healthy neighbour, now and then
		return len(p.abandoned) == 2
	})
	require.True(t, gone, "paid %v", p.paid)
	for seq := range p.paid {
		require.True(t, poison[seq], "%d has paid", seq)
	}
	for _, a := range p.abandoned {
		require.Equal(t, 5, a.Attempts)
		require.True(t, a.MaybeDelivered)
	}
}

// A call that a short outage cut times out after it, when others of its topic were
// answered already: its row doesn't pay. KNOWNLATE falls here.
func TestBreakers_WhatAnOutageCutDoesNotPay(t *testing.T) {
	p := newPump(1, queue(1, 2, 1)...)
	p.b.keys[1<<20+1] = silence{last: 1, count: mostSilent}
	p.answer = topicAway(0, nil)
	p.look()
	cut := p.t.choose(p.now, limits{rows: 1, bytes: 1})
	for cut.count != mostSilent {
		p.end(cut)
		cut = p.t.choose(p.now, limits{rows: 1, bytes: 1})
	}
	p.b.quiet(p.now, &choice{}, 1, nil, false) // another call of the topic was cut, too
	p.add(queue(3, 1, 1)...)
	require.True(t, p.until(20, func() bool { return len(p.rows) == 1 }), "a probe is answered")
	p.answer = topicAway(1, errSilent)
	p.end(cut)
	require.Empty(t, p.paid)

	p.answer = func(row QueueRow, _ []QueueRow) error {
		if row.Key == 1<<20+1 {
			return errSilent
		}
		return nil
	}
	p.add(queue(4, 1, 1)...)
	require.True(t, p.until(200, func() bool { return len(p.paid) == 1 }), "later, with the topic known to answer, it does")
	require.Equal(t, map[int64]int{1: 1}, p.paid)
}

// However many rows the key has that is probed, one is sent.
func TestBreakers_T2_AnOutageIsProbedWithOneRow(t *testing.T) {
	rows := queue(1, 20, 1)
	for i := range rows {
		rows[i].Key = rows[0].Key
	}
	p := newPump(1, rows...)
	p.answer = func(QueueRow, []QueueRow) error { return errSilent }
	probes := 0
	p.until(200, func() bool {
		if c := p.choose(); c != nil {
			if c.probe {
				probes++
				require.Len(t, c.rows, 1)
			}
			p.end(c)
		}
		return probes == 3
	})
}

// T2, SAMEPROBE, NOTOPIC: an open lane probes one row at a time: of the topic, and in it of
// the key, whose last silent call is longest ago.
func TestBreakers_ProbesGoByTheLongestSilence(t *testing.T) {
	p := newPump(1, append(append(queue(1, 3, 1), queue(11, 3, 2)...), queue(21, 1, 3)...)...)
	p.answer = func(QueueRow, []QueueRow) error { return errSilent }
	var probed []int64
	p.until(200, func() bool {
		if c := p.choose(); c != nil {
			if c.probe {
				require.Len(t, c.rows, 1)
				probed = append(probed, c.rows[0].Seq)
			}
			p.end(c)
		}
		return len(probed) == 9
	})
	require.Equal(t, []int64{1, 11, 21, 2, 12, 21, 3, 13, 21}, probed)
	require.Equal(t, 1, p.b.silentCalls(1<<20+1), "probes don't count, however long it takes [PROBESCOUNT]")
	require.True(t, p.b.lane.open())
	require.Equal(t, breakerMost, p.b.lane.wait)
}

// T2: an open breaker lets one call through at a time, and waits 8 s at most.
func TestBreaker_WaitsLongerEachTimeAndOneIsOut(t *testing.T) {
	now := time.Unix(1000, 0)
	b := breaker{}
	require.Equal(t, "closed", b.state(now))
	down := time.Duration(0)
	for wait := 250 * time.Millisecond; down < time.Minute; wait = min(wait*3/2, 8*time.Second) {
		require.LessOrEqual(t, wait, max(time.Second, down), "who comes back after seconds is found soon")
		down += wait
		b.trip(now, 0.5)
		require.Equal(t, "open", b.state(now))
		require.False(t, b.may(now.Add(wait-1)))
		now = now.Add(wait)
		require.True(t, b.may(now))
		require.Equal(t, "half-open", b.state(now))
		b.out = true
		require.False(t, b.may(now))
	}
	require.Equal(t, 8*time.Second, b.wait)
	require.Equal(t, time.Unix(1000, 0), b.since)
	b.trip(now, 0)
	require.Equal(t, now.Add(6*time.Second), b.until, "jitter of a quarter")
}
