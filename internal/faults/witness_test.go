package faults

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// calls are those of some brokers that began and ended since a time: for how many
// rows, and how many of them paid.
func (w *world) calls(brokers, since string) (rows, paid int) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(`SELECT count(*), count(*) FILTER (WHERE e.paid)
		FROM witness AS b JOIN witness AS e USING (seq, member, claim) JOIN outbox_messages USING (seq) JOIN outbox_lanes AS l ON l.id = lane
		WHERE b.new = 'processing' AND b.at >= $1::timestamptz AND e.old = 'processing' AND l.target `+brokers, since).Scan(&rows, &paid))
	return rows, paid
}

// queued are the rows that are not decided. Held ones wait for an operator.
const queued = "outbox_queue JOIN outbox_lanes AS l ON l.id = lane WHERE NOT held"

// waiting is how many rows are not decided, of those that a condition is true for.
func (w *world) waiting(and ...string) int {
	w.t.Helper()
	return w.count(strings.Join(append([]string{queued}, and...), " AND "))
}

// published is how many rows were.
func (w *world) published() (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow("SELECT COALESCE(sum(published), 0) FROM outbox_log").Scan(&n))
	return n
}

// publishes waits until n more rows are.
func (w *world) publishes(n int) {
	w.t.Helper()
	before := w.published()
	eventually(w.t, func() bool { return w.published() > before+n }, "rows are published")
}

// inHand are the rows that a process has claimed, in partitions that are its own.
const inHand = "outbox_members AS m JOIN outbox_claims AS c USING (member) CROSS JOIN unnest(c.seqs) AS s(seq) JOIN outbox_messages AS b ON b.seq = s.seq" +
	" JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq JOIN outbox_partitions AS p ON p.lane = b.lane AND p.part = b.part AND p.owner = m.member WHERE m.name LIKE $1"

// inHand is how many rows a process has claimed.
func (w *world) inHand(p *process) int {
	w.t.Helper()
	return w.count(inHand, owned(p))
}

// held is how many partitions a process has.
func (w *world) held(p *process) int {
	w.t.Helper()
	return w.count("outbox_partitions AS p JOIN outbox_members AS m ON m.member = p.owner WHERE m.name LIKE $1", owned(p))
}

// joined says that a process has a lease that runs.
func (w *world) joined(p *process) bool {
	w.t.Helper()
	return w.count("outbox_members WHERE name LIKE $1 AND until > clock_timestamp()", owned(p)) > 0
}

// lapsed says that all leases have run out, some time ago.
func (w *world) lapsed(ago time.Duration) bool {
	w.t.Helper()
	return w.count("outbox_members WHERE until > clock_timestamp() - $1::interval", ago.String()) == 0
}
