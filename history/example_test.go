package history_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Account is kept as what happened to it, and as snapshots of its exported fields.
type Account struct {
	domain.Root
	Cents int64
}

type Paid struct{ Cents int64 }

func (a *Account) Apply(event any) { a.Cents += event.(Paid).Cents }

var bank = domain.MustNew("bank", domain.Aggregate[*Account]("account", domain.Event[Paid]()))

func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// bank::account-ann 1.1 Bank.Paid.v1 {"Cents":100}
	// bank::account-ann 2.1 Bank.Paid.v1 {"Cents":100}
	// bank::account-ann 3.1 Bank.Paid.v1 {"Cents":100}
	// 300 and at first 100
	// uow: account "ann" was loaded as of version 1, for reading: Get it to change it
	// 3.1 {100}
}

func example(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "bank")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "bank.db")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	units, err := uow.New(uow.Config{Domain: bank, Providers: []uow.Provider{db}, History: true})
	if err != nil {
		return err
	}
	if err := engine.Migrate(ctx, units); err != nil {
		return err
	}
	accounts := repository.EventSourced[*Account](units, repository.Snapshots(100))
	ann := &Account{Root: domain.RootWithID("ann")}
	for range 3 {
		domain.Record(ann, Paid{Cents: 100})
		if err := accounts.Save(ctx, ann); err != nil {
			return err
		}
	}

	for e, err := range history.Read(ctx, units, history.Range{Types: []string{"Paid"}}) {
		if err != nil {
			return err
		}
		fmt.Println(e.Stream, e.Sequence, e.Type, string(e.Data))
	}

	now, err := accounts.AsOf(ctx, "ann", time.Now().Add(time.Second))
	if err != nil {
		return err
	}
	first, err := accounts.AsOfVersion(ctx, "ann", 1)
	if err != nil {
		return err
	}
	fmt.Println(now.Cents, "and at first", first.Cents)
	fmt.Println(accounts.Save(ctx, first))

	for happened, err := range accounts.Past(ctx, "ann", 2) {
		if err != nil {
			return err
		}
		fmt.Println(happened.Sequence, happened.Event)
	}
	return nil
}
