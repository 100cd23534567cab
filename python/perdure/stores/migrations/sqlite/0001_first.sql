-- One row per run: the compare-and-set of every commit, and what listings and counters are read from.
-- Times are RFC 3339 with nine fraction digits and Z, so that text order is time order; claim_at and not_before are
-- microseconds since 1970.
CREATE TABLE flow_runs (
    run_id           TEXT    NOT NULL PRIMARY KEY,
    name             TEXT    NOT NULL,
    version          TEXT    NOT NULL,
    build            TEXT,
    status           TEXT    NOT NULL,
    terminal         INTEGER NOT NULL CHECK (terminal IN (0, 1)),
    open_waits       INTEGER NOT NULL,
    active_hooks     INTEGER NOT NULL,
    pending_retries  INTEGER NOT NULL,
    created_at       TEXT    NOT NULL,
    updated_at       TEXT    NOT NULL,
    ended_at         TEXT,
    last_sequence    INTEGER NOT NULL CHECK (last_sequence >= 1),
    -- Lease, parking and hold: not derived from the history.
    owner            TEXT,
    epoch            INTEGER NOT NULL DEFAULT 0,
    parked_sequence  INTEGER NOT NULL DEFAULT -1,
    failures         INTEGER NOT NULL DEFAULT 0,
    not_before       INTEGER,
    hold             TEXT,
    claim_at         INTEGER DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_runs_by_status ON flow_runs (status, run_id);

-- One row per commit: whole lines of JSON, one event each, exactly as they were acknowledged.
CREATE TABLE flow_commits (
    run_id          TEXT    NOT NULL,
    first_sequence  INTEGER NOT NULL CHECK (first_sequence >= 1),
    last_sequence   INTEGER NOT NULL CHECK (last_sequence >= first_sequence),
    lines           BLOB    NOT NULL,
    PRIMARY KEY (run_id, first_sequence)
) STRICT;

-- Open waits (kind 0) and delayed retries (kind 2) of open runs.
CREATE TABLE flow_wakeups (
    run_id      TEXT    NOT NULL,
    kind        INTEGER NOT NULL CHECK (kind IN (0, 2)),
    subject_id  TEXT    NOT NULL,
    due_key     TEXT    NOT NULL CHECK (length(due_key) = 30),
    PRIMARY KEY (run_id, kind, subject_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_wakeups_by_due ON flow_wakeups (due_key, run_id, kind, subject_id);

-- Active hooks of open runs. A history made elsewhere may hold one token twice in one run, so the run is part of the key;
-- that no two runs hold it is checked by the transaction that inserts.
CREATE TABLE flow_hooks (
    token_hash  BLOB    NOT NULL CHECK (length(token_hash) = 32),
    run_id      TEXT    NOT NULL,
    hook_id     TEXT    NOT NULL,
    sequence    INTEGER NOT NULL,
    PRIMARY KEY (token_hash, run_id, hook_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_hooks_by_run ON flow_hooks (run_id, hook_id);

CREATE TABLE flow_links (
    run_id         TEXT NOT NULL,
    linked_run_id  TEXT NOT NULL,
    PRIMARY KEY (run_id, linked_run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_links_by_target ON flow_links (linked_run_id, run_id);

-- Ids of pruned runs, which may never be used again.
CREATE TABLE flow_tombstones (
    run_id          TEXT    NOT NULL PRIMARY KEY,
    deleted_at      TEXT    NOT NULL,
    last_sequence   INTEGER NOT NULL,
    last_event_id   TEXT    NOT NULL,
    history_sha256  BLOB    NOT NULL CHECK (length(history_sha256) = 32)
) STRICT, WITHOUT ROWID;

-- For people at an SQL prompt: one row per event.
CREATE VIEW flow_events AS
SELECT
    c.run_id,
    c.first_sequence + e.key AS sequence,
    json_extract(e.value, '$.timestamp') AS timestamp,
    json_extract(e.value, '$.event.type') AS type,
    json_extract(e.value, '$.event_id') AS event_id,
    json_extract(e.value, '$.event') AS event
FROM flow_commits AS c,
    json_each('[' || replace(rtrim(CAST(c.lines AS TEXT), char(10)), char(10), ',') || ']') AS e;
