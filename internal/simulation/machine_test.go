package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/internal/relay/relaytest"
)

// place is where the model has a row: st[] of model/relay.pml.
type place string

const (
	queued    place = "queued" // PEND, or FAIL until its time has come
	held      place = "held"   // ABAN with HOLD
	published place = "published"
	abandoned place = "abandoned"
	gone      place = "gone" // an operator skipped it
)

type modelRow struct {
	key              int64
	lane             relay.LaneID
	part             int
	at               place
	attempts, losses int
}

// machine is model/relay.pml as a program: it takes the steps of the running code one by one,
// and refuses what is no step of the model, or leads elsewhere than in the model. Its members
// are ex[], its owners own, its tokens tf[] and tr[]; a statement that nobody waits for is a
// pending claim, take or release (pcf, ptf, prf) that runs late.
type machine struct {
	members map[relay.MemberID]bool
	last    relay.MemberID // fences
	owners  map[relay.LaneID][]relay.MemberID
	tokens  map[token][]int64
	hand    map[token][]int64 // of a token, what may go: behind a row that waits nothing does
	late    map[token][]int64 // that ended with their members: who has them in hand may not know
	rows    map[int64]modelRow
	ghosts  map[token]bool // that nobody has heard of
	now     time.Time
}

func newMachine() *machine {
	return &machine{late: map[token][]int64{}, members: map[relay.MemberID]bool{}, owners: map[relay.LaneID][]relay.MemberID{1: make([]relay.MemberID, partitions), 2: make([]relay.MemberID, partitions)}, tokens: map[token][]int64{}, hand: map[token][]int64{}, rows: map[int64]modelRow{}}
}

// heard says that somebody has heard of a claim.
func (m *machine) heard(t token) bool { return !m.ghosts[t] }

// committed has a row appear, as it is the queue's.
func (m *machine) committed(q relaytest.Queued) {
	m.rows[q.Seq] = modelRow{key: q.Key, lane: q.Lane, part: q.Part, at: queued}
}

// set changes a row.
func (m *machine) set(seq int64, change func(r *modelRow)) {
	r := m.rows[seq]
	change(&r)
	m.rows[seq] = r
}

// statement takes a statement that ran.
func (m *machine) statement(s *statement, before, after relaytest.State, calls map[int64]judgement) error {
	var err error
	switch r := s.request.(type) {
	case relay.ClaimRequest:
		err = m.claim(s, r, before)
	case relay.LookRequest:
		if c, claims := r.Claim(m.found(r, before)); claims {
			err = m.claim(s, c, before)
		}
	case relay.Settlement:
		err = m.settle(r, calls)
	case take:
		err = m.move(s, r, after)
	case relay.MemberID:
		err = m.reap(r, before, after)
	case []relay.MemberID:
		err = m.leave(s, r)
	default:
		err = m.join(s, after)
	}
	return errors.Join(err, m.same(after))
}

// join: a member has a number that was never used before.
func (m *machine) join(s *statement, after relaytest.State) error {
	if s.kind != string(relaytest.Join) {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(after.Members)) {
		if m.members[id] {
			continue
		}
		if id <= m.last {
			return fmt.Errorf("member %d isn't new", id)
		}
		m.members[id], m.last = true, id
	}
	return nil
}

// move: a take is of free partitions and for a member that is there, a release of what is
// its own and has nothing in hand.
func (m *machine) move(s *statement, r take, after relaytest.State) error {
	owners := m.owners[r.lane]
	if s.kind == string(relaytest.Release) {
		for _, part := range r.parts {
			if owners[part] != r.member {
				continue
			}
			if !s.ghost && m.busy(r.member, part) {
				return fmt.Errorf("member %d releases partition %d, of which it has rows in hand", r.member, part)
			}
			owners[part] = 0
		}
		return nil
	}
	for part, now := range after.Owners[r.lane] {
		if now == owners[part] {
			continue
		}
		if now != r.member || owners[part] != 0 || !m.members[r.member] {
			return fmt.Errorf("partition %d goes from %d to %d by a take of %d", part, owners[part], now, r.member)
		}
		owners[part] = now
	}
	return nil
}

// busy says that a member has rows of a partition in hand, by a claim that it has heard of.
func (m *machine) busy(member relay.MemberID, part int) bool {
	for t := range m.tokens {
		seqs := m.hand[t]
		if t.member == member && m.heard(t) && slices.ContainsFunc(seqs, func(seq int64) bool { return m.rows[seq].part == part }) {
			return true
		}
	}
	return false
}

// end is endmember of the model: tokens go, with a loss for what is queued of them, one for
// each row.
func (m *machine) end(member relay.MemberID) {
	delete(m.members, member)
	lost := map[int64]bool{}
	for t, seqs := range m.tokens {
		if t.member != member {
			continue
		}
		delete(m.tokens, t)
		m.late[t] = seqs
		for _, seq := range seqs {
			if at := m.rows[seq].at; !lost[seq] && (at == queued || at == held) {
				lost[seq] = true
				m.set(seq, func(r *modelRow) { r.losses++ })
			}
		}
	}
	for _, owners := range m.owners {
		for part, owner := range owners {
			if owner == member {
				owners[part] = 0
			}
		}
	}
}

// reap: only a member whose lease has passed is ended by others.
func (m *machine) reap(member relay.MemberID, before, after relaytest.State) error {
	until, there := before.Members[member]
	if _, left := after.Members[member]; left || !there {
		return nil
	}
	if m.now.Before(until) {
		return fmt.Errorf("member %d is reaped %v before its lease has passed", member, until.Sub(m.now))
	}
	m.end(member)
	return nil
}

// leave: a member ends itself with nothing in hand that it knows of.
func (m *machine) leave(s *statement, members []relay.MemberID) error {
	for _, member := range members {
		for t := range m.tokens {
			if t.member == member && len(m.hand[t]) > 0 && !s.ghost && m.heard(t) {
				return fmt.Errorf("member %d leaves with claim %d in hand", member, t.n)
			}
		}
		m.end(member)
	}
	return nil
}

// found is what a look finds.
func (m *machine) found(r relay.LookRequest, before relaytest.State) (rows []relay.QueueRow) {
	for _, p := range r.Parts {
		page := 0
		for _, seq := range slices.Sorted(maps.Keys(before.Queue)) {
			if q := before.Queue[seq]; q.Lane == r.Lane && q.Part == p.Part && seq > p.Low && page < r.Limit {
				page++
				row := q.QueueRow
				row.Waits = q.Held || q.Due.After(m.now)
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// claim: of a member that is there; of a key that it has nothing of in hand; and no row that
// is queued is passed over.
func (m *machine) claim(s *statement, r relay.ClaimRequest, before relaytest.State) error {
	if !m.members[r.Member] {
		return nil // it has nothing
	}
	for _, n := range r.Forget {
		delete(m.tokens, token{r.Member, n})
	}
	if _, used := m.tokens[token{r.Member, r.N}]; used {
		return fmt.Errorf("claim %d of member %d is there already", r.N, r.Member)
	}
	var seqs, hand []int64
	var err error
	stops := map[int64]bool{} // keys
	for _, ref := range r.Rows {
		seqs = append(seqs, ref.Seq)
		q, queues := before.Queue[ref.Seq]
		if stops[ref.Key] = stops[ref.Key] || queues && (q.Held || q.Due.After(m.now)); stops[ref.Key] || !queues {
			continue
		}
		hand = append(hand, ref.Seq)
		for t := range m.tokens {
			if t.member != r.Member || s.ghost || !m.heard(t) {
				continue
			}
			if slices.ContainsFunc(m.hand[t], func(seq int64) bool { return m.rows[seq].key == ref.Key }) {
				err = fmt.Errorf("row %d is claimed while claim %d has rows of its key in hand", ref.Seq, t.n)
			}
		}
	}
	m.tokens[token{r.Member, r.N}], m.hand[token{r.Member, r.N}] = seqs, hand
	return err
}

// settle: with its token, and only as the broker has answered. Without it nothing changes.
func (m *machine) settle(s relay.Settlement, calls map[int64]judgement) error {
	of := token{s.Member, s.N}
	seqs, known := m.tokens[of]
	if !known {
		return nil
	}
	if !m.members[s.Member] {
		return fmt.Errorf("member %d settles after its end", s.Member)
	}
	delete(m.tokens, of)
	var err error
	decides := func(ref relay.RowRef, to place, attempts, losses int) {
		r := m.rows[ref.Seq]
		if !slices.Contains(seqs, ref.Seq) {
			err = fmt.Errorf("claim %d decides about row %d, which it doesn't have", s.N, ref.Seq)
		}
		if to == published && calls[ref.Seq].said != nil {
			err = fmt.Errorf("row %d counts as published, and the broker said: %w", ref.Seq, calls[ref.Seq].said)
		}
		if attempts < r.attempts || attempts > r.attempts+1 {
			err = fmt.Errorf("row %d has paid %d times after %d", ref.Seq, attempts, r.attempts)
		}
		m.set(ref.Seq, func(r *modelRow) { r.at, r.attempts, r.losses = to, attempts, losses })
	}
	for _, ref := range s.Published {
		decides(ref, published, m.rows[ref.Seq].attempts, 0)
	}
	for _, f := range s.Failed {
		to := queued
		if f.Held {
			to = held
		}
		decides(f.RowRef, to, f.Attempts, 0)
	}
	for _, a := range s.Abandoned {
		decides(a.RowRef, abandoned, a.Attempts, a.Losses)
	}
	return err
}

// send: a call is of rows that its process has claimed, and not settled. Whose member was
// ended may not know it yet; its rows are copies then.
func (m *machine) send(seqs []int64, mine func(token) bool) error {
	for _, seq := range seqs {
		has := false
		for _, tokens := range []map[token][]int64{m.tokens, m.late} {
			for t, claimed := range tokens {
				has = has || mine(t) && slices.Contains(claimed, seq)
			}
		}
		if !has {
			return fmt.Errorf("row %d is sent, and its process hasn't claimed it, or has settled it", seq)
		}
	}
	return nil
}

// operator takes a verb, which nobody has the row in hand for.
func (m *machine) operator(v verb, seq int64, after relaytest.State) error {
	for t, seqs := range m.tokens {
		if slices.Contains(seqs, seq) && v != retry {
			return fmt.Errorf("an operator decides about row %d, which claim %d has in hand", seq, t.n)
		}
	}
	m.set(seq, func(r *modelRow) {
		switch {
		case v == skip:
			r.at = gone
		case v == hold:
			r.at = held
		case r.at == abandoned:
			r.at, r.attempts, r.losses = queued, 0, 0
		default:
			r.at, r.attempts = queued, 0
		}
	})
	return m.same(after)
}

// same says where the store is elsewhere than the model.
func (m *machine) same(after relaytest.State) error {
	for seq, r := range m.rows {
		q, queues := after.Queue[seq]
		a, gaveUp := after.Abandoned[seq]
		is := modelRow{key: r.key, lane: r.lane, part: r.part, at: gone, attempts: r.attempts, losses: r.losses}
		switch {
		case queues && q.Held:
			is.at, is.attempts, is.losses = held, q.Attempts, q.Losses
		case queues:
			is.at, is.attempts, is.losses = queued, q.Attempts, q.Losses
		case gaveUp:
			is.at, is.attempts, is.losses = abandoned, a.Attempts, a.Losses
		case after.Published[seq]:
			is.at = published
		}
		if is != r {
			return fmt.Errorf("row %d is %+v, and in the model %+v", seq, is, r)
		}
	}
	for lane, now := range after.Owners {
		if was := m.owners[lane]; !slices.Equal(now, was) {
			return fmt.Errorf("partitions belong to %v, and in the model to %v", now, was)
		}
	}
	if len(after.Tokens) != len(m.tokens) || len(after.Members) != len(m.members) {
		return fmt.Errorf("there are %d claims of %v, and in the model %d of %v", len(after.Tokens), slices.Sorted(maps.Keys(after.Members)), len(m.tokens), slices.Sorted(maps.Keys(m.members)))
	}
	return nil
}

// What is no step of the model is refused: a store without one of these rules is elsewhere,
// or takes what it must not.
func TestMachine_RefusesWhatIsNoStep(t *testing.T) {
	for rule, kept := range map[string]uint64{"NOLOCK": 1, "TAKEBLIND": 7, "NOTOKEN": 337, "KEEPTOKENS": 8, "MARKFIRST": 0, "BACKFORGIVES": 82} {
		t.Run(rule, func(t *testing.T) {
			for seed := kept; seed < kept+2000; seed++ {
				p := planOf(seed)
				p.model = true
				for _, v := range simulate(t, p, []string{rule}, nil, false).report.Violations {
					if strings.HasPrefix(v, "stolen: no step of the model") {
						t.Logf("seed %d: %s", seed, v)
						return
					}
				}
			}
			t.Fatal("the model takes all of it")
		})
	}
}
