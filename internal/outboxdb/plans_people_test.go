package outboxdb_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/outboxdb/outboxdbtest"
	"github.com/waybill-go/waybill/outbox"
)

// heard are the statements that a store sends, but those of relays.
type heard struct{ queries []string }

func (h *heard) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	h.queries = append(h.queries, e.Query)
	return ctx
}

func (*heard) AfterQuery(context.Context, *bun.QueryEvent) {}

// plans are those of all statements that do sends about rows of the outbox.
func (b *bench) plans(do func(s *outboxdb.Store)) (all []string) {
	b.T.Helper()
	h := &heard{}
	hooked := b.As.WithQueryHook(h)
	do(outboxdb.New(hooked, hooked))
	settings := []string{}
	for _, q := range h.queries {
		switch {
		case strings.Contains(q, "set_config"):
			settings = append(settings, q) // those after it read what it sets
		case strings.Contains(q, "outbox"):
			all = append(all, q+"\n"+b.explain(q, settings))
		}
	}
	require.NotEmpty(b.T, all)
	return all
}

func (b *bench) explain(query string, settings []string) string {
	b.T.Helper()
	if b.SQLite() {
		plain, ok := b.T.(*testing.T)
		require.True(b.T, ok)
		return strings.Join(planOnSQLite(plain, b.Bench, query), "\n")
	}
	tx, err := b.DB.BeginTx(b.T.Context(), nil)
	require.NoError(b.T, err)
	defer func() { require.NoError(b.T, tx.Rollback()) }()
	for _, s := range settings {
		_, err := tx.ExecContext(b.T.Context(), "?", bun.Safe(s))
		require.NoError(b.T, err)
	}
	var plan []string
	require.NoError(b.T, tx.NewRaw("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ?", bun.Safe(query)).Scan(b.T.Context(), &plan))
	return strings.Join(plan, "\n")
}

// S3-30: what operators ask for goes by an index, whatever the number of published
// rows, also while PostgreSQL believes that none is published.
func TestPlans_S3_30_OperatorsReadNoHistory(t *testing.T) {
	t.Parallel()
	// PostgreSQL's is a database of its own: no transaction of another test keeps old
	// versions alive.
	for name, open := range map[string]func(testing.TB) outboxdbtest.Database{"SQLite": outboxdbtest.SQLite, "PostgreSQL": outboxdbtest.Pooler} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			operatorsReadNoHistory(t, &bench{outboxdbtest.Open(t, open(t))})
		})
	}
}

// What has failed is found by an index of its own, and not among all that waits behind it.
func TestPlans_S3_30_FailedRowsAreNotSearchedForInABacklog(t *testing.T) {
	t.Parallel()
	b := &bench{outboxdbtest.Open(t, outboxdbtest.SQLite(t))}
	m := b.worker("w1")
	rows := b.Insert(outboxdbtest.Numbered("k", 10)...)
	m.settles(failed(time.Hour), failed(time.Hour))
	var found []outbox.Entry
	for _, plan := range b.plans(func(s *outboxdb.Store) {
		var err error
		found, err = s.Find(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.Failed}})
		require.NoError(t, err)
	}) {
		require.Contains(t, plan, "SCAN outbox_queue USING INDEX outbox_queue_due")
	}
	require.Len(t, found, 2)
	require.Equal(t, rows[0].MessageID, found[0].MessageID)
}

// Rows of a broker are looked for from the queue on, in PostgreSQL too, which knows nothing of
// outbox_lanes: its few rows are never analysed. Taken for a rare name, the broker's messages
// were joined with each row of the queue.
func TestPlans_S3_30_RowsOfABrokerInABacklog(t *testing.T) {
	t.Parallel()
	b := &bench{outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))}
	const rows = 5_000
	fill(b.Bench, rows)
	b.Exec("ANALYZE outbox_queue, outbox_messages")
	for _, plan := range b.plans(func(s *outboxdb.Store) {
		result, err := s.Change(t.Context(), outbox.Filter{Target: "default"}, outbox.Change{Verb: outbox.VerbAbandon, DryRun: true})
		require.NoError(t, err)
		require.EqualValues(t, rows+1, result.Changed)
	}) {
		require.NotRegexp(t, `Rows Removed by Join Filter: \d{5,}`, plan)
	}
}

// A backlog that has grown in an empty queue, and that PostgreSQL has yet to count: it takes
// the queue for empty, and goes through an index of it for each row. It has to count early.
func TestPlans_S3_30_ABacklogThatIsYetToBeCounted(t *testing.T) {
	t.Parallel()
	b := &bench{outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))}
	fill(b.Bench, 1)
	b.Exec("DELETE FROM outbox_queue")
	b.Exec("VACUUM ANALYZE outbox_queue")
	var uncounted int
	require.NoError(t, b.DB.NewRaw(`SELECT option_value FROM pg_class, pg_options_to_table(reloptions)
		WHERE oid = 'outbox_queue'::regclass AND option_name = 'autovacuum_analyze_threshold'`).Scan(t.Context(), &uncounted))
	fill(b.Bench, uncounted)
	result, err := b.Store.Change(t.Context(), outbox.Filter{Target: "default"}, outbox.Change{Verb: outbox.VerbAbandon, DryRun: true})
	require.NoError(t, err)
	require.Greater(t, result.Changed, int64(uncounted))
}

func operatorsReadNoHistory(t *testing.T, b *bench) {
	tables := []string{"outbox_queue", "outbox_messages", "outbox_log"}
	each := func(query string) {
		for _, table := range tables {
			if !b.SQLite() {
				b.Exec(strings.ReplaceAll(query, "?", table))
			}
		}
	}
	each("ALTER TABLE ? SET (autovacuum_enabled = false)") // its ANALYZE would tell what has become of the rows
	fill(b.Bench, 50_000)
	each("VACUUM ANALYZE ?")
	b.published()
	each("VACUUM ?")
	m := b.worker("w1")
	rows := b.Insert(outboxdbtest.Numbered("k", 60)...)
	for _, o := range []outcome{given, held, failed(time.Hour)} {
		m.settles(o, o, o, o, o, o, o, o, o, o)
	}
	m.claim(10)
	b.Expire()

	people := peopleDo(t, rows)
	for _, name := range slices.Sorted(maps.Keys(people)) {
		for _, plan := range b.plans(func(s *outboxdb.Store) { require.NoError(t, people[name](s), name) }) {
			if b.SQLite() {
				require.NotRegexp(t, `SCAN (b|g|outbox_messages|outbox_log)\b`, plan, name)
				continue
			}
			require.NotRegexp(t, `Seq Scan on outbox_(messages|log)`, plan, name)
			require.NotRegexp(t, `actual rows=\d{4,}|Rows Removed by Filter: \d{4,}`, plan, name)
		}
	}
}

// published moves what is queued into the log, as if claims of a hundred rows each had
// published it.
func (b *bench) published() {
	b.T.Helper()
	into, of := "INSERT INTO outbox_log (lane, member, n, published, low, high, seqs) SELECT lane, 1, min(seq), count(*), min(seq), max(seq), ", " FROM outbox_queue GROUP BY lane, seq / 100"
	if b.SQLite() {
		b.Exec(into + "json_group_array(seq)" + of)
	} else {
		b.Exec(into + "array_agg(seq)" + of)
	}
	b.Exec("DELETE FROM outbox_queue")
	b.aged()
	require.NoError(b.T, b.Fold(b.T.Context()))
}

// peopleDo is what people ask for and then change, in the order of its names. Nothing
// of it is about published rows.
func peopleDo(t *testing.T, rows []outbox.Row) map[string]func(s *outboxdb.Store) error {
	do := map[string]func(s *outboxdb.Store) error{
		"message": func(s *outboxdb.Store) error {
			_, err := s.Message(t.Context(), rows[len(rows)-1].MessageID)
			return err
		},
		"owners": func(s *outboxdb.Store) error { _, err := s.Owners(t.Context()); return err },
		"held":   func(s *outboxdb.Store) error { _, err := s.Held(t.Context()); return err },
		"stats":  func(s *outboxdb.Store) error { _, err := s.Stats(t.Context()); return err },
	}
	for name, f := range map[string]outbox.Filter{
		"pending":       {Statuses: []outbox.Status{outbox.Pending}},
		"in hand":       {Statuses: []outbox.Status{outbox.Processing}},
		"failed":        {Statuses: []outbox.Status{outbox.Failed}, Error: "no"},
		"abandoned":     {Statuses: []outbox.Status{outbox.Abandoned}, Type: rows[0].MessageType},
		"not published": {Statuses: []outbox.Status{outbox.Pending, outbox.Processing, outbox.Failed, outbox.Abandoned}, CorrelationID: "c-k-1"},
		"key":           {Statuses: []outbox.Status{outbox.Pending}, PartitionKey: "k-1"},
		"later page":    {Statuses: []outbox.Status{outbox.Pending, outbox.Abandoned}, After: 100},
		"held":          {Held: true},
		"stale":         {Stale: true},
		"retry ready":   {RetryReady: true},
		"message":       {MessageID: rows[0].MessageID},
		"seqs":          {Seqs: []int64{1, 2, 50_002}},
	} {
		do["find "+name] = func(s *outboxdb.Store) error { _, err := s.Find(t.Context(), f); return err }
	}
	for name, c := range map[string]outbox.Change{
		"then 0 foretell": {Verb: outbox.VerbRetry, DryRun: true},
		"then 1 skip":     {Verb: outbox.VerbSkip, Limit: 1},
		"then 2 abandon":  {Verb: outbox.VerbAbandon, Limit: 2},
		"then 3 retry":    {Verb: outbox.VerbRetry, Rate: 10},
	} {
		c.Actor = "ada"
		do[name] = func(s *outboxdb.Store) error {
			r, err := s.Change(t.Context(), outbox.Filter{Type: rows[0].MessageType}, c)
			require.NotZero(t, r.Changed, name)
			return err
		}
	}
	return do
}
