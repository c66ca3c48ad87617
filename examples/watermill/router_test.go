package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"
	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/watermill"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Shipping is a Watermill handler behind a router and middleware, of which one calls it
// twice for each message: each order is shipped once.
func TestRouter(t *testing.T) {
	const size = 50
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(t.TempDir(), "db")})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	orders, err := uow.New(uow.Config{Domain: ordering.Domain, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	shipments, err := uow.New(uow.Config{Domain: shipping.Domain, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(ctx, orders, shipments))

	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
	defer func() { require.NoError(t, pubsub.Close()) }()
	out, err := watermill.New(watermill.Config{Publisher: pubsub})
	require.NoError(t, err)
	subscribed := shipping.Orders(shipments)
	subscribed.Broker, subscribed.Handlers = "router", inAnyOrder(shipments)

	inlet := watermill.NewInlet()
	router := message.NewDefaultRouter(nil)
	router.AddMiddleware(middleware.Recoverer, middleware.Duplicator)
	router.AddConsumerHandler("shipping", subscribed.Topic(), pubsub, inlet.Handler(subscribed.Topic(), subscribed.Name))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()

	eng, err := engine.New(engine.Config{
		Units:         []*uow.Manager{orders, shipments},
		Brokers:       map[string]broker.Broker{"default": out, "router": inlet},
		Outbox:        outbox.Config{},
		Subscriptions: []subscription.Stream{subscribed},
	})
	require.NoError(t, err)
	require.NoError(t, eng.Start(ctx))
	repo := repository.New[*ordering.Order](orders)
	for i := range size {
		o, err := ordering.Place(fmt.Sprint(i), ordering.Line{Article: "book", Quantity: 1, Amount: 100})
		require.NoError(t, err)
		require.NoError(t, repo.Save(ctx, o))
	}
	count := func(query string) (n int) {
		require.NoError(t, db.Reader().NewRaw(query).Scan(ctx, &n))
		return n
	}
	require.Eventually(t, func() bool {
		return count("SELECT count(*) FROM inbox") == size && count("SELECT count(*) FROM outbox WHERE status <> 'published'") == 0
	}, time.Minute, 20*time.Millisecond)
	require.Equal(t, size, count("SELECT count(*) FROM documents WHERE category = 'shipping::shipment'"))
	require.Equal(t, size, count("SELECT count(*) FROM outbox WHERE stream_category = 'shipping::shipment'"))

	// In this order: what is given back must find the way to the broker.
	require.NoError(t, eng.Stop(ctx))
	require.NoError(t, inlet.Close(ctx))
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, out.Close(ctx))
}
