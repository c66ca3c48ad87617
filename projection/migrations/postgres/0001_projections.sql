CREATE TABLE projections (
    projection text COLLATE "C" NOT NULL,
    build      integer     NOT NULL CHECK (build > 0),
    version    integer     NOT NULL CHECK (version > 0),
    context    text        NOT NULL,
    status     text        NOT NULL CHECK (status IN ('building', 'ready', 'live', 'old')),
    tables     json,
    began_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ready_at   timestamptz,
    live_at    timestamptz,
    old_at     timestamptz,
    PRIMARY KEY (projection, build),
    CHECK (status = 'building' OR tables IS NOT NULL)
);
CREATE UNIQUE INDEX projections_live ON projections (projection) WHERE status = 'live';

CREATE TABLE projection_positions (
    projection      text COLLATE "C" NOT NULL,
    build           integer          NOT NULL,
    shard           integer          NOT NULL,
    position        bigint           NOT NULL,
    at_head         boolean          NOT NULL DEFAULT FALSE,
    owner           text             NOT NULL DEFAULT '',
    fence           bigint           NOT NULL DEFAULT 0,
    locked_until    timestamptz      NOT NULL DEFAULT '-infinity',
    events          bigint           NOT NULL DEFAULT 0,
    per_second      double precision NOT NULL DEFAULT 0,
    closing         double precision NOT NULL DEFAULT 0,
    tries           integer          NOT NULL DEFAULT 0,
    failed_at       timestamptz,
    failed_position bigint,
    failed_event    text,
    next_at         timestamptz,
    error           text,
    PRIMARY KEY (projection, build, shard),
    FOREIGN KEY (projection, build) REFERENCES projections ON DELETE CASCADE,
    CHECK ((tries > 0) = (error IS NOT NULL))
) WITH (fillfactor = 50);

COMMENT ON TABLE projections IS 'Builds of projections: whose tables the view shows, and those beside it.';
COMMENT ON COLUMN projections.version IS 'of the program that makes the tables';
COMMENT ON COLUMN projections.status IS 'building: behind; ready: has caught up; live: the view shows it; old: was live';
COMMENT ON COLUMN projections.tables IS 'its tables, by their names without __build, and their columns; null: asked for, and not begun';
COMMENT ON TABLE projection_positions IS 'How far builds of projections have come, and who has the lease.';
COMMENT ON COLUMN projection_positions.position IS 'all events up to it have taken effect; the lowest bigint: none';
COMMENT ON COLUMN projection_positions.at_head IS 'there was nothing behind the position when it was looked for';
COMMENT ON COLUMN projection_positions.fence IS 'raised with each lease, and by operators: a commit under another one changes nothing';
COMMENT ON COLUMN projection_positions.per_second IS 'events per second in the last minute';
COMMENT ON COLUMN projection_positions.closing IS 'positions per second by which it came closer to the head in the last minute';
COMMENT ON COLUMN projection_positions.tries IS 'how often the event behind the position has failed';
