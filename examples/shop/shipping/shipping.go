// Package shipping has articles in stock and sends parcels. It refuses to send what is
// sold out, which whoever asked for it hears.
package shipping

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Stock is how many of an article there are.
type Stock struct {
	domain.Root
	Quantity int
}

// Parcel is what was sent for an order, and has its number.
type Parcel struct {
	domain.Root
	Article  string
	Quantity int
}

// Commands.
type (
	Restock struct {
		Article  string `json:"article"`
		Quantity int    `json:"quantity"`
	}
	SendParcel struct {
		OrderID  string `json:"order_id"`
		Article  string `json:"article"`
		Quantity int    `json:"quantity"`
	}
)

// Events.
type (
	StockChanged Restock
	ParcelSent   SendParcel
)

// What shipping refuses.
var (
	ErrSoldOut = errors.New("sold out")
	ErrNothing = errors.New("nothing was delivered")
)

// Domain is what shipping keeps, does and tells.
var Domain = domain.MustNew("shipping",
	domain.Aggregate[*Stock]("stock", domain.Event[StockChanged]()),
	domain.Aggregate[*Parcel]("parcel", domain.Event[ParcelSent](domain.Published())),
	domain.Command[Restock](domain.KeyedBy("article")),
	domain.Command[SendParcel](domain.KeyedBy("order_id"), domain.FromOthers()),
)

func (s *Stock) change(by int) error {
	if s.Quantity+by < 0 {
		return command.Refuse(ErrSoldOut)
	}
	s.Quantity += by
	s.Raise(StockChanged{s.ID(), s.Quantity})
	return nil
}

// New is what an engine runs, and its commands.
func New(units *uow.Manager) engine.Context {
	stock, parcels := repository.New[*Stock](units), repository.New[*Parcel](units)
	change := func(ctx context.Context, article string, by int) error {
		s, err := stock.Get(ctx, article)
		if _, first := errors.AsType[*repository.NotFoundError](err); first {
			s, err = &Stock{Root: domain.RootWithID(article)}, nil
		}
		if err == nil {
			err = s.change(by)
		}
		if err != nil {
			return err
		}
		return stock.Save(ctx, s)
	}
	return engine.Context{Commands: command.Must(command.Config{Units: units, Handlers: []command.Handler{
		command.On(func(ctx context.Context, c Restock) error {
			if c.Quantity < 1 {
				return ErrNothing
			}
			return change(ctx, c.Article, c.Quantity)
		}),
		command.On(func(ctx context.Context, c SendParcel) error {
			if err := change(ctx, c.Article, -c.Quantity); err != nil {
				return err
			}
			p := &Parcel{Root: domain.RootWithID(c.OrderID), Article: c.Article, Quantity: c.Quantity}
			p.Raise(ParcelSent(c))
			return parcels.Save(ctx, p)
		}),
	}})}
}
