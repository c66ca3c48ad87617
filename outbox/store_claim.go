package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/waybill-go/waybill/broker"
	"github.com/waybill-go/waybill/internal/dbrows"
	"github.com/waybill-go/waybill/internal/dbtime"
)

// ClaimRequest says who claims what.
type ClaimRequest struct {
	Target      string
	Worker      string
	Leases      []Lease
	Limit       int // Nothing is claimed if it is below 1.
	MaxAttempts int // Is noted on the rows.
	// May says whether a row may be taken; one that may not holds its key back.
	// Nil: all may.
	May func(key, topic string) bool
	// Alone takes one row that is in quarantine, for a call of its own.
	Alone bool
	// Wait is how long the claim waits for a row that others have locked; then it
	// fails with the database's lock timeout. 0: for as long as it takes.
	Wait time.Duration
	// Silence is how long PostgreSQL waits for the next statement of the claim; then it
	// ends the session. 0: as the server is configured.
	Silence time.Duration
	// Careful leaves out keys with a row that others have locked, instead of
	// waiting. It costs one more statement.
	Careful bool
	// Near bounds the search in each partition, to about [near] times the rows of
	// its first page, for a worker that has claims out already.
	Near bool
	// Hand is what the worker has in hand: it must be complete if there is a Memory.
	Hand []Claimed
	// Memory is what the worker remembers of its partitions. Nil: nothing.
	Memory *Memory
}

// Claim is a number of rows in one worker's hand. Only its ID can settle them.
type Claim struct {
	ID   int64
	Rows []Claimed // in the order of Seq
	// Next is the time until the earliest row that was seen and isn't due yet; 0
	// if there was none.
	Next time.Duration
	// Incomplete says that some of the partitions were locked, by a renewal or an
	// operator, and were left out: it is worth looking again at once.
	Incomplete bool
	// More says that a full batch of rows was taken, or that there are more than were
	// looked at.
	More bool
	// Quarantined says that a row in quarantine is due and was left.
	Quarantined bool
	// Crowded says that a search that was to be near found little, because most rows
	// are of keys that are in somebody's hand.
	Crowded bool
	// InHand are the partitions in which a key was left because a row of it is in
	// somebody's hand.
	InHand []int
}

// Claimed is a row in hand.
type Claimed struct {
	Seq       int64
	Partition int
	Attempts  int // this one included
	Losses    int
	Waited    time.Duration // from its storing to this claim, by the database's clock
	Message   broker.Message
}

// quarantine is from how many lost claims in a row on a row is claimed alone,
// and buried how many a row has had at least when a crash ends it. Three of
// those were alone: a healthy row pays for its process being killed from outside
// only if that happens three times while it is the only one in flight.
const (
	quarantine = 2
	buried     = quarantine + 3
)

// Claim takes rows of the worker's partitions: of each key the longest run of
// due rows from its first unfinished row on, oldest first, Limit at most. A key
// with a row in somebody's hand, with a failed head that isn't due, or with a
// held one, gives nothing.
//
// It is one transaction of two steps. The first locks the worker's rows of
// outbox_partitions and drops the leases that are no longer its own: without it,
// a claim that read a fence and was overtaken by a takeover would strand rows
// under the old fence. The second chooses and marks, with a snapshot of its own,
// and never skips a locked outbox row: to skip a head that a settle holds would
// publish its followers first.
func (s *Store) Claim(ctx context.Context, r ClaimRequest) (Claim, error) {
	var c Claim
	if r.Limit < 1 || len(r.Leases) == 0 {
		return c, nil
	}
	if r.Alone {
		r.Limit = 1
	}
	if c, ok, err := s.claimSimply(ctx, r); ok || err != nil {
		return c, err
	}
	err := s.inTx(ctx, s.db, func(tx bun.Tx) error {
		own, err := s.own(ctx, tx, r, true)
		if err != nil {
			return err
		}
		c.Incomplete = len(own) < len(r.Leases)
		if len(own) == 0 {
			return nil
		}
		chosen, err := s.choose(ctx, tx, r, own)
		if err != nil {
			return err
		}
		r.Memory.claimed()
		c.Next, c.Quarantined, c.Crowded, c.InHand = chosen.next, chosen.quarantined, chosen.crowded, chosen.inHand
		if r.Careful && !s.sqlite() {
			if err := s.leaveLocked(ctx, tx, &chosen); err != nil {
				return err
			}
		}
		if len(chosen.rows) == 0 {
			return nil
		}
		c.More = len(chosen.rows) == r.Limit
		if r.Near || r.Careful {
			c.Next = time.Millisecond // it hasn't seen all
		}
		if err := s.raise(ctx, tx, r.Target, chosen, own); err != nil {
			return err
		}
		return s.mark(ctx, tx, r, chosen, &c)
	})
	if err != nil {
		return Claim{}, err
	}
	return c, nil
}

// Peek says, without a lock, what a claim would find: whether there is
// something to take, and all that a [Claim] says without its rows.
func (s *Store) Peek(ctx context.Context, r ClaimRequest) (found bool, c Claim, err error) {
	if r.Limit < 1 || len(r.Leases) == 0 {
		return false, c, nil
	}
	r.Limit = 1
	own := make(map[int]partitionState, len(r.Leases))
	if r.Memory.remembers() {
		// An operator may have changed what is remembered.
		if own, err = s.own(ctx, s.reader, r, false); err != nil {
			return false, c, err
		}
	} else {
		for _, l := range r.Leases {
			own[l.Partition] = partitionState{fence: l.Fence, changes: -1} // not read
		}
	}
	chosen, err := s.choose(ctx, s.reader, r, own)
	return len(chosen.rows) > 0, Claim{Next: chosen.next, Quarantined: chosen.quarantined, InHand: chosen.inHand}, err
}

// partitionState is a partition as a claim finds it.
type partitionState struct {
	fence        int64
	claimedBelow int64
	changes      int64
	last         int64 // seq that was given out, of all
}

// own reads those of the partitions that are the worker's, and locks them.
func (s *Store) own(ctx context.Context, db bun.IDB, r ClaimRequest, lock bool) (map[int]partitionState, error) {
	last := "(SELECT last_value FROM outbox_seq_seq)"
	if s.sqlite() {
		last = "COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0)"
	}
	query := leaseValues(r.Leases) + " SELECT p.partition, p.fence, p.claimed_below, p.changes, " + last + " FROM outbox_partitions AS p JOIN v ON p.partition = v.partition AND p.fence = v.fence" +
		" WHERE p.target_broker = ? AND p.locked_by = ? AND p.locked_until > " + s.now() + s.patience(r.Wait, r.Silence)
	if lock && !s.sqlite() {
		query += " FOR NO KEY UPDATE OF p SKIP LOCKED"
	}
	own := make(map[int]partitionState, len(r.Leases))
	err := dbrows.Each(ctx, db, query, func(scan func(...any) error) error {
		var p int
		var at partitionState
		err := scan(&p, &at.fence, &at.claimedBelow, &at.changes, &at.last)
		own[p] = at
		return err
	}, r.Target, r.Worker)
	return own, err
}

// claimedAhead is how far claimed_below runs ahead of the claims, so that it is
// seldom written.
const claimedAhead = 10000

// raise keeps claimed_below above the rows that are about to be claimed.
func (s *Store) raise(ctx context.Context, tx bun.Tx, target string, chosen choice, own map[int]partitionState) error {
	var values []string
	highest := map[int]int64{}
	for _, row := range chosen.rows {
		highest[row.partition] = row.seq
	}
	for p, seq := range highest {
		if seq >= own[p].claimedBelow {
			values = append(values, fmt.Sprintf("(%d, %d)", p, seq+claimedAhead))
		}
	}
	if len(values) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, "WITH v(partition, seq) AS (VALUES "+strings.Join(values, ", ")+") UPDATE outbox_partitions SET claimed_below = v.seq"+
		" FROM v WHERE target_broker = ? AND outbox_partitions.partition = v.partition", target)
	return err
}

// mark makes the chosen rows the worker's and reads them.
func (s *Store) mark(ctx context.Context, tx bun.Tx, r ClaimRequest, chosen choice, c *Claim) (err error) {
	id := "(SELECT nextval('outbox_claim_seq'))" // once for all rows
	if s.sqlite() {
		n, err := s.sequence(ctx, tx, "claim")
		if err != nil {
			return err
		}
		id = strconv.FormatInt(n, 10)
	}
	seqs := chosen.seqs(nil)
	if failed := chosen.seqs(func(c candidate) bool { return c.status == Failed }); len(failed) > 0 {
		// A retry is pending again before it is claimed, as the life cycle says.
		if _, err = tx.ExecContext(ctx, "UPDATE outbox SET status = 'pending' WHERE seq IN ("+list(failed)+")"); err != nil {
			return err
		}
	}
	c.Rows = make([]Claimed, 0, len(seqs))
	err = dbrows.Each(ctx, tx, "UPDATE outbox SET status = 'processing', locked_by = ?1, locked_until = p.locked_until, fence = p.fence, claim_id = "+id+","+
		" attempts = attempts + 1, max_attempts = ?2, last_attempt_at = "+s.now()+
		" FROM outbox_partitions AS p WHERE p.target_broker = outbox.target_broker AND p.partition = outbox.partition"+
		" AND outbox.seq IN ("+list(seqs)+")"+
		" RETURNING claim_id, outbox.seq, outbox.partition, message_id, topic, stream_category, partition_key, message_type, content_type,"+
		" correlation_id, tenant_id, traceparent, payload, cloud_event, occurred_at, attempts, losses, created_at, last_attempt_at",
		func(scan func(...any) error) error {
			row, err := scanClaimed(scan, &c.ID)
			c.Rows = append(c.Rows, row)
			return err
		}, r.Target, r.Worker, r.MaxAttempts)
	// RETURNING promises no order.
	slices.SortFunc(c.Rows, func(a, b Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	return err
}

func scanClaimed(scan func(...any) error, claim *int64) (Claimed, error) {
	var (
		c                         Claimed
		t                         rowTexts
		occurred, stored, claimed dbtime.Time
	)
	m := &c.Message
	err := scan(claim, &c.Seq, &c.Partition, &m.ID, &t.topic, &t.category, &m.Key, &t.messageType, &t.contentType,
		&t.correlation, &t.tenant, &t.trace, &m.Body, &t.cloudEvent, &occurred, &c.Attempts, &c.Losses, &stored, &claimed)
	if err != nil {
		return c, err
	}
	t.occurred, c.Waited = occurred.Time, claimed.Time.Sub(stored.Time)
	return c, t.fill(m)
}

// rowTexts are columns of a row of which its message's topic and headers are made.
type rowTexts struct {
	topic, correlation, tenant, trace  *string
	category, messageType, contentType string
	cloudEvent                         []byte
	occurred                           time.Time
}

func (t rowTexts) fill(m *broker.Message) (err error) {
	if m.Topic = DefaultTopic(t.category); t.topic != nil {
		m.Topic = *t.topic
	}
	m.Headers = make(map[string]string, 12)
	m.Headers["id"] = m.ID
	m.Headers["type"] = t.messageType
	m.Headers["time"] = t.occurred.Format(timeLayout)
	m.Headers["content-type"] = t.contentType
	for name, value := range map[string]*string{"correlation-id": t.correlation, "tenant-id": t.tenant, "traceparent": t.trace} {
		if value != nil {
			m.Headers[name] = *value
		}
	}
	if t.cloudEvent != nil {
		err = json.Unmarshal(t.cloudEvent, &m.CloudEvent)
	}
	return err
}
