package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Scenario memory starts this program, which is the tests here.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == aloneArg {
		main()
		return
	}
	m.Run()
}

// What has a size or a time, with little of it. Each verifies what it did.
func TestScenarios(t *testing.T) {
	w, err := open(t.Context(), t.Output())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close(context.WithoutCancel(t.Context()))) })

	w.consumed = 4000
	d := drainage{events: 3000, keys: 50}
	deleted, once, history, watched := d, d, d, d
	once.exact = true
	deleted.delete = true
	history.history = 5000
	watched.snapshot = time.Minute
	rate := []string{"rate"}
	for _, c := range []struct {
		name    string
		do      work
		metrics []string
	}{
		{"save by hand", saveByHand(2, time.Second)(first), rate},
		{"save by hand, new tables", saveByHand(2, time.Second)(second), rate},
		{"latency by hand", latencyByHand(100, time.Second)(first), percentiles},
		{"latency by hand, new tables", latencyByHand(100, time.Second)(second), percentiles},
		{"drain", d.waybill, drainMetrics},
		{"drain by hand", d.byHand(first), drainMetrics},
		{"drain by hand, new tables", d.byHand(second), drainMetrics},
		{"drain by watermill", d.watermill, rate},
		{"drain by river", d.river, rate},
		{"drain-delete", deleted.waybill, drainMetrics},
		{"drain-delete by hand", deleted.byHand(first), drainMetrics},
		{"drain-delete by hand, new tables", deleted.byHand(second), drainMetrics},
		{"drain-once", once.waybill, drainMetrics},
		{"drain-history", history.waybill, drainMetrics},
		{"drain-snapshot", watched.waybill, drainMetrics},
		{"calls", numbers(d, func(d drainage) work { return d.waybill }), numberMetrics},
		{"calls by hand", numbers(d, func(d drainage) work { return d.byHand(second) }), numberMetrics},
		{"steady", steady(time.Second), steadyMetrics},
		{"steady without an engine", unattended(time.Second), steadyMetrics[:1]},
		{"rtt", far(d, roundTrip, time.Second), farMetrics},
		{"outage", outage(2*time.Second, true), outageMetrics},
		{"outage without one", outage(time.Second, false), outageMetrics[:2]},
		{"overload", overload(time.Second), overloadMetrics},
		{"afteroutage", afterOutage(true), afterOutageMetrics},
		{"afteroutage without one", afterOutage(false), afterOutageMetrics},
		{"wal", walOf(500), walMetrics},
		{"wal by hand", walByHand(500)(first), walMetrics[:4]},
		{"wal by hand, new tables", walByHand(500)(second), walMetrics[:4]},
		{"timer", setAndStop(time.Second), rate},
		{"command", send(time.Second), rate},
		{"step", step, rate},
		{"rebuild", rebuild(5000), rate},
		{"rebuild by hand", rebuildByHand(5000), rate},
		{"save-timers", inOffice(1000, save(2, time.Second)), rate},
		{"save-history", saveKept(true, time.Second), keptMetrics},
		{"drain-timers", inOffice(1000, d.waybill), drainMetrics},
		{"memory", memory(d.events, time.Second), memoryMetrics},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.do(t.Context(), w)
			require.NoError(t, err)
			require.Len(t, got, len(c.metrics))
			for _, metric := range c.metrics {
				require.Contains(t, got, metric)
			}
			require.Positive(t, got[c.metrics[0]])
		})
	}
}

// Each condition can be made and measured, at the smallest.
func TestConditions(t *testing.T) {
	w, err := open(t.Context(), t.Output())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close(context.WithoutCancel(t.Context()))) })
	m := measuring{live: time.Second, idle: time.Second, drained: 500}
	for _, c := range conditions(0.001) {
		t.Run(c.name, func(t *testing.T) {
			got, err := m.run(t.Context(), w, c)
			require.NoError(t, err)
			require.Positive(t, got.of["rows/s"])
			require.Positive(t, got.of["first ms"])
			require.Equal(t, !c.drains, got.of["live p50 ms"] > 0)
		})
	}
}

// What isn't within twice of an empty table's is named, but for what is too small to
// mean anything.
func TestEnvelopeIsWithinTwice(t *testing.T) {
	var table bytes.Buffer
	empty := looks{name: "empty", of: map[string]float64{"first ms": 1, "live p50 ms": 0.1, "rows/s": 100, "server µs/row": 10}}
	near := looks{name: "near", of: map[string]float64{"first ms": 50, "live p50 ms": 1.9, "rows/s": 51, "server µs/row": 19}}
	require.NoError(t, printEnvelope(&table, []looks{empty, near}))
	require.Contains(t, table.String(), "51.0 (1.96)")
	far := looks{name: "far", of: map[string]float64{"live p50 ms": 2.1, "rows/s": 40}}
	err := printEnvelope(&table, []looks{empty, near, far})
	require.EqualError(t, err, "more than twice what it is on empty tables:\n  far, live p50 ms: 2.1 times\n  far, rows/s: 2.5 times")
}

// Retention takes its figures from the server, by the texts of what it finds there. There is so much to remove
// that it takes longer than the warm-up.
func TestRetention(t *testing.T) {
	w, err := open(t.Context(), t.Output())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close(context.WithoutCancel(t.Context()))) })

	with, without := purges(100_000, 2*warmUp+time.Second)
	got, err := with(t.Context(), w)
	require.NoError(t, err)
	require.Len(t, got, len(purgeMetrics))
	for _, metric := range purgeMetrics[:6] {
		require.Positive(t, got[metric], metric)
	}
	got, err = without(t.Context(), w)
	require.NoError(t, err)
	require.Len(t, got, len(purgeMetrics))
	for _, metric := range purgeMetrics {
		require.Contains(t, got, metric)
	}
	require.Positive(t, got["worker max"])
	require.Zero(t, got["purge max"])
}

// Units of work are left out, and so is the bench itself. A transaction is of the
// purge if any of its statements was seen to be.
func TestSample(t *testing.T) {
	w, err := open(t.Context(), t.Output())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close(context.WithoutCancel(t.Context()))) })
	all := [][]string{
		{"SELECT pg_sleep(0.3)"},
		{"SELECT pg_sleep(0.3) -- INSERT INTO outbox_log"},
		{"SELECT pg_sleep(0.3) -- DELETE FROM outbox_log WHERE id"},
		{"BEGIN", "SELECT set_config('statement_timeout', '0', true), pg_sleep(0.3)", "SELECT pg_sleep(0.3)"},
		{"SELECT pg_sleep(0.3) -- INSERT INTO documents ("},
		{"SELECT pg_sleep(0.3) -- INSERT INTO outbox_messages ("},
	}
	conns := make([]*pgx.Conn, len(all))
	for i := range all {
		conns[i], err = pgx.Connect(t.Context(), w.dsn)
		require.NoError(t, err)
		defer conns[i].Close(context.WithoutCancel(t.Context()))
	}
	all, conns = append(all, []string{"SELECT pg_sleep(0.3)"}), append(conns, w.sql)

	seen := &timings{took: map[string][]float64{}}
	end, err := seen.sample(t.Context(), w)
	require.NoError(t, err)
	var working sync.WaitGroup
	errs := make([]error, len(all))
	for i, statements := range all {
		working.Go(func() {
			for _, s := range statements {
				_, err := conns[i].Exec(t.Context(), s)
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	working.Wait()
	require.NoError(t, errors.Join(append(errs, end())...))
	require.Len(t, seen.took, 2)
	require.Len(t, seen.took[workerKind], 2)
	require.Len(t, seen.took[purgeKind], 2)
	require.Greater(t, slices.Min(seen.took[workerKind]), stall)
	require.Greater(t, seen.metrics()["purge max"], 2*stall)
}

// Each way is late by the delay, and what is sent together is late together.
func TestDistance(t *testing.T) {
	server, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer server.Close()
	go func() {
		c, err := server.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	const delay = 50 * time.Millisecond
	d, err := newDistance(t.Context(), server.Addr().String(), delay)
	require.NoError(t, err)
	defer d.close()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.address())
	require.NoError(t, err)

	begin := time.Now()
	for range 20 {
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
	}
	_, err = io.ReadFull(c, make([]byte, 20))
	require.NoError(t, err)
	took := time.Since(begin)
	require.GreaterOrEqual(t, took, 2*delay)
	require.Less(t, took, 20*delay)

	require.NoError(t, c.(*net.TCPConn).CloseWrite()) // the end arrives, too, and comes back
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// The line of --json: peers are compared like the limit, if they do the same.
func TestLine(t *testing.T) {
	r := result{
		scenario: scenario{name: "drain", unit: "events/s", metrics: []string{"rate"}, peers: []peer{{name: "same"}, {name: "other", unit: "jobs/s"}}},
		waybill:  measured{"rate": {30, 10, 20}}, limit: measured{"rate": {40}}, theirs: []measured{{"rate": {5}}, {"rate": {50}}},
	}
	var line, text bytes.Buffer
	require.NoError(t, r.json(&line))
	var got map[string]any
	require.NoError(t, json.Unmarshal(line.Bytes(), &got))
	require.Equal(t, map[string]any{
		"scenario": "drain", "unit": "events/s",
		"waybill": map[string]any{"min": 10.0, "median": 20.0, "max": 30.0},
		"limit":   map[string]any{"min": 40.0, "median": 40.0, "max": 40.0},
		"peers": map[string]any{
			"same":  map[string]any{"min": 5.0, "median": 5.0, "max": 5.0},
			"other": map[string]any{"min": 50.0, "median": 50.0, "max": 50.0},
		},
		"ratios": map[string]any{"limit": 0.5, "same": 4.0},
	}, got)
	require.NoError(t, r.text(&text))
	require.Contains(t, text.String(), "; same 5.00 / 5.00 / 5.00, ratio 4.00; other 50.00 / 50.00 / 50.00 jobs/s (events/s)")

	// No limit is no figure and no ratio, of one metric as of several.
	for _, metrics := range [][]string{{"draining"}, {"draining", "idle"}} {
		r = result{scenario: scenario{name: "memory", unit: "MiB", metrics: metrics}, waybill: measured{"draining": {90}, "idle": {30}}, limit: measured{}}
		line.Reset()
		text.Reset()
		require.NoError(t, r.json(&line))
		require.NotContains(t, line.String(), "limit")
		require.NoError(t, r.text(&text))
		require.NotContains(t, text.String(), "ratio")
	}
}

// A peer that can't be had is not in the result, and the others are.
func TestLeftOut(t *testing.T) {
	one := func(context.Context, *world) (map[string]float64, error) { return map[string]float64{"rate": 1}, nil }
	had := func(is bool) func(context.Context, *world) bool {
		return func(context.Context, *world) bool { return is }
	}
	s := scenario{metrics: []string{"rate"}, waybill: one, limit: one, peers: []peer{
		{name: "always", run: one}, {name: "not here", run: one, had: had(false)}, {name: "here", run: one, had: had(true)},
	}}
	r, err := s.run(t.Context(), &world{out: io.Discard}, 2, profiles{})
	require.NoError(t, err)
	var line bytes.Buffer
	require.NoError(t, r.json(&line))
	require.Contains(t, line.String(), `"ratios":{"always":1,"here":1,"limit":1}`)
	require.NotContains(t, line.String(), "not here")
}
