package repository_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

// Book has several authors since version 2. Builds of before have OldBook.
type (
	Book struct {
		domain.Root
		Title   string
		Authors []string
	}
	OldBook struct {
		domain.Root
		Title  string
		Author string
	}
	bookV1 struct{ Title, Author string }
)

func upcastBook(old bookV1) *Book { return &Book{Title: old.Title, Authors: []string{old.Author}} }

func downcastBook(b *Book) bookV1 { return bookV1{b.Title, b.Authors[0]} }

// build is the library as one build has it.
func build(t *testing.T, db testDB, book domain.Element) *uow.Manager {
	t.Helper()
	d, err := domain.New("library", book)
	require.NoError(t, err)
	units, err := uow.New(uow.Config{Domain: d, Providers: []uow.Provider{db.provider}})
	require.NoError(t, err)
	return units
}

// N3: the builds of a rolling deployment, one after the other and side by side, lose
// nothing: the one in between reads both forms and writes the old one, until somebody
// writes the new one.
func TestDocument_N3_RollingDeployment(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		up := domain.UpcastState(1, upcastBook)
		before := repository.New[*OldBook](build(t, db, domain.Aggregate[*OldBook]("book")))
		between := repository.New[*Book](build(t, db, domain.Aggregate[*Book]("book", domain.StateVersion(2), up, domain.WriteState(1, downcastBook))))
		after := repository.New[*Book](build(t, db, domain.Aggregate[*Book]("book", domain.StateVersion(2), up)))
		form := func() (form int) {
			require.NoError(t, db.provider.Reader().NewRaw("SELECT state_version FROM documents WHERE category = 'library::book'").Scan(t.Context(), &form))
			return form
		}
		title := func(r *repository.Repository[*Book], title string) {
			t.Helper()
			require.NoError(t, r.Update(t.Context(), "b1", func(b *Book) error { b.Title = title; return nil }))
		}

		// First deployment: before and between.
		require.NoError(t, between.Save(t.Context(), &Book{Root: domain.RootWithID("b1"), Title: "Go", Authors: []string{"Ann"}}))
		require.NoError(t, before.Update(t.Context(), "b1", func(b *OldBook) error {
			require.Equal(t, "Ann", b.Author)
			b.Author = "Bob"
			return nil
		}))
		title(between, "Going")
		require.Equal(t, 1, form())

		// Second deployment: between and after. Nothing is rewritten that nobody changes.
		b, err := after.Get(t.Context(), "b1")
		require.NoError(t, err)
		require.Equal(t, []any{"Going", []string{"Bob"}, int64(3)}, []any{b.Title, b.Authors, b.Version()})
		require.NoError(t, after.Save(t.Context(), b))
		require.Equal(t, 1, form())
		b.Authors = append(b.Authors, "Cyd")
		require.NoError(t, after.Save(t.Context(), b))
		require.Equal(t, 2, form())
		title(between, "Gone") // which would lose an author in the old form
		require.Equal(t, 2, form())
		b, err = after.Get(t.Context(), "b1")
		require.NoError(t, err)
		require.Equal(t, []any{"Gone", []string{"Bob", "Cyd"}, int64(5)}, []any{b.Title, b.Authors, b.Version()})

		// Who came late touches nothing, and says what helps.
		err = before.Update(t.Context(), "b1", func(*OldBook) error { return nil })
		require.EqualError(t, err, `repository: book "b1" is stored in state version 2, and this build reads up to 1: deploy the newer build everywhere, and let that one write 1 with domain.WriteState until then`)
		newer, ok := errors.AsType[*domain.NewerStateError](err)
		require.True(t, ok)
		require.Equal(t, "library::book.v2", newer.Needs())

		// A removed one has no form; created again, it has that of its build.
		require.NoError(t, after.Remove(t.Context(), b))
		_, err = before.Get(t.Context(), "b1")
		requireMissing(t, err, "b1")
		require.Equal(t, 1, form())
	})
}

func TestDocument_StateOptionsAreForDocuments(t *testing.T) {
	t.Parallel()
	db := openSQLite(t, "default")
	refused := func(want string, construct func()) {
		t.Helper()
		defer func() {
			t.Helper()
			require.ErrorContains(t, recover().(error), want)
		}()
		construct()
	}
	units := build(t, db, domain.Aggregate[*Ledger]("ledger", domain.Event[LedgerAdded](), domain.StateVersion(2)))
	repository.EventSourced[*Ledger](units) // of its snapshots
	refused("library::ledger is declared with domain.StateVersion(2) and without a domain.UpcastState from every older version", func() { repository.New[*Ledger](units) })
	units = build(t, db, domain.Aggregate[*Ledger]("ledger", domain.Event[LedgerAdded](), domain.StateVersion(2), domain.UpcastState(1, func(bookV1) *Ledger { return nil })))
	refused("are about documents", func() { repository.EventSourced[*Ledger](units) })

	// An upcast has to make something, and nothing but fields.
	db.exec(t, `INSERT INTO documents (category, id, version, state) VALUES ('library::book', 'b1', 1, '{"Title": "Go"}')`)
	for want, up := range map[string]func(bookV1) *Book{
		"domain.UpcastState(1, …) returned nil": func(bookV1) *Book { return nil },
		"sets its fields and raises nothing":    func(bookV1) *Book { b := &Book{}; b.Raise(LedgerAdded{}); return b },
	} {
		books := repository.New[*Book](build(t, db, domain.Aggregate[*Book]("book", domain.StateVersion(2), domain.UpcastState(1, up))))
		_, err := books.Get(t.Context(), "b1")
		require.ErrorContains(t, err, want)
	}
}
