package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

type purgeCmd struct {
	deed
	Provider  string        `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	OlderThan time.Duration `placeholder:"AGE" help:"Remove what was published or abandoned longer ago than this, as in 720h, whenever it expires. Defaults to what has expired."`
	Status    []string      `enum:"published,abandoned" placeholder:"STATUS" help:"Only rows in this status: published or abandoned. May be repeated."`
}

// purged is what is told of one provider.
type purged struct {
	Published int   `json:"published"`
	Abandoned int   `json:"abandoned"`
	Action    int64 `json:"action"` // id of the record; 0: nothing was removed
}

func (p purged) String() string {
	return fmt.Sprintf("%d published and %d abandoned", p.Published, p.Abandoned)
}

func (p purgeCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if p.OlderThan < 0 {
		return &usageError{errors.New("--older-than is an age above 0, as in 720h, or left out")}
	}
	if err := p.check(); err != nil {
		return err
	}
	var statuses []outbox.Status
	for _, s := range p.Status {
		statuses = append(statuses, outbox.Status(s))
	}
	line := newProgress(stderr)
	cleanUp := func(provider string, s *outbox.Store, dryRun bool, before purged, verb string) (purged, error) {
		defer line.clear()
		of := ""
		if before != (purged{}) {
			of = fmt.Sprintf(" of %v", before)
		}
		done, err := s.CleanUp(ctx, outbox.CleanUp{
			Actor: p.actor(), OlderThan: p.OlderThan, Statuses: statuses, DryRun: dryRun,
			Progress: func(so outbox.Purged) {
				line.tell("%s: %v%s rows %s", provider, purged{so.Published, so.Abandoned, 0}, of, verb)
			},
		})
		return purged{done.Published, done.Abandoned, done.Action}, err
	}
	all := map[string]purged{}
	err := c.eachOutbox(ctx, p.Provider, func(_ *databases, provider string, s *outbox.Store) (err error) {
		all[provider], err = cleanUp(provider, s, true, purged{}, "counted")
		return err
	})
	if err != nil {
		return err
	}
	var plan purged
	for _, n := range all {
		plan.Published += n.Published
		plan.Abandoned += n.Abandoned
	}
	if !c.JSON {
		for _, provider := range slices.Sorted(maps.Keys(all)) {
			fmt.Fprintf(stdout, "Provider %s: %v rows %s.\n", provider, all[provider], p.which())
		}
	}
	if p.DryRun || plan == (purged{}) {
		if c.JSON {
			return writeJSON(stdout, map[string]any{"dry_run": p.DryRun, "providers": all})
		}
		return nil
	}
	if !p.Yes {
		if err := confirm(ctx, stderr, fmt.Sprintf("Remove %v rows for good?", plan)); err != nil {
			return err
		}
	}
	err = c.eachOutbox(ctx, p.Provider, func(_ *databases, provider string, s *outbox.Store) (err error) {
		if all[provider] == (purged{}) {
			return nil
		}
		all[provider], err = cleanUp(provider, s, false, all[provider], "removed")
		if done := all[provider]; done.Action != 0 && !c.JSON {
			fmt.Fprintf(stdout, "Provider %s: %v rows removed; action %d, by %s.\n", provider, done, done.Action, p.actor())
		}
		return err
	})
	if c.JSON {
		err = errors.Join(err, writeJSON(stdout, map[string]any{"dry_run": false, "providers": all}))
	}
	return err
}

func (p purgeCmd) which() string {
	if p.OlderThan == 0 {
		return "have expired"
	}
	return "were finished more than " + glance(p.OlderThan) + " ago"
}
