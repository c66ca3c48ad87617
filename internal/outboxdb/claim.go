package outboxdb

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

var claimStep, forgetStep = load("claim"), load("forget")

// Claim locks the member's row, inserts the token and reads what is still queued of
// the rows, with their bodies. Several of a member may run at a time.
func (s *Store) Claim(ctx context.Context, q relay.ClaimRequest) (relay.Claim, error) {
	return s.claim(ctx, claimStep, q)
}

func (s *Store) claim(ctx context.Context, by step, q relay.ClaimRequest) (c relay.Claim, err error) {
	if len(q.Forget) > 0 {
		member := int64(q.Member)
		if err := s.do(ctx, unsaved, forgetStep, statement{values: []any{member}}, statement{values: []any{member, q.Forget}}); err != nil {
			return relay.Claim{}, err
		}
	}
	parts, seqs, keys := bySeq(q.Rows)
	c.Rows = make([]relay.Claimed, 0, len(q.Rows))
	runs := []statement{
		{values: []any{int64(q.Member), q.N, seqs}, must: true, row: func(result) error { c.Alive = true; return nil }},
		{values: []any{int64(q.Member), q.N, int64(q.Lane), parts, seqs, keys}, row: func(r result) error {
			row, err := claimed(r)
			c.Rows = append(c.Rows, row)
			return err
		}},
	}
	how := unsaved
	if q.Durable {
		how = durable
	}
	if err := s.do(ctx, how, by, runs...); err != nil {
		return relay.Claim{}, err
	}
	slices.SortFunc(c.Rows, func(a, b relay.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	return c, nil
}

func claimed(r result) (c relay.Claimed, err error) {
	c = relay.Claimed{Seq: r.number(1), KeyHash: r.number(2), Attempts: int(r.number(3)), Losses: int(r.number(4)), Waits: r.yes(5)}
	c.Partition = int(r.number(0))
	if c.MessageID, err = r.uuid(6); err != nil {
		return c, err
	}
	c.StreamCategory, c.Topic, c.PartitionKey, c.MessageType, c.Payload = r.text(7), r.text(8), r.text(9), r.text(10), r.bytes(11)
	c.ContentType, c.CloudEvent, c.CorrelationID, c.TenantID, c.Traceparent = r.text(12), r.text(13), r.text(14), r.text(15), r.text(16)
	var now time.Time
	for i, t := range []*time.Time{&c.OccurredAt, &c.CreatedAt, &now} {
		if *t, err = r.time(17 + i); err != nil {
			return c, err
		}
	}
	c.Waited = max(now.Sub(c.CreatedAt), 0)
	return c, nil
}

// bySeq are the columns of rows in the order of their seqs.
func bySeq(rows []relay.RowRef) (parts pairs, seqs, keys []int64) {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b relay.RowRef) int { return cmp.Compare(a.Seq, b.Seq) })
	parts, seqs, keys = make(pairs, len(rows)), make([]int64, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		parts[i], seqs[i], keys[i] = [2]int64{int64(r.Part), r.Seq}, r.Seq, r.Key
	}
	return parts, seqs, keys
}

// pairs are the partitions of rows, each with its seq for SQLite, which has to parse all of
// a list to take one of it.
type pairs [][2]int64

func (p pairs) parts() []int64 {
	parts := make([]int64, len(p))
	for i, pair := range p {
		parts[i] = pair[0]
	}
	return parts
}
