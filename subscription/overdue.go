package subscription

import (
	"sync"
	"time"
)

// calls are the calls of handlers that have not returned.
type calls struct {
	mu   sync.Mutex
	ends map[*message]time.Time // when the time of each is over
}

func (c *calls) begin(m *message, timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = map[*message]time.Time{}
	}
	c.ends[m] = time.Now().Add(timeout)
}

func (c *calls) end(m *message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ends, m)
}

// overdue says how many go on although their time is over, beyond what it takes to notice
// that, and since when the first of them.
func (c *calls) overdue() (n int64, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.ends {
		if time.Since(end) < deafTime {
			continue
		}
		if n++; n == 1 || end.Before(since) {
			since = end
		}
	}
	return n, since
}
