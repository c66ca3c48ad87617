package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

const (
	// cursorPrefix stands before "<context>:<target>" in outbox_settings. The value
	// is the seq up to which a joining target has all its events.
	cursorPrefix = "backfill:"
	// publishedPrefix stands before the context's name in outbox_settings.
	publishedPrefix = "published:"

	backfillRows  = 500
	backfillBytes = 8 << 20

	// flipPatience is for how long who changes targets waits for transactions that
	// write, while all that come after wait behind it. An autovacuum gives way after
	// one second, PostgreSQL's deadlock_timeout.
	flipPatience       = 2 * time.Second
	firstPause         = time.Second
	lastPause          = 8 * time.Second
	exclusive, writing = "SHARE ROW EXCLUSIVE", "ROW EXCLUSIVE"
)

// removable is a condition for rows that may be removed: nothing is, as long as
// a target that is joining may still need it.
const removable = "seq <= COALESCE((SELECT min(CAST(value AS bigint)) FROM outbox_settings WHERE name LIKE '" + cursorPrefix + "%'), 9223372036854775807)"

// Backfill copies the events of the time before for a target that is joining,
// and then makes it live; [SetTargets] says how it came to join. It copies what
// is still in the outbox: from when a target joins until its events were copied,
// nothing is removed. They get rows with new numbers, of their order in the
// outbox, under the events' own ids.
//
// It may run while others write and publish, and be ended and run again at any
// time: each transaction notes how far it has come. Two at a time share the
// work. For a target that is live it does nothing. The last transaction lets no one
// write for a moment; while somebody has been writing for long, it is tried again
// and again.
func (s *Store) Backfill(ctx context.Context, b Backfill) (Backfilled, error) {
	var done Backfilled
	c, err := s.copier(ctx, b)
	if err != nil {
		return done, err
	}
	if !c.isTarget() {
		return done, &NotATargetError{Context: b.Context, Target: b.Target.Broker, Have: c.targets}
	}
	if err := c.learn(ctx, s.reader); err != nil {
		return done, err
	}
	partitions, err := Partitions(ctx, s.reader)
	if err != nil {
		return done, err
	}
	tell := func(waits string) {
		if b.Progress != nil {
			b.Progress(done, waits)
		}
	}
	// By then writers that were not stopped, and have never heard of the target,
	// were refused.
	earliest := time.Now().Add(2 * TargetsFresh)
	if b.atOnce {
		earliest = time.Time{}
	}
	stopped := func(err error) (Backfilled, error) {
		return done, fmt.Errorf("outbox: back-fill of %s; when it is run again, it goes on from there: %w", b.Target.Broker, err)
	}
	pause := firstPause
	var horizon Memory
	for {
		if err := horizon.look(ctx, s.reader, s.sqlite()); err != nil {
			return stopped(err)
		}
		next, err := s.copySome(ctx, c, partitions, horizon.horizon, false, &done)
		if err != nil {
			return stopped(err)
		}
		waits, wait := "writers with an old list of brokers to notice it", min(time.Until(earliest), firstPause)
		if next == upToDate && wait <= 0 {
			next, err = s.copySome(ctx, c, partitions, math.MaxInt64, true, &done)
			switch {
			case lockTimeout(err):
				next, waits, wait = upToDate, "a transaction that has been writing to the outbox for long", pause
				pause = min(2*pause, lastPause)
			case err != nil:
				return stopped(err)
			}
		}
		switch next {
		case live:
			tell("")
			return done, nil
		case more:
			tell("")
			continue
		}
		tell(waits)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return stopped(context.Cause(ctx))
		}
	}
}

// CountBackfill says how much [Store.Backfill] would copy now: for a target that
// the context doesn't have yet, from the beginning on. It changes nothing.
func (s *Store) CountBackfill(ctx context.Context, b Backfill) (Backfilled, error) {
	var found Backfilled
	c, err := s.copier(ctx, b)
	if err != nil {
		return found, err
	}
	if c.isTarget() && !slices.Contains(c.targets.Joining, b.Target.Broker) {
		return found, nil
	}
	if err := c.learn(ctx, s.reader); err != nil {
		return found, err
	}
	var cursor int64
	if err := s.reader.QueryRowContext(ctx, "SELECT COALESCE(max(CAST(value AS bigint)), 0) FROM outbox_settings WHERE name = ?", c.cursor).Scan(&cursor); err != nil {
		return found, err
	}
	err = dbrows.Each(ctx, s.reader, "SELECT message_type, count(*), min(occurred_at), max(occurred_at) FROM outbox WHERE "+ofContext+" AND seq > ? GROUP BY message_type",
		func(scan func(...any) error) error {
			var wireName string
			var n int64
			var oldest, latest dbtime.Time
			if err := scan(&wireName, &n, &oldest, &latest); err != nil {
				return err
			}
			if c.Wants(wireName) {
				found.Events += n
				found.note(oldest.Time)
				found.note(latest.Time)
			}
			return nil
		}, append(c.ofContext(), cursor)...)
	return found, err
}

// copier is a back-fill with what it needs to know.
type copier struct {
	Backfill
	targets Targets
	cursor  string // its name in outbox_settings
}

// copier looks for the context in the database.
func (s *Store) copier(ctx context.Context, b Backfill) (*copier, error) {
	all, err := ReadTargets(ctx, s.reader)
	if err != nil {
		return nil, err
	}
	have, ok := all[b.Context]
	if !ok {
		return nil, fmt.Errorf("outbox: the database does not know context %s; run `waybill migrate` with its configuration file, or start its program", b.Context)
	}
	return &copier{Backfill: b, targets: have, cursor: cursorPrefix + b.Context + ":" + b.Target.Broker}, nil
}

// isTarget says whether the context sends to the target, joining or not.
func (c *copier) isTarget() bool { return slices.Contains(c.targets.External, c.Target.Broker) }

// learn reads which events are published, if nobody has said it.
func (c *copier) learn(ctx context.Context, db bun.IDB) (err error) {
	if c.Published == nil {
		c.Published, err = readPublished(ctx, db, c.Context)
	}
	return err
}

// ofContext is a condition for what events are copied from: the rows of the
// context's own broker. It has the arguments of [copier.ofContext].
const ofContext = "target_broker = ? AND substr(stream_category, 1, ?) = ?"

func (c *copier) ofContext() []any {
	category := c.Context + "::"
	return []any{c.targets.Broker, len(category), category}
}

// progress is what a transaction of a back-fill came to.
type progress int

const (
	more     progress = iota // there are more events
	upToDate                 // up to the bound nothing is left
	live                     // the target is not joining any more
)

// copySome is one transaction. It copies events up to a bound: those that follow
// the cursor, which it moves. The last one has no bound, lets nobody write beside
// it, and makes the target live if nothing is left.
func (s *Store) copySome(ctx context.Context, c *copier, partitions int, bound int64, last bool, done *Backfilled) (next progress, err error) {
	var now Backfilled
	err = s.inTx(ctx, s.db, func(tx bun.Tx) error {
		now = *done
		mode, patience := writing, time.Duration(0)
		if last {
			mode, patience = exclusive, flipPatience
		}
		// The table before the cursor: so do all.
		if err := s.lockTable(ctx, tx, mode, patience); err != nil {
			return err
		}
		cursor, err := s.lockCursor(ctx, tx, c.cursor)
		if errors.Is(err, sql.ErrNoRows) {
			next = live
			return nil
		}
		if err != nil {
			return err
		}
		rows, read, full, err := s.readEvents(ctx, tx, c, partitions, cursor, bound, &now)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			if err := s.insertMissing(ctx, tx, rows); err != nil {
				return err
			}
		}
		switch {
		case full:
			next, cursor = more, read
		case last:
			next = live
			return s.goLive(ctx, tx, c)
		default:
			// Up to the bound nothing can appear any more.
			next, cursor = upToDate, max(cursor, bound)
		}
		_, err = tx.ExecContext(ctx, "UPDATE outbox_settings SET value = ? WHERE name = ?", strconv.FormatInt(cursor, 10), c.cursor)
		return err
	})
	if err == nil {
		*done = now
	}
	return next, err
}

// readEvents makes rows for the target of the next events. read is the last seq
// that it has looked at; full says that there may be more below the bound.
func (s *Store) readEvents(ctx context.Context, tx bun.Tx, c *copier, partitions int, after, bound int64, done *Backfilled) (rows []Row, read int64, full bool, err error) {
	n, size := 0, 0
	err = dbrows.Each(ctx, tx, "SELECT seq, partition_key, message_type, payload FROM outbox WHERE "+ofContext+" AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
		func(scan func(...any) error) error {
			if full {
				return nil
			}
			var key, wireName string
			var body []byte
			if err := scan(&read, &key, &wireName, &body); err != nil {
				return err
			}
			n++
			size += len(body)
			full = n == backfillRows || size > backfillBytes
			if !c.Wants(wireName) {
				return nil
			}
			made, err := c.Copy(c.targets.Broker, wireName, key, body, partitions)
			if err != nil {
				return fmt.Errorf("row %d: %w", read, err)
			}
			rows = append(rows, made)
			done.Note(made.OccurredAt)
			return nil
		}, append(c.ofContext(), after, bound, backfillRows)...)
	return rows, read, full, err
}

// insertMissing stores rows. An event that has its row already, from a time when
// the target was one before, keeps that.
func (s *Store) insertMissing(ctx context.Context, tx bun.Tx, rows []Row) error {
	query, err := Insert(rows).AppendQuery(s.db.QueryGen(), nil)
	if err != nil {
		return err
	}
	// Past bun, which would take a question mark in the SQL for an argument.
	_, err = tx.Tx.ExecContext(ctx, string(append(query, " ON CONFLICT (message_id, target_broker) DO NOTHING"...)))
	return err
}

// goLive makes the target one like all others.
func (s *Store) goLive(ctx context.Context, tx bun.Tx, c *copier) error {
	all, err := ReadTargets(ctx, tx)
	if err != nil {
		return err
	}
	t := all[c.Context]
	t.Joining = slices.DeleteFunc(t.Joining, func(j string) bool { return j == c.Target.Broker })
	if err := s.setCursors(ctx, tx, c.Context, t.Joining); err != nil {
		return err
	}
	return writeTargets(ctx, tx, c.Context, t, overwrite)
}

// setCursors gives every joining target of a context its cursor, and no other
// one.
func (s *Store) setCursors(ctx context.Context, tx bun.Tx, name string, joining []string) error {
	prefix := cursorPrefix + name + ":"
	var have []string
	if err := scanAll(ctx, tx, &have, "SELECT name FROM outbox_settings WHERE substr(name, 1, ?) = ?", len(prefix), prefix); err != nil {
		return err
	}
	for _, cursor := range have {
		if slices.Contains(joining, strings.TrimPrefix(cursor, prefix)) {
			continue
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM outbox_settings WHERE name = ?", cursor); err != nil {
			return err
		}
	}
	for _, j := range joining {
		if _, err := tx.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES (?, '0') ON CONFLICT DO NOTHING", prefix+j); err != nil {
			return err
		}
	}
	return nil
}

// lockCursor is the cursor; nobody else moves it before the transaction ends.
func (s *Store) lockCursor(ctx context.Context, tx bun.Tx, name string) (cursor int64, err error) {
	query := "SELECT value FROM outbox_settings WHERE name = ?"
	if !s.sqlite() {
		query += " FOR UPDATE"
	}
	var value string
	if err := tx.QueryRowContext(ctx, query, name).Scan(&value); err != nil {
		return 0, err
	}
	if cursor, err = strconv.ParseInt(value, 10, 64); err != nil {
		return 0, fmt.Errorf("outbox_settings says that %s is %q; write the seq from which on events have to be copied: %w", name, value, err)
	}
	return cursor, nil
}

// lockTable locks the outbox until the transaction ends. SQLite has one writer.
func (s *Store) lockTable(ctx context.Context, tx bun.Tx, mode string, patience time.Duration) error {
	if s.sqlite() {
		return nil
	}
	if patience > 0 {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", patience.Milliseconds())); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "LOCK TABLE outbox IN "+mode+" MODE")
	return err
}

// WritePublished notes which events of a context are published, by their short
// names, for a back-fill by `waybill outbox backfill`, which knows no domain.
func WritePublished(ctx context.Context, db bun.IDB, name string, events []string) error {
	if have, err := readPublished(ctx, db, name); err == nil && slices.Equal(have, events) {
		return nil
	}
	value, err := json.Marshal(append([]string{}, events...))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "INSERT INTO outbox_settings (name, value) VALUES (?, ?) ON CONFLICT "+overwrite, publishedPrefix+name, string(value))
	if err != nil {
		return fmt.Errorf("outbox: write published events of context %s: %w", name, err)
	}
	return nil
}

func readPublished(ctx context.Context, db bun.IDB, name string) (events []string, err error) {
	var value string
	err = db.QueryRowContext(ctx, "SELECT value FROM outbox_settings WHERE name = ?", publishedPrefix+name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("outbox: the database does not know which events of context %s are published; its program writes them down when it starts its engine, or with engine.Migrate", name)
	}
	if err == nil {
		err = json.Unmarshal([]byte(value), &events)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: read published events of context %s: %w", name, err)
	}
	return events, nil
}
