package domain_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
)

type (
	Ship struct {
		domain.ProcessRoot
		Parcels int
	}
	Strayed struct {
		domain.ProcessRoot
		Any any
	}
	Unrooted struct{ *domain.ProcessRoot }
	Ordered  struct {
		OrderID string `json:"order_id"`
	}
	Packed struct {
		Order string
	}
	Pack struct {
		OrderID string `json:"order_id"`
	}
	Nameless struct{ A int }
	Depot    struct{ domain.Root }
)

func (*Ship) Ordered(Ordered) error               { return nil }
func (*Ship) Packed(Packed) error                 { return nil }
func (*Ship) Declined(domain.Refusal[Pack]) error { return errors.New("declined") }
func (*Ship) Late() error                         { return nil }
func (*Ship) Nameless(Nameless) error             { return nil }
func (*Strayed) Ordered(Ordered) error            { return nil }

func TestProcess_IsDescribed(t *testing.T) {
	d := domain.MustNew("depot",
		domain.Process[*Ship]("ship",
			domain.CorrelatedBy("order_id"),
			domain.Starts((*Ship).Ordered),
			domain.Hears((*Ship).Packed, domain.By(func(e Packed) string { return e.Order }), domain.Optional()),
			domain.Hears((*Ship).Declined),
			domain.OnTimer("late", (*Ship).Late),
		),
		domain.Aggregate[*Depot]("depot", domain.Event[Ordered]()),
		domain.Foreign[Packed]("Packing.Packed.v1", domain.From("packing::parcel")),
		domain.ForeignCommand[Pack]("packing", "Packing.Pack.v1", domain.KeyedBy("order_id")),
	)
	p, err := domain.ProcessTypeFor[*Ship](d)
	require.NoError(t, err)
	require.Equal(t, "ship", p.Name)
	require.Equal(t, []string{"late"}, p.Timers())
	require.True(t, p.Posted())
	require.Len(t, p.Heard(), 3)
	h, err := p.HeardBy(Packed{"o1"})
	require.NoError(t, err)
	require.Equal(t, "o1", h.Instance(Packed{"o1"}))
	require.True(t, h.Optional)
	c, err := domain.CommandTypeFor[Pack](d)
	require.NoError(t, err)
	require.ErrorContains(t, p.Refusal(c).CallRefused(p.New("o1", time.Now()), []byte(`{"order_id":"o1"}`), "full"), "declined")
	_, err = p.HeardBy(Pack{})
	require.ErrorContains(t, err, "declare domain.Hears")
	_, err = domain.ProcessTypeFor[*Strayed](d)
	require.ErrorContains(t, err, "domain.Process[*domain_test.Strayed](…)")
}

func TestProcess_AllMistakesTogether(t *testing.T) {
	_, err := domain.New("depot",
		domain.Aggregate[*Depot]("processes", domain.Event[Ordered](), domain.Event[Nameless]()),
		domain.Process[*Ship]("Ship",
			nil,
			domain.Hears((*Ship).Ordered),
			domain.Hears((*Ship).Ordered),
			domain.Hears((*Strayed).Ordered),
			domain.Hears[*Ship, Nameless](nil),
			domain.Hears((*Ship).Packed),
			domain.Hears((*Ship).Declined, domain.Optional(), nil),
			domain.OnTimer("", (*Ship).Late),
			domain.OnTimer("late", (*Ship).Late),
			domain.OnTimer("late", (*Ship).Late),
			domain.OnTimer[*Ship]("never", nil),
		),
		domain.Process[*Strayed]("commands", domain.CorrelatedBy("order_id"), domain.Starts((*Strayed).Ordered, domain.By(func(Packed) string { return "" }))),
		domain.Process[*Strayed]("again", domain.Starts((*Strayed).Ordered)),
		domain.Process[*Unrooted]("unrooted", domain.CorrelatedBy("")),
	)
	for _, part := range []string{
		`process "Ship": option 1 is nil`,
		`process "Ship" (*domain_test.Ship): its name must be 1 to 64 lower-case`,
		`process "Ship" never starts: declare the event that begins it with domain.Starts`,
		`process "Ship" hears domain_test.Ordered twice`,
		`the function for domain_test.Ordered is one of *domain_test.Strayed: let it be one of *domain_test.Ship`,
		`the function for domain_test.Nameless is nil`,
		`process "Ship": domain_test.Ordered can't be correlated: add domain.CorrelatedBy(…)`,
		`process "Ship" hears domain_test.Packed, which is no declared event: add domain.Event[domain_test.Packed]()`,
		`a refusal of domain_test.Pack starts nothing`,
		`process "Ship" hears refusals of domain_test.Pack, which is no declared command`,
		`process "Ship": a timer has no name`,
		`process "Ship": timer "late" has two functions`,
		`process "Ship": the function of timer "never" is nil`,
		`process "commands": depot.commands is the subscription of the context's commands`,
		`process "commands": Strayed.Any is an interface`,
		`the domain.By of domain_test.Ordered takes domain_test.Packed: let it take domain_test.Ordered`,
		`process "again": *domain_test.Strayed is already declared as "commands"`,
		`process "unrooted": domain_test.Unrooted must embed domain.ProcessRoot itself, by value`,
		`process "unrooted": domain.CorrelatedBy has no field`,
		`aggregate "processes": depot::processes is the stream of the context's processes`,
	} {
		require.ErrorContains(t, err, part)
	}
	_, err = domain.New("depot",
		domain.Foreign[Packed]("Packing.Packed.v1"),
		domain.Aggregate[*Depot]("depot", domain.Event[Nameless]()),
		domain.Process[*Ship]("ship", domain.CorrelatedBy("order_id"), domain.Starts((*Ship).Packed), domain.Hears((*Ship).Nameless)),
	)
	require.ErrorContains(t, err, `hears Packing.Packed, but its stream is not declared: add domain.From(…)`)
	require.ErrorContains(t, err, `domain_test.Nameless can't be correlated: domain_test.Nameless has no string field with the JSON name "order_id"; give it domain.By`)
}
