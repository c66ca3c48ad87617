package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/internal/liveness"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// maxPage is how many rows a list shows at a time, at most.
const maxPage = 10000

var (
	rowWords = map[outbox.Status]string{
		outbox.Pending:    "waits to be published",
		outbox.Processing: "a member has it",
		outbox.Published:  "the broker has acknowledged it",
		outbox.Failed:     "is tried again when it is due",
		outbox.Abandoned:  "is not tried again unless an operator says so",
	}
	classWords = map[string]string{
		"unavailable": "nothing was handed over",
		"transient":   "refused for now",
		"unknown":     "unknown: it may have arrived",
		"permanent":   "can never be sent as it is",
		"crash":       "its processes died while publishing it",
	}
)

// liveWords say of a process that holds a lease whether it is alive.
var liveWords = map[liveness.State]string{
	liveness.Alive: "; its process is alive on this host",
	liveness.Dead:  "; its process on this host is dead: an engine on this host takes it over at once, on another host when the lease has run out",
}

// rowsFilter is what chooses rows of the outbox.
type rowsFilter struct {
	Provider    string       `placeholder:"NAME" help:"Only in this provider of the configuration file."`
	Target      string       `placeholder:"BROKER" help:"Only for this target broker."`
	Status      []string     `enum:"pending,processing,published,failed,abandoned" placeholder:"STATUS" help:"Only in this status: pending, processing, published, failed or abandoned. May be repeated."`
	Held        bool         `help:"Only abandoned rows that hold their key."`
	Stale       bool         `help:"Only rows claimed under a lease that has expired."`
	Seq         []int64      `placeholder:"SEQ" help:"Only these rows. May be repeated."`
	Message     string       `placeholder:"ID" help:"Only of this message."`
	Type        typeName     `placeholder:"TYPE" help:"Only of this message type, as in Ordering.OrderPlaced.v1."`
	Stream      streamName   `placeholder:"STREAM" help:"Only of this stream, as in ordering::order-17."`
	Category    categoryName `placeholder:"CATEGORY" help:"Only of this stream category, as in ordering::order."`
	Key         string       `help:"Only of this partition key."`
	Correlation string       `placeholder:"ID" help:"Only with this correlation id."`
	Causation   string       `placeholder:"ID" help:"Only what this message caused."`
	Error       string       `placeholder:"TEXT" help:"Only with this in the last error's text."`
	Class       string       `enum:",unavailable,transient,unknown,permanent,crash" default:"" placeholder:"CLASS" help:"Only with a last failure of this class: unavailable, transient, unknown, permanent or crash."`
	From        moment       `placeholder:"TIME" help:"Only stored at this time or later: 2026-01-02T15:04:05Z, or 2h for two hours ago."`
	Until       moment       `placeholder:"TIME" help:"Only stored before this time."`
}

func (f rowsFilter) filter() outbox.Filter {
	var statuses []outbox.Status
	for _, s := range f.Status {
		statuses = append(statuses, outbox.Status(s))
	}
	return outbox.Filter{
		Seqs: f.Seq, MessageID: f.Message, Target: f.Target, Type: string(f.Type), Stream: string(f.Stream), Category: string(f.Category), PartitionKey: f.Key,
		CorrelationID: f.Correlation, CausationID: f.Causation, FailureClass: f.Class, Error: f.Error, Statuses: statuses,
		Held: f.Held, Stale: f.Stale, From: f.From.Time, Until: f.Until.Time,
	}
}

type listRowsCmd struct {
	rowsFilter
	Limit int   `default:"50" help:"How many at a time."`
	After int64 `placeholder:"SEQ" help:"Continue after this one; the previous page prints it."`
}

// rowsPage is a part of a list.
type rowsPage struct {
	Messages []outbox.Entry `json:"messages"`
	Next     int64          `json:"next"` // the --after of the next page; 0: this is the last one
}

func (l listRowsCmd) Run(ctx context.Context, c *cli, stdout out, stderr news) error {
	if err := checkLimit(l.Limit, maxPage); err != nil {
		return err
	}
	f := l.filter()
	nothing := "No rows match."
	if len(f.Statuses)+len(f.Seqs) == 0 && f.MessageID == "" {
		nothing = "No unpublished rows match; --status published searches the published ones."
		f.Statuses = slices.DeleteFunc(outbox.Statuses(), func(s outbox.Status) bool { return s == outbox.Published })
	}
	f.After, f.Limit = l.After, l.Limit+1
	all := map[string]rowsPage{}
	err := c.eachOutbox(ctx, l.Provider, func(_ *databases, provider string, s *outboxdb.Store) error {
		found, err := s.Find(ctx, f)
		page := rowsPage{Messages: append([]outbox.Entry{}, found[:min(l.Limit, len(found))]...)}
		if len(found) > l.Limit {
			page.Next = page.Messages[l.Limit-1].Seq
		}
		if err == nil {
			all[provider] = page
		}
		return err
	})
	if c.JSON {
		return errors.Join(err, writeJSON(stdout, map[string]any{"providers": all}))
	}
	t := newTable(stdout, len(all), "SEQ", "MESSAGE", "TARGET", "STATUS", "TYPE", "KEY", "ATTEMPTS", "STORED", "ERROR")
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		for _, e := range all[provider].Messages {
			t.row(provider, strconv.FormatInt(e.Seq, 10), e.MessageID, e.TargetBroker, statusOf(e), e.MessageType, oneLine(e.PartitionKey),
				fmt.Sprintf("%d of %d", e.Attempts, e.MaxAttempts), when(e.CreatedAt), oneLine(e.LastError))
		}
	}
	err = t.flush(err, nothing)
	goOn(stderr, all, func(p rowsPage) (said string, after any, more bool) {
		return "There are more", p.Next, p.Next != 0
	})
	return err
}

func statusOf(e outbox.Entry) string {
	if e.Held {
		return string(e.Status) + ", held"
	}
	return string(e.Status)
}

type showRowCmd struct {
	Which   string `arg:"" name:"message" help:"The message's id, or the seq of one of its rows."`
	Payload bool   `help:"Include what is sent: the payload."`
}

// shownRow is a row as it is written in JSON.
type shownRow struct {
	Provider string `json:"provider"`
	outbox.Entry
	Stale         bool            `json:"stale"`
	Before        int64           `json:"before"`            // rows of its key that come first
	Head          *outbox.Entry   `json:"head"`              // the first of these
	Payload       json.RawMessage `json:"payload,omitempty"` // if it is JSON
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`

	Owner      string     `json:"owner"`       // member that holds its partition; "": nobody, or the row is finished
	OwnedUntil *time.Time `json:"owned_until"` // end of its lease
	OwnerState string     `json:"owner_state"` // "alive" or "dead", if it can be told from this host; otherwise "unknown", and "" without an owner
}

func (s showRowCmd) Run(ctx context.Context, c *cli, stdout out) error {
	seq, err := strconv.ParseInt(s.Which, 10, 64)
	bySeq := err == nil
	if _, err := uuid.Parse(s.Which); err != nil && !bySeq {
		return &usageError{fmt.Errorf("%q is neither the id of a message, which is a UUID, nor the seq of a row, which is a number", s.Which)}
	}
	found := map[string]*outbox.Message{}
	err = c.eachOutbox(ctx, "", func(_ *databases, provider string, store *outboxdb.Store) error {
		id := s.Which
		if bySeq {
			rows, err := store.Find(ctx, outbox.Filter{Seqs: []int64{seq}})
			if err != nil || len(rows) == 0 {
				return err
			}
			id = rows[0].MessageID
		}
		m, err := store.Message(ctx, id)
		if errors.Is(err, outbox.ErrNoMessage) {
			return nil
		}
		if err == nil {
			found[provider] = m
		}
		return err
	})
	switch {
	case len(found) == 0 && err == nil && bySeq:
		return fmt.Errorf("there is no row %d; `waybill outbox list` has those that are not published, and `waybill doctor` finds those whose body was removed", seq)
	case len(found) == 0 && err == nil:
		return fmt.Errorf("no row is of message %s: it was never stored here, or its rows were removed when they had expired", s.Which)
	case err != nil && len(found) == 0:
		return err
	case c.JSON:
		return errors.Join(err, s.writeJSON(stdout, found))
	}
	for i, provider := range slices.Sorted(maps.Keys(found)) {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		s.print(stdout, provider, found[provider])
	}
	return err
}

func (s showRowCmd) writeJSON(stdout out, found map[string]*outbox.Message) error {
	rows := []shownRow{}
	for _, provider := range slices.Sorted(maps.Keys(found)) {
		for _, r := range found[provider].Rows {
			row := shownRow{Provider: provider, Entry: r.Entry, Stale: r.Stale, Before: r.Before, Head: r.Head}
			if r.Owner != "" {
				row.Owner, row.OwnedUntil, row.OwnerState = r.Owner, &r.OwnedUntil, liveness.Here().State(r.Owner).String()
			}
			switch {
			case !s.Payload:
			case utf8.Valid(r.Payload) && json.Valid(r.Payload):
				row.Payload = r.Payload
			default:
				row.PayloadBase64 = r.Payload
			}
			rows = append(rows, row)
		}
	}
	return writeJSON(stdout, map[string]any{"message_id": rows[0].MessageID, "rows": rows})
}

// print is for people.
func (s showRowCmd) print(w io.Writer, provider string, m *outbox.Message) {
	field := fields(w, 16)
	e := m.Rows[0].Entry
	field("Message", "%s, provider %s", m.MessageID, provider)
	field("Type", "%s", e.MessageType)
	field("Stream", "%s, version %d", e.Stream, e.AggregateVersion)
	field("Key", "%s, partition %d", e.PartitionKey, e.Partition)
	optional(field, "Correlation", e.CorrelationID)
	optional(field, "Causation", e.CausationID)
	optional(field, "Tenant", e.TenantID)
	optional(field, "Trace", e.Traceparent)
	field("Raised", "%s (%s ago)", when(e.OccurredAt), ago(m.Now, e.OccurredAt))
	for _, r := range m.Rows {
		fmt.Fprintln(w)
		s.printRow(w, field, m.Now, r)
	}
}

func (s showRowCmd) printRow(w io.Writer, field func(name, format string, args ...any), now time.Time, r outbox.MessageRow) {
	field("To "+r.TargetBroker, "%s: %s", statusOf(r.Entry), rowWords[r.Status])
	field("  Row", "%d, stored %s (%s ago)", r.Seq, when(r.CreatedAt), ago(now, r.CreatedAt))
	optional(field, "  Topic", r.Topic)
	if r.Priority != 0 {
		field("  Priority", "%d", r.Priority)
	}
	if r.LastAttemptAt != nil {
		field("  Attempts", "%d of %d, the last %s (%s ago)", r.Attempts, r.MaxAttempts, when(*r.LastAttemptAt), ago(now, *r.LastAttemptAt))
	} else {
		field("  Attempts", "none")
	}
	if r.Losses > 0 {
		field("  Losses", "%d processes in a row died while publishing it", r.Losses)
	}
	fateOf(field, now, r)
	if r.Head != nil {
		field("  Waits for", "row %d of its key, message %s, which is %s%s", r.Head.Seq, r.Head.MessageID, statusOf(*r.Head), due(now, *r.Head))
		if r.Before > 1 {
			field("", "and %d more of its key", r.Before-1)
		}
	}
	optional(field, "  Error", r.LastError)
	if r.FailureClass != "" {
		field("  Class", "%s: %s", r.FailureClass, classWords[r.FailureClass])
	}
	if r.ExpiresAt != nil && r.ExpiresAt.After(now) {
		field("  Kept until", "%s, for %s", when(*r.ExpiresAt), ago(*r.ExpiresAt, now))
	} else if r.ExpiresAt != nil {
		field("  Kept until", "%s: it is removed soon", when(*r.ExpiresAt))
	}
	if s.Payload {
		printBody(w, field, "  Payload", ", "+cmp.Or(r.ContentType, "of no known type"), r.Payload)
	}
	printRemedy(w, r)
}

func optional(field func(name, format string, args ...any), name, value string) {
	if value != "" {
		field(name, "%s", value)
	}
}

// fateOf is what becomes of a row, or has.
func fateOf(field func(name, format string, args ...any), now time.Time, r outbox.MessageRow) {
	switch {
	case r.Status == outbox.Pending || r.Status == outbox.Failed:
		field("  Next attempt", "%s", next(now, r))
		field("  Partition", "%s", holder(now, r))
	case r.Status == outbox.Processing && r.Stale:
		field("  In hand of", "%s, whose lease has run out: whoever takes its partition publishes it again", r.LockedBy)
	case r.Status == outbox.Processing:
		field("  In hand of", "%s%s", r.LockedBy, until(now, r.LockedUntil))
	case r.Status == outbox.Published && r.PublishedAt != nil:
		field("  Published", "%s (%s after it was stored)", when(*r.PublishedAt), ago(*r.PublishedAt, r.CreatedAt))
	}
}

// next is when a row is tried again.
func next(now time.Time, r outbox.MessageRow) string {
	when := when(r.AvailableAt) + ", in " + ago(r.AvailableAt, now)
	if !r.AvailableAt.After(now) {
		when = "due now"
	}
	if r.Head != nil {
		when += ", behind the rows of its key"
	}
	return when
}

// holder is who publishes what waits in a row's partition.
func holder(now time.Time, r outbox.MessageRow) string {
	if r.Owner == "" {
		return fmt.Sprintf("%d, which has no owner: the next engine that has this broker takes it", r.Partition)
	}
	return fmt.Sprintf("%d, held by %s until %s (%s)%s", r.Partition, r.Owner, when(r.OwnedUntil), ago(r.OwnedUntil, now), liveWords[liveness.Here().State(r.Owner)])
}

// due says in how long a row that is to be tried again is.
func due(now time.Time, e outbox.Entry) string {
	switch {
	case e.Status != outbox.Failed && e.Status != outbox.Pending:
		return ""
	case e.AvailableAt.After(now):
		return ", due in " + ago(e.AvailableAt, now)
	}
	return ", due now"
}

func until(now time.Time, end *time.Time) string {
	if end == nil {
		return ""
	}
	return fmt.Sprintf(", by a lease until %s at least (%s)", when(*end), ago(*end, now))
}

// printRemedy says what can be done about a row that is stuck.
func printRemedy(w io.Writer, r outbox.MessageRow) {
	say := func(verb, what string) {
		fmt.Fprintf(w, "  waybill outbox %s --seq %d   %s\n", verb, r.Seq, what)
	}
	switch {
	case r.Held:
		say("retry", "tries it again, first of its key")
		say("skip ", "releases the rows behind it")
	case r.Status == outbox.Abandoned:
		say("retry", "tries it again, after what has followed it in its key")
	case r.Status == outbox.Failed:
		say("retry  ", "tries it again at once")
		say("abandon", "gives it up")
	}
}

// ago is the time from one to a later one, to be read at a glance.
func ago(later, earlier time.Time) string { return glance(later.Sub(earlier)) }
