package subscription_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/broker"
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

// PaymentCaptured is an event of a payment provider who speaks no Waybill, but CloudEvents.
type PaymentCaptured struct {
	OrderID string `json:"order_id"`
	Cents   int64  `json:"amount"`
}

var paying = domain.MustNew("paying",
	domain.Aggregate[*Payment]("payment", domain.Event[PaymentNoted]()),
	domain.PartnerEvent[PaymentCaptured]("com.psp.payment.captured"),
)

// Payment is an order's.
type Payment struct {
	domain.Root
	Cents int64
}

type PaymentNoted struct{ OrderID string }

// captured reads the provider's topic, and believes it nothing but the payment.
func captured(units *uow.Manager) subscription.Stream {
	repo := repository.New[*Payment](units)
	return subscription.Stream{
		Name: "payments", Category: "psp::payment", Broker: "psp", Units: units,
		Inbound: subscription.Inbound{
			Topic:  "payments.v1",
			Format: subscription.CloudEvents(),
			Trust:  subscription.Trust{Tenant: subscription.FixedTenant("acme")},
		},
		Handlers: []subscription.Handler{
			subscription.On(func(ctx context.Context, e PaymentCaptured) error {
				p := &Payment{Root: domain.RootWithID("payment-" + e.OrderID), Cents: e.Cents}
				p.Raise(PaymentNoted{e.OrderID})
				return repo.Save(ctx, p)
			}),
		},
	}
}

// semicolons is what an old system sends: "captured;<number>;<order>;<cents>".
func semicolons(m broker.Message) (subscription.Incoming, error) {
	fields := strings.Split(string(m.Body), ";")
	if len(fields) != 4 {
		return subscription.Incoming{}, fmt.Errorf("%d fields, and not 4", len(fields))
	}
	cents, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		return subscription.Incoming{}, err
	}
	data, err := json.Marshal(PaymentCaptured{OrderID: fields[2], Cents: cents})
	return subscription.Incoming{
		Metadata: domain.Metadata{ID: fields[1], Type: "com.psp.payment." + fields[0]},
		Source:   "mainframe", // whose numbers they are
		Key:      fields[2],   // messages of an order stay in order
		Data:     data,
	}, err
}

// A partner's stream is read like any other.
func ExampleCloudEvents() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "paying")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "paying.db")})
	check(err)
	defer func() { check(db.Close()) }()
	check(errors.Join(subscription.Migrations().Up(ctx, db.DB()), repository.Migrations().Up(ctx, db.DB())))
	units, err := uow.New(uow.Config{Domain: paying, Providers: []uow.Provider{db}, NoOutbox: true})
	check(err)

	psp := memory.New(memory.Config{})
	headers := map[string]string{"content-type": "application/json", "ce_specversion": "1.0", "ce_id": "17", "ce_source": "/psp", "ce_type": "com.psp.payment.captured"}
	check(psp.Publish(ctx, []broker.Message{{ID: "17", Topic: "payments.v1", Key: "o-1", Headers: headers, Body: []byte(`{"order_id":"o-1","amount":1250}`)}}))
	check(psp.Publish(ctx, []broker.Message{{ID: "18", Topic: "old", Key: "o-2", Body: []byte("captured;18;o-2;99")}}))

	lines := captured(units)
	lines.Name, lines.Inbound.Topic, lines.Inbound.Format = "old-payments", "old", semicolons
	for _, s := range []subscription.Stream{captured(units), lines} {
		r, err := subscription.NewRunner(subscription.RunnerConfig{Stream: s, Broker: psp})
		check(err)
		check(r.Start(ctx))
		for range time.Tick(time.Millisecond) {
			if psp.Unacknowledged(s.Topic(), s.Name) == 0 {
				break
			}
		}
		check(r.Stop(ctx))
	}
	all, err := repository.New[*Payment](units).All(ctx, repository.Page{})
	check(err)
	for _, p := range all {
		fmt.Println(p.ID(), p.Cents)
	}
	// Output:
	// payment-o-1 1250
	// payment-o-2 99
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
