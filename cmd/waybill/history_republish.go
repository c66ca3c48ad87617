package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/internal/historyverbs"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

type republishCmd struct {
	Causation   string   `placeholder:"ID" help:"Events that the command or message with this id has caused."`
	Correlation string   `placeholder:"ID" help:"Events with this correlation id."`
	Category    string   `placeholder:"CATEGORY" help:"Events of this category, as in ordering::order."`
	Aggregate   string   `placeholder:"ID" help:"Events of this aggregate of the category."`
	Message     []string `placeholder:"ID" help:"The event with this id. May be repeated."`
	After       int64    `placeholder:"POSITION" help:"Only events after this position, to go on from there."`
	Target      string   `placeholder:"BROKER" help:"Only to this broker. Defaults to all that get the events."`
	Rate        float64  `positive:"" placeholder:"N" help:"At most this many events per second. Defaults to as fast as it goes."`
	Provider    string   `placeholder:"NAME" help:"Only of this provider of the configuration file."`
	deed
}

// republished is what is told of one database.
type republished struct {
	Events       int64 `json:"events"`
	Rows         int64 `json:"rows"`
	Waiting      int64 `json:"waiting"`
	Abandoned    int64 `json:"abandoned"`
	LastPosition int64 `json:"last_position"`
	Action       int64 `json:"action,omitempty"`
}

func (r republishCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	switch {
	case r.Causation+r.Correlation+r.Category == "" && len(r.Message) == 0:
		return &usageError{errors.New("republish what? Choose events by --causation, --correlation, --category or --message; --dry-run shows how many")}
	case r.Aggregate != "" && r.Category == "":
		return &usageError{errors.New("--aggregate needs --category: two aggregates may have the same id")}
	case !(r.Rate >= 0) || r.Rate > maxRate:
		return &usageError{errors.New("--rate is a number of events per second above 0, or left out")}
	}
	line := newProgress(stderr)
	return act[republished]{deed: r.deed, do: func(dryRun bool, all map[string]republished) error {
		return c.eachProvider(ctx, r.Provider, func(d *databases, p uow.Provider) error {
			if d.context == "" {
				return &usageError{errors.New("history republish needs --config with a domain: its brokers get the events")}
			}
			plan, planned := all[p.Name()]
			if planned && plan.Rows == 0 {
				return nil
			}
			defer line.clear()
			done, err := historyverbs.Republish{
				Chosen: historyverbs.Chosen{
					Causation: r.Causation, Correlation: r.Correlation, Category: r.Category, AggregateID: r.Aggregate, MessageIDs: r.Message, After: r.After,
				},
				Writer: outbox.Writer{Internal: d.sends.Broker, External: d.external}, Context: d.context, Target: r.Target,
				Actor: r.actor(), Rate: r.Rate, DryRun: dryRun,
				Progress: func(so historyverbs.RepublishedToTarget) {
					line.tell("%s: %d of %s, up to position %d", p.Name(), so.Rows, rows(plan.Rows), so.Last)
				},
			}.Run(ctx, p)
			all[p.Name()] = republished{Events: done.Events, Rows: done.Rows, Waiting: done.Waiting, Abandoned: done.Abandoned, LastPosition: done.Last, Action: done.Action}
			if done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s stored, up to position %d; action %d, by %s.\n", p.Name(), were(done.Rows), done.Last, done.Action, r.actor())
			}
			return err
		})
	}, tell: func(all map[string]republished) (question string, err error) {
		stored := int64(0)
		for _, provider := range slices.Sorted(maps.Keys(all)) {
			found := all[provider]
			stored += found.Rows
			if !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s\n", provider, r.sentence(found))
			}
		}
		if stored == 0 {
			return "", nil
		}
		return fmt.Sprintf("Store %s behind all that is in the outbox?", rows(stored)), nil
	}}.run(ctx, c, stdout, stderr)
}

// sentence is about what was found.
func (r republishCmd) sentence(found republished) string {
	text := fmt.Sprintf("%s chosen; the outbox gets %s for them", number(found.Events, "event is", "events are"), rows(found.Rows))
	if r.Rate > 0 {
		text += fmt.Sprintf(", in about %v", lastOf(found.Events+1, r.Rate))
	}
	text += "."
	if found.Waiting > 0 {
		text += fmt.Sprintf(" %s not published yet, and left alone.", number(found.Waiting, "row is", "rows are"))
	}
	if found.Abandoned > 0 {
		text += fmt.Sprintf(" %s abandoned, and left alone: waybill outbox retry is for those.", number(found.Abandoned, "row is", "rows are"))
	}
	return text
}
