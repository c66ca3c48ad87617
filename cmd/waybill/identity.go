package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/internal/doctor"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// identityReport is what is recorded of a database, and what it is.
type identityReport struct {
	Recorded outbox.Identity `json:"recorded"`
	Present  outbox.Identity `json:"present"`
	Moved    string          `json:"moved"` // what differs; "": engines publish from it
}

type showDatabaseCmd struct {
	Provider string `placeholder:"NAME" help:"Only this provider of the configuration file."`
}

func (s showDatabaseCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string]identityReport{}
	err := c.eachOutbox(ctx, s.Provider, func(_ *databases, provider string, store *outboxdb.Store) error {
		found, err := identify(ctx, store)
		if err == nil {
			all[provider] = found
		}
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "RECORDED", "PRESENT", "ENGINES PUBLISH")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		found := all[provider]
		t.row(provider, found.Recorded.String(), found.Present.String(), yes(found.Moved == ""))
	}
	return t.flush(err, "There is no database.")
}

func identify(ctx context.Context, store *outboxdb.Store) (found identityReport, err error) {
	found.Recorded, found.Present, err = store.Identity(ctx)
	found.Moved = found.Present.Moved(found.Recorded)
	return found, err
}

type acceptDatabaseCmd struct {
	Provider string `placeholder:"NAME" help:"Only this provider of the configuration file."`
	deed
}

func (a acceptDatabaseCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return act[identityReport]{deed: a.deed, do: func(dryRun bool, all map[string]identityReport) error {
		return c.eachOutbox(ctx, a.Provider, func(d *databases, provider string, store *outboxdb.Store) (err error) {
			shown := all[provider]
			all[provider], err = identify(ctx, store)
			if err == nil && all[provider].Moved != "" {
				err = unnumbered(ctx, d, provider)
			}
			if dryRun || err != nil || all[provider] != shown {
				return err
			}
			moved, err := store.AcceptIdentity(ctx, a.actor())
			if err != nil || moved == "" {
				return err
			}
			if !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: accepted (%s), by %s. Its engines publish within seconds.\n", provider, moved, a.actor())
			}
			all[provider], err = identify(ctx, store)
			return err
		})
	}, tell: func(all map[string]identityReport) (question string, err error) {
		for _, provider := range slices.Sorted(maps.Keys(all)) {
			switch moved := all[provider].Moved; {
			case moved != "":
				question = "Publish from this database? Make sure that no engine publishes from the other one, and that `waybill doctor` explains nothing you don't expect."
				if !c.JSON {
					fmt.Fprintf(stdout, "Provider %s: %s.\n", provider, moved)
				}
			case !c.JSON:
				fmt.Fprintf(stdout, "Provider %s: nothing has changed.\n", provider)
			}
		}
		return question, nil
	}}.run(ctx, c, stdout, stderr)
}

// unnumbered is an error if sequences weren't brought along: new events would be refused, or go
// before those that wait, and nobody would say so any more once the database is accepted.
func unnumbered(ctx context.Context, d *databases, provider string) error {
	var all []error
	for _, p := range d.providers {
		if p.Name() != provider {
			continue
		}
		for _, f := range doctor.Behind(ctx, p) {
			all = append(all, fmt.Errorf("%s: %s. Remedy: %s", f.Where, f.What, f.Remedy))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("it isn't accepted before its sequences are set:\n%w", errors.Join(all...))
}
