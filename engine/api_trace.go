package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/correlation"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// maxTraced is how many messages of a correlation are in an answer.
	maxTraced = 200
	// maxTracedRows is how many rows of each kind are read of a database: a message has
	// one for each broker.
	maxTracedRows = 2 * maxTraced
	// traceTurn is how long one question of several to a database may take: another one
	// that doesn't answer leaves time for the rest.
	traceTurn = 1500 * time.Millisecond
	// tracePatience bounds the search among published rows, which may go through all.
	tracePatience = time.Second
)

// traceReport is the answer of /api/traces/{correlation_id}: a tree by cause, as a list
// in which causes come first.
type traceReport struct {
	CorrelationID string         `json:"correlation_id"`
	Messages      []tracedReport `json:"messages"`
	LeftOut       int            `json:"left_out"` // later messages, beyond those that an answer has
	Missing       []string       `json:"missing"`  // what was not read, and why
}

type tracedReport struct {
	MessageID   string              `json:"message_id"`
	Below       *string             `json:"below"` // the message that it is drawn below; null: none
	Kind        string              `json:"kind"`
	State       string              `json:"state"`
	Context     string              `json:"context"` // "": not known
	Type        string              `json:"type"`    // "": not known
	Stream      string              `json:"stream"`
	OccurredAt  *time.Time          `json:"occurred_at"`
	Rows        []rowReport         `json:"rows"`
	Timer       *timerReport        `json:"timer"`
	Consumed    []consumption       `json:"consumed"`
	DeadLetters []messageDeadLetter `json:"dead_letters"`
	Processes   []tracedProcess     `json:"processes"`
}

// tracedProcess heard a message, or set it aside. ID is null where it can't be known
// which one it was, and Status where there is none any more.
type tracedProcess struct {
	Provider string  `json:"provider"`
	Process  string  `json:"process"`
	ID       *string `json:"id"`
	Status   *string `json:"status"`
}

func (e *Engine) trace(r *http.Request) (any, error) {
	id := r.PathValue("correlation_id")
	p := paramsOf(r)
	if err := checkText(id); err != nil {
		p.fail("correlation_id %v", err)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	of, err := e.chosen("", (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	return e.traced(r, of, id)
}

// traceOfMessage is for those, too, who may not search by correlation.
func (e *Engine) traceOfMessage(r *http.Request) (any, error) {
	id := r.PathValue("message_id")
	if err := paramsOf(r).check(); err != nil {
		return nil, err
	}
	if !isUUID(id) {
		return nil, badRequest("%q is not the id of a message, which is a UUID", id)
	}
	of, err := e.chosen("", (*database).hasOutbox)
	if err != nil {
		return nil, err
	}
	found, errs := fromEach(of, func(d *database) (m *outbox.Message, err error) {
		err = d.traceTurn(r.Context(), func(ctx context.Context) error {
			if m, err = d.store.Message(ctx, id); errors.Is(err, outbox.ErrNoMessage) {
				return nil
			}
			return err
		})
		return m, err
	})
	for _, d := range of {
		if m := found[d.provider.Name()]; m != nil {
			return e.traced(r, of, m.Rows[0].CorrelationID)
		}
	}
	if len(errs) > 0 {
		return nil, first(errs)
	}
	return nil, notFound("the outbox has no message %s; one that was published long ago is not kept", id)
}

// traceTurn calls do when it is the database's turn, if its tables are those of this build.
func (d *database) traceTurn(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, traceTurn)
	defer cancel()
	return d.inOutbox(ctx, func(ctx context.Context, _ *outboxdb.Store) error { return do(ctx) })
}

func (e *Engine) traced(r *http.Request, of []*database, id string) (*traceReport, error) {
	from := make([]correlation.Source, len(of))
	for i, d := range of {
		from[i] = correlation.Source{Provider: d.provider, Ask: d.traceTurn}
	}
	all, errs := correlation.Read(r.Context(), from, id, correlation.Options{
		Limit: maxTracedRows, Most: maxTraced, Patience: tracePatience, More: "`waybill trace` reads more",
	})
	if len(of) > 0 && len(errs) == len(of) {
		return nil, first(errs)
	}
	report := &traceReport{CorrelationID: id, Messages: []tracedReport{}, LeftOut: all.LeftOut, Missing: all.Missing}
	for _, provider := range slices.Sorted(maps.Keys(errs)) {
		report.Missing = append(report.Missing, fmt.Sprintf("Provider %s is not all here: %s.", provider, e.tell(r, errs[provider]).text))
	}
	all.All(func(m, below *correlation.Message) {
		report.Messages = append(report.Messages, newTracedReport(m, below))
	})
	if !visitorOf(r).content() {
		report.withoutContent()
	}
	return report, nil
}

func newTracedReport(m, below *correlation.Message) tracedReport {
	t := tracedReport{
		MessageID: m.MessageID, Kind: m.Kind, State: m.State, Context: m.Context(), Type: m.Type, Stream: m.Stream, OccurredAt: m.OccurredAt,
		Rows: []rowReport{}, Consumed: []consumption{}, DeadLetters: []messageDeadLetter{}, Processes: []tracedProcess{},
	}
	if below != nil {
		t.Below = &below.MessageID
	}
	for _, row := range m.Rows {
		t.Rows = append(t.Rows, newRowReport(row.Provider, row.Entry))
	}
	if m.Timer != nil {
		timer := newTimerReport(m.Timer.Provider, m.Timer.Timer)
		t.Timer = &timer
	}
	for _, h := range m.Handled {
		t.Consumed = append(t.Consumed, consumption(h))
	}
	for _, l := range m.DeadLetters {
		t.DeadLetters = append(t.DeadLetters, messageDeadLetter{l.Provider, l.ID, l.Subscription, l.Status, l.Reason, l.Error})
	}
	for _, p := range m.Processes {
		t.Processes = append(t.Processes, tracedProcess{p.Provider, p.Process, orNull(p.ID), orNull(p.Status)})
	}
	return t
}

// withoutContent keeps what there is, its types, states and ids of messages.
func (t *traceReport) withoutContent() {
	t.CorrelationID = notShown
	for i := range t.Messages {
		m := &t.Messages[i]
		if m.Stream != "" {
			m.Stream = notShown
		}
		for j := range m.Rows {
			m.Rows[j] = m.Rows[j].withoutContent()
		}
		if m.Timer != nil {
			timer := m.Timer.withoutContent()
			m.Timer = &timer
		}
		for j := range m.DeadLetters {
			m.DeadLetters[j].Error = *hide(&m.DeadLetters[j].Error)
		}
		for j := range m.Processes {
			if m.Processes[j].ID != nil {
				instead := notShown
				m.Processes[j].ID = &instead
			}
		}
	}
}
