package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/historydb"
	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

// historyHead is what a database has of a history.
type historyHead struct {
	Head     int64                     `json:"head"`
	Lowest   int64                     `json:"lowest"` // Below 0: of what was imported.
	Contexts map[string]outbox.History `json:"contexts"`
}

type historyHeadCmd struct {
	Provider string `placeholder:"NAME" help:"Only of this provider of the configuration file."`
}

func (h historyHeadCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string]historyHead{}
	err := c.eachProvider(ctx, h.Provider, func(_ *databases, p uow.Provider) error {
		found, err := headOf(ctx, p)
		if err == nil {
			all[p.Name()] = found
		}
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "LOWEST", "HEAD", "KEPT")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		found, kept := all[provider], []string{}
		for _, context := range slices.Sorted(maps.Keys(found.Contexts)) {
			kept = append(kept, context+map[outbox.History]string{outbox.HistoryOn: "", outbox.HistoryStarting: " (about to begin)"}[found.Contexts[context]])
		}
		t.row(provider, fmt.Sprint(found.Lowest), fmt.Sprint(found.Head), strings.Join(kept, ", "))
	}
	return t.flush(err, "There is no history.")
}

func headOf(ctx context.Context, p uow.Provider) (found historyHead, err error) {
	found.Contexts = map[string]outbox.History{}
	if err := historydb.Migrations().Check(ctx, p.Reader()); err != nil {
		return found, err
	}
	if found.Head, err = historydb.Head(ctx, p.Reader()); err != nil {
		return found, err
	}
	if found.Lowest, err = historydb.Lowest(ctx, p.Reader()); err != nil {
		return found, err
	}
	targets, err := outboxdb.ReadTargets(ctx, p.Reader())
	for name, t := range targets {
		if t.History != "" {
			found.Contexts[name] = t.History
		}
	}
	return found, err
}

type importHistoryCmd struct {
	Provider string `placeholder:"NAME" help:"Only into this provider of the configuration file."`
	deed
}

func (i importHistoryCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	line := newProgress(stderr)
	return act[historydb.Imported]{deed: i.deed, do: func(dryRun bool, all map[string]historydb.Imported) error {
		return c.eachProvider(ctx, i.Provider, func(d *databases, p uow.Provider) (err error) {
			if d.context == "" {
				return &usageError{errors.New("history import needs --config with a domain: its events are imported")}
			}
			plan, planned := all[p.Name()]
			if planned && plan.Events == 0 {
				return nil
			}
			defer line.clear()
			all[p.Name()], err = historyverbs.Import{
				Context: d.context, Actor: i.actor(), DryRun: dryRun,
				Progress: func(so historydb.Imported) { line.tell("%s: %d of %d", p.Name(), so.Events+so.LeftOut, plan.Events) },
			}.Run(ctx, p)
			if done := all[p.Name()]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s\n", p.Name(), imported(done, i.actor()))
			}
			return err
		})
	}, tell: func(all map[string]historydb.Imported) (question string, err error) {
		events := int64(0)
		for _, provider := range slices.Sorted(maps.Keys(all)) {
			found := all[provider]
			events += found.Events
			if !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s in the outbox that the history doesn't have%s.\n", provider, areEvents(found.Events), raisedSince(found.Earliest))
			}
		}
		if events == 0 {
			return "", nil
		}
		return "Import them?", nil
	}}.run(ctx, c, stdout, stderr)
}

func imported(done historydb.Imported, actor string) string {
	text := fmt.Sprintf("%s imported%s; action %d, by %s.", number(done.Events, "event was", "events were"), raisedSince(done.Earliest), done.Action, actor)
	if done.LeftOut > 0 {
		text += fmt.Sprintf(" %s left out, as what was raised before or after them is missing: their aggregates would have holes.", number(done.LeftOut, "event was", "events were"))
	}
	return text
}

func areEvents(n int64) string { return number(n, "event is", "events are") }

func raisedSince(earliest time.Time) string {
	if earliest.IsZero() {
		return ""
	}
	return ", the first raised at " + earliest.UTC().Format(time.RFC3339)
}
