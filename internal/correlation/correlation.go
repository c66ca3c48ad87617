// Package correlation finds what belongs to one correlation id in several databases:
// messages by cause, and what became of each. `waybill trace` prints it, and the
// engine's page draws it.
package correlation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// Source is a database that is asked.
type Source struct {
	uow.Provider

	// Ask calls do when it is its turn, and bounds it. nil: at once, without a bound.
	Ask func(ctx context.Context, do func(context.Context) error) error
}

func (s Source) ask(ctx context.Context, do func(context.Context) error) error {
	if s.Ask == nil {
		return do(ctx)
	}
	return s.Ask(ctx, do)
}

// Options bound what is read.
type Options struct {
	// Limit is how many rows of each kind are read of a database.
	Limit int
	// Most is how many messages there are in the answer. 0: all that were read.
	Most int
	// Patience is how long published rows are searched, of which no index is by
	// correlation. 0: as long as the database lets a person's question take.
	Patience time.Duration
	// More says how somebody gets what Limit left out.
	More string
}

// Trace is all that has one correlation id.
type Trace struct {
	CorrelationID string     `json:"correlation_id"`
	Messages      []*Message `json:"messages"` // those without a cause here; the others are below theirs
	Missing       []string   `json:"missing"`  // what was not read, and why; empty: it is complete

	// LeftOut are messages that were found beyond Options.Most, the latest.
	LeftOut int `json:"-"`

	options Options
	known   map[string]*Message
	order   []*Message
	stores  map[string]*outboxdb.Store // by provider
}

// Message is a message and what became of it.
type Message struct {
	MessageID   string     `json:"message_id"`
	Kind        string     `json:"kind"`  // "event", "command", "timer", "message": for a process only, or "unknown": nothing but what it caused is here
	State       string     `json:"state"` // one of the States
	Type        string     `json:"type"`
	Stream      string     `json:"stream"`
	CausationID string     `json:"causation_id"`
	OccurredAt  *time.Time `json:"occurred_at"`
	Rows        []Row      `json:"rows"`
	Timer       *Timer     `json:"timer"`
	Handled     []Handled  `json:"handled"`
	DeadLetters []Letter   `json:"dead_letters"`
	Processes   []Process  `json:"processes"`
	Caused      []*Message `json:"caused"`
}

// Row is a row of an outbox.
type Row struct {
	Provider string `json:"provider"`
	outbox.Entry
}

// Timer waits, or was sent and is not handled.
type Timer struct {
	Provider string `json:"provider"`
	outbox.Timer
}

// Handled is that a subscription is done with a message.
type Handled struct {
	Provider     string    `json:"provider"`
	Subscription string    `json:"subscription"`
	At           time.Time `json:"at"`
}

// Letter is a dead letter of a message.
type Letter struct {
	Provider string `json:"provider"`
	subscription.DeadLetter
}

// Read asks every database for what it has of a correlation id, and then, as that may be
// about messages of another one, what became of it there. What processes sent comes before
// which of them did. A database that fails is not asked again: its error is among those
// that are returned, by provider, beside what the others have.
func Read(ctx context.Context, from []Source, id string, o Options) (*Trace, map[string]error) {
	t := &Trace{CorrelationID: id, Messages: []*Message{}, Missing: []string{}, options: o, known: map[string]*Message{}, stores: map[string]*outboxdb.Store{}}
	errs := map[string]error{}
	for _, ask := range []func(context.Context, uow.Provider) error{t.messages, t.timers, t.fates, t.processes} {
		for _, s := range from {
			if errs[s.Name()] != nil {
				continue
			}
			if err := s.ask(ctx, func(ctx context.Context) error { return ask(ctx, s.Provider) }); err != nil {
				errs[s.Name()] = err
			}
		}
		t.cut()
	}
	t.tree()
	return t, errs
}

// Len is how many messages there are.
func (t *Trace) Len() int { return len(t.order) }

// All calls do for each message, causes first, with the one that it is below; nil: none.
func (t *Trace) All(do func(m, below *Message)) {
	var walk func(m, below *Message)
	walk = func(m, below *Message) {
		do(m, below)
		for _, caused := range m.Caused {
			walk(caused, m)
		}
	}
	for _, m := range t.Messages {
		walk(m, nil)
	}
}

// of is a message, known or new.
func (t *Trace) of(id string) *Message {
	m, ok := t.known[id]
	if !ok {
		m = &Message{MessageID: id, Kind: "unknown", Rows: []Row{}, Handled: []Handled{}, DeadLetters: []Letter{}, Processes: []Process{}, Caused: []*Message{}}
		t.known[id] = m
		t.order = append(t.order, m)
	}
	return m
}

func (t *Trace) more(provider, what string) {
	t.Missing = append(t.Missing, fmt.Sprintf("Provider %s: …and more %s; %s.", provider, what, t.options.More))
}

// messages reads rows of the outbox. Those that are published come last: what leaves
// meanwhile is then found twice, and not never.
func (t *Trace) messages(ctx context.Context, p uow.Provider) error {
	s := outboxdb.New(p.DB(), p.Reader())
	if err := s.Check(ctx); err != nil {
		return err
	}
	t.stores[p.Name()] = s
	rows := map[int64]outbox.Entry{}
	unpublished := slices.DeleteFunc(outbox.Statuses(), func(s outbox.Status) bool { return s == outbox.Published })
	for _, statuses := range [][]outbox.Status{unpublished, {outbox.Published}} {
		found, complete, err := t.find(ctx, s, statuses)
		if err != nil {
			return err
		}
		if !complete {
			t.Missing = append(t.Missing, fmt.Sprintf("Provider %s: its published rows are not all here: it would have taken too long to search them, as there is no index by correlation.", p.Name()))
		}
		if len(found) > t.options.Limit {
			t.more(p.Name(), "rows of the outbox")
			found = found[:t.options.Limit]
		}
		for _, e := range found {
			rows[e.Seq] = e
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(rows)) {
		e := rows[seq]
		m := t.of(e.MessageID)
		m.describe(&e.Row)
		m.Rows = append(m.Rows, Row{p.Name(), e})
	}
	return nil
}

// find is not complete where a search among published rows was given up.
func (t *Trace) find(ctx context.Context, s *outboxdb.Store, statuses []outbox.Status) (found []outbox.Entry, complete bool, err error) {
	published := slices.Contains(statuses, outbox.Published)
	search := ctx
	if published && t.options.Patience > 0 {
		var cancel context.CancelFunc
		search, cancel = context.WithTimeout(ctx, t.options.Patience)
		defer cancel()
	}
	found, err = s.Find(search, outbox.Filter{CorrelationID: t.CorrelationID, Statuses: statuses, Limit: t.options.Limit + 1})
	if published && err != nil && (errors.Is(err, outboxdb.ErrEndless) || search.Err() != nil && ctx.Err() == nil) {
		return nil, false, nil
	}
	return found, true, err
}

func (m *Message) describe(r *outbox.Row) {
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
func (t *Trace) timers(ctx context.Context, p uow.Provider) error {
	if err := timerdb.Migrations().Check(ctx, p.Reader()); err != nil {
		return err
	}
	s := timerdb.New(p.DB(), p.Reader())
	page, err := s.Find(ctx, outbox.TimerFilter{Correlation: t.CorrelationID, Limit: t.options.Limit})
	if err != nil {
		return err
	}
	if page.Next != "" {
		t.more(p.Name(), "timers")
	}
	for _, timer := range page.Timers {
		m := t.of(timer.ID)
		m.Timer = &Timer{p.Name(), timer}
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
func (t *Trace) fates(ctx context.Context, p uow.Provider) error {
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
	// The inbox before the dead letters: what is parked between the two reads is in neither,
	// or in the second. The other way round it would be handled, as the inbox has it, too.
	done, err := subscription.FindConsumptions(ctx, p.Reader(), asked)
	if err != nil {
		return err
	}
	letters, err := subscription.FindLetters(ctx, p.Reader(), t.CorrelationID, asked, t.options.Limit+1)
	if err != nil {
		return err
	}
	if len(letters) > t.options.Limit {
		t.more(p.Name(), "dead letters")
		letters = letters[:t.options.Limit]
	}
	var others []string // that only dead letters are known of
	for _, l := range letters {
		m := t.of(l.MessageID)
		m.Type = cmp.Or(m.Type, l.Type)
		m.DeadLetters = append(m.DeadLetters, Letter{p.Name(), l})
		if !ids[l.MessageID] {
			ids[l.MessageID] = true
			others = append(others, l.MessageID)
		}
	}
	more, err := subscription.FindConsumptions(ctx, p.Reader(), others)
	if err != nil {
		return err
	}
	maps.Copy(done, more)
	for _, id := range slices.Concat(asked, others) {
		for _, d := range done[id] {
			// The inbox has what is parked, too, without an effect.
			if !slices.ContainsFunc(letters, func(l subscription.DeadLetter) bool {
				return l.MessageID == id && l.Of(d.Subscription) && l.Status != subscription.DeadLetterReplayed
			}) {
				m := t.of(id)
				m.Handled = append(m.Handled, Handled{p.Name(), d.Subscription, d.At})
			}
		}
	}
	return nil
}
