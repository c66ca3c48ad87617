-- Idempotency keys of commands that took effect. digest is the sha256 of the command's data; result is what its
-- handler returned, for those who ask again.
CREATE TABLE command_keys (
    tenant     TEXT NOT NULL,
    type       TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     TEXT NOT NULL,
    command_id TEXT NOT NULL,
    result     TEXT,
    at         TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    expires_at TEXT NOT NULL,
    PRIMARY KEY (tenant, type, key)
) WITHOUT ROWID;

CREATE INDEX command_keys_expired ON command_keys (expires_at);
