package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// Housekeeping is what the relay asks of a database beside its work.
type Housekeeping interface {
	// TakeTurn says whether it is this process's turn to do what is due every so often
	// over all processes; GiveBackTurn, that it was not done after all.
	TakeTurn(ctx context.Context, name string, every time.Duration) (mine bool, err error)
	GiveBackTurn(ctx context.Context, name string) error
	// WriteRetention notes, for people, how long finished rows stay.
	WriteRetention(ctx context.Context, c outbox.Config) error
	// Purge removes what has expired.
	Purge(ctx context.Context, r outbox.Retention) (outbox.Purged, error)
	// Promises returns the maker of a lane's promises, for one goroutine at a time. What
	// it says becomes durable with the next renewal. ok is false as long as nothing can be promised.
	Promises(target string, lane LaneID) func(context.Context) (p outbox.Promise, ok bool, err error)
}

const (
	// cleanUpAgain is when housekeeping that failed is tried again, unless its interval
	// is shorter.
	cleanUpAgain = time.Minute
	promiseEvery = 15 * time.Second
)

// housekeeping removes what has expired, once per interval over all processes:
// at the start, if an interval has passed since the last time, and from then on.
// A stop doesn't wait for it. What fails is tried again a minute later, by whoever
// comes first; the log has a line when that begins and one when it ends, and so has
// the state of every lane. With a negative interval nothing is removed.
func (r *Relay) housekeeping(ctx context.Context) {
	keep, again := r.cfg.Outbox.Retention, cleanUpAgain
	if keep.Every > 0 {
		again = min(again, keep.Every)
	}
	ctx, cancel := r.untilStop(ctx)
	defer cancel()
	failing := false
	for {
		mine, err := r.cleanUp(ctx, keep)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			r.log.Warn("the outbox could not be cleaned up; it is tried again", "provider", r.cfg.Provider, "every", again, "error", err)
			failing = true
		case err == nil && mine && failing:
			r.log.Info("the outbox is cleaned up again", "provider", r.cfg.Provider)
			failing = false
		}
		for _, l := range r.each {
			l.database.Note(ctx, cleaningUp, err)
		}
		next := keep.Every
		if err != nil {
			next = again
		} else if next < 0 {
			return
		}
		if !r.sleep(next) {
			return
		}
	}
}

// cleanUp is one interval's turn, if it is this process's. How long rows stay is noted for people
// by a process that removes none as well.
func (r *Relay) cleanUp(ctx context.Context, keep outbox.Retention) (mine bool, err error) {
	defer func() {
		if crash := recover(); crash != nil {
			err = fmt.Errorf("outbox: %v\n%s", crash, debug.Stack())
		}
	}()
	store := r.cfg.Store
	if err := store.WriteRetention(ctx, r.cfg.Outbox); err != nil {
		return false, err
	}
	if keep.Every < 0 {
		return false, nil
	}
	if mine, err = store.TakeTurn(ctx, "purge", keep.Every); err != nil || !mine {
		return mine, err
	}
	begin := time.Now()
	n, err := store.Purge(ctx, keep)
	if err != nil {
		err = errors.Join(err, store.GiveBackTurn(ctx, "purge"))
	}
	if n != (outbox.Purged{}) {
		r.log.Info("expired rows were removed from the outbox", "provider", r.cfg.Provider,
			"published", n.Published, "abandoned", n.Abandoned, "took", time.Since(begin).Round(time.Millisecond))
	}
	return mine, err
}

// promise keeps the lane's promise. While the database doesn't answer, the last one
// stands: it says less. A new one is sent only after a renewal that began later: what
// a settle has written without a flush, a crash of the server may undo until then.
func (l *lane) promise(hard context.Context) {
	ctx, cancel := l.r.untilStop(hard)
	defer cancel()
	next := l.r.cfg.Store.Promises(l.Target, l.id)
	for {
		within, done := context.WithTimeout(ctx, storeTimeout)
		p, ok, err := next(within)
		done()
		l.database.Note(ctx, promising, err)
		if err == nil && ok && l.r.durable(ctx, time.Now()) {
			l.promised.Store(&p)
		}
		if ctx.Err() != nil {
			return
		}
		if !l.r.sleep(promiseEvery) {
			return
		}
	}
}
