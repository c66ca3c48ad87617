package command_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/broker/memory"
	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Rental is a car that somebody has.
type Rental struct {
	domain.Root
	CarID   string
	Until   time.Time
	Overdue bool
}

type (
	RentCar struct {
		RentalID string    `json:"rental_id"`
		CarID    string    `json:"car_id"`
		Until    time.Time `json:"until"`
	}
	ReturnCar struct {
		RentalID string `json:"rental_id"`
	}
	MarkOverdue struct {
		RentalID string `json:"rental_id"`
	}
	CarRented struct {
		RentalID string `json:"rental_id"`
	}
	CarReturned struct {
		RentalID string `json:"rental_id"`
	}
)

var rentals = domain.MustNew("rentals",
	domain.Aggregate[*Rental]("rental", domain.Event[CarRented](), domain.Event[CarReturned]()),
	domain.Command[RentCar](domain.KeyedBy("rental_id")),
	domain.Command[ReturnCar](domain.KeyedBy("rental_id")),
	domain.Command[MarkOverdue](domain.KeyedBy("rental_id")),
)

func Rent(c RentCar) (*Rental, error) {
	r := &Rental{Root: domain.RootWithID(c.RentalID), CarID: c.CarID, Until: c.Until}
	r.Raise(CarRented{c.RentalID})
	domain.SetTimer(r, "overdue", c.Until, MarkOverdue{c.RentalID})
	return r, nil
}

func (r *Rental) Return(ReturnCar) error {
	if r.CarID == "" {
		return command.Refuse(errors.New("the car is back already"))
	}
	r.CarID = ""
	domain.StopTimer(r, "overdue")
	r.Raise(CarReturned{r.ID()})
	return nil
}

func (r *Rental) MarkOverdue(MarkOverdue) error {
	r.Overdue = true
	return nil
}

func handlersOf(units *uow.Manager, repo *repository.Repository[*Rental]) (*command.Handlers, error) {
	return command.New(command.Config{
		Units: units,
		Handlers: []command.Handler{
			command.Create(repo, Rent),
			command.Update(repo, (*Rental).Return),
			command.Update(repo, (*Rental).MarkOverdue),
		},
	})
}

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "rentals")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "rentals.db")})
	check(err)
	defer func() { check(db.Close()) }()
	units, err := uow.New(uow.Config{Domain: rentals, Providers: []uow.Provider{db}})
	check(err)
	check(engine.Migrate(ctx, units))
	repo := repository.New[*Rental](units)
	handlers, err := handlersOf(units, repo)
	check(err)
	e, err := engine.New(engine.Config{
		Contexts: []engine.Context{{Units: units, Commands: handlers}},
		Brokers:  map[string]broker.Broker{"default": memory.New(memory.Config{})},
	})
	check(err)
	check(e.Start(ctx))
	defer func() { check(e.Stop(ctx)) }()

	// Now, and once, however often the client asks.
	rent := RentCar{RentalID: "r1", CarID: "c1", Until: time.Now().Add(time.Millisecond)}
	check(handlers.Do(ctx, rent, command.Once("request-1")))
	check(handlers.Do(ctx, rent, command.Once("request-1")))

	// The car isn't back in time.
	for range time.Tick(time.Millisecond) {
		r, err := repo.Get(ctx, "r1")
		check(err)
		if r.Overdue {
			break
		}
	}
	fmt.Println("overdue")

	check(handlers.Do(ctx, ReturnCar{"r1"}))
	fmt.Println(handlers.Do(ctx, ReturnCar{"r1"}))
	// Output:
	// overdue
	// the car is back already
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
