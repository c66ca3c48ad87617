package engine

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow/postgres"
)

// withAbandoned is an engine that gave up one row for the partner, of the first of
// two sales of one key, which is held.
func withAbandoned(t *testing.T) (*bench, *Engine) {
	t.Helper()
	b := setup(t)
	b.partner.FailNext(1, broker.Permanent)
	cfg := b.guarded()
	cfg.Outbox.OnAbandoned = outbox.Hold
	cfg.Server.ShowPayloads = true
	e := b.start(cfg)
	s := newSale(1)
	require.NoError(t, b.repo.Save(t.Context(), s))
	eventually(t, func() bool { return len(entries(t, e, "status=abandoned")) == 1 })
	s.Raise(SaleMade{Amount: 2})
	require.NoError(t, b.repo.Save(t.Context(), s))
	eventually(t, func() bool { return len(entries(t, e, "status=published")) == 2 })
	return b, e
}

func entries(t *testing.T, e *Engine, query string) []rowReport {
	t.Helper()
	var got messagesReport
	require.Equal(t, 200, call(t, e, "GET", "/api/outbox/messages?"+query, "", &got), query)
	return got.Messages
}

// A86: rows are listed by every filter, a page at a time.
func TestAPI_A86_ListMessages(t *testing.T) {
	_, e := withAbandoned(t)
	all := entries(t, e, "")
	require.Len(t, all, 4)
	var given rowReport
	for _, r := range all {
		if r.Status == outbox.Abandoned {
			given = r
		}
	}
	require.Equal(t, "default", given.Provider)
	require.Equal(t, "partner", given.Target)
	require.True(t, given.Held)
	require.Equal(t, 1, given.Attempts)
	require.Equal(t, "permanent", *given.FailureClass)
	require.NotEmpty(t, *given.LastError)
	require.NotNil(t, given.LastAttemptAt)
	require.Nil(t, given.PublishedAt)
	require.Nil(t, given.LockedBy)
	require.Nil(t, given.CausationID)
	for query, want := range map[string]int{
		"provider=default":                                     4,
		"target=partner":                                       2,
		"status=abandoned":                                     1,
		"status=abandoned&status=published":                    3,
		"type=Sales.SaleMade.v1":                               4,
		"type=Sales.SaleNoted.v1":                              0,
		"stream=" + url.QueryEscape(given.Stream):              4,
		"key=" + given.Key:                                     4,
		"message=" + given.MessageID:                           2,
		"correlation=" + url.QueryEscape(*given.CorrelationID): 2,
		"causation=x":                                          0,
		"error=" + url.QueryEscape((*given.LastError)[1:5]):    1,
		"held=true":                                            1,
		"from=2020-01-02T03:04:05Z&until=9999-01-01T00:00:00Z": 4,
		"until=2020-01-02T03:04:05Z":                           0,
	} {
		require.Len(t, entries(t, e, query), want, query)
	}
	var page messagesReport
	require.Equal(t, 200, call(t, e, "GET", "/api/outbox/messages?limit=3", "", &page))
	require.Len(t, page.Messages, 3)
	require.Equal(t, page.Messages[2].Seq, page.Next["default"])
	require.Equal(t, 200, call(t, e, "GET", fmt.Sprintf("/api/outbox/messages?limit=1&after=%d", page.Next["default"]), "", &page))
	require.Len(t, page.Messages, 1)

	require.Contains(t, refused(t, e, 400, "GET", "/api/outbox/messages?message=1", ""), `message is "1": it takes a UUID`)
	require.Contains(t, refused(t, e, 400, "GET", "/api/outbox/messages?held=yes", ""), `held is "yes": it takes true`)
	require.Contains(t, refused(t, e, 400, "GET", "/api/outbox/messages/1", ""), "which is a UUID")
	require.Contains(t, refused(t, e, 404, "GET", "/api/outbox/messages/0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d", ""), "the outbox has no message")
}

// A86: a row is retried by its number, tried out first, and on record; what was held
// behind it follows.
func TestAPI_A86_RetryOneRow(t *testing.T) {
	b, e := withAbandoned(t)
	given := entries(t, e, "status=abandoned")[0]
	filter := fmt.Sprintf(`{"seqs": [%d, 999]}`, given.Seq)
	var got outbox.ChangeResult
	require.Equal(t, 200, call(t, e, "POST", "/api/outbox/messages/retry", `{"filter": `+filter+`, "dry_run": true}`, &got))
	require.Equal(t, outbox.ChangeResult{Changed: 1, Refused: map[outbox.Status]int64{}, Missing: []int64{999}, UpTo: got.UpTo}, got)
	require.Len(t, entries(t, e, "status=abandoned"), 1)

	require.Equal(t, 200, call(t, e, "POST", "/api/outbox/messages/retry",
		`{"provider": "default", "filter": `+filter+`, "rate": 1000, "limit": 10.0, "actor": "ann"}`, &got))
	require.EqualValues(t, 1, got.Changed)
	eventually(t, func() bool { return len(entries(t, e, "status=published")) == 4 })
	actions, err := outboxdb.New(b.db.DB(), b.db.Reader()).Actions(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, actions, 1)
	require.Equal(t, "token: ann", actions[0].Actor)
	require.Equal(t, got.Action, actions[0].ID)
}

// A86: a waiting row is given up, and a held one is skipped.
func TestAPI_A86_AbandonAndSkip(t *testing.T) {
	_, e := withAbandoned(t)
	var got outbox.ChangeResult
	require.Equal(t, 200, call(t, e, "POST", "/api/outbox/messages/abandon", `{"filter": {"target": "partner", "statuses": ["pending"]}, "actor": "ann"}`, &got))
	require.EqualValues(t, 1, got.Changed)
	require.Equal(t, 200, call(t, e, "POST", "/api/outbox/messages/skip", `{"filter": {"held": true}, "actor": "ann"}`, &got))
	require.EqualValues(t, 1, got.Changed)
	require.Empty(t, entries(t, e, "held=true"))
	require.Len(t, entries(t, e, "status=abandoned"), 2)
}

func TestAPI_ChangesThatAreWrong(t *testing.T) {
	_, e := withAbandoned(t)
	for body, want := range map[string]string{
		`{"actor": "ann"}`:                                                   "filter is missing or empty, which would be every row",
		`{"filter": {}, "actor": "ann"}`:                                     "filter is missing or empty",
		`{"filter": {"held": false}, "actor": "ann"}`:                        "filter.held is false: leave it out",
		`{"filter": {"held": true}}`:                                         "actor is missing",
		`{"filter": {"held": true, "limit": 5}, "actor": "ann"}`:             "filter has after or limit",
		`{"filter": {"message_id": "1"}, "actor": "ann"}`:                    "which is not a UUID",
		`{"filter": {"statuses": ["lost"]}, "actor": "ann"}`:                 "it takes one of pending",
		`{"filter": {"statuses": ["published", "pending"]}, "actor": "ann"}`: `there are ["failed" "abandoned"]`,
		`{"filter": {"seqs": [1.5]}, "actor": "ann"}`:                        "filter.seqs can't be a number",
	} {
		require.Contains(t, refused(t, e, 400, "POST", "/api/outbox/messages/retry", body), want, body)
	}
	require.Contains(t, refused(t, e, 400, "POST", "/api/outbox/messages/skip", `{"filter": {"held": true}, "actor": "ann", "rate": 1}`), `unknown field "rate"`)
	require.Len(t, entries(t, e, "status=abandoned"), 1)
}

// A message is shown with its rows, its payload, what became of it, and what it
// led to.
func TestAPI_ShowMessage(t *testing.T) {
	b := setup(t)
	cfg := b.guarded()
	cfg.Server.ShowPayloads = true
	s := b.orders(func(ctx context.Context, sold Sold) error {
		if sold.Amount == 2 {
			return subscription.Park(fmt.Errorf("not for us"))
		}
		return repository.New[*parcel](b.parcels).Save(ctx, newParcel(mustMetadata(ctx).ID))
	})
	cfg.Subscriptions = []subscription.Stream{s}
	e := b.start(cfg)
	b.sell(2)
	first := entries(t, e, "type=Sales.SaleMade.v1")[0]
	var got messageReport
	eventually(t, func() bool {
		got = messageReport{}
		require.Equal(t, 200, call(t, e, "GET", "/api/outbox/messages/"+first.MessageID, "", &got))
		return len(got.Consumed) == 1 && got.Rows[0].PublishedAt != nil && got.Rows[1].PublishedAt != nil
	})
	require.Len(t, got.Rows, 2)
	require.Equal(t, "Sales.SaleMade.v1", got.Type)
	require.Equal(t, first.Stream, got.Stream)
	require.Equal(t, "parcels", got.Consumed[0].Subscription)
	require.Empty(t, got.DeadLetters)
	require.Len(t, got.Related, 1)
	require.Equal(t, "Parcels.ParcelSent.v1", got.Related[0].Type)
	require.Equal(t, first.MessageID, *got.Related[0].CausationID)
	require.Nil(t, got.PayloadHidden)
	require.Contains(t, got.Payload.(map[string]any)["metadata"], "event_store", "as the own broker gets it")

	second := entries(t, e, "type=Sales.SaleMade.v1&target=default")[1]
	eventually(t, func() bool {
		got = messageReport{}
		require.Equal(t, 200, call(t, e, "GET", "/api/outbox/messages/"+second.MessageID, "", &got))
		return len(got.DeadLetters) == 1
	})
	require.Empty(t, got.Consumed, "it is parked")
	require.Equal(t, subscription.DeadLetterParked, got.DeadLetters[0].Status)
	require.Contains(t, got.DeadLetters[0].Error, "not for us")
	require.Empty(t, got.Related)
	require.NotNil(t, got.Related)
}

// Who publishes what, by provider, target and partition; a database that doesn't
// answer is null.
func TestAPI_Partitions(t *testing.T) {
	b := setup(t)
	cfg, other := b.withAnalytics()
	cfg.Server.Token = token
	e := b.start(cfg)
	var got partitionsReport
	eventually(t, func() bool {
		got = partitionsReport{}
		require.Equal(t, 200, call(t, e, "GET", "/api/partitions", "", &got))
		partner := got.Providers["default"]["partner"]
		return len(partner) == 64 && partner[63].Live && partner[63].Owner != nil && len(got.Providers["analytics"]["default"]) == 64
	})
	p := got.Providers["default"]["partner"][63]
	require.Equal(t, 63, p.Partition)
	require.Positive(t, p.Fence)
	require.NotNil(t, p.Until)
	require.Zero(t, p.Unfinished)
	require.Nil(t, p.OldestSeconds)
	require.Empty(t, got.Errors)

	other.down.Store(true)
	eventually(t, func() bool { // What was found last is good for a second.
		got = partitionsReport{}
		require.Equal(t, 200, call(t, e, "GET", "/api/partitions", "", &got))
		return got.Providers["analytics"] == nil
	})
	require.Contains(t, got.Errors["analytics"], "doesn't answer in time")
	require.Len(t, got.Providers["default"]["partner"], 64)
	for _, path := range []string{"/api/outbox/messages", "/api/outbox/messages/0198f3c2-7d8e-7b9a-8c6d-5e4f3a2b1c0d"} {
		require.Contains(t, refused(t, e, 503, "GET", path, ""), `provider "analytics" doesn't answer in time`)
	}
	require.Empty(t, entries(t, e, "provider=default"))
}

// A search that finds no end on PostgreSQL is ended, says how to ask better, and
// leaves nothing running.
func TestAPI_ASearchWithoutEnd(t *testing.T) {
	u := newDatabaseOn(t)
	b := setupOn(t, openPostgres(t, postgres.Config{DSN: u.String()}))
	e := b.start(b.guarded())
	var tx bun.Tx
	eventually(t, func() bool { // the view's tables are locked one after the other, which the engine's statements can make a deadlock of
		var err error
		tx, err = b.db.DB().BeginTx(t.Context(), nil)
		require.NoError(t, err)
		if _, err = tx.ExecContext(t.Context(), "LOCK TABLE outbox"); err != nil {
			require.ErrorContains(t, err, "40P01")
			require.NoError(t, tx.Rollback())
		}
		return err == nil
	})
	require.Contains(t, refused(t, e, 503, "GET", "/api/outbox/messages", ""), `provider "default" has no answer within 5s; a search among published rows`)
	eventually(t, func() bool {
		var running int
		require.NoError(t, b.db.DB().NewRaw("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"+
			" AND query LIKE '%FROM outbox WHERE TRUE%' AND pid <> pg_backend_pid()").Scan(t.Context(), &running))
		return running == 0
	})
	require.NoError(t, tx.Rollback())
	require.Empty(t, entries(t, e, ""))
}

// Pages that are open ask the database once: what waits in each partition is dear to count of a long queue.
func TestAPI_PartitionsAreCountedOnceForAllWhoAsk(t *testing.T) {
	b := setup(t)
	e := b.start(b.config())
	d := e.databases[0]
	var counts atomic.Int64
	d.owners = newCount(func(ctx context.Context) found[[]outbox.Owned] {
		counts.Add(1)
		return d.partitionOwners(ctx)
	}, e.lookouts)
	d.owners.rest = 1_000_000 // what is found stays good until the test ends
	for range 10 {
		var got partitionsReport
		require.Equal(t, 200, call(t, e, "GET", "/api/partitions", "", &got))
		require.Len(t, got.Providers["default"]["partner"], 64)
	}
	require.EqualValues(t, 1, counts.Load())
}
