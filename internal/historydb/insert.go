package historydb

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/outbox"
)

// Insert is the one statement that keeps events, in their order, on either database. It
// does not run it: the unit of work sends it with its others, behind the state.
func Insert(events []outbox.Event) schema.QueryAppender { return insert(events) }

type insert []outbox.Event

var _ schema.QueryAppender = insert(nil)

const (
	// timeLayout is RFC 3339 in UTC with exactly six decimals.
	timeLayout = "2006-01-02T15:04:05.000000Z"

	insertColumns = " (version, occurred_at, n, message_id, category, id, type, data, metadata) VALUES "
	intoPostgres  = "INSERT INTO history" + insertColumns
	intoSQLite    = "INSERT INTO history_insert" + insertColumns
	columns       = 9

	// maxPrepared is how many events a prepared statement has at most: there is one per
	// number of events, on every connection.
	maxPrepared = 16
)

// AppendQuery implements [schema.QueryAppender].
func (in insert) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	d := gen.Dialect()
	switch d.Name() {
	case dialect.PG:
		b = append(b, intoPostgres...)
	case dialect.SQLite:
		b = append(b, intoSQLite...)
	default:
		return nil, fmt.Errorf("history: no history on %s: use PostgreSQL or SQLite", d.Name())
	}
	if len(in) == 0 {
		return nil, errors.New("history: an insert of no events")
	}
	for i := range in {
		values, err := row(&in[i])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, '(')
		for c, v := range values {
			if c > 0 {
				b = append(b, ',')
			}
			b = appendText(d, b, v)
		}
		b = append(b, ')')
	}
	return b, nil
}

func appendText(d schema.Dialect, b []byte, v any) []byte {
	if v == nil {
		return append(b, "NULL"...)
	}
	return d.AppendString(b, v.(string))
}

// prepared are the statements by their number of events.
var prepared = prepare()

func prepare() (texts [maxPrepared + 1]string) {
	for n := 1; n <= maxPrepared; n++ {
		b := []byte(intoPostgres)
		for c := range n * columns {
			switch {
			case c == 0:
				b = append(b, '(')
			case c%columns == 0:
				b = append(b, "), ("...)
			default:
				b = append(b, ", "...)
			}
			b = strconv.AppendInt(append(b, '$'), int64(c+1), 10)
		}
		texts[n] = string(append(b, ')'))
	}
	return texts
}

// Prepared returns the statement for PostgreSQL to prepare, and its values: see
// uow/postgres. It is empty for more events than a unit of work usually has.
func (in insert) Prepared() (query string, values []any, err error) {
	if len(in) == 0 || len(in) > maxPrepared {
		return "", nil, nil
	}
	for i := range in {
		of, err := row(&in[i])
		if err != nil {
			return "", nil, err
		}
		values = append(slices.Grow(values, len(in)*columns), of[:]...)
	}
	return prepared[len(in)], values, nil
}

// row is what the columns have, each a string or nil.
func row(e *outbox.Event) (values [columns]any, err error) {
	version, n := place(&e.Metadata)
	metadata, err := Metadata(e)
	if err != nil {
		return values, fmt.Errorf("history: metadata of %s of %s: %w", e.Type, e.Stream, err)
	}
	for _, f := range [...]struct{ name, value string }{{"category", e.Category}, {"identity", e.AggregateID}, {"type", e.Type}, {"JSON", string(e.Data)}} {
		if problem := dbtext.Problem(f.value); problem != "" {
			return values, fmt.Errorf("history: the %s of %s of %s %s", f.name, e.Type, e.Stream, problem)
		}
	}
	values = [columns]any{
		strconv.FormatInt(version, 10), e.Time.UTC().Format(timeLayout), strconv.Itoa(n), MessageID(e.Category, e.ID), e.Category, e.AggregateID, e.Type, string(e.Data), nil,
	}
	if metadata != nil {
		values[columns-1] = string(metadata)
	}
	return values, nil
}

// MessageID is what the column of this name has of a message's id.
func MessageID(category, id string) string {
	if parsed, err := uuid.Parse(id); err == nil && len(id) == len(parsed.String()) {
		return parsed.String()
	}
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(category+" "+id)).String()
}
