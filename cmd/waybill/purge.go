package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

type purgeCmd struct {
	deed
	Provider  string        `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	OlderThan time.Duration `positive:"" placeholder:"AGE" help:"Remove what was published or abandoned longer ago than this, as in 720h, whatever its retention. Defaults to what has expired."`
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
	var statuses []outbox.Status
	for _, s := range p.Status {
		statuses = append(statuses, outbox.Status(s))
	}
	line := newProgress(stderr)
	return act[purged]{deed: p.deed, do: func(dryRun bool, all map[string]purged) error {
		return c.eachOutbox(ctx, p.Provider, func(_ *databases, provider string, s *outboxdb.Store) error {
			plan, planned := all[provider]
			if planned && plan == (purged{}) {
				return nil
			}
			of, verb := "", "counted"
			if planned {
				of, verb = fmt.Sprintf(" of %v", plan), "removed"
			}
			done, err := s.CleanUp(ctx, outbox.CleanUp{
				Actor: p.actor(), OlderThan: p.OlderThan, Statuses: statuses, DryRun: dryRun,
				Progress: func(so outbox.Purged) {
					line.tell("%s: %v%s rows %s", provider, purged{so.Published, so.Abandoned, 0}, of, verb)
				},
			})
			line.clear()
			all[provider] = purged{done.Published, done.Abandoned, done.Action}
			if done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %v rows removed; action %d, by %s.\n", provider, all[provider], done.Action, p.actor())
			}
			return err
		})
	}, tell: func(all map[string]purged) (string, error) { return p.tell(c, stdout, all), nil }}.run(ctx, c, stdout, stderr)
}

// tell says what can be removed, and returns the question.
func (p purgeCmd) tell(c *cli, stdout out, all map[string]purged) (question string) {
	var plan purged
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		plan.Published += all[provider].Published
		plan.Abandoned += all[provider].Abandoned
		if !c.JSON {
			fmt.Fprintf(stdout, "Provider %s: %v rows %s.\n", provider, all[provider], p.which())
		}
	}
	if plan == (purged{}) {
		return ""
	}
	return fmt.Sprintf("Remove %v rows for good?", plan)
}

func (p purgeCmd) which() string {
	if p.OlderThan == 0 {
		return "have expired"
	}
	return "were finished more than " + glance(p.OlderThan) + " ago"
}
