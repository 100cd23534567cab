-- Retention holds: why a history must not be pruned, one row per reason. Not to be taken for a run hold, which is a column of
-- flow_runs and keeps workers away.
CREATE TABLE @schema@.flow_history_holds (
    run_id      text COLLATE "C" NOT NULL,
    hold_id     text COLLATE "C" NOT NULL,
    reason      text NOT NULL,
    created_at  text COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, hold_id)
);
