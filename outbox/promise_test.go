package outbox_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

// promised is the next promise for "default", once it is of this time or far back:
// on PostgreSQL it may lag by a look.
func promised(t *testing.T, b *outboxtest.Bench, memory *outbox.Promises) outbox.Promise {
	t.Helper()
	began := storedAt(t, b, "SELECT "+dbtime.Now(b.DB.Dialect()))
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		p, ok, err := b.Promise(t.Context(), "default", memory)
		require.NoError(t, err)
		if ok && (!p.Settled.Before(began) || p.Settled.Before(began.Add(-time.Hour))) {
			require.False(t, p.AsOf.Before(p.Settled))
			return p
		}
	}
	require.FailNow(t, "no promise is made")
	return outbox.Promise{}
}

func storedAt(t *testing.T, b *outboxtest.Bench, query string, args ...any) time.Time {
	t.Helper()
	var at dbtime.Time
	require.NoError(t, b.DB.QueryRowContext(t.Context(), query, args...).Scan(&at))
	return at.Time
}

// S0-20: what may be sent again holds the promise back, to when it was stored.
func TestPromise_S0_20(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		var memory outbox.Promises
		w := b.Worker("w1", outboxtest.Partitions, time.Hour)
		d := b.DB.Dialect()
		ago := func(days int) string { return dbtime.In(d, time.Duration(-days)*24*time.Hour) }
		now := func(what string) {
			t.Helper()
			require.WithinDuration(t, time.Now(), promised(t, b, &memory).Settled, time.Minute, what)
		}
		back := func(days int, what string) {
			t.Helper()
			require.WithinDuration(t, time.Now().Add(time.Duration(-days)*24*time.Hour), promised(t, b, &memory).Settled, time.Minute, what)
		}
		now("there is none")

		b.Insert("a", "b")
		other := outboxtest.Row("c")
		other.TargetBroker = "partner"
		b.InsertRows(other)
		b.Exec("UPDATE outbox SET created_at = " + ago(20))
		b.Exec("UPDATE outbox SET created_at = " + ago(10) + " WHERE partition_key = 'b'")
		b.Exec("UPDATE outbox SET priority = 7 WHERE partition_key = 'a'")
		back(20, "waiting, with a priority")
		c := w.Claim(10)
		require.Len(t, c.Rows, 2)
		back(20, "in hand")
		unknown := outbox.Outcome{Status: outbox.Failed, Class: "unknown", Error: "no answer"}
		w.Settle(c, outbox.Outcome{Seq: c.Rows[0].Seq, Status: outbox.Published}, outbox.Outcome{Seq: c.Rows[1].Seq, Status: unknown.Status, Class: unknown.Class, Error: unknown.Error})
		back(10, "failed")
		seq := c.Rows[1].Seq
		require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, seq))
		back(10, "abandoned, and may have arrived")
		require.NoError(t, b.Retry(t.Context(), seq))
		require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, seq))
		back(10, "the same, with its attempts counted anew")
		b.Exec(fmt.Sprintf("DELETE FROM outbox WHERE seq = %d", seq))
		now("nobody can retry it")

		b.Insert("refused", "never tried")
		b.Exec("UPDATE outbox SET created_at = " + ago(30) + " WHERE published_at IS NULL AND target_broker = 'default'")
		c = w.Claim(1)
		w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Abandoned, Class: "permanent", Error: "too large"})...)
		back(30, "there is another one")
		for _, e := range b.Entries() {
			if e.Status == outbox.Pending && e.TargetBroker == "default" {
				require.NoError(t, b.Abandon(t.Context(), outbox.Retention{}, e.Seq))
			}
		}
		now("neither is at the broker")
		b.Insert("held")
		b.Exec("UPDATE outbox SET created_at = " + ago(30) + " WHERE partition_key = 'held'")
		c = w.Claim(1)
		w.Settle(c, outboxtest.All(c, held)...)
		back(30, "held")
	})
}

// S0-20: a row is stored before its transaction ends. What others publish meanwhile
// promises nothing of that time.
func TestPromise_S0_20_OpenTransaction(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	var memory outbox.Promises
	promised(t, b, &memory)
	w := b.Worker("w1", outboxtest.Partitions, time.Hour)
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	query, err := outbox.Insert([]outbox.Row{outboxtest.Row("late")}).AppendQuery(b.DB.QueryGen(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), string(query))
	require.NoError(t, err)
	var at time.Time
	require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT created_at FROM outbox").Scan(&at))
	b.Insert("early")
	c := w.Claim(1)
	w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Published})...)
	for range 5 {
		p, _, err := b.Promise(t.Context(), "default", &memory)
		require.NoError(t, err)
		require.True(t, p.Settled.Before(at), "%v is promised, and a row of %v can't be seen yet", p.Settled, at)
		var fresh outbox.Promises
		_, ok, err := b.Promise(t.Context(), "default", &fresh)
		require.NoError(t, err)
		require.False(t, ok, "who begins now knows nothing")
	}
	require.NoError(t, tx.Commit())
	require.Eventually(t, func() bool {
		p, _, err := b.Promise(t.Context(), "default", &memory)
		require.NoError(t, err)
		return p.Settled.Equal(at)
	}, 30*time.Second, 10*time.Millisecond, "up to the row that can be seen now")
}

// S0-20: messages to the context's own broker say who sends them and what is settled;
// partners are told nothing.
func TestProcessor_S0_20_Promises(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		own, partner := memory.New(memory.Config{}), memory.New(memory.Config{})
		cfg := quick()
		processor(t, b, cfg, lane(own), outbox.Lane{Target: "partner", Broker: partner, External: true})
		sources := map[string]bool{}
		for n := 0; ; n++ {
			began := time.Now()
			row := outboxtest.Row(fmt.Sprint(n))
			b.InsertRows(row)
			row.ID, row.TargetBroker = row.MessageID, "partner"
			b.InsertRows(row)
			statuses(t, b, map[outbox.Status]int{outbox.Published: 2*n + 2})
			last := func(m *memory.Broker) broker.Message { all := m.Messages(topic); return all[len(all)-1] }
			for name := range last(partner).Headers {
				require.NotContains(t, name, "waybill")
			}
			// The first promise may come after the first messages.
			if p, ok := outbox.PromiseOf(last(own).Headers); ok {
				sources[p.Source] = true
				require.WithinDuration(t, began, p.Settled, time.Minute)
				if len(sources) == 1 && n > 3 {
					return
				}
			}
			require.Less(t, time.Since(began), time.Minute)
			require.Less(t, n, 1000)
		}
	})
}

func TestPromiseOf(t *testing.T) {
	full := map[string]string{"waybill-source": "s", "waybill-low": "1700000000123", "waybill-at": "1700000001000"}
	p, ok := outbox.PromiseOf(full)
	require.True(t, ok)
	require.Equal(t, outbox.Promise{Source: "s", Settled: time.UnixMilli(1700000000123).UTC(), AsOf: time.UnixMilli(1700000001000).UTC()}, p)
	// S4: of a source that says nothing sound, that it has sent something is all that is known.
	for name, bad := range map[string][]string{
		"waybill-low": {"yesterday", "", "-1", "0", "9223372036854775807", "-9223372036854775808", "253402300800000", "1e3"},
		"waybill-at":  {"", "9223372036854775807", "0"},
	} {
		for _, value := range bad {
			other := maps.Clone(full)
			other[name] = value
			p, ok := outbox.PromiseOf(other)
			require.True(t, ok, "%s %s", name, value)
			require.Equal(t, outbox.Promise{Source: "s"}, p, "%s %s", name, value)
		}
	}
	for _, nobody := range []string{"", strings.Repeat("s", 256)} {
		full["waybill-source"] = nobody
		_, ok := outbox.PromiseOf(full)
		require.False(t, ok)
	}
	p, ok = outbox.PromiseOf(map[string]string{"waybill-source": "s", "waybill-low": "1700000009999", "waybill-at": "1700000001000"})
	require.True(t, ok)
	require.Equal(t, p.AsOf, p.Settled, "nothing that is to come is settled")
}
