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
// the rows, and their messages. Several of a member may run at a time.
func (s *Store) Claim(ctx context.Context, q relay.ClaimRequest) (c relay.Claim, err error) {
	member := int64(q.Member)
	if len(q.Forget) > 0 {
		if err := s.forget(ctx, member, q.Forget); err != nil {
			return relay.Claim{}, err
		}
	}
	parts, seqs, keys := bySeq(q.Rows)
	var now time.Time
	rows, queued, read := make([]relay.Claimed, len(seqs)), make([]bool, len(seqs)), make([]bool, len(seqs))
	// in is the place of a row, which the first column of a result names.
	in := func(there []bool, r result) *relay.Claimed {
		i, _ := slices.BinarySearch(seqs, r.number(0))
		there[i] = true
		return &rows[i]
	}
	runs := []statement{
		{values: []any{member, q.N, seqs}, must: true, row: func(r result) (err error) {
			c.Alive = true
			now, err = r.time(1)
			return err
		}},
		{values: []any{member, q.N, int64(q.Lane), parts, seqs, keys}, row: func(r result) error {
			row := in(queued, r)
			row.Seq, row.Attempts, row.Losses, row.Waits = r.number(0), int(r.number(1)), int(r.number(2)), r.yes(3)
			return nil
		}},
		{values: []any{member, q.N}, row: func(r result) error { return messageInto(in(read, r), r, now) }},
	}
	if err := s.do(ctx, lasting(q.Durable), claimStep, runs...); err != nil {
		return relay.Claim{}, err
	}
	// What isn't queued any more has been decided, and its message may be gone.
	for i := range rows {
		if queued[i] && read[i] {
			rows[i].Partition, rows[i].KeyHash = int(parts[i][0]), keys[i]
			rows[len(c.Rows)] = rows[i]
			c.Rows = rows[:len(c.Rows)+1]
		}
	}
	return c, nil
}

// forget deletes the tokens of claims that were not answered.
func (s *Store) forget(ctx context.Context, member int64, claims []int64) error {
	return s.do(ctx, unsaved, forgetStep, statement{values: []any{member}}, statement{values: []any{member, claims}})
}

func messageInto(c *relay.Claimed, r result, now time.Time) (err error) {
	if c.MessageID, err = r.uuid(1); err != nil {
		return err
	}
	c.StreamCategory, c.Topic, c.PartitionKey, c.MessageType, c.Payload = r.text(2), r.text(3), r.text(4), r.text(5), r.bytes(6)
	c.ContentType, c.CloudEvent, c.CorrelationID, c.TenantID, c.Traceparent = r.text(7), r.text(8), r.text(9), r.text(10), r.text(11)
	if c.OccurredAt, err = r.time(12); err != nil {
		return err
	}
	if c.CreatedAt, err = r.time(13); err != nil {
		return err
	}
	c.Waited = max(now.Sub(c.CreatedAt), 0)
	return nil
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
