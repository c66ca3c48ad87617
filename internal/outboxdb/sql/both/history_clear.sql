-- Whether nothing was ever written, or the context's events are kept already.
SELECT NOT EXISTS (SELECT 1 FROM outbox_messages) AND NOT EXISTS (SELECT 1 FROM outbox_log) AND NOT EXISTS (SELECT 1 FROM outbox_counts WHERE published > 0)
    OR EXISTS (SELECT 1 FROM history WHERE substr(category, 1, length(?0)) = ?0 AND position > 0)
