SELECT seq, count(*) OVER () FROM (
    SELECT seq FROM outbox_messages
    EXCEPT SELECT seq FROM outbox_queue
    EXCEPT SELECT seq FROM outbox_abandoned
    EXCEPT SELECT seq FROM (SELECT unnest(seqs) AS seq FROM outbox_log) AS g
) AS lost ORDER BY seq LIMIT 5
