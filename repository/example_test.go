package repository_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/engine"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
	"github.com/waybill-go/waybill/uow/sqlite"
)

// Reader is a document: its exported fields are what is kept.
type Reader struct {
	domain.Root
	Email, City string
	Fines       int64 // cents
}

var readers = domain.MustNew("readers",
	domain.Aggregate[*Reader]("reader",
		domain.Unique("email", func(r *Reader) string { return strings.ToLower(r.Email) }),
		domain.Index("city", func(r *Reader) string { return r.City }),
	),
)

func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// repository: reader "bob": email "ann@example.org" belongs to "ann" already
	// Riga has [ann cem]
	// ann owes 300
	// 3 readers
}

func example(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "readers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, "readers.db")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	units, err := uow.New(uow.Config{Domain: readers, Providers: []uow.Provider{db}})
	if err != nil {
		return err
	}
	if err := engine.Migrate(ctx, units); err != nil {
		return err
	}
	all := repository.New[*Reader](units)

	// At the start of a program: documents of before an index are entered in it.
	if _, err := all.Reindex(ctx); err != nil {
		return err
	}

	if err := all.Save(ctx, &Reader{Root: domain.RootWithID("ann"), Email: "ann@example.org", City: "Riga"}); err != nil {
		return err
	}
	err = all.Save(ctx, &Reader{Root: domain.RootWithID("bob"), Email: "Ann@example.org", City: "Oslo"})
	if taken, ok := errors.AsType[*repository.TakenError](err); ok {
		fmt.Println(taken) // which knows that it is ann's
	}
	err = errors.Join(
		all.Save(ctx, &Reader{Root: domain.RootWithID("bob"), Email: "bob@example.org", City: "Oslo"}),
		all.Save(ctx, &Reader{Root: domain.RootWithID("cem"), City: "Riga"}), // has no e-mail, as others may
	)
	if err != nil {
		return err
	}

	found, err := all.By(ctx, "city", "Riga", repository.Page{})
	if err != nil {
		return err
	}
	fmt.Println("Riga has", ids(found))

	fine := func(id string, cents int64) error {
		return units.Do(ctx, func(ctx context.Context) error {
			r, err := all.GetForUpdate(ctx, id) // others wait here
			if err != nil {
				return err
			}
			r.Fines += cents
			return all.Save(ctx, r)
		})
	}
	if err := errors.Join(fine("ann", 100), fine("ann", 200)); err != nil {
		return err
	}
	ann, err := all.Get(ctx, "ann")
	if err != nil {
		return err
	}
	fmt.Println("ann owes", ann.Fines)

	n := 0
	for page := (repository.Page{Limit: 2}); ; {
		some, err := all.All(ctx, page)
		if err != nil {
			return err
		}
		if len(some) == 0 {
			break
		}
		n += len(some)
		page.After = some[len(some)-1].ID()
	}
	fmt.Println(n, "readers")
	return nil
}

func ids(all []*Reader) (ids []string) {
	for _, r := range all {
		ids = append(ids, r.ID())
	}
	return ids
}
