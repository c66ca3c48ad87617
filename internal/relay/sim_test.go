package relay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// simRow is a row of the simulation's database.
type simRow struct {
	QueueRow

	due       time.Time // due_at
	held      bool
	attempts  int
	abandoned bool // in outbox_abandoned
	back      bool // an operator took it back from there
}

// simTx locks the table when it begins, and a key with each row that it writes:
// so a key's rows become visible in the order of seq, and others don't.
type simTx struct {
	name string
	rows []*simRow
}

// simCall is a claim that was answered, on its way to be settled.
type simCall struct {
	n       int64
	c       *choice
	rows    []Claimed
	o       outcome
	judged  bool
	decided bool // the settle has committed; its answer is on its way
}

const simKeys, simParts, simTopics = 9, 3, 3

// sim is a lane's one reader and its calls on a fake database, beside units that
// commit, operators and time. Each read and what is made of it are two steps,
// others come between. off names a rule that is left out; see model/track.pml.
type sim struct {
	off    string
	only   string // the property that is asserted, and no outages; "": all
	random *rand.Rand
	now    time.Time
	t      *track
	b      *breakers
	h      *horizon

	rows   map[int64]*simRow // visible, not published
	seq    int64
	xid    int
	txs    []*simTx
	locks  map[int64]*simTx
	tokens map[int64][]int64
	n      int64
	forget []int64

	away    [simTopics + 1]bool // 0: the broker
	calls   []*simCall
	looking func() // what is out: it takes the answer in
	fetched func()
	claimed func()
	sample  *HorizonSample
	asked   []int64 // keys of fetches that are out
	hold    bool
	fine    bool // all is answered from now on
	sent    int
	fresh   int  // claims by a look
	calm    bool // few units commit, so that nothing waits for a claim
}

func newSim(seed uint64, off string) *sim {
	s := &sim{
		off: off, random: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1000000, 0), h: &horizon{},
		rows: map[int64]*simRow{}, locks: map[int64]*simTx{}, tokens: map[int64][]int64{}, hold: seed%2 == 0,
	}
	s.b = newBreakers(s.random.Float64)
	s.join()
	return s
}

// join is a new member: it remembers nothing, and what was in hand has a loss.
func (s *sim) join() {
	for _, seqs := range s.tokens {
		for _, seq := range seqs {
			if r := s.rows[seq]; r != nil {
				r.Losses++
			}
		}
	}
	s.tokens, s.calls, s.forget, s.looking, s.fetched, s.claimed, s.asked = map[int64][]int64{}, nil, nil, nil, nil, nil, nil
	s.b = newBreakers(s.random.Float64)
	s.t = newTrack(s.b)
	s.t.bounds = bounds{key: 4, lane: 24, low: 6, look: 16, want: 6, page: 6, pageLeast: 2, pageMax: 64, fetch: 3, sample: 2}
	for part := range simParts {
		s.t.take(part)
	}
}

func (s *sim) chance(percent int) bool { return s.random.IntN(100) < percent }

// row is any visible one.
func (s *sim) row() *simRow {
	if len(s.rows) == 0 {
		return nil
	}
	return s.rows[s.seqs()[s.random.IntN(len(s.rows))]]
}

func (s *sim) seqs() []int64 {
	seqs := make([]int64, 0, len(s.rows))
	for seq := range s.rows {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

func (s *sim) waits(r *simRow) bool { return r.held || r.due.After(s.now) }

func (s *sim) inToken(seq int64) bool {
	for _, seqs := range s.tokens {
		if slices.Contains(seqs, seq) {
			return true
		}
	}
	return false
}

// read is what the database answers of rows that are to be delivered.
func (s *sim) read(which func(*simRow) bool, limit int) (rows []QueueRow) {
	for _, seq := range s.seqs() {
		r := s.rows[seq]
		if r.abandoned || !which(r) {
			continue
		}
		if len(rows) == limit {
			break
		}
		row := r.QueueRow
		row.Waits = s.waits(r)
		rows = append(rows, row)
	}
	return rows
}

// --- units -------------------------------------------------------------------

func (s *sim) unit() {
	if s.calm && s.chance(80) {
		return
	}
	if len(s.txs) < 4 && s.chance(40) {
		s.xid++
		s.txs = append(s.txs, &simTx{name: fmt.Sprint("tx", s.xid)})
		return
	}
	if len(s.txs) == 0 {
		return
	}
	i := s.random.IntN(len(s.txs))
	if tx := s.txs[i]; len(tx.rows) < 3 && s.chance(60) {
		s.insert(tx)
	} else if s.chance(90) || len(tx.rows) > 0 {
		s.end(i, s.chance(95))
	}
}

func (s *sim) insert(tx *simTx) {
	key := int64(1 + s.random.IntN(simKeys))
	if by := s.locks[key]; by != nil && by != tx {
		return
	}
	s.locks[key] = tx
	s.seq++
	class := int8(max(s.random.IntN(9)-7, s.random.IntN(3)/2*-1))
	tx.rows = append(tx.rows, &simRow{QueueRow: QueueRow{
		Part: int(key) % simParts, Seq: s.seq, Key: key, Topic: 1 + key/simParts%simTopics, Class: class, Bytes: 1 + s.random.IntN(5),
	}})
}

func (s *sim) end(i int, commits bool) {
	tx := s.txs[i]
	s.txs = slices.Delete(s.txs, i, i+1)
	for key, by := range s.locks {
		if by == tx {
			delete(s.locks, key)
		}
	}
	for _, r := range tx.rows {
		if commits {
			s.rows[r.Seq] = r
			s.t.poke(r.Part)
		}
	}
}

// --- operators ---------------------------------------------------------------

// verb acts on a row that no token has.
func (s *sim) verb() {
	r := s.row()
	if r == nil || s.inToken(r.Seq) {
		return
	}
	switch what := s.random.IntN(4); {
	case r.abandoned: // taken back, with followers gone
		r.abandoned, r.back, r.due = false, true, s.now
	case what == 0 && s.waits(r): // retry
		r.held, r.due = false, s.now
	case what == 1: // skip, abandon
		s.takeAway(r)
	case what == 2 && !s.keyInToken(r.Key): // abandon, which holds
		r.held, r.due = true, time.Time{}
	}
}

func (s *sim) keyInToken(key int64) bool {
	for seq, r := range s.rows {
		if r.Key == key && s.inToken(seq) {
			return true
		}
	}
	return false
}

// takeAway abandons a row, and makes the one behind it due.
func (s *sim) takeAway(r *simRow) {
	r.abandoned, r.held, r.due = true, false, time.Time{}
	if s.off == "SKIPNODUE" {
		return
	}
	for _, seq := range s.seqs() {
		next := s.rows[seq]
		if next.Key == r.Key && !next.abandoned && (seq > r.Seq || s.off == "FIRSTDUE") {
			if !next.held {
				next.due = s.now
			}
			return
		}
	}
}
