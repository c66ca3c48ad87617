package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/internal/correlation"
	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/outbox"
)

// maxTrace is how many rows of each kind a trace reads of a database, at most.
const maxTrace = 1000

type traceCmd struct {
	Correlation string `arg:"" help:"The correlation id, as shown by waybill outbox show and in logs."`
	Limit       int    `default:"200" help:"Read at most this many rows of each kind from a database."`
}

// Help implements kong.HelpProvider.
func (traceCmd) Help() string {
	return `There is no index by correlation: what is not published is found at once, and what is published by a search through all of its rows,
which is given up after 30 s. The answer then says that it is not complete.`
}

func (t traceCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	if err := checkLimit(t.Limit, maxTrace); err != nil {
		return err
	}
	if t.Correlation == "" || !outbox.Storable(t.Correlation) {
		return &usageError{errors.New("the correlation id is empty, or no UTF-8 text without a zero byte")}
	}
	d, err := c.openThere(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	from := make([]correlation.Source, len(d.providers))
	for i, p := range d.providers {
		from[i].Provider = p
		if err := away(p); err != nil {
			from[i].Ask = func(context.Context, func(context.Context) error) error { return err }
		}
	}
	all, failed := correlation.Read(ctx, from, t.Correlation, correlation.Options{Limit: t.Limit, More: fmt.Sprintf("--limit %d reads more", maxTrace)})
	for _, provider := range slices.Sorted(maps.Keys(failed)) {
		err = errors.Join(err, fmt.Errorf("provider %q: %w", provider, failed[provider]))
	}
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, all))
	}
	if len(all.Messages) == 0 && err == nil && len(all.Missing) == 0 {
		fmt.Fprintf(stdout, "No message, timer or dead letter has correlation %s. Published rows are removed after their retention.\n", printable(t.Correlation))
		return nil
	}
	for _, m := range all.Messages {
		printTraced(stdout, m, "")
	}
	for _, missing := range all.Missing {
		fmt.Fprintln(stdout, missing)
	}
	return err
}

func printTraced(w io.Writer, m *correlation.Message, indent string) {
	say := func(format string, args ...any) {
		fmt.Fprintf(w, "%s  · %s\n", indent, flat(fmt.Sprintf(format, args...)))
	}
	at := ""
	if m.OccurredAt != nil {
		at = "  " + when(*m.OccurredAt)
	}
	kind := m.Kind
	if kind == "unknown" {
		kind = "message"
	}
	fmt.Fprintf(w, "%s%s %s  %s%s\n", indent, kind, flat(cmp.Or(m.Type, "of no known type")), flat(m.MessageID), at)
	if m.Timer != nil {
		say("%s", timerWords(m.Timer))
	}
	for _, r := range m.Rows {
		say("to %s: %s", r.TargetBroker, rowFate(r))
	}
	for _, h := range m.Handled {
		say("handled by %s, %s", h.Subscription, when(h.At))
	}
	for _, l := range m.DeadLetters {
		say("dead letter %s of %s, %s (%s): %s", l.ID, l.Subscription, l.Status, l.Reason, oneLine(l.Error))
	}
	for _, p := range m.Processes {
		say("%s", processWords(p))
	}
	if len(m.Rows) == 0 && m.Timer == nil {
		say("no row of it is here: a command that was done at once, a message from elsewhere, or one whose rows were removed")
	}
	for _, below := range m.Caused {
		printTraced(w, below, indent+"  ")
	}
}

func timerWords(t *correlation.Timer) string {
	if t.SentAt != nil {
		return fmt.Sprintf("timer %s of %s, due %s, sent %s, not handled yet", t.Name, t.Owner, when(t.AvailableAt), when(*t.SentAt))
	}
	return fmt.Sprintf("timer %s of %s, waits until %s", t.Name, t.Owner, when(t.AvailableAt))
}

func rowFate(r correlation.Row) string {
	fate := statusOf(r.Entry)
	switch {
	case r.Status == outbox.Published && r.PublishedAt != nil:
		fate += " " + when(*r.PublishedAt)
	case r.Attempts > 0:
		fate += fmt.Sprintf(", %d of %d attempts", r.Attempts, r.MaxAttempts)
	}
	if r.LastError != "" && r.Status != outbox.Published {
		fate += ": " + oneLine(r.LastError)
	}
	return fate
}

func processWords(p correlation.Process) string {
	switch of := "process " + p.Process; {
	case p.ID == "":
		return of + ": which one, if any, can't be known"
	case p.Status == "":
		return fmt.Sprintf("%s %s: there is none, or none any more", of, p.ID)
	case p.Status == processdb.Awaited:
		return fmt.Sprintf("%s %s: awaited, as what begins it has not come", of, p.ID)
	case p.EndedAt != nil:
		return fmt.Sprintf("%s %s: ended %s", of, p.ID, when(*p.EndedAt))
	default:
		return fmt.Sprintf("%s %s: %s, has heard %s, the last %s", of, p.ID, p.Status, messages(p.Heard), when(*p.LastAt))
	}
}
