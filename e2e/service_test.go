package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
	"github.com/waybill-go/waybill/examples/ordering/shipping"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

const (
	token   = "a token of the tests"
	reading = "a token that only reads"

	refusedOrder = "order-refused" // by the partner's broker
	failingOrder = "order-failing" // in shipping
	cents        = 1<<53 + 1       // of an order: no number of JavaScript
	// hostile is what a broker or a handler may say. It must stay text.
	hostile = "no address <img src=x\u202e onerror=\"window.pwned = true\"><script>window.pwned = true</script>"
)

// service is an engine with something wrong, until heal.
type service struct {
	t       *testing.T
	orders  *repository.Repository[*ordering.Order]
	partner *memory.Broker
	ill     atomic.Bool
	away    atomic.Bool  // the partner's broker
	handled atomic.Int64 // of failingOrder
	handler http.Handler
	addr    string
	placed  int // by load
	stop    func()
}

func (s *service) heal() { s.ill.Store(false) }

func start(t *testing.T) *service {
	t.Helper()
	s := &service{t: t, partner: memory.New(memory.Config{})}
	s.ill.Store(true)
	s.partner.FailWhere(func(m broker.Message) error {
		if s.away.Load() {
			return broker.Scoped(broker.Unavailable, broker.ScopeBroker, errors.New("connection refused"))
		}
		if s.ill.Load() && m.Key == refusedOrder {
			return broker.Classify(broker.Permanent, errors.New("the partner refuses this message"))
		}
		return nil
	})
	db, err := sqlite.Open(t.Context(), sqlite.Config{Name: "default", Path: filepath.Join(t.TempDir(), "ordering.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	units, err := uow.New(uow.Config{Domain: ordering.Domain, Providers: []uow.Provider{db}, External: []outbox.Target{{Broker: "partner"}}})
	require.NoError(t, err)
	parcels, err := uow.New(uow.Config{Domain: shipping.Domain, Providers: []uow.Provider{db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), units, parcels))
	s.orders = repository.New[*ordering.Order](units)

	eng, err := engine.New(engine.Config{
		Units:         []*uow.Manager{units, parcels},
		Brokers:       map[string]broker.Broker{"default": memory.New(memory.Config{}), "partner": s.partner},
		Outbox:        outbox.Config{PollInterval: 50 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond},
		Subscriptions: []subscription.Stream{s.shipping(parcels)},
		Server:        engine.Server{Token: token, Tokens: []engine.Token{{Name: "reader", Role: engine.RoleRead, Token: reading}}, ShowPayloads: true},
		Logger:        slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	require.NoError(t, eng.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, eng.Stop(context.Background())) })
	s.handler = eng.Handler()
	s.listen("127.0.0.1:0")
	return s
}

// listen serves the engine's handler until stop.
func (s *service) listen(addr string) {
	l, err := new(net.ListenConfig).Listen(s.t.Context(), "tcp", addr)
	require.NoError(s.t, err)
	s.addr = l.Addr().String()
	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	s.stop = func() {
		_ = server.Close()
		<-done
	}
	s.t.Cleanup(func() { _ = server.Close() })
}

func (s *service) shipping(parcels *uow.Manager) subscription.Stream {
	shipments := repository.New[*shipping.Shipment](parcels)
	stream := shipping.Orders(parcels)
	stream.MaxAttempts, stream.Backoff = 2, time.Millisecond
	stream.Handlers = []subscription.Handler{
		subscription.On(func(ctx context.Context, e shipping.OrderPlaced) error {
			if e.OrderID == failingOrder {
				if s.ill.Load() {
					return errors.New(hostile)
				}
				s.handled.Add(1)
			}
			return shipments.Save(ctx, shipping.Prepare(e.OrderID))
		}),
	}
	return stream
}

func (s *service) place(number string) {
	s.t.Helper()
	order, err := ordering.Import(number, time.Now(), "customer-7", ordering.Line{Article: "book", Quantity: 1, Amount: cents})
	require.NoError(s.t, err)
	require.NoError(s.t, s.orders.Save(s.t.Context(), order))
}

// published is what the partner has of an order.
func (s *service) published(number string) []broker.Message {
	return slices.DeleteFunc(s.partner.Messages("ordering.order"), func(m broker.Message) bool { return m.Key != number })
}

// load places orders for a while.
func (s *service) load(d time.Duration) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		s.placed++
		s.place(fmt.Sprintf("some-order-%d", s.placed))
		<-tick.C
	}
}
