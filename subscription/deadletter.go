package subscription

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

// maxStack is how much of a panic's stack is kept, in bytes.
const maxStack = 16 << 10

// reason says why a message was parked.
type reason string

const (
	undecodable  reason = "undecodable"
	tooLarge     reason = "too_large"
	refused      reason = "refused"
	newerVersion reason = "newer_version"
	parked       reason = "parked"
	exhausted    reason = "failed"
	crashed      reason = "crashed"
	behind       reason = "held"
	later        reason = "waiting"
	early        reason = "early"
)

// parkRow keeps m as it came.
func parkRow(d schema.Dialect, s Stream, m *message, why reason, cause error) (uow.Statement, error) {
	columns, values, args, err := deadLetter(d, s, m, why, "parked", s.OnParked == Hold, cause)
	return uow.Statement{
		Query: bun.SafeQuery("INSERT INTO dead_letters ("+columns+") VALUES ("+values+")", args...),
		Rows:  1, Else: errSettled,
	}, err
}

// waitRow keeps m as it came, until its time has come. Its key waits, whatever becomes
// of those behind parked messages.
func waitRow(d schema.Dialect, s Stream, m *message, wait time.Duration) (uow.Statement, error) {
	columns, values, args, err := deadLetter(d, s, m, later, "waiting", true, m.why)
	return uow.Statement{
		Query: bun.SafeQuery("INSERT INTO dead_letters ("+columns+", due_at) VALUES ("+values+", ?)", append(args, bun.Safe(dbtime.In(d, wait)))...),
		Rows:  1, Else: errSettled,
	}, err
}

// earlyRow keeps m as it came, until what it waits for has happened. Nobody waits for
// it, and from patience on it is for people to look at.
func earlyRow(d schema.Dialect, s Stream, m *message, cause error, patience time.Duration) (uow.Statement, error) {
	columns, values, args, err := deadLetter(d, s, m, early, "early", false, cause)
	return uow.Statement{
		Query: bun.SafeQuery("INSERT INTO dead_letters ("+columns+", due_at) VALUES ("+values+", ?)", append(args, bun.Safe(dbtime.In(d, patience)))...),
		Rows:  1, Else: errSettled,
	}, err
}

// appendRow puts m behind the other messages of its key. It locks the first of
// them: whoever handles that one frees the key, and would not see m.
func appendRow(d schema.Dialect, s Stream, m *message) (uow.Statement, error) {
	why, cause := behind, errors.New("an earlier message of its key is parked or waits")
	if m.fault == tooLarge { // the row tells its turn why there is no body
		why, cause = m.fault, m.bad
	}
	columns, values, args, err := deadLetter(d, s, m, why, "held", true, cause)
	lock := ""
	if d.Name() == dialect.PG {
		lock = " FOR UPDATE"
	}
	return uow.Statement{
		Query: bun.SafeQuery("INSERT INTO dead_letters ("+columns+") SELECT "+values+" FROM (SELECT 1 FROM dead_letters"+
			" WHERE subscription = ? AND key_id = ? AND "+holding+" ORDER BY seq LIMIT 1"+lock+") AS head", append(args, s.Letters(), m.keyID)...),
		Rows: 1, Else: errFree,
	}, err
}

// deadLetter is a row. What the database could refuse in a text is replaced:
// nothing may keep a message from being parked.
func deadLetter(d schema.Dialect, s Stream, m *message, why reason, status string, holds bool, cause error) (columns, values string, args []any, err error) {
	encoded, err := json.Marshal(keptHeaders(m.Message))
	if err != nil {
		return "", "", nil, fmt.Errorf("subscription: encode headers: %w", err)
	}
	text, typ, stack := describe(cause)
	now := bun.Safe(dbtime.Now(d))
	return "id, subscription, topic, partition_key, key_id, message_id, message_type, body, headers, error, error_type, stack, reason, attempts, first_at, last_at, status, holds, needs",
		"?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE((SELECT first_at FROM inbox_attempts WHERE subscription = ? AND message_id = ?), ?), ?, ?, ?, ?",
		[]any{
			uuid.Must(uuid.NewV7()).String(), s.Letters(), dberr.Clean(s.kept(m.Topic)), dberr.Clean(m.key), m.keyID, m.id, bun.NullZero(dberr.Clean(m.meta.Type)), m.Body, string(encoded),
			text, bun.NullZero(typ), bun.NullZero(stack), string(why), m.attempts,
			s.Name, m.id, bun.Safe(dbtime.In(d, -time.Since(m.first))), now, status, holds, m.need(why, cause),
		}, nil
}

// nativeID is the header in which a row has the broker's id of a message, if that isn't
// the message's header "id": a Format may read it whenever the message is handled.
const nativeID = "waybill-native-id"

// keptHeaders are those of a row.
func keptHeaders(m broker.Message) map[string]string {
	headers := make(map[string]string, len(m.Headers)+1)
	for name, value := range m.Headers {
		headers[dberr.Clean(name)] = dberr.Clean(value)
	}
	delete(headers, nativeID)
	if id := dberr.Clean(m.ID); id != headers["id"] && len(id) <= maxText {
		headers[nativeID] = id
	}
	return headers
}

// putBack gives m the headers of a row, and the id that is among them.
func putBack(m *broker.Message, headers []byte) error {
	if err := json.Unmarshal(headers, &m.Headers); err != nil {
		return err
	}
	m.ID = m.Headers["id"]
	if id, ok := m.Headers[nativeID]; ok {
		m.ID = id
		delete(m.Headers, nativeID)
	}
	return nil
}

// describe is what is kept of an error: its text, its Go type, and the stack of a
// panic.
func describe(err error) (text, typ, stack string) {
	if p, ok := errors.AsType[*PanicError](err); ok {
		stack = dberr.Clean(string(p.Stack[:min(len(p.Stack), maxStack)]))
		return dberr.Clip(fmt.Sprintf("the handler panicked: %v", p.Value)), fmt.Sprintf("%T", p.Value), stack
	}
	root := err
	for next := errors.Unwrap(root); next != nil; next = errors.Unwrap(root) {
		root = next
	}
	return dberr.Clip(err.Error()), fmt.Sprintf("%T", root), ""
}

// brief is err, without the rest of a text that is longer than a row keeps: it may
// quote a message.
func brief(err error) error {
	if text := err.Error(); len(text) > dberr.MaxText {
		return errors.New(dberr.Clip(text))
	}
	return err
}
