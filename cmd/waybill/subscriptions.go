package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

// eachConsumer calls do for every database that has the tables of subscriptions.
func (c *cli) eachConsumer(ctx context.Context, only string, do func(p uow.Provider) error) error {
	return c.eachProvider(ctx, only, func(_ *databases, p uow.Provider) error {
		if err := subscription.Migrations().Check(ctx, p.Reader()); err != nil {
			return err
		}
		return do(p)
	})
}

type listSubscriptionsCmd struct {
	Provider string `placeholder:"NAME" help:"Only of this provider of the configuration file."`
}

func (l listSubscriptionsCmd) Run(ctx context.Context, c *cli, stdout out) error {
	all := map[string][]subscription.Listed{}
	err := c.eachConsumer(ctx, l.Provider, func(p uow.Provider) error {
		list, err := subscription.List(ctx, p.Reader())
		if err == nil {
			all[p.Name()] = list
		}
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "SUBSCRIPTION", "RUNS", "JOINED", "LAST SEEN", "INBOX", "DEAD LETTERS", "OPEN")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, s := range all[provider] {
			seen, inbox := "", fmt.Sprint(s.Inbox)
			if s.LastSeen != nil {
				seen = fmt.Sprintf("%s (%s ago)", when(*s.LastSeen), since(*s.LastSeen))
			}
			if s.InboxMore {
				inbox = "over " + inbox
			}
			t.row(provider, s.Name, yes(s.Running), yes(s.Joined), seen, inbox, fmt.Sprint(s.DeadLetters), fmt.Sprint(s.Open))
		}
	}
	return t.flush(err, "The database knows no subscriptions.")
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

type retireCmd struct {
	Name     string `arg:"" help:"The subscription's name, as listed."`
	Provider string `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	Discard  bool   `help:"Discard its open dead letters. Without this flag, open dead letters prevent the removal."`
	deed
}

func (r retireCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	line := newProgress(stderr)
	return act[subscription.Retired]{deed: r.deed, do: func(dryRun bool, all map[string]subscription.Retired) error {
		err := c.eachConsumer(ctx, r.Provider, func(p uow.Provider) (err error) {
			plan, planned := all[p.Name()]
			if planned && plan.Total() == 0 {
				return nil
			}
			all[p.Name()], err = subscription.Retire(ctx, p, r.Name, subscription.RetireOptions{
				Actor: r.actor(), Discard: r.Discard, DryRun: dryRun,
				Progress: func(n int64) { line.tell("%s: %d of %s removed", p.Name(), n, rows(plan.Total())) },
			})
			line.clear()
			if done := all[p.Name()]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s of %s removed; action %d, by %s.\n", p.Name(), rows(done.Total()), r.Name, done.Action, r.actor())
			}
			return err
		})
		if err == nil && !dryRun && !c.JSON {
			fmt.Fprintf(stdout, "Its consumer group stays at the broker; remove it with the broker's tools.\n")
		}
		return err
	}, tell: func(all map[string]subscription.Retired) (string, error) { return r.tell(c, stdout, all), nil }}.run(ctx, c, stdout, stderr)
}

// tell says what there is to be removed, and returns the question.
func (r retireCmd) tell(c *cli, stdout out, all map[string]subscription.Retired) (question string) {
	var total, open int64
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		plan := all[provider]
		total += plan.Total()
		open += plan.Open
		if plan.Total() > 0 && !c.JSON {
			fmt.Fprintf(stdout, "Provider %s: %s of %s: %s.\n", provider, rows(plan.Total()), r.Name, byTable(plan))
		}
	}
	if total == 0 {
		if !c.JSON {
			fmt.Fprintf(stdout, "Nothing is stored for subscription %s; `waybill subscriptions list` shows which ones exist.\n", printable(r.Name))
		}
		return ""
	}
	question = fmt.Sprintf("Remove %s of subscription %s for good", rows(total), r.Name)
	if open > 0 {
		question += fmt.Sprintf(", %s among them that had no effect yet", messages(open))
	}
	return question + "?"
}

// byTable is "3 in inbox, 1 in dead_letters, 1 of them open".
func byTable(r subscription.Retired) string {
	var all []string
	for _, table := range slices.Sorted(maps.Keys(r.Rows)) {
		text := fmt.Sprintf("%d in %s", r.Rows[table], table)
		if table == "dead_letters" && r.Open > 0 {
			text += fmt.Sprintf(" (%d open)", r.Open)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}
