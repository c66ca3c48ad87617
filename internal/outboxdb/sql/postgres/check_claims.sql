-- What was released was not in hand, so a claim is of its member's own partitions.
SELECT c.member, count(*) OVER () FROM (
    SELECT DISTINCT c.member FROM (SELECT c.member, unnest(c.seqs) AS seq FROM outbox_claims AS c) AS c
    JOIN outbox_messages AS b ON b.seq = c.seq
    JOIN outbox_queue AS q ON q.lane = b.lane AND q.part = b.part AND q.seq = b.seq
    LEFT JOIN outbox_partitions AS p ON p.lane = b.lane AND p.part = b.part
    WHERE p.owner IS NULL OR p.owner <> c.member
    UNION
    SELECT member FROM outbox_claims WHERE member NOT IN (SELECT member FROM outbox_members)
) AS c ORDER BY c.member LIMIT 5
