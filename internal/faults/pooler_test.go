package faults

import (
	"database/sql"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/verdict"
)

// F-52, F-53, C-94: PostgreSQL can be reached through a pooler only, which gives every
// transaction another of 20 connections and knows no prepared statements. Tables
// are made, accounts change, engines publish and consume, over more connections
// than there are behind the pooler, while an engine is killed and the pooler is
// told to wait, to reconnect and to drop everybody: nothing is lost or out of
// order, and every event takes effect once.
// Conformance: U-10.
func TestPooler_F_52_F_53_TwentyConnectionsForAll(t *testing.T) {
	t.Parallel()
	const accounts = 40
	w := newWorldThrough(t, environment(t, "WAYBILL_PGBOUNCER"), environment(t, "WAYBILL_KAFKA"), accounts, 1<<20)
	w.createEffects()
	x := newPooler(t, w)
	engine := func() *process {
		return w.engine(lease(4*time.Second), func(c *nodeConfig) {
			c.Consume, c.Trap.Delay = true, 20*time.Millisecond
		})
	}
	engines := []*process{engine(), engine(), engine()}
	writers := []*process{w.writer(accounts, 12, 20*time.Millisecond), w.writer(accounts, 12, 20*time.Millisecond)}
	rounds := 1
	if long() {
		rounds = 10
	}
	for range rounds {
		w.progress()
		eventually(t, func() bool { return x.clients() > 20 }, "more connections than the pooler has")

		w.kill(engines[0])
		engines = append(engines[1:], engine())
		w.progress()

		x.tell("RELOAD")
		x.tell("RECONNECT")
		w.progress()

		x.during("pause", func() {
			x.tell("PAUSE")
			eventually(t, func() bool { return x.waiting() > 0 }, "somebody waits")
		})
		w.progress()

		x.during("drop", func() {
			x.tell("KILL")
			eventually(t, func() bool { return w.lapsed(0) }, "the leases run out")
		})
		w.progress()
	}
	for _, p := range writers {
		p.terminate()
	}
	w.drain()
	r := w.check()
	require.Positive(t, r.Incidents["kills"])
	require.Positive(t, r.Incidents["drops"])
	require.Zero(t, r.Abandoned)
	eventually(t, func() bool { return w.count("effects") >= r.Events }, "all events take effect")
	require.Empty(t, w.strings(`SELECT account || ' ' || number || ' after ' || before FROM (
		SELECT account, number, COALESCE(lag(number) OVER (PARTITION BY account ORDER BY n), 0) AS before FROM effects) e
		WHERE number <> before + 1`), "each once, in order")
	for _, p := range engines {
		require.Contains(t, p.logged(), "found by polling")
		p.terminate()
	}
	for _, p := range w.nodes {
		for line := range strings.Lines(p.logged()) {
			// That nothing is prepared is said; that something failed because of it must not be.
			if !strings.Contains(line, "nothing is prepared for a while") {
				require.NotContains(t, line, "prepared statement", "of another's session")
			}
		}
	}
}

// createEffects makes the table of those who consume.
// progress waits until there is some, in all that is done.
func (w *world) progress() {
	w.t.Helper()
	published, handled := w.published(), w.count("effects")
	eventually(w.t, func() bool {
		return w.published() > published+100 && w.count("effects") > handled+100
	}, "rows are published and handled")
}

// pooler is PgBouncer's own console, for one database.
type pooler struct {
	world   *world
	console *sql.DB
}

func newPooler(t *testing.T, w *world) *pooler {
	t.Helper()
	u, err := url.Parse(environment(t, "WAYBILL_PGBOUNCER"))
	require.NoError(t, err)
	u.Path, u.RawQuery = "/pgbouncer", "default_query_exec_mode=simple_protocol"
	x := &pooler{world: w, console: connect(t, u.String())}
	// Nobody would come through to a database that stays paused or killed.
	t.Cleanup(func() { _, _ = x.console.Exec("RESUME " + w.database) })
	return x
}

// tell says a command about the world's database. The pooler may be starting
// again just then: see scripts/services.
func (x *pooler) tell(command string) {
	x.world.t.Helper()
	if command != "RELOAD" { // is about all
		command += " " + x.world.database
	}
	eventually(x.world.t, func() bool {
		_, err := x.console.Exec(command)
		return err == nil
	}, "the pooler does %s", command)
}

// during does what ends with RESUME.
func (x *pooler) during(kind string, do func()) {
	x.world.t.Helper()
	from := time.Now()
	do()
	x.tell("RESUME")
	// What was out may still be tried again.
	x.world.note(verdict.Incident{Kind: kind, From: from, Until: time.Now().Add(time.Second)})
}

func (x *pooler) clients() int { return x.pool("cl_active") + x.pool("cl_waiting") }
func (x *pooler) waiting() int { return x.pool("cl_waiting") }

// pool is a number of SHOW POOLS.
func (x *pooler) pool(column string) (sum int) {
	x.world.t.Helper()
	rows, err := x.console.Query("SHOW POOLS")
	if err != nil {
		return 0 // it is starting again
	}
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(x.world.t, err)
	for rows.Next() {
		values := make([]any, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		require.NoError(x.world.t, rows.Scan(into...))
		row := map[string]any{}
		for i, name := range names {
			row[name] = values[i]
		}
		if row["database"] == x.world.database {
			n, ok := row[column].(int64)
			require.True(x.world.t, ok, "%s is a %T", column, row[column])
			sum += int(n)
		}
	}
	require.NoError(x.world.t, rows.Err())
	return sum
}
