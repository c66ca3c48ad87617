package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/schema"
	_ "modernc.org/sqlite"
)

// The columns that an insert fills, with the contract's types.
const (
	insertTablePostgres = `CREATE TEMP TABLE outbox (seq bigint GENERATED ALWAYS AS IDENTITY, id uuid NOT NULL, message_id uuid NOT NULL,
		target_broker text NOT NULL, stream text NOT NULL, stream_category text NOT NULL, topic text, partition_key text NOT NULL,
		"partition" int NOT NULL, message_type text NOT NULL, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
		aggregate_version bigint NOT NULL, payload bytea NOT NULL, content_type text NOT NULL, cloud_event text, correlation_id text, causation_id text,
		tenant_id text, traceparent text, priority int NOT NULL, status text NOT NULL DEFAULT 'pending', occurred_at timestamptz NOT NULL)`
	insertTableSQLite = `CREATE TEMP TABLE outbox (seq integer PRIMARY KEY AUTOINCREMENT, id text NOT NULL, message_id text NOT NULL,
		target_broker text NOT NULL, stream text NOT NULL, stream_category text NOT NULL, topic text, partition_key text NOT NULL,
		"partition" integer NOT NULL, message_type text NOT NULL, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
		aggregate_version integer NOT NULL, payload blob NOT NULL, content_type text NOT NULL, cloud_event text, correlation_id text, causation_id text,
		tenant_id text, traceparent text, priority integer NOT NULL, status text NOT NULL DEFAULT 'pending', occurred_at text NOT NULL)`
	insertSelect = `SELECT id, message_id, target_broker, stream, stream_category, topic, partition_key, "partition", message_type,
		aggregate_type, aggregate_id, aggregate_version, payload, content_type, cloud_event, correlation_id, causation_id, tenant_id, traceparent,
		priority, status, occurred_at FROM outbox ORDER BY seq`
)

type insertDatabase struct {
	conn *sql.Conn
	gen  schema.QueryGen
}

func insertDatabases(t *testing.T) map[string]insertDatabase {
	postgres := os.Getenv("WAYBILL_POSTGRES")
	require.NotEmpty(t, postgres, `run scripts/test, or eval "$(scripts/services up)"`)
	open := func(driver, dsn, table string, d schema.Dialect) insertDatabase {
		db, err := sql.Open(driver, dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.ExecContext(t.Context(), table)
		require.NoError(t, err)
		return insertDatabase{conn, schema.NewQueryGen(d)}
	}
	simple := "?"
	if strings.Contains(postgres, "?") {
		simple = "&"
	}
	return map[string]insertDatabase{
		"postgres": open("pgx", postgres+simple+"default_query_exec_mode=simple_protocol", insertTablePostgres, pgdialect.New()),
		"sqlite":   open("sqlite", ":memory:", insertTableSQLite, sqlitedialect.New()),
	}
}

func (d insertDatabase) insert(ctx context.Context, rows []Row) error {
	query, err := Insert(rows).AppendQuery(d.gen, nil)
	if err != nil {
		return err
	}
	_, err = d.conn.ExecContext(ctx, string(query))
	return err
}

// S4-07, A6, C-01: what is inserted is what is there, in the order of the rows.
func TestInsert_S407_A6_RowsComeBack(t *testing.T) {
	hostile := orderEvent("OrderPlaced")
	hostile.AggregateID = `o'1'' \' \ " ; DROP TABLE outbox; -- $1 ? é東🚚 ` + "\n\t\x01\x7f"
	hostile.Stream = "ordering::order-" + hostile.AggregateID
	hostile.CorrelationID, hostile.TenantID = `'`, `\`
	hostile.Data = []byte(`{"s":"'\\ \u0000 é"}`)
	plain := plainEvent()
	plain.Type = "Ordering.NoteAdded.v1"
	plain.Time = time.Date(2026, 1, 2, 3, 4, 5, 999_999_999, time.UTC)

	w := Writer{Domain: writerDomain, Internal: "default", External: []Target{{Broker: "partner", Topics: map[string]string{"ordering::order": "it's"}}}}
	want, err := w.Rows([]Event{hostile, plain, orderEvent("OrderCancelled")}, 64)
	require.NoError(t, err)
	w.External = []Target{{Broker: "binary", Envelope: CloudEventsBinary}}
	hostile.AggregateID = `o'1'' \' \ " $1 ? é東🚚`
	more, err := w.Rows([]Event{hostile}, 64)
	require.NoError(t, err)
	want = append(want, more...)
	require.Len(t, want, 7)

	for name, db := range insertDatabases(t) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, db.insert(t.Context(), want[:3]))
			require.NoError(t, db.insert(t.Context(), want[3:]))
			result, err := db.conn.QueryContext(t.Context(), insertSelect)
			require.NoError(t, err)
			defer result.Close()
			var got []Row
			for result.Next() {
				var r Row
				var topic, cloudEvent, correlation, causation, tenant, trace sql.NullString
				var status string
				var occurred any
				require.NoError(t, result.Scan(&r.ID, &r.MessageID, &r.TargetBroker, &r.Stream, &r.StreamCategory, &topic, &r.PartitionKey,
					&r.Partition, &r.MessageType, &r.AggregateType, &r.AggregateID, &r.AggregateVersion, &r.Payload, &r.ContentType,
					&cloudEvent, &correlation, &causation, &tenant, &trace, &r.Priority, &status, &occurred))
				for _, n := range []sql.NullString{topic, cloudEvent, correlation, causation, tenant, trace} {
					require.Equal(t, n.Valid, n.String != "", "absent is null")
				}
				r.Topic, r.CloudEvent = topic.String, cloudEvent.String
				r.CorrelationID, r.CausationID, r.TenantID, r.Traceparent = correlation.String, causation.String, tenant.String, trace.String
				require.Equal(t, "pending", status)
				expected := want[len(got)].OccurredAt
				if at, ok := occurred.(time.Time); ok {
					require.True(t, expected.Truncate(time.Microsecond).Equal(at), "%v", at)
				} else {
					require.Equal(t, expected.Format("2006-01-02T15:04:05.000Z"), occurred)
				}
				r.OccurredAt = expected
				got = append(got, r)
			}
			require.NoError(t, result.Err())
			require.Equal(t, want, got)
		})
	}
}

func TestInsert_RefusesWhatADatabaseCannotStore(t *testing.T) {
	row := Row{ID: "1", MessageID: "m1"}
	for field, set := range map[string]func(*Row, string){
		"aggregate_id":   func(r *Row, s string) { r.AggregateID = s },
		"correlation_id": func(r *Row, s string) { r.CorrelationID = s },
		"traceparent":    func(r *Row, s string) { r.Traceparent = s },
		"topic":          func(r *Row, s string) { r.Topic = s },
	} {
		for _, d := range []schema.Dialect{pgdialect.New(), sqlitedialect.New()} {
			bad := row
			set(&bad, "a\x00b")
			_, err := Insert([]Row{row, bad}).AppendQuery(schema.NewQueryGen(d), nil)
			require.EqualError(t, err, `outbox: `+field+` of message "m1" has a NUL byte, which a database can't store as text: "a\x00b"`)
			set(&bad, "a\xffb")
			_, err = Insert([]Row{row, bad}).AppendQuery(schema.NewQueryGen(d), nil)
			require.EqualError(t, err, `outbox: `+field+` of message "m1" is not UTF-8: "a\xffb"`)
		}
	}
	_, err := Insert(nil).AppendQuery(schema.NewQueryGen(pgdialect.New()), nil)
	require.ErrorContains(t, err, "no rows")
	_, err = Insert([]Row{row}).AppendQuery(schema.NewNopQueryGen(), nil)
	require.ErrorContains(t, err, "use PostgreSQL or SQLite")
}

func TestInsert_PreparedHasAPlaceForEachValue(t *testing.T) {
	one := Row{ID: "1", MessageID: "m1"}
	binary := one
	binary.CloudEvent = "{}"
	for _, rows := range [][]Row{{one}, {one, one, one}, {binary}, {one, binary, one}, slices.Repeat([]Row{binary}, maxPrepared)} {
		query, values, err := insert(rows).Prepared()
		require.NoError(t, err)
		require.Len(t, values, strings.Count(query, "$"))
		require.Equal(t, len(values)/len(rows), strings.Count(strings.SplitN(query, ")", 2)[0], ",")+1, "as many as columns")
	}
	query, _, err := insert(slices.Repeat([]Row{one}, maxPrepared+1)).Prepared()
	require.NoError(t, err)
	require.Empty(t, query)
}

func TestInsert_LargeUnit(t *testing.T) {
	e := orderEvent("OrderPlaced")
	e.Data = append(append([]byte(`{"s":"`), bytes.Repeat([]byte("x"), 20_000)...), `"}`...)
	w := Writer{Domain: writerDomain, Internal: "default"}
	rows, err := w.Rows(slices.Repeat([]Event{e}, 500), 64)
	require.NoError(t, err)
	for name, db := range insertDatabases(t) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, db.insert(t.Context(), rows))
			var n, size int
			require.NoError(t, db.conn.QueryRowContext(t.Context(), `SELECT count(*), sum(length(payload)) FROM outbox`).Scan(&n, &size))
			require.Equal(t, 500, n)
			require.Equal(t, 500*len(rows[0].Payload), size)
		})
	}
}

func BenchmarkInsert(b *testing.B) {
	w := Writer{Domain: writerDomain, Internal: "default"}
	e := orderEvent("OrderPlaced")
	e.Data = []byte(`{"text":"` + strings.Repeat("x", 400) + `"}`)
	rows, err := w.Rows([]Event{e}, 64)
	require.NoError(b, err)
	gen := schema.NewQueryGen(pgdialect.New())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Insert(rows).AppendQuery(gen, nil); err != nil {
			b.Fatal(err)
		}
	}
}
