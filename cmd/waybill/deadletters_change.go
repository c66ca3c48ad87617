package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/waybill-go/waybill/subscription"
)

// change is what replay and discard have in common.
type change struct {
	lettersFilter
	deed
}

type replayLettersCmd struct {
	change
	Rate  float64 `positive:"" placeholder:"N" help:"Replay at most this many per second, not counting messages held behind them. Defaults to all at once."`
	Limit int     `positive:"" placeholder:"N" help:"At most this many."`
}

type discardLettersCmd struct{ change }

// changing does what was asked for, or says what it would come to.
type changing func(s *subscription.DeadLetters, f subscription.DeadLetterFilter, upTo int64, dryRun bool) (subscription.DeadLetterResult, error)

func (r replayLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if !(r.Rate >= 0) || r.Rate > maxRate || r.Limit < 0 {
		return &usageError{errors.New("--rate and --limit are above 0, or left out")}
	}
	return r.run(ctx, c, stdout, stderr, "replay", func(s *subscription.DeadLetters, f subscription.DeadLetterFilter, upTo int64, dryRun bool) (subscription.DeadLetterResult, error) {
		return s.Replay(ctx, f, subscription.ReplayOptions{Actor: r.actor(), Rate: r.Rate, Limit: r.Limit, UpTo: upTo, DryRun: dryRun})
	}, func(done subscription.DeadLetterResult) string {
		pace := ""
		if r.Rate > 0 {
			pace = fmt.Sprintf(", the last of them in %v", lastOf(done.Marked, r.Rate))
		}
		return "marked for the runners of " + done.Subscription + pace
	})
}

func (d discardLettersCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return d.run(ctx, c, stdout, stderr, "discard", func(s *subscription.DeadLetters, f subscription.DeadLetterFilter, upTo int64, dryRun bool) (subscription.DeadLetterResult, error) {
		return s.Discard(ctx, f, subscription.DiscardOptions{Actor: d.actor(), UpTo: upTo, DryRun: dryRun})
	}, func(done subscription.DeadLetterResult) string { return "of " + done.Subscription + " discarded" })
}

func (a change) run(ctx context.Context, c *cli, stdout out, stderr news, verb string, do changing, did func(subscription.DeadLetterResult) string) error {
	if a.Subscription == "" && len(a.ID) == 0 {
		return &usageError{fmt.Errorf("%s what? Name --subscription or --id, and more to choose less; --dry-run shows what it would do", verb)}
	}
	return act[subscription.DeadLetterResult]{deed: a.deed, do: func(dryRun bool, all map[string]subscription.DeadLetterResult) error {
		return c.eachLetters(ctx, a.Provider, func(provider string, s *subscription.DeadLetters) (err error) {
			plan, planned := all[provider]
			if planned && plan.Marked == 0 {
				return nil
			}
			all[provider], err = do(s, a.filter(), plan.UpTo, dryRun)
			if r := all[provider]; r.Action != 0 && !c.JSON {
				fmt.Fprintf(stdout, "%s %s; action %d, by %s.\n", messages(r.Marked), did(r), r.Action, a.actor())
			}
			return err
		})
	}, tell: func(all map[string]subscription.DeadLetterResult) (string, error) {
		return a.tell(c, stdout, stderr, verb, all)
	}}.run(ctx, c, stdout, stderr)
}

// tell says what becomes of what was chosen, and returns the question.
func (a change) tell(c *cli, stdout out, stderr news, verb string, all map[string]subscription.DeadLetterResult) (question string, err error) {
	if err := missing(all); err != nil {
		return "", err
	}
	var marked, skipping int64
	for _, r := range all {
		marked += r.Marked
		skipping += r.Skipping
	}
	if !c.JSON {
		if err := tellPlan(stdout, verb, len(a.ID) > 0, all); err != nil {
			return "", err
		}
	}
	if verb == "replay" {
		tellIdle(stderr, all)
		tellNeeds(stderr, all)
	}
	if skipping > 0 && verb == "replay" {
		fmt.Fprintf(stderr, "Out of order: later messages of the keys of %d were handled already, since their subscription skips what it parks.\n", skipping)
	}
	if marked == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], messages(marked)), nil
}

// tellIdle says of which subscription there is nobody who would handle what is marked.
func tellIdle(stderr news, all map[string]subscription.DeadLetterResult) {
	names, running := map[string]bool{}, map[string]bool{}
	for _, r := range all {
		names[r.Subscription] = true
		running[r.Subscription] = running[r.Subscription] || r.Running
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if name != "" && !running[name] {
			fmt.Fprintf(stderr, "No process runs subscription %s now: what is marked is handled once one does. `waybill subscriptions list` has their names.\n", name)
		}
	}
}

// tellNeeds says what a build has to know that is to handle what is marked.
func tellNeeds(stderr news, all map[string]subscription.DeadLetterResult) {
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		if r := all[provider]; r.Marked > 0 && len(r.Needs) > 0 {
			fmt.Fprintf(stderr, "Some wait for a build that knows %s: it handles them by itself, once it runs, and others leave them alone.\n", printable(strings.Join(r.Needs, ", ")))
		}
	}
}

// missing is an error if an id is in none of the databases.
func missing(all map[string]subscription.DeadLetterResult) error {
	count := map[string]int{}
	for _, r := range all {
		for _, id := range r.Missing {
			count[id]++
		}
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n < len(all) })
	if len(count) == 0 {
		return nil
	}
	return fmt.Errorf("there is no such dead letter, or it is of another subscription: %s; nothing was changed", strings.Join(slices.Sorted(maps.Keys(count)), ", "))
}

// tellPlan says what becomes of what was chosen: of what was named, all of it.
func tellPlan(stdout out, verb string, named bool, all map[string]subscription.DeadLetterResult) error {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		r := all[provider]
		if len(all) > 1 {
			if r.Marked+r.Behind+r.Held+r.Underway+r.Busy+r.Past == 0 {
				continue
			}
			fmt.Fprintf(w, "Provider %s\n", provider)
		}
		fmt.Fprintf(w, "%s\t%d\tof subscription %s\n", verb, r.Marked, r.Subscription)
		others := func(n int64) int64 {
			if named || r.Marked == 0 {
				return n
			}
			return 0
		}
		heads := ""
		if r.Behind > 0 {
			heads = "behind parked messages of their keys that are not chosen: add --id " + strings.Join(r.Heads, " --id ")
		}
		for _, line := range []struct {
			name string
			n    int64
			why  string
		}{
			{"follow", r.Following, "held behind them: these follow by themselves"},
			{"left out", r.Behind, heads},
			{"left out", r.Busy, "a runner is handling them just now: look again when it has ended"},
			{"held", others(r.Held), "follow by themselves when the messages before them are replayed or discarded"},
			{"underway", r.Underway, "in replay already"},
			{"past", others(r.Past), "replayed or discarded already"},
		} {
			if line.n > 0 {
				fmt.Fprintf(w, "%s\t%d\t%s\n", line.name, line.n, line.why)
			}
		}
	}
	return w.Flush()
}

func messages(n int64) string { return number(n, "message", "messages") }
