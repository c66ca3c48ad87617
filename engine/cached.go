package engine

import (
	"context"
	"sync"
	"time"
)

const (
	// freshFor is how long an answer is good at least for everybody who asks, so that
	// asking often doesn't load what is asked.
	freshFor = time.Second
	// pingTimeout bounds a look at whether something answers. A probe waits for
	// it half as long.
	pingTimeout = 2 * time.Second
	// slowTimeout is that of a database, which works when it is slow.
	slowTimeout = 5 * time.Second
	// statsTimeout bounds the counting of rows, of which there may be millions.
	statsTimeout = 5 * time.Second
	// countRest is how many times as long as a count took nobody counts again: of millions of
	// rows a database would do nothing else while pages are open.
	countRest = 4
)

// cached asks something slow only when somebody wants to know, once for all who
// do, and never makes them wait long.
type cached[T any] struct {
	load     func(ctx context.Context) T
	start    func(func(ctx context.Context)) bool
	limit    time.Duration // of a load
	patience time.Duration // of somebody who asks
	rest     int           // after a load, in times as long as it took

	mu    sync.Mutex
	value T
	at    time.Time
	took  time.Duration
	good  time.Duration // for how long from then
	busy  chan struct{} // closed when the load under way ends; nil: there is none
}

// found is what a load found, or why it didn't.
type found[T any] struct {
	value T
	err   error
}

func newCached[T any](load func(ctx context.Context) T, l *lookouts, limit, patience time.Duration) *cached[T] {
	return &cached[T]{load: load, start: l.start, limit: limit, patience: patience}
}

// newCount is of what counts rows.
func newCount[T any](load func(ctx context.Context) T, l *lookouts) *cached[T] {
	c := newCached(load, l, statsTimeout, statsTimeout)
	c.rest = countRest
	return c
}

// get returns an answer that is fresh, or false if there is none in time.
func (c *cached[T]) get(ctx context.Context) (T, bool) {
	c.mu.Lock()
	if c.fresh() {
		defer c.mu.Unlock()
		return c.value, true
	}
	busy := c.busy
	if busy == nil {
		busy = make(chan struct{})
		if !c.start(func(ctx context.Context) { c.refresh(ctx, busy) }) {
			defer c.mu.Unlock()
			var none T
			return none, false
		}
		c.busy = busy
	}
	c.mu.Unlock()

	wait, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	select {
	case <-busy:
	case <-wait.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh() {
		return c.value, true
	}
	var none T
	return none, false
}

// recent is for who asks again and again, and would rather have what was found a
// little earlier than wait: it waits for a second at most. What a load that doesn't
// end would have changed is not known any more.
func (c *cached[T]) recent(ctx context.Context) (T, bool) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout/2)
	defer cancel()
	value, ok := c.get(ctx)
	if ok {
		return value, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < c.good+c.limit {
		return c.value, true
	}
	return value, false
}

// age is how old an answer may be.
type age int

const (
	fresh  age = iota // for get
	recent            // for recent
)

// ask is get or recent.
func (c *cached[T]) ask(ctx context.Context, as age) (T, bool) {
	if as == recent {
		return c.recent(ctx)
	}
	return c.get(ctx)
}

// slow is what was loaded last, if that took longer than somebody waits who asks.
func (c *cached[T]) slow() (value T, took time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.took, c.took > c.patience
}

func (c *cached[T]) fresh() bool { return !c.at.IsZero() && time.Since(c.at) < c.good }

func (c *cached[T]) refresh(ctx context.Context, busy chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	begin := time.Now()
	value := c.load(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.at, c.busy = value, time.Now(), nil
	c.took = c.at.Sub(begin)
	c.good = max(freshFor, time.Duration(c.rest)*c.took)
	close(busy)
}

// lookouts are the goroutines that load. They end with the engine.
type lookouts struct {
	ctx context.Context
	end context.CancelFunc

	mu sync.Mutex
	wg sync.WaitGroup
}

func newLookouts() *lookouts {
	ctx, end := context.WithCancel(context.Background())
	return &lookouts{ctx: ctx, end: end}
}

// start runs fn unless the engine has ended.
func (l *lookouts) start(fn func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.wg.Go(func() { fn(l.ctx) })
	return true
}

func (l *lookouts) stop() {
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.wg.Wait()
}
