-- tolerates: 4
-- Event-sourced aggregates as they were at a version, so that only later events have to
-- be read. All may be removed at any time.
CREATE TABLE snapshots (
    category      TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version > 0),
    state_version INTEGER NOT NULL CHECK (state_version > 0), -- domain.StateVersion of the build that made it; other builds pass it over
    state         TEXT    NOT NULL,
    PRIMARY KEY (category, id, version)
) WITHOUT ROWID;
