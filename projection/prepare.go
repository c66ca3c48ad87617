package projection

import (
	"context"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/migrate"
)

// prepare checks and makes what the projections need.
func (r *Runner) prepare(ctx context.Context) error {
	for _, s := range []interface {
		Check(ctx context.Context, db bun.IDB) error
	}{Migrations(), historydb.Migrations()} {
		if err := s.Check(ctx, r.provider.DB()); err != nil {
			return fmt.Errorf("projection: provider %q: %w", r.provider.Name(), err)
		}
	}
	var errs []error
	for _, p := range r.all {
		errs = append(errs, p.current().kept())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := r.creates(ctx); err != nil {
		return err
	}
	builds, err := r.builds(ctx)
	if err != nil {
		return err
	}
	for _, p := range r.all {
		mine := of(builds, p.name())
		for _, g := range p.programs {
			b := newest(mine, g.Version)
			if b != nil && b.tables != nil {
				errs = append(errs, g.fits(b))
			}
		}
		g := p.current()
		if live := liveOf(mine); live != nil && live.version < g.Version {
			errs = append(errs, g.loses(live))
			if !live.fed() && p.of(live.version) == nil {
				r.log.Warn("the tables in use are not updated while those of the new version are built: run projection.Build before a deployment, or set Previous",
					"projection", g.Name, "in_use", live.version, "new", g.Version)
			}
		}
	}
	return errors.Join(errs...)
}

// creates checks the right to make tables. Who lacks it and has nothing to make now runs,
// and is warned: a rebuild would not begin.
func (r *Runner) creates(ctx context.Context) error {
	grant, err := migrate.LacksCreate(ctx, r.provider.DB(), "")
	if err != nil {
		return fmt.Errorf("projection: provider %q: look for the right to make tables: %w", r.provider.Name(), err)
	}
	if grant == "" {
		return nil
	}
	builds, err := load(ctx, r.provider.Reader(), r.names())
	if err != nil {
		return err
	}
	for _, p := range r.all {
		for _, g := range p.programs {
			if b := newest(of(builds, g.Name), g.Version); b == nil || b.tables == nil {
				return fmt.Errorf("projection %s: provider %q: the role that runs projections makes their tables and views, and may not: as the owner of the schema, %s", g.Name, r.provider.Name(), grant)
			}
		}
	}
	r.log.Warn("the role may not make tables: projections run, and a rebuild or a new version would not begin", "provider", r.provider.Name(), "remedy", "as the owner of the schema: "+grant)
	return nil
}

// kept says whether somebody keeps the events that a projection is made of.
func (g *program) kept() error {
	if g.Units.KeepsHistory() {
		return nil
	}
	for t := range g.byType {
		if !t.Foreign {
			return fmt.Errorf("projection %s reads the history of %s, which isn't kept: set uow.Config.History, or history: true in the configuration file", g.Name, g.domain.Name())
		}
	}
	return nil
}

// builds reads what there is, and sees to it that there is a build of each version, with
// its tables. Where tables can't be made, there is an error beside the builds.
func (r *Runner) builds(ctx context.Context) ([]*build, error) {
	builds, err := load(ctx, r.provider.Reader(), r.names())
	if err != nil {
		return nil, err
	}
	again := false
	var errs []error
	for _, p := range r.all {
		for _, g := range p.programs {
			if newest(of(builds, g.Name), g.Version) != nil {
				continue
			}
			if err := g.apart(ctx, r.provider.Reader()); err != nil {
				errs = append(errs, err)
				continue
			}
			again = true
			if err := declare(ctx, r.provider.DB(), g); err != nil {
				return nil, err
			}
		}
	}
	if again {
		if builds, err = load(ctx, r.provider.Reader(), r.names()); err != nil {
			return nil, err
		}
	}
	again = false
	for _, b := range builds {
		if g := r.program(b); g != nil && b.tables == nil {
			again = true
			errs = append(errs, g.begin(ctx, b, liveOf(of(builds, b.projection))))
		}
	}
	if again {
		if builds, err = load(ctx, r.provider.Reader(), r.names()); err != nil {
			return nil, err
		}
	}
	return builds, errors.Join(errs...)
}

// begin makes the tables of a build, if they can take the place of those in use.
func (g *program) begin(ctx context.Context, b, live *build) error {
	if live != nil && live.version < g.Version {
		if err := g.loses(live); err != nil {
			return err
		}
	}
	if err := g.apart(ctx, g.provider.Reader()); err != nil {
		return err
	}
	if err := g.make(ctx, b.build); !errors.Is(err, errGone) {
		return err
	}
	return nil
}

// apart says whether no other projection has a table of the program's. Views are called as
// tables are: this one's would take the place of the other's, with nothing in it yet, and
// go when the other one is retired.
func (g *program) apart(ctx context.Context, db bun.IDB) error {
	all, err := load(ctx, db, nil)
	if err != nil {
		return err
	}
	for _, b := range all {
		for _, t := range g.tables {
			if b.projection != g.Name && b.tables[t.name] != nil {
				return fmt.Errorf("projection %s: in this database %s is a table of projection %s: give it another name, or, once no program has that projection any more, remove that with `waybill projections retire %s` first",
					g.Name, t.name, b.projection, b.projection)
			}
		}
	}
	return nil
}

// program is the code of a build's version, if this process has it.
func (r *Runner) program(b *build) *program {
	for _, p := range r.all {
		if p.name() == b.projection {
			return p.of(b.version)
		}
	}
	return nil
}
