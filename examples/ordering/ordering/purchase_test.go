package ordering_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/domain/domaintest"
	"github.com/waybill-go/waybill/examples/ordering/ordering"
)

var (
	noon    = time.Date(1997, 1, 1, 12, 0, 0, 0, time.UTC)
	payBy   = noon.Add(time.Minute)
	selling = ordering.Selling(time.Minute)

	orderPlaced = ordering.OrderPlaced{OrderID: "o-1", CustomerID: "c-1", Total: 901}
	cancelled   = ordering.OrderCancelled{OrderID: "o-1", Reason: "changed my mind"}
	released    = ordering.OrderReleased{OrderID: "o-1"}
	paid        = ordering.ChargePaid{OrderID: "o-1"}
	declined    = ordering.ChargeDeclined{OrderID: "o-1", Reason: "no credit"}
	refunded    = ordering.ChargeRefunded{OrderID: "o-1"}
	withdrawn   = ordering.ChargeWithdrawn{OrderID: "o-1"}

	release = ordering.ReleaseOrder{OrderID: "o-1"}
	refund  = ordering.RefundOrder{OrderID: "o-1"}
	unpaid  = ordering.CancelOrder{OrderID: "o-1", Reason: "not paid in time"}
	refused = domain.Refusal[ordering.ReleaseOrder]{Command: release, Reason: ordering.ErrCancelled.Error()}
)

type scenario = domaintest.ProcessScenario[*ordering.Purchase]

func purchase(t *testing.T, heard ...any) *scenario {
	t.Helper()
	return domaintest.GivenProcess[*ordering.Purchase](t, selling, noon, append([]any{orderPlaced}, heard...)...)
}

func TestPurchase_IsCharged(t *testing.T) {
	domaintest.GivenProcess[*ordering.Purchase](t, selling, noon).When(orderPlaced).
		ThenSent(ordering.ChargeOrder{OrderID: "o-1", CustomerID: "c-1", Cents: 901, PayBy: payBy}).
		ThenTimer("pay-by", payBy)
}

func TestPurchase_PaidIsReleased(t *testing.T) {
	purchase(t).When(paid).ThenSent(release).ThenNoTimer("pay-by").When(released).ThenSent().ThenEnded()
}

func TestPurchase_DeclinedIsCancelled(t *testing.T) {
	purchase(t).When(declined).ThenSent(ordering.CancelOrder{OrderID: "o-1", Reason: "payment declined: no credit"}).ThenEnded()
}

func TestPurchase_NotPaidInTimeIsCancelled(t *testing.T) {
	late := func() *scenario { return purchase(t).WhenDue("pay-by").ThenSent(unpaid, refund) }
	late().When(cancelled).When(withdrawn).ThenSent().ThenEnded()
	late().When(withdrawn).ThenEnded()
	// The money comes before billing hears that nobody waits for it any more.
	late().When(paid).When(refunded).ThenSent().ThenEnded()
	late().When(cancelled).When(paid).When(refunded).ThenSent().ThenEnded()
	late().When(refunded).When(paid).ThenSent().ThenEnded()
	// The customer cancels in the same moment.
	late().When(cancelled).When(cancelled).ThenSent()
	late().When(declined).ThenSent().ThenEnded()
}

func TestPurchase_CancelledByTheCustomer(t *testing.T) {
	early := func() *scenario { return purchase(t).When(cancelled).ThenSent(refund).ThenNoTimer("pay-by") }
	early().When(withdrawn).ThenSent().ThenEnded()
	early().When(paid).When(refunded).ThenSent().ThenEnded()
	early().When(declined).ThenSent().ThenEnded()
}

func TestPurchase_CancelledBeforeItIsReleased(t *testing.T) {
	both := func() *scenario { return purchase(t, paid) }
	both().When(refused).ThenSent(refund).When(cancelled).When(refunded).ThenSent().ThenEnded()
	both().When(cancelled).ThenSent(refund).When(refused).When(refunded).ThenSent().ThenEnded()
	both().When(cancelled).ThenSent(refund).When(refunded).When(refused).ThenSent().ThenEnded()
}
