package outboxdb

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/outbox"
)

// Insert is the one statement that stores rows, in their order, on either database:
// bodies, queue rows, and the lane of a target that has none. It does not run it: the
// unit of work sends it with its others.
//
// Neither database can store a text with a NUL byte, and PostgreSQL none that isn't
// UTF-8: such a row is an error that names the field.
func Insert(rows []outbox.Row) schema.QueryAppender { return insert(rows) }

type insert []outbox.Row

var _ schema.QueryAppender = insert(nil)

// timeLayout is RFC 3339 in UTC with exactly six decimals.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// An insert's text, around its rows.
var (
	insertPostgres, insertPostgresEnd, _ = strings.Cut(text("postgres", "insert"), "{rows}")
	insertMany, insertManyEnd, _         = strings.Cut(text("postgres", "insert_many"), "{rows}")
	insertSQLite, insertSQLiteEnd, _     = strings.Cut(text("sqlite", "insert"), "{rows}")
)

// The lane of a target, which is around it.
const laneOf, laneOr, laneEnd = "COALESCE((SELECT id FROM outbox_lanes WHERE target = ", "), outbox_new_lane(", "))"

// AppendQuery implements [schema.QueryAppender].
func (rows insert) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	if len(rows) == 0 {
		return nil, errors.New("outbox: an insert of no rows")
	}
	var begin, end string
	var add func(b []byte, r *outbox.Row) []byte
	switch name := gen.Dialect().Name(); name {
	case dialect.PG:
		targets := rows.targets()
		begin, end = strings.Replace(insertMany, "{lanes}", lanesOf(targets), 1), insertManyEnd
		add = func(b []byte, r *outbox.Row) []byte {
			b = strconv.AppendInt(b, int64(slices.Index(targets, r.TargetBroker)), 10)
			return appendRest(b, r, `'\x`, timeLayout)
		}
	case dialect.SQLite:
		begin, end, add = insertSQLite, insertSQLiteEnd, appendSQLite
	default:
		return nil, fmt.Errorf("outbox: no outbox on %s: use PostgreSQL or SQLite", name)
	}
	size := len(begin) + len(end)
	for i := range rows {
		size += 800 + 2*len(rows[i].Payload) + len(rows[i].CloudEvent)
	}
	b = append(slices.Grow(b, size), begin...)
	for i := range rows {
		if err := CheckText(&rows[i]); err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ", "...)
		}
		b = add(append(b, '('), &rows[i])
		b = append(b, ')')
	}
	return append(b, end...), nil
}

// targets are the rows', each once.
func (rows insert) targets() (all []string) {
	for i := range rows {
		if t := rows[i].TargetBroker; !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// lanesOf are the lanes of targets, by where a target stands.
func lanesOf(targets []string) string {
	var b []byte
	for i, t := range targets {
		b = append(strconv.AppendInt(append(b, " WHEN "...), int64(i), 10), " THEN "...)
		b = append(appendText(append(appendText(append(b, laneOf...), t), laneOr...), t), laneEnd...)
	}
	return string(b)
}

func appendSQLite(b []byte, r *outbox.Row) []byte {
	return appendRest(appendText(b, r.TargetBroker), r, `x'`, dbtime.Layout)
}

// appendRest appends what is behind the lane.
func appendRest(b []byte, r *outbox.Row, openBytes, layout string) []byte {
	b = append(strconv.AppendInt(append(b, ','), int64(r.Partition), 10), ',')
	for _, s := range [...]string{r.ID, r.MessageID, r.Stream, r.StreamCategory} {
		b = append(appendText(b, s), ',')
	}
	b = append(appendTextOrNull(b, r.Topic), ',')
	for _, s := range [...]string{r.PartitionKey, r.MessageType, r.AggregateType, r.AggregateID} {
		b = append(appendText(b, s), ',')
	}
	b = append(strconv.AppendInt(b, r.AggregateVersion, 10), ',')
	b = append(hex.AppendEncode(append(b, openBytes...), r.Payload), `',`...)
	b = append(appendText(b, r.ContentType), ',')
	for _, s := range [...]string{r.CloudEvent, r.CorrelationID, r.CausationID, r.TenantID, r.Traceparent} {
		b = append(appendTextOrNull(b, s), ',')
	}
	b = append(strconv.AppendInt(b, int64(r.Priority), 10), `,'`...)
	b = append(r.OccurredAt.UTC().AppendFormat(b, layout), '\'')
	key, topic := hashes(r)
	for _, n := range [...]int64{key, topic, int64(bytesOf(r))} {
		b = strconv.AppendInt(append(b, ','), n, 10)
	}
	return b
}

// hashes are the row's key and its topic.
func hashes(r *outbox.Row) (key, topic int64) {
	to := r.Topic
	if to == "" {
		to = outbox.DefaultTopic(r.StreamCategory)
	}
	return outbox.KeyOf(r.TargetBroker, to, r.StreamCategory, r.PartitionKey), outbox.TopicHash(to)
}

// overhead is about what a message's numbers, times and names of headers take.
const overhead = 256

// bytesOf is about what a row takes in memory and on the wire.
func bytesOf(r *outbox.Row) int {
	return overhead + len(r.Payload) + len(r.PartitionKey) + len(r.CloudEvent) + len(r.Stream) + len(r.StreamCategory) + len(r.Topic) +
		len(r.MessageType) + len(r.AggregateID) + len(r.CorrelationID) + len(r.CausationID) + len(r.TenantID) + len(r.Traceparent)
}

// maxPrepared is how many rows a prepared statement has at most: there is one
// per number of rows, on every connection.
const maxPrepared = 16

// columns is how many values a row has.
const columns = 24

// prepared are the statements by their number of rows.
var prepared = prepare()

func prepare() (texts [maxPrepared + 1]string) {
	for n := 1; n <= maxPrepared; n++ {
		b := []byte(insertPostgres)
		for i := range n {
			if i > 0 {
				b = append(b, ", "...)
			}
			target := "$" + strconv.Itoa(i*columns+1)
			b = append(b, "("+laneOf+target+laneOr+target+laneEnd...)
			for c := 2; c <= columns; c++ {
				b = strconv.AppendInt(append(b, ", $"...), int64(i*columns+c), 10)
			}
			b = append(b, ')')
		}
		texts[n] = string(append(b, insertPostgresEnd...))
	}
	return texts
}

// Prepared returns the statement for PostgreSQL to prepare, and its values: see
// uow/postgres. It is empty for more rows than a unit of work usually has.
func (rows insert) Prepared() (query string, values []any, err error) {
	if len(rows) == 0 || len(rows) > maxPrepared {
		return "", nil, nil
	}
	values = make([]any, 0, len(rows)*columns+1)
	for i := range rows {
		r := &rows[i]
		if err := CheckText(r); err != nil {
			return "", nil, err
		}
		key, topic := hashes(r)
		values = append(values, r.TargetBroker, strconv.Itoa(r.Partition), r.ID, r.MessageID, r.Stream, r.StreamCategory, textOrNil(r.Topic),
			r.PartitionKey, r.MessageType, r.AggregateType, r.AggregateID, strconv.FormatInt(r.AggregateVersion, 10), r.Payload, r.ContentType,
			textOrNil(r.CloudEvent), textOrNil(r.CorrelationID), textOrNil(r.CausationID), textOrNil(r.TenantID), textOrNil(r.Traceparent),
			strconv.Itoa(r.Priority), r.OccurredAt.UTC().Format(timeLayout),
			strconv.FormatInt(key, 10), strconv.FormatInt(topic, 10), strconv.Itoa(bytesOf(r)))
	}
	return prepared[len(rows)], values, nil
}

func textOrNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// KeyOf is the key of a row's queue row.
func KeyOf(r *outbox.Row) int64 {
	key, _ := hashes(r)
	return key
}

// CheckText returns an error that names the text of a row that a database can't store.
func CheckText(r *outbox.Row) error {
	for _, f := range [...]struct{ name, value string }{
		{"id", r.ID},
		{"message_id", r.MessageID},
		{"target_broker", r.TargetBroker},
		{"stream", r.Stream},
		{"stream_category", r.StreamCategory},
		{"topic", r.Topic},
		{"partition_key", r.PartitionKey},
		{"message_type", r.MessageType},
		{"aggregate_type", r.AggregateType},
		{"aggregate_id", r.AggregateID},
		{"content_type", r.ContentType},
		{"correlation_id", r.CorrelationID},
		{"causation_id", r.CausationID},
		{"tenant_id", r.TenantID},
		{"traceparent", r.Traceparent},
		{"cloud_event", r.CloudEvent},
	} {
		switch {
		case strings.IndexByte(f.value, 0) >= 0:
			return fmt.Errorf("outbox: %s of message %q has a NUL byte, which a database can't store as text: %q", f.name, r.MessageID, f.value)
		case !utf8.ValidString(f.value):
			return fmt.Errorf("outbox: %s of message %q is not UTF-8: %q", f.name, r.MessageID, f.value)
		}
	}
	return nil
}

// appendText appends a text literal. A backslash stands for itself: on
// PostgreSQL because standard_conforming_strings is on, on SQLite always.
func appendText(b []byte, s string) []byte {
	b = append(b, '\'')
	for {
		i := strings.IndexByte(s, '\'')
		if i < 0 {
			break
		}
		b = append(append(b, s[:i+1]...), '\'')
		s = s[i+1:]
	}
	return append(append(b, s...), '\'')
}

func appendTextOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "NULL"...)
	}
	return appendText(b, s)
}
