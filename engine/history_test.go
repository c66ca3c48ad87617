package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

// figures is a context that shows the events of sales, of which it knows nothing but that
// they happened.
var figures = domain.MustNew("figures", domain.Foreign[saleFigure]("Sales.SaleMade.v1", domain.From("sales::sale")))

type saleFigure struct{}

// What a projection handles of another context is kept as it came.
func TestHistory_KeepsTheForeignEventsOfProjections(t *testing.T) {
	b := setup(t)
	cfg := b.guarded()
	mine := units(t, uow.Config{Domain: figures, Providers: []uow.Provider{b.db}})
	table := projection.NewTable[shownSale]("sale_figures")
	cfg.Contexts = append(cfg.Contexts, Context{Units: mine, Projections: []projection.Projection{{
		Name: "figures", Tables: []projection.Definition{table}, Handlers: []projection.Handler{projection.On(func(ctx context.Context, _ saleFigure) error {
			m, _ := domain.MetadataFrom(ctx)
			return table.Put(ctx, shownSale{m.AggregateID, 1})
		})},
	}}})
	b.start(cfg)
	b.sell(3)
	eventually(t, func() bool {
		rows, err := table.Find(t.Context(), mine, nil)
		return err == nil && len(rows) == 3
	})
	var n int
	for e, err := range history.Read(t.Context(), mine, history.Range{}) {
		require.NoError(t, err)
		require.Equal(t, []any{"Sales.SaleMade.v1", "sales::sale", "sales", int64(1)}, []any{e.Type, e.Category, e.Context, e.Version})
		require.Contains(t, string(e.Data), "Amount", "also what this context doesn't read")
		n++
	}
	require.Equal(t, 3, n)
}
