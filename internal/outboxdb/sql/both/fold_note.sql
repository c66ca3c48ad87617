UPDATE outbox_settings SET value = '?0' WHERE name = 'counted' AND value <> '?0'
