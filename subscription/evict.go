package subscription

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"

	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
	"github.com/waybill-go/waybill/internal/dbtx"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/uow"
)

const (
	evictEvery = time.Minute
	// evictFirst is how many rows the first step of an eviction removes, before it
	// knows how long that takes; evictMost is how many one removes at most.
	evictFirst = 500
	evictMost  = 2000
	// evictTarget is how long a step should take; its size follows.
	evictTarget = 25 * time.Millisecond
	// evictRest is how many times as long as a step the pause behind it is.
	evictRest = 3
	// evictLimit is when PostgreSQL ends a step that takes longer all the same.
	evictLimit = 200 * time.Millisecond
	// beyondEvery is how often the log tells of messages beyond the horizon.
	beyondEvery = time.Minute
)

// errTurn is what a step ends with when another run has taken the turn.
var errTurn = errors.New("subscription: another run evicts")

// evictor removes what the inbox has known for longer than its retention, counted
// while the subscription was up: in the time in which nobody consumed, nothing came
// a second time either. So nothing is removed early after a long stop; nor what its
// sender may send again, as far as senders say so.
//
// All runs of a subscription have one, and take turns.
type evictor struct {
	provider     uow.Provider
	subscription string
	run          string
	retention    time.Duration // Below 0: for ever.
	log          *slog.Logger
	note         func(error)
	every        time.Duration
	most         int // rows a step
	marks        *marks
	quiet        time.Duration // After which a sender that sends nothing doesn't count.
	held         bool          // Senders may send again what is old enough to go.
	crowded      bool          // There are more senders than marks.

	horizon atomic.Pointer[time.Time] // What was processed before then is gone.
	passed  atomic.Int64              // Messages beyond it.
	told    atomic.Pointer[time.Time]
}

func newEvictor(provider uow.Provider, subscription, run string, retention, quiet time.Duration, log *slog.Logger, note func(error)) *evictor {
	return &evictor{
		provider: provider, subscription: subscription, run: run, retention: retention, quiet: quiet,
		log: log, note: note, every: evictEvery, most: evictMost, marks: &marks{room: maxMarks, seen: map[mark]outbox.Promise{}},
	}
}

// start begins to evict, an interval later. That ends at once with ctx, or by stop.
func (e *evictor) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e.round(ctx, false); sleep(ctx, delay(e.every, e.every, 1)); {
			e.round(ctx, e.retention >= 0)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// round tells how it ended, well or not.
func (e *evictor) round(ctx context.Context, evict bool) {
	var err error
	if evict {
		if err = e.report(ctx); err == nil { // nothing goes while a mark is missing
			err = e.turn(ctx)
		}
	}
	err = errors.Join(err, e.learn(ctx))
	if ctx.Err() == nil {
		e.note(err)
	}
}

// beyond counts a message that was handled if the inbox, which didn't know it, may
// have known it once: it was sent before the horizon.
func (e *evictor) beyond(id string, sent time.Time) bool {
	horizon := e.horizon.Load()
	if horizon == nil || sent.IsZero() || !sent.Before(*horizon) {
		return false
	}
	n, now, told := e.passed.Add(1), time.Now(), e.told.Load()
	if (told == nil || now.Sub(*told) >= beyondEvery) && e.told.CompareAndSwap(told, &now) {
		e.log.Warn("a message was handled that may have been handled before: the inbox remembers none of its age; to have it remember longer, raise Stream.InboxRetention",
			"id", id, "sent", sent, "remembers_from", *horizon, "such_messages", n)
	}
	return true
}

// learn reads how far any run has evicted.
func (e *evictor) learn(ctx context.Context) error {
	var horizon dbtime.Time
	err := e.provider.Reader().NewRaw("SELECT evicted FROM subscription_evictions WHERE subscription = ?", e.subscription).Scan(ctx, &horizon)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("subscription: read how far the inbox was evicted: %w", err)
	}
	if horizon.Valid {
		e.horizon.Store(&horizon.Time)
	}
	return nil
}

// turn evicts for half an interval at most, if it is this run's turn. The turn lasts
// longer than that.
func (e *evictor) turn(ctx context.Context) error {
	end := time.Now().Add(e.every / 2)
	mine, err := e.take(ctx, 3*e.every/4)
	if err != nil {
		return fmt.Errorf("subscription: take the turn to evict from the inbox: %w", err)
	}
	if !mine {
		return nil
	}
	cutoff, ok, err := e.upSince(ctx, e.retention)
	if err != nil {
		return fmt.Errorf("subscription: find out how long the subscription was up: %w", err)
	}
	if !ok {
		return nil
	}
	if cutoff, ok, err = e.hold(ctx, cutoff); err != nil || !ok {
		return err
	}
	begin := time.Now()
	n, err := e.evict(ctx, cutoff, end)
	if n > 0 {
		e.log.Debug("old entries were removed from the inbox", "entries", n, "from_before", cutoff, "took", time.Since(begin).Round(time.Millisecond))
	}
	if err == nil {
		err = e.sweep(ctx, cutoff)
	}
	if err != nil && !errors.Is(err, errTurn) {
		return fmt.Errorf("subscription: evict from the inbox: %w", err)
	}
	return nil
}

// take takes the turn if it is due. One that is due later than any can be is from
// when the database's clock was wrong.
func (e *evictor) take(ctx context.Context, length time.Duration) (bool, error) {
	d := e.provider.DB().Dialect()
	due := bun.Safe(dbtime.In(d, length))
	result, err := e.provider.DB().ExecContext(ctx, "INSERT INTO subscription_evictions (subscription, run, due_at) VALUES (?, ?, ?)"+
		" ON CONFLICT (subscription) DO UPDATE SET run = excluded.run, due_at = excluded.due_at WHERE subscription_evictions.due_at NOT BETWEEN ? AND ?",
		e.subscription, e.run, due, bun.Safe(dbtime.Now(d)), due)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// upSince is the time since which the subscription was up for so long; ok is false
// if it never was.
func (e *evictor) upSince(ctx context.Context, left time.Duration) (at time.Time, ok bool, err error) {
	db := e.provider.Reader()
	now := bun.Safe(dbtime.Now(db.Dialect()))
	rows, err := db.QueryContext(ctx, "SELECT up_from, CASE WHEN up_until < ? THEN up_until ELSE ? END FROM subscription_uptime WHERE subscription = ? AND up_from <= ? ORDER BY up_from DESC",
		now, now, e.subscription, now)
	if err != nil {
		return at, false, err
	}
	defer func() { _ = rows.Close() }()
	for later := (time.Time{}); rows.Next(); {
		var from, until dbtime.Time
		if err := rows.Scan(&from, &until); err != nil {
			return at, false, err
		}
		if !later.IsZero() && later.Before(until.Time) {
			until.Time = later // counted already
		}
		length := until.Time.Sub(from.Time)
		if length >= left {
			return until.Time.Add(-left), true, nil
		}
		left, later = left-length, from.Time
	}
	return at, false, rows.Err()
}

// evict removes what was processed before cutoff, step by step, until end.
func (e *evictor) evict(ctx context.Context, cutoff, end time.Time) (removed int, err error) {
	for size := min(evictFirst, e.most); time.Now().Before(end); {
		begin := time.Now()
		n, err := e.step(ctx, cutoff, size)
		took := time.Since(begin)
		removed += n
		switch {
		case timedOut(err) && size > 1:
			size = max(size/4, 1)
		case err != nil || n < size:
			return removed, err
		case took > evictTarget:
			size = max(size/2, 1)
		case took < evictTarget/2:
			size = min(2*size, e.most)
		}
		if !sleep(ctx, evictRest*took) {
			return removed, ctx.Err()
		}
	}
	return removed, nil
}

// step removes the oldest rows, and notes in the same transaction from when the rest
// is. It looks at none that is older than that: what was removed and not vacuumed yet
// would have to be passed each time.
func (e *evictor) step(ctx context.Context, cutoff time.Time, size int) (n int, err error) {
	var horizon time.Time
	err = dbtx.Run(ctx, e.provider.DB(), func(tx bun.Tx) (err error) {
		if e.postgres() {
			limits := fmt.Sprintf("SELECT set_config('statement_timeout', '%d', true), set_config('lock_timeout', '%d', true)", evictLimit.Milliseconds(), evictLimit.Milliseconds()/2)
			if _, err := tx.ExecContext(ctx, limits); err != nil {
				return err
			}
		}
		if n, horizon, err = e.remove(ctx, tx, cutoff, size); err != nil || n == 0 {
			return err
		}
		if n < size {
			horizon = cutoff
		}
		result, err := tx.ExecContext(ctx, "UPDATE subscription_evictions SET evicted = ? WHERE subscription = ? AND run = ?",
			dbtime.Value(tx.Dialect(), horizon), e.subscription, e.run)
		if err != nil {
			return err
		}
		if noted, err := result.RowsAffected(); err != nil || noted == 0 {
			return errors.Join(err, errTurn)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if n > 0 {
		e.horizon.Store(&horizon)
	}
	return n, nil
}

// remove returns how many rows there were, and when the last of them was processed.
func (e *evictor) remove(ctx context.Context, tx bun.Tx, cutoff time.Time, size int) (n int, last time.Time, err error) {
	from := e.horizon.Load()
	if from == nil {
		from = &time.Time{}
	}
	these := " FROM inbox WHERE subscription = ? AND processed_at >= ? AND processed_at < ? ORDER BY processed_at LIMIT ?"
	query := "DELETE FROM inbox WHERE ctid = ANY (ARRAY(SELECT ctid" + these + ")) RETURNING processed_at"
	args := []any{e.subscription, dbtime.Value(tx.Dialect(), *from), dbtime.Value(tx.Dialect(), cutoff), size}
	if !e.postgres() {
		query = "DELETE FROM inbox WHERE subscription = ? AND message_id IN (SELECT message_id" + these + ") RETURNING processed_at"
		args = append([]any{e.subscription}, args...)
	}
	err = dbrows.Each(ctx, tx, query, func(scan func(...any) error) error {
		var at dbtime.Time
		err := scan(&at)
		if n++; at.Time.After(last) {
			last = at.Time
		}
		return err
	}, args...)
	return n, last, err
}

// sweep removes what came once, failed, and never came again; and the uptime that
// doesn't count any more.
func (e *evictor) sweep(ctx context.Context, cutoff time.Time) error {
	db := e.provider.DB()
	at := dbtime.Value(db.Dialect(), cutoff)
	_, err := db.ExecContext(ctx, "DELETE FROM inbox_attempts WHERE subscription = ? AND last_at < ? AND message_id IN"+
		" (SELECT message_id FROM inbox_attempts WHERE subscription = ? AND last_at < ? LIMIT ?)",
		e.subscription, at, e.subscription, at, evictFirst)
	if err == nil {
		_, err = db.ExecContext(ctx, "DELETE FROM subscription_uptime WHERE subscription = ? AND up_until < ?", e.subscription, at)
	}
	return err
}

func (e *evictor) postgres() bool { return e.provider.DB().Dialect().Name() != dialect.SQLite }

// timedOut says whether PostgreSQL ended a statement because it took too long.
func timedOut(err error) bool {
	state, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	return ok && state.SQLState() == "57014"
}
