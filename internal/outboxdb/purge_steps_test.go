package outboxdb_test

import (
	"context"
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

// afterPage does something once, between the transactions of a purge, when it has read
// a page of abandoned rows.
type afterPage struct {
	seen bool
	do   func()
}

func (h *afterPage) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if do := h.do; do != nil && h.seen && e.Query == "BEGIN" {
		h.do = nil
		do()
	}
	h.seen = h.seen || strings.Contains(e.Query, "FROM outbox_abandoned")
	return ctx
}

func (*afterPage) AfterQuery(context.Context, *bun.QueryEvent) {}

// F-48: what an operator puts back after a purge has seen it isn't removed. PostgreSQL
// reads and removes in one transaction, and has the rows locked in between.
func TestPurge_F_48_LooksAgain(t *testing.T) {
	b := &bench{outboxdbtest.Open(t, outboxdbtest.SQLite(t))}
	b.Insert("a", "b")
	c := b.worker("w1").settles(given, given)
	b.aged()
	hook := &afterPage{do: func() { require.Equal(t, 1, b.do(outbox.VerbRetry, c.rows[0].Seq)) }}
	hooked := b.As.WithQueryHook(hook)
	removed, err := outboxdb.New(hooked, hooked).Purge(t.Context(), minute)
	require.NoError(t, err)
	require.Nil(t, hook.do, "it was in time")
	require.Equal(t, outbox.Purged{Abandoned: 1}, removed)
	require.Equal(t, []outbox.Status{outbox.Pending}, b.statuses())
	b.consistent()
}

// history publishes claims of so many rows each, long ago.
func (b *bench) history(claims, rows int) {
	b.T.Helper()
	b.insertMany(claims * rows)
	m := b.worker("w1")
	for range claims {
		m.settles(slices.Repeat([]outcome{published}, rows)...)
	}
	b.aged()
}

// F-47: a step that fails costs what it would have removed and nothing else.
// Conformance: U-11.
func TestPurge_F_47_AFailureCostsNothing(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, plain *outboxdbtest.Bench) {
		b := &bench{plain}
		b.history(8, 300)
		drop := "DROP TRIGGER refuse ON outbox_messages"
		if b.SQLite() {
			drop = "DROP TRIGGER refuse"
			b.Exec("CREATE TRIGGER refuse BEFORE DELETE ON outbox_messages WHEN OLD.seq = 2000 BEGIN SELECT RAISE(ABORT, 'not this one'); END")
		} else {
			b.Exec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$")
			b.Exec("CREATE TRIGGER refuse BEFORE DELETE ON outbox_messages FOR EACH ROW WHEN (OLD.seq = 2000) EXECUTE FUNCTION refuse()")
		}
		removed, err := b.Purge(t.Context(), minute)
		require.ErrorContains(t, err, "not this one")
		require.Positive(t, removed.Published)
		require.Less(t, removed.Published, 2000)
		require.Len(t, b.entries(), 2400-removed.Published)
		b.consistent()
		b.Exec(drop)
		require.Equal(t, outbox.Purged{Published: 2400 - removed.Published}, b.purge(minute))
		require.Empty(t, b.entries())
		require.EqualValues(t, 2400, b.stats("default").Counts[outbox.Published])
	})
}

// F-47: on a server on which each row takes 5 ms, a purge makes its steps small enough
// for its limit. Where what one claim published takes longer than that, it gets the
// time that it needs, or it would stay for ever.
// Conformance: U-11.
func TestPurge_F_47_MakesItselfSmall(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]int{"many claims": 20, "a large one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bench{outboxdbtest.Open(t, outboxdbtest.PostgreSQL(t))}
			b.history(claims, 200/claims)
			b.Exec("CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN OLD; END $$")
			b.Exec("CREATE TRIGGER dawdle BEFORE DELETE ON outbox_messages FOR EACH ROW EXECUTE FUNCTION dawdle()")
			steps := &counted{words: "DELETE FROM outbox_messages"}
			hooked := b.As.WithQueryHook(steps)
			removed, err := outboxdb.New(hooked, hooked).Purge(t.Context(), minute)
			require.NoError(t, err)
			require.Equal(t, outbox.Purged{Published: 200}, removed)
			require.Greater(t, steps.n, 3)
			require.Empty(t, b.entries())
		})
	}
}

// counted counts statements that begin with some words.
type counted struct {
	words string
	n     int
}

func (c *counted) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	if strings.HasPrefix(e.Query, c.words) {
		c.n++
	}
	return ctx
}

func (*counted) AfterQuery(context.Context, *bun.QueryEvent) {}

// S2-47: what people are told about when a row expires goes by the setting that engines
// note; for ever is no time.
func TestSettings_Retention(t *testing.T) {
	outboxdbtest.Each(t, func(t *testing.T, plain *outboxdbtest.Bench) {
		b := &bench{plain}
		b.Insert("a", "b", "c")
		b.worker("w1").settles(published, given, held)
		expires := func(r outbox.Retention) (published, abandoned *time.Time) {
			require.NoError(t, b.WriteRetention(t.Context(), outbox.Config{Retention: r}))
			all := b.entries()
			require.Nil(t, all[2].ExpiresAt, "what is held stays")
			return all[0].ExpiresAt, all[1].ExpiresAt
		}
		published, abandoned := expires(outbox.Retention{Published: 2 * time.Hour, Abandoned: 3 * time.Hour})
		require.WithinDuration(t, time.Now().Add(2*time.Hour), *published, time.Minute)
		require.WithinDuration(t, time.Now().Add(3*time.Hour), *abandoned, time.Minute)
		published, abandoned = expires(outbox.Retention{Published: -1, Abandoned: -1})
		require.Nil(t, published)
		require.Nil(t, abandoned)
	})
}
