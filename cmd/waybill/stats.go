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

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

const (
	statsTimeout = time.Minute
	minEvery     = 100 * time.Millisecond
	clearScreen  = "\x1b[H\x1b[2J"
	maxErrorText = 80
)

type statsCmd struct {
	Watch bool          `short:"w" help:"Refresh until interrupted."`
	Every time.Duration `default:"2s" placeholder:"TIME" help:"With --watch: the refresh interval. Defaults to 2s."`
}

// lane is one target broker's state in a database, under the names that
// /api/outbox has for it.
type lane struct {
	Counts               map[outbox.Status]int64 `json:"counts"`
	RetryRate            float64                 `json:"retry_rate"`
	OldestPendingSeconds *float64                `json:"oldest_pending_seconds"`
	LeaseOwners          []string                `json:"lease_owners"`
	LastError            *string                 `json:"last_error"`
}

func (s statsCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) (err error) {
	if s.Every < minEvery {
		return &usageError{fmt.Errorf("--every is %v: at least %v", s.Every, minEvery)}
	}
	d, err := c.openThere(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	now, err := d.look(ctx)
	if !s.Watch {
		return errors.Join(err, c.show(stdout, now, nil))
	}
	if !now.known() {
		return err
	}
	before := &look{}
	for {
		if !c.JSON {
			if isTerminal(stdout.Writer) {
				fmt.Fprint(stdout, clearScreen)
			}
			fmt.Fprintf(stdout, "%s, every %v\n", when(now.at), s.Every)
		}
		if err := c.show(stdout, now, before); err != nil {
			return err
		}
		if !c.JSON {
			fmt.Fprintln(stdout)
		}
		if err != nil {
			fmt.Fprintf(stderr, "waybill: %s\n", printable(err.Error()))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.Every):
		}
		was := now
		before = &was
		d = c.reopen(ctx, d)
		if now, err = d.look(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// reopen opens the databases again if one of them was away: it may be back.
func (c *cli) reopen(ctx context.Context, d *databases) *databases {
	if !slices.ContainsFunc(d.providers, func(p uow.Provider) bool { return away(p) != nil }) {
		return d
	}
	again, err := c.openThere(ctx, "")
	if err != nil {
		return d
	}
	_ = d.close() // nothing was written
	return again
}

// look is the state of all outboxes at one time.
type look struct {
	at        time.Time
	providers map[string]map[string]lane // by provider and target; null if not known
}

// known says whether any database has answered.
func (l look) known() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(l.providers)), func(lanes map[string]lane) bool { return lanes != nil })
}

// look asks every database. What it says is of those that answer.
func (d *databases) look(ctx context.Context) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	l := look{time.Now(), map[string]map[string]lane{}}
	var errs []error
	for _, p := range d.providers {
		all, err := map[string]lane(nil), away(p)
		if err == nil {
			all, err = lanes(ctx, p, d.targets)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
		}
		l.providers[p.Name()] = all
	}
	return l, errors.Join(errs...)
}

// show writes what is seen, and how fast it changes since another look; nil:
// there is no such column.
func (c *cli) show(stdout out, now look, before *look) error {
	if c.JSON {
		return writeJSON(stdout, map[string]any{"providers": now.providers})
	}
	return table(stdout, now, before)
}

// lanes is the state of every target, also of those that have no row yet.
func lanes(ctx context.Context, p uow.Provider, targets []string) (map[string]lane, error) {
	store := outboxdb.New(p.DB(), p.Reader())
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
		l := lane{Counts: s.Counts, RetryRate: s.RetryRate(), LeaseOwners: append([]string{}, s.LeaseOwners...), LastError: lastError(s)}
		if s.OldestPending != nil {
			seconds := s.OldestPending.Seconds()
			l.OldestPendingSeconds = &seconds
		}
		all[t] = l
	}
	return all, nil
}

// lastError is what a process says that doesn't reach the broker, or what was said of a row:
// while a broker is away rows wait, and have no error.
func lastError(s outbox.Stats) *string {
	for _, m := range s.Members {
		if !m.Healthy && m.Trouble != "" {
			return &m.Trouble
		}
	}
	return s.LastError
}

// table is for people. Where nothing is known, the errors say all.
func table(stdout out, now look, before *look) error {
	all := now.providers
	if !now.known() {
		return nil
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	rate := ""
	if before != nil {
		rate = "\tPUBLISHED/S"
	}
	heading := "PROVIDER\tBROKER\tPENDING\tPROCESSING\tPUBLISHED\tFAILED\tABANDONED" + rate + "\tRETRY RATE\tOLDEST PENDING\tLEASE OWNERS\tLAST ERROR"
	fmt.Fprintln(w, heading)
	rest := strings.Repeat("\t-", strings.Count(heading, "\t")-1) // without it, later rows would have columns of their own
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		switch {
		case all[provider] == nil:
			fmt.Fprintf(w, "%s\t?%s\n", provider, rest)
		case len(all[provider]) == 0:
			fmt.Fprintf(w, "%s\t(no rows yet)%s\n", provider, rest)
		}
		for _, target := range slices.Sorted(maps.Keys(all[provider])) {
			l := all[provider][target]
			fmt.Fprintf(w, "%s\t%s", provider, target)
			for _, status := range outbox.Statuses() {
				fmt.Fprintf(w, "\t%d", l.Counts[status])
			}
			if before != nil {
				fmt.Fprintf(w, "\t%s", perSecond(now, *before, provider, target))
			}
			oldest, problem := "-", "-"
			if s := l.OldestPendingSeconds; s != nil {
				oldest = time.Duration(*s * float64(time.Second)).Round(time.Second).String()
			}
			if l.LastError != nil {
				problem = oneLine(*l.LastError)
			}
			fmt.Fprintf(w, "\t%.1f %%\t%s\t%s\t%s\n", 100*l.RetryRate, oldest, cmp.Or(flat(strings.Join(l.LeaseOwners, ",")), "-"), problem)
		}
	}
	return w.Flush()
}

// perSecond is how fast a target published between two looks.
func perSecond(now, before look, provider, target string) string {
	was, ok := before.providers[provider][target]
	if !ok {
		return "-"
	}
	n := now.providers[provider][target].Counts[outbox.Published] - was.Counts[outbox.Published]
	return fmt.Sprintf("%.1f", float64(n)/now.at.Sub(before.at).Seconds())
}

// oneLine makes an error's text fit for a terminal, whatever a broker answered.
func oneLine(text string) string {
	text = flat(text)
	if runes := []rune(text); len(runes) > maxErrorText {
		text = string(runes[:maxErrorText-1]) + "…"
	}
	return text
}

// flat is text without line breaks, or anything else that moves a cursor.
func flat(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
