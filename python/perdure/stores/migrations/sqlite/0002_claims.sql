-- What a worker asks: which runs can be claimed and when the next can be, which are held, and which a dead owner leased.
CREATE INDEX flow_runs_by_claim ON flow_runs (claim_at, run_id) WHERE claim_at IS NOT NULL;
CREATE INDEX flow_runs_held ON flow_runs (run_id) WHERE hold IS NOT NULL;
CREATE INDEX flow_runs_by_owner ON flow_runs (owner, run_id) WHERE owner IS NOT NULL;

-- Nothing was leased, parked or held before; every open run may have work left.
UPDATE flow_runs SET claim_at = iif(terminal, NULL, 0);
