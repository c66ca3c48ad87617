SELECT 1 FROM outbox_settings WHERE name = ?0 AND current_setting('transaction_isolation') <> 'read committed' FOR SHARE
