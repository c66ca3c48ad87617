package timerdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// page is how many timers are found at a time if nothing else is said.
	page = 100
	// people is how long somebody waits for an answer.
	people = 30 * time.Second
)

// ErrNoTimer is that there is no timer of an id: it was handled, stopped or set anew, or
// there never was.
var ErrNoTimer = errors.New("there is no such timer")

// match is a condition for the timers that f chooses, After and Limit aside.
func (s *Store) match(f outbox.TimerFilter) (schema.QueryAppender, error) {
	for name, value := range map[string]string{"owner": f.Owner, "name": f.Name, "type": f.Type, "tenant": f.Tenant, "correlation": f.Correlation} {
		if !outbox.Storable(value) {
			return nil, fmt.Errorf("timers: the filter's %s, %q, is no text that a timer can have: it must be UTF-8 without a zero byte", name, value)
		}
	}
	if f.Status != "" && !slices.Contains(outbox.TimerStatuses(), f.Status) {
		return nil, fmt.Errorf("timers: %q is not a status; there are %s", f.Status, strings.Join(outbox.TimerStatuses(), ", "))
	}
	ids := make([]string, len(f.IDs))
	for i, id := range f.IDs {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return nil, fmt.Errorf("timers: %q is not the id of a timer, which is a UUID", id)
		}
		ids[i] = parsed.String()
	}
	return s.conditions(f, ids), nil
}

// always is the condition that every timer meets.
const always = bun.Safe("TRUE")

// conditions are those that f has, and no others: SQLite doesn't use an index for what may be
// compared or not.
func (s *Store) conditions(f outbox.TimerFilter, ids []string) schema.QueryAppender {
	query, args := string(always), []any{}
	add := func(condition string, arg any) {
		query, args = query+" AND "+condition, append(args, arg)
	}
	if len(ids) > 0 {
		add("t.id IN (?)", bun.List(ids))
	}
	for _, equal := range [...]struct{ what, value string }{
		{"t.owner", f.Owner},
		{"t.name", f.Name},
		{"t.status", f.Status},
		{"t.message ->> 'type'", f.Type},
		{"t.message ->> 'tenant_id'", f.Tenant},
		{"t.message ->> 'correlation_id'", f.Correlation},
	} {
		if equal.value != "" {
			add(equal.what+" = ?", equal.value)
		}
	}
	if !f.From.IsZero() {
		add("t.available_at >= ?", dbtime.Value(s.db.Dialect(), f.From))
	}
	if !f.Until.IsZero() {
		add("t.available_at < ?", dbtime.Value(s.db.Dialect(), f.Until))
	}
	if len(args) == 0 {
		return always
	}
	return bun.SafeQuery(query, args...)
}

// finding are the arguments of find.sql.
type finding struct {
	Match, Behind schema.QueryAppender
	Rows          int
}

func (s *Store) finding(f outbox.TimerFilter) (finding, error) {
	match, err := s.match(f)
	if err != nil {
		return finding{}, err
	}
	at, id, err := place(f.After)
	behind := schema.QueryAppender(always)
	if f.After != "" {
		behind = bun.SafeQuery("(t.available_at, t.id) > (?, ?)", at, id)
	}
	return finding{match, behind, f.Limit + 1}, err
}

// Find returns timers by when they are due, a page at a time.
func (s *Store) Find(ctx context.Context, f outbox.TimerFilter) (p outbox.TimerPage, err error) {
	if f.Limit <= 0 {
		f.Limit = page
	}
	p.Timers = []outbox.Timer{}
	args, err := s.finding(f)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, people)
	defer cancel()
	err = dbrows.Each(ctx, s.reader, text("find"), func(scan func(...any) error) error {
		t, err := scanTimer(scan)
		p.Timers = append(p.Timers, t)
		return err
	}, args)
	if err != nil {
		return p, fmt.Errorf("timers: look for them: %w", err)
	}
	if len(p.Timers) > f.Limit {
		p.Timers = p.Timers[:f.Limit]
		last := p.Timers[f.Limit-1]
		p.Next = instant(s.db.Dialect().Name(), last.AvailableAt) + "," + last.ID
	}
	return p, nil
}

func scanTimer(scan func(...any) error) (t outbox.Timer, err error) {
	var at, set, sent dbtime.Time
	err = scan(&t.ID, &t.Owner, &t.Name, &t.Type, &t.Status, &at, &set, &sent, &t.TenantID, &t.CorrelationID, &t.Error)
	t.AvailableAt, t.SetAt = at.Time, set.Time
	if sent.Valid {
		t.SentAt = &sent.Time
	}
	return t, err
}

// CheckAfter says whether a page can begin behind a place.
func CheckAfter(after string) error {
	_, _, err := place(after)
	return err
}

// place reads where a page ends.
func place(after string) (at, id any, err error) {
	if after == "" {
		return nil, nil, nil
	}
	from, last, _ := strings.Cut(after, ",")
	due, wrong := time.Parse(time.RFC3339Nano, from)
	parsed, noID := uuid.Parse(last)
	if wrong != nil || due.Year() < 1 || noID != nil {
		return nil, nil, fmt.Errorf("timers: %q is not the end of a page: take it from the page before", after)
	}
	return from, parsed.String(), nil
}

// Show returns a timer with its message, or [ErrNoTimer].
func (s *Store) Show(ctx context.Context, id string) (*outbox.TimerDetails, error) {
	p, err := s.Find(ctx, outbox.TimerFilter{IDs: []string{id}, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(p.Timers) == 0 {
		return nil, fmt.Errorf("timers: %w: %s", ErrNoTimer, id)
	}
	d := &outbox.TimerDetails{Timer: p.Timers[0]}
	var message string
	switch err := s.reader.QueryRowContext(ctx, text("message"), d.ID).Scan(&message, &d.Payload); {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("timers: %w: %s", ErrNoTimer, id)
	case err != nil:
		return nil, fmt.Errorf("timers: read %s: %w", id, err)
	}
	if err := json.Unmarshal([]byte(message), &d.Message); err != nil && d.Status != outbox.TimerBroken {
		return nil, fmt.Errorf("timers: the message of %s is not what was stored: %w", id, err)
	}
	return d, nil
}
