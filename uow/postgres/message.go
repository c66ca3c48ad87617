package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/uow"
)

// answerTimeout is how long a commit that was told to stop waits for its answer.
const answerTimeout = 2 * time.Second

// missed begins the text that a guard fails to read as a number.
const missed = "waybill missed "

var errNUL = errors.New("postgres: a statement has a NUL byte, which PostgreSQL can't store as text: leave it out, or use bytea")

// message puts statements into one message of the simple protocol. Outside a
// transaction PostgreSQL runs it as one, which commits with the answer to the
// last statement.
//
// An UPDATE of no row is no error in SQL. A statement with a demanded number is
// made one, so that whatever follows in the message does not happen: a guard
// around it casts a text to a number if the count is another. The text names
// the statement, and comes back in the error.
func message(gen schema.QueryGen, statements []uow.Statement) (string, error) {
	var b []byte
	for i, s := range statements {
		if s.Rows >= 0 && s.Else == nil {
			return "", fmt.Errorf("postgres: statement %d demands %d rows and has no Else", i, s.Rows)
		}
		if i > 0 {
			b = append(b, "\n;\n"...) // on a line of its own: a statement may end with a comment
		}
		if s.Rows >= 0 {
			b = append(b, "WITH w AS (\n"...)
		}
		var err error
		if b, err = s.Query.AppendQuery(gen, b); err != nil {
			return "", fmt.Errorf("postgres: statement %d: %w", i, err)
		}
		if s.Rows >= 0 {
			b = fmt.Appendf(b, "\nRETURNING 1) SELECT CASE count(*) WHEN %d THEN 0 ELSE ('%s%d ' || count(*))::int END FROM w", s.Rows, missed, i)
		}
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return "", errNUL
	}
	return string(b), nil
}

// run sends a message and awaits its end. answered is how many statements the
// server is known to have completed.
func run(ctx context.Context, conn *pgx.Conn, query string) (answered int, err error) {
	results := conn.PgConn().Exec(ctx, query)
	for results.NextResult() {
		if _, err := results.ResultReader().Close(); err != nil {
			break
		}
		answered++
	}
	return answered, results.Close()
}

// runPatiently runs what commits. If ctx ends before the answer has
// come, it asks the server to stop and waits a little longer, because "it may
// or may not have happened" is the worst of answers.
func runPatiently(ctx context.Context, conn *pgx.Conn, run func(context.Context, *pgx.Conn) (int, error)) (answered int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, &unsentError{err}
	}
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	asked := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(asked)
		wait, done := context.WithTimeout(patient, answerTimeout)
		defer done()
		_ = conn.PgConn().CancelRequest(wait)
		<-wait.Done()
		cancel()
	})
	answered, err = run(patient, conn)
	if !stop() {
		cancel()
		<-asked
		// The request to stop may reach the server late, and must not hit the
		// next transaction on this connection.
		closing, done := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
		defer done()
		_ = conn.Close(closing)
	}
	return answered, err
}

// unsentError is a message that was not sent.
type unsentError struct{ error }

func (e *unsentError) SafeToRetry() bool { return true }
func (e *unsentError) Unwrap() error     { return e.error }

// outcome turns the error of a message into that of the unit.
func outcome(err error, statements []uow.Statement) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pg.Code {
	case invalidText:
		_, rest, ok := strings.Cut(pg.Message, `"`+missed)
		if !ok {
			return err
		}
		number, _, _ := strings.Cut(rest, " ")
		if i, numErr := strconv.Atoi(number); numErr == nil && i < len(statements) && statements[i].Else != nil {
			return statements[i].Else
		}
	case undefinedTable:
		return fmt.Errorf("postgres: %w", dberr.Missing(err))
	}
	return err
}

// severity of the server's answer: "ERROR" says that the transaction was rolled
// back, "FATAL" that the connection was ended as well. It is empty where the
// server said nothing.
func severity(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return ""
	}
	if pg.SeverityUnlocalized != "" {
		return pg.SeverityUnlocalized
	}
	return pg.Severity
}
