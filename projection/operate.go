package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/operate"
	"github.com/waybill-go/waybill/uow"
)

// act runs an operator's change of a projection and puts it on record.
func act(ctx context.Context, p uow.Provider, action, actor string, asked any, f func(ctx context.Context, tx bun.Tx) error) error {
	record := operate.Record{Table: "outbox_actions", Count: "rows", Actor: actor, Action: "projections-" + action, Asked: asked}
	if err := record.Check("projections: "+action, false); err != nil {
		return err
	}
	err := inTx(ctx, p, func(ctx context.Context, tx bun.Tx) error {
		if err := f(ctx, tx); err != nil {
			return err
		}
		_, err := record.Add(ctx, tx, 0, 0, 1)
		return err
	})
	if locked(err) {
		err = fmt.Errorf("another transaction has used its tables for longer than %v; run it again: %w", lockTimeout, err)
	}
	if err != nil {
		return fmt.Errorf("projections: %s: %w", action, err)
	}
	return nil
}

// Asked is what was asked for, for the record.
type asked struct {
	Projection string `json:"projection"`
	Build      int    `json:"build,omitempty"`
	Position   int64  `json:"position,omitempty"`
	Stale      bool   `json:"stale,omitempty"`
}

// Rebuild asks for a new build of the live version, which the processes that run it
// make, and change over to.
func Rebuild(ctx context.Context, p uow.Provider, name, actor string) (number int, err error) {
	err = act(ctx, p, "rebuild", actor, asked{Projection: name}, func(ctx context.Context, tx bun.Tx) error {
		builds, err := lockBuilds(ctx, tx, name)
		if err != nil {
			return err
		}
		live := liveOf(builds)
		if live == nil {
			return fmt.Errorf("%q: %w", name, errNone)
		}
		for _, b := range builds {
			if b.version == live.version && b.build > live.build && b.status != Old {
				return fmt.Errorf("build %d of %s is on its way: wait until it is in use; one that no process feeds any more can be retired", b.build, name)
			}
		}
		number = builds[len(builds)-1].build + 1
		_, err = tx.ExecContext(ctx, "INSERT INTO projections (projection, build, version, context, status) VALUES (?, ?, ?, ?, 'building')", name, number, live.version, live.context)
		return err
	})
	return number, err
}

// Switch makes a build the live one: a ready one, or an old one that has been kept up
// to date. stale lets one be live that is behind the one before.
func Switch(ctx context.Context, p uow.Provider, name string, number int, stale bool, actor string) error {
	return act(ctx, p, "switch", actor, asked{Projection: name, Build: number, Stale: stale}, func(ctx context.Context, tx bun.Tx) error {
		err := changeIn(ctx, tx, name, number, stale, func(live, to *build) error {
			if live.build == to.build {
				return fmt.Errorf("build %d of %s is in use already", number, name)
			}
			return nil
		})
		if errors.Is(err, errGone) {
			return fmt.Errorf("%s has no build %d with tables; `waybill projections list` has those that there are", name, number)
		}
		return err
	})
}

// SkipEvent lets a projection that is stuck continue behind the event that it stands
// at, whose effect is missing in its tables from then on. The lease is taken away, as who
// has it may be about to try the event once more.
func SkipEvent(ctx context.Context, p uow.Provider, name string, number int, position int64, actor string) error {
	return act(ctx, p, "skip", actor, asked{Projection: name, Build: number, Position: position}, func(ctx context.Context, tx bun.Tx) error {
		past := "'-infinity'"
		if sqlite(tx) {
			past = "''"
		}
		res, err := tx.ExecContext(ctx, "UPDATE projection_positions SET position = failed_position, fence = fence + 1, locked_until = "+past+
			", at_head = FALSE, tries = 0, failed_at = NULL, failed_position = NULL, failed_event = NULL, next_at = NULL, error = NULL"+
			" WHERE projection = ? AND build = ? AND tries > 0 AND failed_position = ?", name, number, position)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("build %d of %s hasn't stopped at position %d; `waybill projections list` says where it has", number, name, position))
		}
		return nil
	})
}

// Retire removes a projection, or one build that isn't live (0: all of it): tables,
// view, positions. It is refused while a process feeds it.
func Retire(ctx context.Context, p uow.Provider, name string, number int, actor string) error {
	return act(ctx, p, "retire", actor, asked{Projection: name, Build: number}, func(ctx context.Context, tx bun.Tx) error {
		builds, err := lockBuilds(ctx, tx, name)
		if err != nil {
			return err
		}
		if len(builds) == 0 {
			return fmt.Errorf("%q: %w", name, errNone)
		}
		found := false
		for _, b := range builds {
			if number != 0 && b.build != number {
				continue
			}
			found = true
			switch {
			case number != 0 && b.status == Live:
				return fmt.Errorf("build %d of %s is in use: switch to another one first, or retire all of it", number, name)
			case b.fed():
				return fmt.Errorf("build %d of %s is fed by %s: deploy programs without it first, then retire it", b.build, name, progress(b, 0).Owners)
			}
			if number == 0 {
				if err := dropViews(ctx, tx, b); err != nil {
					return err
				}
			}
		}
		if !found {
			return fmt.Errorf("%s has no build %d; `waybill projections list` has those that there are", name, number)
		}
		for _, b := range builds {
			if number == 0 || b.build == number {
				if err := drop(ctx, tx, b); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Build builds the tables of a new version until they have caught up, without
// changing over, for a job that runs before a deployment. It may run while programs
// of the old version do, and be ended and run again. progress may be nil; it is called
// once per second.
func Build(ctx context.Context, p Projection, progress func(Progress)) error {
	if p.Units == nil {
		return fmt.Errorf("projection %s: Build needs its Units: those of its context", p.Name)
	}
	p.Previous = nil
	ps, err := New(p.Units, []Projection{p}, slog.Default())
	if err != nil {
		return err
	}
	r := ps.Runner(ps.all[0].current().Provider, nil)
	r.building = true
	if err := r.Start(ctx); err != nil {
		return err
	}
	err = r.await(ctx, ps.all[0].current(), progress)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTime)
	defer cancel()
	return errors.Join(err, r.Stop(stop))
}

// await waits until a build of a program has caught up.
func (r *Runner) await(ctx context.Context, g *program, tell func(Progress)) error {
	for {
		builds, err := load(ctx, r.provider.Reader(), []string{g.Name})
		if err != nil && ctx.Err() == nil {
			r.outage.Note(ctx, looking, err)
		}
		if b := newest(builds, g.Version); b != nil {
			if tell != nil {
				head, err := historydb.Head(ctx, r.provider.Reader())
				if err == nil {
					tell(progress(b, head))
				}
			}
			if b.ready.Valid {
				return nil
			}
		}
		if !sleep(ctx, cmp.Or(r.wait.look, time.Second)) {
			return fmt.Errorf("projection %s: version %d has not caught up yet; run it again to continue: %w", g.Name, g.Version, context.Cause(ctx))
		}
	}
}

// importer is the owner of leases that HoldAtBeginning has taken.
const importer = "waybill history import"

// HoldAtBeginning keeps projections that have read nothing yet from beginning, for a time or
// until [LetBegin], so that they see what tx and those that follow put at the beginning of the
// history; it fails if one has read on. The leases are taken away: who has one may have read
// a page that is without it, and its commit changes nothing then.
func HoldAtBeginning(ctx context.Context, tx bun.Tx, length time.Duration) error {
	if !sqlite(tx) {
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM projection_positions ORDER BY projection, build, shard FOR UPDATE"); err != nil {
			return fmt.Errorf("projection: hold all at the beginning: %w", err)
		}
	}
	// What is read has a later snapshot than the lock, see lockBuilds.
	builds, err := load(ctx, tx, nil)
	if err != nil {
		return err
	}
	for _, b := range builds {
		if slices.ContainsFunc(b.shards, func(s shard) bool { return s.position != beginning }) {
			return fmt.Errorf("projection %s, build %d, has read the history beyond its beginning, and would never see what comes before: deploy programs without the projection, run `waybill projections retire %s`, import, and deploy them with it again, which rebuilds it",
				b.projection, b.build, b.projection)
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE projection_positions SET fence = fence + 1, owner = ?, locked_until = "+dbtime.In(tx.Dialect(), length), importer); err != nil {
		return fmt.Errorf("projection: hold all at the beginning: %w", err)
	}
	return nil
}

// LetBegin lets projections begin that were held.
func LetBegin(ctx context.Context, db bun.IDB) error {
	past := "'-infinity'"
	if sqlite(db) {
		past = "''"
	}
	if _, err := db.ExecContext(ctx, "UPDATE projection_positions SET locked_until = "+past+" WHERE owner = ?", importer); err != nil {
		return fmt.Errorf("projection: let all begin: %w", err)
	}
	return nil
}

// Instead is what helps where no program has the version of a build in use any more, as
// after a deployment that was taken back.
func Instead(all []Progress, live Progress) string {
	retire := fmt.Sprintf("`waybill projections retire %s` removes it", live.Name)
	others := func(is func(Progress) bool) int {
		return slices.IndexFunc(all, func(p Progress) bool { return p.Name == live.Name && p.Build != live.Build && is(p) })
	}
	i := others(func(p Progress) bool { return p.Fed })
	unfed := others(func(p Progress) bool { return p.Build > live.Build && p.Status != Old }) // to take its place: its engine has ended
	switch {
	case i < 0 && unfed >= 0:
		return fmt.Sprintf("start one that has version %d, which continues build %d; if the projection is gone from all, %s", all[unfed].Version, all[unfed].Build, retire)
	case i < 0:
		return retire
	case all[i].Status == Building:
		return fmt.Sprintf("wait for build %d", all[i].Build)
	case all[i].Failure != nil:
		return fmt.Sprintf("let build %d continue, which is fed and has stopped, then `waybill projections switch %s --to %d` puts it in use", all[i].Build, live.Name, all[i].Build)
	}
	return fmt.Sprintf("`waybill projections switch %s --to %d` puts build %d in use, which is fed", live.Name, all[i].Build, all[i].Build)
}
