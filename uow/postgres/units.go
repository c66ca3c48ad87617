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
// transactions, rows are published and timers sent. It is safe for concurrent use.
type units struct {
	all int           // connections of the pool
	has chan struct{} // holds one for each unit that has a connection

	mu      sync.Mutex
	waiting int
	since   time.Time // when a unit that had waited got one last, or when the first began to wait
}

func newUnits(all int) *units {
	return &units{all: all, has: make(chan struct{}, max(1, all-max(1, all/8)))}
}

// enter waits until a unit may have a connection. Whoever waits longest comes first.
func (u *units) enter(ctx context.Context) error {
	select {
	case u.has <- struct{}{}:
		return nil
	default:
	}
	u.wait()
	select {
	case u.has <- struct{}{}:
		u.waited(true)
		return nil
	case <-ctx.Done():
		u.waited(false)
		return u.late(ctx.Err())
	}
}

// leave says that a unit has no connection any more.
func (u *units) leave() { <-u.has }

func (u *units) wait() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting++; u.waiting == 1 {
		u.since = time.Now()
	}
}

func (u *units) waited(entered bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting--
	if entered {
		u.since = time.Now()
	}
}

// still is for how long some have waited, and none of them got a connection.
func (u *units) still() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting == 0 {
		return 0
	}
	return time.Since(u.since)
}

func (u *units) late(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &noConnection{fmt.Errorf("the %d connections that units of work may have, of the pool's %d, were in use for as long as one was waited for: raise max_conns, or end transactions before what takes long: %w", cap(u.has), u.all, err)}
}
