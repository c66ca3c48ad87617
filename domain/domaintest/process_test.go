package domaintest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/domain/domaintest"
)

type (
	Paying struct {
		domain.ProcessRoot
		Reminders int
	}
	Pay    struct{ OrderID string }
	Remind struct{ OrderID string }
	Paid   struct{ OrderID string }
	Seen   struct{ OrderID string }
)

var errNever = errors.New("never")

func (p *Paying) Placed(OrderPlaced) error {
	p.SetTimer("remind", p.Now().Add(time.Hour))
	p.Send(Pay{p.ID()})
	return nil
}

func (p *Paying) Paid(Paid) error { p.End(); return nil }

func (p *Paying) Seen(Seen) error { p.StopTimer("remind"); return nil }

func (p *Paying) Refused(domain.Refusal[Pay]) error { p.Send(Remind{p.ID()}); return errNever }

func (p *Paying) Remind() error {
	p.Reminders++
	p.Send(Remind{p.ID()})
	if p.Reminders < 3 {
		p.SetTimer("remind", p.Now().Add(time.Hour))
	}
	return nil
}

var checkout = domain.MustNew("checkout",
	domain.Aggregate[*Order]("order", domain.Event[OrderPlaced](), domain.Event[Paid](), domain.Event[Seen]()),
	domain.Command[Pay](domain.KeyedBy("OrderID")),
	domain.Command[Remind](domain.KeyedBy("OrderID")),
	domain.Process[*Paying]("paying",
		domain.CorrelatedBy("OrderID"),
		domain.Starts((*Paying).Placed),
		domain.Hears((*Paying).Paid),
		domain.Hears((*Paying).Seen, domain.Optional()),
		domain.Hears((*Paying).Refused),
		domain.OnTimer("remind", (*Paying).Remind),
	),
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestGivenProcess(t *testing.T) {
	domaintest.GivenProcess[*Paying](t, checkout, noon).
		When(Seen{"o1"}). // There is none: it is ignored.
		When(OrderPlaced{"o1"}).ThenSent(Pay{"o1"}).ThenTimer("remind", noon.Add(time.Hour)).
		WhenDue("remind").ThenSent(Remind{"o1"}).ThenTimer("remind", noon.Add(2*time.Hour)).
		At(noon.Add(3*time.Hour)).WhenDue("remind").ThenSent(Remind{"o1"}).ThenTimer("remind", noon.Add(4*time.Hour)).
		ThenState(func(p *Paying) error {
			if p.Reminders != 2 {
				return errNever
			}
			return nil
		}).
		When(domain.Refusal[Pay]{Command: Pay{"o1"}, Reason: "full"}).ThenError(errNever).ThenSent().
		When(Seen{"o1"}).ThenNoTimer("remind").
		When(Paid{"o1"}).ThenEnded().
		When(OrderPlaced{"o1"}).ThenSent()
}

// Each of these fails the test that it is part of.
func TestGivenProcess_WhatFails(t *testing.T) {
	placed := OrderPlaced{"o1"}
	for name, scenario := range map[string]func(t testing.TB){
		"not begun":     func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon).When(Paid{"o1"}) },
		"not heard":     func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon).When(Pay{"o1"}) },
		"another one's": func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).When(Paid{"o2"}) },
		"no timer":      func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).WhenDue("pay") },
		"another time": func(t testing.TB) {
			domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenTimer("remind", noon)
		},
		"a timer not set":     func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenTimer("pay", noon) },
		"a timer that is set": func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenNoTimer("remind") },
		"not sent":            func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenSent(Pay{"o1"}) },
		"another state": func(t testing.TB) {
			domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenState(func(*Paying) error { return errNever })
		},
		"goes on": func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenEnded() },
		"failed": func(t testing.TB) {
			domaintest.GivenProcess[*Paying](t, checkout, noon, placed).When(domain.Refusal[Pay]{}).ThenSent()
		},
		"not failed": func(t testing.TB) { domaintest.GivenProcess[*Paying](t, checkout, noon, placed).ThenError(errNever) },
		"a timer without a time": func(t testing.TB) {
			domaintest.GivenProcess[*Paying](t, checkout, time.Time{}.Add(-time.Hour), placed)
		},
		"undeclared": func(t testing.TB) { domaintest.GivenProcess[*Paying](t, shop, noon) },
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, failuresOf(scenario))
		})
	}
}
