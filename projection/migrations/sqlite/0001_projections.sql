-- Builds of projections: whose tables the view shows, and those beside it.
CREATE TABLE projections (
    projection TEXT NOT NULL,
    build      INTEGER NOT NULL CHECK (build > 0),
    version    INTEGER NOT NULL CHECK (version > 0), -- of the program that makes the tables
    context    TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('building', 'ready', 'live', 'old')), -- building: behind; ready: has caught up; live: the view shows it; old: was live
    tables     TEXT CHECK (json_valid(tables)), -- its tables, by their names without __build, and their columns; null: asked for, and not begun
    began_at   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    ready_at   TEXT,
    live_at    TEXT,
    old_at     TEXT,
    PRIMARY KEY (projection, build),
    CHECK (status = 'building' OR tables IS NOT NULL)
) WITHOUT ROWID;
CREATE UNIQUE INDEX projections_live ON projections (projection) WHERE status = 'live';

-- How far builds of projections have come, and who has the lease.
CREATE TABLE projection_positions (
    projection      TEXT NOT NULL,
    build           INTEGER NOT NULL,
    shard           INTEGER NOT NULL,
    position        INTEGER NOT NULL, -- all events up to it have taken effect; the lowest integer: none
    at_head         INTEGER NOT NULL DEFAULT 0, -- there was nothing behind the position when it was looked for
    owner           TEXT NOT NULL DEFAULT '',
    fence           INTEGER NOT NULL DEFAULT 0, -- raised with each lease, and by operators: a commit under another one changes nothing
    locked_until    TEXT NOT NULL DEFAULT '',
    events          INTEGER NOT NULL DEFAULT 0,
    per_second      REAL NOT NULL DEFAULT 0, -- events per second in the last minute
    closing         REAL NOT NULL DEFAULT 0, -- positions per second by which it came closer to the head in the last minute
    tries           INTEGER NOT NULL DEFAULT 0, -- how often the event behind the position has failed
    failed_at       TEXT,
    failed_position INTEGER,
    failed_event    TEXT,
    next_at         TEXT,
    error           TEXT,
    PRIMARY KEY (projection, build, shard),
    FOREIGN KEY (projection, build) REFERENCES projections ON DELETE CASCADE,
    CHECK ((tries > 0) = (error IS NOT NULL))
) WITHOUT ROWID;
