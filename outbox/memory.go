package outbox

import (
	"context"
	"iter"
	"slices"
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
// a row is never below the horizon: up to there every transaction that drew a seq
// has ended. Below the horizon rows only leave, except by an operator, who
// says so in outbox_partitions.changes, or empties the table and lets its numbers
// begin anew, which the last of them shows.
type Memory struct {
	partitions map[int]*past
	horizon    int64
	far        bool      // the last look went past rows that can't go on
	intricate  bool      // a simple claim is of no use
	busy       bool      // the last claim found more than it could take, or what can't go on
	deeper     int       // its pages are doubled so often, as most partitions have little
	looked     time.Time // when the horizon was moved last

	ranked bool // rows with priorities waited at the last look: nothing is remembered of these
	turn   int  // how many claims there were

	// noted is the highest seq at a time when the running transactions had written
	// to the outbox. Whoever draws a seq has locked the table for writing before,
	// until its end; so when these have ended, noted is below the horizon.
	noted   int64
	running []string
}

// past is what is known of a partition.
type past struct {
	fence, changes int64
	after          int64 // every unfinished row up to here is of a key in walls
	// taken is at least after: every unfinished row between the two is in the worker's
	// hand. 0: not known.
	taken int64
	walls map[string]wall
	next  time.Time // when the first wall falls; zero: none does by itself

	looked  time.Time // last
	walking bool      // so far this look has met nothing but keys in walls
}

// wall is the head of a key that can't go on.
type wall struct {
	head  int64
	until time.Time // zero: until an operator decides
}

// forgotten is for how long a partition is remembered that isn't looked at.
const forgotten = time.Minute

// claimed notes that a claim was made.
func (m *Memory) claimed() {
	if m != nil {
		m.turn++
	}
}

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
		if k == nil || k.fence != at.fence || k.changes != at.changes || at.last < k.after {
			k = &past{fence: at.fence, changes: at.changes, walls: map[string]wall{}}
			m.partitions[p] = k
		}
		k.begin(now)
	}
	m.far = false
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
			k.after, k.taken = min(k.after, w.head-1), min(k.taken, w.head-1)
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
			if len(k.walls) > 0 || k.after > 0 {
				return true
			}
		}
	}
	return false
}

// walled adds the keys that can't go on in some partitions.
func (m *Memory) walled(leases []Lease, keys map[string]bool) {
	for _, l := range leases {
		if k := m.partitions[l.Partition]; k != nil {
			for key := range k.walls {
				keys[key] = true
			}
		}
	}
}

// falling says that a wall's time has come.
func (m *Memory) falling(leases []Lease) bool {
	now := time.Now()
	return slices.ContainsFunc(leases, func(l Lease) bool {
		k := m.partitions[l.Partition]
		return k != nil && !k.next.IsZero() && !now.Before(k.next)
	})
}

// walls is how many keys it knows that can't go on.
func (m *Memory) walls() (n int) {
	for _, k := range m.partitions {
		n += len(k.walls)
	}
	return n
}

// bound is the seq behind which a simple claim looks, as long as the
// partition has had so many changes.
func (m *Memory) bound(l Lease) (after, changes int64) {
	if k := m.partitions[l.Partition]; k != nil && k.fence == l.Fence {
		return max(k.after, k.taken), k.changes
	}
	return 0, -1
}

// saw notes what such a claim has seen of its partitions, by one who had these rows
// in hand before. Mistaken says that what it looked behind was out of date.
func (m *Memory) saw(v sight, hand []Claimed) (mistaken bool) {
	m.busy = v.full()
	if v.priorities {
		return false
	}
	if m.partitions == nil {
		m.partitions = map[int]*past{}
	}
	lowest := map[int]int64{}
	for _, row := range hand {
		if at, ok := lowest[row.Partition]; !ok || row.Seq < at {
			lowest[row.Partition] = row.Seq
		}
	}
	now := time.Now()
	for p, at := range v.partitions {
		if !at.locked {
			continue
		}
		k := m.partitions[p]
		if k == nil || k.fence != at.fence || k.changes != at.changes || at.after < max(k.after, k.taken) {
			mistaken = mistaken || k != nil
			k = &past{fence: at.fence, changes: at.changes, walls: map[string]wall{}}
			m.partitions[p] = k
		}
		k.looked = now
		finished := k.taken
		if seq, ok := lowest[p]; ok {
			finished = min(finished, seq-1)
		}
		k.after = max(k.after, finished)
		k.taken = max(k.taken, min(at.taken, m.horizon))
	}
	return mistaken
}

// Spilled notes that rows have left the worker's hand without being published.
func (m *Memory) Spilled() {
	for _, k := range m.partitions {
		k.taken = 0
	}
}

// lookSometimes moves the horizon now and then while there is much to do, or a key
// that can't go on: what was published and not vacuumed yet stays in the index, and
// would be passed by each claim.
func (m *Memory) lookSometimes(ctx context.Context, db bun.IDB, sqlite bool) error {
	if !m.busy || time.Since(m.looked) < lookEvery {
		return nil
	}
	return m.look(ctx, db, sqlite)
}

const lookEvery = time.Second

// known is a copy of what is remembered of the partitions with walls, without
// these.
func (m *Memory) known() map[int]past {
	var known map[int]past
	for p, k := range m.partitions {
		if len(k.walls) > 0 {
			if known == nil {
				known = map[int]past{}
			}
			known[p] = past{fence: k.fence, changes: k.changes, after: k.after, next: k.next}
		}
	}
	return known
}

// wait is the time until the first wall of these partitions falls; 0 if none
// does by itself.
func (m *Memory) wait(partitions iter.Seq[int]) time.Duration {
	var next time.Time
	for p := range partitions {
		if k := m.partitions[p]; k != nil && !k.next.IsZero() && (next.IsZero() || k.next.Before(next)) {
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
// known says whether the key is remembered.
func (m *Memory) pass(c candidate, lasting bool, until time.Time) (known bool) {
	k := m.partitions[c.partition]
	switch {
	case !k.walking:
	case !lasting || c.seq > m.horizon:
		m.stop(c)
	default:
		known = true
		if _, ok := k.walls[c.key]; !ok {
			k.walls[c.key] = wall{head: c.seq, until: until}
			if !until.IsZero() && (k.next.IsZero() || until.Before(k.next)) {
				k.next = until
			}
		}
	}
	return known
}

// stop notes the first row that is of no key in walls.
func (m *Memory) stop(c candidate) {
	if k := m.partitions[c.partition]; k.walking {
		k.walking = false
		k.after = max(k.after, min(c.seq-1, m.horizon))
	}
}

// end notes that a partition was read to its end, or to a bound.
func (m *Memory) end(partition int, bound int64) {
	k := m.partitions[partition]
	switch {
	case !k.walking:
	case bound > 0:
		k.after = max(k.after, min(bound, m.horizon))
	default:
		k.after = max(k.after, m.horizon)
	}
}

// look moves the horizon. It comes before the walk, whose snapshot then sees
// everything up to there: a transaction is visible before its locks are gone.
func (m *Memory) look(ctx context.Context, db bun.IDB, sqlite bool) error {
	m.looked = time.Now()
	var highest int64
	if err := db.QueryRowContext(ctx, "SELECT COALESCE(max(seq), 0) FROM outbox").Scan(&highest); err != nil {
		return err
	}
	if sqlite {
		m.horizon = highest // one writer: what draws a seq later commits later
		return nil
	}
	writers, err := writersOf(ctx, db)
	if err != nil {
		return err
	}
	for range 2 {
		if slices.ContainsFunc(m.running, func(t string) bool { return slices.Contains(writers, t) }) {
			return nil
		}
		m.horizon = max(m.horizon, m.noted)
		m.noted, m.running = highest, writers
	}
	return nil
}

// writersOf are PostgreSQL's open transactions, but for this one, that have written
// to the outbox.
func writersOf(ctx context.Context, db bun.IDB) (writers []string, err error) {
	err = scanAll(ctx, db, &writers, "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted"+
		" AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'outbox'::regclass"+
		" AND pid IS DISTINCT FROM pg_backend_pid()")
	return writers, err
}
