package billing_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain/domaintest"
	"github.com/waybill-go/waybill/examples/ordering/billing"
	"github.com/waybill-go/waybill/waybilltest"
)

var payBy = time.Date(1997, 1, 1, 12, 0, 0, 0, time.UTC)

func ask(t *testing.T, customer string) *domaintest.Scenario[*billing.Charge] {
	t.Helper()
	return domaintest.New(t, billing.Domain, func() (*billing.Charge, error) {
		return billing.Ask(billing.ChargeOrder{OrderID: "o-1", CustomerID: customer, Cents: 901, PayBy: payBy})
	})
}

func refund(c *billing.Charge) error  { return c.Refund(billing.RefundOrder{}) }
func receive(c *billing.Charge) error { return c.Receive(billing.ReceiveMoney{}) }

// balance is what came and what went back.
func balance(t *testing.T, paid, refunded int64) func(*billing.Charge) error {
	t.Helper()
	return func(c *billing.Charge) error {
		require.Equal(t, []int64{paid, refunded}, []int64{c.Paid, c.Refunded})
		return nil
	}
}

func TestCharge_PaidAtOnce(t *testing.T) {
	ask(t, "customer-7").
		Then(billing.ChargePaid{OrderID: "o-1", Cents: 901}).When(balance(t, 901, 0)).Then().
		When(refund).Then(billing.ChargeRefunded{OrderID: "o-1", Cents: 901}).When(balance(t, 901, 901)).Then().
		When(refund).Then()
}

func TestCharge_PaidLate(t *testing.T) {
	asked := billing.ChargeAsked{OrderID: "o-1", Cents: 901}
	refunded := billing.ChargeRefunded{OrderID: "o-1", Cents: 901}
	ask(t, "late-7").Then(asked).
		When(refund).Then(billing.ChargeWithdrawn{OrderID: "o-1"}).
		When(receive).Then(refunded).When(balance(t, 901, 901)).Then()
	ask(t, "late-7").Then(asked).
		When(receive).Then(billing.ChargePaid{OrderID: "o-1", Cents: 901}).
		When(refund).Then(refunded).When(balance(t, 901, 901)).Then()
}

func TestCharge_NeverPaid(t *testing.T) {
	ask(t, "never-7").Then(billing.ChargeAsked{OrderID: "o-1", Cents: 901}).
		When(refund).Then(billing.ChargeWithdrawn{OrderID: "o-1"}).
		When(refund).Then().When(balance(t, 0, 0)).Then()
}

func TestCharge_Declined(t *testing.T) {
	ask(t, "broke-7").Then(billing.ChargeDeclined{OrderID: "o-1", Reason: "no credit"}).
		When(refund).Then().When(balance(t, 0, 0)).Then()
}

func TestAsk_OfLessThanNothing(t *testing.T) {
	domaintest.New(t, billing.Domain, func() (*billing.Charge, error) {
		return billing.Ask(billing.ChargeOrder{OrderID: "o-1", CustomerID: "c-1", Cents: -1})
	}).ThenError(billing.ErrNegative)
}

func TestKindOf(t *testing.T) {
	for customer, want := range map[string]billing.Kind{
		"late-1": billing.Late, "never-2": billing.Never, "broke-3": billing.Broke, "never": billing.Never,
		"customer-4": billing.Prompt, "00001": billing.Prompt, "": billing.Prompt, "late1": billing.Prompt,
	} {
		require.Equal(t, want, billing.KindOf(customer), customer)
	}
}

// Late money comes by a timer of billing's own, soon after nobody waits for it.
func TestContext_LateMoneyComesByItself(t *testing.T) {
	t.Parallel()
	k := waybilltest.New(t)
	units := k.Units(billing.Domain)
	k.Start(billing.Context(units))
	payBy := k.Now().Add(time.Hour)
	k.Deliver(units, "o-1", billing.ChargeOrder{OrderID: "o-1", CustomerID: "late-7", Cents: 901, PayBy: payBy})
	k.Settle()
	k.Published(units, billing.ChargeAsked{OrderID: "o-1", Cents: 901})
	k.Deliver(units, "o-1", billing.RefundOrder{OrderID: "o-1"})
	k.Advance(time.Hour - time.Minute)
	k.Published(units, billing.ChargeWithdrawn{OrderID: "o-1"})
	k.Advance(2 * time.Minute)
	k.Published(units, billing.ChargeRefunded{OrderID: "o-1", Cents: 901})
}

func TestBilling_ImportsNothingOfTheOthers(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "waybill/examples/ordering/billing")
	for dep := range strings.Lines(string(out)) {
		require.NotContains(t, dep, "waybill/examples/ordering/ordering")
		require.NotContains(t, dep, "waybill/examples/ordering/shipping")
	}
}
