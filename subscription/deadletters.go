package subscription

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

// DeadLetterStatus is what becomes of a dead letter. Those that are parked, held,
// waiting, early or in replay are open: their messages have had no effect yet, and may.
type DeadLetterStatus string

const (
	// DeadLetterParked waits for an operator.
	DeadLetterParked DeadLetterStatus = "parked"
	// DeadLetterHeld waits for the messages of its key before it, and continues by
	// itself when they are replayed or discarded.
	DeadLetterHeld DeadLetterStatus = "held"
	// DeadLetterWaiting is handled when its time has come, by itself: its handler wants
	// it later, or failed, and too many others waited to keep it in hand meanwhile.
	DeadLetterWaiting DeadLetterStatus = "waiting"
	// DeadLetterEarly waits for its process to begin, and is handled then. When it was
	// there for the process's patience it counts as one that needs somebody.
	DeadLetterEarly DeadLetterStatus = "early"
	// DeadLetterReplay is handled again when its time has come and nothing of its
	// key is before it.
	DeadLetterReplay DeadLetterStatus = "replay"
	// DeadLetterReplayed was handled.
	DeadLetterReplayed DeadLetterStatus = "replayed"
	// DeadLetterDiscarded never will be.
	DeadLetterDiscarded DeadLetterStatus = "discarded"
)

const isOpen = "d." + open

// ErrNoDeadLetter is the error for an id that no dead letter of the database has.
var ErrNoDeadLetter = errors.New("subscription: there is no dead letter of this id")

// DeadLetters is the table of dead letters of one database, as operators see it.
// The runners of a subscription do what is asked for here; they need not be of
// this process. It is safe for concurrent use.
type DeadLetters struct{ provider uow.Provider }

// NewDeadLetters returns the dead letters of a provider's database.
func NewDeadLetters(p uow.Provider) *DeadLetters { return &DeadLetters{provider: p} }

// Check returns an error that names the remedy unless the tables are at this
// build's version.
func (s *DeadLetters) Check(ctx context.Context) error {
	return Migrations().Check(ctx, s.provider.Reader())
}

// DeadLetterFilter chooses dead letters. An empty field does not restrict; all
// that are set must hold.
type DeadLetterFilter struct {
	Subscription string   `json:"subscription,omitempty"`
	IDs          []string `json:"ids,omitempty"` // of dead letters, not of messages
	MessageID    string   `json:"message_id,omitempty"`
	// Key is the messages' partition key.
	Key  string `json:"key,omitempty"`
	Type string `json:"type,omitempty"`
	// ErrorType is the Go type of the error.
	ErrorType string `json:"error_type,omitempty"`
	// Error is a part of the error's text.
	Error  string `json:"error,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Statuses default to what the method says.
	Statuses []DeadLetterStatus `json:"statuses,omitempty"`
	// From and Until bound the time of the last attempt; Until is the first that is
	// too late.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// match is the filter as a condition on dead_letters AS d.
func (f DeadLetterFilter) match(d schema.Dialect) (schema.QueryWithArgs, error) {
	where, args := []string{"TRUE"}, []any(nil)
	add := func(condition string, arg any) { where, args = append(where, condition), append(args, arg) }
	for _, equal := range []struct{ column, value string }{
		{"subscription", f.Subscription}, {"message_id", f.MessageID}, {"partition_key", f.Key}, {"message_type", f.Type}, {"error_type", f.ErrorType}, {"reason", f.Reason},
	} {
		if equal.value != "" {
			add("d."+equal.column+" = ?", equal.value)
		}
	}
	if len(f.IDs) > 0 {
		ids, err := f.ids()
		if err != nil {
			return schema.QueryWithArgs{}, err
		}
		add("d.id IN (?)", bun.List(ids))
	}
	if f.Error != "" {
		position := "strpos"
		if d.Name() == dialect.SQLite {
			position = "instr"
		}
		add(position+"(d.error, ?) > 0", f.Error)
	}
	if len(f.Statuses) > 0 {
		add("d.status IN (?)", bun.List(f.Statuses))
	}
	if !f.From.IsZero() {
		add("d.last_at >= ?", dbtime.Value(d, f.From))
	}
	if !f.Until.IsZero() {
		add("d.last_at < ?", dbtime.Value(d, f.Until))
	}
	return bun.SafeQuery(strings.Join(where, " AND "), args...), nil
}

// ids are the filter's ids as the database writes them.
func (f DeadLetterFilter) ids() ([]string, error) {
	ids := make([]string, len(f.IDs))
	for i, id := range f.IDs {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return nil, fmt.Errorf("subscription: %q is not the id of a dead letter, which is a UUID: %w", id, err)
		}
		ids[i] = parsed.String()
	}
	return ids, nil
}

// DeadLetter is a message that was set aside, without what it carried.
type DeadLetter struct {
	ID  string `json:"id"`
	Seq int64  `json:"seq"` // the order of parking

	Subscription string `json:"subscription"`
	Topic        string `json:"topic"`
	Key          string `json:"key"`
	MessageID    string `json:"message_id"`
	Type         string `json:"type"` // "": not known

	Status DeadLetterStatus `json:"status"`
	Reason string           `json:"reason"`
	// Needs is what a build has to read to handle it: "Ordering.OrderPlaced.v2", or
	// "stored:library::book.v2" of what its handler loads; "": nothing in particular. The
	// first runner of such a build handles it by itself.
	Needs     string    `json:"needs"`
	Error     string    `json:"error"`
	ErrorType string    `json:"error_type"`
	Attempts  int       `json:"attempts"`
	FirstAt   time.Time `json:"first_at"`
	LastAt    time.Time `json:"last_at"`
	// Holds says that later messages of the key wait for this one.
	Holds   bool       `json:"holds"`
	Replays int        `json:"replays"` // how often a replay was asked for
	DueAt   *time.Time `json:"due_at"`  // of the replay; nil: at once
}

// Of says whether the message came by a subscription: that of the dead letter, or one of
// the streams of a process, which share theirs and are named after process and topic.
func (l DeadLetter) Of(subscription string) bool {
	return subscription == l.Subscription || subscription == l.Subscription+"."+l.Topic
}

// Open says whether its message has had no effect yet, and may have one.
func (l DeadLetter) Open() bool {
	return l.Status != DeadLetterReplayed && l.Status != DeadLetterDiscarded
}

// DeadLetterDetails is all of a dead letter, and its place in its key.
type DeadLetterDetails struct {
	DeadLetter
	Body    []byte            `json:"body"` // as received; nil: the message had none
	Headers map[string]string `json:"headers"`
	Stack   string            `json:"stack"` // of a panic
	// Before and Behind are how many open ones of its key were parked earlier and
	// later, and Head is the first of those before it.
	Before int64  `json:"before"`
	Behind int64  `json:"behind"`
	Head   string `json:"head"`
}

const letterColumns = "d.id, d.seq, d.subscription, d.topic, d.partition_key, d.message_id, COALESCE(d.message_type, ''), d.status, d.reason," +
	" COALESCE(d.needs, ''), d.error, COALESCE(d.error_type, ''), d.attempts, d.first_at, d.last_at, d.holds, d.replays, d.due_at"

// scan reads letterColumns, and more columns after them.
func (l *DeadLetter) scan(scan func(...any) error, more ...any) error {
	var first, last, due dbtime.Time
	err := scan(append([]any{
		&l.ID, &l.Seq, &l.Subscription, &l.Topic, &l.Key, &l.MessageID, &l.Type, &l.Status, &l.Reason,
		&l.Needs, &l.Error, &l.ErrorType, &l.Attempts, &first, &last, &l.Holds, &l.Replays, &due,
	}, more...)...)
	l.FirstAt, l.LastAt = first.Time, last.Time
	if due.Valid {
		l.DueAt = &due.Time
	}
	return err
}

// DeadLetterPage is a part of a list.
type DeadLetterPage struct {
	// After is the Next of the page before.
	After int64
	// Limit is the size of a page. Defaults to 100.
	Limit int
}

// DeadLetterList is a page, and how much there is altogether.
type DeadLetterList struct {
	Letters []DeadLetter `json:"dead_letters"`
	Total   int64        `json:"total"` // that the filter chooses, on all pages
	Next    int64        `json:"next"`  // the After of the next page; 0: this is the last one
}

// List returns dead letters in the order of Seq, a page at a time. Statuses
// default to those that are open.
func (s *DeadLetters) List(ctx context.Context, f DeadLetterFilter, page DeadLetterPage) (DeadLetterList, error) {
	list := DeadLetterList{Letters: []DeadLetter{}}
	if page.Limit <= 0 {
		page.Limit = 100
	}
	if len(f.Statuses) == 0 {
		f.Statuses = []DeadLetterStatus{DeadLetterParked, DeadLetterHeld, DeadLetterWaiting, DeadLetterEarly, DeadLetterReplay}
	}
	db := s.provider.Reader()
	match, err := f.match(db.Dialect())
	if err != nil {
		return list, err
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM dead_letters AS d WHERE ?", match).Scan(&list.Total); err != nil {
		return list, fmt.Errorf("subscription: count dead letters: %w", err)
	}
	err = dbrows.Each(ctx, db, "SELECT "+letterColumns+" FROM dead_letters AS d WHERE ? AND d.seq > ? ORDER BY d.seq LIMIT ?",
		func(scan func(...any) error) error {
			if len(list.Letters) == page.Limit {
				list.Next = list.Letters[page.Limit-1].Seq
				return nil
			}
			var l DeadLetter
			err := l.scan(scan)
			list.Letters = append(list.Letters, l)
			return err
		}, match, page.After, page.Limit+1)
	if err != nil {
		return list, fmt.Errorf("subscription: list dead letters: %w", err)
	}
	return list, nil
}

// Show returns all of one dead letter. If there is none of this id, the error
// is [ErrNoDeadLetter].
func (s *DeadLetters) Show(ctx context.Context, id string) (*DeadLetterDetails, error) {
	db := s.provider.Reader()
	match, err := DeadLetterFilter{IDs: []string{id}}.match(db.Dialect())
	if err != nil {
		return nil, err
	}
	const ofKey = "FROM dead_letters AS d WHERE d.subscription = l.subscription AND d.key_id = l.key_id AND " + isOpen
	var l DeadLetterDetails
	var headers []byte
	row := db.QueryRowContext(ctx, "SELECT "+strings.ReplaceAll(letterColumns, "d.", "l.")+", l.body, l.headers, COALESCE(l.stack, ''),"+
		" (SELECT count(*) "+ofKey+" AND d.seq < l.seq), (SELECT count(*) "+ofKey+" AND d.seq > l.seq),"+
		" COALESCE((SELECT CAST(d.id AS text) "+ofKey+" AND d.seq < l.seq ORDER BY d.seq LIMIT 1), '')"+
		" FROM (SELECT * FROM dead_letters AS d WHERE ?) AS l", match)
	err = l.scan(row.Scan, &l.Body, &headers, &l.Stack, &l.Before, &l.Behind, &l.Head)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %s", ErrNoDeadLetter, id)
	}
	if err == nil {
		err = json.Unmarshal(headers, &l.Headers)
	}
	if err != nil {
		return nil, fmt.Errorf("subscription: read dead letter %s: %w", id, err)
	}
	return &l, nil
}

// DeadLetterCount is how many dead letters are alike.
type DeadLetterCount struct {
	Subscription string           `json:"subscription"`
	Type         string           `json:"type"`
	Reason       string           `json:"reason"`
	ErrorType    string           `json:"error_type"`
	Status       DeadLetterStatus `json:"status"`
	Count        int64            `json:"count"`
	FirstAt      time.Time        `json:"first_at"` // the first attempt at any of them
	LastAt       time.Time        `json:"last_at"`
}

// Summary counts dead letters of all statuses by what they have in common, the
// most frequent of each subscription first. from and until bound the time of the
// last attempt; the zero time is no bound.
func (s *DeadLetters) Summary(ctx context.Context, from, until time.Time) ([]DeadLetterCount, error) {
	db := s.provider.Reader()
	match, err := DeadLetterFilter{From: from, Until: until}.match(db.Dialect())
	if err != nil {
		return nil, err
	}
	counts := []DeadLetterCount{}
	err = dbrows.Each(ctx, db, "SELECT d.subscription, COALESCE(d.message_type, ''), d.reason, COALESCE(d.error_type, ''), d.status, count(*), min(d.first_at), max(d.last_at)"+
		" FROM dead_letters AS d WHERE ? GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 6 DESC, 2, 3, 4, 5",
		func(scan func(...any) error) error {
			var c DeadLetterCount
			var first, last dbtime.Time
			err := scan(&c.Subscription, &c.Type, &c.Reason, &c.ErrorType, &c.Status, &c.Count, &first, &last)
			c.FirstAt, c.LastAt = first.Time, last.Time
			counts = append(counts, c)
			return err
		}, match)
	if err != nil {
		return nil, fmt.Errorf("subscription: count dead letters: %w", err)
	}
	return counts, nil
}

// DeadLetterAction is what an operator did.
type DeadLetterAction struct {
	ID           int64           `json:"id"`
	At           time.Time       `json:"at"`
	Actor        string          `json:"actor"`
	Action       string          `json:"action"`       // "replay", "discard", "purge" or "retire"
	Subscription string          `json:"subscription"` // "": of several
	Filter       json.RawMessage `json:"filter"`       // with the rate and the bounds that were given
	Messages     int64           `json:"messages"`     // of "retire": all rows of the subscription
}

// Actions returns what operators did, the last first, at most limit.
func (s *DeadLetters) Actions(ctx context.Context, limit int) ([]DeadLetterAction, error) {
	actions := []DeadLetterAction{}
	err := dbrows.Each(ctx, s.provider.Reader(), "SELECT id, at, actor, action, subscription, filter, messages FROM dead_letter_actions ORDER BY id DESC LIMIT ?",
		func(scan func(...any) error) error {
			var a DeadLetterAction
			var at dbtime.Time
			var filter []byte
			err := scan(&a.ID, &at, &a.Actor, &a.Action, &a.Subscription, &filter, &a.Messages)
			a.At, a.Filter = at.Time, filter
			actions = append(actions, a)
			return err
		}, limit)
	if err != nil {
		return nil, fmt.Errorf("subscription: read dead_letter_actions: %w", err)
	}
	return actions, nil
}
