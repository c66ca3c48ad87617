package outboxdb

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

// SQLite, where statements are no round trips, has the steps one after the other.
var lookAndClaimStep = step{name: "look_and_claim", postgres: statements("postgres", "look_and_claim")}

// LookAndClaim looks, and claims all that it finds, if that can be claimed as it is.
func (s *Store) LookAndClaim(ctx context.Context, r relay.LookRequest) (l relay.Looked, err error) {
	if s.sqlite() {
		return s.lookThenClaim(ctx, r, s.Claim)
	}
	member := int64(r.Member)
	which, lows := columnsOf(r.Parts)
	var now time.Time
	queued := map[int64]relay.Claimed{}
	err = s.do(ctx, unsaved, lookAndClaimStep,
		statement{values: []any{member}, row: func(r result) (err error) {
			now, err = r.time(1)
			return err
		}},
		statement{values: []any{member, r.N, int64(r.Lane), which, lows, r.Limit, int64(r.Bytes), r.Rows}, row: func(r result) error {
			row := queueRow(r)
			l.Found, l.Claim.Alive = append(l.Found, row), r.yes(9)
			c := relay.Claimed{Seq: row.Seq, KeyHash: row.Key, Attempts: int(r.number(8))}
			c.Partition = row.Part
			queued[row.Seq] = c
			return nil
		}},
		statement{values: []any{member, r.N}, row: func(r result) error { // of those that have a message
			c := queued[r.number(0)]
			err := messageInto(&c, r, now)
			l.Claim.Rows = append(l.Claim.Rows, c)
			return err
		}})
	if err != nil {
		return relay.Looked{}, err
	}
	slices.SortFunc(l.Claim.Rows, func(a, b relay.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	sortByPart(l.Found)
	return l, nil
}

// lookThenClaim is both in two steps: the claim reads again what has changed meanwhile.
func (s *Store) lookThenClaim(ctx context.Context, r relay.LookRequest, claim func(context.Context, relay.ClaimRequest) (relay.Claim, error)) (l relay.Looked, err error) {
	if l.Found, err = s.Look(ctx, r.Lane, r.Parts, r.Limit); err != nil {
		return relay.Looked{}, err
	}
	if c, ok := r.Claim(l.Found); ok {
		l.Claim, err = claim(ctx, c)
	}
	return l, err
}
