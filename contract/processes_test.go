package contract_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/contract"
	"github.com/waybill-go/waybill/domain"
)

type (
	Paying    struct{ domain.ProcessRoot }
	Cancelled struct {
		OrderID string `json:"order_id"`
		Number  string `json:"number"`
	}
)

func (*Paying) Begun(Cancelled) error                { return nil }
func (*Paying) Refused(domain.Refusal[Cancel]) error { return nil }
func (*Paying) Late() error                          { return nil }
func paying(t *testing.T, options ...domain.ProcessOption) *contract.Contract {
	t.Helper()
	return ordering(t, order(domain.Event[Cancelled]()), domain.Command[Cancel](domain.KeyedBy("")),
		domain.Process[*Paying]("paying", append(options, domain.Starts((*Paying).Begun))...))
}

// What waits for processes that run waits under names, and is found by a field.
func TestCompare_TellsWhatRunningProcessesLose(t *testing.T) {
	by, late, refused := domain.CorrelatedBy("order_id"), domain.OnTimer("late", (*Paying).Late), domain.Hears((*Paying).Refused)
	old := paying(t, by, late, refused)
	require.Equal(t, map[string]contract.Process{"ordering.paying": {CorrelatedBy: "order_id", Timers: []string{"late"}, Refusals: []string{"Ordering.Cancel.v1"}}}, old.Processes)
	unknown := *old
	unknown.Processes = nil // of a file from before they were in it
	for _, c := range []struct {
		old, new *contract.Contract
		want     []string
	}{
		{old, paying(t, by, late, refused, domain.OnTimer("later", (*Paying).Late)), nil},
		{&unknown, paying(t, by), nil},
		{old, paying(t, by, refused, domain.OnTimer("later", (*Paying).Late)), []string{
			`ordering.paying: has no timer "late" any more, which breaks history: bring domain.OnTimer("late", …) back: timers wait under their name; once none is left, take it out of contract.json`,
		}},
		{old, paying(t, by, late), []string{
			`ordering.paying: doesn't hear any more that Ordering.Cancel.v1 is refused, which breaks history: let it hear that: commands that it has sent may wait; once none is left, take it out of contract.json`,
		}},
		{old, paying(t, domain.CorrelatedBy("number"), late, refused), []string{
			`ordering.paying: is correlated by field "number" and was by field "order_id", which breaks history: leave it, as messages don't find a process that was begun by the other one; if they do, or none runs, correct it in contract.json`,
		}},
		{old, ordering(t, order(domain.Event[Cancelled]()), domain.Command[Cancel](domain.KeyedBy(""))), []string{
			`ordering.paying.v1: is gone, which breaks history: declare it again under its name; once no such process is kept, take it out of the contract's files`,
		}},
	} {
		var got []string
		for _, b := range contract.Compare(c.old, c.new) {
			got = append(got, b.String())
		}
		require.Equal(t, c.want, got)
	}
}
