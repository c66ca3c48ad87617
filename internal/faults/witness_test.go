package faults

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// witness keeps every change of hands that rows and partitions go through, in the
// database itself: what it tells is independent of the processes that did it. It knows
// claims by their tokens, and what became of their rows by where these are when the
// token goes. Sessions of nodes are named after their process.
const witness = `
CREATE TABLE witness (
	n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
	seq bigint, old text, new text, owner text, member bigint, claim bigint, lost boolean, paid boolean,
	attempts int, losses int, failed_at timestamptz);
CREATE INDEX ON witness (member, claim);
CREATE TABLE thefts (what text);
CREATE TABLE endings (at timestamptz NOT NULL DEFAULT clock_timestamp(), name text, by text, early interval);

CREATE FUNCTION see_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO thefts
	SELECT format('row %s: member %s claimed it, and its partition %s belongs to %s', q.seq, NEW.member, q.part, COALESCE(p.owner::text, 'nobody'))
	FROM outbox_messages AS b JOIN outbox_queue AS q USING (lane, part, seq) JOIN outbox_partitions AS p USING (lane, part)
	WHERE b.seq = ANY (NEW.seqs) AND p.owner IS DISTINCT FROM NEW.member;
	INSERT INTO thefts
	SELECT format('row %s: member %s claimed it while member %s has it in hand', q.seq, NEW.member, c.member)
	FROM outbox_claims AS c CROSS JOIN unnest(c.seqs) AS s(seq) JOIN outbox_messages AS b USING (seq) JOIN outbox_queue AS q USING (lane, part, seq)
	WHERE c.member <> NEW.member AND s.seq = ANY (NEW.seqs);
	INSERT INTO witness (seq, old, new, owner, member, claim, lost, paid, attempts, losses, failed_at)
	SELECT q.seq, 'pending', 'processing', m.name, NEW.member, NEW.n, false, false, q.attempts, q.losses, q.failed_at
	FROM outbox_messages AS b JOIN outbox_queue AS q USING (lane, part, seq) JOIN outbox_members AS m ON m.member = NEW.member
	WHERE b.seq = ANY (NEW.seqs);
	RETURN NULL;
END $$;
CREATE TRIGGER see_claim AFTER INSERT ON outbox_claims FOR EACH ROW EXECUTE FUNCTION see_claim();

CREATE FUNCTION see_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO witness (seq, old, new, owner, member, claim, lost, paid)
	SELECT w.seq, 'processing', CASE
			WHEN a.seq IS NOT NULL OR q.held THEN 'abandoned'
			WHEN q.seq IS NULL THEN 'published'
			WHEN q.failed_at IS DISTINCT FROM w.failed_at THEN 'failed'
			ELSE 'pending' END,
		w.owner, w.member, w.claim, COALESCE(q.losses > w.losses, false), COALESCE(q.attempts, a.attempts, 0) > w.attempts
	FROM witness AS w JOIN outbox_messages AS b USING (seq)
	LEFT JOIN outbox_queue AS q USING (lane, part, seq)
	LEFT JOIN outbox_abandoned AS a ON a.seq = w.seq
	WHERE w.member = OLD.member AND w.claim = OLD.n AND w.new = 'processing';
	RETURN NULL;
END $$;
CREATE TRIGGER see_end AFTER DELETE ON outbox_claims FOR EACH ROW EXECUTE FUNCTION see_end();

CREATE FUNCTION see_partition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.owner <> NEW.owner THEN
		INSERT INTO thefts VALUES (format('partition %s: %s took it from %s', OLD.part, NEW.owner, OLD.owner));
	END IF;
	IF NEW.owner IS NOT NULL AND NOT EXISTS (SELECT FROM outbox_members WHERE member = NEW.owner) THEN
		INSERT INTO thefts VALUES (format('partition %s: %s took it after its end', OLD.part, NEW.owner));
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER see_partition AFTER UPDATE OF owner ON outbox_partitions FOR EACH ROW EXECUTE FUNCTION see_partition();

CREATE FUNCTION see_member() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.until > clock_timestamp() AND NEW.until < OLD.until - interval '1 hour' THEN
		INSERT INTO endings (name, by, early) VALUES (OLD.name, current_setting('application_name'), OLD.until - clock_timestamp());
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER see_member AFTER UPDATE OF until ON outbox_members FOR EACH ROW EXECUTE FUNCTION see_member();
`

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
