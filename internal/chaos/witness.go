package chaos

// Witness keeps every change of hands that rows and partitions go through, in the
// database itself: what it tells is independent of the processes that did it. It knows
// claims by their tokens, and what became of their rows by where these are when the
// token goes. Sessions of nodes are named after their process. What it reads is found by
// index, whatever the statistics say: a claim that reads a table of half an hour holds its
// member's row for seconds, and nobody can renew a lease.
const Witness = `
CREATE TABLE witness (
	n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
	seq bigint, old text, new text, owner text, member bigint, claim bigint, lost boolean, paid boolean,
	attempts int, losses int, failed_at timestamptz);
CREATE INDEX ON witness (member, claim);
CREATE TABLE thefts (what text);
CREATE TABLE endings (at timestamptz NOT NULL DEFAULT clock_timestamp(), name text, by text, early interval);

CREATE FUNCTION see_claim() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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

CREATE FUNCTION see_end() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
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

// EffectsTable is where a subscription notes the events that it has handled.
const EffectsTable = "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(), account text, number bigint, message text)"
