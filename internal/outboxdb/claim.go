package outboxdb

import (
	"cmp"
	"context"
	"fmt"
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

func (s *Store) claim(ctx context.Context, by step, q relay.ClaimRequest) (relay.Claim, error) {
	if err := s.forgotten(ctx, q); err != nil {
		return relay.Claim{}, err
	}
	parts, seqs, keys := bySeq(q.Rows)
	r := reading{parts: parts, seqs: seqs, keys: keys, rows: make([]relay.Claimed, len(seqs)), queue: make([]bool, len(seqs)), read: make([]bool, len(seqs))}
	member := int64(q.Member)
	runs := []statement{
		{values: []any{member, q.N, seqs}, must: true, row: r.token},
		{values: []any{member, q.N, int64(q.Lane), parts, seqs, keys}, row: r.queued},
		{values: []any{member, q.N}, row: r.message},
	}
	if err := s.do(ctx, lasting(q.Durable), by, runs...); err != nil {
		return relay.Claim{}, err
	}
	return r.claim(), nil
}

// forgotten deletes the tokens of claims that weren't answered.
func (s *Store) forgotten(ctx context.Context, q relay.ClaimRequest) error {
	if len(q.Forget) == 0 {
		return nil
	}
	member := int64(q.Member)
	return s.do(ctx, unsaved, forgetStep, statement{values: []any{member}}, statement{values: []any{member, q.Forget}})
}

// reading is a claim on its way: what its statements say of each row.
type reading struct {
	parts      pairs
	seqs, keys []int64
	rows       []relay.Claimed // as seqs
	queue      []bool          // has it
	read       []bool          // is its message
	alive      bool
	now        time.Time
}

func (c *reading) token(r result) (err error) {
	c.alive = true
	c.now, err = r.time(1)
	return err
}

// at is the row that a result's first column names.
func (c *reading) at(r result) (i int, err error) {
	seq := r.number(0)
	i, asked := slices.BinarySearch(c.seqs, seq)
	if !asked {
		return 0, fmt.Errorf("outbox: claim: row %d wasn't asked for", seq)
	}
	return i, nil
}

func (c *reading) queued(r result) error {
	i, err := c.at(r)
	if err != nil {
		return err
	}
	row := &c.rows[i]
	row.Seq, row.KeyHash, row.Partition = c.seqs[i], c.keys[i], int(c.parts[i][0])
	row.Attempts, row.Losses, row.Waits = int(r.number(1)), int(r.number(2)), r.yes(3)
	c.queue[i] = true
	return nil
}

func (c *reading) message(r result) error {
	i, err := c.at(r)
	if err != nil {
		return err
	}
	row := &c.rows[i]
	if row.MessageID, err = r.uuid(1); err != nil {
		return err
	}
	row.StreamCategory, row.Topic, row.PartitionKey, row.MessageType, row.Payload = r.text(2), r.text(3), r.text(4), r.text(5), r.bytes(6)
	row.ContentType, row.CloudEvent, row.CorrelationID, row.TenantID, row.Traceparent = r.text(7), r.text(8), r.text(9), r.text(10), r.text(11)
	if row.OccurredAt, err = r.time(12); err != nil {
		return err
	}
	if row.CreatedAt, err = r.time(13); err != nil {
		return err
	}
	row.Waited = max(c.now.Sub(row.CreatedAt), 0)
	c.read[i] = true
	return nil
}

// claim is what was read of both: what isn't queued any more has been decided, and its message
// may be gone.
func (c *reading) claim() relay.Claim {
	n := 0
	for i := range c.rows {
		if c.queue[i] && c.read[i] {
			c.rows[n] = c.rows[i]
			n++
		}
	}
	return relay.Claim{Alive: c.alive, Rows: c.rows[:n]}
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
