package subscription

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/pipeline"
	"github.com/waybill-go/waybill/uow"
)

// maxID keeps an id inside what an index entry can hold.
const maxID = 255

var (
	// errSettled is what a unit of work fails with whose message has taken effect
	// before, or whose key is held, or that another run has. The database says which.
	errSettled = errors.New("subscription: the message was handled before, or its key is held")
	// errFree is what a unit of work fails with that wanted to put a message behind
	// others of its key, when none is left.
	errFree = errors.New("subscription: the key is not held")
)

// open are the conditions of a dead letter that is not over, and holding those of
// one that others of its key wait for.
const (
	open    = "status IN ('parked', 'held', 'waiting', 'replay', 'early')"
	holding = open + " AND holds"
)

// claimRows are the inbox rows of messages of a stream, as the first statement of the unit of
// work that handles them. Whoever loses the race for a message waits here for the
// other's end. Nothing is claimed whose key is held: another member of the group may
// have parked a message, or let one wait, since this one looked.
func claimRows(s Stream, messages ...*message) uow.Statement {
	query, args := claimed(s.Name, messages)
	query += " WHERE NOT EXISTS (SELECT 1 FROM dead_letters WHERE subscription = ? AND key_id = v.column2 AND " + holding + ") ON CONFLICT DO NOTHING"
	return uow.Statement{
		Query: claim{bun.SafeQuery(query, append(args, s.Letters())...), s.Name, s.Letters(), messages},
		Rows:  int64(len(messages)), Else: errSettled,
	}
}

// claimAnyway is the inbox row of a message that needs no turn: it is set aside.
func claimAnyway(subscription string, m *message) uow.Statement {
	return uow.Statement{
		Query: bun.SafeQuery("INSERT INTO inbox (subscription, message_id) VALUES (?, ?) ON CONFLICT DO NOTHING", subscription, m.id),
		Rows:  1, Else: errSettled,
	}
}

// claim can also be sent as a prepared statement: see uow/postgres.
type claim struct {
	schema.QueryWithArgs
	subscription, letters string
	messages              []*message
}

// maxPrepared is how many messages a prepared statement claims at most: there is one
// for each number, on every connection.
const maxPrepared = 64

// Prepared returns the query and its values.
func (c claim) Prepared() (query string, values []any, err error) {
	if len(c.messages) > maxPrepared {
		return "", nil, nil
	}
	ids, keys := make([]string, len(c.messages)), make([]string, len(c.messages))
	for i, m := range c.messages {
		ids[i], keys[i] = m.id, m.keyID
	}
	return claimUnlessHeld, []any{c.subscription, pipeline.Texts(ids), pipeline.Texts(keys), c.letters}, nil
}

const claimUnlessHeld = "INSERT INTO inbox (subscription, message_id) SELECT $1, v.id FROM unnest($2::text[], $3::text[]) AS v(id, key)" +
	" WHERE NOT EXISTS (SELECT 1 FROM dead_letters WHERE subscription = $4 AND key_id = v.key AND " + holding + ") ON CONFLICT DO NOTHING"

func claimed(subscription string, messages []*message) (query string, args []any) {
	args = []any{subscription}
	values := make([]string, len(messages))
	for i, m := range messages {
		values[i] = "(?, ?)"
		args = append(args, m.id, m.keyID)
	}
	return "INSERT INTO inbox (subscription, message_id) SELECT ?, v.column1 FROM (VALUES " + strings.Join(values, ", ") + ") AS v", args
}

// record is what the database knows of a message before it is handled.
type record struct {
	done     bool // It has taken effect, or is parked.
	attempts int
	crashes  int
	said     string // The error of the last one.
	behind   int    // So many of its key are set aside, if the key is held.
}

// inboxOf reads the records of messages, in one snapshot. An attempt that another
// run has begun, and not ended, counts as a crash: nobody else has the message now.
func inboxOf(ctx context.Context, db bun.IDB, s Stream, run string, messages []*message) (map[*message]record, error) {
	ids := make([]string, len(messages))
	keys := make([]string, len(messages))
	for i, m := range messages {
		ids[i], keys[i] = m.id, m.keyID
	}
	query := "SELECT 'inbox', message_id, 0, 0, '' FROM inbox WHERE subscription = ? AND message_id IN (?)" +
		" UNION ALL SELECT 'attempts', message_id, attempts, crashes + CASE WHEN run <> ? THEN 1 ELSE 0 END, COALESCE(error, '') FROM inbox_attempts WHERE subscription = ? AND message_id IN (?)" +
		" UNION ALL SELECT 'held', key_id, count(*), 0, '' FROM dead_letters WHERE subscription = ? AND key_id IN (?) AND " + holding + " GROUP BY key_id"
	byID, behind := map[string]record{}, map[string]int{}
	err := dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var what, name, said string
		var n, crashes int
		err := scan(&what, &name, &n, &crashes, &said)
		r := byID[name]
		switch what {
		case "inbox":
			r.done = true
			byID[name] = r
		case "attempts":
			r.attempts, r.crashes, r.said = n, crashes, said
			byID[name] = r
		default:
			behind[name] = n
		}
		return err
	}, s.Name, bun.List(ids), run, s.Name, bun.List(ids), s.Letters(), bun.List(keys))
	if err != nil {
		return nil, fmt.Errorf("subscription: look into the inbox: %w", err)
	}
	records := make(map[*message]record, len(messages))
	for _, m := range messages {
		r := byID[m.id]
		r.behind = behind[m.keyID]
		records[m] = r
	}
	return records, nil
}

// inboxID is what stands for a message in the inbox: its id, or its hash if the
// id is not one that a database can hold.
func inboxID(id string, m broker.Message) string {
	if id == "" {
		return digest([]byte(m.Topic), []byte(m.Key), m.Body)
	}
	return indexable(id)
}

// indexable is s, or its hash if s is not one that a database can hold in an index.
func indexable(s string) string {
	if len(s) <= maxID && dberr.Clean(s) == s {
		return s
	}
	return digest([]byte(s))
}

func digest(parts ...[]byte) string {
	sum := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(sum, "%d:", len(p))
		sum.Write(p)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

// CountInbox returns how many messages each subscription of a database is done
// with.
func CountInbox(ctx context.Context, db bun.IDB) (map[string]int64, error) {
	return count(ctx, db, "SELECT subscription, count(*) FROM inbox GROUP BY subscription")
}

// CountDeadLetters returns how many dead letters of each subscription of a database
// need somebody, for those that have some: what only waits for its time is not among
// them, nor what is behind it. An index answers it.
func CountDeadLetters(ctx context.Context, db bun.IDB) (map[string]int64, error) {
	return count(ctx, db, "SELECT d.subscription, count(*) FROM dead_letters AS d WHERE "+isOpen+" AND NOT ("+patient(db)+") GROUP BY d.subscription")
}

// CountWaiting returns how many messages of each subscription of a database wait for
// their time in dead_letters, or for their process to begin, with those behind them, for
// those that have some.
func CountWaiting(ctx context.Context, db bun.IDB) (map[string]int64, error) {
	return count(ctx, db, "SELECT d.subscription, count(*) FROM dead_letters AS d WHERE "+isOpen+" AND ("+patient(db)+") GROUP BY d.subscription")
}

// EarlyLetters are dead letters that wait for a process to begin, for longer than its
// patience.
type EarlyLetters struct {
	Count int64
	Error string // of one of them: which process, and what would begin it
}

// CountEarly returns those of [CountDeadLetters] that wait for a process to begin, by
// subscription, for those that have some.
func CountEarly(ctx context.Context, db bun.IDB) (map[string]EarlyLetters, error) {
	found := map[string]EarlyLetters{}
	err := dbrows.Each(ctx, db, "SELECT d.subscription, count(*), min(d.error) FROM dead_letters AS d WHERE d.status = 'early' AND NOT ("+patient(db)+") GROUP BY d.subscription",
		func(scan func(...any) error) error {
			var name string
			var e EarlyLetters
			err := scan(&name, &e.Count, &e.Error)
			found[name] = e
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("subscription: count what came early: %w", err)
	}
	return found, nil
}

// NewerLetters are dead letters that a build can't read which is older than what has written
// them, or what they are about.
type NewerLetters struct {
	Count int64  // with those that are held behind them
	Needs string // what one of them needs a build to read: "Ordering.OrderPlaced.v2"
	More  int64  // what others need beside it
}

// CountNewer returns those of [CountDeadLetters] that a newer build handles by itself, and
// older ones leave alone, by subscription, for those that have some.
func CountNewer(ctx context.Context, db bun.IDB) (map[string]NewerLetters, error) {
	found := map[string]NewerLetters{}
	// An index finds the keys: there are none, mostly, however many dead letters there are.
	err := dbrows.Each(ctx, db, "SELECT d.subscription, count(*), COALESCE(min(d.needs), ''), count(DISTINCT replace(d.needs, '"+storedNeed+"', '')) FROM (SELECT DISTINCT n.subscription, n.key_id FROM dead_letters AS n WHERE n.needs IS NOT NULL AND n."+open+") AS k"+
		" JOIN dead_letters AS d ON d.subscription = k.subscription AND d.key_id = k.key_id WHERE "+isOpen+" AND NOT ("+patient(db)+") AND (d.needs IS NOT NULL OR d.status = 'held') GROUP BY d.subscription",
		func(scan func(...any) error) error {
			var name, needs string
			var n NewerLetters
			err := scan(&name, &n.Count, &needs, &n.More)
			n.Needs, n.More = strings.TrimPrefix(needs, storedNeed), max(n.More-1, 0)
			found[name] = n
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("subscription: count what needs a newer build: %w", err)
	}
	return found, nil
}

// patient is the condition of an open dead letter that needs nobody.
func patient(db bun.IDB) string {
	return "d.status = 'waiting' OR d.status = 'early' AND COALESCE(d.due_at > " + dbtime.Now(db.Dialect()) + ", FALSE)" +
		" OR d.status = 'held' AND EXISTS (SELECT 1 FROM dead_letters AS w WHERE w.subscription = d.subscription AND w.key_id = d.key_id AND w.status = 'waiting')"
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
