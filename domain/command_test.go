package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/rootstate"
)

type (
	Title  struct{ domain.Root }
	Borrow struct {
		BookID string `json:"book_id"`
		Days   int
	}
	Remind struct{ BookID string }
	Secret struct {
		BookID string `json:"book_id"`
		hidden int    //nolint:unused // that is what the test is about
	}
	Borrowed struct{ BookID string }
	Bill     struct {
		BookID string `json:"book_id"`
	}
)

func TestCommand_IsDescribed(t *testing.T) {
	d := domain.MustNew("book-shop",
		domain.Aggregate[*Title]("book", domain.Event[Borrowed]()),
		domain.Command[Borrow](domain.KeyedBy("book_id"), domain.FromOthers()),
		domain.Command[Remind](domain.KeyedBy("")),
		domain.ForeignCommand[Bill]("billing", "Billing.BillBook.v2", domain.KeyedBy("book_id")),
	)
	ct, err := domain.CommandTypeFor[Borrow](d)
	require.NoError(t, err)
	require.Equal(t, "BookShop.Borrow.v1", ct.WireName())
	require.Equal(t, "Borrow", ct.ShortName())
	require.Equal(t, "book-shop::commands", ct.Category())
	require.Equal(t, "b1", ct.Key(Borrow{BookID: "b1"}))
	require.True(t, ct.Keyed)
	require.True(t, ct.FromOthers)
	remind, err := d.CommandTypeOf(Remind{})
	require.NoError(t, err)
	require.False(t, remind.Keyed)
	require.Empty(t, remind.Key(Remind{"b1"}))
	bill, err := d.CommandTypeOf(Bill{})
	require.NoError(t, err)
	require.True(t, bill.Foreign)
	require.Equal(t, "Billing.BillBook.v2", bill.WireName())
	require.Equal(t, "billing::commands", bill.Category())
	require.Len(t, d.Commands(), 3)
	require.Len(t, d.Events(), 1, "commands are no events")
	require.True(t, d.HandlesCommands())

	// A message of one is read like an event's, and nobody can raise it.
	back, err := d.Decode("BookShop.Borrow.v1", []byte(`{"book_id":"b1","Days":3}`))
	require.NoError(t, err)
	require.Equal(t, Borrow{BookID: "b1", Days: 3}, back)
	et, err := d.EventNamed("BookShop.Borrow.v1")
	require.NoError(t, err)
	require.Equal(t, "book-shop::commands", et.Category)
	_, _, err = d.Encode(Borrow{BookID: "b1"})
	require.ErrorContains(t, err, "is a command and was raised as an event; send it with command.Send")
	_, err = d.CommandTypeOf(&Remind{})
	require.ErrorContains(t, err, "*domain_test.Remind is a pointer, and declared is domain_test.Remind: give it by value")
	_, err = d.CommandTypeOf(nil)
	require.ErrorContains(t, err, "nil stands where a value of a declared type belongs: give one")
	_, err = d.CommandTypeOf(Borrowed{})
	undeclared := new(domain.UndeclaredError)
	require.ErrorAs(t, err, &undeclared)
}

func TestCommand_AllMistakesTogether(t *testing.T) {
	_, err := domain.New("shop",
		domain.Aggregate[*Title]("commands", domain.Event[Borrowed]()),
		domain.Command[Borrow](domain.KeyedBy("none")),
		domain.Command[Remind](nil),
		domain.Command[int](),
		domain.Command[Secret](domain.KeyedBy("book_id")),
		domain.Command[Borrowed](domain.KeyedBy("BookID")),
		domain.ForeignCommand[Bill]("billing", "BillBook"),
		domain.ForeignCommand[Bill]("Billing!", "Billing.BillBook.v1"),
		domain.ForeignCommand[Bill]("shop", "Shop.BillBook.v1"),
		domain.ForeignCommand[Bill]("billing", "Billing.BillBook.v1", domain.KeyedBy("book_id"), domain.FromOthers()),
		domain.ForeignCommand[Bill]("billing", "Billing.BillAgain.v1", domain.KeyedBy("book_id")),
	)
	for _, part := range []string{
		`domain.KeyedBy("none"): domain_test.Borrow has no string field with the JSON name "none"`,
		"command Shop.Remind: option 1 is nil", `command Shop.Remind has no key: add domain.KeyedBy`,
		"command int is not a struct", "command Shop.Secret: ", "hidden",
		"the name Shop.Borrowed is used by domain_test.Borrowed and by command domain_test.Borrowed",
		`"BillBook" is not an event name`, `"Billing!" can't be a context's name`, "is this context's own: declare domain.Command[domain_test.Bill]",
		"foreign command Billing.BillBook can't be FromOthers", "domain_test.Bill is declared twice",
		`aggregate "commands": shop::commands is the stream of the context's commands`,
	} {
		require.ErrorContains(t, err, part)
	}
}

// S4-18, U-16.
func TestCommand_S4_18_KeepsItsNameWhenItsGoTypeIsRenamed(t *testing.T) {
	before := domain.MustNew("shop", domain.Command[Remind](domain.KeyedBy("")))
	after := domain.MustNew("shop", domain.Command[Borrow](domain.Named("Remind"), domain.KeyedBy("book_id")))
	was, err := before.CommandTypeOf(Remind{})
	require.NoError(t, err)
	is, err := after.CommandTypeOf(Borrow{})
	require.NoError(t, err)
	require.Equal(t, was.WireName(), is.WireName())
	back, err := after.Decode(was.WireName(), []byte(`{"book_id":"b1"}`))
	require.NoError(t, err)
	require.Equal(t, Borrow{BookID: "b1"}, back)

	_, err = domain.New("shop",
		domain.Command[Borrow](domain.KeyedBy("book_id"), domain.Named("Shop.Borrow")),
		domain.Command[Remind](domain.KeyedBy(""), domain.Named("")),
		domain.ForeignCommand[Bill]("billing", "Billing.BillBook.v1", domain.KeyedBy("book_id"), domain.Named("Bill")),
	)
	for _, part := range []string{
		`command domain_test.Borrow: "Shop.Borrow" can't be its name`, `command domain_test.Remind: "" can't be its name`, "domain.Named(…)",
		"foreign command Billing.BillBook can't be Named: its name is the one that the other context reads",
	} {
		require.ErrorContains(t, err, part)
	}
}

func TestTimer_IsNotedUntilTheSave(t *testing.T) {
	b := &Title{Root: domain.RootWithID("b1")}
	at := time.Now().Add(time.Hour)
	domain.SetTimer(b, "due", at, Remind{"b1"})
	domain.StopTimer(b, "other")
	timers := rootstate.Of(b).Timers
	require.Len(t, timers, 2)
	require.Equal(t, rootstate.Timer{ID: timers[0].ID, Name: "due", At: at, Command: Remind{"b1"}}, timers[0])
	require.Equal(t, rootstate.Timer{Name: "other", Stop: true}, timers[1])
}

func TestNow_IsTheClockOfTheContext(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	require.Equal(t, at.UTC(), domain.Now(domain.WithClock(t.Context(), func() time.Time { return at })))
	require.WithinDuration(t, time.Now(), domain.Now(t.Context()), time.Minute)
}

// Commands have one version: a remedy that asks for a build which declares another would help nobody.
func TestCommand_OfAVersionThatNoBuildCanHave(t *testing.T) {
	d := domain.MustNew("shipping", domain.Command[sendParcel](domain.KeyedBy("order_id")))
	_, err := d.Decode("Shipping.sendParcel.v2", []byte("{}"))
	require.EqualError(t, err, "domain: Shipping.sendParcel.v2 is newer than the known Shipping.sendParcel.v1, and no build has a command in another version: "+
		"send it as Shipping.sendParcel.v1, by domain.ForeignCommand, or as a command of another name, and discard the message")
}

type sendParcel struct {
	OrderID string `json:"order_id"`
}
