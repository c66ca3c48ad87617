package repository_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

func TestMapped_ChildrenAreReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		baskets := repository.Mapped(db.units, basketMapping)
		count := func(table string) int64 {
			t.Helper()
			n, err := db.provider.Reader().NewSelect().Table(table).Count(t.Context())
			require.NoError(t, err)
			return n
		}
		for _, id := range []string{"one", "two"} {
			b := newBasket(id)
			for n := range 12 {
				b.Add(n)
			}
			require.NoError(t, baskets.Save(t.Context(), b))
		}
		require.EqualValues(t, 24, count("basket_items"))
		require.EqualValues(t, 24, count("basket_notes"))

		all, err := baskets.GetMany(t.Context(), "two", "one")
		require.NoError(t, err)
		for _, b := range all { // in their order
			require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, b.items)
		}
		require.NoError(t, baskets.Update(t.Context(), "one", func(b *Basket) error {
			b.items = []int{7}
			return nil
		}))
		require.EqualValues(t, 13, count("basket_items"))
		require.EqualValues(t, 13, count("basket_notes"))
		require.NoError(t, baskets.Update(t.Context(), "one", func(b *Basket) error {
			b.items = nil
			return nil
		}))
		one, err := baskets.Get(t.Context(), "one")
		require.NoError(t, err)
		require.Empty(t, one.items)
		require.EqualValues(t, 3, one.Version())

		two, err := baskets.Get(t.Context(), "two")
		require.NoError(t, err)
		require.NoError(t, baskets.Remove(t.Context(), two))
		require.Zero(t, count("basket_items"))
		require.Zero(t, count("basket_notes"))
		require.EqualValues(t, 1, count("baskets"))
	})
}

func TestMapped_Find(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		baskets := repository.Mapped(db.units, basketMapping)
		for id, n := range map[string]int{"a": 5, "b": 10, "c": 15} {
			b := newBasket(id)
			b.Add(n)
			require.NoError(t, baskets.Save(t.Context(), b))
		}
		atLeast := func(sum int) func(*bun.SelectQuery) *bun.SelectQuery {
			return func(q *bun.SelectQuery) *bun.SelectQuery { return q.Where("sum >= ?", sum).Order("sum DESC") }
		}
		found, err := baskets.Find(t.Context(), atLeast(10))
		require.NoError(t, err)
		require.Len(t, found, 2)
		require.Equal(t, []int{15}, found[0].items)
		require.Equal(t, "b", found[1].ID())
		require.EqualValues(t, 1, found[1].Version())
		found, err = baskets.Find(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, found, 3)
		found, err = baskets.Find(t.Context(), atLeast(100))
		require.NoError(t, err)
		require.Empty(t, found)
		_, err = baskets.Find(t.Context(), func(q *bun.SelectQuery) *bun.SelectQuery { return q.Where("no_such_column") })
		require.ErrorContains(t, err, "repository: reading shop::basket: ")

		// In a unit: what it saved is seen, what it holds is the same instance,
		// what it removed is not there.
		require.NoError(t, db.units.Do(t.Context(), func(ctx context.Context) error {
			a, err := baskets.Get(ctx, "a")
			require.NoError(t, err)
			a.Add(20)
			require.NoError(t, baskets.Save(ctx, a))
			c, err := baskets.Get(ctx, "c")
			require.NoError(t, err)
			require.NoError(t, baskets.Remove(ctx, c))
			found, err := baskets.Find(ctx, atLeast(10))
			require.NoError(t, err)
			require.Len(t, found, 2)
			require.Same(t, a, found[0])
			require.Equal(t, "b", found[1].ID())
			found[1].Add(1)
			return baskets.Save(ctx, found[1])
		}))
		found, err = baskets.Find(t.Context(), atLeast(11))
		require.NoError(t, err)
		require.Len(t, found, 2)
		require.Equal(t, 25, found[0].Total())
		require.Equal(t, 11, found[1].Total())
	})
}

func TestMapped_MappingErrorsAreNamed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		baskets := repository.Mapped(db.units, basketMapping)
		b := newBasket("b")
		b.SetLabel("unmappable")
		require.EqualError(t, baskets.Save(t.Context(), b), "uow: basket b can't be stored: Mapping.ToRow: no such label")
		for label, want := range map[string]string{
			"unreadable": "repository: Mapping.Aggregate of shop::basket x: no such label",
			"nil":        "repository: Mapping.Aggregate of shop::basket x: it returned nil",
			"raises":     "repository: to load shop::basket x raised repository_test.BasketAdded; what restores an aggregate sets its fields and raises nothing",
		} {
			db.exec(t, "DELETE FROM baskets")
			db.exec(t, "INSERT INTO baskets (id, version, label, sum) VALUES ('x', 1, ?, 0)", label)
			_, err := baskets.Get(t.Context(), "x")
			require.EqualError(t, err, want)
		}
	})
}

// A row with a NUL can't be written, and nothing else of its unit is.
// N11: what can't be stored is named. bun would write an error of its own into the SQL,
// and replace what is not UTF-8.
func TestMapped_N11_NULIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		baskets := repository.Mapped(db.units, basketMapping)
		b := newBasket("nul")
		b.SetLabel("a\x00b")
		require.EqualError(t, baskets.Save(t.Context(), b), "uow: basket nul can't be stored: basketRow.Label has a NUL byte, which no text can have in a database: leave it out, or use bytes (bytea, BLOB)")
		b.label = "a\xffb"
		require.ErrorContains(t, baskets.Save(t.Context(), b), "basketRow.Label is not UTF-8, which a text has to be in a database")
		b.SetLabel("of a child row")
		require.ErrorContains(t, baskets.Save(t.Context(), b), "noteRow.Text has a NUL byte")
		for _, fine := range []string{"?!(", "'?!(", "\uFFFD", "a '' ?!(x)"} {
			c := newBasket(fine)
			c.SetLabel(fine)
			require.NoError(t, baskets.Save(t.Context(), c))
			got, err := baskets.Get(t.Context(), fine)
			require.NoError(t, err)
			require.Equal(t, fine, got.label)
			require.NoError(t, baskets.Remove(t.Context(), got))
		}
		_, err := baskets.Get(t.Context(), "nul")
		requireMissing(t, err, "nul")
		require.Empty(t, db.outbox(t, "shop::basket-nul"))
	})
}

// sharingRow has memory in common with its aggregate.
type sharingRow struct {
	bun.BaseModel `bun:"table:sharing"`
	repository.Row
	Items []int `bun:"type:json"`
}

func TestMapped_RowsAreTakenAtSave(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		db.exec(t, "CREATE TABLE sharing (id text PRIMARY KEY, version bigint NOT NULL, unit text, items text)")
		baskets := repository.Mapped(db.units, repository.Mapping[*Basket, sharingRow]{
			ToRow:     func(b *Basket) (sharingRow, error) { return sharingRow{Items: b.items}, nil },
			Aggregate: func(r sharingRow) (*Basket, error) { return &Basket{items: r.Items}, nil },
		})
		b := newBasket("b")
		b.Add(1)
		require.NoError(t, db.units.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, baskets.Save(ctx, b))
			b.items[0] = 2
			return nil
		}))
		got, err := baskets.Get(t.Context(), "b")
		require.NoError(t, err)
		require.Equal(t, []int{1}, got.items)
	})
}

type uuidRow struct {
	bun.BaseModel `bun:"table:uuids"`
	repository.Row
	Label string
	Items []uuidItemRow `bun:"rel:has-many,join:id=parent"`
}

type uuidItemRow struct {
	bun.BaseModel `bun:"table:uuid_items"`
	Parent        string `bun:",pk"`
	Position      int    `bun:",pk"`
}

func TestMapped_UUIDKeys(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		db.exec(t, "CREATE TABLE uuids (id uuid PRIMARY KEY, version bigint NOT NULL, unit text, label text)")
		db.exec(t, "CREATE TABLE uuid_items (parent uuid NOT NULL REFERENCES uuids, position int, PRIMARY KEY (parent, position))")
		baskets := repository.Mapped(db.units, repository.Mapping[*Basket, uuidRow]{
			ToRow: func(b *Basket) (uuidRow, error) {
				row := uuidRow{Label: b.label}
				for i := range b.items {
					row.Items = append(row.Items, uuidItemRow{Position: i})
				}
				return row, nil
			},
			Aggregate: func(r uuidRow) (*Basket, error) {
				return &Basket{label: r.Label, items: make([]int, len(r.Items))}, nil
			},
			Children: []func(*uuidRow) any{func(r *uuidRow) any { return &r.Items }},
		})
		b := &Basket{Root: domain.NewRoot()}
		b.Add(1)
		require.NoError(t, baskets.Save(t.Context(), b))
		require.NoError(t, baskets.Update(t.Context(), b.ID(), func(b *Basket) error {
			b.Add(2)
			b.SetLabel("two")
			return nil
		}))
		got, err := baskets.Get(t.Context(), b.ID())
		require.NoError(t, err)
		require.Len(t, got.items, 2)
		require.NoError(t, baskets.Remove(t.Context(), got))
		_, err = baskets.Get(t.Context(), b.ID())
		requireMissing(t, err, b.ID())
	})
}

// Two writers of one aggregate with children, one of which removes it, may
// conflict but must not lock each other out.
func TestMapped_RemovalRacesWithUpdates(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, db testDB) {
		units := newUnits(t, uow.Config{Providers: []uow.Provider{db.provider}, MaxRetries: -1})
		baskets := repository.Mapped(units, basketMapping)
		for range 20 {
			b := newBasket("b")
			require.NoError(t, units.Do(t.Context(), func(ctx context.Context) error {
				_, err := baskets.Get(ctx, "b")
				if err == nil {
					return nil
				}
				b.Add(1)
				return baskets.Save(ctx, b)
			}))
			update, err := baskets.Get(t.Context(), "b")
			require.NoError(t, err)
			remove, err := baskets.Get(t.Context(), "b")
			require.NoError(t, err)
			update.Add(1)
			updated := make(chan error, 1)
			go func() { updated <- baskets.Save(t.Context(), update) }()
			removeErr, updateErr := baskets.Remove(t.Context(), remove), <-updated
			if removeErr == nil {
				requireConflict(t, updateErr, "b", remove.Version()-1)
			} else {
				require.NoError(t, updateErr)
				requireConflict(t, removeErr, "b", remove.Version())
			}
		}
	})
}

type (
	keyedRow struct {
		repository.Row
		Tenant string `bun:",pk"`
	}
	pointerRow struct {
		*repository.Row
	}
	deletedRow struct {
		repository.Row
		DeletedAt time.Time `bun:",soft_delete"`
	}
	parentRow struct {
		bun.BaseModel `bun:"table:parents"`
		repository.Row
		Plain     []itemRow      `bun:"-"`
		Numbered  []numberedRow  `bun:"rel:has-many,join:id=parent"`
		Keyless   []keylessRow   `bun:"rel:has-many,join:id=parent"`
		ByVersion []numberedRow  `bun:"rel:has-many,join:version=parent"`
		Deleted   []softChildRow `bun:"rel:has-many,join:id=parent"`
	}
	numberedRow struct {
		ID     int64 `bun:",pk"`
		Parent int64
	}
	keylessRow   struct{ Parent string }
	softChildRow struct {
		ID        int64 `bun:",pk"`
		Parent    string
		DeletedAt time.Time `bun:",soft_delete"`
	}
)

func TestMapped_ConstructionPanics(t *testing.T) {
	t.Parallel()
	units := openSQLite(t, "default").units
	message := func(construct func()) (message string) {
		defer func() { message = recover().(error).Error() }()
		construct()
		return "no panic"
	}
	require.Equal(t, "repository.Mapped: shop::basket: Mapping.ToRow is missing: make a row of an aggregate\nMapping.Aggregate is missing: make an aggregate of a row",
		message(func() { repository.Mapped(units, repository.Mapping[*Basket, basketRow]{}) }))
	require.Contains(t, message(func() { repository.Mapped(units, mappingTo[keyedRow]()) }), "repository_test.keyedRow has its own primary key, id, version or unit: leave them to repository.Row")
	require.Contains(t, message(func() { repository.Mapped(units, mappingTo[deletedRow]()) }), "repository_test.deletedRow has soft_delete: drop it")
	require.Equal(t, `repository.Mapped: shop::basket: Mapping.Children[0]: returns []repository_test.itemRow: return the address of a slice of child rows, as in &r.Lines
Mapping.Children[1]: no has-many relation of repository_test.parentRow is what it points to: tag the field `+"`"+`bun:"rel:has-many,join:id=<column of the child>"`+"`"+`
Mapping.Children[2]: repository_test.numberedRow.Parent is a int64: make it a string, the repository puts the parent's id there
Mapping.Children[3]: repository_test.keylessRow has no primary key: give it one, as of parent and position; the rows are loaded in its order
Mapping.Children[4]: ByVersion is not joined by the id alone: tag it `+"`"+`bun:"rel:has-many,join:id=<column of repository_test.numberedRow>"`+"`"+`
Mapping.Children[5]: repository_test.softChildRow has soft_delete: drop it, child rows are replaced at each save`, message(func() {
		repository.Mapped(units, mappingTo(
			func(r *parentRow) any { return r.Plain },
			func(r *parentRow) any { return &r.Plain },
			func(r *parentRow) any { return &r.Numbered },
			func(r *parentRow) any { return &r.Keyless },
			func(r *parentRow) any { return &r.ByVersion },
			func(r *parentRow) any { return &r.Deleted },
		))
	}))
	// N2: what would be lost on the way to the columns.
	require.Equal(t, `repository.Mapped: shop::basket: repository_test.lossyRow.note is unexported, so no column has it: export it, or tag it `+"`"+`bun:"-"`+"`"+`
repository_test.lossyRow.Lines is stored as JSON: lossyLine.colour is unexported and would be lost: export it, tag it json:"-" if it needn't be kept, or give lossyLine MarshalJSON and UnmarshalJSON
repository_test.lossyRow.Any is stored as JSON: lossyRow.Any is an interface (interface {}), and JSON doesn't keep which type is in it: give it a type of its own, such as a struct or json.RawMessage, or tag it json:"-" if it needn't be kept`,
		message(func() { repository.Mapped(units, mappingTo[lossyRow]()) }))
	require.Contains(t, message(func() { repository.Mapped(units, mappingTo[pointerRow]()) }), "repository_test.pointerRow embeds *repository.Row: embed it by value")
}

func mappingTo[R any](children ...func(*R) any) repository.Mapping[*Basket, R] {
	return repository.Mapping[*Basket, R]{
		ToRow:     func(*Basket) (r R, err error) { return r, nil },
		Aggregate: func(R) (*Basket, error) { return &Basket{}, nil },
		Children:  children,
	}
}

type (
	lossyRow struct {
		repository.Row
		note   string //nolint:unused // so it would be lost
		hidden string `bun:"-"` //nolint:unused // it may be
		Lines  []lossyLine
		Any    any
		Tags   []string `bun:",array"`
		Raw    []byte
		At     time.Time
	}
	lossyLine struct {
		Article string
		colour  string //nolint:unused // so it would be lost
	}
)
