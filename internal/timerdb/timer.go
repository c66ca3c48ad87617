package timerdb

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtext"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/outboxdb"
	"github.com/waybill-go/waybill/outbox"
)

// maxNames is how long a timer's owner and its name may be together, in bytes: they are
// in one index, and PostgreSQL has room for a third of a page there.
const maxNames = 2500

// Timer is set under a name of its owner: setting the name again moves it, under the
// new message's id.
type Timer struct {
	Owner, Name string
	At          time.Time  // Not before, by the database's clock.
	Row         outbox.Row // Goes into the outbox at that time. Its MessageID is the timer's id.
}

// Set is the statement that sets a timer, or moves it. It is sent behind the state of
// the owner, whose lock gives the statements of one owner their order.
func Set(t Timer) schema.QueryAppender {
	return &statement{query: setQuery, values: func(d dialect.Name) ([]any, error) { return t.values(d) }}
}

// Stop is the statement that stops a timer. One that isn't set is stopped already.
func Stop(owner, name string) schema.QueryAppender {
	return &statement{query: stopQuery, values: texts(owner, name)}
}

// StopAll is the statement that stops all timers of an owner.
func StopAll(owner string) schema.QueryAppender {
	return &statement{query: stopAllQuery, values: texts(owner)}
}

// Handled is the statement that deletes the row of a handled message. It is sent
// behind the state of what the handler has changed, and must delete one row: if it
// doesn't, the timer was stopped, or set anew, and the transaction must not commit.
func Handled(id string) schema.QueryAppender {
	return &statement{query: handledQuery, values: func(dialect.Name) ([]any, error) {
		parsed, err := uuid.Parse(id)
		if err != nil {
			return nil, fmt.Errorf("timers: %q is not the id of a timer, which is a UUID", id)
		}
		return []any{parsed.String()}, nil
	}}
}

// Waits says whether the timer of this message is still there. If it isn't, it was
// stopped, set anew or handled, and there is nothing to be done.
func Waits(ctx context.Context, db bun.IDB, id string) (there bool, err error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return false, nil //nolint:nilerr // no timer has such an id
	}
	if err := db.QueryRowContext(ctx, text("waits"), parsed.String()).Scan(&there); err != nil {
		return false, fmt.Errorf("timers: look for timer %s: %w", id, err)
	}
	return there, nil
}

var setQuery, stopQuery, stopAllQuery, handledQuery = text("set"), text("stop"), text("stop_all"), text("handled")

// values are those of set.sql.
func (t Timer) values(d dialect.Name) ([]any, error) {
	id, err := t.check()
	if err != nil {
		return nil, err
	}
	message, err := json.Marshal(t.Row)
	if err != nil {
		return nil, fmt.Errorf("timers: %s of %s: %w", t.Name, t.Owner, err)
	}
	return []any{
		id, t.Owner, t.Name, instant(d, t.At), strconv.FormatInt(outboxdb.KeyOf(&t.Row), 10), string(message), append([]byte{}, t.Row.Payload...),
	}, nil
}

// check refuses what a database can't store, while it is known whose it is.
func (t Timer) check() (id string, err error) {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("timers: timer %q of %q: "+format, append([]any{t.Name, t.Owner}, args...)...)
	}
	parsed, err := uuid.Parse(t.Row.MessageID)
	if err != nil {
		return "", wrong("its message has the id %q, which is not a UUID", t.Row.MessageID)
	}
	switch year := t.At.UTC().Year(); {
	case t.Owner == "" || t.Name == "":
		return "", wrong("a timer has an owner and a name")
	case len(t.Owner)+len(t.Name) > maxNames:
		return "", wrong("both together have %d bytes: at most %d", len(t.Owner)+len(t.Name), maxNames)
	case year < 1 || year > 9998:
		return "", wrong("it is for the year %d, which no database keeps: choose one from 1 to 9998", year)
	}
	if err := outboxdb.CheckText(&t.Row); err != nil {
		return "", wrong("%w", err)
	}
	return parsed.String(), checkNames(t.Owner, t.Name)
}

func checkNames(names ...string) error {
	for _, name := range names {
		if problem := dbtext.Problem(name); problem != "" {
			return fmt.Errorf("timers: %q, an owner or a timer's name, %s", name, problem)
		}
	}
	return nil
}

// instant is a time as a column has it, and never earlier.
func instant(d dialect.Name, at time.Time) string {
	step, layout := time.Microsecond, "2006-01-02T15:04:05.000000Z"
	if d == dialect.SQLite {
		step, layout = time.Millisecond, dbtime.Layout
	}
	return at.UTC().Add(step - 1).Truncate(step).Format(layout)
}

func texts(all ...string) func(dialect.Name) ([]any, error) {
	return func(dialect.Name) ([]any, error) {
		values := make([]any, len(all))
		for i, s := range all {
			values[i] = s
		}
		return values, checkNames(all...)
	}
}

// statement has $1, $2 … for values that are text or bytes.
type statement struct {
	query  string
	values func(dialect.Name) ([]any, error)
}

// AppendQuery implements [schema.QueryAppender].
func (s *statement) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	name := gen.Dialect().Name()
	if name != dialect.PG && name != dialect.SQLite {
		return nil, fmt.Errorf("timers: no timers on %s: use PostgreSQL or SQLite", name)
	}
	values, err := s.values(name)
	if err != nil {
		return nil, err
	}
	before, rest, found := strings.Cut(s.query, "$")
	for found {
		n := int(rest[0] - '1') // there are fewer than ten
		b = gen.Append(append(b, before...), values[n])
		before, rest, found = strings.Cut(rest[1:], "$")
	}
	return append(b, before...), nil
}

// Prepared returns the statement for PostgreSQL to prepare, and its values: see
// uow/postgres.
func (s *statement) Prepared() (query string, values []any, err error) {
	values, err = s.values(dialect.PG)
	return s.query, values, err
}
