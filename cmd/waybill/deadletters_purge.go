package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
)

type purgeLettersCmd struct {
	change
	OlderThan *time.Duration `placeholder:"AGE" help:"Only what was replayed or discarded longer ago than this, as in 720h; for parked ones, the last attempt counts. 0s for any age. Defaults to subscriptions.dead_letters.resolved of the configuration file, or 720h."`
}

func (p purgeLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if p.OlderThan != nil && *p.OlderThan < 0 {
		return &usageError{errors.New("--older-than is an age, as in 720h, or 0s for any")}
	}
	line := newProgress(stderr)
	return act[subscription.PurgeResult]{deed: p.deed, do: func(dryRun bool, all map[string]subscription.PurgeResult) error {
		return c.eachProvider(ctx, p.Provider, func(d *databases, provider uow.Provider) error {
			name, letters := provider.Name(), subscription.NewDeadLetters(provider)
			plan, planned := all[name]
			if planned && plan.Total() == 0 {
				return nil
			}
			older, err := p.age(d)
			if err == nil {
				err = letters.Check(ctx)
			}
			if err != nil {
				return err
			}
			all[name], err = letters.Purge(ctx, p.filter(), subscription.PurgeOptions{
				Actor: p.actor(), OlderThan: older, DryRun: dryRun,
				Progress: func(n int64) { line.tell("%s: %d of %d removed", name, n, plan.Total()) },
			})
			line.clear()
			if done := all[name]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s removed; action %d, by %s.\n", name, byStatus(done), done.Action, p.actor())
			}
			return err
		})
	}, tell: func(all map[string]subscription.PurgeResult) (string, error) { return p.tell(c, stdout, all) }}.run(ctx, c, stdout, stderr)
}

// tell says what can be removed, and returns the question.
func (p purgeLettersCmd) tell(c *cli, stdout out, all map[string]subscription.PurgeResult) (question string, err error) {
	var plan, refused int64
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		r := all[provider]
		plan += r.Total()
		refused += r.Refused
		if c.JSON {
			continue
		}
		fmt.Fprintf(stdout, "Provider %s: %s can be removed.\n", provider, byStatus(r))
		if r.Refused > 0 {
			fmt.Fprintf(stdout, "Provider %s: %d can't: they hold their keys, or are in replay. Give them up before: waybill dead-letters discard --id %s\n", provider, r.Refused, strings.Join(r.Heads, " --id "))
		}
	}
	switch {
	case refused > 0 && !p.DryRun:
		return "", fmt.Errorf("%s that were chosen hold their keys or are in replay: discard them before, or choose less; nothing was changed", messages(refused))
	case plan == 0:
		return "", nil
	}
	return fmt.Sprintf("Remove %s for good?", messages(plan)), nil
}

// age is how old what is removed must be.
func (p purgeLettersCmd) age(d *databases) (time.Duration, error) {
	resolved := d.letters.WithDefaults().Resolved
	if p.OlderThan == nil && resolved < 0 {
		return 0, &usageError{errors.New("by the configuration file dead letters are kept for ever: give --older-than")}
	}
	if p.OlderThan != nil {
		return *p.OlderThan, nil
	}
	return resolved, nil
}

// byStatus is "2 discarded and 7 replayed dead letters".
func byStatus(r subscription.PurgeResult) string {
	var all []string
	for _, status := range slices.Sorted(maps.Keys(r.Removed)) {
		all = append(all, fmt.Sprintf("%d %s", r.Removed[status], status))
	}
	return cmp.Or(strings.Join(all, " and "), "no") + " dead letters"
}
