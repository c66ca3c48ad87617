package outboxdb_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"strconv"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// firstDesign makes the tables as the first design had them.
func firstDesign(t *testing.T, db *bun.DB) {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range []string{"postgres/0001_outbox.sql", "sqlite/0001_outbox.sql"} {
		sql, err := fs.ReadFile(outboxdb.Migrations().Files, name)
		require.NoError(t, err)
		files[name] = &fstest.MapFile{Data: sql}
	}
	require.NoError(t, migrate.Set{Feature: "outbox", Files: files}.Up(t.Context(), db))
	_, err := db.ExecContext(t.Context(), "INSERT INTO outbox_settings (name, value) VALUES ('partitions', '8')")
	require.NoError(t, err)
}

// onFirstDesign runs a test on a database of the first design of each kind.
func onFirstDesign(t *testing.T, f func(t *testing.T, d outboxdbtest.Database)) {
	t.Parallel()
	empty := func(t testing.TB) outboxdbtest.Database { return dbtest.SQLite(t) }
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": empty, "PostgreSQL": outboxdbtest.PostgreSQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			firstDesign(t, d.DB())
			f(t, d)
		})
	}
}

// first is a row of the first design.
type first struct {
	target, key, topic            string
	status                        outbox.Status
	attempts, losses, priority    int
	held, finished                bool
	class, words                  string
	available, tried, done, until time.Time
}

func (f first) insert(t *testing.T, db *bun.DB) (seq int64) {
	t.Helper()
	row := outboxdbtest.Row(f.key)
	at := func(v time.Time) any {
		if v.IsZero() {
			return nil
		}
		return dbtime.Value(db.Dialect(), v)
	}
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	var owner, claim, finished, published any
	if f.status == outbox.Processing {
		owner, claim = "w1", 17
	}
	if f.finished {
		finished = at(f.done)
	}
	if f.status == outbox.Published {
		published = at(f.done)
	}
	created := time.Now().Add(-time.Hour)
	if f.available.IsZero() {
		f.available = created
	}
	columns := map[string]any{
		"id": row.ID, "message_id": row.MessageID, "target_broker": f.target, "stream": row.Stream, "stream_category": row.StreamCategory,
		"topic": text(f.topic), "partition_key": f.key, "partition": row.Partition, "message_type": row.MessageType, "aggregate_type": row.AggregateType,
		"aggregate_id": row.AggregateID, "aggregate_version": 3, "payload": []byte("{ü}"), "content_type": "application/json", "cloud_event": text("{}"),
		"correlation_id": "c", "causation_id": "cause", "tenant_id": "acme", "traceparent": "00-1", "priority": f.priority, "status": string(f.status),
		"attempts": f.attempts, "max_attempts": 5, "available_at": at(f.available), "last_attempt_at": at(f.tried), "last_error": text(f.words),
		"failure_class": text(f.class), "locked_by": owner, "claim_id": claim, "losses": f.losses, "held": f.held,
		"occurred_at": at(row.OccurredAt), "created_at": at(created), "published_at": published, "expires_at": at(f.until), "finished_at": finished,
	}
	names, values := []bun.Ident{}, []schema.QueryWithArgs{}
	for name, value := range columns {
		names, values = append(names, bun.Ident(name)), append(values, bun.SafeQuery("?", value))
	}
	require.NoError(t, db.QueryRowContext(t.Context(), "INSERT INTO outbox (?) VALUES (?) RETURNING seq", bun.List(names), bun.List(values)).Scan(&seq))
	return seq
}

// everyKind is a row of every kind, and more than one key and target.
func everyKind(now time.Time) []first {
	hour, day := now.Add(time.Hour), 24*time.Hour
	tried := now.Add(-10 * time.Minute)
	return []first{
		{target: "default", key: "a", status: outbox.Pending},
		{target: "default", key: "a", status: outbox.Pending, priority: 7},
		{target: "partner", key: "a", topic: "orders.v1", status: outbox.Pending, priority: -3},
		{target: "default", key: "b", status: outbox.Pending, attempts: 2, losses: 2, tried: tried},
		{target: "default", key: "retried", status: outbox.Pending, available: hour, tried: tried, class: "transient", words: "try later"},
		{target: "default", key: "c", status: outbox.Processing, attempts: 1, tried: tried},
		{target: "default", key: "c", status: outbox.Processing, attempts: 4, losses: 1, tried: tried, class: "unknown", words: "no answer"},
		{target: "default", key: "c", status: outbox.Pending},
		{target: "default", key: "ü🙂'", status: outbox.Failed, attempts: 3, available: hour, tried: tried, class: "unknown", words: "no answer"},
		{target: "partner", key: "ü🙂'", status: outbox.Failed, attempts: 1, available: tried, tried: tried, class: "transient", words: "busy"},
		{target: "default", key: "held", status: outbox.Abandoned, attempts: 5, held: true, tried: tried, class: "permanent", words: "too large"},
		{target: "default", key: "held", status: outbox.Pending},
		{target: "default", key: "d", status: outbox.Abandoned, attempts: 5, tried: tried, class: "unknown", words: "no answer", finished: true, done: tried, until: tried.Add(30 * day)},
		{target: "default", key: "e", status: outbox.Abandoned, attempts: 1, tried: tried, class: "permanent", words: "too large", finished: true, done: tried, until: tried.Add(30 * day)},
		{target: "default", key: "f", status: outbox.Abandoned, words: "abandoned by an operator", finished: true, done: tried, until: tried.Add(30 * day)},
		{target: "default", key: "g", status: outbox.Published, attempts: 1, tried: tried, finished: true, done: tried, until: tried.Add(7 * day)},
		{target: "default", key: "g", status: outbox.Published, attempts: 3, tried: tried, finished: true, done: tried, until: tried.Add(7 * day)},
		{target: "partner", key: "g", status: outbox.Published, attempts: 2, losses: 1, tried: tried, finished: true, done: tried.Add(-5 * time.Minute), until: tried.Add(7 * day)},
	}
}

// nowShown is what the view shows of a row that the first design showed as e.
func nowShown(e outbox.Entry) outbox.Entry {
	e.Attempts -= e.Losses
	if e.Status == outbox.Processing { // nobody settles the claim any more
		e.Status, e.Attempts, e.Losses = outbox.Pending, e.Attempts-1, e.Losses+1
		e.LockedBy, e.LockedUntil, e.ClaimID, e.Fence = "", nil, 0, 0
	}
	if !e.AvailableAt.After(time.Now()) && e.Status != outbox.Failed {
		e.AvailableAt = e.CreatedAt
	}
	switch {
	case e.Status == outbox.Published:
		e.Attempts, e.Losses, e.LastAttemptAt = max(e.Attempts, 1), 0, e.PublishedAt
	case e.Status == outbox.Abandoned && e.Held:
	case e.Status == outbox.Abandoned && e.ExpiresAt != nil:
		given := e.ExpiresAt.Add(-30 * 24 * time.Hour)
		e.LastAttemptAt = &given
	case e.FailureClass == "":
		e.LastAttemptAt = nil
	}
	return e
}

// What the first design has stored is there under its old numbers: undelivered rows
// can be claimed, held ones hold, and history goes on to expire.
func TestTakeoverKeepsEveryRow(t *testing.T) {
	onFirstDesign(t, func(t *testing.T, d outboxdbtest.Database) {
		db := d.DB()
		for _, f := range everyKind(time.Now().Truncate(time.Millisecond)) {
			f.insert(t, db)
		}
		for _, sql := range []string{
			"INSERT INTO outbox_published (target_broker, slot, n, retries) VALUES ('default', 0, 40, 5), ('default', 1, 2, 0), ('partner', 0, 1, 0)",
			"INSERT INTO outbox_actions (actor, action, filter, rows) VALUES ('ada', 'retry', '{}', 3)",
			"INSERT INTO outbox_partitions (target_broker, partition) VALUES ('default', 0), ('default', 1), ('idle', 0)",
			"INSERT INTO outbox_settings (name, value) VALUES ('targets:ordering', '{}')",
			"DELETE FROM outbox WHERE seq = (SELECT max(seq) FROM outbox)", // its number isn't used again
		} {
			_, err := db.ExecContext(t.Context(), sql)
			require.NoError(t, err)
		}
		before, err := outboxdb.Entries(t.Context(), db)
		require.NoError(t, err)

		b := outboxdbtest.Open(t, d)
		after, err := outboxdb.Entries(t.Context(), db)
		require.NoError(t, err)
		require.Len(t, after, len(before))
		for i, e := range before {
			want := nowShown(e)
			if want.Status == outbox.Published { // together with those of a minute
				require.WithinDuration(t, *want.PublishedAt, *after[i].PublishedAt, time.Minute)
				require.WithinDuration(t, *want.ExpiresAt, *after[i].ExpiresAt, time.Minute+10*time.Minute)
				want.PublishedAt, want.ExpiresAt, want.LastAttemptAt = after[i].PublishedAt, after[i].ExpiresAt, after[i].PublishedAt
			}
			require.Equal(t, want, after[i])
		}
		found, err := b.Contradictions(t.Context())
		require.NoError(t, err)
		require.Empty(t, found)

		stats, err := b.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, map[outbox.Status]int64{outbox.Pending: 8, outbox.Processing: 0, outbox.Failed: 1, outbox.Abandoned: 4, outbox.Published: 42}, stats["default"].Counts)
		require.Equal(t, map[outbox.Status]int64{outbox.Pending: 1, outbox.Processing: 0, outbox.Failed: 1, outbox.Abandoned: 0, outbox.Published: 1}, stats["partner"].Counts)
		require.NotContains(t, stats, "idle", "no context sends to it")
		actions, err := b.Actions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, actions, 1)
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_settings WHERE name = 'targets:ordering'"))
		require.EqualValues(t, 1, b.Count("SELECT count(*) FROM outbox_abandoned WHERE maybe_delivered"), "what was refused for good, or never sent, isn't there")

		b.Insert("a")
		last, err := b.Find(t.Context(), outbox.Filter{After: before[len(before)-1].Seq})
		require.NoError(t, err)
		require.Len(t, last, 1)
		require.Equal(t, before[len(before)-1].Seq+2, last[0].Seq, "numbers go on")
	})
}

// The order of a key hangs on its hash: SQL comes to the same as outbox.KeyOf, and a
// row that was taken over waits for others of its key.
func TestTakeoverHashesKeysAsGoDoes(t *testing.T) {
	text, err := os.ReadFile("../../outbox/testdata/keys.json")
	require.NoError(t, err)
	var vectors struct {
		Keys []struct{ Target, Topic, Category, Key, Hash string }
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	onFirstDesign(t, func(t *testing.T, d outboxdbtest.Database) {
		db := d.DB()
		hashes := map[int64][2]string{}
		for _, v := range vectors.Keys {
			seq := first{target: v.Target, key: v.Key, topic: v.Topic, status: outbox.Pending}.insert(t, db)
			_, err := db.ExecContext(t.Context(), "UPDATE outbox SET stream_category = ? WHERE seq = ?", v.Category, seq)
			require.NoError(t, err)
			hashes[seq] = [2]string{v.Hash, strconv.FormatInt(outbox.TopicHash(v.Topic), 10)}
		}
		b := outboxdbtest.Open(t, d)
		for seq, want := range hashes {
			key := b.Count("SELECT key FROM outbox_queue WHERE seq = ?", seq)
			topic := b.Count("SELECT topic FROM outbox_queue WHERE seq = ?", seq)
			require.Equal(t, want, [2]string{strconv.FormatInt(key, 10), strconv.FormatInt(topic, 10)})
		}
		taken := b.Count("SELECT max(bytes) FROM outbox_queue")
		b.Exec("DELETE FROM outbox_queue")
		require.Positive(t, taken)
	})
}

// Bytes and keys of a row that is taken over are those of one that is inserted anew.
func TestTakeoverMeasuresRowsAsTheInsertDoes(t *testing.T) {
	onFirstDesign(t, func(t *testing.T, d outboxdbtest.Database) {
		seq := first{target: "default", key: "ü", topic: "orders", status: outbox.Pending}.insert(t, d.DB())
		b := outboxdbtest.Open(t, d)
		old, err := b.Message(t.Context(), mustFind(t, b, seq).MessageID)
		require.NoError(t, err)
		again := old.Rows[0].Row
		again.Payload = old.Rows[0].Payload
		again.ID, again.MessageID = outboxdbtest.Row("x").ID, outboxdbtest.Row("x").MessageID
		b.InsertRows(again)
		for _, column := range []string{"key", "topic", "bytes", "class", "part", "lane"} {
			require.EqualValues(t, 1, b.Count("SELECT count(DISTINCT ?) FROM outbox_queue", bun.Ident(column)), column)
		}
	})
}

func mustFind(t *testing.T, b *outboxdbtest.Bench, seq int64) outbox.Entry {
	t.Helper()
	found, err := b.Find(t.Context(), outbox.Filter{Seqs: []int64{seq}})
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

// Engines of the first design publish by tables that are gone afterwards: while one
// holds partitions nothing is taken over, and the error says what to do.
func TestTakeoverWaitsForEnginesToStop(t *testing.T) {
	onFirstDesign(t, func(t *testing.T, d outboxdbtest.Database) {
		db := d.DB()
		first{target: "default", key: "a", status: outbox.Pending}.insert(t, db)
		lease := func(until time.Time) {
			_, err := db.ExecContext(t.Context(), "INSERT INTO outbox_partitions (target_broker, partition, locked_by, fence, locked_until) VALUES ('default', 0, 'host-1-w1', 1, ?)"+
				" ON CONFLICT (target_broker, partition) DO UPDATE SET locked_until = excluded.locked_until", dbtime.Value(db.Dialect(), until))
			require.NoError(t, err)
		}
		lease(time.Now().Add(time.Minute))
		err := outboxdb.Migrate(t.Context(), db, 0)
		require.ErrorContains(t, err, "stop all engines of this database and migrate again")
		require.ErrorContains(t, err, "0003_takeover.sql")
		before, err := outboxdb.Entries(t.Context(), db)
		require.NoError(t, err)
		require.Len(t, before, 1, "the first design goes on")

		lease(time.Now().Add(-time.Second))
		require.NoError(t, outboxdb.Migrate(t.Context(), db, 0))
	})
}
