package outbox

import (
	"context"
	"time"

	"github.com/uptrace/bun"
)

// Memory is what a worker knows of its partitions from one claim to the next:
// the keys that can't go on, and up to where every unfinished row is of one of
// them. So the rows behind a head that waits for its retry, or that is held, are
// read once and not at every look. The zero value knows nothing. It is used by
// one goroutine at a time.
//
// What makes it sound: a row may become visible below others that were read
// before, because its transaction drew its seq earlier and committed later. Such
// a row is never below the horizon: up to there every transaction that drew a
// seq has ended. Below the horizon rows only leave, except by an operator, who
// says so in outbox_partitions.changes.
type Memory struct {
	partitions map[int]*past
	horizon    int64
	highest    int64 // seq that was read
	walked     int   // rows that the last look read in vain

	// noted is highest at a time when xmax was the next transaction. Transactions
	// have their number before they draw a seq, because a unit writes its
	// aggregates before its outbox rows; so when all below xmax have ended, noted
	// is below the horizon.
	noted int64
	xmax  uint64
}

// past is what is known of a partition.
type past struct {
	fence, changes int64
	after          int64 // every unfinished row up to here is of a key in walls
	walls          map[string]wall
	next           time.Time // when the first wall falls; zero: none does by itself

	looked  time.Time // last
	walking bool      // so far this look has met nothing but keys in walls
}

// wall is the head of a key that can't go on.
type wall struct {
	head  int64
	until time.Time // zero: until an operator decides
}

// longWalk is how many rows a look may read in vain before it is worth asking
// for the horizon.
const longWalk = 500

// forgotten is for how long a partition is remembered that isn't looked at.
const forgotten = time.Minute

// begin prepares a look at some partitions, which are at what own says.
func (m *Memory) begin(own map[int]partitionState) {
	now := time.Now()
	if m.partitions == nil {
		m.partitions = map[int]*past{}
	}
	for p, k := range m.partitions {
		if now.Sub(k.looked) > forgotten {
			delete(m.partitions, p)
		}
	}
	for p, at := range own {
		k := m.partitions[p]
		if k == nil || k.fence != at.fence || k.changes != at.changes {
			k = &past{fence: at.fence, changes: at.changes, walls: map[string]wall{}}
			m.partitions[p] = k
		}
		k.begin(now)
	}
	m.walked = 0
}

// begin takes down the walls whose time has come. What is behind them is read
// again.
func (k *past) begin(now time.Time) {
	k.walking, k.looked = true, now
	if k.next.IsZero() || now.Before(k.next) {
		return
	}
	k.next = time.Time{}
	for key, w := range k.walls {
		switch {
		case w.until.IsZero():
		case !now.Before(w.until):
			k.after = min(k.after, w.head-1)
			delete(k.walls, key)
		case k.next.IsZero() || w.until.Before(k.next):
			k.next = w.until
		}
	}
}

// remembers says whether there is anything that an operator's change would
// make wrong.
func (m *Memory) remembers() bool {
	if m != nil {
		for _, k := range m.partitions {
			if len(k.walls) > 0 {
				return true
			}
		}
	}
	return false
}

// wait is the time until the first wall of these partitions falls; 0 if none
// does by itself.
func (m *Memory) wait(own map[int]partitionState) time.Duration {
	var next time.Time
	for p := range own {
		if k := m.partitions[p]; !k.next.IsZero() && (next.IsZero() || k.next.Before(next)) {
			next = k.next
		}
	}
	if next.IsZero() {
		return 0
	}
	return max(time.Until(next), time.Millisecond)
}

// blocked says whether the row is of a key that can't go on.
func (m *Memory) blocked(c candidate) bool {
	_, ok := m.partitions[c.partition].walls[c.key]
	return ok
}

// pass notes a row that was read and not taken. Until is when its key's head may
// go on (zero: not by itself); lasting is false for what may change at any time.
func (m *Memory) pass(c candidate, lasting bool, until time.Time) {
	m.walked++
	m.highest = max(m.highest, c.seq)
	k := m.partitions[c.partition]
	if !k.walking {
		return
	}
	if lasting && c.seq <= m.horizon {
		if _, ok := k.walls[c.key]; !ok {
			k.walls[c.key] = wall{head: c.seq, until: until}
			if !until.IsZero() && (k.next.IsZero() || until.Before(k.next)) {
				k.next = until
			}
		}
		k.after = c.seq
		return
	}
	k.walking = false
}

// take notes a row that is taken.
func (m *Memory) take(c candidate) {
	m.highest = max(m.highest, c.seq)
	m.partitions[c.partition].walking = false
}

// long says whether it is worth moving the horizon.
func (m *Memory) long() bool { return m.walked >= longWalk }

// look moves the horizon. It comes before the walk, whose snapshot then sees
// everything up to the horizon.
func (m *Memory) look(ctx context.Context, db bun.IDB, sqlite bool) error {
	if sqlite {
		m.horizon = m.highest // one writer: what draws a seq later commits later
		return nil
	}
	var xmin, xmax uint64
	err := db.QueryRowContext(ctx, "SELECT pg_snapshot_xmin(now)::text::bigint, pg_snapshot_xmax(now)::text::bigint FROM pg_current_snapshot() AS now").Scan(&xmin, &xmax)
	if err != nil {
		return err
	}
	if m.noted > 0 && xmin >= m.xmax {
		m.horizon, m.noted = max(m.horizon, m.noted), 0
	}
	if m.noted == 0 && m.highest > m.horizon {
		m.noted, m.xmax = m.highest, xmax
	}
	return nil
}
