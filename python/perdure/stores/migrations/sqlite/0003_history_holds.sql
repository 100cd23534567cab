-- Retention holds: why a history must not be pruned, one row per reason. Not to be taken for a run hold, which is a column of
-- flow_runs and keeps workers away.
CREATE TABLE flow_history_holds (
    run_id      TEXT NOT NULL,
    hold_id     TEXT NOT NULL,
    reason      TEXT NOT NULL,
    created_at  TEXT NOT NULL,
    PRIMARY KEY (run_id, hold_id)
) STRICT, WITHOUT ROWID;
