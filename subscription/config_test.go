package subscription_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

type neverDeclared struct{}

func TestMistakesAreReportedTogether(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	nothing := func(context.Context, OrderPlaced) error { return nil }
	_, err := subscription.NewRunner(subscription.RunnerConfig{Stream: subscription.Stream{
		Units:    w.units,
		Provider: "archive",
		Lanes:    -1,
		Backoff:  -time.Second,
		Batch:    1000, Timeout: -1, MaxAttempts: -1, OnParked: 7, HoldLimit: -1,
		RedeliveryHorizon: -1, InboxRetention: -2,
		Handlers: []subscription.Handler{
			subscription.On(nothing),
			subscription.On(nothing),
			subscription.On(func(context.Context, neverDeclared) error { return nil }),
			subscription.On[OrderCancelled](nil),
			{},
		},
	}})
	for _, part := range []string{
		"Name is missing",
		"Category is missing",
		`no provider "archive"`,
		"Lanes is -1",
		"Backoff is -1s",
		"Batch is 1000: from 1 to 512",
		"Timeout is -1ns",
		"MaxAttempts is -1",
		"OnParked is Policy(7): Hold or Skip",
		"HoldLimit is -1",
		"RedeliveryHorizon is -1ns",
		"InboxRetention is -2ns, but a message may come again for -1ns",
		"Handlers[1]: subscription_test.OrderPlaced has a handler already",
		"Handlers[2]: domain shipping: subscription_test.neverDeclared is not declared",
		"domain.Foreign",
		"Handlers[3]: the function for subscription_test.OrderCancelled is nil",
		"Handlers[4] is empty",
		"RunnerConfig.Broker is missing",
	} {
		require.ErrorContains(t, err, part)
	}

	_, err = subscription.NewRunner(subscription.RunnerConfig{Stream: subscription.Stream{Name: "shipping", Category: category}, Broker: w.broker})
	require.ErrorContains(t, err, "Units is missing")
	require.ErrorContains(t, err, "Handlers is empty")
	require.ErrorContains(t, err, `subscription "shipping"`)

	s := w.streamOf(subscription.On(func(context.Context, ShipmentPrepared) error { return nil }))
	_, err = subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker})
	require.ErrorContains(t, err, "is an event of shipping::shipment and never comes by ordering::order")
	s.Category = "shipping::shipment"
	_, err = subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: memory.New(memory.Config{})})
	require.NoError(t, err, "a context may subscribe to itself")
}

// N: a stream whose category has a mistake, or is another context's than a handler's
// event, would wait for ever for what never comes.
func TestCategory_N_AnotherContextsThanTheEvents(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	check := func(s subscription.Stream) error {
		_, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: w.broker})
		return err
	}
	s := w.stream()
	for _, category := range []string{"orderin::order", "billing::charge", "Ordering::order", "ordering.order", "ordering"} {
		s.Category = category
		require.ErrorContains(t, check(s), fmt.Sprintf("Handlers[0]: subscription_test.OrderPlaced is the event Ordering.OrderPlaced.v1, and Category is %q, which is no stream of the context", category))
		require.ErrorContains(t, check(s), fmt.Sprintf("domain.Foreign[subscription_test.OrderPlaced](\"Ordering.OrderPlaced.v1\", domain.From(%q))", category))
	}
	s.Category = "ordering::invoice"
	require.NoError(t, check(s), "it may be of any aggregate there")

	declared := domain.MustNew("shipping", domain.Foreign[OrderPlaced](placedV1, domain.From("sales::order")))
	var err error
	s.Units, err = uow.New(uow.Config{Domain: declared, Providers: []uow.Provider{w.provider}})
	require.NoError(t, err)
	require.ErrorContains(t, check(s), `subscription_test.OrderPlaced (Ordering.OrderPlaced.v1) comes from "sales::order", as its domain.From says, and Category is "ordering::invoice"`)
	s.Category = "sales::order"
	require.NoError(t, check(s))
}

func TestDefaults(t *testing.T) {
	w := newWorld(t, openSQLite(t))
	s := subscription.Stream{Category: category, Units: w.units}.WithDefaults()
	require.Equal(t, "default", s.Broker)
	require.Equal(t, w.provider.Name(), s.Provider)
	require.Equal(t, 16, s.Lanes)
	require.Equal(t, 1, s.Batch)
	require.Equal(t, time.Minute, s.Timeout)
	require.Equal(t, 8, s.MaxAttempts)
	require.Equal(t, 100*time.Millisecond, s.Backoff)
	require.Equal(t, "hold", s.OnParked.String())
	require.Equal(t, 10_000, s.HoldLimit)
	require.Equal(t, 720*time.Hour, s.InboxRetention)
	require.Equal(t, 168*time.Hour, s.RedeliveryHorizon)
	require.Equal(t, topic, s.Topic())
}
