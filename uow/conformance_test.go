package uow_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/uow"
)

type Measured struct{ Value float64 }

type Gauge struct{ domain.Root }

var lab = domain.MustNew("lab", domain.Aggregate[*Gauge]("gauge", domain.Event[Measured](domain.Published())))

// S2-45, C-30: an event that no JSON can be made of is refused, by name, when
// its aggregate is saved, and its unit with it: nothing fails later, and nothing
// is dropped in silence.
func TestSave_S2_45_C_30_NotSerialisable(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		units, err := uow.New(uow.Config{Domain: lab, Providers: []uow.Provider{w.db}})
		require.NoError(t, err)
		g := &Gauge{Root: domain.RootWithID("g")}
		g.Raise(Measured{Value: 1})
		g.Raise(Measured{Value: math.Inf(1)})
		err = units.Do(t.Context(), func(ctx context.Context) error { return w.save(ctx, g) })
		require.ErrorContains(t, err, "Measured")
		require.ErrorContains(t, err, "unsupported value")
		w.nothing(t)
	})
}

// N11: nothing that came with a request makes a save fail.
func TestSave_N11_OriginOfAnyText(t *testing.T) {
	databases(t, func(t *testing.T, open providers) {
		w := newWorld(t, open)
		a := newAccount("a")
		a.Deposit(1)
		ctx := domain.WithOrigin(t.Context(), domain.Origin{
			CorrelationID: "a\x00b\r\n\xff", TenantID: strings.Repeat("t", 5000), Traceparent: "\x00",
			Extensions: map[string]string{"x": "\x00"},
		})
		require.NoError(t, w.units.Do(ctx, func(ctx context.Context) error { return w.save(ctx, a) }))
		require.Len(t, w.events(t), 1)
	})
}
