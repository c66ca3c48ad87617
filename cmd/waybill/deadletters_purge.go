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
	OlderThan *time.Duration `placeholder:"AGE" help:"Only what was over longer ago than this, as in 720h; of parked ones, whose last attempt was. 0s for any age. Defaults to subscriptions.dead_letters.resolved of the configuration file, or 720h."`
}

func (p purgeLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if p.OlderThan != nil && *p.OlderThan < 0 {
		return &usageError{errors.New("--older-than is an age, as in 720h, or 0s for any")}
	}
	if err := p.check(); err != nil {
		return err
	}
	line := newProgress(stderr)
	all := map[string]subscription.PurgeResult{}
	purge := func(dryRun bool) error {
		return c.eachProvider(ctx, p.Provider, func(d *databases, provider uow.Provider) error {
			defer line.clear()
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
			if done := all[name]; done.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "Provider %s: %s removed; action %d, by %s.\n", name, byStatus(done), done.Action, p.actor())
			}
			return err
		})
	}
	if err := purge(true); err != nil {
		return err
	}
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
	if p.DryRun || plan+refused == 0 {
		if c.JSON {
			return writeJSON(stdout, map[string]any{"dry_run": p.DryRun, "providers": all})
		}
		return nil
	}
	if refused > 0 {
		return fmt.Errorf("%s that were chosen hold their keys or are in replay: discard them before, or choose less; nothing was changed", messages(refused))
	}
	if !p.Yes {
		if err := confirm(ctx, stderr, fmt.Sprintf("Remove %s for good?", messages(plan))); err != nil {
			return err
		}
	}
	err := purge(false)
	if c.JSON {
		err = errors.Join(err, writeJSON(stdout, map[string]any{"dry_run": false, "providers": all}))
	}
	return err
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
