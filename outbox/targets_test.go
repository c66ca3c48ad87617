package outbox_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/migrate"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/outbox/outboxtest"
)

func TestTargets_FirstComeAndThenFixed(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		ctx := t.Context()
		sales := outbox.TargetsOf("default", []outbox.Target{{Broker: "partner"}, {Broker: "archive"}})
		err := outbox.CheckTargets(ctx, b.DB, "sales", sales)
		require.Equal(t, &outbox.TargetsError{Context: "sales", Want: sales}, err)
		require.EqualError(t, err, "outbox: the database does not know yet that context sales sends to default,archive,partner; run engine.Migrate, or `waybill migrate` with the configuration file")

		require.NoError(t, outbox.InitTargets(ctx, b.DB, "sales", sales))
		require.NoError(t, outbox.InitTargets(ctx, b.DB, "sales", outbox.Targets{Broker: "default", External: []string{"archive", "partner"}}), "in any order")
		require.NoError(t, outbox.CheckTargets(ctx, b.DB, "sales", sales))
		for _, other := range []outbox.Targets{
			{Broker: "default"},
			{Broker: "default", External: []string{"partner"}},
			{Broker: "default", External: []string{"partner", "archive", "more"}},
			{Broker: "main", External: []string{"partner", "archive"}},
			{Broker: "partner", External: []string{"default", "archive"}},
		} {
			var wrong *outbox.TargetsError
			require.ErrorAs(t, outbox.InitTargets(ctx, b.DB, "sales", other), &wrong)
			require.True(t, wrong.Have.Equal(sales), "they stay")
			require.ErrorAs(t, outbox.CheckTargets(ctx, b.DB, "sales", other), &wrong)
		}

		require.NoError(t, outbox.SetTargets(ctx, b.DB, "sales", outbox.Targets{Broker: "main"}))
		require.NoError(t, outbox.CheckTargets(ctx, b.DB, "sales", outbox.Targets{Broker: "main"}))
		all, err := outbox.ReadTargets(ctx, b.DB)
		require.NoError(t, err)
		require.Equal(t, map[string]outbox.Targets{"sales": {Broker: "main", External: []string{}}}, all)
		n, err := outbox.Partitions(ctx, b.DB)
		require.NoError(t, err)
		require.Equal(t, outboxtest.Partitions, n)
	})
}

// Of two processes that come with a new context at the same time, one is first,
// and the other is held to it.
func TestTargets_OneOfTwoIsFirst(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		first := outbox.Targets{Broker: "first"}
		second := b.As.WithQueryHook(onceAfter(func() {
			require.NoError(t, outbox.InitTargets(t.Context(), b.DB, "sales", first))
		}))
		var wrong *outbox.TargetsError
		require.ErrorAs(t, outbox.InitTargets(t.Context(), second, "sales", outbox.Targets{Broker: "second"}), &wrong)
		require.True(t, wrong.Have.Equal(first))
		require.NoError(t, outbox.CheckTargets(t.Context(), b.DB, "sales", first))
	})
}

// onceAfter is a query hook that does something after the first query.
func onceAfter(do func()) bun.QueryHook { return &afterQuery{do: do} }

type afterQuery struct{ do func() }

func (*afterQuery) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h *afterQuery) AfterQuery(context.Context, *bun.QueryEvent) {
	if do := h.do; do != nil {
		h.do = nil
		do()
	}
}

func TestTargets_WhatCannotBe(t *testing.T) {
	each(t, func(t *testing.T, b *outboxtest.Bench) {
		for _, wrong := range []outbox.Targets{{}, {Broker: "a", External: []string{"a"}}, {Broker: "a", External: []string{"b", "b"}}, {Broker: "a", External: []string{""}}} {
			require.ErrorContains(t, outbox.SetTargets(t.Context(), b.DB, "sales", wrong), "name every broker, and none twice")
		}
		b.Exec("INSERT INTO outbox_settings (name, value) VALUES ('targets:sales', 'default')")
		require.ErrorContains(t, outbox.CheckTargets(t.Context(), b.DB, "sales", outbox.Targets{Broker: "default"}),
			"write them anew with `waybill migrate --set-targets sales=<own broker>,<external broker>`")
		require.NoError(t, outbox.SetTargets(t.Context(), b.DB, "sales", outbox.Targets{Broker: "default"}))
		require.NoError(t, outbox.CheckTargets(t.Context(), b.DB, "sales", outbox.Targets{Broker: "default"}))
	})
	for _, db := range []outboxtest.Database{openSQLite(t), openPostgres(t)} {
		var missing *migrate.SchemaError
		require.ErrorAs(t, outbox.CheckTargets(t.Context(), db.Reader(), "sales", outbox.Targets{Broker: "default"}), &missing)
	}
}
