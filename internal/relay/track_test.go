package relay

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// step is one of anybody's.
func (s *sim) step() {
	switch p := s.random.IntN(100); {
	case p < 25:
		s.unit()
	case p < 60:
		s.reader()
	case p < 82:
		s.call()
	case p < 87:
		s.verb()
	case p < 92:
		s.now = s.now.Add(time.Duration(s.random.IntN(2000)) * time.Millisecond)
	case p < 96:
		s.horizon()
	case p < 97 && s.only == "":
		at := s.random.IntN(len(s.away))
		s.away[at] = !s.away[at] && s.chance(50)
	case p < 98 && s.chance(10):
		s.join()
	case p < 99:
		s.move()
	default:
		s.t.pokeAll()
	}
	s.found()
	if s.off == "" {
		s.counts()
	}
}

// horizon asks in two steps: the last seq, then who writes.
func (s *sim) horizon() {
	if s.sample == nil {
		s.sample = &HorizonSample{Last: s.seq}
		return
	}
	s.sample.Writers = s.writers()
	s.h.sampled(*s.sample)
	s.sample = nil
}

// move releases a partition and takes it again.
func (s *sim) move() {
	part := s.random.IntN(simParts)
	switch p := s.t.parts[part]; {
	case p == nil:
		s.t.take(part)
	case !p.retired:
		if s.chance(20) {
			s.t.retire(part)
		}
	case !s.t.busy(part) && s.idle():
		s.t.drop(part)
	}
}

// found asserts that something will find the first row of each key that can go.
func (s *sim) found() {
	first := map[int64]*simRow{}
	for _, r := range s.rows {
		if f := first[r.Key]; !r.abandoned && (f == nil || r.Seq < f.Seq) {
			first[r.Key] = r
		}
	}
	for key, r := range first {
		p, k := s.t.parts[r.Part], s.t.keys[key]
		from := s.t.dead[r.Topic]
		switch {
		case p == nil, p.retired, s.waits(r), r.Seq > p.low, s.inToken(r.Seq), from != 0 && from <= r.Seq:
		case s.off != "NODUE" && !r.due.IsZero():
		case k != nil && (k.knows(r.Seq) || k.want && k.rest <= r.Seq):
		default:
			s.violated("FORGET", "row %d of key %d can go, and nothing will find it: %+v", r.Seq, key, k)
		}
	}
}

// counts asserts that what the track counts is what it has, and where.
func (s *sim) counts() {
	listed, low, hand, keys := 0, 0, map[int]int{}, map[int]int{}
	for _, k := range s.t.keys {
		for _, e := range k.list {
			listed++
			if e.class < 0 {
				low++
			}
			if k.rest != 0 && e.seq >= k.rest {
				panic(fmt.Sprintf("row %d of key %d is listed behind its rest, %d", e.seq, k.key, k.rest))
			}
		}
		hand[k.part] += len(k.hand)
		keys[k.part]++
	}
	if listed != s.t.listed || low != s.t.low {
		panic(fmt.Sprintf("%d rows listed and %d low, counted %d and %d", listed, low, s.t.listed, s.t.low))
	}
	for part, p := range s.t.parts {
		if p.hand != hand[part] {
			panic(fmt.Sprintf("%d rows of partition %d in hand, counted %d", hand[part], part, p.hand))
		}
		if p.keys != keys[part] {
			panic(fmt.Sprintf("%d keys of partition %d are known, counted %d", keys[part], part, p.keys))
		}
	}
}

// drain lets all units end and everything be there: what isn't held goes.
func (s *sim) drain() {
	s.away, s.fine = [simTopics + 1]bool{}, true
	for len(s.txs) > 0 {
		s.end(0, true)
	}
	for part := range simParts {
		if p := s.t.parts[part]; p != nil && p.retired && !s.t.busy(part) && s.idle() {
			s.t.drop(part)
		}
		s.t.take(part)
	}
	for round := 0; round < 6000 && s.left() > 0; round++ {
		if round%20 == 0 {
			s.now = s.now.Add(time.Second)
			s.t.pokeAll()
			s.horizon()
			for part, p := range s.t.parts {
				if p.retired && !s.t.busy(part) && s.idle() {
					s.t.drop(part)
					s.t.take(part)
				}
			}
		}
		s.reader()
		s.call()
		s.found()
	}
	if n := s.left(); n > 0 {
		s.violated("FORGET", "%d rows that can go didn't", n)
	}
}

// left counts rows that are not behind one that is held.
func (s *sim) left() (n int) {
	held := map[int64]int64{}
	for _, seq := range s.seqs() {
		r := s.rows[seq]
		switch at := held[r.Key]; {
		case r.abandoned || at != 0:
		case r.held:
			held[r.Key] = seq
		default:
			n++
		}
	}
	return n
}

// run is nil, or what was violated.
func (s *sim) run(steps int) (violated any) {
	defer func() { violated = recover() }()
	for range steps {
		s.step()
	}
	s.drain()
	return nil
}

// A42, D6: ORDER, DECIDED and FORGET of model/track.pml hold whatever comes between a
// read and what is made of it.
// Conformance: A42, D6, F-01, F-02, U-01.
func TestTrack_KeepsOrderAndForgetsNothing(t *testing.T) {
	sent, fresh := 0, 0
	for seed := range uint64(80) {
		s := newSim(seed, "")
		s.calm = seed >= 40
		require.Nil(t, s.run(3000), "seed %d", seed)
		sent, fresh = sent+s.sent, fresh+s.fresh
	}
	require.Greater(t, sent, 4000, "the simulation does something")
	require.Greater(t, fresh, 50, "looks claim")
}

// Every switch of model/track.pml leaves out a rule, of the track or of who
// works beside it, and the simulation falls by the property that it is for.
func TestTrack_WithoutARuleTheSimulationFalls(t *testing.T) {
	t.Parallel()
	near := map[string]uint64{"TWOREADERS": 520, "NOCHECK": 207, "FIRSTDUE": 373} // seeds that find what is rare
	for off, violates := range map[string]string{
		"NOHORIZON": "FORGET", "HORIZONLATE": "FORGET", "RESTLOST": "ORDER", "NOCHECK": "FORGET", "FROMDUE": "ORDER", "WANTLISTS": "ORDER", "FIRSTDUE": "FORGET",
		"NODUE": "FORGET", "SKIPNODUE": "FORGET", "BACKLOST": "FORGET", "TWOREADERS": "FORGET", "KEEPBUF": "ORDER", "NOREREAD": "DECIDED", "PIPEBAD": "ORDER",
		"NOTFRESH": "DECIDED",
	} {
		t.Run(off, func(t *testing.T) {
			t.Parallel()
			for i := range uint64(400) {
				s := newSim(near[off]+i, off)
				s.only = violates
				if violated := s.run(3000); violated != nil {
					t.Logf("seed %d: %v", near[off]+i, violated)
					require.Contains(t, fmt.Sprint(violated), violates)
					return
				}
			}
			require.Fail(t, "nothing falls")
		})
	}
}
