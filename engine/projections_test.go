package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/repository"
	"github.com/waybill-go/waybill/uow"
)

type shownSale struct {
	ID     string `bun:",pk"`
	Amount int
}

// shows has sales keep its history, and adds a projection of it whose handler returns err for
// every event.
func (b *bench) shows(cfg Config, err error) (Config, *projection.Table[shownSale]) {
	b.sales = units(b.t, uow.Config{Domain: sales, Providers: []uow.Provider{b.db}, External: b.sales.External(), History: true})
	b.repo = repository.New[*sale](b.sales)
	table := projection.NewTable[shownSale]("sales_shown")
	cfg.Units = []*uow.Manager{b.parcels}
	cfg.Contexts = append(cfg.Contexts, Context{Units: b.sales, Projections: []projection.Projection{{
		Name: "sales", Tables: []projection.Definition{table}, Handlers: []projection.Handler{projection.On(func(ctx context.Context, e SaleMade) error {
			m, _ := domain.MetadataFrom(ctx)
			return errors.Join(err, table.Put(ctx, shownSale{m.AggregateID, e.Amount}))
		})},
	}}})
	return cfg, table
}

// projected runs it.
func (b *bench) projected(err error) *Engine {
	cfg, _ := b.shows(b.guarded(), err)
	return b.start(cfg)
}

// An engine runs the projections of its contexts, and shows how far they are.
func TestProjections_RunAndAreShown(t *testing.T) {
	b := setup(t)
	cfg, table := b.shows(b.guarded(), nil)
	e := b.start(cfg)
	b.sell(3)
	require.NoError(t, projection.Wait(t.Context(), b.sales, "sales"))
	rows, err := table.Find(t.Context(), b.sales, nil)
	require.NoError(t, err)
	require.Len(t, rows, 3)
	var report projectionsReport
	require.Equal(t, 200, call(t, e, "GET", "/api/projections?projection=sales&provider=default", "", &report))
	p := report.Projections[0]
	require.Equal(t, []any{"default", "sales", "sales", 1, projection.Live, int64(3), true}, []any{p.Provider, p.Name, p.Context, p.Build, p.Status, p.Events, p.Fed})
	require.Equal(t, p.Head, p.Position)
	report = projectionsReport{}
	require.Equal(t, 200, call(t, e, "GET", "/api/projections?projection=others", "", &report))
	require.Empty(t, report.Projections)
	got := scraped(t, e, map[string]float64{
		`waybill_projection_events_total{build="1",projection="sales",provider="default"}`: 3, `waybill_projection_live{build="1",projection="sales",provider="default"}`: 1,
		`waybill_projection_fed{build="1",projection="sales",provider="default"}`: 1, `waybill_projection_stopped{build="1",projection="sales",provider="default"}`: 0,
	})
	require.InDelta(t, got[`waybill_projection_head{build="1",projection="sales",provider="default"}`], got[`waybill_projection_position{build="1",projection="sales",provider="default"}`], 0)
	require.NoError(t, e.Stop(t.Context()))
	var leased bool
	require.NoError(t, b.db.Reader().NewRaw("SELECT locked_until > "+dbtime.Now(b.db.DB().Dialect())+" FROM projection_positions").Scan(t.Context(), &leased))
	require.False(t, leased, "an engine that stops gives its leases back")
}

// A handler's words are for those who see content.
func TestProjections_AFailureIsToldToThoseWhoSeeContent(t *testing.T) {
	b := setup(t)
	e := b.projected(errors.New("card 4111"))
	b.sell(1)
	var report projectionsReport
	eventually(t, func() bool {
		report = projectionsReport{}
		return call(t, e, "GET", "/api/projections", "", &report) == 200 && len(report.Projections) == 1 && report.Projections[0].Failure != nil
	})
	require.Contains(t, report.Projections[0].Failure.Error, "card 4111")
	require.Equal(t, notShownText, report.Projections[0].withoutContent().Failure.Error)
	eventually(t, func() bool {
		d := e.diagnose(t.Context())
		for _, r := range d.Reasons {
			if r.Code == "projection_stopped" {
				require.Contains(t, r.Text, "card 4111")
				require.NotContains(t, r.plain, "card 4111")
				return true
			}
		}
		return false
	})
}

// Mistakes are told with those of the rest.
func TestProjections_MistakesAreFoundByNew(t *testing.T) {
	b := setup(t)
	cfg, _ := b.shows(b.guarded(), nil)
	cfg.Contexts[0].Projections = append(cfg.Contexts[0].Projections, projection.Projection{Name: "none"})
	_, err := New(cfg)
	require.ErrorContains(t, err, "context sales: projection none: it has no Tables")
}

// N5: what holds a projection back is named with what helps.
func TestProjections_N5_WhoHoldsOneBackIsNamed(t *testing.T) {
	b := projection.Progress{Name: "sales", Build: 1, Status: projection.Live, Fed: true, Behind: true, BehindSeconds: 90, ETA: -1}
	reasons := projectionsSight{builds: []projection.Progress{b}}.reasons()
	require.Contains(t, reasons[0].remedy, "its statements are slow")
	b.Held = &projection.Held{Since: time.Now(), By: []projection.Transaction{{PID: 17, Application: "import", User: "ada"}, {PID: 18}}}
	reasons = projectionsSight{builds: []projection.Progress{b}}.reasons()
	require.Len(t, reasons, 1)
	require.Equal(t, "projection_behind", reasons[0].Code)
	require.Contains(t, reasons[0].what, `pid 17, application "import", user ada, and 1 more`)
	require.Contains(t, reasons[0].remedy, "SELECT pg_terminate_backend(17)")
}
