package uow

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbtext"
)

// Exec adds a statement to the unit of work that ctx carries, on the default
// provider: an INSERT, UPDATE or DELETE whose result the application doesn't
// need. Each ? in query is an argument, as in bun.
//
// It is sent with the rest of the unit, in one round trip: behind the aggregates'
// state, in the order of the calls. Or earlier, if something has to be read in the
// transaction. So it is faster than [DB], and its error is that of Do. On
// PostgreSQL it is prepared; where that can't tell an argument's type, write
// ?::type.
//
// It fails with [ErrNone] outside a unit. An argument that can't be stored, such as a
// text with a NUL byte, is an error that says which, and dooms the unit. So does a
// statement that begins or ends a transaction.
func Exec(ctx context.Context, query string, args ...any) error {
	u, err := From(ctx)
	if err != nil {
		return err
	}
	e := execution{bun.SafeQuery(query, args...)}
	if err := e.check(u.m.cfg.Providers[0].DB().QueryGen()); err != nil {
		return u.doom(err)
	}
	return u.Exec("", Statement{Query: e, Rows: -1})
}

// Exec adds a statement that is sent with the next flush of a provider ("" is the
// default), behind the aggregates' state.
func (u *Unit) Exec(provider string, s Statement) error {
	if err := u.usable(); err != nil {
		return err
	}
	p, err := u.part(provider)
	if err != nil {
		return err
	}
	p.executions = append(p.executions, s)
	return nil
}

// Change is [Unit.Exec] of a statement that has to change so many rows, on the default
// provider; otherwise the unit fails with an error.
//
// For package process.
func (u *Unit) Change(query string, args []any, rows int64, otherwise error) error {
	e := execution{bun.SafeQuery(query, args...)}
	if err := e.check(u.m.cfg.Providers[0].DB().QueryGen()); err != nil {
		return u.doom(err)
	}
	return u.Exec("", Statement{Query: e, Rows: rows, Else: otherwise})
}

// execution is a statement of the application's.
type execution struct{ schema.QueryWithArgs }

// check refuses what would tear the unit apart, and arguments that bun would leave out or
// write an error for.
func (e execution) check(gen schema.QueryGen) error {
	if _, _, err := e.Prepared(); err != nil {
		return err
	}
	if err := dbtext.CheckTransaction(e.Query); err != nil {
		return fmt.Errorf("uow: Exec: %w", err)
	}
	for i, arg := range e.Args {
		if problem := dbtext.Argument(gen, arg); problem != "" {
			return fmt.Errorf("uow: Exec: argument %d of %q %s", i+1, e.Query, problem)
		}
	}
	return nil
}

// Prepared returns the query for PostgreSQL and its values; none if it can only be
// sent with its values inside.
func (e execution) Prepared() (query string, values []any, err error) {
	var b strings.Builder
	n := 0
	for i := range len(e.Query) {
		switch c := e.Query[i]; {
		case c != '?':
			if strings.IndexByte(`'"\$`, c) >= 0 {
				return "", nil, nil // it may be a text, a name or a number of an argument
			}
			b.WriteByte(c)
		case i+1 < len(e.Query) && named(e.Query[i+1]):
			return "", nil, nil
		default:
			n++
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(n))
		}
	}
	if n != len(e.Args) {
		return "", nil, fmt.Errorf("uow: Exec: %d arguments for %d times ? in %q", len(e.Args), n, e.Query)
	}
	values = make([]any, n, n+1)
	for i, arg := range e.Args {
		var ok bool
		if values[i], ok = value(arg); !ok {
			return "", nil, nil
		}
	}
	return b.String(), values, nil
}

// named says that a ? before c is none of the plain ones: ?0, ?Name, ??.
func named(c byte) bool {
	return c == '?' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// value is an argument as PostgreSQL reads it.
func value(arg any) (_ any, ok bool) {
	switch v := arg.(type) {
	case nil, string, []byte:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case int:
		return strconv.Itoa(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano), true
	case driver.Valuer:
		plain, err := v.Value()
		if _, again := plain.(driver.Valuer); err != nil || again {
			return nil, false
		}
		return value(plain)
	}
	return nil, false
}
