package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

const (
	// maxRelated is how many messages of one correlation are shown.
	maxRelated = 200
	// relatedTimeout bounds the search for them, which may go through all that is
	// published.
	relatedTimeout = 2 * time.Second
)

// rowReport is a row of the outbox in a list. What it doesn't have is null.
type rowReport struct {
	Provider      string        `json:"provider"`
	Seq           int64         `json:"seq"`
	MessageID     string        `json:"message_id"`
	Target        string        `json:"target"`
	Status        outbox.Status `json:"status"`
	Held          bool          `json:"held"`
	Type          string        `json:"type"`
	Stream        string        `json:"stream"`
	Key           string        `json:"key"`
	Partition     int           `json:"partition"`
	CorrelationID *string       `json:"correlation_id"`
	CausationID   *string       `json:"causation_id"`
	Attempts      int           `json:"attempts"`
	MaxAttempts   int           `json:"max_attempts"`
	AvailableAt   time.Time     `json:"available_at"`
	LastAttemptAt *time.Time    `json:"last_attempt_at"`
	LastError     *string       `json:"last_error"`
	FailureClass  *string       `json:"failure_class"`
	LockedBy      *string       `json:"locked_by"`
	OccurredAt    time.Time     `json:"occurred_at"`
	CreatedAt     time.Time     `json:"created_at"`
	PublishedAt   *time.Time    `json:"published_at"`
}

func newRowReport(provider string, e outbox.Entry) rowReport {
	return rowReport{
		Provider: provider, Seq: e.Seq, MessageID: e.MessageID, Target: e.TargetBroker, Status: e.Status, Held: e.Held,
		Type: e.MessageType, Stream: e.Stream, Key: e.PartitionKey, Partition: e.Partition,
		CorrelationID: orNull(e.CorrelationID), CausationID: orNull(e.CausationID),
		Attempts: e.Attempts, MaxAttempts: e.MaxAttempts, AvailableAt: e.AvailableAt, LastAttemptAt: e.LastAttemptAt,
		LastError: orNull(e.LastError), FailureClass: orNull(e.FailureClass), LockedBy: orNull(e.LockedBy),
		OccurredAt: e.OccurredAt, CreatedAt: e.CreatedAt, PublishedAt: e.PublishedAt,
	}
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// messagesReport is the answer of /api/outbox/messages.
type messagesReport struct {
	Messages []rowReport      `json:"messages"`
	Next     map[string]int64 `json:"next"` // the after of the next page, by provider, where there may be one
}

func (e *Engine) messages(r *http.Request) (any, error) {
	p := paramsOf(r)
	provider := p.text("provider")
	filter := outbox.Filter{
		MessageID: p.id("message"), Target: p.text("target"), Statuses: choices(p, "status", outbox.Statuses()), Type: p.text("type"),
		Stream: p.text("stream"), PartitionKey: p.text("key"), CorrelationID: p.text("correlation"), CausationID: p.text("causation"),
		Error: p.text("error"), Held: p.yes("held"), From: p.time("from"), Until: p.time("until"),
	}
	filter.After, filter.Limit = p.page()
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.onlyContent(r, "key", "stream", "correlation", "error"); err != nil {
		return nil, err
	}
	of, err := e.chosen(provider, (*database).hasOutbox)
	if err == nil {
		err = onePlace(filter.After, of)
	}
	if err != nil {
		return nil, err
	}
	limit := filter.Limit
	filter.Limit++ // to see whether there is more
	lists, errs := fromEach(of, func(d *database) (list []outbox.Entry, err error) {
		err = d.inOutbox(r.Context(), func(ctx context.Context, s *outboxdb.Store) error {
			if list, err = s.Find(ctx, filter); errors.Is(err, context.DeadlineExceeded) {
				return &problem{http.StatusServiceUnavailable, fmt.Sprintf("provider %q has no answer within %v; a search among published rows"+
					" has to read all of them: name a message, other statuses, or from and until, when it was stored", d.provider.Name(), queryTimeout)}
			}
			return err
		})
		return list, err
	})
	if len(errs) > 0 {
		return nil, first(errs)
	}
	report := messagesReport{[]rowReport{}, map[string]int64{}}
	for _, d := range of {
		name := d.provider.Name()
		list := lists[name]
		if len(list) > limit {
			list = list[:limit]
			report.Next[name] = list[limit-1].Seq
		}
		for _, entry := range list {
			row := newRowReport(name, entry)
			if !visitorOf(r).content() {
				row = row.withoutContent()
			}
			report.Messages = append(report.Messages, row)
		}
	}
	return report, nil
}

// messageReport is the answer of /api/outbox/messages/{message_id}.
type messageReport struct {
	MessageID     string              `json:"message_id"`
	Type          string              `json:"type"`
	Stream        string              `json:"stream"`
	Key           string              `json:"key"`
	CorrelationID *string             `json:"correlation_id"`
	CausationID   *string             `json:"causation_id"`
	OccurredAt    time.Time           `json:"occurred_at"`
	Rows          []rowReport         `json:"rows"`
	Payload       any                 `json:"payload"`
	PayloadHidden *string             `json:"payload_hidden"`
	Consumed      []consumption       `json:"consumed"`
	DeadLetters   []messageDeadLetter `json:"dead_letters"`
	Related       []relatedMessage    `json:"related"` // null: they were not found in time
}

// consumption is that a subscription is done with a message.
type consumption struct {
	Provider     string    `json:"provider"`
	Subscription string    `json:"subscription"`
	At           time.Time `json:"at"`
}

// messageDeadLetter is a message that a subscription could not handle.
type messageDeadLetter struct {
	Provider     string                        `json:"provider"`
	ID           string                        `json:"id"`
	Subscription string                        `json:"subscription"`
	Status       subscription.DeadLetterStatus `json:"status"`
	Reason       string                        `json:"reason"`
	Error        string                        `json:"error"`
}

// relatedMessage has the same correlation.
type relatedMessage struct {
	Provider    string    `json:"provider"`
	MessageID   string    `json:"message_id"`
	Type        string    `json:"type"`
	Stream      string    `json:"stream"`
	CausationID *string   `json:"causation_id"`
	OccurredAt  time.Time `json:"occurred_at"`
}

func (e *Engine) message(r *http.Request) (any, error) {
	id := r.PathValue("message_id")
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	if !isUUID(id) {
		return nil, badRequest("%q is not the id of a message, which is a UUID", id)
	}
	ctx := r.Context()
	of, err := e.chosen("", (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	found, errs := fromEach(of, func(d *database) (m *outbox.Message, err error) {
		err = d.inOutbox(ctx, func(ctx context.Context, s *outboxdb.Store) error {
			if m, err = s.Message(ctx, id); errors.Is(err, outbox.ErrNoMessage) {
				return nil
			}
			return err
		})
		return m, err
	})
	if len(errs) > 0 {
		return nil, first(errs)
	}
	var report *messageReport
	for _, d := range of {
		if m := found[d.provider.Name()]; m != nil {
			report = e.add(r, report, d, m)
		}
	}
	if report == nil {
		return nil, notFound("the outbox has no message %s; one that was published long ago is not kept", id)
	}
	if err := e.consumptions(ctx, report); err != nil {
		return nil, err
	}
	if report.Related = []relatedMessage{}; report.CorrelationID != nil {
		report.Related = related(ctx, of, report)
	}
	if !visitorOf(r).content() {
		report = report.withoutContent()
	}
	return report, nil
}

// add puts the rows of one database into the report. The payload is that of the
// context's own broker: those of partners have less.
func (e *Engine) add(r *http.Request, report *messageReport, d *database, m *outbox.Message) *messageReport {
	if report == nil {
		of := m.Rows[0]
		if i := slices.IndexFunc(m.Rows, func(row outbox.MessageRow) bool { return !d.external(row.TargetBroker) }); i >= 0 {
			of = m.Rows[i]
		}
		report = &messageReport{
			MessageID: of.MessageID, Type: of.MessageType, Stream: of.Stream, Key: of.PartitionKey,
			CorrelationID: orNull(of.CorrelationID), CausationID: orNull(of.CausationID), OccurredAt: of.OccurredAt,
		}
		var hidden string
		report.Payload, hidden = e.payload(r, of.Payload)
		report.PayloadHidden = orNull(hidden)
	}
	for _, row := range m.Rows {
		report.Rows = append(report.Rows, newRowReport(d.provider.Name(), row.Entry))
	}
	return report
}

// external says whether a target is known as a partner's.
func (d *database) external(target string) bool {
	return slices.ContainsFunc(d.lanes, func(l relay.Lane) bool { return l.Target == target && l.External })
}

// consumptions adds what became of a message in every database.
func (e *Engine) consumptions(ctx context.Context, report *messageReport) error {
	type fate struct {
		letters  []subscription.DeadLetter
		consumed []subscription.Consumption
	}
	fates, errs := fromEach(e.databases, func(d *database) (f fate, err error) {
		err = d.inInbox(ctx, func(ctx context.Context, s *subscription.DeadLetters) error {
			list, err := s.List(ctx, subscription.DeadLetterFilter{MessageID: report.MessageID, Statuses: letterStatuses}, subscription.DeadLetterPage{Limit: maxPage})
			if err != nil {
				return err
			}
			f.letters = list.Letters
			consumed, err := subscription.FindConsumptions(ctx, d.provider.Reader(), []string{report.MessageID})
			f.consumed = consumed[report.MessageID]
			return err
		})
		return f, err
	})
	if len(errs) > 0 {
		return first(errs)
	}
	report.Consumed, report.DeadLetters = []consumption{}, []messageDeadLetter{}
	for _, d := range e.databases {
		name := d.provider.Name()
		for _, l := range fates[name].letters {
			report.DeadLetters = append(report.DeadLetters, messageDeadLetter{name, l.ID, l.Subscription, l.Status, l.Reason, l.Error})
		}
		for _, c := range fates[name].consumed {
			// The inbox has what is parked, too, without an effect.
			if !slices.ContainsFunc(fates[name].letters, func(l subscription.DeadLetter) bool {
				return l.Of(c.Subscription) && l.Status != subscription.DeadLetterReplayed
			}) {
				report.Consumed = append(report.Consumed, consumption{name, c.Subscription, c.At})
			}
		}
	}
	return nil
}

// related are the other messages of a correlation, in the order in which they
// were raised; nil if they aren't found in time.
func related(ctx context.Context, of []*database, to *messageReport) []relatedMessage {
	ctx, cancel := context.WithTimeout(ctx, relatedTimeout)
	defer cancel()
	lists, errs := fromEach(of, func(d *database) ([]outbox.Entry, error) {
		return d.store.Find(ctx, outbox.Filter{CorrelationID: *to.CorrelationID, Limit: 2 * maxRelated})
	})
	if len(errs) > 0 {
		return nil
	}
	all, seen := []relatedMessage{}, map[string]bool{to.MessageID: true}
	for _, d := range of {
		for _, entry := range lists[d.provider.Name()] {
			if seen[entry.MessageID] {
				continue // a row of another target
			}
			seen[entry.MessageID] = true
			all = append(all, relatedMessage{d.provider.Name(), entry.MessageID, entry.MessageType, entry.Stream, orNull(entry.CausationID), entry.OccurredAt})
		}
	}
	slices.SortFunc(all, func(a, b relatedMessage) int {
		return cmp.Or(a.OccurredAt.Compare(b.OccurredAt), cmp.Compare(a.MessageID, b.MessageID))
	})
	return all[:min(len(all), maxRelated)]
}

// changeBody is the body of what operators do to rows or dead letters.
type changeBody[F any] struct {
	Provider string  `json:"provider"`
	Filter   F       `json:"filter"`
	Rate     float64 `json:"rate"`
	Limit    int64   `json:"limit"`
	UpTo     int64   `json:"up_to"`
	DryRun   bool    `json:"dry_run"`
	Actor    string  `json:"actor"`
}

type (
	messageChange changeBody[outbox.Filter]
	letterChange  = changeBody[subscription.DeadLetterFilter]
)

// changeable are the statuses in which a row can be changed.
var changeable = map[outbox.Verb][]outbox.Status{
	outbox.VerbRetry:   {outbox.Failed, outbox.Abandoned},
	outbox.VerbAbandon: {outbox.Pending, outbox.Failed},
	outbox.VerbSkip:    {outbox.Abandoned},
}

func (e *Engine) changeMessages(verb outbox.Verb) func(r *http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var asked messageChange
		var notHere []string
		if verb != outbox.VerbRetry {
			notHere = []string{"rate"}
		}
		if err := decode(r, &asked, notHere...); err != nil {
			return nil, err
		}
		if err := checkActor(r, asked.Actor, asked.DryRun); err != nil {
			return nil, err
		}
		if err := asked.check(verb); err != nil {
			return nil, err
		}
		d, err := e.only(asked.Provider, (*database).hasOutbox)
		if err != nil {
			return nil, err
		}
		var result outbox.ChangeResult
		err = d.inOutbox(r.Context(), func(ctx context.Context, s *outboxdb.Store) error {
			result, err = s.Change(ctx, asked.Filter, outbox.Change{
				Verb: verb, Actor: visitorOf(r).actor(asked.Actor), Rate: asked.Rate, Limit: int(asked.Limit), UpTo: asked.UpTo, DryRun: asked.DryRun,
				Retention: e.cfg.Outbox.Retention,
			})
			return e.interrupted(err, result.Changed, asked.DryRun)
		})
		if err == nil && result.Changed > 0 && d.publishing.Load() {
			d.processor.Hint()
		}
		return result, err
	}
}

// check completes what was asked for.
func (c *messageChange) check(verb outbox.Verb) error {
	f := &c.Filter
	switch {
	case f.After != 0 || f.Limit != 0:
		return badRequest("filter has after or limit: bound a change with limit and up_to beside the filter")
	case reflect.ValueOf(*f).IsZero():
		return badRequest("filter is missing or empty, which would be every row: say which")
	case f.MessageID != "" && !isUUID(f.MessageID):
		return badRequest("filter.message_id is %q, which is not a UUID", f.MessageID)
	}
	f.From, f.Until = bounded(f.From), bounded(f.Until)
	for _, s := range f.Statuses {
		if !slices.Contains(outbox.Statuses(), s) {
			return badRequest("filter.statuses has %q: it takes %s", s, oneOf(outbox.Statuses()))
		}
	}
	able := changeable[verb]
	if len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, func(s outbox.Status) bool { return slices.Contains(able, s) }) {
		return badRequest("filter.statuses has none in which a row can be changed so; there are %q", able)
	}
	return checkLimit(c.Limit)
}
