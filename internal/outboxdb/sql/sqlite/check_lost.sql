SELECT seq, count(*) OVER () FROM (
    SELECT seq FROM outbox_messages
    EXCEPT SELECT seq FROM outbox_queue
    EXCEPT SELECT seq FROM outbox_abandoned
    EXCEPT SELECT seq FROM (SELECT j.value AS seq FROM outbox_log AS g, json_each(g.seqs) AS j) AS g
) AS lost ORDER BY seq LIMIT 5
