package outboxdb

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/dberr"
	"github.com/waybill-go/waybill/internal/relay"
	"github.com/waybill-go/waybill/outbox"
)

var (
	lanesStep   = rarely("lanes")
	makeStep    = rarely("lanes_make")
	joinStep    = rarely("join")
	renewStep   = load("renew")
	takeStep    = rarely("take")
	releaseStep = rarely("release")
	reapStep    = rarely("reap")
)

// Lanes makes sure that targets have a number and their partitions. What is there is
// read without a lock: a frozen process may have these rows locked.
func (s *Store) Lanes(ctx context.Context, targets []string) (ids []relay.LaneID, partitions int, err error) {
	if partitions, err = Partitions(ctx, s.reader); err != nil {
		return nil, 0, err
	}
	ids, complete, err := s.lanes(ctx, targets, partitions)
	if err != nil || complete {
		return ids, partitions, err
	}
	err = s.do(ctx, durable, makeStep, statement{values: []any{targets}}, statement{values: []any{targets, partitions}})
	if err != nil {
		return nil, 0, err
	}
	ids, complete, err = s.lanes(ctx, targets, partitions)
	if err == nil && !complete {
		err = errors.New("outbox: lanes were made, and are gone: see who removes rows of outbox_lanes or outbox_partitions")
	}
	return ids, partitions, err
}

func (s *Store) lanes(ctx context.Context, targets []string, partitions int) (ids []relay.LaneID, complete bool, err error) {
	ids = make([]relay.LaneID, len(targets))
	err = s.do(ctx, reads, lanesStep, statement{values: []any{targets}, row: func(r result) error {
		for i, target := range targets {
			if target == r.text(1) && int(r.number(2)) >= partitions {
				ids[i] = relay.LaneID(r.number(0))
			}
		}
		return nil
	}})
	return ids, !slices.Contains(ids, 0), err
}

// Join makes a member of each lane. Their numbers are random: a database that was restored
// while engines run would give those of a sequence again, to another member beside one that
// doesn't know yet that it is gone. They have 53 bits, as JavaScript's do.
func (s *Store) Join(ctx context.Context, name string, lanes []relay.Joining, lease time.Duration) ([]relay.MemberID, error) {
	members, ids, targets, drawn := make([]relay.MemberID, len(lanes)), make([]int64, len(lanes)), make([]string, len(lanes)), make([]int64, len(lanes))
	for i, l := range lanes {
		ids[i], targets[i], drawn[i] = int64(l.Lane), l.Target, random()
	}
	err := s.do(ctx, durable, joinStep, statement{values: []any{ids, name, lease, targets, drawn}, row: func(r result) error {
		if i := slices.Index(ids, r.number(0)); i >= 0 {
			members[i] = relay.MemberID(r.number(1))
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return members, nil
}

// random draws a number of 53 bits that is odd, as 0 is none.
func random() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:])>>11) | 1
}

// Renew prolongs leases. Its commit is flushed: what was settled before survives the
// server from then on. It doesn't wait until units of work give a connection back.
func (s *Store) Renew(ctx context.Context, renewals []relay.Renewal, lease time.Duration) ([]relay.Renewed, error) {
	renewals = slices.SortedFunc(slices.Values(renewals), func(a, b relay.Renewal) int { return cmp.Compare(a.Member, b.Member) })
	members, healthy := make([]int64, len(renewals)), make([]bool, len(renewals))
	targets, troubles, brokers := make([]string, len(renewals)), make([]string, len(renewals)), make([]string, len(renewals))
	for i, r := range renewals {
		members[i], healthy[i], targets[i], troubles[i] = int64(r.Member), r.Healthy, r.Target, dberr.Clip(r.Trouble)
		if r.Broker != (outbox.BrokerIdentity{}) {
			brokers[i] = asText(r.Broker)
		}
	}
	var renewed []relay.Renewed
	err := s.do(ctx, keeps, renewStep, statement{values: []any{members, healthy, troubles, lease, brokers, targets}, row: func(r result) error {
		renewed = append(renewed, relay.Renewed{Member: relay.MemberID(r.number(0))})
		return nil
	}}, statement{values: []any{members}, row: func(r result) error {
		for i := range renewed {
			if renewed[i].Member == relay.MemberID(r.number(0)) {
				renewed[i].Parts = append(renewed[i].Parts, int(r.number(1)))
			}
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	for _, r := range renewed {
		slices.Sort(r.Parts)
	}
	return renewed, nil
}

// Take makes at most n free partitions m's own.
func (s *Store) Take(ctx context.Context, m relay.MemberID, lane relay.LaneID, n int) ([]int, error) {
	return s.take(ctx, takeStep, m, lane, n)
}

func (s *Store) take(ctx context.Context, by step, m relay.MemberID, lane relay.LaneID, n int) (parts []int, err error) {
	err = s.do(ctx, durable, by, statement{values: s.both([]any{int64(m)}, int64(lane)), must: true},
		statement{values: []any{int64(m), int64(lane), n}, row: func(r result) error {
			parts = append(parts, int(r.number(0)))
			return nil
		}})
	if err != nil {
		return nil, err
	}
	slices.Sort(parts)
	return parts, nil
}

// both are values of a statement that has more of them on SQLite.
func (s *Store) both(values []any, more ...any) []any {
	if s.sqlite() {
		return append(values, more...)
	}
	return values
}

// Release frees those of parts that are m's.
func (s *Store) Release(ctx context.Context, m relay.MemberID, lane relay.LaneID, parts []int) error {
	return s.release(ctx, releaseStep, m, lane, parts)
}

func (s *Store) release(ctx context.Context, by step, m relay.MemberID, lane relay.LaneID, parts []int) error {
	return s.do(ctx, durable, by, statement{values: []any{int64(m), int64(lane), int64s(parts)}})
}

// Reap ends a member whose lease has passed, or any if dead; it only begins to if there
// are transactions of it to decide.
func (s *Store) Reap(ctx context.Context, m relay.MemberID, dead bool) (relay.Reaped, error) {
	return s.reap(ctx, m, dead, false)
}

// Finish ends a member whose transactions are decided.
func (s *Store) Finish(ctx context.Context, m relay.MemberID) (relay.Reaped, error) {
	return s.reap(ctx, m, true, true)
}

func (s *Store) reap(ctx context.Context, m relay.MemberID, dead, decided bool) (reaped relay.Reaped, err error) {
	member, how := []any{int64(m)}, []any{int64(m), decided}
	mark := statement{values: []any{int64(m), dead}, must: true, row: func(result) error { reaped.Done = true; return nil }}
	tokens := statement{values: how, row: func(r result) error { undecided(&reaped, r); return nil }}
	losses := statement{values: how, row: func(result) error { reaped.Rows++; return nil }}
	parts := statement{values: member, row: func(result) error { reaped.Parts++; return nil }}
	runs := []statement{{values: mark.values}, mark, tokens, losses, parts}
	if s.sqlite() {
		runs = []statement{mark, tokens, losses, {values: how}, parts, {values: member}}
	}
	if err := s.do(ctx, durable, reapStep, runs...); err != nil {
		return relay.Reaped{}, err
	}
	reaped.Done = reaped.Done && len(reaped.Undecided) == 0
	return reaped, nil
}

// undecided takes in a row of a token that its transaction's mark decides about.
func undecided(to *relay.Reaped, r result) {
	n, row := r.number(0), relay.RowRef{Part: int(r.number(2)), Seq: r.number(1), Key: r.number(3)}
	if last := len(to.Undecided) - 1; last >= 0 && to.Undecided[last].N == n {
		to.Undecided[last].Rows = append(to.Undecided[last].Rows, row)
		return
	}
	to.Undecided = append(to.Undecided, relay.Token{N: n, Rows: []relay.RowRef{row}})
}

// Leave ends members that have nothing in hand.
func (s *Store) Leave(ctx context.Context, members []relay.MemberID) error {
	var errs []error
	for _, m := range members {
		if _, err := s.Reap(ctx, m, true); err != nil {
			errs = append(errs, fmt.Errorf("member %d: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// int64s are the numbers of another type.
func int64s[N ~int | ~int16 | ~int64](of []N) []int64 {
	all := make([]int64, len(of))
	for i, n := range of {
		all[i] = int64(n)
	}
	return all
}
