package outbox

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
)

// Insert is the one statement that stores rows, in their order, on either
// database. It does not run it: the unit of work sends it with its others.
//
// Neither database can store a text with a NUL byte, and PostgreSQL none that
// isn't UTF-8: such a row is an error that names the field.
func Insert(rows []Row) schema.QueryAppender { return insert(rows) }

type insert []Row

var _ schema.QueryAppender = insert(nil)

// What a row needs besides these has a default in the table.
const insertInto = `INSERT INTO outbox (id, message_id, target_broker, stream, stream_category, topic, ` +
	`partition_key, "partition", message_type, aggregate_type, aggregate_id, aggregate_version, payload, ` +
	`content_type, correlation_id, causation_id, tenant_id, traceparent, priority, occurred_at`

// AppendQuery implements [schema.QueryAppender].
func (rows insert) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	if len(rows) == 0 {
		return nil, errors.New("outbox: an insert of no rows")
	}
	var openBytes, layout string
	switch name := gen.Dialect().Name(); name {
	case dialect.PG:
		openBytes, layout = `'\x`, timeLayout
	case dialect.SQLite:
		openBytes, layout = `x'`, dbtime.Layout
	default:
		return nil, fmt.Errorf("outbox: no outbox on %s: use PostgreSQL or SQLite", name)
	}
	wide := rows.wide()
	size := len(insertInto) + 30
	for i := range rows {
		size += 600 + 2*len(rows[i].Payload) + len(rows[i].CloudEvent)
	}
	b = appendInto(slices.Grow(b, size), wide)
	for i := range rows {
		r := &rows[i]
		if err := r.checkText(); err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '(')
		for _, s := range [...]string{r.ID, r.MessageID, r.TargetBroker, r.Stream, r.StreamCategory} {
			b = append(appendText(b, s), ',')
		}
		b = append(appendTextOrNull(b, r.Topic), ',')
		b = append(appendText(b, r.PartitionKey), ',')
		b = append(strconv.AppendInt(b, int64(r.Partition), 10), ',')
		for _, s := range [...]string{r.MessageType, r.AggregateType, r.AggregateID} {
			b = append(appendText(b, s), ',')
		}
		b = append(strconv.AppendInt(b, r.AggregateVersion, 10), ',')
		b = append(hex.AppendEncode(append(b, openBytes...), r.Payload), `',`...)
		b = append(appendText(b, r.ContentType), ',')
		for _, s := range [...]string{r.CorrelationID, r.CausationID, r.TenantID, r.Traceparent} {
			b = append(appendTextOrNull(b, s), ',')
		}
		b = append(strconv.AppendInt(b, int64(r.Priority), 10), `,'`...)
		b = append(r.OccurredAt.UTC().AppendFormat(b, layout), '\'')
		if wide {
			b = appendTextOrNull(append(b, ','), r.CloudEvent)
		}
		b = append(b, ')')
	}
	return b, nil
}

// maxPrepared is how many rows a prepared statement has at most: there is one
// per number of rows, on every connection.
const maxPrepared = 16

// columns is how many a row has in insertInto.
const columns = 20

// wide says that rows need one column more. Most have none: those of brokers that
// get binary CloudEvents do.
func (rows insert) wide() bool {
	return slices.ContainsFunc(rows, func(r Row) bool { return r.CloudEvent != "" })
}

func appendInto(b []byte, wide bool) []byte {
	b = append(b, insertInto...)
	if wide {
		b = append(b, ", cloud_event"...)
	}
	return append(b, ") VALUES "...)
}

// prepared are the statements by their number of rows, wideOnes those of wide
// rows.
var prepared, wideOnes = prepare(columns, false), prepare(columns+1, true)

func prepare(columns int, wide bool) (texts [maxPrepared + 1]string) {
	for n := 1; n <= maxPrepared; n++ {
		b := appendInto(nil, wide)
		for i := range n * columns {
			switch {
			case i > 0 && i%columns == 0:
				b = append(b, "), ("...)
			case i > 0:
				b = append(b, ", "...)
			default:
				b = append(b, '(')
			}
			b = strconv.AppendInt(append(b, '$'), int64(i+1), 10)
		}
		texts[n] = string(append(b, ')'))
	}
	return texts
}

// Prepared returns the statement for PostgreSQL to prepare, and its values: see
// uow/postgres. It is empty for more rows than a unit of work usually has.
func (rows insert) Prepared() (query string, values []any, err error) {
	if len(rows) == 0 || len(rows) > maxPrepared {
		return "", nil, nil
	}
	wide, texts := rows.wide(), &prepared
	if wide {
		texts = &wideOnes
	}
	values = make([]any, 0, len(rows)*(columns+1)+1)
	for i := range rows {
		r := &rows[i]
		if err := r.checkText(); err != nil {
			return "", nil, err
		}
		values = append(values, r.ID, r.MessageID, r.TargetBroker, r.Stream, r.StreamCategory, textOrNil(r.Topic),
			r.PartitionKey, strconv.Itoa(r.Partition), r.MessageType, r.AggregateType, r.AggregateID,
			strconv.FormatInt(r.AggregateVersion, 10), r.Payload, r.ContentType, textOrNil(r.CorrelationID),
			textOrNil(r.CausationID), textOrNil(r.TenantID), textOrNil(r.Traceparent), strconv.Itoa(r.Priority),
			r.OccurredAt.UTC().Format(timeLayout))
		if wide {
			values = append(values, textOrNil(r.CloudEvent))
		}
	}
	return texts[len(rows)], values, nil
}

func textOrNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (r *Row) checkText() error {
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
