CREATE TABLE command_keys (
    tenant     text        NOT NULL,
    type       text        NOT NULL,
    key        text        NOT NULL,
    digest     text        NOT NULL,
    command_id uuid        NOT NULL,
    result     json,
    at         timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, type, key)
);

COMMENT ON TABLE command_keys IS 'Idempotency keys of commands that took effect.';
COMMENT ON COLUMN command_keys.tenant IS 'of the command; empty: none';
COMMENT ON COLUMN command_keys.type IS 'the command''s name without its version';
COMMENT ON COLUMN command_keys.digest IS 'sha256 of the command''s data: another command under the key is refused';
COMMENT ON COLUMN command_keys.command_id IS 'the cause of the events that it raised';
COMMENT ON COLUMN command_keys.result IS 'what its handler returned, for those who ask again; null: nothing';
COMMENT ON COLUMN command_keys.expires_at IS 'when the key may be forgotten';

CREATE INDEX command_keys_expired ON command_keys (expires_at);
