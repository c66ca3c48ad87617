package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
	"github.com/waybill-go/waybill/uow/postgres"
)

// plans are the plans of all statements that do sends and EXPLAIN knows.
func plans(t *testing.T, b *outboxtest.Bench, do func(s *outbox.Store)) (all []string) {
	t.Helper()
	watched, sent := watched(b)
	do(watched.Store)
	settings := []string{}
	for _, q := range sent.Take() {
		if strings.Contains(q, "FROM outbox ") || strings.Contains(q, "UPDATE outbox ") {
			tx, err := b.DB.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			for _, s := range settings {
				_, err := tx.ExecContext(t.Context(), s)
				require.NoError(t, err)
			}
			var plan []string
			require.NoError(t, tx.NewRaw("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ?", bun.Safe(q)).Scan(t.Context(), &plan))
			require.NoError(t, tx.Rollback())
			all = append(all, q[:min(len(q), 300)]+"\n"+strings.Join(plan, "\n"))
		}
		if strings.Contains(q, "set_config") {
			settings = append(settings, q) // those after it read what it sets
		}
	}
	require.NotEmpty(t, all)
	return all
}

// pages is how many a statement has read, by its plan.
func pages(plan string) (n int) {
	execution, _, _ := strings.Cut(plan, "Planning:")
	m := regexp.MustCompile(`(?m)^ *Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`).FindStringSubmatch(execution)
	for _, digits := range m[min(1, len(m)):] {
		some, _ := strconv.Atoi("0" + digits)
		n += some
	}
	return n
}

// lasting are the plans of the statements that do sends prepared, as they are when
// PostgreSQL has stopped to look at their values.
func lasting(t *testing.T, b *outboxtest.Bench, do func(s *outbox.Store)) (all []string) {
	t.Helper()
	watched, _ := watched(b)
	type statement struct{ name, prepare, execute string }
	var statements []statement
	watched.Observe(func(query string, values []any) {
		name := fmt.Sprint("lasting", len(statements))
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = outboxtest.Literal(v)
		}
		statements = append(statements, statement{
			name:    name,
			prepare: "PREPARE " + name + " AS " + query,
			execute: "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE " + name,
		})
		if len(texts) > 0 {
			statements[len(statements)-1].execute += "(" + strings.Join(texts, ", ") + ")"
		}
	})
	do(watched.Store)
	require.NotEmpty(t, statements)
	tx, err := b.DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback()) }()
	_, err = tx.ExecContext(t.Context(), "SET LOCAL plan_cache_mode = force_generic_plan")
	require.NoError(t, err)
	for _, s := range statements {
		_, err := tx.ExecContext(t.Context(), s.prepare)
		require.NoError(t, err, s.prepare)
		var plan []string
		require.NoError(t, tx.NewRaw("?", bun.Safe(s.execute)).Scan(t.Context(), &plan), s.execute)
		all = append(all, strings.Join(plan, "\n"))
		_, err = tx.ExecContext(t.Context(), "DEALLOCATE "+s.name)
		require.NoError(t, err)
	}
	return all
}

// F-49, F-50: with a long history, nothing that is done regularly reads it:
// claim, takeover, write-back, purge and signals all go by an index, also while
// the server believes that most rows are unfinished, as they were when it last
// counted.
func TestPlans_F_49_F_50_NothingReadsTheHistory(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	check := func() {
		b.Insert(outboxtest.Numbered("k", 100)...)
		b.Expire()
		dead := b.Worker("dead", outboxtest.Partitions, time.Minute)
		c := dead.Claim(20)
		dead.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Abandoned, Class: "permanent", Error: "x"})...)
		c = dead.Claim(20)
		dead.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour})...)
		c = dead.Claim(20)
		require.Len(t, c.Rows, 20)
		b.Expire()
		var leases []outbox.Lease
		for _, do := range []func(s *outbox.Store){
			func(s *outbox.Store) {
				_, err := s.Purge(t.Context(), outbox.Retention{})
				require.NoError(t, err)
			},
			func(s *outbox.Store) {
				stats, err := s.Stats(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 20, stats["default"].Counts[outbox.Processing])
			},
			func(s *outbox.Store) {
				_, err := s.Settle(t.Context(), outbox.Settlement{Claim: c.ID, Target: "default", Outcomes: outboxtest.All(c, outbox.Outcome{Status: outbox.Published})})
				require.NoError(t, err)
			},
		} {
			for _, plan := range plans(t, b, do) {
				require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan)
			}
		}
		for _, plan := range plans(t, b, func(s *outbox.Store) {
			var err error
			leases, _, err = s.Acquire(t.Context(), outboxtest.Owner("heir", time.Minute), outboxtest.Partitions)
			require.NoError(t, err)
		}) {
			require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan, "takeover")
		}
		for _, plan := range lasting(t, b, func(s *outbox.Store) {
			claim, err := s.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "heir", Leases: leases, Limit: 10, MaxAttempts: 5, Memory: &outbox.Memory{}})
			require.NoError(t, err)
			_, err = s.Settle(t.Context(), outbox.Settlement{Claim: claim.ID, Target: "default", Outcomes: outboxtest.All(claim, outbox.Outcome{Status: outbox.Published})})
			require.NoError(t, err)
		}) {
			require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan, "plans that stay")
		}
		for _, plan := range plans(t, b, func(s *outbox.Store) {
			for _, memory := range []*outbox.Memory{nil, {}} {
				claim, err := s.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "heir", Leases: leases, Limit: 10, MaxAttempts: 5, Memory: memory})
				require.NoError(t, err)
				require.NotEmpty(t, claim.Rows)
			}
		}) {
			require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan, "claim")
		}
	}
	fillPublished(b, 50_000, time.Hour)
	b.Exec("VACUUM ANALYZE outbox")
	check()

	b.Exec("TRUNCATE outbox")
	b.Exec("ALTER TABLE outbox SET (autovacuum_enabled = false)")
	fillPublished(b, 20_000, time.Hour)
	b.Exec("ALTER TABLE outbox DISABLE TRIGGER outbox_life_cycle")
	b.Exec("UPDATE outbox SET status = 'pending', published_at = NULL, finished_at = NULL, expires_at = NULL")
	b.Exec("VACUUM ANALYZE outbox")
	b.Exec("UPDATE outbox SET status = 'published', published_at = now(), finished_at = now(), expires_at = now() + interval '1 hour'")
	b.Exec("ALTER TABLE outbox ENABLE TRIGGER outbox_life_cycle")
	check()
}

// S3-30: what operators ask for goes by an index, whatever the number of published
// rows, also while the server believes that most rows are unfinished.
func TestPlans_S3_30_OperatorsReadNoHistory(t *testing.T) {
	b := outboxtest.Open(t, openDatabase(t))
	b.Exec("ALTER TABLE outbox SET (autovacuum_enabled = false)")
	fillPublished(b, 50_000, time.Hour)
	check := func(t *testing.T) {
		rows := b.Insert(outboxtest.Numbered("k", 60)...)
		w := b.Worker("w1", outboxtest.Partitions, time.Minute)
		for _, o := range []outbox.Outcome{
			{Status: outbox.Abandoned, Class: "permanent", Error: "x"},
			{Status: outbox.Abandoned, Class: "permanent", Error: "x", Hold: true},
			{Status: outbox.Failed, Class: "transient", Error: "x", After: time.Hour},
		} {
			c := w.Claim(10)
			w.Settle(c, outboxtest.All(c, o)...)
		}
		w.Claim(10)
		b.Expire()
		do := map[string]func(s *outbox.Store) error{
			"message": func(s *outbox.Store) error { _, err := s.Message(t.Context(), rows[len(rows)-1].MessageID); return err },
			"owners":  func(s *outbox.Store) error { _, err := s.Owners(t.Context()); return err },
			"stats":   func(s *outbox.Store) error { _, err := s.Stats(t.Context()); return err },
		}
		for name, f := range map[string]outbox.Filter{
			"pending":       {Statuses: []outbox.Status{outbox.Pending}},
			"failed":        {Statuses: []outbox.Status{outbox.Failed}, Error: "x"},
			"abandoned":     {Statuses: []outbox.Status{outbox.Abandoned}, Type: "Ordering.OrderPlaced.v1"},
			"not published": {Statuses: []outbox.Status{outbox.Pending, outbox.Processing, outbox.Failed, outbox.Abandoned}, CorrelationID: "c-k-1"},
			"key":           {Statuses: []outbox.Status{outbox.Pending}, PartitionKey: "k-1"},
			"later page":    {Statuses: []outbox.Status{outbox.Pending, outbox.Abandoned}, After: 100},
			"held":          {Held: true},
			"stale":         {Stale: true},
			"retry ready":   {RetryReady: true},
			"message":       {MessageID: rows[0].MessageID},
			"seqs":          {Seqs: []int64{1, 2, 50_001}},
		} {
			do["find "+name] = func(s *outbox.Store) error { _, err := s.Find(t.Context(), f); return err }
			for _, verb := range []outbox.Verb{outbox.VerbRetry, outbox.VerbAbandon, outbox.VerbSkip} {
				if len(f.Statuses) == 0 {
					do[string(verb)+" "+name] = func(s *outbox.Store) error {
						_, err := s.Change(t.Context(), f, outbox.Change{Verb: verb, DryRun: true})
						return err
					}
				}
			}
		}
		for name, f := range do {
			for _, plan := range plans(t, b, func(s *outbox.Store) { require.NoError(t, f(s), name) }) {
				require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan, name)
				require.Less(t, pages(plan), 1000, "%s: %s", name, plan)
			}
		}
		for _, c := range []outbox.Change{
			{Verb: outbox.VerbSkip, Limit: 1},
			{Verb: outbox.VerbAbandon, Limit: 2},
			{Verb: outbox.VerbRetry, Rate: 10},
			{Verb: outbox.VerbAbandon},
			{Verb: outbox.VerbRetry},
		} {
			c.Actor = "ada"
			for _, plan := range plans(t, b, func(s *outbox.Store) {
				r, err := s.Change(t.Context(), outbox.Filter{Type: "Ordering.OrderPlaced.v1"}, c)
				require.NoError(t, err)
				require.NotZero(t, r.Changed, c)
			}) {
				require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan, c)
				require.Less(t, pages(plan), 3000, "%v: %s", c, plan)
			}
		}
	}
	t.Run("counted", func(t *testing.T) {
		b.Exec("VACUUM ANALYZE outbox")
		check(t)
	})
	t.Run("counted while they were unfinished", func(t *testing.T) {
		b.Exec("TRUNCATE outbox")
		fillPublished(b, 50_000, time.Hour)
		b.Exec("ALTER TABLE outbox DISABLE TRIGGER outbox_life_cycle")
		b.Exec("UPDATE outbox SET status = 'pending', published_at = NULL, finished_at = NULL, expires_at = NULL")
		b.Exec("VACUUM ANALYZE outbox")
		b.Exec("UPDATE outbox SET status = 'published', published_at = now(), finished_at = now(), expires_at = now() + interval '1 hour'")
		b.Exec("VACUUM outbox")
		b.Exec("ALTER TABLE outbox ENABLE TRIGGER outbox_life_cycle")
		check(t)
	})
}

// openDatabase gives a test a database of its own, in which no transaction of
// another test keeps old versions alive.
func openDatabase(t *testing.T) outboxtest.Database {
	at, err := url.Parse(os.Getenv("WAYBILL_POSTGRES"))
	require.NoError(t, err)
	server, err := postgres.Open(t.Context(), postgres.Config{DSN: at.String()})
	require.NoError(t, err)
	name := "outbox_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	_, err = server.DB().ExecContext(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	at.Path = "/" + name
	p, err := postgres.Open(t.Context(), postgres.Config{DSN: at.String()})
	t.Cleanup(func() {
		if p != nil {
			require.NoError(t, p.Close())
		}
		_, err := server.DB().ExecContext(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
		require.NoError(t, server.Close())
	})
	require.NoError(t, err)
	return p
}

// F-46: a claim rewrites its rows without touching an index, and what is written
// all the time, leases, workers and counters, doesn't grow.
func TestBloat_F_46_ClaimsAreHOTAndLeasesStaySmall(t *testing.T) {
	b := outboxtest.Open(t, openDatabase(t))
	stat := func() (updates, hot int) {
		b.Exec("SELECT pg_stat_force_next_flush()")
		require.NoError(t, b.DB.NewRaw("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass").Scan(t.Context(), &updates, &hot))
		return updates, hot
	}
	const rows = 1000
	all := make([]outbox.Row, rows)
	for i := range all {
		all[i] = outboxtest.Row(fmt.Sprint(i))
		all[i].Payload = bytes.Repeat([]byte("x"), 1000)
	}
	b.InsertRows(all...)
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	var claims []outbox.Claim
	for n := 0; n < rows; n += len(claims[len(claims)-1].Rows) {
		claims = append(claims, w.Claim(rows/2))
	}
	var updates, hot int
	// A session reports what it has done within seconds.
	require.Eventually(t, func() bool { updates, hot = stat(); return updates >= rows }, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, rows, updates)
	require.GreaterOrEqual(t, hot, rows*95/100, "a page that is full all the same")

	for _, c := range claims {
		w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Published})...)
	}
	size := func() (pages int) {
		require.NoError(t, b.DB.NewRaw("SELECT (pg_relation_size('outbox_partitions') + pg_relation_size('outbox_workers') + pg_relation_size('outbox_published')) / 8192").Scan(t.Context(), &pages))
		return pages
	}
	// Without pages being used again, so many renewals would fill eight more.
	grows := func() bool {
		before := size()
		for range 100 {
			kept, err := b.Announce(t.Context(), b.DB, "default", []string{"w1"}, w.Leases, time.Minute)
			require.NoError(t, err)
			require.Len(t, kept, outboxtest.Partitions)
			b.Insert("k")
			c := w.Claim(1)
			w.Settle(c, outboxtest.All(c, outbox.Outcome{Status: outbox.Published})...)
		}
		return size() > before+1
	}
	for range 20 {
		if !grows() {
			return
		}
	}
	require.Fail(t, "it grows and grows")
}

// A plan is made once per connection. One that is made while the table is small goes
// by the indexes too, as it stays when the table grows.
func TestPlans_OfASmallTableLast(t *testing.T) {
	b := outboxtest.Open(t, openPostgres(t))
	w := b.Worker("w1", outboxtest.Partitions, time.Minute)
	b.Insert("k")
	b.Exec("VACUUM ANALYZE outbox")
	var c outbox.Claim
	lasts := func(do func(s *outbox.Store)) {
		t.Helper()
		for _, plan := range lasting(t, b, do) {
			require.NotRegexp(t, `Seq Scan on outbox( |$|\n)`, plan)
		}
	}
	for _, remove := range []bool{false, true} {
		lasts(func(s *outbox.Store) {
			var err error
			c, err = s.Claim(t.Context(), outbox.ClaimRequest{Target: "default", Worker: "w1", Leases: w.Leases, Limit: 10, MaxAttempts: 5, Memory: &outbox.Memory{}})
			require.NoError(t, err)
			require.Len(t, c.Rows, 1)
		})
		lasts(func(s *outbox.Store) {
			stale, err := s.Settle(t.Context(), outbox.Settlement{
				Claim: c.ID, Target: "default", Retention: outbox.Retention{Published: time.Hour, Delete: remove},
				Outcomes: outboxtest.All(c, outbox.Outcome{Status: outbox.Published}),
			})
			require.NoError(t, err)
			require.Zero(t, stale)
		})
		b.Exec("DELETE FROM outbox")
		b.Insert("k")
	}
}
