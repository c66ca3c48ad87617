package relay

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

const (
	looksATurn   = 4 // then claims come first
	fetchesATurn = 16
	dueRows      = 1000 // a page
	firstRows    = 64   // of class 1, of a partition
	firstEvery   = time.Second
)

// read takes in what there is to see: looks at partitions that were poked, or all, and
// fetches of keys that are wanted. Nothing of it overlaps a claim [TWOREADERS]: it is
// one goroutine. more says that there is more to read.
func (l *lane) read(hard context.Context, life *membership, parts []int, all bool) (more bool, err error) {
	if all {
		if err := l.r.raise(hard); err != nil {
			return false, err
		}
	}
	now := time.Now()
	l.mu.Lock()
	if all {
		l.track.pokeAll()
		l.looked = now
		// What is below the horizon that was known before is seen by these looks. One
		// that is known later says nothing of them.
		l.reached.Store(l.r.horizon.Load().at())
	}
	for _, part := range parts {
		l.track.poke(part)
	}
	l.mu.Unlock()
	if due := l.due.Load(); due != 0 && time.Duration(due) <= now.Sub(l.born) && !now.Before(l.dueNot) {
		l.due.CompareAndSwap(due, 0)
		if err := l.readDue(hard); err != nil {
			l.dueIn(0)
			return false, err
		}
		// What can't go on, as in an outage, stays due: it isn't asked for all the time.
		took := time.Since(now)
		l.dueNot = now.Add(took + min(max(10*took, retryLater), lookAnyway))
	}
	if !all && len(parts) > 0 {
		if err := l.claimFresh(hard, life); err != nil {
			return false, err
		}
	}
	if more, err = l.looks(hard); err != nil {
		return more, err
	}
	fetches, err := l.fetches(hard)
	return more || fetches, err
}

// within runs a step of the database with a deadline.
func within[T any](hard context.Context, step func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(hard, storeTimeout)
	defer cancel()
	return step(ctx)
}

// seen notes a seq that is there: the horizon may be below.
func (r *Relay) seen(seq int64) {
	for have := r.highest.Load(); seq > have && !r.highest.CompareAndSwap(have, seq); {
		have = r.highest.Load()
	}
}

// raise asks for the horizon, now and then and one lane at a time.
func (r *Relay) raise(hard context.Context) error {
	if !r.asking.TryLock() {
		return nil
	}
	defer r.asking.Unlock()
	h := r.horizon.Load()
	if !h.asks(time.Now(), r.highest.Load()) {
		return nil
	}
	sample, err := within(hard, r.cfg.Store.Horizon)
	if err == nil {
		h.sampled(sample)
		r.behind.note(r.log.With("provider", r.cfg.Provider), h.at(), h.heldUp(), time.Now())
	}
	return err
}

// standstillAfter is for how long a transaction may hold up the horizon before the log
// names it: until it ends, what was stored since is read again and again.
const standstillAfter = time.Minute

// standstill is since when the horizon is held up, where, and by whom all that time: an idle
// relay doesn't ask for long, and then another writer may be there.
type standstill struct {
	at      int64
	writers []string
	since   time.Time
	told    bool
}

func (s *standstill) note(log *slog.Logger, at int64, writers []string, now time.Time) {
	still := slices.DeleteFunc(slices.Clone(writers), func(w string) bool { return !slices.Contains(s.writers, w) })
	if len(still) == 0 || at != s.at {
		*s = standstill{at: at, writers: writers, since: now}
		return
	}
	s.writers = still
	if !s.told && now.Sub(s.since) >= standstillAfter {
		s.told = true
		log.Warn("a transaction that writes to the outbox has been open for long; publishing gets slower until it ends (see pg_stat_activity)",
			"transactions", still, "since", now.Sub(s.since).Round(time.Second))
	}
}

func (l *lane) looks(hard context.Context) (more bool, err error) {
	for range looksATurn {
		if err := l.r.raise(hard); err != nil {
			return false, err
		}
		l.mu.Lock()
		look, ok := l.track.beginLook(l.r.horizon.Load().at()) // of the database that the track is of
		l.mu.Unlock()
		if !ok {
			return false, nil
		}
		begin := time.Now()
		rows, err := within(hard, func(ctx context.Context) ([]QueueRow, error) {
			return l.r.cfg.Store.Look(ctx, l.id, look.parts, look.limit)
		})
		l.mu.Lock()
		if err != nil {
			l.track.lookFailed(look)
		} else {
			l.track.looked(look, rows, time.Now())
			for _, row := range rows {
				l.r.seen(row.Seq)
			}
		}
		behind := err == nil && l.track.behind()
		idle := l.out == 0 && l.track.listed > 0
		l.pace.looked(false, time.Since(begin))
		l.mu.Unlock()
		if err != nil {
			return false, err
		}
		if behind {
			if err := l.readFirst(hard); err != nil {
				return false, err
			}
		}
		if idle {
			return true, nil // the broker waits: claims come first
		}
	}
	return true, nil
}

// readFirst reads rows of class 1 behind the page.
func (l *lane) readFirst(hard context.Context) error {
	if time.Since(l.first) < firstEvery {
		return nil
	}
	l.mu.Lock()
	lows := l.track.lows()
	l.mu.Unlock()
	rows, err := within(hard, func(ctx context.Context) ([]QueueRow, error) {
		return l.r.cfg.Store.First(ctx, l.id, lows, firstRows)
	})
	if err != nil {
		return err
	}
	l.first = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.track.first(rows, l.first)
	return nil
}

// readDue reads whose time has come.
func (l *lane) readDue(hard context.Context) error {
	l.mu.Lock()
	parts := l.track.owned()
	l.mu.Unlock()
	type page struct {
		rows []DueRow
		next DueAt
	}
	for after := (DueAt{}); len(parts) > 0; {
		p, err := within(hard, func(ctx context.Context) (p page, err error) {
			p.rows, p.next, err = l.r.cfg.Store.Due(ctx, l.id, parts, after, dueRows)
			return p, err
		})
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.track.due(p.rows)
		l.mu.Unlock()
		if after = p.next; after == (DueAt{}) {
			return nil
		}
	}
	return nil
}

func (l *lane) fetches(hard context.Context) (more bool, err error) {
	for range fetchesATurn {
		l.mu.Lock()
		fetch, ok := l.track.nextFetch(time.Now())
		l.mu.Unlock()
		if !ok {
			return false, nil
		}
		rows, err := within(hard, func(ctx context.Context) ([]QueueRow, error) {
			return l.r.cfg.Store.Fetch(ctx, l.id, fetch.key, fetch.from, fetch.limit)
		})
		l.mu.Lock()
		if err != nil {
			l.track.fetchFailed(fetch, time.Now())
		} else {
			l.track.fetched(fetch, rows, time.Now())
		}
		l.mu.Unlock()
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// checkAt is when a key is to be looked at again.
func (t *track) checkAt() (at time.Time, ok bool) {
	if len(t.checks.places) == 0 {
		return at, false
	}
	return t.born.Add(time.Duration(t.checks.places[0].at)), true
}
