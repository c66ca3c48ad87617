INSERT INTO outbox_members (lane, name, until)
SELECT value, ?2, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (?3 / 1000.0) || ' seconds') FROM json_each(?1) WHERE true
RETURNING lane, member
