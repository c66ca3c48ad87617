package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// units bounds how many connections of the pool units of work have at once. The others are for
// what an engine does beside them: however long handlers wait for something else in their
// transactions, rows are published and timers sent. Of sixteen, handlers leave one to other units of
// work, which somebody may be waiting for.
type units struct{ every, handlers seats }

func newUnits(all int) *units {
	n := max(1, all-max(1, all/8))
	return &units{newSeats("units of work", n, all), newSeats("handlers", n-n/16, all)}
}

// enter waits until a unit may have a connection. Whoever waits longest comes first.
func (u *units) enter(ctx context.Context, handler bool) error {
	if !handler {
		return u.every.take(ctx)
	}
	if err := u.handlers.take(ctx); err != nil {
		return err
	}
	err := u.every.take(ctx)
	if err != nil {
		u.handlers.leave()
	}
	return err
}

// leave says that a unit has no connection any more.
func (u *units) leave(handler bool) {
	u.every.leave()
	if handler {
		u.handlers.leave()
	}
}

// still is for how long some have waited, and none of them got a connection.
func (u *units) still() time.Duration { return max(u.every.still(), u.handlers.still()) }

// seats are the connections that some may have at once. It is safe for concurrent use.
type seats struct {
	whose string
	of    int           // connections that the pool has
	taken chan struct{} // holds one for each that is in use

	mu      sync.Mutex
	waiting int
	since   time.Time // when one that had waited got one last, or when the first began to wait
}

func newSeats(whose string, n, of int) seats {
	return seats{whose: whose, of: of, taken: make(chan struct{}, n)}
}

func (s *seats) take(ctx context.Context) error {
	select {
	case s.taken <- struct{}{}:
		return nil
	default:
	}
	s.wait()
	select {
	case s.taken <- struct{}{}:
		s.waited(true)
		return nil
	case <-ctx.Done():
		s.waited(false)
		return s.late(ctx.Err())
	}
}

func (s *seats) leave() { <-s.taken }

func (s *seats) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting++; s.waiting == 1 {
		s.since = time.Now()
	}
}

func (s *seats) waited(got bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	if got {
		s.since = time.Now()
	}
}

func (s *seats) still() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == 0 {
		return 0
	}
	return time.Since(s.since)
}

func (s *seats) late(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &noConnection{fmt.Errorf("the %d connections that %s may have, of the pool's %d, were in use for as long as one was waited for: raise max_conns, or end transactions before what takes long: %w", cap(s.taken), s.whose, s.of, err)}
}
