package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/domain"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/processmsg"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
	"github.com/waybill-go/waybill/uow"
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

// traced is a message and what became of it.
type traced struct {
	MessageID   string          `json:"message_id"`
	Kind        string          `json:"kind"` // "event", "command", "timer", "message": for a process only, or "unknown": nothing but what it caused is here
	Type        string          `json:"type"`
	Stream      string          `json:"stream"`
	CausationID string          `json:"causation_id"`
	OccurredAt  *time.Time      `json:"occurred_at"`
	Rows        []tracedRow     `json:"rows"`
	Timer       *tracedTimer    `json:"timer"`
	Handled     []tracedHandled `json:"handled"`
	DeadLetters []tracedLetter  `json:"dead_letters"`
	Processes   []tracedProcess `json:"processes"`
	Caused      []*traced       `json:"caused"`
}

type tracedRow struct {
	Provider string `json:"provider"`
	outbox.Entry
}

type tracedTimer struct {
	Provider string `json:"provider"`
	outbox.Timer
}

type tracedHandled struct {
	Provider     string    `json:"provider"`
	Subscription string    `json:"subscription"`
	At           time.Time `json:"at"`
}

type tracedLetter struct {
	Provider string `json:"provider"`
	subscription.DeadLetter
}

// trace is all that has one correlation.
type trace struct {
	CorrelationID string    `json:"correlation_id"`
	Messages      []*traced `json:"messages"` // those without a cause here; the others are below theirs
	Missing       []string  `json:"missing"`  // what was not read, and why; empty: it is complete

	known  map[string]*traced
	order  []*traced
	limit  int
	stores map[string]*outboxdb.Store // by provider
}

func (t traceCmd) Run(ctx context.Context, c *cli, stdout out) (err error) {
	if err := checkLimit(t.Limit, maxTrace); err != nil {
		return err
	}
	if t.Correlation == "" || !outbox.Storable(t.Correlation) {
		return &usageError{errors.New("the correlation id is empty, or no UTF-8 text without a zero byte")}
	}
	all := &trace{CorrelationID: t.Correlation, Messages: []*traced{}, Missing: []string{}, known: map[string]*traced{}, limit: t.Limit, stores: map[string]*outboxdb.Store{}}
	d, err := c.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	err = all.read(ctx, d.providers)
	all.tree()
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, all))
	}
	if len(all.Messages) == 0 && err == nil && len(all.Missing) == 0 {
		fmt.Fprintf(stdout, "No message, timer or dead letter has correlation %s. Published rows are removed after their retention.\n", printable(t.Correlation))
		return nil
	}
	for _, m := range all.Messages {
		m.print(stdout, "")
	}
	for _, missing := range all.Missing {
		fmt.Fprintln(stdout, missing)
	}
	return err
}

// read asks every database for what it has of the correlation, and then, as that may be
// about messages of another one, what became of it there. What processes sent comes before
// which of them did.
func (t *trace) read(ctx context.Context, providers []uow.Provider) error {
	var errs []error
	for _, ask := range []func(context.Context, uow.Provider) error{t.messages, t.timers, t.fates, t.processes} {
		for _, p := range providers {
			if err := ask(ctx, p); err != nil {
				errs = append(errs, fmt.Errorf("provider %q: %w", p.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// of is a message, known or new.
func (t *trace) of(id string) *traced {
	m, ok := t.known[id]
	if !ok {
		m = &traced{MessageID: id, Kind: "unknown", Rows: []tracedRow{}, Handled: []tracedHandled{}, DeadLetters: []tracedLetter{}, Processes: []tracedProcess{}, Caused: []*traced{}}
		t.known[id] = m
		t.order = append(t.order, m)
	}
	return m
}

func (t *trace) more(provider, what string) {
	t.Missing = append(t.Missing, fmt.Sprintf("Provider %s: …and more %s; --limit %d reads more.", provider, what, maxTrace))
}

// messages reads rows of the outbox. Those that are published come last: what leaves
// meanwhile is then found twice, and not never.
func (t *trace) messages(ctx context.Context, p uow.Provider) error {
	s := outboxdb.New(p.DB(), p.Reader())
	if err := s.Check(ctx); err != nil {
		return err
	}
	t.stores[p.Name()] = s
	rows := map[int64]outbox.Entry{}
	unpublished := slices.DeleteFunc(outbox.Statuses(), func(s outbox.Status) bool { return s == outbox.Published })
	for _, statuses := range [][]outbox.Status{unpublished, {outbox.Published}} {
		found, err := s.Find(ctx, outbox.Filter{CorrelationID: t.CorrelationID, Statuses: statuses, Limit: t.limit + 1})
		switch {
		case errors.Is(err, outboxdb.ErrEndless) && slices.Contains(statuses, outbox.Published):
			t.Missing = append(t.Missing, fmt.Sprintf("Provider %s: its published rows are not all here: it would have taken too long to search them, as there is no index by correlation.", p.Name()))
		case err != nil:
			return err
		}
		if len(found) > t.limit {
			t.more(p.Name(), "rows of the outbox")
			found = found[:t.limit]
		}
		for _, e := range found {
			rows[e.Seq] = e
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(rows)) {
		e := rows[seq]
		m := t.of(e.MessageID)
		m.describe(&e.Row)
		m.Rows = append(m.Rows, tracedRow{p.Name(), e})
	}
	return nil
}

func (m *traced) describe(r *outbox.Row) {
	m.Kind = "event"
	switch context, _, _ := strings.Cut(r.StreamCategory, "::"); r.StreamCategory {
	case domain.CommandCategory(context):
		m.Kind = "command"
	case processmsg.Category(context):
		m.Kind = "message"
	}
	m.Type, m.Stream, m.CausationID, m.OccurredAt = r.MessageType, r.Stream, r.CausationID, &r.OccurredAt
}

// timers reads those that wait, or whose message is not handled yet.
func (t *trace) timers(ctx context.Context, p uow.Provider) error {
	if err := timerdb.Migrations().Check(ctx, p.Reader()); err != nil {
		return err
	}
	s := timerdb.New(p.DB(), p.Reader())
	page, err := s.Find(ctx, outbox.TimerFilter{Correlation: t.CorrelationID, Limit: t.limit})
	if err != nil {
		return err
	}
	if page.Next != "" {
		t.more(p.Name(), "timers")
	}
	for _, timer := range page.Timers {
		m := t.of(timer.ID)
		m.Timer = &tracedTimer{p.Name(), timer}
		if m.OccurredAt != nil {
			continue // its message was sent
		}
		details, err := s.Show(ctx, timer.ID)
		if errors.Is(err, timerdb.ErrNoTimer) {
			continue // it was handled just now
		}
		if err != nil {
			return err
		}
		m.describe(&details.Message)
		m.Kind = "timer"
	}
	return nil
}

// fates reads what became of the messages in the subscriptions of a database: also of
// those that came from elsewhere, of which it has no row.
func (t *trace) fates(ctx context.Context, p uow.Provider) error {
	if err := subscription.Migrations().Check(ctx, p.Reader()); err != nil {
		return err
	}
	ids := map[string]bool{}
	for _, m := range t.order {
		ids[m.MessageID] = true
		if m.CausationID != "" {
			ids[m.CausationID] = true
		}
	}
	asked := slices.Sorted(maps.Keys(ids))
	letters, err := subscription.FindLetters(ctx, p.Reader(), t.CorrelationID, asked, t.limit+1)
	if err != nil {
		return err
	}
	if len(letters) > t.limit {
		t.more(p.Name(), "dead letters")
		letters = letters[:t.limit]
	}
	for _, l := range letters {
		m := t.of(l.MessageID)
		m.Type = cmp.Or(m.Type, l.Type)
		m.DeadLetters = append(m.DeadLetters, tracedLetter{p.Name(), l})
		if !ids[l.MessageID] {
			ids[l.MessageID] = true
			asked = append(asked, l.MessageID)
		}
	}
	for _, id := range asked {
		done, err := subscription.FindConsumptions(ctx, p.Reader(), id)
		if err != nil {
			return err
		}
		for _, d := range done {
			// The inbox has what is parked, too, without an effect.
			if !slices.ContainsFunc(letters, func(l subscription.DeadLetter) bool {
				return l.MessageID == id && l.Of(d.Subscription) && l.Status != subscription.DeadLetterReplayed
			}) {
				m := t.of(id)
				m.Handled = append(m.Handled, tracedHandled{p.Name(), d.Subscription, d.At})
			}
		}
	}
	return nil
}

// tree puts each message below its cause. One whose cause is not here is below what
// stands for that; the ids are whatever somebody wrote, so that a circle may be among
// them, which begins somewhere.
func (t *trace) tree() {
	for _, m := range slices.Clone(t.order) {
		if m.CausationID != "" {
			t.of(m.CausationID)
		}
	}
	began := map[*traced]time.Time{} // what nothing is known of: with the first that it caused
	for _, m := range t.order {
		at := m.began()
		for _, of := range []*traced{m, t.known[m.CausationID]} {
			if of != nil && of.OccurredAt == nil && (began[of].IsZero() || at.Before(began[of])) {
				began[of] = at
			}
		}
		if m.OccurredAt != nil {
			began[m] = at
		}
	}
	slices.SortStableFunc(t.order, func(a, b *traced) int { return began[a].Compare(began[b]) })
	placed := map[*traced]bool{}
	for _, m := range t.order {
		if m.CausationID == "" || t.circular(m) && !placed[t.known[m.CausationID]] {
			t.Messages = append(t.Messages, m)
		} else {
			cause := t.known[m.CausationID]
			cause.Caused = append(cause.Caused, m)
		}
		placed[m] = true
	}
}

// began is when a message was raised, or first failed, if it is from elsewhere.
func (m *traced) began() time.Time {
	switch {
	case m.OccurredAt != nil:
		return *m.OccurredAt
	case len(m.DeadLetters) > 0:
		return m.DeadLetters[0].FirstAt
	case len(m.Handled) > 0:
		return m.Handled[0].At
	}
	return time.Now()
}

// circular says whether a message is among what caused it.
func (t *trace) circular(m *traced) bool {
	seen := map[*traced]bool{}
	for at := m; at.CausationID != "" && !seen[at]; {
		seen[at] = true
		if at = t.known[at.CausationID]; at == m {
			return true
		}
	}
	return false
}

func (m *traced) print(w io.Writer, indent string) {
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
		say("%s", m.Timer.words())
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
		say("%s", p.words())
	}
	if len(m.Rows) == 0 && m.Timer == nil {
		say("no row of it is here: a command that was done at once, a message from elsewhere, or one whose rows were removed")
	}
	for _, below := range m.Caused {
		below.print(w, indent+"  ")
	}
}

func (t *tracedTimer) words() string {
	if t.SentAt != nil {
		return fmt.Sprintf("timer %s of %s, due %s, sent %s, not handled yet", t.Name, t.Owner, when(t.AvailableAt), when(*t.SentAt))
	}
	return fmt.Sprintf("timer %s of %s, waits until %s", t.Name, t.Owner, when(t.AvailableAt))
}

func rowFate(r tracedRow) string {
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
