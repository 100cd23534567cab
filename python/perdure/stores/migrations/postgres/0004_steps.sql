-- Most commits only move a run on, under a lease that they keep, and touch no index table: two functions for those, one for a
-- commit alone and one for many at once. A commit that finds the run or the lease otherwise than it was told, or that must
-- renew the lease, changes nothing here and says so; `flow_commit` then judges it. And a `flow_commit` that gives hints.
-- What a session calls finds functions of the system only, whatever its search_path; the first one by their full names, as
-- setting a path would cost it a tenth of its time. "@tenant@" stands for a number of the
-- schema: advisory locks belong to the whole database, and tenants must not wait for each other.

-- The store's clock after the change, null where nothing was changed. The row's own version decides, also after a wait for
-- its lock, so that no lock need be taken first. `clock` and `durability` are as in `flow_commit`.
CREATE FUNCTION @schema@.flow_step(
    run_id text, expected bigint, last_sequence bigint, status text, open_waits bigint, active_hooks bigint,
    pending_retries bigint, updated_at text, owner text, epoch bigint, ttl bigint, lines bytea, clock bigint, durability text)
RETURNS bigint
LANGUAGE plpgsql AS $perdure$
DECLARE
    v_now bigint;
BEGIN
    IF durability IS NOT NULL THEN
        PERFORM pg_catalog.set_config('synchronous_commit', durability, true);
    END IF;
    UPDATE @schema@.flow_runs AS f SET
        last_sequence = flow_step.last_sequence, status = flow_step.status, open_waits = flow_step.open_waits,
        active_hooks = flow_step.active_hooks, pending_retries = flow_step.pending_retries,
        updated_at = flow_step.updated_at
    WHERE f.run_id = flow_step.run_id AND f.last_sequence = flow_step.expected AND NOT f.terminal
        AND f.owner = flow_step.owner AND f.epoch = flow_step.epoch AND f.failures = 0 AND f.hold IS NULL
        AND f.claim_at >= @schema@.flow_microseconds(coalesce(flow_step.clock, @schema@.flow_clock()) + flow_step.ttl / 2)
    RETURNING coalesce(flow_step.clock, @schema@.flow_clock()) INTO v_now;
    IF FOUND THEN
        INSERT INTO @schema@.flow_commits
        VALUES (flow_step.run_id, flow_step.expected + 1, flow_step.last_sequence, flow_step.lines);
    END IF;
    RETURN v_now;
END $perdure$;

-- `now` is the store's clock after the changes; `moved` the places, from 1, of those that were made, null if all were.
-- Batches come in the order of their run ids, which is the order of all locks. Each row is found by its run id and changed
-- where it lies, whatever the planner believed of the tables when it made the plan. One that another writer changed in the
-- meantime is judged again by what it has become: so the conditions stand at the update, and as one that is no key of a join.
CREATE FUNCTION @schema@.flow_steps(
    runs text[], expected bigint[], last_sequences bigint[], statuses text[], open_waits bigint[], active_hooks bigint[],
    pending_retries bigint[], updates text[], owners text[], epochs bigint[], ttls bigint[], lines bytea[], clock bigint,
    durability text, OUT now bigint, OUT moved bigint[])
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $perdure$
BEGIN
    IF durability IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', durability, true);
    END IF;
    now := coalesce(clock, @schema@.flow_clock());
    WITH batch AS MATERIALIZED (
        SELECT b.*, r.at
        FROM unnest(
            runs, flow_steps.expected, last_sequences, statuses, flow_steps.open_waits, flow_steps.active_hooks,
            flow_steps.pending_retries, updates, owners, epochs, ttls, flow_steps.lines)
            WITH ORDINALITY AS b (
                run_id, expected, last_sequence, status, open_waits, active_hooks, pending_retries, updated_at, owner, epoch,
                ttl, lines, place)
            CROSS JOIN LATERAL (SELECT f.ctid AS at FROM @schema@.flow_runs AS f WHERE f.run_id = b.run_id OFFSET 0) AS r
    ), changed AS (
        UPDATE @schema@.flow_runs AS f SET
            last_sequence = b.last_sequence, status = b.status, open_waits = b.open_waits,
            active_hooks = b.active_hooks, pending_retries = b.pending_retries, updated_at = b.updated_at
        FROM batch AS b
        WHERE f.ctid = b.at AND CASE WHEN f.terminal THEN false ELSE
            f.run_id = b.run_id AND f.last_sequence = b.expected AND f.owner = b.owner AND f.epoch = b.epoch
            AND f.failures = 0 AND f.hold IS NULL AND f.claim_at >= @schema@.flow_microseconds(flow_steps.now + b.ttl / 2)
        END
        RETURNING b.place, b.run_id, b.expected, b.last_sequence, b.lines
    ), written AS (
        INSERT INTO @schema@.flow_commits
        SELECT c.run_id, c.expected + 1, c.last_sequence, c.lines FROM changed AS c
    )
    SELECT coalesce(array_agg(c.place), '{}') INTO moved FROM changed AS c;
    IF cardinality(moved) = cardinality(runs) THEN
        moved := NULL;
    END IF;
    now := coalesce(clock, @schema@.flow_clock());
END $perdure$;

-- As before, for callers outside of a function that say no search_path.
CREATE OR REPLACE FUNCTION @schema@.flow_clock() RETURNS bigint
LANGUAGE sql VOLATILE AS $perdure$
    SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint * 1000
$perdure$;

-- As before, with the tenant in the advisory locks.
CREATE OR REPLACE FUNCTION @schema@.flow_lock(creations text[], runs text[], linked text[], tokens bytea[]) RETURNS void
LANGUAGE plpgsql AS $perdure$
BEGIN
    IF creations IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(@tenant@, c.key)
        FROM (SELECT DISTINCT hashtext(run_id) AS key FROM unnest(creations) AS run_id ORDER BY key) AS c;
    END IF;
    PERFORM FROM @schema@.flow_runs AS f WHERE f.run_id = ANY (runs) ORDER BY f.run_id FOR NO KEY UPDATE;
    IF linked IS NOT NULL THEN
        PERFORM FROM @schema@.flow_runs AS f WHERE f.run_id = ANY (linked) ORDER BY f.run_id FOR KEY SHARE;
    END IF;
    IF tokens IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(t.key)
        FROM (
            SELECT DISTINCT ('x' || encode(substr(token_hash, 1, 8), 'hex'))::bit(64)::bigint # @tenant@ AS key
            FROM unnest(tokens) AS token_hash ORDER BY key
        ) AS t;
    END IF;
END $perdure$;

-- Commits a group. `channel` is told once if a run was created or somebody appended who does not hold the run's lease: there
-- may be something to do for others. `clock` replaces the server's where a test sets the time; `durability` is a
-- synchronous_commit for this transaction only. Answers come in no order; `place` is the batch's position.
-- The form with `plain` batches is for processes of the release that came with 0002, until the last of them has ended.
CREATE FUNCTION @schema@.flow_commit(
    batches json, lines bytea[], creations text[], runs text[], linked text[], tokens bytea[], clock bigint, durability text,
    channel text)
RETURNS TABLE (place bigint, now bigint, verdict text, held bigint, actual bigint, other text, other_hook text, token bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $perdure$
DECLARE
    b      @schema@.flow_batch;
    v_hint boolean := false;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'flow_commit needs transactions that are READ COMMITTED'
            USING HINT = 'remove the default_transaction_isolation of this role or database';
    END IF;
    IF durability IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', durability, true);
    END IF;
    PERFORM @schema@.flow_lock(creations, runs, linked, tokens);
    now := coalesce(clock, @schema@.flow_clock());
    FOR b IN
        SELECT x.* FROM json_populate_recordset(NULL::@schema@.flow_batch, batches) AS x ORDER BY x.run_id COLLATE "C"
    LOOP
        SELECT x.* INTO verdict, held, actual, other, other_hook, token
        FROM @schema@.flow_apply(b, lines[b.position], flow_commit.now) AS x;
        place := b.position;
        v_hint := v_hint OR (verdict IS NULL AND b.has_lines AND (
            b.expected = 0 OR b.leased IS NOT TRUE OR (b.epoch IS NULL AND b.claim = 'if_free' AND held IS NULL)));
        RETURN NEXT;
    END LOOP;
    IF v_hint AND channel IS NOT NULL THEN
        PERFORM pg_notify(channel, '');
    END IF;
END $perdure$;
