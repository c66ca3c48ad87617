package outboxdb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/outbox"
)

const (
	// cursorPrefix stands before "<context>:<target>" in outbox_settings. The value
	// is the seq up to which a joining target has all its events. The purge knows it.
	cursorPrefix = "backfill:"

	backfillRows  = 500
	backfillBytes = 8 << 20

	firstPause = time.Second
	lastPause  = 8 * time.Second
)

// Backfill copies earlier events for a target that is joining, and then makes it live;
// [SetTargets] says how it came to join. It copies what is still in the outbox, from which
// nothing is removed between a target's joining and its end, and with FromHistory also what
// the history has. Events get rows with new numbers, in their order, under their own ids.
//
// It may run while others write and publish, and be ended and run again at any
// time: each transaction notes how far it has come. Two at a time share the
// work. For a target that is live it does nothing. The last transaction lets no one
// write for a moment; while somebody has been writing for long, it is retried
// repeatedly. The record of actions says who asked, how many events were copied, and
// whether the target was made live.
func (s *Store) Backfill(ctx context.Context, b outbox.Backfill) (outbox.Backfilled, error) {
	// By then writers that were not stopped, and have never heard of the target,
	// were refused.
	return s.backfill(ctx, b, time.Now().Add(2*outbox.TargetsFresh))
}

// backfill ends at the earliest at a given time.
func (s *Store) backfill(ctx context.Context, b outbox.Backfill, earliest time.Time) (outbox.Backfilled, error) {
	var done outbox.Backfilled
	c, err := s.copier(ctx, b)
	if err == nil {
		err = actionRecord(b.Actor, "backfill", nil).Check("outbox: back-fill of "+b.Target.Broker, false)
	}
	if err != nil {
		return done, err
	}
	if !c.isTarget() {
		return done, &outbox.NotATargetError{Context: b.Context, Target: b.Target.Broker, Have: c.targets}
	}
	if err := c.learn(ctx, s.reader); err != nil {
		return done, err
	}
	if c.partitions, err = Partitions(ctx, s.reader); err != nil {
		return done, err
	}
	if b.FromHistory {
		if err := s.beginKept(ctx, c); err != nil {
			return done, err
		}
	}
	tell := func(waits string) {
		if b.Progress != nil {
			b.Progress(done, waits)
		}
	}
	pause := firstPause
	var h horizons
	for {
		next, err := s.copyMore(ctx, c, &h, &done)
		waits, wait := "writers with an old list of brokers to notice it", min(time.Until(earliest), firstPause)
		if err == nil && next == upToDate && wait <= 0 {
			next, err = s.copySome(ctx, c, bounds{math.MaxInt64, math.MaxInt64}, true, &done)
			if lockTimeout(err) || errors.Is(err, errTooMany) {
				next, waits, wait, err = upToDate, "a transaction that has been writing to the outbox for long", pause, nil
				pause = min(2*pause, lastPause)
			}
		}
		switch {
		case err != nil:
		case next == live:
			tell("")
			return done, nil
		case next == more:
			tell("")
		default:
			tell(waits)
			err = rest(ctx, wait)
		}
		if err != nil {
			return done, fmt.Errorf("outbox: back-fill of %s, after %d events; run it again to continue from there: %w", b.Target.Broker, done.Events, err)
		}
	}
}

// CountBackfill says how much [Store.Backfill] would copy now: for a target that
// the context doesn't have yet, from the beginning on. It changes nothing.
func (s *Store) CountBackfill(ctx context.Context, b outbox.Backfill) (outbox.Backfilled, error) {
	var found outbox.Backfilled
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
	if value, known, err := readSetting(ctx, s.reader, c.cursor); err != nil {
		return found, err
	} else if known {
		if cursor, err = parseCursor(c.cursor, value); err != nil {
			return found, err
		}
	}
	if b.FromHistory {
		return s.countKept(ctx, c, cursor)
	}
	err = dbrows.Each(ctx, s.reader, s.text("backfill_count"), func(scan func(...any) error) error {
		var wireName string
		var n int64
		var oldest, latest dbtime.Time
		if err := scan(&wireName, &n, &oldest, &latest); err != nil {
			return err
		}
		if c.Wants(wireName) {
			found.Add(outbox.Backfilled{Events: n, Oldest: oldest.Time, Latest: latest.Time})
		}
		return nil
	}, c.own, c.Context+"::", cursor, c.Target.Broker)
	return found, err
}

// copier is a back-fill with what it needs to know.
type copier struct {
	outbox.Backfill

	targets    outbox.Targets
	own        schema.QueryWithArgs // as [OwnRows]
	cursor     string               // its name in outbox_settings
	position   string               // that of keptCursor
	partitions int
	action     int64 // its id in the record; 0: none yet
	told       bool  // who asks has said which events are published
}

// asked is what the record says of a back-fill.
type asked struct {
	Context     string `json:"context"`
	Target      string `json:"target"`
	FromHistory bool   `json:"from_history,omitempty"` // Also of one that goes on as it began.
	Live        bool   `json:"live"`                   // By this action.
}

// copier looks for the context in the database.
func (s *Store) copier(ctx context.Context, b outbox.Backfill) (*copier, error) {
	have, found, err := FindTargets(ctx, s.reader, b.Context)
	if err == nil && !found {
		err = fmt.Errorf("outbox: the database does not know context %s; run `waybill migrate` with its configuration file, or start its program", b.Context)
	}
	if err != nil {
		return nil, err
	}
	own, err := OwnRows(ctx, s.reader, b.Context, have.Broker)
	if err != nil {
		return nil, err
	}
	return &copier{Backfill: b, told: b.Published != nil, targets: have, own: own, cursor: cursorPrefix + b.Context + ":" + b.Target.Broker, position: positionPrefix + b.Context + ":" + b.Target.Broker}, nil
}

// isTarget says whether the context sends to the target, joining or not.
func (c *copier) isTarget() bool { return slices.Contains(c.targets.External, c.Target.Broker) }

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
func (s *Store) copySome(ctx context.Context, c *copier, to bounds, last bool, done *outbox.Backfilled) (next progress, err error) {
	var now outbox.Backfilled
	var action int64
	err = dbtx.Run(ctx, s.db, func(tx bun.Tx) error {
		now, action = *done, c.action
		// The table before the cursor: so do all.
		if err := s.lockToCopy(ctx, tx, last); err != nil {
			return err
		}
		value, joining, err := s.lockCursor(ctx, tx, c.cursor)
		if err != nil || !joining {
			next = live
			return err
		}
		cursor, err := parseCursor(c.cursor, value)
		if err == nil {
			err = c.learn(ctx, tx)
		}
		if err != nil {
			return err
		}
		kept, err := readKept(ctx, tx, c.position)
		switch {
		case err != nil:
		case kept != nil:
			next, err = s.copyKept(ctx, tx, c, *kept, cursor, to.position, last, &now)
		default:
			next, err = s.copyStored(ctx, tx, c, cursor, to.seq, last, &now)
		}
		if err == nil {
			action, err = c.note(ctx, tx, done.Events, now.Events-done.Events, asked{c.Context, c.Target.Broker, kept != nil, next == live})
		}
		return err
	})
	if err == nil {
		*done, c.action = now, action
	}
	return next, err
}

// note has the record say that n more events were copied, or that the target is live now.
func (c *copier) note(ctx context.Context, tx bun.Tx, before, n int64, what asked) (action int64, err error) {
	r := actionRecord(c.Actor, "backfill", what)
	r.Moves, r.Always = what.Live, what.Live
	return r.Add(ctx, tx, c.action, before, n)
}

// copyStored is a transaction of a back-fill from the outbox.
func (s *Store) copyStored(ctx context.Context, tx bun.Tx, c *copier, cursor, bound int64, last bool, done *outbox.Backfilled) (progress, error) {
	rows, read, full, err := s.readRows(ctx, tx, c, s.text("backfill_events"), cursor, c.own, c.Context+"::", cursor, bound, backfillRows)
	if err == nil {
		err = s.insertMissing(ctx, tx, c.Target.Broker, rows, done)
	}
	switch {
	case err != nil:
		return more, err
	case full:
		return more, s.moveCursor(ctx, tx, c, read)
	case last:
		return live, s.goLive(ctx, tx, c)
	default:
		// Up to the bound nothing can appear any more.
		return upToDate, s.moveCursor(ctx, tx, c, max(cursor, bound))
	}
}

func (s *Store) moveCursor(ctx context.Context, tx bun.Tx, c *copier, seq int64) error {
	_, err := tx.ExecContext(ctx, s.text("setting_write"), c.cursor, strconv.FormatInt(seq, 10))
	return err
}

func (s *Store) lockToCopy(ctx context.Context, tx bun.Tx, last bool) error {
	switch {
	case s.sqlite():
		return nil
	case last:
		return s.lockOut(ctx, tx)
	default:
		_, err := tx.ExecContext(ctx, s.text("lock_writing"))
		return err
	}
}

// lockCursor reads the cursor; nobody else moves it before the transaction ends.
func (s *Store) lockCursor(ctx context.Context, tx bun.Tx, name string) (value string, joining bool, err error) {
	if !s.sqlite() {
		if _, err := tx.ExecContext(ctx, s.text("lock_setting"), name); err != nil {
			return "", false, err
		}
	}
	return readSetting(ctx, tx, name)
}

func parseCursor(name, value string) (cursor int64, err error) {
	if cursor, err = strconv.ParseInt(value, 10, 64); err != nil {
		return 0, fmt.Errorf("outbox_settings says that %s is %q; write the seq from which on events have to be copied: %w", name, value, err)
	}
	return cursor, nil
}

// insertMissing stores rows, and notes them. An event that has its row already, from a time when
// the target was one before, keeps that. Nobody else writes rows for it: units of work
// don't while it joins, and other back-fills wait for the cursor.
func (s *Store) insertMissing(ctx context.Context, tx bun.Tx, target string, rows []outbox.Row, done *outbox.Backfilled) error {
	if len(rows) == 0 {
		return nil
	}
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.MessageID
	}
	have := map[string]bool{}
	err := dbrows.Each(ctx, tx, s.text("backfill_have"), func(scan func(...any) error) error {
		var id string
		var abandoned bool
		err := scan(&id, &abandoned)
		if have[id] = true; abandoned {
			done.Abandoned++
		}
		return err
	}, target, bun.List(ids))
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(r outbox.Row) bool { return have[r.MessageID] })
	if len(rows) == 0 {
		return nil
	}
	note(done, rows)
	return s.insertRows(ctx, tx, rows)
}

func note(done *outbox.Backfilled, rows []outbox.Row) {
	for _, r := range rows {
		done.Note(r.OccurredAt)
	}
}

// goLive makes the target one like all others.
func (s *Store) goLive(ctx context.Context, tx bun.Tx, c *copier) error {
	t, _, err := FindTargets(ctx, tx, c.Context)
	if err != nil {
		return err
	}
	t.Joining = slices.DeleteFunc(t.Joining, func(j string) bool { return j == c.Target.Broker })
	if err := setCursors(ctx, tx, c.Context, t.Joining); err != nil {
		return err
	}
	return writeTargets(ctx, tx, c.Context, t, "setting_write")
}

// setCursors gives every joining target of a context its cursor, and no other
// one; what others had noted beside it goes, too.
func setCursors(ctx context.Context, tx bun.Tx, name string, joining []string) error {
	for _, prefix := range []string{cursorPrefix + name + ":", positionPrefix + name + ":"} {
		var have []string
		err := dbrows.Each(ctx, tx, text("both", "settings_like"), func(scan func(...any) error) error {
			var cursor, value string
			err := scan(&cursor, &value)
			have = append(have, cursor)
			return err
		}, len(prefix), prefix)
		if err != nil {
			return err
		}
		for _, cursor := range have {
			if slices.Contains(joining, strings.TrimPrefix(cursor, prefix)) {
				continue
			}
			if _, err := tx.ExecContext(ctx, text("both", "setting_delete"), cursor); err != nil {
				return err
			}
		}
	}
	if err := forgetSince(ctx, tx, name, joining); err != nil {
		return err
	}
	for _, j := range joining {
		if _, err := tx.ExecContext(ctx, text("both", "setting_init"), cursorPrefix+name+":"+j, "0"); err != nil {
			return err
		}
	}
	return nil
}
