package projection_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

// Where one projection's tables can't be made, the others go on, also in the process that takes
// them over.
// Conformance: N5.
func TestRebuild_ThatCanNotBeginStopsNobodyElse(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p, _ := currentLoans(1)
		other := counted(func(string) error { return nil })
		_, stop := w.run(t, p, other)
		w.place(t, "l1")
		w.wait(t, other.Name)
		next := w.program(t)
		next.run(t, p, other)
		_, err := w.p.DB().ExecContext(t.Context(), "CREATE TABLE "+projection.Physical("current_loans", 2)+" (id TEXT)")
		require.NoError(t, err)
		_, err = projection.Rebuild(t.Context(), w.p, p.Name, "ada")
		require.NoError(t, err)
		stop()
		w.place(t, "l2")
		next.wait(t, other.Name)
		next.wait(t, p.Name)
		require.Equal(t, []string{"l1", "l2"}, w.view(t, "SELECT loan_id FROM counted ORDER BY 1"))
	})
}

type LoanPlacedV1 struct {
	LoanID string `json:"loan_id"`
}

// A panic of an upcaster is its event's fault: the projection stops there, and the process
// goes on.
// Conformance: N5.
func TestProjection_APanicOfAnUpcasterStopsItAndNothingElse(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		newer := domain.MustNew("library", domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](domain.Version(2),
			domain.Upcast(1, func(LoanPlacedV1) LoanPlaced { panic("no idea") }))))
		w.place(t, "l1", "l2", "l3")
		units, err := uow.New(uow.Config{Domain: newer, Providers: []uow.Provider{w.p}, History: true})
		require.NoError(t, err)
		next := &world{p: w.p, units: units}
		next.run(t, counted(func(string) error { return nil }))
		failure := w.stops(t)
		require.Contains(t, failure.Error, "no idea")
		require.NoError(t, projection.SkipEvent(t.Context(), w.p, "counted", 1, failure.Position, "ada"))
	})
}

// stops waits until the only projection has failed at an event more than once.
func (w *world) stops(t *testing.T) (failure projection.Failure) {
	t.Helper()
	eventually(t, func() bool {
		list, err := projection.List(t.Context(), w.p)
		require.NoError(t, err)
		if len(list) != 1 || list[0].Failure == nil {
			return false
		}
		failure = *list[0].Failure
		return failure.Tries > 1
	})
	return failure
}

// missing is an error that is often returned as nil by mistake.
type missing struct{ cause error }

func (e *missing) Error() string { return "missing" }
func (e *missing) Unwrap() error { return e.cause }

// An error that panics when it is read stops the projection at its event, and nothing else.
// Conformance: N5.
func TestProjection_AnErrorThatPanicsStopsItAndNothingElse(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "l1", "l2")
		w.run(t, counted(func(string) error { var none *missing; return none }))
		require.Contains(t, w.stops(t).Error, "panics when it is read")
	})
}

// A handler that ends its goroutine, as a failed check of a test does, would leave its projection
// to nobody.
func TestProjection_AHandlerThatEndsItsGoroutineStopsIt(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "l1", "l2")
		table := projection.NewTable[CurrentLoan]("current_loans", "member_id, loan_id")
		w.run(t, projection.Projection{
			Name: "current-loans", Version: 1, Tables: []projection.Definition{table},
			Handlers: []projection.Handler{projection.On(func(ctx context.Context, e LoanPlaced) error {
				if e.LoanID == "l2" {
					runtime.Goexit()
				}
				return table.Upsert(ctx, e.LoanID, func(l *CurrentLoan) { l.MemberID = e.MemberID }) // It reads, and the other is scouted.
			})},
		})
		require.Contains(t, w.stops(t).Error, "it ended its goroutine")
		rows := find(t, w, table, "loan_id")
		require.Len(t, rows, 1, "the event before it has its effect")
		require.Equal(t, "l1", rows[0].LoanID)
	})
}

// A lease that was taken when the database's clock was ahead, by a process that has died since,
// is nobody's once the clock is right.
// Conformance: N5.
func TestProjection_ALeaseThatAClockThatWasWrongHasLeftIsNobodys(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		p := w.ran(t)
		_, err := w.p.DB().ExecContext(t.Context(), "UPDATE projection_positions SET owner = 'gone', locked_until = '2999-01-01T00:00:00.000Z'")
		require.NoError(t, err)
		list, err := projection.List(t.Context(), w.p)
		require.NoError(t, err)
		require.False(t, list[0].Fed)
		w.place(t, "l2")
		w.run(t, p)
		w.wait(t, p.Name)
	})
}
