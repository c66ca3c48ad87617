package historydb

import (
	"strings"

	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/outbox"
)

// InsertMissing is the statement that keeps another context's event, unless it is there:
// because it has come before, or because that context has its tables in the same
// database, and has kept it itself, here or in events.
func InsertMissing(e outbox.Event) schema.QueryAppender { return missing(e) }

type missing outbox.Event

var _ schema.QueryAppender = missing{}

const (
	// The place of an event in events is its primary key.
	missingValues = " (version, occurred_at, n, message_id, category, id, type, data, metadata) SELECT $1::bigint, $2::timestamptz, $3::integer, $4::uuid, $5::text, $6::text, $7::text, $8::json, $9::json" +
		" WHERE NOT EXISTS (SELECT 1 FROM events WHERE category = $5::text AND id = $6::text AND version = $1::bigint AND n = $3::integer AND message_id = $4::uuid)"
	missingPostgres = "INSERT INTO history" + missingValues + " ON CONFLICT (message_id) DO NOTHING"
	// What is to happen of a conflict holds for the view's trigger as well.
	missingSQLite = "INSERT OR IGNORE INTO history_insert" + missingValues
)

// AppendQuery implements [schema.QueryAppender].
func (m missing) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	query, values, err := m.Prepared()
	if err != nil {
		return nil, err
	}
	d := gen.Dialect()
	if d.Name() == dialect.SQLite {
		query = missingSQLite
	}
	before, rest, found := strings.Cut(query, "$")
	for found {
		b = appendText(d, append(b, before...), values[rest[0]-'1'])
		rest = rest[1:]
		if d.Name() == dialect.SQLite { // Its columns convert.
			rest = rest[strings.IndexAny(rest, ", )"):]
		}
		before, rest, found = strings.Cut(rest, "$")
	}
	return append(b, before...), nil
}

// Prepared returns the statement for PostgreSQL to prepare, and its values.
func (m missing) Prepared() (query string, values []any, err error) {
	of, err := row((*outbox.Event)(&m))
	return missingPostgres, of[:], err
}
