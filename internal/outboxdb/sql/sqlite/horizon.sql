SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_messages'), 0)
