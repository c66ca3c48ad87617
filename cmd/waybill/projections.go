package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/projection"
	"github.com/waybill-go/waybill/uow"
)

// eachProjections calls do for the builds of every database that is named, or of one
// provider.
func (c *cli) eachProjections(ctx context.Context, only string, do func(p uow.Provider, builds []projection.Progress) error) error {
	return c.eachProvider(ctx, only, func(_ *databases, p uow.Provider) error {
		if err := projection.Migrations().Check(ctx, p.Reader()); err != nil {
			return err
		}
		builds, err := projection.List(ctx, p)
		if err != nil {
			return err
		}
		return do(p, builds)
	})
}

type listProjectionsCmd struct {
	Provider string `placeholder:"NAME" help:"Only of this provider of the configuration file."`
	Name     string `arg:"" optional:"" help:"Only this projection."`
}

func (l listProjectionsCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string][]projection.Progress{}
	err := c.eachProjections(ctx, l.Provider, func(p uow.Provider, builds []projection.Progress) error {
		all[p.Name()] = slices.DeleteFunc(builds, func(b projection.Progress) bool { return l.Name != "" && b.Name != l.Name })
		return nil
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "PROJECTION", "BUILD", "VERSION", "STATUS", "FED", "POSITION", "HEAD", "BEHIND", "EVENTS", "PER SECOND", "CAUGHT UP IN")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, b := range all[provider] {
			behind, left := "", ""
			if b.BehindSeconds > 0 {
				behind = (time.Duration(b.BehindSeconds) * time.Second).String()
			}
			switch {
			case b.ETA > 0:
				left = b.ETA.Round(time.Second).String()
			case b.ETA < 0:
				left = "?"
			}
			t.row(provider, b.Name, fmt.Sprint(b.Build), fmt.Sprint(b.Version), b.Status, yes(b.Fed), fmt.Sprint(b.Position), fmt.Sprint(b.Head), behind,
				fmt.Sprint(b.Events), fmt.Sprintf("%.0f", b.PerSecond), left)
		}
	}
	nothing := "There are no projections."
	if l.Name != "" {
		nothing = fmt.Sprintf("There is no projection %q; `waybill projections list` has those that there are.", l.Name)
	}
	if err := t.flush(err, nothing); err != nil {
		return err
	}
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, b := range all[provider] {
			if f := b.Failure; f != nil {
				fmt.Fprintf(stdout, "\n%s, build %d, stopped at %s, position %d: %s, tried %s: %s\n", b.Name, b.Build, when(f.Since), f.Position, f.Event,
					number(int64(f.Tries), "time", "times"), oneLine(f.Error))
				fmt.Fprintf(stdout, "waybill projections skip %s --build %d --position %d   continues without the event\n", b.Name, b.Build, f.Position)
			}
			if b.Held != nil {
				fmt.Fprintf(stdout, "\n%s, build %d, waits %s\n", b.Name, b.Build, oneLine(b.Held.String()))
				fmt.Fprintf(stdout, "%s   ends it: events that were committed behind what it has written can't be read before\n", b.Held.By[0].Remedy())
			}
		}
	}
	return nil
}

// projectionDeed is a change of one projection.
type projectionDeed struct {
	Name     string `arg:"" help:"The projection's name, as listed."`
	Provider string `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	deed
}

// projectionChanged is what a change came to.
type projectionChanged struct {
	Projection string `json:"projection"`
	Build      int    `json:"build"`
	Done       bool   `json:"done"`
}

// change finds the database that has the projection, says what is to be done, asks, and
// does it.
func (d projectionDeed) change(ctx context.Context, c *cli, stdout out, stderr news, build int, plan func(builds []projection.Progress) (what, question string, err error),
	do func(p uow.Provider) (build int, done string, err error),
) error {
	var what, question string
	return act[projectionChanged]{deed: d.deed, do: func(dryRun bool, all map[string]projectionChanged) error {
		err := c.eachProjections(ctx, d.Provider, func(p uow.Provider, builds []projection.Progress) (err error) {
			mine := slices.DeleteFunc(builds, func(b projection.Progress) bool { return b.Name != d.Name })
			if len(mine) == 0 {
				return nil
			}
			if dryRun {
				what, question, err = plan(mine)
				all[p.Name()] = projectionChanged{d.Name, build, false}
				return err
			}
			number, done, err := do(p)
			if err == nil {
				all[p.Name()] = projectionChanged{d.Name, number, true}
				if !c.JSON {
					fmt.Fprintf(stdout, "%s By %s.\n", done, d.actor())
				}
			}
			return err
		})
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("there is no projection %q; `waybill projections list` has those that there are", d.Name)
		}
		return err
	}, tell: func(all map[string]projectionChanged) (string, error) {
		if len(all) > 1 {
			return "", &usageError{fmt.Errorf("%s is in more than one database (%s): name one with --provider", d.Name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))}
		}
		if !c.JSON {
			fmt.Fprintln(stdout, what)
		}
		return question, nil
	}}.run(ctx, c, stdout, stderr)
}

func buildOf(builds []projection.Progress, is func(projection.Progress) bool) *projection.Progress {
	if i := slices.IndexFunc(builds, is); i >= 0 {
		return &builds[i]
	}
	return nil
}

func numbered(builds []projection.Progress, n int) (*projection.Progress, error) {
	if b := buildOf(builds, func(b projection.Progress) bool { return b.Build == n }); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("%s has no build %d; `waybill projections list` has those that there are", builds[0].Name, n)
}

type rebuildProjectionCmd struct{ projectionDeed }

func (r rebuildProjectionCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return r.change(ctx, c, stdout, stderr, 0, func(builds []projection.Progress) (what, question string, err error) {
		live := buildOf(builds, func(b projection.Progress) bool { return b.Status == projection.Live })
		if live == nil {
			return "", "", fmt.Errorf("%s has no build in use", r.Name)
		}
		what = fmt.Sprintf("rebuild version %d of %s, of %d events, beside build %d, which stays in use until then", live.Version, r.Name, live.Events, live.Build)
		if !live.Fed {
			what += fmt.Sprintf("\nNo process feeds version %d of it at the moment, so it waits until one that has this version runs.", live.Version)
		}
		return what, "Rebuild it?", nil
	}, func(p uow.Provider) (int, string, error) {
		build, err := projection.Rebuild(ctx, p, r.Name, r.actor())
		return build, fmt.Sprintf("Build %d of %s was requested; engines that run the projection build it.", build, r.Name), err
	})
}

type switchProjectionCmd struct {
	projectionDeed
	To    int  `required:"" placeholder:"BUILD" help:"The build to use."`
	Stale bool `help:"Switch even if the build is behind the one in use, so that readers see older data."`
}

func (s switchProjectionCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return s.change(ctx, c, stdout, stderr, s.To, func(builds []projection.Progress) (what, question string, err error) {
		b, err := numbered(builds, s.To)
		if err != nil {
			return "", "", err
		}
		return fmt.Sprintf("have the view show build %d of %s, version %d, at position %d of %d", b.Build, s.Name, b.Version, b.Position, b.Head), "Change over?", nil
	}, func(p uow.Provider) (int, string, error) {
		return s.To, fmt.Sprintf("Build %d of %s is in use.", s.To, s.Name), projection.Switch(ctx, p, s.Name, s.To, s.Stale, s.actor())
	})
}

type skipProjectionCmd struct {
	projectionDeed
	Build    int   `required:"" placeholder:"BUILD" help:"The build that has stopped."`
	Position int64 `required:"" placeholder:"POSITION" help:"The position it stopped at, as listed."`
}

func (s skipProjectionCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return s.change(ctx, c, stdout, stderr, s.Build, func(builds []projection.Progress) (what, question string, err error) {
		b, err := numbered(builds, s.Build)
		if err != nil {
			return "", "", err
		}
		if b.Failure == nil || b.Failure.Position != s.Position {
			return "", "", fmt.Errorf("build %d of %s hasn't stopped at position %d; `waybill projections list` says where it has", s.Build, s.Name, s.Position)
		}
		return fmt.Sprintf("let build %d of %s continue without %s: %s", s.Build, s.Name, b.Failure.Event, oneLine(b.Failure.Error)), "Skip it? The tables will lack its effect; a rebuild reads it again.", nil
	}, func(p uow.Provider) (int, string, error) {
		return s.Build, fmt.Sprintf("Build %d of %s continues after position %d.", s.Build, s.Name, s.Position), projection.SkipEvent(ctx, p, s.Name, s.Build, s.Position, s.actor())
	})
}

type retireProjectionCmd struct {
	projectionDeed
	Build int `positive:"" placeholder:"BUILD" help:"Remove only this build, which must not be in use. Without it, everything is removed: tables, view, positions."`
}

func (r retireProjectionCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return r.change(ctx, c, stdout, stderr, r.Build, func(builds []projection.Progress) (what, question string, err error) {
		if r.Build == 0 {
			return fmt.Sprintf("remove %s: its tables, its views, and what the database knows of it", r.Name), "Remove it? Its views will be gone for their readers.", nil
		}
		b, err := numbered(builds, r.Build)
		if err != nil {
			return "", "", err
		}
		return fmt.Sprintf("remove build %d of %s, version %d, with its tables", b.Build, r.Name, b.Version), "Remove it?", nil
	}, func(p uow.Provider) (int, string, error) {
		return r.Build, fmt.Sprintf("%s is removed.", whichBuild(r.Name, r.Build)), projection.Retire(ctx, p, r.Name, r.Build, r.actor())
	})
}

func whichBuild(name string, build int) string {
	if build == 0 {
		return name
	}
	return fmt.Sprintf("Build %d of %s", build, name)
}
