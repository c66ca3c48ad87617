package subscription

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/uow"
)

const (
	// maxID keeps an id inside what an index entry can hold.
	maxID = 255
	// maxError is how much of an error's text is kept, in characters.
	maxError = 2048
)

// errDuplicate is what a unit of work fails with whose message has taken effect
// before.
var errDuplicate = errors.New("subscription: the message was handled before")

// inboxRow claims a message for the unit of work that it is the first statement
// of. Whoever loses the race for a message waits here for the other's end.
func inboxRow(subscription, id string) uow.Statement {
	return uow.Statement{
		Query: bun.SafeQuery("INSERT INTO inbox (subscription, message_id) VALUES (?, ?) ON CONFLICT DO NOTHING", subscription, id),
		Rows:  1,
		Else:  errDuplicate,
	}
}

// inboxHas returns those of ids that a subscription is done with.
func inboxHas(ctx context.Context, db bun.IDB, subscription string, ids []string) (map[string]bool, error) {
	var found []string
	err := db.NewRaw("SELECT message_id FROM inbox WHERE subscription = ? AND message_id IN (?)", subscription, bun.List(ids)).Scan(ctx, &found)
	if err != nil {
		return nil, fmt.Errorf("subscription: look into the inbox: %w", err)
	}
	has := make(map[string]bool, len(found))
	for _, id := range found {
		has[id] = true
	}
	return has, nil
}

// reason says why a message was parked.
type reason string

const (
	undecodable  reason = "undecodable"
	newerVersion reason = "newer_version"
	parked       reason = "parked"
)

// deadLetterRow keeps m as it came. What the database could refuse in a text is
// replaced: nothing may keep a message from being parked.
func deadLetterRow(d schema.Dialect, subscription string, m *message, why reason, cause error, attempts int) (uow.Statement, error) {
	headers := make(map[string]string, len(m.Headers))
	for name, value := range m.Headers {
		headers[clean(name)] = clean(value)
	}
	encoded, err := json.Marshal(headers)
	if err != nil {
		return uow.Statement{}, fmt.Errorf("subscription: encode headers: %w", err)
	}
	return uow.Statement{
		Query: bun.SafeQuery(
			"INSERT INTO dead_letters (id, subscription, topic, partition_key, message_id, message_type, body, headers, error, reason, attempts, first_at, last_at, status)"+
				" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'parked')",
			uuid.Must(uuid.NewV7()).String(), subscription, clean(m.Topic), clean(m.key), m.id,
			bun.NullZero(clean(m.meta.Type)), m.Body, string(encoded), truncate(clean(cause.Error())), string(why), attempts,
			bun.Safe(dbtime.In(d, -time.Since(m.first))), bun.Safe(dbtime.Now(d)),
		),
		Rows: 1,
		Else: errDuplicate,
	}, nil
}

// inboxID is what stands for a message in the inbox: its id, or its hash if the
// id is not one that a database can hold.
func inboxID(id string, m broker.Message) string {
	if id != "" && len(id) <= maxID && clean(id) == id {
		return id
	}
	sum := sha256.New()
	parts := [][]byte{[]byte(id)}
	if id == "" {
		parts = [][]byte{[]byte(m.Topic), []byte(m.Key), m.Body}
	}
	for _, p := range parts {
		fmt.Fprintf(sum, "%d:", len(p))
		sum.Write(p)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

// clean is s without what PostgreSQL refuses in a text.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func truncate(s string) string {
	if utf8.RuneCountInString(s) <= maxError {
		return s
	}
	return string([]rune(s)[:maxError-1]) + "…"
}

// CountInbox returns how many messages each subscription of a database is done
// with.
func CountInbox(ctx context.Context, db bun.IDB) (map[string]int64, error) {
	return count(ctx, db, "SELECT subscription, count(*) FROM inbox GROUP BY subscription")
}

// CountDeadLetters returns how many parked messages each subscription of a
// database has.
func CountDeadLetters(ctx context.Context, db bun.IDB) (map[string]int64, error) {
	return count(ctx, db, "SELECT subscription, count(*) FROM dead_letters WHERE status = 'parked' GROUP BY subscription")
}

func count(ctx context.Context, db bun.IDB, query string) (map[string]int64, error) {
	var names []string
	var numbers []int64
	if err := db.NewRaw(query).Scan(ctx, &names, &numbers); err != nil {
		return nil, fmt.Errorf("subscription: %w", err)
	}
	counts := make(map[string]int64, len(names))
	for i, name := range names {
		counts[name] = numbers[i]
	}
	return counts, nil
}
