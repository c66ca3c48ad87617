package subscription_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Invoice is billing's own aggregate.
type Invoice struct {
	domain.Root
	Debtor string
	Cents  int64
}

type InvoiceIssued struct {
	InvoiceID string `json:"invoice_id"`
}

// Billed is what billing wants to know of an order, in ordering's form.
type Billed struct {
	OrderID    string `json:"order_id"`
	CustomerID string `json:"customer_id"`
	Total      int64  `json:"total"` // cents
}

var billing = domain.MustNew("billing",
	domain.Aggregate[*Invoice]("invoice", domain.Event[InvoiceIssued]()),
	domain.Foreign[Billed]("Ordering.OrderPlaced.v1"),
)

// An anti-corruption layer: the only place where ordering's words become
// billing's. What has no translation is parked, for people to look at.
func (e Billed) invoice() (*Invoice, error) {
	if e.CustomerID == "" {
		return nil, subscription.Park(fmt.Errorf("order %s has no customer to bill", e.OrderID))
	}
	i := &Invoice{Root: domain.RootWithID("invoice-" + e.OrderID), Debtor: e.CustomerID, Cents: e.Total}
	i.Raise(InvoiceIssued{InvoiceID: i.ID()})
	return i, nil
}

func invoices(units *uow.Manager) subscription.Stream {
	repo := repository.New[*Invoice](units)
	return subscription.Stream{
		Name:     "billing",
		Category: "ordering::order",
		Units:    units,
		Handlers: []subscription.Handler{
			subscription.On(func(ctx context.Context, e Billed) error {
				i, err := e.invoice()
				if err != nil {
					return err
				}
				return repo.Save(ctx, i)
			}),
		},
	}
}

// turnover keeps a table of its own: what each customer has ordered.
func turnover(units *uow.Manager) subscription.Stream {
	return subscription.Stream{
		Name:     "turnover",
		Category: "ordering::order",
		Units:    units,
		Batch:    50,
		Handlers: []subscription.Handler{
			subscription.On(func(ctx context.Context, e Billed) error {
				return uow.Exec(ctx, "INSERT INTO turnover (customer, cents) VALUES (?, ?)"+
					" ON CONFLICT (customer) DO UPDATE SET cents = turnover.cents + excluded.cents", e.CustomerID, e.Total)
			}),
		},
	}
}

var errClosed = errors.New("the bank is closed")

// charge is somebody else's server.
func charge(ctx context.Context, key string, e Billed) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://bank.example/charges", nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func payments(units *uow.Manager) subscription.Stream {
	return subscription.Stream{
		Broker:  "partner", // which is not believed, but for
		Inbound: subscription.Inbound{Trust: subscription.Trust{Tenant: subscription.TenantAmong("acme"), Correlation: true}},

		Name:     "payments",
		Category: "ordering::order",
		Units:    units,
		Handlers: []subscription.Handler{
			subscription.On(func(ctx context.Context, e Billed) error {
				m, _ := domain.MetadataFrom(ctx)
				status, err := charge(ctx, m.ID, e) // may happen again: so it has a key
				switch {
				case err != nil:
					return err // tried again, then parked
				case status == http.StatusServiceUnavailable:
					return subscription.RetryAfter(errClosed, 10*time.Minute)
				case status == http.StatusConflict:
					return subscription.Drop(errors.New("paid in cash"))
				case status >= 400:
					return subscription.Park(fmt.Errorf("the bank refuses: status %d", status))
				}
				return nil
			}),
		},
		Timeout:     20 * time.Second,
		MaxAttempts: 10,
		OnParked:    subscription.Skip, // payments don't depend on each other
	}
}

// A runner is made by the engine; here by hand, on a broker in memory.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "billing")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "billing.db")})
	check(err)
	defer func() { check(db.Close()) }()
	check(subscription.Migrations().Up(ctx, db.DB()))
	_, err = db.DB().ExecContext(ctx, "CREATE TABLE turnover (customer text PRIMARY KEY, cents bigint NOT NULL)")
	check(err)
	units, err := uow.New(uow.Config{Domain: billing, Providers: []uow.Provider{db}, NoOutbox: true})
	check(err)

	b := memory.New(memory.Config{})
	order := message("1", "Ordering.OrderPlaced.v1", "o-1", `{"order_id":"o-1","customer_id":"c-1","total":1250}`)
	check(b.Publish(ctx, append(orders(0), order, order))) // it comes twice

	for _, s := range []subscription.Stream{turnover(units), invoices(units), payments(units)} {
		_, err = subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: b})
		check(err)
	}
	r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: turnover(units), Broker: b})
	check(err)
	check(r.Start(ctx))
	for range time.Tick(time.Millisecond) {
		if b.Unacknowledged(topic, "turnover") == 0 {
			break
		}
	}
	check(r.Stop(ctx))
	var cents int64
	check(db.DB().QueryRowContext(ctx, "SELECT cents FROM turnover").Scan(&cents))
	fmt.Println(cents)
	// Output: 1250
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
