package domain_test

import (
	"encoding/json"
	"errors"
	"os/exec"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
)

type Order struct {
	domain.Root
	CustomerID string
	Lines      []string
}

type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

type OrderCancelled struct {
	Reason string
	By     string
}

type NoteAdded struct{ Text string }

func TestRoot_HasIdentityAndVersion(t *testing.T) {
	o := &Order{Root: domain.NewRoot()}
	id, err := uuid.Parse(o.ID())
	require.NoError(t, err)
	require.EqualValues(t, 7, id.Version())
	require.Zero(t, o.Version())
	require.Equal(t, "isbn-1", (&Order{Root: domain.RootWithID("isbn-1")}).ID())
	require.Empty(t, (&Order{Root: domain.RootWithID("")}).ID(), "what a user typed is refused by the save, not by a panic")

	rootstate.Of(o).Version = 7
	require.EqualValues(t, 7, o.Version())
	require.Empty(t, rootstate.Of(&Order{}).ID, "an aggregate without NewRoot can be told by its empty identity")
}

func TestRaise_KeepsOrderAndGivesIDAndTimeOnce(t *testing.T) {
	o := &Order{Root: domain.NewRoot()}
	before := time.Now()
	o.Raise(OrderPlaced{OrderID: "1"})
	o.Raise(NoteAdded{Text: "a"})
	o.Raise(NoteAdded{Text: "a"})
	raised := rootstate.Of(o).Raised
	require.Len(t, raised, 3)
	require.Equal(t, []any{OrderPlaced{OrderID: "1"}, NoteAdded{Text: "a"}, NoteAdded{Text: "a"}}, []any{raised[0].Event, raised[1].Event, raised[2].Event})
	last := ""
	for _, r := range raised {
		id, err := uuid.Parse(r.ID)
		require.NoError(t, err)
		require.EqualValues(t, 7, id.Version())
		require.Greater(t, r.ID, last)
		last = r.ID
		require.False(t, r.At.Before(before))
		require.False(t, r.Applied)
	}
}

// F-10: ids are UUIDv7s that grow. The unit of work sorts the events of several
// aggregates by them.
// Conformance: F-10, S2-04.
func TestRaise_IDsGrowWithinTheProcess(t *testing.T) {
	var mu sync.Mutex
	last := ""
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 2000 {
				o := &Order{Root: domain.RootWithID("1")}
				mu.Lock()
				o.Raise(NoteAdded{})
				id := rootstate.Of(o).Raised[0].ID
				ordered := id > last
				last = id
				mu.Unlock()
				if !ordered {
					t.Error("an id is not greater than the one before")
					return
				}
			}
		})
	}
	wg.Wait()
}

type Account struct {
	domain.Root
	Balance int
}

type Deposited struct{ Amount int }

func (a *Account) Apply(event any) {
	if e, ok := event.(Deposited); ok {
		a.Balance += e.Amount
	}
}

func TestRecord_AppliesAndRaises(t *testing.T) {
	a := &Account{Root: domain.NewRoot()}
	domain.Record(a, Deposited{Amount: 5})
	domain.Record(a, Deposited{Amount: 2})
	a.Raise(Deposited{Amount: 100})
	require.Equal(t, 7, a.Balance)
	raised := rootstate.Of(a).Raised
	require.Len(t, raised, 3)
	require.True(t, raised[0].Applied && raised[1].Applied)
	require.False(t, raised[2].Applied, "a plain Raise can be told from a Record")
}

// A document has the aggregate's own fields: neither identity nor version.
func TestRoot_IsNotInTheDocument(t *testing.T) {
	o := &Order{Root: domain.RootWithID("the-id"), CustomerID: "c-1", Lines: []string{"a"}}
	rootstate.Of(o).Version = 41
	o.Raise(NoteAdded{Text: "x"})
	document, err := json.Marshal(o)
	require.NoError(t, err)
	require.JSONEq(t, `{"CustomerID":"c-1","Lines":["a"]}`, string(document))

	restored := &Order{Root: domain.RootWithID("other")}
	require.NoError(t, json.Unmarshal(document, restored))
	require.Equal(t, "other", restored.ID())
	require.Equal(t, "c-1", restored.CustomerID)
}

// Whatever Root exports is promoted to every aggregate: a MarshalJSON, a
// String or a Scan would stand for the whole of it.
func TestRoot_ExportsThreeMethodsAndNoField(t *testing.T) {
	root := reflect.TypeFor[*domain.Root]()
	var methods []string
	for m := range root.Methods() {
		methods = append(methods, m.Name)
	}
	require.Equal(t, []string{"ID", "Raise", "Version"}, methods)
	for f := range root.Elem().Fields() {
		require.False(t, f.IsExported(), f.Name)
	}
}

func TestRoot_VetReportsACopy(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "vet", "./testdata/copied").CombinedOutput()
	_, failed := errors.AsType[*exec.ExitError](err)
	require.True(t, failed, "%v: %s", err, out)
	require.Contains(t, string(out), "copied.go:16:12: assignment copies lock value to copied")
	require.NotContains(t, string(out), "copied.go:12", "a literal with NewRoot is no copy")
}
