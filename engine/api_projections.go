package engine

import (
	"context"
	"net/http"
	"slices"

	"github.com/waybill-go/waybill/projection"
)

// projectionsReport is the answer of /api/projections.
type projectionsReport struct {
	Projections []projectionReport `json:"projections"`
}

func (e *Engine) listProjections(r *http.Request) (any, error) {
	p := paramsOf(r)
	provider, name := p.text("provider"), p.text("projection")
	if err := p.check(); err != nil {
		return nil, err
	}
	of, err := e.chosen(provider, (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	all, errs := fromEach(of, func(d *database) ([]projection.Progress, error) { return d.builds(ctx) })
	if len(errs) > 0 {
		return nil, first(errs)
	}
	report, content := projectionsReport{[]projectionReport{}}, visitorOf(r).content()
	for _, d := range of {
		refused := d.lookAtProjections(ctx).refused
		for _, b := range all[d.provider.Name()] {
			if name != "" && b.Name != name {
				continue
			}
			shown := projectionReport{Provider: d.provider.Name(), Progress: b}
			if b.Status == projection.Ready {
				shown.Refused = refused[b.Name]
			}
			if !content {
				shown = shown.withoutContent()
			}
			report.Projections = append(report.Projections, shown)
		}
	}
	slices.SortFunc(report.Projections, projectionReport.order)
	return report, nil
}

// builds are those of a database's projections, if their tables are those of this build.
func (d *database) builds(ctx context.Context) (builds []projection.Progress, err error) {
	err = d.inTurn(ctx, func(ctx context.Context) error {
		if err := projection.Migrations().Check(ctx, d.provider.Reader()); err != nil {
			return err
		}
		builds, err = projection.List(ctx, d.provider)
		return err
	})
	return builds, err
}
