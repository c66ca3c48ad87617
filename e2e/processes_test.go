package e2e

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// A shop waits for what was ordered to be paid.
type (
	Basket        struct{ domain.Root }
	BasketOrdered struct {
		OrderID string `json:"order_id"`
	}
	BasketPaid struct {
		OrderID string `json:"order_id"`
	}
	Checkout struct {
		domain.ProcessRoot
		Card, Shelf string
	}
)

const oddOrder = "order/é <b>&?#%2F"

func (c *Checkout) Ordered(BasketOrdered) error {
	c.Card, c.Shelf = "4111", "a-17"
	c.SetTimer("pay-by", c.Now().Add(time.Hour))
	return nil
}

func (c *Checkout) Paid(BasketPaid) error {
	if c.ID() == oddOrder {
		return errors.New(hostile)
	}
	c.End()
	return nil
}

func (c *Checkout) Unpaid() error { c.End(); return nil }

var shop = domain.MustNew("shop",
	domain.Aggregate[*Basket]("basket", domain.Event[BasketOrdered](), domain.Event[BasketPaid]()),
	domain.Process[*Checkout]("checkout", domain.CorrelatedBy("order_id"),
		domain.Starts((*Checkout).Ordered), domain.Hears((*Checkout).Paid), domain.OnTimer("pay-by", (*Checkout).Unpaid)),
)

// Processes are counted by kind and found by what they have in common; one shows what it
// remembers, without what is redacted, and what it waits for. A reader sees neither whose
// they are nor one of them.
func TestObservatory_Processes(t *testing.T) {
	d := &desk{t: t}
	var err error
	d.db, err = sqlite.Open(t.Context(), sqlite.Config{Name: "default", Path: filepath.Join(t.TempDir(), "shop.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.db.Close()) })
	d.units, err = uow.New(uow.Config{Domain: shop, Providers: []uow.Provider{d.db}})
	require.NoError(t, err)
	require.NoError(t, engine.Migrate(t.Context(), d.units))
	server := guard
	server.ShowPayloads, server.Redact = true, []string{"card"}
	s := d.serve(engine.New(engine.Config{
		Contexts: []engine.Context{{Units: d.units, Processes: []process.Config{{Name: "checkout", Queue: subscription.Stream{MaxAttempts: 1}}}}},
		Brokers:  map[string]broker.Broker{"default": memory.New(memory.Config{})},
		Outbox:   outbox.Config{PollInterval: 50 * time.Millisecond, MaxPollInterval: 100 * time.Millisecond},
		Server:   server, Logger: slog.New(slog.DiscardHandler),
	}))
	baskets := repository.New[*Basket](d.units)
	save := func(events ...any) {
		basket := &Basket{Root: domain.NewRoot()}
		for _, e := range events {
			basket.Raise(e)
		}
		require.NoError(t, baskets.Save(context.WithoutCancel(t.Context()), basket))
	}

	b := open(t)
	b.open(s, "#/processes")
	b.shows(`[aria-label="Kinds"] tbody`, "shop.checkout")
	b.shows(`[aria-label="List"]`, "No processes match.")
	save(BasketOrdered{"order-1"})
	save(BasketOrdered{"order-2"}, BasketPaid{"order-2"})
	save(BasketPaid{"order-early"})
	save(BasketOrdered{oddOrder}, BasketPaid{oddOrder})
	b.holds(`[...document.querySelectorAll('[aria-label="Kinds"] tbody td')].slice(1, 5).map((e) => e.innerText).join() === '2,1,1,0'`)
	b.holds(`document.querySelectorAll('[aria-label="List"] tbody tr').length === 4`)
	b.picture("observatory-processes")
	wide(b)
	b.click(`[aria-label="Kinds"] a[href*="status=running"]`)
	b.holds(`document.querySelectorAll('[aria-label="List"] tbody tr').length === 2`)

	b.click(`[aria-label="List"] a[title^="order/"]`)
	b.shows("h1", oddOrder)
	b.shows("#process-status", "running")
	b.shows("main", "pay-by")
	b.shows("main", "Shop.BasketOrdered.v1")
	b.shows("main", "no address <img src=x")
	b.shows("#payload", `"Card": "[redacted]"`)
	b.shows("#payload", `"Shelf": "a-17"`)
	b.picture("observatory-process")
	wide(b)
	b.click(`main a[href^="#/dead-letters?"]`)
	b.shows("#total", "1 message found.")
	b.press("8")
	b.fill("#field-id", "order-early")
	b.press("\r")
	b.click(`[aria-label="List"] a[title="order-early"]`)
	b.shows("#process-status", "Messages arrived before the one that starts it")
	b.shows("main", "It has no state before it starts.")
	b.size(390, 780)
	wide(b)
	b.press("8")
	b.holds(`document.querySelectorAll('[aria-label="List"] tbody tr').length === 4`)
	wide(b)
	b.well()

	r := open(t)
	r.visit(s, "#/processes")
	r.give(reading)
	r.holds(`document.querySelectorAll('[aria-label="List"] tbody tr').length === 4`)
	r.shows(`[aria-label="List"] tbody`, "[hidden]")
	require.NotContains(t, r.text("body"), "order-1")
	r.fill("#field-id", "order-1")
	r.press("\r")
	r.shows(".problem", "takes a token of role operate")
	r.well()
}
