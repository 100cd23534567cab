-- "@schema@" stands for the quoted name of the schema that holds one tenant's tables. Ids sort by their bytes everywhere.
-- One row per run: the compare-and-set of every commit, and what listings and counters are read from.
-- Times are RFC 3339 with nine fraction digits and Z, so that text order is time order; claim_at and not_before are
-- microseconds since 1970. A third of each page stays free, so that a commit changes its row in place.
CREATE TABLE @schema@.flow_runs (
    run_id           text COLLATE "C" NOT NULL PRIMARY KEY,
    name             text COLLATE "C" NOT NULL,
    version          text COLLATE "C" NOT NULL,
    build            text COLLATE "C",
    status           text COLLATE "C" NOT NULL,
    terminal         boolean NOT NULL,
    open_waits       bigint  NOT NULL,
    active_hooks     bigint  NOT NULL,
    pending_retries  bigint  NOT NULL,
    created_at       text COLLATE "C" NOT NULL,
    updated_at       text COLLATE "C" NOT NULL,
    ended_at         text COLLATE "C",
    last_sequence    bigint  NOT NULL CHECK (last_sequence >= 1),
    -- Lease, parking and hold: not derived from the history.
    owner            text COLLATE "C",
    epoch            bigint  NOT NULL DEFAULT 0,
    parked_sequence  bigint  NOT NULL DEFAULT -1,
    failures         bigint  NOT NULL DEFAULT 0,
    not_before       bigint,
    hold             text COLLATE "C",
    claim_at         bigint  DEFAULT 0
) WITH (fillfactor = 66);
CREATE INDEX flow_runs_by_status ON @schema@.flow_runs (status, run_id);

-- What a worker asks: which runs can be claimed and when the next can be, which are held, which of those a lease still
-- keeps among the claims, and which a dead owner leased.
CREATE INDEX flow_runs_by_claim ON @schema@.flow_runs (claim_at, run_id) WHERE claim_at IS NOT NULL AND hold IS NULL;
CREATE INDEX flow_runs_held ON @schema@.flow_runs (run_id) WHERE hold IS NOT NULL;
CREATE INDEX flow_runs_held_by_claim ON @schema@.flow_runs (claim_at, run_id)
    WHERE claim_at IS NOT NULL AND hold IS NOT NULL;
CREATE INDEX flow_runs_by_owner ON @schema@.flow_runs (owner, run_id) WHERE owner IS NOT NULL;

-- One row per commit: whole lines of JSON, one event each, exactly as they were acknowledged.
CREATE TABLE @schema@.flow_commits (
    run_id          text COLLATE "C" NOT NULL,
    first_sequence  bigint NOT NULL CHECK (first_sequence >= 1),
    last_sequence   bigint NOT NULL CHECK (last_sequence >= first_sequence),
    lines           bytea  NOT NULL,
    PRIMARY KEY (run_id, first_sequence)
);

-- Open waits (kind 0) and delayed retries (kind 2) of open runs.
CREATE TABLE @schema@.flow_wakeups (
    run_id      text COLLATE "C" NOT NULL,
    kind        smallint NOT NULL CHECK (kind IN (0, 2)),
    subject_id  text COLLATE "C" NOT NULL,
    due_key     text COLLATE "C" NOT NULL CHECK (length(due_key) = 30),
    PRIMARY KEY (run_id, kind, subject_id)
);
CREATE INDEX flow_wakeups_by_due ON @schema@.flow_wakeups (due_key, run_id, kind, subject_id);

-- Active hooks of open runs. A history made elsewhere may hold one token twice in one run, so the run is part of the key;
-- that no two runs hold it is checked under a lock on the token by the transaction that inserts.
CREATE TABLE @schema@.flow_hooks (
    token_hash  bytea NOT NULL CHECK (length(token_hash) = 32),
    run_id      text COLLATE "C" NOT NULL,
    hook_id     text COLLATE "C" NOT NULL,
    sequence    bigint NOT NULL,
    PRIMARY KEY (token_hash, run_id, hook_id)
);
CREATE INDEX flow_hooks_by_run ON @schema@.flow_hooks (run_id, hook_id);

CREATE TABLE @schema@.flow_links (
    run_id         text COLLATE "C" NOT NULL,
    linked_run_id  text COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, linked_run_id)
);
CREATE INDEX flow_links_by_target ON @schema@.flow_links (linked_run_id, run_id);

-- Ids of pruned runs, which may never be used again.
CREATE TABLE @schema@.flow_tombstones (
    run_id          text COLLATE "C" NOT NULL PRIMARY KEY,
    deleted_at      text COLLATE "C" NOT NULL,
    last_sequence   bigint NOT NULL,
    last_event_id   text NOT NULL,
    history_sha256  bytea NOT NULL CHECK (length(history_sha256) = 32)
);

-- For people at an SQL prompt: one row per event.
CREATE VIEW @schema@.flow_events AS
SELECT
    c.run_id,
    c.first_sequence + e.position - 1 AS sequence,
    e.line::json ->> 'timestamp' AS timestamp,
    e.line::json -> 'event' ->> 'type' AS type,
    e.line::json ->> 'event_id' AS event_id,
    e.line::json -> 'event' AS event
FROM @schema@.flow_commits AS c,
    regexp_split_to_table(rtrim(convert_from(c.lines, 'UTF8'), E'\n'), E'\n') WITH ORDINALITY AS e (line, position);
