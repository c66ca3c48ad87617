package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
	"github.com/waybill-go/waybill/internal/netfault"
)

// createEffects makes what the subscription effects writes and reads.
func (w *world) createEffects() {
	w.t.Helper()
	_, err := w.db.Exec("CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, account text, number bigint); CREATE TABLE mended (at timestamptz)")
	require.NoError(w.t, err)
}

func consuming(c *nodeConfig) { c.Consume = true }

// say changes one account, with a note.
func (w *world) say(i int, note string) {
	w.t.Helper()
	require.NoError(w.t, w.units.Do(w.t.Context(), func(ctx context.Context) error { return w.update(ctx, i, note) }))
}

// mend ends the poison, and asks for what is parked.
func (w *world) mend() {
	w.t.Helper()
	_, err := w.db.Exec("INSERT INTO mended VALUES (now()); UPDATE dead_letters SET status = 'replay', replays = replays + 1 WHERE status = 'parked'")
	require.NoError(w.t, err)
}

// inOrder requires that every event of every account has taken effect, once and in
// turn.
func (w *world) inOrder() {
	w.t.Helper()
	require.Empty(w.t, w.strings(`SELECT format('%s: %s effects, up to %s, of %s', d.id, count(e.number), max(e.number), d.state ->> 'Moves')
		FROM documents d LEFT JOIN effects e ON e.account = d.id GROUP BY d.id, d.state ->> 'Moves'
		HAVING count(e.number) <> (d.state ->> 'Moves')::bigint OR count(DISTINCT e.number) <> count(e.number) OR max(e.number) <> count(e.number)`))
	require.Empty(w.t, w.strings(`SELECT format('%s: %s after %s', account, number, before) FROM (
		SELECT account, number, COALESCE(lag(number) OVER (PARTITION BY account ORDER BY n), 0) AS before FROM effects) e WHERE number <> before + 1`))
}

// S2-17, S2-18, S4-22, A74, F-67, F-68, F-70, C-71, C-72: members of a group come
// and go, two are killed with -9, one message in twenty is delivered again, and one
// key is poisoned. Every event takes effect once, in the order of its key; the
// poisoned key waits, parked, until it is mended, and no other waits for it.
func TestConsumers_S2_18_A74_EachEffectOnceInOrder(t *testing.T) {
	t.Parallel()
	keys, rounds := 200, 40
	if long() {
		keys, rounds = 1000, 100
	}
	w := newWorld(t, keys)
	w.createEffects()
	again := func(c *nodeConfig) { c.Redelivered = 0.05 }
	member := func() *process { return w.engine(consuming, again) }
	a, b := member(), member()
	const poisoned = 7
	for round := range rounds {
		switch round {
		case rounds / 4:
			w.say(poisoned, poison)
		case rounds * 3 / 8:
			w.kill(a)
			a = member()
		case rounds / 2:
			b.terminate()
			b = member()
		case rounds * 5 / 8:
			member()
		case rounds * 3 / 4:
			w.kill(b)
			member()
		}
		w.move(keys, 1)
	}
	w.drain()
	events := w.count("outbox WHERE target_broker = 'default'")
	eventually(t, func() bool {
		return w.count("effects WHERE account <> $1", chaos.AccountID(poisoned))+w.count("inbox WHERE message_id IN (SELECT message_id::text FROM outbox WHERE partition_key = $1)", chaos.AccountID(poisoned)) == events
	}, "all keys but one are done")
	before := w.count("effects WHERE account = $1", chaos.AccountID(poisoned))
	require.Less(t, before, rounds)
	require.Equal(t, []string{"failed 1", fmt.Sprintf("held %d", rounds+2-before-1)}, w.strings("SELECT format('%s %s', reason, count(*)) FROM dead_letters GROUP BY reason ORDER BY reason"))
	require.Equal(t, []string{"4"}, w.strings("SELECT attempts::text FROM dead_letters WHERE reason = 'failed'"))

	w.mend()
	eventually(t, func() bool { return w.count("effects") == events }, "the poisoned key follows")
	w.inOrder()
	require.Equal(t, events, w.count("inbox"))
	require.Zero(t, w.count("dead_letters WHERE status <> 'replayed'"))
	require.Zero(t, w.count("inbox_attempts"))
	duplicates := 0
	for _, p := range w.nodes {
		if p.State() == nil {
			p.terminate()
		}
		for _, line := range p.Output() {
			var handled, n int
			if _, err := fmt.Sscanf(line, "effects: %d handled, %d duplicates", &handled, &n); err == nil {
				duplicates += n
			}
		}
	}
	t.Logf("%d events, %d duplicates absorbed", events, duplicates)
	require.Greater(t, duplicates, events/50)
	w.check()
}

// F-72: a message that kills its process is known of before it is handled, and is
// parked after its attempts; whatever was handled beside it is not.
func TestConsumers_F_72_WhatKillsTheProcessIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 30)
	w.createEffects()
	e := w.engine(consuming)
	w.move(30, 5)
	w.say(3, deadly)
	w.move(30, 5)
	for deaths := 0; w.count("dead_letters WHERE status = 'parked'") == 0; {
		require.Less(t, deaths, 6)
		select {
		case <-e.Ended():
			deaths++
			w.died(e)
			e = w.node(consuming)
		case <-time.After(tick):
		}
	}
	events := w.count("outbox") - w.count("dead_letters")
	w.drain()
	eventually(t, func() bool {
		return w.count("effects")+w.count("dead_letters") >= events && w.count("effects WHERE account <> $1", chaos.AccountID(3)) == 29*11
	}, "the others are done")
	require.Equal(t, []string{"crashed"}, w.strings("SELECT reason FROM dead_letters WHERE status = 'parked'"))
	w.mend()
	eventually(t, func() bool { return w.count("effects") == w.count("outbox") }, "the key follows")
	w.inOrder()
	e.terminate()
}

// B12: a process that is stopped in the middle of a replay, and goes on when another has
// taken that over, blames nobody: the message has its effect once, and is not parked.
func TestConsumers_B12_AStoppedReplayIsTakenOverAndNotBlamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.createEffects()
	first := w.engine(consuming)
	w.say(0, poison)
	w.say(0, takes+"5s")
	w.drain()
	eventually(t, func() bool { return w.count("dead_letters WHERE status = 'held'") == 1 }, "one is parked, with the slow one behind it")
	w.mend()
	slow := "slow " + chaos.AccountID(0)
	eventually(t, func() bool { return first.Said(slow) == 1 }, "the slow one is handled")
	w.pause(first)
	second := w.engine(consuming)
	eventually(t, func() bool { return second.Said(slow) == 1 }, "another takes it over")
	w.resume(first)
	eventually(t, func() bool { return w.count("dead_letters WHERE status <> 'replayed'") == 0 }, "it is handled")
	w.inOrder()
	require.Zero(t, w.count("dead_letters WHERE reason = 'crashed'"))
	first.terminate()
	second.terminate()
}

// F-73, F-74, A78: a handler that takes longer than the group's session, while
// members come and go, keeps its message, and delays no other key.
func TestConsumers_F_73_SlowHandlerKeepsItsPartition(t *testing.T) {
	t.Parallel()
	slow := 25 * time.Second
	if long() {
		slow = time.Minute
	}
	w := newWorld(t, 30)
	w.createEffects()
	e := w.engine(consuming)
	file := filepath.Join(t.TempDir(), "done")
	w.say(5, takes+slow.String()+andUntil+file)
	e.until("slow "+chaos.AccountID(5), 1)
	w.move(30, 10)
	eventually(t, func() bool { return w.count("effects WHERE account <> $1", chaos.AccountID(5)) == 29*11 }, "the others are done")
	require.Zero(t, w.count("effects WHERE account = $1 AND number > 1", chaos.AccountID(5)), "before it")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	eventually(t, func() bool { return w.count("effects") == 30*11+1 }, "it is done, and its key goes on")
	require.Equal(t, 1, strings.Count(strings.Join(e.Output(), "\n"), "slow "), "it was handled once")
	w.inOrder()
}

// B3: a service that only consumes is unhealthy within 10 s of Kafka's end, or silence, and
// says why; when Kafka is back it goes on by itself.
func TestConsumers_B3_WithoutKafkaSayWhyWithinTenSeconds(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*netfault.Relay){"refused": (*netfault.Relay).Cut, "silent": (*netfault.Relay).Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kafka := environment(t, "WAYBILL_KAFKA")
			w := newWorldOn(t, kafka, 5, 1<<20)
			w.createEffects()
			x, err := netfault.New(t.Context(), kafka)
			require.NoError(t, err)
			t.Cleanup(x.Close)
			p := w.node(consuming, func(c *nodeConfig) { c.Serve, c.Detour = true, x.Address })
			p.until("running", 1)
			eventually(t, func() bool { return len(p.health()) == 0 }, "it is well")

			cut(x)
			begin := time.Now()
			w.report("subscription_cut_off", "effects", p)
			require.Less(t, time.Since(begin), 10*time.Second)

			x.Mend()
			eventually(t, func() bool { return len(p.health()) == 0 }, "it goes on")
			p.terminate()
		})
	}
}
