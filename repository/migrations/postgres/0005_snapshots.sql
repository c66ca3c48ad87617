-- tolerates: 4
-- Where to begin when an event-sourced aggregate is loaded. All of it may be removed at
-- any time: it is made of the events, and of nothing else.
CREATE TABLE snapshots (
    category      text    COLLATE "C" NOT NULL,
    id            text    COLLATE "C" NOT NULL,
    version       bigint  NOT NULL CHECK (version > 0),
    state_version integer NOT NULL CHECK (state_version > 0),
    state         json    NOT NULL,
    PRIMARY KEY (category, id, version)
);

COMMENT ON TABLE snapshots IS 'Event-sourced aggregates as they were at a version, so that only later events have to be read. All may be removed.';
COMMENT ON COLUMN snapshots.state_version IS 'domain.StateVersion of the build that made it; other builds pass it over';
