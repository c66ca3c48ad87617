-- From each target to the next one by the index: there are few, with many timers each.
WITH RECURSIVE targets (target) AS (
    SELECT (SELECT coalesce(message ->> 'target', '') FROM timers WHERE status = 'waiting' ORDER BY coalesce(message ->> 'target', '') LIMIT 1)
    UNION ALL
    SELECT (SELECT coalesce(t.message ->> 'target', '') FROM timers AS t WHERE t.status = 'waiting' AND coalesce(t.message ->> 'target', '') > targets.target
            ORDER BY coalesce(t.message ->> 'target', '') LIMIT 1)
    FROM targets WHERE targets.target IS NOT NULL
), earliest (target, available_at) AS (
    SELECT target, (SELECT t.available_at FROM timers AS t WHERE t.status = 'waiting' AND coalesce(t.message ->> 'target', '') = targets.target
                    ORDER BY t.available_at, t.id LIMIT 1)
    FROM targets WHERE target IS NOT NULL
)
SELECT target, available_at, ?0 FROM earliest
