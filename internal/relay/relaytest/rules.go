package relaytest

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

// LeaveOut has the database do without rules of the protocol, by the names of the switches
// of model/README.md: NOLOCK, SWEEPEARLY, KEEPTOKENS, NOTOKEN, TAKEBLIND, NOREREAD,
// MARKFIRST, BACKFORGIVES, NOHORIZON, SKIPNODUE, FIRSTDUE, NODUE, NOEXPEL.
func (s *Store) LeaveOut(rules ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rule := range rules {
		s.without[rule] = true
	}
}

// Shuffle says in which order partitions are taken; permutation is as [rand.Perm].
func (s *Store) Shuffle(permutation func(n int) []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permutation = permutation
}

// State is what is in the database. It shares nothing with it.
type State struct {
	Members   map[relay.MemberID]time.Time      // until when their leases last
	Ended     map[relay.MemberID]bool           // whose reap has begun
	Owners    map[relay.LaneID][]relay.MemberID // by partition; 0: nobody's
	Tokens    []Claims                          // by member and number
	Queue     map[int64]Queued                  // by seq
	Abandoned map[int64]relay.Abandonment
	Published map[int64]bool // that a settle has logged
}

// Claims is a token.
type Claims struct {
	Member relay.MemberID
	N      int64
	Rows   []relay.RowRef
}

// Queued is a queue row.
type Queued struct {
	relay.QueueRow

	Lane     relay.LaneID
	Attempts int
	Held     bool
	Due      time.Time
	Failed   bool // its last call failed, as far as it has settled
}

// State is what is in the database now.
func (s *Store) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{
		Members: make(map[relay.MemberID]time.Time, len(s.members)), Ended: map[relay.MemberID]bool{}, Owners: make(map[relay.LaneID][]relay.MemberID, len(s.owners)),
		Queue: make(map[int64]Queued, len(s.queue)), Abandoned: maps.Clone(s.abandoned), Published: maps.Clone(s.published),
	}
	for id, m := range s.members {
		state.Members[id] = m.until
		if m.ended {
			state.Ended[id] = true
		}
	}
	for lane, owners := range s.owners {
		state.Owners[lane] = slices.Clone(owners)
	}
	for t, rows := range s.tokens {
		state.Tokens = append(state.Tokens, Claims{t.member, t.n, rows})
	}
	slices.SortFunc(state.Tokens, func(a, b Claims) int { return cmp.Or(cmp.Compare(a.Member, b.Member), cmp.Compare(a.N, b.N)) })
	for seq, q := range s.queue {
		state.Queue[seq] = Queued{q.QueueRow, q.lane, q.attempts, q.held, q.due, q.class != ""}
	}
	return state
}

// inHand says that a token has the row.
func (s *Store) inHand(seq int64) bool {
	for _, rows := range s.tokens {
		if slices.ContainsFunc(rows, func(ref relay.RowRef) bool { return ref.Seq == seq }) {
			return true
		}
	}
	return false
}

// Retry is an operator's: a row that waits is due, and one that was abandoned is queued
// again. It is false where there is nothing to do, or a token has the row.
func (s *Store) Retry(seq int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queue[seq]; q != nil && q.waits(time.Now()) && !s.inHand(seq) {
		q.held, q.due, q.attempts = false, time.Now(), 0
		return true
	}
	if _, ok := s.abandoned[seq]; !ok || s.bodies[seq] == nil {
		return false
	}
	delete(s.abandoned, seq)
	s.enqueue(s.bodies[seq])
	s.queue[seq].due = time.Now()
	return true
}

// Hold is an operator's abandonment of a row, where that holds its key. It is false if a
// token has a row of the key.
func (s *Store) Hold(seq int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queue[seq]
	if q == nil {
		return false
	}
	for _, other := range s.queue {
		if other.Key == q.Key && s.inHand(other.Seq) {
			return false
		}
	}
	q.held, q.due = true, time.Time{}
	return true
}

// Sweep is the first half of a reap that reads tokens before it has locked the member
// [SWEEPEARLY]: what it returns, [Store.ReapSwept] takes for all that there are.
func (s *Store) Sweep(m relay.MemberID) (tokens []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := range s.tokens {
		if t.member == m {
			tokens = append(tokens, t.n)
		}
	}
	return tokens
}

// ReapSwept is a reap that believes an earlier look at the tokens.
func (s *Store) ReapSwept(m relay.MemberID, tokens []int64) (r relay.Reaped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.members[m]; of == nil || time.Now().Before(of.until) {
		return r
	}
	return s.end(m, func(n int64) bool { return slices.Contains(tokens, n) })
}
