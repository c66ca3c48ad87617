package relaytest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

// Lanes implements [relay.Store].
func (s *Store) Lanes(ctx context.Context, targets []string) (ids []relay.LaneID, partitions int, err error) {
	ids, err = do(ctx, s, Lanes, func() (ids []relay.LaneID, err error) {
		for _, t := range targets {
			id := s.lane(t)
			for p, owner := range s.owners[id] {
				if owner == removed {
					s.owners[id][p] = 0
				}
			}
			ids = append(ids, id)
		}
		return ids, nil
	})
	return ids, s.partitions, err
}

// Join implements [relay.Store].
func (s *Store) Join(ctx context.Context, name string, lanes []relay.Joining, lease time.Duration) ([]relay.MemberID, error) {
	return do(ctx, s, Join, func() (ids []relay.MemberID, err error) {
		for _, l := range lanes {
			if i := int(l.Lane) - 1; i < 0 || i >= len(s.lanes) || s.lanes[i] != l.Target {
				ids = append(ids, 0)
				continue
			}
			s.member++
			s.members[s.member] = &member{lane: l.Lane, name: name, until: time.Now().Add(lease), healthy: true}
			ids = append(ids, s.member)
		}
		return ids, nil
	})
}

// Renew implements [relay.Store].
func (s *Store) Renew(ctx context.Context, renewals []relay.Renewal, lease time.Duration) ([]relay.Renewed, error) {
	return do(ctx, s, Renew, func() (all []relay.Renewed, err error) {
		for _, r := range renewals {
			if m := s.members[r.Member]; m != nil && !m.ended && !m.crashed && s.lanes[m.lane-1] == r.Target {
				m.until, m.healthy, m.trouble = time.Now().Add(lease), r.Healthy, r.Trouble
				all = append(all, relay.Renewed{Member: r.Member, Parts: s.own(m.lane, r.Member)})
			}
		}
		return all, nil
	})
}

func (s *Store) own(lane relay.LaneID, m relay.MemberID) (parts []int) {
	for p, owner := range s.owners[lane] {
		if owner == m {
			parts = append(parts, p)
		}
	}
	return parts
}

// Take implements [relay.Store].
func (s *Store) Take(ctx context.Context, m relay.MemberID, lane relay.LaneID, n int) ([]int, error) {
	return do(ctx, s, Take, func() (parts []int, err error) {
		if of := s.members[m]; (of == nil || of.ended || of.crashed) && !s.without["TAKEBLIND"] {
			return nil, nil
		}
		for _, p := range s.permutation(s.partitions) {
			if s.owners[lane][p] == 0 && len(parts) < n {
				s.owners[lane][p] = m
				parts = append(parts, p)
			}
		}
		return parts, nil
	})
}

// Release implements [relay.Store].
func (s *Store) Release(ctx context.Context, m relay.MemberID, lane relay.LaneID, parts []int) error {
	_, err := do(ctx, s, Release, func() (struct{}, error) {
		if of := s.members[m]; of != nil && of.crashed {
			return struct{}{}, nil
		}
		for _, p := range parts {
			if s.owners[lane][p] == m {
				s.owners[lane][p] = 0
			}
		}
		return struct{}{}, nil
	})
	return err
}

// Reap implements [relay.Store].
func (s *Store) Reap(ctx context.Context, m relay.MemberID, dead bool) (relay.Reaped, error) {
	return do(ctx, s, Reap, func() (r relay.Reaped, err error) {
		of := s.members[m]
		if of == nil || !dead && time.Now().Before(of.until) {
			return r, nil
		}
		if r.Undecided = s.undecided(m); len(r.Undecided) > 0 {
			of.ended = !s.without["NOEXPEL"]
			return r, nil
		}
		of.ended = true
		return s.end(m, all), nil
	})
}

// Finish implements [relay.Store].
func (s *Store) Finish(ctx context.Context, m relay.MemberID) (relay.Reaped, error) {
	return do(ctx, s, Finish, func() (r relay.Reaped, err error) {
		if s.members[m] == nil {
			return r, nil
		}
		return s.end(m, all), nil
	})
}

// undecided are a member's claims of transactions.
func (s *Store) undecided(m relay.MemberID) (tokens []relay.Token) {
	for t, rows := range s.tokens {
		if t.member == m && t.n >= transactional {
			rows = slices.SortedFunc(slices.Values(rows), func(a, b relay.RowRef) int { return cmp.Compare(a.Seq, b.Seq) })
			tokens = append(tokens, relay.Token{N: t.n, Rows: rows})
		}
	}
	slices.SortFunc(tokens, func(a, b relay.Token) int { return cmp.Compare(a.N, b.N) })
	return tokens
}

// transactional are the numbers of claims from here on.
const transactional = 1 << 48

// Leave implements [relay.Store].
func (s *Store) Leave(ctx context.Context, members []relay.MemberID) error {
	_, err := do(ctx, s, Leave, func() (struct{}, error) {
		for _, m := range members {
			if s.members[m] != nil {
				s.end(m, all)
			}
		}
		return struct{}{}, nil
	})
	return err
}

// end ends a member: its tokens go, what is still queued of them has a loss more, and
// its partitions are free. which tokens it knows of.
func (s *Store) end(m relay.MemberID, which func(n int64) bool) (r relay.Reaped) {
	r.Done = true
	lost := map[int64]bool{}
	for t, rows := range s.tokens {
		if t.member != m || !which(t.n) || s.without["KEEPTOKENS"] {
			continue
		}
		delete(s.tokens, t)
		for _, ref := range rows {
			if q := s.queue[ref.Seq]; q != nil && !lost[ref.Seq] {
				lost[ref.Seq] = true
				q.Losses++
				r.Rows++
			}
		}
	}
	lane := s.members[m].lane
	for _, p := range s.own(lane, m) {
		s.owners[lane][p] = 0
		r.Parts++
	}
	delete(s.members, m)
	return r
}

func all(int64) bool { return true }

// Poll implements [relay.Store].
func (s *Store) Poll(ctx context.Context, lanes []relay.LaneID) (relay.Polled, error) {
	return do(ctx, s, Poll, func() (p relay.Polled, err error) {
		p.Last, p.Now = s.seq, time.Now()
		for _, lane := range lanes {
			p.Lanes = append(p.Lanes, s.polled(lane, p.Now))
		}
		return p, nil
	})
}

func (s *Store) polled(lane relay.LaneID, now time.Time) (l relay.PolledLane) {
	for _, q := range s.queue {
		if q.lane != lane || q.due.IsZero() || q.held || s.without["NODUE"] {
			continue
		}
		if d := q.due.Sub(now); l.NextDue == nil || d < *l.NextDue {
			l.NextDue = &d
		}
	}
	for id, m := range s.members {
		if m.lane == lane {
			l.Members = append(l.Members, relay.MemberState{
				ID: id, Name: m.name, Healthy: m.healthy, Trial: !m.healthy && m.trouble == "", Expired: m.ended || !now.Before(m.until), Until: m.until, Parts: len(s.own(lane, id)),
			})
		}
	}
	slices.SortFunc(l.Members, func(a, b relay.MemberState) int { return int(a.ID - b.ID) })
	l.Free = len(s.own(lane, 0))
	return l
}

// Horizon implements [relay.Store].
func (s *Store) Horizon(ctx context.Context) (relay.HorizonSample, error) {
	return do(ctx, s, Horizon, func() (h relay.HorizonSample, err error) {
		h.Last = s.seq
		if !s.without["NOHORIZON"] {
			h.Writers = slices.Sorted(maps.Keys(s.writers))
		}
		return h, nil
	})
}
