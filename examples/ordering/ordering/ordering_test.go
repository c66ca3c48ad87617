package ordering_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain/domaintest"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
)

var tea = ordering.Line{Article: "tea", Quantity: 2, Amount: 901} // what two packets cost need not be even

func placed(t *testing.T, lines ...ordering.Line) *ordering.Order {
	t.Helper()
	o, err := ordering.Import("o-1", time.Date(1997, 1, 1, 0, 0, 0, 0, time.UTC), "c-1", lines...)
	require.NoError(t, err)
	return o
}

func TestPlace_TotalsItsLines(t *testing.T) {
	cup := ordering.Line{Article: "cup", Quantity: 1, Amount: 450}
	domaintest.New(t, ordering.Domain, func() (*ordering.Order, error) { return placed(t, tea, cup), nil }).
		Then(ordering.OrderPlaced{OrderID: "o-1", CustomerID: "c-1", Total: 1351})
}

func TestPlace_NeedsALine(t *testing.T) {
	domaintest.New(t, ordering.Domain, func() (*ordering.Order, error) { return ordering.Place("c-1") }).
		ThenError(ordering.ErrEmpty)
}

func TestPlace_GivesAnIdentityOfItsOwn(t *testing.T) {
	a, err := ordering.Place("c-1", tea)
	require.NoError(t, err)
	b, err := ordering.Place("c-1", tea)
	require.NoError(t, err)
	require.NotEqual(t, a.ID(), b.ID())
	require.WithinDuration(t, time.Now(), a.PlacedAt, time.Minute)
}

func TestCancel(t *testing.T) {
	domaintest.Given(t, ordering.Domain, placed(t, tea)).
		When(func(o *ordering.Order) error { return o.Cancel("too late") }).
		Then(ordering.OrderCancelled{OrderID: "o-1", Reason: "too late"}).
		When(func(o *ordering.Order) error { return o.Cancel("again") }).
		ThenError(ordering.ErrCancelled)
}

func TestRelease_OrCancelNeverBoth(t *testing.T) {
	cancel := func(o *ordering.Order) error { return o.Cancel("too late") }
	domaintest.Given(t, ordering.Domain, placed(t, tea)).
		When((*ordering.Order).Release).
		Then(ordering.OrderReleased{OrderID: "o-1"}).
		When(cancel).
		ThenError(ordering.ErrReleased).
		When((*ordering.Order).Release).
		ThenError(ordering.ErrReleased).
		When(func(o *ordering.Order) error { return o.AddNote("a gift") }).
		ThenError(ordering.ErrReleased)
	domaintest.Given(t, ordering.Domain, placed(t, tea)).
		When(cancel).
		Then(ordering.OrderCancelled{OrderID: "o-1", Reason: "too late"}).
		When((*ordering.Order).Release).
		ThenError(ordering.ErrCancelled)
}

func TestAddNote(t *testing.T) {
	domaintest.Given(t, ordering.Domain, placed(t, tea)).
		When(func(o *ordering.Order) error { return o.AddNote("a gift") }).
		Then(ordering.NoteAdded{OrderID: "o-1", Note: "a gift"}).
		When(func(o *ordering.Order) error { return o.Cancel("too late") }).
		Then(ordering.OrderCancelled{OrderID: "o-1", Reason: "too late"}).
		When(func(o *ordering.Order) error { return o.AddNote("too late as well") }).
		ThenError(ordering.ErrCancelled)
}

func TestValidate(t *testing.T) {
	require.NoError(t, placed(t, ordering.Line{Article: "sample", Quantity: 1, Amount: 0}).Validate(), "a gift costs nothing")
	require.ErrorContains(t, placed(t, tea, ordering.Line{Article: "cup", Quantity: 0, Amount: 1}).Validate(), "line 2 is 0 pieces")
	require.ErrorContains(t, placed(t, ordering.Line{Article: "cup", Quantity: 1, Amount: -1}).Validate(), "for -1 cents")
	o := placed(t, tea)
	o.CustomerID = ""
	require.ErrorContains(t, o.Validate(), "needs a customer")
}

func TestOrderCancelled_ReadsItsFirstVersion(t *testing.T) {
	e, err := ordering.Domain.Decode("Ordering.OrderCancelled.v1", []byte(`{"order_id": "o-1"}`))
	require.NoError(t, err)
	require.Equal(t, ordering.OrderCancelled{OrderID: "o-1", Reason: "unknown"}, e)
}
