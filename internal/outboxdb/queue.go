package outboxdb

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

var (
	lookStep    = load("look")
	firstStep   = load("first")
	fetchStep   = load("fetch")
	dueStep     = load("due")
	pollStep    = load("poll")
	horizonStep = load("horizon")
)

// Look reads, of each partition, at most limit rows above its low.
func (s *Store) Look(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	return s.pages(ctx, lookStep, lane, parts, limit)
}

// First reads, of each partition, at most limit rows of class 1 above its low.
func (s *Store) First(ctx context.Context, lane relay.LaneID, parts []relay.PartLow, limit int) ([]relay.QueueRow, error) {
	return s.pages(ctx, firstStep, lane, parts, limit)
}

func (s *Store) pages(ctx context.Context, what step, lane relay.LaneID, parts []relay.PartLow, limit int) (rows []relay.QueueRow, err error) {
	if len(parts) == 0 {
		return nil, nil
	}
	add := func(r result) error {
		if len(rows) == cap(rows) { // append would copy a page's several times
			rows = slices.Grow(rows, max(len(rows), 16))
		}
		rows = append(rows, queueRow(r))
		return nil
	}
	var runs []statement
	if s.sqlite() { // which knows no LATERAL: a page each, as its transaction is in this process
		for _, p := range parts {
			runs = append(runs, statement{values: []any{int64(lane), p.Part, p.Low, limit}, row: add})
		}
	} else {
		which, lows := columnsOf(parts)
		runs = []statement{{values: []any{int64(lane), which, lows, limit}, row: add}}
	}
	if err := s.do(ctx, reads, what, runs...); err != nil {
		return nil, err
	}
	sortByPart(rows)
	return rows, nil
}

func columnsOf(parts []relay.PartLow) (which, lows []int64) {
	for _, p := range parts {
		which, lows = append(which, int64(p.Part)), append(lows, p.Low)
	}
	return which, lows
}

func sortByPart(rows []relay.QueueRow) {
	slices.SortFunc(rows, func(a, b relay.QueueRow) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Seq, b.Seq))
	})
}

func queueRow(r result) relay.QueueRow {
	return relay.QueueRow{
		Part: int(r.number(0)), Seq: r.number(1), Key: r.number(2), Topic: r.number(3), Class: int8(r.number(4)),
		Bytes: int(r.number(5)), Losses: int(r.number(6)), Waits: r.yes(7),
	}
}

// Fetch reads at most limit rows of a key, from a seq on.
func (s *Store) Fetch(ctx context.Context, lane relay.LaneID, key, from int64, limit int) (rows []relay.QueueRow, err error) {
	err = s.do(ctx, reads, fetchStep, statement{values: []any{int64(lane), key, from, limit}, row: func(r result) error {
		rows = append(rows, queueRow(r))
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Due reads rows whose time has come, a page of the lane's, and returns those of parts.
func (s *Store) Due(ctx context.Context, lane relay.LaneID, parts []int, after relay.DueAt, limit int) (rows []relay.DueRow, next relay.DueAt, err error) {
	read := 0
	err = s.do(ctx, reads, dueStep, statement{values: []any{int64(lane), after.At, after.Seq, limit}, row: func(r result) error {
		read++
		at, err := r.time(4)
		next = relay.DueAt{At: at, Seq: r.number(1)}
		if part := int(r.number(0)); slices.Contains(parts, part) {
			rows = append(rows, relay.DueRow{Part: part, Seq: next.Seq, Key: r.number(2), Topic: r.number(3)})
		}
		return err
	}})
	if err != nil {
		return nil, relay.DueAt{}, err
	}
	if read < limit {
		next = relay.DueAt{}
	}
	return rows, next, nil
}

// Poll is what a process asks while idle.
func (s *Store) Poll(ctx context.Context, lanes []relay.LaneID) (relay.Polled, error) {
	p := relay.Polled{Lanes: make([]relay.PolledLane, len(lanes))}
	which := []any{int64s(lanes)}
	err := s.do(ctx, reads, pollStep,
		statement{row: func(r result) (err error) {
			p.Last = r.number(0)
			p.Now, err = r.time(1)
			return err
		}},
		statement{values: which, row: func(r result) error {
			i := slices.Index(lanes, relay.LaneID(r.number(0)))
			p.Lanes[i].Free = int(r.number(2))
			if !r.null(1) {
				due := time.Duration(r.number(1)) * time.Millisecond
				p.Lanes[i].NextDue = &due
			}
			return nil
		}},
		statement{values: which, row: func(r result) error {
			i := slices.Index(lanes, relay.LaneID(r.number(0)))
			until, err := r.time(5)
			p.Lanes[i].Members = append(p.Lanes[i].Members, relay.MemberState{
				ID: relay.MemberID(r.number(1)), Name: r.text(2), Healthy: r.yes(3), Expired: r.yes(4), Until: until,
				Trial: !r.yes(3) && r.yes(6), Parts: int(r.number(7)),
			})
			return err
		}})
	if err != nil {
		return relay.Polled{}, err
	}
	return p, nil
}

// Horizon reads the last seq that was drawn, and then who may still bring lower ones. On
// SQLite, where one transaction writes at a time, nobody may.
func (s *Store) Horizon(ctx context.Context) (h relay.HorizonSample, err error) {
	runs := []statement{{row: func(r result) error { h.Last = r.number(0); return nil }}}
	if !s.sqlite() {
		runs = append(runs, statement{row: func(r result) error { h.Writers = append(h.Writers, r.text(0)); return nil }})
	}
	if err := s.do(ctx, reads, horizonStep, runs...); err != nil {
		return relay.HorizonSample{}, err
	}
	return h, nil
}
