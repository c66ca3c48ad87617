package outboxdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/pipeline"
)

// step is what a step's files have: its statements, which are run in their order.
type step struct {
	name             string
	postgres, sqlite []string
	rare             bool // PostgreSQL plans it each time
}

// rarely is a step that there is time to plan, by what is in the tables.
func rarely(name string) step {
	s := load(name)
	s.rare = true
	return s
}

func (s step) plans() string {
	if s.rare {
		return "force_custom_plan"
	}
	return "force_generic_plan"
}

func load(name string) step {
	return step{name: name, postgres: statements("postgres", name), sqlite: statements("sqlite", name)}
}

// statements are those of a file. A semicolon at the end of a line ends one.
func statements(database, name string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimSpace(text(database, name)), ";"), ";\n")
}

// statement is what one run of a step's statement is told, and who is told its rows.
type statement struct {
	values []any // string, int64, int, bool, []int64, []string, []bool, pairs, time.Time, time.Duration (in milliseconds), nil
	row    func(r result) error
	// must ends the step on SQLite if there was no row. On PostgreSQL the statements
	// that follow have a condition of their own: all are sent before the first answers.
	must bool
}

// mode is how a step's transaction is kept.
type mode int

const (
	reads   mode = iota // locks and writes nothing
	unsaved             // a crash of the server may undo it
	durable
	keeps // durable, and has a deadline: it doesn't wait for a connection of the pool
)

// lasting is how a transaction is kept that a crash of the server may not undo, or may.
func lasting(always bool) mode {
	if always {
		return durable
	}
	return unsaved
}

// commits is what a mode says of PostgreSQL's synchronous_commit.
func (m mode) commits() any {
	if m == unsaved {
		return "off"
	}
	return nil
}

// begin is the first statement of every message, beginKeep of those of a keeper.
var begin, beginKeep = load("begin").postgres[0], statements("postgres", "begin_keep")[0]

// do runs a step's statements in one transaction.
func (s *Store) do(ctx context.Context, m mode, what step, runs ...statement) error {
	var err error
	if s.sqlite() {
		err = s.inSQLite(ctx, m, what, runs)
	} else {
		err = s.inPostgres(ctx, m, what, runs)
	}
	if err != nil {
		return explain(ctx, s.reader, fmt.Errorf("outbox: %s: %w", what.name, err))
	}
	return nil
}

func (s *Store) inPostgres(ctx context.Context, m mode, what step, runs []statement) error {
	all := make([]pipeline.Statement, 0, len(runs)+1)
	all = append(all, pipeline.Statement{Query: begin, Values: []any{m.commits(), what.plans()}})
	a := &answers{runs: runs}
	for i, r := range runs {
		next := pipeline.Statement{Query: what.postgres[i], Values: make([]any, len(r.values)), Row: a.of(i)}
		for v, value := range r.values {
			next.Values[v] = toPostgres(value)
		}
		all = append(all, next)
	}
	if err := s.send(ctx, m, all, a); err != nil {
		return err
	}
	return a.tell()
}

// send runs a step's message.
func (s *Store) send(ctx context.Context, m mode, all []pipeline.Statement, a *answers) error {
	if k, ok := s.db.Driver().(pipeline.Keeper); ok && m == keeps {
		all[0] = pipeline.Statement{Query: beginKeep}
		return k.Keep(ctx, all...)
	}
	err := s.on(ctx, func(c pipeline.Conn) error { return c.Pipeline(ctx, nil, all...) })
	if errors.Is(err, pipeline.ErrUnprepared) {
		a.earlier = nil // of those before the one that wasn't known
		// On another connection: on that one its transaction has failed.
		err = s.on(ctx, func(c pipeline.Conn) error {
			if plain, ok := c.(pipeline.PlainConn); ok {
				return plain.Plain(ctx, all...)
			}
			return err
		})
	}
	return err
}

// on gives do a connection that takes pipelines.
func (s *Store) on(ctx context.Context, do func(c pipeline.Conn) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if closing := conn.Close(); err == nil {
			err = closing
		}
	}()
	return conn.Raw(func(dc any) error {
		if c, ok := dc.(pipeline.Conn); ok {
			return do(c)
		}
		return errors.New("the driver's connection takes no pipelines: open the database with uow/postgres")
	})
}

func (s *Store) inSQLite(ctx context.Context, m mode, what step, runs []statement) error {
	db := s.db
	if m == reads {
		db = s.reader
	}
	tx, err := db.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for i, r := range runs {
		// A file's last statement may be run several times.
		n, err := runSQLite(ctx, tx, what.sqlite[min(i, len(what.sqlite)-1)], r)
		if err != nil {
			if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
				return errors.Join(err, rollback)
			}
			return err
		}
		if r.must && n == 0 {
			break
		}
	}
	return tx.Commit()
}

func runSQLite(ctx context.Context, tx *sql.Tx, query string, r statement) (n int, err error) {
	values := make([]any, len(r.values))
	for i, v := range r.values {
		values[i] = toSQLite(v)
	}
	rows, err := tx.QueryContext(ctx, query, values...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	columns, into := make([]any, len(names)), make([]any, len(names))
	for i := range columns {
		into[i] = &columns[i]
	}
	for ; rows.Next(); n++ {
		if r.row == nil {
			continue
		}
		if err := rows.Scan(into...); err != nil {
			return n, err
		}
		if err := r.row(result{sqlite: columns}); err != nil {
			return n, err
		}
	}
	return n, rows.Err()
}

func toPostgres(v any) any {
	switch v := v.(type) {
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case bool:
		return strconv.FormatBool(v)
	case time.Duration:
		return strconv.FormatInt(v.Milliseconds(), 10)
	case time.Time:
		if v.IsZero() {
			return "-infinity"
		}
		return v.UTC().Format(time.RFC3339Nano)
	case []int64:
		return pipeline.Numbers(v)
	case pairs:
		return pipeline.Numbers(v.parts())
	case []string:
		return pipeline.Texts(v)
	case []bool:
		return pipeline.Numbers(bits(v))
	}
	return v
}

func toSQLite(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return v.Milliseconds()
	case time.Time:
		if v.IsZero() {
			return ""
		}
		return v.UTC().Format(dbtime.Layout)
	case []int64, []string, pairs:
		return jsonOf(v)
	case []bool:
		return jsonOf(bits(v))
	}
	return v
}

// bits are 0 and 1.
func bits(all []bool) []int64 {
	numbers := make([]int64, len(all))
	for i, b := range all {
		if b {
			numbers[i] = 1
		}
	}
	return numbers
}
