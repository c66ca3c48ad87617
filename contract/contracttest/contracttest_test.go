package contracttest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/contract/contracttest"
	"github.com/waybill-go/waybill/domain"
)

type (
	Book struct {
		domain.Root
		Title   string
		Authors []string
	}
	bookV1 struct{ Title, Author string }
	Ledger struct {
		domain.Root
		lines []string
	}
	Lent   struct{ BookID, By string }
	LentV1 struct{ BookID string }
	Return struct{ BookID string }
)

// recorder notes what a test says.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func library(t *testing.T, book []domain.AggregateOption, lent ...domain.EventOption) *domain.Domain {
	t.Helper()
	_ = Ledger{lines: nil}
	d, err := domain.New("library",
		domain.Aggregate[*Book]("book", append(book, domain.Event[Lent](lent...))...),
		domain.Aggregate[*Ledger]("ledger"),
		domain.Command[Return](domain.KeyedBy("BookID"), domain.FromOthers()),
	)
	require.NoError(t, err)
	return d
}

// F-39: what is new is written when that is asked for, and what breaks never is; the
// files show how old forms read.
func TestCheck_F39_KeepsExamplesOfEveryVersion(t *testing.T) {
	dir := t.TempDir()
	check := func(d *domain.Domain, options ...contracttest.Option) string {
		t.Helper()
		r := &recorder{TB: t}
		contracttest.Check(r, d, dir, options...)
		return strings.ReplaceAll(strings.Join(r.said, "\n"), dir+string(filepath.Separator), "")
	}
	update := func(d *domain.Domain) {
		t.Helper()
		t.Setenv("WAYBILL_CONTRACT", "update")
		require.Empty(t, check(d))
		t.Setenv("WAYBILL_CONTRACT", "")
	}
	file := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return strings.Join(strings.Fields(string(text)), "")
	}

	// The first time.
	type Lent struct{ BookID string } // as it was
	first := func(more ...domain.EventOption) *domain.Domain {
		d, err := domain.New("library",
			domain.Aggregate[*Book]("book", domain.Event[Lent](more...)), domain.Aggregate[*Ledger]("ledger"),
			domain.Command[Return](domain.KeyedBy("BookID"), domain.FromOthers()))
		require.NoError(t, err)
		return d
	}
	require.Equal(t, "contracttest: library: files are missing or behind: contract.json, events/Library.Lent.v1.json, events/Library.Return.v1.json, documents/book.v1.json; if that is meant, run `WAYBILL_CONTRACT=update go test` and commit them", check(first()))
	update(first())
	require.Empty(t, check(first()))
	require.JSONEq(t, `{"data":{"BookID":"bookid"}}`, file("events/Library.Lent.v1.json"))
	require.JSONEq(t, `{"data":{"Title":"title","Authors":["authors"]}}`, file("documents/book.v1.json"))

	// A field that is gone or retyped is seen in what was written, private as it is.
	renamed := library(t, nil)
	require.Contains(t, check(renamed), `the example in events/Library.Lent.v1.json, {"BookID":"bookid"}: it reads as {"BookID":"bookid","By":""}: bring back what is gone, tag what is new omitzero, or make another version`)

	// A version: its upcast and its downcast stay what they are.
	up := func(by string) domain.EventOption {
		return domain.Upcast(1, func(e LentV1) Lent2 { return Lent2{e.BookID, by} })
	}
	second := func(by string, more ...domain.EventOption) *domain.Domain {
		d, err := domain.New("library",
			domain.Aggregate[*Book]("book", domain.Event[Lent2](append(more, domain.Named("Lent"), domain.Version(2), up(by))...)), domain.Aggregate[*Ledger]("ledger"),
			domain.Command[Return](domain.KeyedBy("BookID"), domain.FromOthers()))
		require.NoError(t, err)
		return d
	}
	down := domain.Downcast(2, func(e Lent2) LentV1 { return LentV1{e.BookID} })
	require.Contains(t, check(second("nobody")), "Library.Lent.v2: is written before builds of the contract could read it")
	reads := second("nobody", down, domain.WriteVersion(1))
	require.Contains(t, check(reads), "files are missing or behind: contract.json, events/Library.Lent.v1.json, events/Library.Lent.v2.json;")
	update(reads)
	require.JSONEq(t, `{"data":{"BookID":"bookid"},"up":{"BookID":"bookid","By":"nobody"}}`, file("events/Library.Lent.v1.json"))
	require.JSONEq(t, `{"data":{"BookID":"bookid","By":"by"},"down":{"BookID":"bookid"}}`, file("events/Library.Lent.v2.json"))
	require.Empty(t, check(reads))
	require.Contains(t, check(second("somebody", down, domain.WriteVersion(1))), `the next version made {"BookID":"bookid","By":"nobody"} of it and makes {"BookID":"bookid","By":"somebody"} now: let its upcast do what it did`)
	update(second("nobody"))

	// A name: an alias reads its examples.
	require.Contains(t, check(first(domain.Named("Borrowed"))), "nothing reads events/Library.Lent.v1.json any more: declare it again, or its new name with a domain.Alias")
	require.NotContains(t, check(first(domain.Named("Borrowed"), domain.Alias("Library.Lent"))), "nothing reads events/Library.Lent.v1.json")

	// A document's form.
	states := []domain.AggregateOption{domain.StateVersion(2), domain.UpcastState(1, func(b bookV1) *Book { return &Book{Title: b.Title, Authors: []string{b.Author}} })}
	require.Contains(t, check(library(t, states)), "library::book.v2: is written before builds of the contract could read it")
	require.Contains(t, check(library(t, states)), `documents/book.v1.json, {"Title":"title","Authors":["authors"]}: can't be decoded as contracttest_test.bookV1`)

	// A document has no alias.
	d, err := domain.New("library", domain.Aggregate[*Book]("novel"))
	require.NoError(t, err)
	require.Contains(t, check(d), "nothing reads documents/book.v1.json any more: declare it again under its name; once none is stored, remove the file")

	// In tables there is no document.
	require.NoError(t, os.Remove(filepath.Join(dir, "documents/book.v1.json")))
	require.Empty(t, check(second("nobody"), contracttest.InTables("book")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "contract.json"), []byte("{"), 0o600))
	require.Contains(t, check(second("nobody"), contracttest.InTables("book")), "read contract.json: unexpected end of JSON input")
}

// Lent2 is what Lent is since version 2.
type Lent2 struct{ BookID, By string }

// Choosy can't be made from nothing.
type Choosy struct {
	Colour colour
}

type colour string

func (c *colour) UnmarshalText(b []byte) error {
	if *c = colour(b); *c != "red" && *c != "green" {
		return fmt.Errorf("no colour %q", b)
	}
	return nil
}

func (c colour) MarshalText() ([]byte, error) { return []byte(c), nil }

func TestCheck_ExamplesThatNobodyCanMake(t *testing.T) {
	dir := t.TempDir()
	d, err := domain.New("library", domain.Aggregate[*Book]("book", domain.Event[Choosy]()))
	require.NoError(t, err)
	t.Setenv("WAYBILL_CONTRACT", "update")
	r := &recorder{TB: t}
	contracttest.Check(r, d, dir)
	require.Len(t, r.said, 1)
	require.Contains(t, r.said[0], `no example of events/Library.Choosy.v1 can be made from its Go type: can't be decoded as contracttest_test.Choosy: no colour ""`)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "events"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "events/Library.Choosy.v1.json"), []byte(`{"data": {"Colour": "red"}}`), 0o600))
	contracttest.Check(t, d, dir)
}
