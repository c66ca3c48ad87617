package subscription

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

// takeBackTime is what it may take to take an attempt back that a shutdown ended.
const takeBackTime = 2 * time.Second

// home is where a message is until it is settled: what comes from the broker, and
// what is in dead_letters, is claimed, counted and set aside in different tables.
type home interface {
	// look reads what the database knows of messages, in one snapshot.
	look(ctx context.Context, messages []*message) (map[*message]record, error)
	// claim are the first statements of the unit of work that handles messages.
	claim(messages []*message) []uow.Statement
	// begin counts an attempt that is about to be made, durably: if the process
	// dies of it, whoever has the message next knows.
	begin(ctx context.Context, m *message) error
	// fail ends an attempt, and counts it unless begin has; a free one is not to be
	// counted. It returns how many there are.
	fail(ctx context.Context, m *message, free bool, cause error) (attempts int, err error)
	// takeBack undoes begin: the attempt was not the message's.
	takeBack(ctx context.Context, m *message) error
	// park and drop settle a message that a handler didn't.
	park(m *message, why reason, cause error) ([]uow.Statement, error)
	drop(m *message) []uow.Statement
	// early keeps a message until what it waits for has happened.
	early(m *message, cause error, patience time.Duration) ([]uow.Statement, error)
}

// incoming is the home of what the broker delivers. A message that is handled the
// first time it comes has no row in inbox_attempts.
type incoming struct {
	provider uow.Provider
	stream   Stream
	run      string
}

func (h incoming) look(ctx context.Context, messages []*message) (map[*message]record, error) {
	return inboxOf(ctx, h.provider.Reader(), h.stream, h.run, messages)
}

func (h incoming) claim(messages []*message) []uow.Statement {
	statements := []uow.Statement{claimRows(h.stream, messages...)}
	for _, m := range messages {
		if m.counted {
			statements = append(statements, h.forget(m))
		}
	}
	return statements
}

func (h incoming) begin(ctx context.Context, m *message) error {
	m.counted = true
	err := h.provider.DB().NewRaw("INSERT INTO inbox_attempts AS a (subscription, message_id, attempts, run) VALUES (?, ?, 1, ?)"+
		" ON CONFLICT (subscription, message_id) DO UPDATE SET attempts = a.attempts + 1, run = excluded.run, last_at = ?,"+
		" crashes = a.crashes + CASE WHEN a.run <> excluded.run THEN 1 ELSE 0 END RETURNING attempts, crashes",
		h.stream.Name, m.id, h.run, h.now()).Scan(ctx, &m.attempts, &m.crashes)
	if err != nil {
		return fmt.Errorf("subscription: count an attempt: %w", err)
	}
	m.begun = true
	return nil
}

func (h incoming) fail(ctx context.Context, m *message, free bool, cause error) (attempts int, err error) {
	first, more := 1, 1
	if free {
		first, more = 0, 0
	}
	if m.begun {
		more--
	}
	m.counted, m.begun = true, false
	err = h.provider.DB().NewRaw("INSERT INTO inbox_attempts AS a (subscription, message_id, attempts, error) VALUES (?, ?, ?, ?)"+
		" ON CONFLICT (subscription, message_id) DO UPDATE SET attempts = a.attempts + ?, run = NULL, last_at = ?, error = excluded.error RETURNING attempts",
		h.stream.Name, m.id, first, dberr.Clip(cause.Error()), more, h.now()).Scan(ctx, &attempts)
	if err != nil {
		return 0, fmt.Errorf("subscription: count a failed attempt: %w", err)
	}
	return attempts, nil
}

func (h incoming) takeBack(ctx context.Context, m *message) error {
	if !m.begun {
		return nil
	}
	m.begun = false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	do := "UPDATE inbox_attempts SET attempts = attempts - 1, run = NULL"
	if m.done { // by another, who has forgotten its own attempts before
		do = "DELETE FROM inbox_attempts"
	}
	_, err := h.provider.DB().ExecContext(ctx, do+" WHERE subscription = ? AND message_id = ? AND run = ? AND attempts > 0", h.stream.Name, m.id, h.run)
	if err != nil {
		return fmt.Errorf("subscription: take an attempt back: %w", err)
	}
	m.attempts = max(m.attempts-1, 0) // it is not to be one too many at the next try
	return nil
}

func (h incoming) park(m *message, why reason, cause error) ([]uow.Statement, error) {
	row, err := parkRow(h.provider.DB().Dialect(), h.stream, m, why, cause)
	return h.settle(m, row), err
}

func (h incoming) early(m *message, cause error, patience time.Duration) ([]uow.Statement, error) {
	row, err := earlyRow(h.provider.DB().Dialect(), h.stream, m, cause, patience)
	return h.settle(m, row), err
}

func (h incoming) drop(m *message) []uow.Statement { return h.settle(m) }

// settle ends a message without a handler, whether its key is held or not.
func (h incoming) settle(m *message, statements ...uow.Statement) []uow.Statement {
	all := append([]uow.Statement{claimAnyway(h.stream.Name, m)}, statements...)
	if m.counted {
		all = append(all, h.forget(m))
	}
	return all
}

// forget ends the counting.
func (h incoming) forget(m *message) uow.Statement {
	return uow.Statement{
		Query: forget{bun.SafeQuery("DELETE FROM inbox_attempts WHERE subscription = ? AND message_id = ?", h.stream.Name, m.id)},
		Rows:  -1,
	}
}

func (h incoming) now() bun.Safe { return bun.Safe(dbtime.Now(h.provider.DB().Dialect())) }

// forget can also be sent as a prepared statement.
type forget struct{ schema.QueryWithArgs }

// Prepared returns the query and its values.
func (f forget) Prepared() (query string, values []any, err error) {
	return "DELETE FROM inbox_attempts WHERE subscription = $1 AND message_id = $2", f.Args, nil
}
