package domaintest_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/domain/domaintest"
)

type (
	Order struct {
		domain.Root
		Lines     int
		Cancelled bool
	}
	OrderPlaced    struct{ OrderID string }
	OrderCancelled struct{ OrderID, Reason string }
	Undeclared     struct{ A int }

	Account struct {
		domain.Root
		Balance int
	}
	Deposited struct{ Amount int }
	Withdrawn struct {
		AccountID string
		Amount    int
	}

	Stranger struct{ domain.Root }
)

var (
	errEmpty     = errors.New("an order needs a line")
	errCancelled = errors.New("cancelled already")
	errOverdrawn = errors.New("overdrawn")

	shop = domain.MustNew("shop",
		domain.Aggregate[*Order]("order", domain.Event[OrderPlaced](), domain.Event[OrderCancelled]()),
		domain.Aggregate[*Account]("account", domain.Event[Deposited](), domain.Event[Withdrawn]()),
	)
)

func Place(id string, lines int) (*Order, error) {
	if lines == 0 {
		return nil, errEmpty
	}
	o := &Order{Root: domain.RootWithID(id), Lines: lines}
	o.Raise(OrderPlaced{OrderID: id})
	return o, nil
}

func (o *Order) Cancel(reason string) error {
	if o.Cancelled {
		return fmt.Errorf("order %s: %w", o.ID(), errCancelled)
	}
	o.Cancelled = true
	o.Raise(OrderCancelled{OrderID: o.ID(), Reason: reason})
	return nil
}

func (o *Order) Validate() error {
	if o.Lines < 0 {
		return errors.New("lines below zero")
	}
	return nil
}

func (a *Account) Apply(event any) {
	switch e := event.(type) {
	case Deposited:
		a.Balance += e.Amount
	case Withdrawn:
		a.Balance -= e.Amount
	}
}

func (a *Account) Withdraw(amount int) error {
	if amount > a.Balance {
		return errOverdrawn
	}
	domain.Record(a, Withdrawn{AccountID: a.ID(), Amount: amount})
	return nil
}

func placed(id string) *Order {
	o, err := Place(id, 1)
	if err != nil {
		panic(err)
	}
	return o
}

func cancel(reason string) func(*Order) error {
	return func(o *Order) error { return o.Cancel(reason) }
}

func withdraw(amount int) func(*Account) error {
	return func(a *Account) error { return a.Withdraw(amount) }
}

func ExampleGiven() {
	t := new(testing.T) // that of the test
	domaintest.Given(t, shop, placed("o1")).
		When(cancel("too late")).
		Then(OrderCancelled{OrderID: "o1", Reason: "too late"}).
		When(cancel("again")).
		ThenError(errCancelled)
	fmt.Println("failed:", t.Failed())
	// Output: failed: false
}

func ExampleGivenEvents() {
	t := new(testing.T) // that of the test
	domaintest.GivenEvents[*Account](t, shop, "a1", Deposited{Amount: 5}, Deposited{Amount: 2}).
		When(withdraw(6)).
		Then(Withdrawn{AccountID: "a1", Amount: 6})
	fmt.Println("failed:", t.Failed())
	// Output: failed: false
}

func ExampleNew() {
	t := new(testing.T) // that of the test
	domaintest.New(t, shop, func() (*Order, error) { return Place("o1", 2) }).Then(OrderPlaced{OrderID: "o1"})
	domaintest.New(t, shop, func() (*Order, error) { return Place("o2", 0) }).ThenError(errEmpty)
	fmt.Println("failed:", t.Failed())
	// Output: failed: false
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper()                           {}
func (r *recorder) Error(args ...any)                 { r.failures = append(r.failures, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

func failuresOf(test func(t testing.TB)) []string {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r.failures
}

func TestScenarios_Pass(t *testing.T) {
	for name, test := range map[string]func(t testing.TB){
		"what was raised before is past": func(t testing.TB) { domaintest.Given(t, shop, placed("o1")).Then() },
		"several calls": func(t testing.TB) {
			domaintest.GivenEvents[*Account](t, shop, "a1", Deposited{10}).
				When(withdraw(1)).When(withdraw(2)).Then(Withdrawn{"a1", 1}, Withdrawn{"a1", 2}).
				When(withdraw(8)).ThenError(errOverdrawn).
				When(withdraw(7)).Then(Withdrawn{"a1", 7})
		},
		"after an error nothing was raised": func(t testing.TB) {
			domaintest.GivenEvents[*Account](t, shop, "a1").When(withdraw(8)).ThenError(errOverdrawn).Then()
		},
		"an error after a success": func(t testing.TB) {
			domaintest.Given(t, shop, placed("o1")).When(cancel("x")).When(cancel("y")).ThenError(errCancelled).Then(OrderCancelled{"o1", "x"})
		},
		"versions": func(t testing.TB) {
			domaintest.Given(t, shop, placed("o1")).When(func(o *Order) error {
				if o.Version() != 1 {
					return errors.New("as if it had never been saved")
				}
				return nil
			}).Then()
			domaintest.GivenEvents[*Account](t, shop, "a1", Deposited{1}, Deposited{1}).When(func(a *Account) error {
				if a.ID() != "a1" || a.Version() != 2 || a.Balance != 2 {
					return errors.New("not restored")
				}
				return nil
			}).Then()
		},
	} {
		require.Empty(t, failuresOf(test), name)
	}
}

func TestScenarios_FailWhenTheyMust(t *testing.T) {
	raise := func(events ...any) func(*Order) error {
		return func(o *Order) error {
			for _, e := range events {
				o.Raise(e)
			}
			return nil
		}
	}
	given := func(t testing.TB) *domaintest.Scenario[*Order] { return domaintest.Given(t, shop, placed("o1")) }
	for name, c := range map[string]struct {
		test func(t testing.TB)
		want []string
	}{
		"missing event":    {func(t testing.TB) { given(t).Then(OrderPlaced{"o1"}) }, []string{"event 1 is missing"}},
		"unexpected event": {func(t testing.TB) { given(t).When(cancel("x")).Then() }, []string{"event 1 is unexpected"}},
		"other value":      {func(t testing.TB) { given(t).When(cancel("x")).Then(OrderCancelled{"o1", "y"}) }, []string{"event 1:\n got"}},
		"other order": {func(t testing.TB) {
			given(t).When(raise(OrderPlaced{"1"}, OrderPlaced{"2"})).Then(OrderPlaced{"2"}, OrderPlaced{"1"})
		}, []string{"event 1:", "event 2:"}},
		"one too many": {func(t testing.TB) {
			given(t).When(raise(OrderPlaced{"1"}, OrderPlaced{"1"})).Then(OrderPlaced{"1"})
		}, []string{"event 2 is unexpected"}},
		"undeclared event": {func(t testing.TB) { given(t).When(raise(Undeclared{})).Then(Undeclared{}) }, []string{"domaintest_test.Undeclared is not declared"}},
		"pointer event":    {func(t testing.TB) { given(t).When(raise(&OrderPlaced{})).Then(&OrderPlaced{}) }, []string{"raise it by value"}},
		"another aggregate's event": {
			func(t testing.TB) { given(t).When(raise(Deposited{1})).Then(Deposited{1}) },
			[]string{"domaintest_test.Deposited is declared for shop::account and was raised by the order"},
		},
		"invalid aggregate": {func(t testing.TB) {
			given(t).When(func(o *Order) error { o.Lines = -1; return nil }).Then()
		}, []string{"the order is invalid afterwards: lines below zero"}},
		"no identity":       {func(t testing.TB) { domaintest.Given(t, shop, &Order{}).Then() }, []string{"the order has no identity"}},
		"error, not wanted": {func(t testing.TB) { given(t).When(cancel("x")).When(cancel("y")).Then(OrderCancelled{"o1", "x"}) }, []string{"unexpected error: order o1: cancelled already"}},
		"earlier error":     {func(t testing.TB) { given(t).When(func(*Order) error { return errEmpty }).When(cancel("x")).Then() }, []string{"an earlier call failed"}},
		"constructor error": {func(t testing.TB) {
			domaintest.New(t, shop, func() (*Order, error) { return Place("o1", 0) }).When(cancel("x"))
		}, []string{"an earlier call failed"}},
		"no error":         {func(t testing.TB) { given(t).ThenError(errEmpty) }, []string{"the error is <nil>, want an order needs a line"}},
		"other error":      {func(t testing.TB) { given(t).When(func(*Order) error { return errEmpty }).ThenError(errCancelled) }, []string{"the error is an order needs a line, want cancelled already"}},
		"nil error wanted": {func(t testing.TB) { given(t).ThenError(nil) }, []string{"ThenError needs an error"}},
		"refused, and raised": {func(t testing.TB) {
			given(t).When(func(o *Order) error { _ = o.Cancel("x"); return errEmpty }).ThenError(errEmpty)
		}, []string{`the refused call raised domaintest_test.OrderCancelled{OrderID:"o1", Reason:"x"}`}},
		"undeclared aggregate":  {func(t testing.TB) { domaintest.Given(t, shop, &Stranger{}) }, []string{"*domaintest_test.Stranger is not declared"}},
		"undeclared in history": {func(t testing.TB) { domaintest.GivenEvents[*Account](t, shop, "a1", Undeclared{}) }, []string{"Undeclared is not declared"}},
		"raised, not recorded": {func(t testing.TB) {
			domaintest.GivenEvents[*Account](t, shop, "a1").When(func(a *Account) error { a.Raise(Deposited{1}); return nil }).Then(Deposited{1})
		}, []string{"event 1 was raised and not applied"}},
		"events of another time": {func(t testing.TB) {
			given(t).When(cancel("x")).Then(OrderCancelled{"o1", "x"}).Then(OrderCancelled{"o1", "x"})
		}, []string{"event 1 is missing"}},
	} {
		got := failuresOf(c.test)
		require.Len(t, got, len(c.want), "%s: %v", name, got)
		for i, want := range c.want {
			require.Contains(t, got[i], want, name)
		}
	}
}
