package relaytest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

func (q *queued) waits(now time.Time) bool { return q.held || q.due.After(now) }

func (q *queued) row(now time.Time) relay.QueueRow {
	row := q.QueueRow
	row.Waits = q.waits(now)
	return row
}

// rows are a lane's that which wants, by seq.
func (s *Store) rows(lane relay.LaneID, which func(*queued) bool) (rows []*queued) {
	for _, seq := range slices.Sorted(maps.Keys(s.queue)) {
		if q := s.queue[seq]; q.lane == lane && which(q) {
			rows = append(rows, q)
		}
	}
	return rows
}

// Look implements [relay.Store].
func (s *Store) Look(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	return do(ctx, s, Look, func() ([]relay.QueueRow, error) { return s.above(lane, parts, limit, -1), nil })
}

// First implements [relay.Store].
func (s *Store) First(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	return do(ctx, s, First, func() ([]relay.QueueRow, error) { return s.above(lane, parts, limit, 1), nil })
}

func (s *Store) above(lane relay.LaneID, parts []relay.PartLow, limit int, class int8) (rows []relay.QueueRow) {
	parts = slices.SortedFunc(slices.Values(parts), func(a, b relay.PartLow) int { return cmp.Compare(a.Part, b.Part) })
	for _, p := range parts {
		n := 0
		for _, q := range s.rows(lane, func(q *queued) bool { return q.Part == p.Part && q.Seq > p.Low && q.Class >= class }) {
			if n++; n <= limit {
				rows = append(rows, q.row(time.Now()))
			}
		}
	}
	return rows
}

// Fetch implements [relay.Store].
func (s *Store) Fetch(ctx context.Context, lane relay.LaneID, key, from int64, limit int) ([]relay.QueueRow, error) {
	return do(ctx, s, Fetch, func() (rows []relay.QueueRow, err error) {
		for _, q := range s.rows(lane, func(q *queued) bool { return q.Key == key && q.Seq >= from }) {
			if len(rows) < limit {
				rows = append(rows, q.row(time.Now()))
			}
		}
		return rows, nil
	})
}

// Due implements [relay.Store].
func (s *Store) Due(ctx context.Context, lane relay.LaneID, parts []int, after relay.DueAt, limit int) (rows []relay.DueRow, next relay.DueAt, err error) {
	type page struct {
		rows []relay.DueRow
		next relay.DueAt
	}
	found, err := do(ctx, s, Due, func() (p page, err error) {
		due := s.rows(lane, func(q *queued) bool {
			return !s.without["NODUE"] && slices.Contains(parts, q.Part) && !q.due.IsZero() && !q.waits(time.Now()) && dueOrder(relay.DueAt{At: q.due, Seq: q.Seq}, after) > 0
		})
		slices.SortFunc(due, func(a, b *queued) int {
			return dueOrder(relay.DueAt{At: a.due, Seq: a.Seq}, relay.DueAt{At: b.due, Seq: b.Seq})
		})
		for _, q := range due[:min(len(due), limit)] {
			p.rows = append(p.rows, relay.DueRow{Part: q.Part, Seq: q.Seq, Key: q.Key, Topic: q.Topic})
		}
		if len(due) > limit {
			p.next = relay.DueAt{At: due[limit-1].due, Seq: due[limit-1].Seq}
		}
		return p, nil
	})
	return found.rows, found.next, err
}

func dueOrder(a, b relay.DueAt) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq)) }

// Claim implements [relay.Store].
func (s *Store) Claim(ctx context.Context, r relay.ClaimRequest) (relay.Claim, error) {
	return do(ctx, s, Claim, func() (relay.Claim, error) { return s.claim(r), nil })
}

// LookAndClaim implements [relay.Store]. Its faults are those of a claim.
func (s *Store) LookAndClaim(ctx context.Context, r relay.LookRequest) (relay.Looked, error) {
	return do(ctx, s, Claim, func() (relay.Looked, error) {
		l := relay.Looked{Found: s.above(r.Lane, r.Parts, r.Limit, -1)}
		if c, ok := r.Claim(l.Found); ok {
			l.Claim = s.claim(c)
		}
		return l, nil
	})
}

func (s *Store) claim(r relay.ClaimRequest) (c relay.Claim) {
	if m := s.members[r.Member]; (m == nil || m.ended || m.crashed) && !s.without["NOLOCK"] {
		return c
	}
	s.keep(r.Durable)
	for _, n := range r.Forget {
		delete(s.tokens, token{r.Member, n})
	}
	c.Alive = true
	s.tokens[token{r.Member, r.N}] = slices.Clone(r.Rows)
	now := time.Now()
	for _, ref := range slices.SortedFunc(slices.Values(r.Rows), func(a, b relay.RowRef) int { return cmp.Compare(a.Seq, b.Seq) }) {
		q, b := s.queue[ref.Seq], s.bodies[ref.Seq]
		if q == nil && b != nil && s.without["NOREREAD"] {
			q = &queued{QueueRow: relay.QueueRow{Part: ref.Part, Seq: ref.Seq, Key: ref.Key}, lane: r.Lane}
		}
		if q == nil || q.lane != r.Lane || q.Part != ref.Part {
			continue
		}
		c.Rows = append(c.Rows, relay.Claimed{
			Row: b.Row, Seq: q.Seq, KeyHash: q.Key, Attempts: q.attempts, Losses: q.Losses, Waits: q.waits(now) && !s.without["NOREREAD"], CreatedAt: b.created, Waited: now.Sub(b.created),
		})
	}
	if s.without["MARKFIRST"] {
		s.settle(relay.Settlement{Published: r.Rows})
	}
	return c
}

// Settle implements [relay.Store].
func (s *Store) Settle(ctx context.Context, t relay.Settlement) (known bool, err error) {
	return do(ctx, s, Settle, func() (bool, error) {
		name := token{t.Member, t.N}
		rows, ok := s.tokens[name]
		if !ok && !s.without["NOTOKEN"] {
			return false, nil
		}
		s.keep(t.Durable)
		delete(s.tokens, name)
		for _, ref := range rows {
			if q := s.queue[ref.Seq]; q != nil && s.without["BACKFORGIVES"] {
				q.Losses = 0
			}
		}
		s.settle(t)
		return true, nil
	})
}

func (s *Store) settle(t relay.Settlement) {
	var seqs []int64
	for _, ref := range t.Published {
		if s.queue[ref.Seq] != nil {
			delete(s.queue, ref.Seq)
			s.published[ref.Seq] = true
			seqs = append(seqs, ref.Seq)
		}
		if t.Delete {
			delete(s.bodies, ref.Seq)
		}
	}
	if len(seqs) > 0 {
		s.log = append(s.log, Logged{Member: t.Member, N: t.N, Seqs: seqs})
	}
	for _, f := range t.Failed {
		if q := s.queue[f.Seq]; q != nil {
			q.attempts, q.Losses, q.held, q.class, q.err, q.due = f.Attempts, 0, f.Held, f.Class, f.Error, time.Now().Add(f.DueIn)
			if f.Held {
				q.due = time.Time{}
			}
		}
	}
	for _, a := range t.Abandoned {
		if s.queue[a.Seq] != nil {
			delete(s.queue, a.Seq)
			s.abandoned[a.Seq] = a
			s.free(a.Key, a.Seq)
		}
	}
	for _, ref := range t.Lost {
		if q := s.queue[ref.Seq]; q != nil {
			q.Losses++
		}
	}
}
