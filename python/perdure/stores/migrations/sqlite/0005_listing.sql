-- What people list: the runs of a workflow, and the open ones among however many ended.
CREATE INDEX flow_runs_by_name ON flow_runs (name, run_id);
CREATE INDEX flow_runs_open ON flow_runs (run_id) WHERE terminal = 0;
