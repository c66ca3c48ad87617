package outbox

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/internal/pipeline"
)

// atOnce sends statements in one round trip, and those of then in another, which may
// be nil. ok is false, and nothing has happened, where that can't be done: on SQLite,
// which has none, and behind some poolers.
func (s *Store) atOnce(ctx context.Context, then func() []pipeline.Statement, statements ...pipeline.Statement) (ok bool, err error) {
	if s.sqlite() {
		return false, nil
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return true, err
	}
	if s.observe != nil {
		s.observe(statements)
		if rest := then; rest != nil {
			then = func() []pipeline.Statement {
				statements := rest()
				s.observe(statements)
				return statements
			}
		}
	}
	err = conn.Raw(func(dc any) error {
		if c, ok := dc.(pipeline.Conn); ok {
			return c.Pipeline(ctx, then, statements...)
		}
		return pipeline.ErrUnprepared
	})
	if closing := conn.Close(); err == nil {
		err = closing
	}
	if errors.Is(err, pipeline.ErrUnprepared) {
		return false, nil
	}
	return true, err
}

// claimSimply is the claim of two round trips, for partitions in which nothing is
// amiss. It looks at one page of each, behind what the worker has in hand already as
// far as the Memory knows. ok is false if that isn't enough to say what can be
// claimed; then nothing is.
func (s *Store) claimSimply(ctx context.Context, r ClaimRequest) (c Claim, ok bool, err error) {
	if s.sqlite() || r.May != nil || r.Alone || r.Careful || r.Memory == nil || r.Memory.intricate || r.Memory.falling(r.Leases) {
		return c, false, nil
	}
	if err := r.Memory.lookSometimes(ctx, s.db, false); err != nil {
		return c, true, err
	}
	n := len(r.Leases)
	partitions, fences, after := make([]int64, n), make([]int64, n), make([]int64, n)
	v := sight{partitions: make(map[int]*seen, n), blocked: map[string]bool{}}
	for i, l := range r.Leases {
		at := &seen{fence: l.Fence}
		at.after, at.changes = r.Memory.bound(l)
		partitions[i], fences[i], after[i] = int64(l.Partition), l.Fence, at.after
		v.partitions[l.Partition] = at
	}
	size := r.Limit // of all pages
	for _, row := range r.Hand {
		at := v.partitions[row.Partition]
		if at == nil {
			continue
		}
		at.out = true
		if row.Seq > at.after {
			size++
		} else { // it won't be seen
			v.blocked[row.Message.Key] = true
		}
	}
	r.Memory.walled(r.Leases, v.blocked)
	size = max(size, minPage)
	v.part = min(max((size+n-1)/n, minPart)<<r.Memory.deeper, size)
	milliseconds := func(d time.Duration) any {
		if d == 0 {
			return nil
		}
		return strconv.FormatInt(d.Milliseconds(), 10)
	}
	v.rows = make([]glimpse, 0, size)
	done, err := s.atOnce(
		ctx,
		func() (statements []pipeline.Statement) {
			chosen := v.choose(r.Limit)
			if len(chosen) == 0 {
				return nil
			}
			if raised, to := v.raised(chosen); len(raised) > 0 {
				statements = append(statements, pipeline.Statement{Query: raiseOwn, Values: []any{r.Target, pipeline.Numbers(raised), pipeline.Numbers(to)}})
			}
			seqs := make([]int64, len(chosen))
			for i, row := range chosen {
				seqs[i] = row.seq
			}
			c.Rows = make([]Claimed, 0, len(seqs))
			return append(statements, pipeline.Statement{
				Query: markOwn, Values: []any{r.Target, r.Worker, strconv.Itoa(r.MaxAttempts), pipeline.Numbers(seqs)},
				Row: func(columns [][]byte) error {
					row, err := readClaimed(columns, &c.ID)
					c.Rows = append(c.Rows, row)
					return err
				},
			})
		},
		pipeline.Statement{
			Query:  lockOwn,
			Values: []any{r.Target, r.Worker, pipeline.Numbers(partitions), pipeline.Numbers(fences), milliseconds(r.Wait), milliseconds(r.Silence)},
			Row:    v.lock,
		},
		pipeline.Statement{
			Query:  pageOwn,
			Values: []any{r.Target, pipeline.Numbers(partitions), pipeline.Numbers(fences), pipeline.Numbers(after), strconv.Itoa(v.part)},
			Row:    v.see,
		},
	)
	if err != nil || !done {
		return Claim{}, done, err
	}
	slices.SortFunc(c.Rows, func(a, b Claimed) int { return cmp.Compare(a.Seq, b.Seq) }) // RETURNING promises no order
	c.Incomplete = v.locked < n
	c.InHand = v.inHand()
	c.Next = r.Memory.wait(maps.Keys(v.partitions))
	mistaken := r.Memory.saw(v, r.Hand) || v.outdated
	full := v.full()
	c.More = full || mistaken || len(c.Rows) == r.Limit
	switch few := full && len(c.Rows) < r.Limit; {
	case v.priorities, v.amiss, len(c.Rows) == 0 && (mistaken || few && v.part == size && len(c.InHand) == 0):
		r.Memory.intricate = true
		return Claim{}, false, nil
	case !full:
		r.Memory.deeper = 0
	case !few && len(v.rows) > 2*size:
		r.Memory.deeper = max(r.Memory.deeper-1, 0)
	case !few:
	case len(c.InHand) > 0 && len(c.Rows) < r.Limit/4:
		// Followers of what is out fill the pages. What is behind them is for a search
		// that goes farther, unless it lands before.
		c.Crowded, r.Memory.intricate = true, true
	case v.part < size:
		r.Memory.deeper++
	default:
		r.Memory.intricate = len(c.Rows) < r.Limit/4
	}
	r.Memory.claimed()
	return c, true, nil
}

// minPart is how many rows of a partition are looked at, at least: they may be a run
// of one key, of which what is left has to wait until the others have landed.
const minPart = 32

// sight is what a claim has seen of its partitions.
type sight struct {
	part       int // rows of a page, at most
	locked     int // partitions
	partitions map[int]*seen
	rows       []glimpse       // page by page
	blocked    map[string]bool // keys that have a row in somebody's hand, or wait themselves
	priorities bool            // there are rows with priorities
	amiss      bool            // rows that can't go on or failed, unknown so far: nothing is taken
	outdated   bool            // an operator changed rows: what it looked behind may not be
}

// seen is a partition: the changes that operators made, behind what it was read, and
// what of it was in the worker's hand or locked for the claim.
type seen struct {
	fence, changes, after int64
	below                 int64 // claimed_below
	out, locked           bool
	rows                  int
	left                  bool  // a row could have been taken, but for its key or the limit
	taken                 int64 // up to here every unfinished row is in the worker's hand now
	stopped               bool
}

// glimpse is a row without what it carries.
type glimpse struct {
	seq       int64
	partition int
	key       string
	state     int64
	chosen    bool
}

// The states of a glimpse; see pageOwn.
const (
	glimpseDue = iota
	glimpseMine
	glimpseOut
	glimpseAmiss
)

// lock reads an answer to lockOwn.
func (v *sight) lock(columns [][]byte) error {
	at := v.partitions[int(toInt(columns[0]))]
	at.locked, at.below = true, toInt(columns[2])
	v.locked++
	if changes := toInt(columns[1]); at.changes != changes || at.after > toInt(columns[3]) {
		v.outdated = v.outdated || at.after > 0
		at.changes, at.after = changes, 0
	}
	return nil
}

// see reads an answer to pageOwn.
func (v *sight) see(columns [][]byte) error {
	v.priorities = v.priorities || columns[4][0] != 0
	p := int(toInt(columns[0]))
	at := v.partitions[p]
	if columns[1] == nil || !at.locked {
		return nil // an empty page, or one of somebody else's partition
	}
	row := glimpse{seq: toInt(columns[1]), partition: p, key: string(columns[2]), state: toInt(columns[3])}
	switch row.state {
	case glimpseMine, glimpseOut:
		v.blocked[row.key] = true
	case glimpseAmiss:
		v.amiss = true
	}
	at.rows++
	v.rows = append(v.rows, row)
	return nil
}

// choose marks the rows to claim, and returns them: of pages in which all are due and
// have never failed the oldest, of keys of which nobody has a row.
func (v *sight) choose(limit int) (chosen []*glimpse) {
	if v.outdated {
		return nil
	}
	if !v.priorities && !v.amiss {
		for i := range v.rows {
			if row := &v.rows[i]; row.state == glimpseDue && !v.blocked[row.key] {
				chosen = append(chosen, row)
			}
		}
		slices.SortFunc(chosen, func(a, b *glimpse) int { return cmp.Compare(a.seq, b.seq) })
		chosen = chosen[:min(len(chosen), limit)]
		for _, row := range chosen {
			row.chosen = true
		}
	}
	for _, row := range v.rows {
		at := v.partitions[row.partition]
		at.left = at.left || !row.chosen && (row.state == glimpseDue || row.state == glimpseAmiss)
		at.stopped = at.stopped || !row.chosen && row.state != glimpseMine
		if !at.stopped {
			at.taken = row.seq
		}
	}
	return chosen
}

// raised are the partitions of which rows are to be claimed that claimed_below doesn't
// cover, and what covers them; see raise.
func (v *sight) raised(chosen []*glimpse) (partitions, to []int64) {
	highest := make(map[int]int64, len(v.partitions))
	for _, row := range chosen {
		highest[row.partition] = row.seq
	}
	for p, seq := range highest {
		if seq >= v.partitions[p].below {
			partitions, to = append(partitions, int64(p)), append(to, seq+claimedAhead)
		}
	}
	return partitions, to
}

// full says that there may be more than the page of a partition.
func (v *sight) full() bool {
	for _, at := range v.partitions {
		if at.rows == v.part {
			return true
		}
	}
	return false
}

// inHand are the partitions where a key was left that is in hand, or waits itself.
func (v *sight) inHand() (partitions []int) {
	for p, at := range v.partitions {
		if at.left && at.out {
			partitions = append(partitions, p)
		}
	}
	return partitions
}

const (
	// lastingPlans is for what follows in a transaction. It is planned once for a connection,
	// also while the table is small: what reads all of it would be the best plan then,
	// and stay.
	lastingPlans = `set_config('plan_cache_mode', 'force_generic_plan', true) || set_config('enable_seqscan', 'off', true) || set_config('enable_bitmapscan', 'off', true)`

	// lockOwn keeps the partitions that are the worker's.
	lockOwn = `SELECT p.partition, p.changes, p.claimed_below, (SELECT last_value FROM outbox_seq_seq), (SELECT set_config('lock_timeout', COALESCE($5::text, current_setting('lock_timeout')), true)
	|| set_config('idle_in_transaction_session_timeout', COALESCE($6::text, current_setting('idle_in_transaction_session_timeout')), true)
	|| ` + lastingPlans + `)
FROM unnest((SELECT $3::integer[])::integer[], (SELECT $4::bigint[])::bigint[]) AS v(partition, fence)
JOIN outbox_partitions AS p ON p.target_broker = $1::text AND p.partition = v.partition AND p.fence = v.fence
WHERE p.locked_by = $2::text AND p.locked_until > clock_timestamp()
FOR NO KEY UPDATE OF p SKIP LOCKED`

	// pageOwn reads a page of each partition, with the states that glimpse has.
	pageOwn = `SELECT v.partition, u.seq, u.partition_key, u.state,
	(SELECT max(priority) FROM outbox WHERE target_broker = $1::text AND finished_at IS NULL AND priority <> 0) IS NOT NULL
FROM unnest((SELECT $2::integer[])::integer[], (SELECT $3::bigint[])::bigint[], (SELECT $4::bigint[])::bigint[]) AS v(partition, fence, after)
LEFT JOIN LATERAL (
	SELECT seq, partition_key, CASE WHEN status = 'processing' THEN CASE WHEN fence = v.fence THEN 1 ELSE 2 END
		WHEN status <> 'pending' OR available_at > clock_timestamp() OR losses > 1 THEN 3 ELSE 0 END AS state
	FROM outbox WHERE target_broker = $1::text AND partition = v.partition AND priority = 0 AND finished_at IS NULL AND seq > v.after
	ORDER BY seq LIMIT (SELECT $5::integer)
) AS u ON true`

	// raiseOwn keeps claimed_below above what is claimed, see raise.
	raiseOwn = `UPDATE outbox_partitions AS p SET claimed_below = v.seq
FROM unnest((SELECT $2::integer[])::integer[], (SELECT $3::bigint[])::bigint[]) AS v(partition, seq)
WHERE p.target_broker = $1::text AND p.partition = v.partition`

	// markOwn is as mark.
	markOwn = `UPDATE outbox AS o SET status = 'processing', locked_by = $2::text, locked_until = p.locked_until, fence = p.fence,
	claim_id = (SELECT nextval('outbox_claim_seq')), attempts = o.attempts + 1, max_attempts = $3::integer, last_attempt_at = clock_timestamp()
FROM outbox_partitions AS p
WHERE o.seq = ANY ((SELECT $4::bigint[])::bigint[]) AND p.target_broker = $1::text AND p.partition = o.partition
RETURNING o.claim_id, o.seq, o.partition, o.message_id, o.topic, o.stream_category, o.partition_key, o.message_type, o.content_type,
	o.correlation_id, o.tenant_id, o.traceparent, o.payload, o.cloud_event, o.occurred_at, o.attempts, o.losses,
	o.created_at, o.last_attempt_at`

	// Of the claim $4, the rows $3.
	theseOwn = " WHERE seq = ANY ((SELECT $3::bigint[])::bigint[]) AND claim_id = $4::bigint AND status = 'processing'"
	countOwn = " RETURNING attempts - losses - 1 AS retries), counted AS (" + count +
		" SELECT $1::text, $2::integer, count(*), sum(retries) FROM settled HAVING count(*) > 0 " + add + ") SELECT count(*) FROM settled"

	// publishOwn and removeOwn are as in settlePublished.
	publishOwn = `WITH settled AS (UPDATE outbox SET status = 'published', published_at = clock_timestamp(), finished_at = clock_timestamp(),
	expires_at = clock_timestamp() + $5::interval, last_error = NULL, failure_class = NULL, locked_by = NULL, locked_until = NULL, fence = NULL, claim_id = NULL` +
		theseOwn + countOwn
	removeOwn = "WITH settled AS (DELETE FROM outbox" + theseOwn + " AND " + removable + countOwn
)

// settleAtOnce is settlePublished. ok is as in atOnce: nothing has happened if it is
// false.
func (s *Store) settleAtOnce(ctx context.Context, w Settlement, seqs []int64) (n int64, ok bool, err error) {
	settled := func(query string, more ...any) (n int64, ok bool, err error) {
		ok, err = s.atOnce(ctx, nil, pipeline.Statement{Query: "SELECT " + lastingPlans}, pipeline.Statement{
			Query: query, Values: append([]any{w.Target, strconv.FormatInt(w.Claim%publishedSlots, 10), pipeline.Numbers(seqs), strconv.FormatInt(w.Claim, 10)}, more...),
			Row: func(columns [][]byte) error {
				n = toInt(columns[0])
				return nil
			},
		})
		return n, ok, err
	}
	retention := w.Retention.Published
	if w.Retention.Delete {
		if n, ok, err = settled(removeOwn); !ok || err != nil || n == int64(len(seqs)) {
			return n, ok, err
		}
		retention = 0
	}
	var expires any
	if retention >= 0 {
		expires = strconv.FormatInt(retention.Microseconds(), 10) + " microseconds"
	}
	kept, ok, err := settled(publishOwn, expires)
	if !ok && n > 0 { // a pooler has changed the connection between the two
		kept, err = s.settleAndCount(ctx, s.db, w, s.publish(w, seqs, retention), false)
		ok = true
	}
	return n + kept, ok, err
}

// readClaimed is scanClaimed for markOwn.
func readClaimed(columns [][]byte, claim *int64) (Claimed, error) {
	*claim = toInt(columns[0])
	c := Claimed{Seq: toInt(columns[1]), Partition: int(toInt(columns[2])), Attempts: int(toInt(columns[15])), Losses: int(toInt(columns[16]))}
	c.Waited = timeOf(columns[18]).Sub(timeOf(columns[17]))
	id, err := uuid.FromBytes(columns[3])
	if err != nil {
		return c, err
	}
	text := func(i int) *string {
		if columns[i] == nil {
			return nil
		}
		t := string(columns[i])
		return &t
	}
	c.Message.ID, c.Message.Key, c.Message.Body = id.String(), string(columns[6]), slices.Clone(columns[12])
	return c, rowTexts{
		topic: text(4), category: string(columns[5]), messageType: string(columns[7]), contentType: string(columns[8]),
		correlation: text(9), tenant: text(10), trace: text(11), cloudEvent: columns[13], occurred: timeOf(columns[14]),
	}.fill(&c.Message)
}

// toInt reads a smallint, integer or bigint in PostgreSQL's binary form.
func toInt(b []byte) int64 {
	switch len(b) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b)))
	case 8:
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// timeOf reads a timestamptz: microseconds since 2000.
func timeOf(b []byte) time.Time {
	const y2k = 946684800
	return time.UnixMicro(toInt(b) + y2k*1e6).UTC()
}
