package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// rowsChange is what retry, skip and abandon have in common.
type rowsChange struct {
	rowsFilter
	deed
	Limit int `positive:"" placeholder:"N" help:"At most this many."`
}

type retryRowsCmd struct {
	rowsChange
	Rate float64 `positive:"" placeholder:"N" help:"Make at most this many due per second. Defaults to all at once."`
}

type skipRowsCmd struct{ rowsChange }

type abandonRowsCmd struct{ rowsChange }

func (r retryRowsCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if !(r.Rate >= 0) || r.Rate > maxRate {
		return &usageError{errors.New("--rate is a number of rows per second above 0, or left out")}
	}
	return r.run(ctx, c, stdout, stderr, outbox.VerbRetry, r.Rate)
}

func (s skipRowsCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return s.run(ctx, c, stdout, stderr, outbox.VerbSkip, 0)
}

func (a abandonRowsCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	return a.run(ctx, c, stdout, stderr, outbox.VerbAbandon, 0)
}

// verbWords are what was done by a verb, and what it can be done to.
var verbWords = map[outbox.Verb]struct{ done, to string }{
	outbox.VerbRetry:   {"pending again", "only failed and abandoned ones can be retried"},
	outbox.VerbSkip:    {"skipped: later rows of their keys are published", "only abandoned ones that are held can be skipped"},
	outbox.VerbAbandon: {"abandoned", "only pending and failed ones can be abandoned"},
}

func (r rowsChange) run(ctx context.Context, c *cli, stdout out, stderr news, verb outbox.Verb, rate float64) error {
	chosen := r.rowsFilter
	chosen.Provider = ""
	switch {
	case isZero(chosen):
		return &usageError{fmt.Errorf("%s what? Choose rows by --seq, --message, --status, --target, --type, --key or another filter; --dry-run shows what it would do", verb)}
	case r.Limit < 0:
		return &usageError{errors.New("--limit is above 0, or left out")}
	}
	line := newProgress(stderr)
	return act[outbox.ChangeResult]{deed: r.deed, do: func(dryRun bool, all map[string]outbox.ChangeResult) error {
		return c.eachOutbox(ctx, r.Provider, func(d *databases, provider string, s *outboxdb.Store) (err error) {
			if len(r.Seq) > 0 && len(d.providers) > 1 && r.Provider == "" {
				return &usageError{errors.New("every database counts its rows for itself: name --provider with --seq")}
			}
			plan, planned := all[provider]
			if planned && plan.Changed == 0 {
				return nil
			}
			all[provider], err = s.Change(ctx, r.filter(), outbox.Change{
				Verb: verb, Actor: r.actor(), Rate: rate, Limit: r.Limit, UpTo: plan.UpTo, DryRun: dryRun, Retention: d.retention,
				Progress: func(so outbox.ChangeResult) { line.tell("%s: %d of %s", provider, so.Changed, rows(plan.Changed)) },
			})
			line.clear()
			if done := all[provider]; done.Action != 0 && !c.JSON {
				pace := ""
				if rate > 0 {
					pace = fmt.Sprintf(", the last of them due in %v", lastOf(done.Changed, rate))
				}
				fmt.Fprintf(stdout, "%s %s%s; action %d, by %s.\n", rows(done.Changed), verbWords[verb].done, pace, done.Action, r.actor())
			}
			return err
		})
	}, tell: func(all map[string]outbox.ChangeResult) (string, error) { return r.tell(c, stdout, stderr, verb, all) }}.run(ctx, c, stdout, stderr)
}

// tell says what becomes of what was chosen, and returns the question.
func (r rowsChange) tell(c *cli, stdout out, stderr news, verb outbox.Verb, all map[string]outbox.ChangeResult) (question string, err error) {
	if err := r.unknown(all); err != nil {
		return "", err
	}
	var changed, outOfOrder int64
	for _, p := range all {
		changed += p.Changed
		outOfOrder += p.OutOfOrder
	}
	if !c.JSON {
		if err := tellChange(stdout, verb, all); err != nil {
			return "", err
		}
	}
	if outOfOrder > 0 {
		fmt.Fprintf(stderr, "Out of order: %s abandoned without a hold, so what followed in the same key may have been published already.\n", were(outOfOrder))
		question = fmt.Sprintf(", %d of them out of order", outOfOrder)
	}
	if changed == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s %s%s?", strings.ToUpper(string(verb[:1]))+string(verb[1:]), rows(changed), question), nil
}

// isZero says whether nothing is chosen.
func isZero(f rowsFilter) bool {
	return len(f.Status)+len(f.Seq) == 0 && !f.Held && !f.Stale && f.From.IsZero() && f.Until.IsZero() &&
		f.Target+f.Message+string(f.Type)+string(f.Stream)+string(f.Category)+f.Key+f.Correlation+f.Causation+f.Error+f.Class == ""
}

// unknown is an error if something that was named is in none of the databases.
func (r rowsChange) unknown(all map[string]outbox.ChangeResult) error {
	var found int64
	count := map[int64]int{}
	for _, p := range all {
		found += p.Changed
		for _, n := range p.Refused {
			found += n
		}
		for _, seq := range p.Missing {
			count[seq]++
		}
	}
	maps.DeleteFunc(count, func(_ int64, n int) bool { return n < len(all) })
	if len(count) > 0 {
		var missing []string
		for _, seq := range slices.Sorted(maps.Keys(count)) {
			missing = append(missing, strconv.FormatInt(seq, 10))
		}
		return fmt.Errorf("there is no row %s; nothing was changed. `waybill doctor` finds rows whose body was removed", strings.Join(missing, ", "))
	}
	if r.Message != "" && found == 0 {
		return fmt.Errorf("no row of message %s matches; nothing was changed", r.Message)
	}
	return nil
}

// tellChange says what becomes of what was chosen.
func tellChange(stdout out, verb outbox.Verb, all map[string]outbox.ChangeResult) error {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		r := all[provider]
		if len(all) > 1 {
			if r.Changed == 0 && len(r.Refused) == 0 {
				continue
			}
			fmt.Fprintf(w, "Provider %s\n", provider)
		}
		what := "rows"
		if r.OutOfOrder > 0 {
			what = fmt.Sprintf("rows, %d of them out of order", r.OutOfOrder)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", verb, r.Changed, what)
		for _, status := range outbox.Statuses() {
			if n := r.Refused[status]; n > 0 {
				fmt.Fprintf(w, "left\t%d\tthat are %s: %s\n", n, status, verbWords[verb].to)
			}
		}
	}
	return w.Flush()
}

func rows(n int64) string { return number(n, "row", "rows") }

func were(n int64) string { return number(n, "row was", "rows were") }

type rowsLogCmd struct {
	Limit int `default:"50" help:"How many."`
}

func (l rowsLogCmd) Run(ctx context.Context, c *cli, stdout out) error {
	if err := checkLimit(l.Limit, maxPage); err != nil {
		return err
	}
	all := map[string][]outbox.Action{}
	err := c.eachOutbox(ctx, "", func(_ *databases, provider string, s *outboxdb.Store) error {
		actions, err := s.Actions(ctx, l.Limit)
		if err == nil {
			all[provider] = actions
		}
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "ACTION", "AT", "WHO", "WHAT", "ROWS", "ASKED FOR")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, a := range all[provider] {
			t.row(provider, strconv.FormatInt(a.ID, 10), when(a.At), a.Actor, a.Action, strconv.FormatInt(a.Rows, 10), string(a.Filter))
		}
	}
	return t.flush(err, "Nothing has been retried, skipped, abandoned or removed, and no timers moved or stopped.")
}
