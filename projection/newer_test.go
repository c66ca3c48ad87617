package projection_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

type LoanMovedV1 struct {
	LoanID string `json:"loan_id"`
	State  string `json:"state"`
}

// newer is the library with another version of LoanMoved.
var newer = domain.MustNew("library",
	domain.Aggregate[*Loan]("loan", domain.Event[LoanPlaced](), domain.Event[LoanReturned](), domain.Event[LoanNoted](),
		domain.Event[LoanMoved](domain.Version(2), domain.Upcast(1, func(e LoanMovedV1) LoanMoved { return LoanMoved{e.LoanID, e.State} }))),
)

// In a rolling deploy the older process, which has the lease, comes to an event that it can't
// read. The newer one takes over, though the older one lives. Conformance: N3.
func TestProjection_N3_AProcessThatReadsTheEventTakesOver(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "l1")
		p, _ := currentLoans(1)
		w.run(t, p)
		w.wait(t, p.Name)

		units, err := uow.New(uow.Config{Domain: newer, Providers: []uow.Provider{w.p}, History: true})
		require.NoError(t, err)
		deployed := &world{p: w.p, units: units, loans: repository.New[*Loan](units)}
		deployed.do(t, "l1", LoanMoved{"l1", "active"})
		require.Contains(t, w.stops(t).Error, "Library.LoanMoved.v2 is newer than the known Library.LoanMoved.v1; deploy a build")
		list, err := projection.List(t.Context(), w.p)
		require.NoError(t, err)
		require.True(t, list[0].Fed, "it is tried again by a process that doesn't keep the lease meanwhile")
		require.Len(t, list[0].Owners, 1)

		p, loans := currentLoans(1)
		_, stop := deployed.run(t, p)
		deployed.wait(t, p.Name)
		require.Equal(t, []CurrentLoan{{"l1", "m1", "active"}}, find(t, deployed, loans, "loan_id"))

		// What the older one can read it feeds again when the newer one has gone.
		stop()
		w.do(t, "l2", LoanPlaced{"l2", "m2"})
		w.wait(t, p.Name)
		require.Len(t, find(t, w, loans, "loan_id"), 2)
	})
}

// A process that ends while an event can't be handled doesn't come back to it.
func TestProjection_WhoHasEndedFeedsNothing(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.place(t, "l1")
		_, stop := w.run(t, counted(func(string) error { return errors.New("no idea") }))
		w.stops(t)
		stop()
		list, err := projection.List(t.Context(), w.p)
		require.NoError(t, err)
		require.NotNil(t, list[0].Failure)
		require.False(t, list[0].Fed)
	})
}
