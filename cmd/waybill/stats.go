package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

const (
	statsTimeout = time.Minute
	maxErrorText = 80
)

type statsCmd struct{}

// lane is one target broker's state in a database, under the names that
// /api/outbox has for it.
type lane struct {
	Counts               map[outbox.Status]int64 `json:"counts"`
	RetryRate            float64                 `json:"retry_rate"`
	OldestPendingSeconds *float64                `json:"oldest_pending_seconds"`
	LeaseOwners          []string                `json:"lease_owners"`
	LastError            *string                 `json:"last_error"`
}

func (statsCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	d, err := c.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	all := map[string]map[string]lane{} // by provider and target; null if not known
	var errs []error
	for _, p := range d.providers {
		all[p.Name()], err = lanes(ctx, p, d.targets)
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
		}
	}
	if c.JSON {
		errs = append(errs, writeJSON(stdout, map[string]any{"providers": all}))
	} else {
		errs = append(errs, table(stdout, all))
	}
	return errors.Join(errs...)
}

// lanes is the state of every target, also of those that have no row yet.
func lanes(ctx context.Context, p uow.Provider, targets []string) (map[string]lane, error) {
	store := outbox.NewStore(p.DB(), p.Reader())
	if err := store.Check(ctx); err != nil {
		return nil, err
	}
	stats, err := store.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("count rows: %w", err)
	}
	all := map[string]lane{}
	for _, t := range slices.Concat(targets, slices.Collect(maps.Keys(stats))) {
		s, ok := stats[t]
		if !ok {
			s = outbox.NoStats()
		}
		l := lane{Counts: s.Counts, RetryRate: s.RetryRate(), LeaseOwners: append([]string{}, s.LeaseOwners...), LastError: s.LastError}
		if s.OldestPending != nil {
			seconds := s.OldestPending.Seconds()
			l.OldestPendingSeconds = &seconds
		}
		all[t] = l
	}
	return all, nil
}

// table is for people. Where nothing is known, the errors say all.
func table(stdout out, all map[string]map[string]lane) error {
	known := func(lanes map[string]lane) bool { return lanes != nil }
	if !slices.ContainsFunc(slices.Collect(maps.Values(all)), known) {
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROVIDER\tBROKER\tPENDING\tPROCESSING\tPUBLISHED\tFAILED\tABANDONED\tRETRY RATE\tOLDEST PENDING\tLEASE OWNERS\tLAST ERROR")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		switch {
		case all[provider] == nil:
			fmt.Fprintf(w, "%s\t?\n", provider)
		case len(all[provider]) == 0:
			fmt.Fprintf(w, "%s\t(no rows yet)\n", provider)
		}
		for _, target := range slices.Sorted(maps.Keys(all[provider])) {
			l := all[provider][target]
			fmt.Fprintf(w, "%s\t%s", provider, target)
			for _, status := range outbox.Statuses() {
				fmt.Fprintf(w, "\t%d", l.Counts[status])
			}
			oldest, problem := "-", "-"
			if s := l.OldestPendingSeconds; s != nil {
				oldest = time.Duration(*s * float64(time.Second)).Round(time.Second).String()
			}
			if l.LastError != nil {
				problem = oneLine(*l.LastError)
			}
			fmt.Fprintf(w, "\t%.1f %%\t%s\t%s\t%s\n", 100*l.RetryRate, oldest, cmp.Or(strings.Join(l.LeaseOwners, ","), "-"), problem)
		}
	}
	return w.Flush()
}

// oneLine makes an error's text fit for a terminal, whatever a broker answered.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > maxErrorText {
		text = string(runes[:maxErrorText-1]) + "…"
	}
	return text
}
