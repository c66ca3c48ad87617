package domain_test

import (
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/domain"
)

// Lending is the context: pure domain, without a database or a broker.
var Lending = domain.MustNew("lending",
	domain.Aggregate[*Book]("book",
		domain.Event[BookLent](domain.Published()),
		domain.Event[BookReturned](),
	),
)

type (
	BookLent struct {
		ISBN   string `json:"isbn"`
		Reader string `json:"reader"`
	}
	BookReturned struct {
		ISBN string `json:"isbn"`
	}
)

type Book struct {
	domain.Root
	Reader string // "" while it is on its shelf
}

var ErrLent = errors.New("the book is lent")

func (b *Book) Lend(reader string) error {
	if b.Reader != "" {
		return ErrLent
	}
	b.Reader = reader
	b.Raise(BookLent{ISBN: b.ID(), Reader: reader})
	return nil
}

func Example() {
	book := &Book{Root: domain.RootWithID("978-3-16-148410-0")}
	fmt.Println(book.Lend("ann"), book.Lend("bob"))

	for _, event := range Lending.Events() {
		fmt.Println(event.WireName(), event.Category, event.Published)
	}
	// Output:
	// <nil> the book is lent
	// Lending.BookLent.v1 lending::book true
	// Lending.BookReturned.v1 lending::book false
}
