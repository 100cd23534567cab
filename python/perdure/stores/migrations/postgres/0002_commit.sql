-- A group of batches in one round trip. The rules of leases are those of stores/leases.py, rule by rule; the store suite runs
-- both against one model. Every function is one that reads what was committed before its locks came, so it is VOLATILE and
-- refuses to run in a transaction whose snapshot was taken earlier.

-- One batch as the client sends it, as a member of a JSON array. What a batch does not have is left out and so is null.
CREATE TYPE @schema@.flow_batch AS (
    position         bigint,
    run_id           text,
    expected         bigint,
    last_sequence    bigint,
    has_lines        boolean,
    name             text,
    version          text,
    build            text,
    status           text,
    terminal         boolean,
    open_waits       bigint,
    active_hooks     bigint,
    pending_retries  bigint,
    created_at       text,
    updated_at       text,
    ended_at         text,
    clear_wakeups    boolean,
    gone_kinds       smallint[],
    gone_subjects    text[],
    wakeup_kinds     smallint[],
    wakeup_subjects  text[],
    wakeup_dues      text[],
    clear_hooks      boolean,
    gone_tokens      bytea[],
    gone_hooks       text[],
    tokens           bytea[],
    hooks            text[],
    hook_sequences   bigint[],
    links            text[],
    leased           boolean,  -- whether the members from here on were given
    owner            text,
    ttl              bigint,
    epoch            bigint,
    claim            text,
    unless_leased    boolean,
    after            text,
    accepted         boolean,
    counted          boolean,
    fraction         double precision,
    may_hold         boolean,
    max_failures     bigint,
    hold             text,
    drive_build      text
);

-- A batch that only moves a run on, under a lease that it keeps, and touches no index table: most are.
CREATE TYPE @schema@.flow_plain_batch AS (
    position         bigint,
    run_id           text,
    expected         bigint,
    last_sequence    bigint,
    status           text,
    open_waits       bigint,
    active_hooks     bigint,
    pending_retries  bigint,
    updated_at       text,
    owner            text,
    ttl              bigint,
    epoch            bigint
);

-- Nanoseconds in the unit of the columns, rounded up.
CREATE FUNCTION @schema@.flow_microseconds(ns bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $perdure$ SELECT (ns + 999) / 1000 $perdure$;

-- The server's clock in nanoseconds.
CREATE FUNCTION @schema@.flow_clock() RETURNS bigint
LANGUAGE sql VOLATILE AS $perdure$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 $perdure$;

-- An index key of an instant in microseconds, rounded up.
CREATE FUNCTION @schema@.flow_due_microseconds(due_key text) RETURNS bigint
LANGUAGE sql STABLE AS $perdure$
    SELECT (extract(epoch FROM (left(due_key, 26) || 'Z')::timestamptz) * 1000000)::bigint
        + CASE WHEN substr(due_key, 27, 3) = '000' THEN 0 ELSE 1 END
$perdure$;

-- RFC 3339 in UTC with the shortest exact fraction of 0, 3, 6 or 9 digits.
CREATE FUNCTION @schema@.flow_instant(ns bigint) RETURNS text
LANGUAGE sql STABLE AS $perdure$
    SELECT to_char(to_timestamp(ns / 1000000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
        || CASE
            WHEN ns % 1000000000 = 0 THEN ''
            WHEN ns % 1000000 = 0 THEN '.' || lpad((ns % 1000000000 / 1000000)::text, 3, '0')
            WHEN ns % 1000 = 0 THEN '.' || lpad((ns % 1000000000 / 1000)::text, 6, '0')
            ELSE '.' || lpad((ns % 1000000000)::text, 9, '0')
        END || 'Z'
$perdure$;

-- Whether somebody's lease has not expired.
CREATE FUNCTION @schema@.flow_is_live(r @schema@.flow_runs, now bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $perdure$
    SELECT (r).owner IS NOT NULL AND (r).claim_at IS NOT NULL AND (r).claim_at > now / 1000
$perdure$;

-- The builds whose drives caused a hold. PostgreSQL refuses to look into JSON with U+0000 in it, and a reason may have it.
CREATE FUNCTION @schema@.flow_builds(hold text) RETURNS SETOF text
LANGUAGE sql IMMUTABLE AS $perdure$
    SELECT json_array_elements_text(coalesce(replace(hold, '\u0000', '\ufffd')::json -> 'builds', '[]'))
$perdure$;

-- The hold of a run that has failed too often, with the builds of the hold that was there.
CREATE FUNCTION @schema@.flow_failing(r @schema@.flow_runs, b @schema@.flow_batch, now bigint) RETURNS text
LANGUAGE sql STABLE AS $perdure$
    SELECT '{"code":"failing","reason":{"failures":' || (r).failures
        || '},"workflow":' || to_json((b).name) || ',"version":' || to_json((b).version)
        || ',"builds":[' || coalesce((
            SELECT string_agg(to_json(found.build)::text, ',' ORDER BY found.build COLLATE "C")
            FROM (
                SELECT @schema@.flow_builds((r).hold) AS build
                UNION SELECT (b).drive_build WHERE (b).drive_build IS NOT NULL
            ) AS found), '')
        || '],"at":"' || @schema@.flow_instant(now) || '"}'
$perdure$;

-- Nobody leases the run any more.
CREATE FUNCTION @schema@.flow_unleased(INOUT r @schema@.flow_runs, claim_at bigint)
LANGUAGE plpgsql AS $perdure$
BEGIN
    r.owner := NULL;
    r.not_before := NULL;
    r.claim_at := CASE WHEN r.hold IS NULL THEN claim_at END;
END $perdure$;

CREATE FUNCTION @schema@.flow_released(INOUT r @schema@.flow_runs, b @schema@.flow_batch, now bigint)
LANGUAGE plpgsql AS $perdure$
DECLARE
    v_delay bigint;
BEGIN
    IF b.after = 'park' THEN
        r.parked_sequence := b.last_sequence;
        r := @schema@.flow_unleased(r, (
            SELECT @schema@.flow_due_microseconds(min(w.due_key)) FROM @schema@.flow_wakeups AS w WHERE w.run_id = b.run_id));
    ELSIF b.after = 'fail' AND b.counted THEN
        v_delay := trunc(b.fraction * least(600000000000, 1000000000 * 2 ^ least(r.failures, 10)));
        r.failures := r.failures + 1;
        IF b.may_hold AND b.hold IS NULL AND r.failures >= b.max_failures THEN
            r.hold := @schema@.flow_failing(r, b, now);
        END IF;
        r := @schema@.flow_unleased(r, @schema@.flow_microseconds(now + v_delay));
        r.not_before := @schema@.flow_microseconds(now + v_delay);
    ELSE
        r := @schema@.flow_unleased(r, 0);
    END IF;
END $perdure$;

-- The row after an accepted commit.
CREATE FUNCTION @schema@.flow_leased(INOUT r @schema@.flow_runs, b @schema@.flow_batch, now bigint)
LANGUAGE plpgsql AS $perdure$
DECLARE
    v_live  boolean := @schema@.flow_is_live(r, now);
    v_holds boolean := b.epoch IS NOT NULL;
BEGIN
    IF b.claim IN ('firm', 'take_over') OR (b.claim = 'if_free' AND NOT (v_live AND r.owner <> b.owner)) THEN
        r.owner := b.owner;
        r.epoch := r.epoch + 1;
        r.not_before := NULL;
        r.claim_at := @schema@.flow_microseconds(now + b.ttl);
        v_holds := true;
        v_live := true;
    END IF;
    IF b.leased IS NOT TRUE OR (NOT v_holds AND v_live) THEN
        -- By somebody who does not hold the lease: a leased run is its owner's, any other may be claimed.
        IF b.terminal THEN
            r.owner := NULL; r.not_before := NULL; r.hold := NULL; r.claim_at := NULL;
        ELSIF b.has_lines AND r.owner IS NULL THEN
            r := @schema@.flow_unleased(r, 0);
        END IF;
        RETURN;
    END IF;
    IF b.accepted THEN
        r.failures := 0; r.not_before := NULL; r.hold := NULL;
    END IF;
    IF b.terminal THEN
        r.owner := NULL; r.not_before := NULL; r.hold := NULL; r.claim_at := NULL;
        RETURN;
    END IF;
    r.hold := coalesce(b.hold, r.hold);
    IF v_holds AND b.after = 'keep' THEN
        IF r.claim_at IS NULL OR r.claim_at < @schema@.flow_microseconds(now + b.ttl / 2) THEN
            r.claim_at := @schema@.flow_microseconds(now + b.ttl);
        END IF;
    ELSE
        r := @schema@.flow_released(r, b, now);
    END IF;
END $perdure$;

-- The first refusal of a batch in its order, null if it may be written. Nothing has been written for it then.
CREATE FUNCTION @schema@.flow_refusal(
    r @schema@.flow_runs, b @schema@.flow_batch, now bigint,
    OUT verdict text, OUT other text, OUT other_hook text, OUT token bigint)
LANGUAGE plpgsql AS $perdure$
BEGIN
    IF r.last_sequence = 0 AND EXISTS (SELECT FROM @schema@.flow_tombstones AS t WHERE t.run_id = b.run_id) THEN
        verdict := 'pruned';
    ELSIF b.epoch IS NOT NULL AND (r.owner IS DISTINCT FROM b.owner OR r.epoch <> b.epoch) THEN
        verdict := 'lost';
    ELSIF (b.claim = 'firm' OR b.unless_leased) AND r.owner <> b.owner AND @schema@.flow_is_live(r, now) THEN
        verdict := 'held';
    ELSIF r.last_sequence <> b.expected THEN
        verdict := 'conflict';
    END IF;
    IF verdict IS NOT NULL THEN
        RETURN;
    END IF;
    IF b.links IS NOT NULL THEN
        SELECT l.linked INTO other FROM unnest(b.links) WITH ORDINALITY AS l (linked, place)
        WHERE l.linked <> b.run_id AND NOT EXISTS (SELECT FROM @schema@.flow_runs AS f WHERE f.run_id = l.linked)
        ORDER BY l.place LIMIT 1;
        IF FOUND THEN
            verdict := 'link';
            RETURN;
        END IF;
    END IF;
    IF b.tokens IS NOT NULL THEN
        SELECT h.run_id, h.hook_id, t.place - 1 INTO other, other_hook, token
        FROM unnest(b.tokens) WITH ORDINALITY AS t (token_hash, place)
            JOIN @schema@.flow_hooks AS h ON h.token_hash = t.token_hash AND h.run_id <> b.run_id
        ORDER BY t.place, h.run_id, h.hook_id LIMIT 1;
        IF FOUND THEN
            verdict := 'token';
        END IF;
    END IF;
END $perdure$;

-- The rows beside the run's own, in the order that net changes have: clear-all, deletes, upserts.
CREATE FUNCTION @schema@.flow_write_index(b @schema@.flow_batch) RETURNS void
LANGUAGE plpgsql AS $perdure$
BEGIN
    IF b.clear_wakeups THEN
        DELETE FROM @schema@.flow_wakeups AS w WHERE w.run_id = b.run_id;
    END IF;
    IF b.gone_kinds IS NOT NULL THEN
        DELETE FROM @schema@.flow_wakeups AS w USING unnest(b.gone_kinds, b.gone_subjects) AS g (kind, subject_id)
        WHERE w.run_id = b.run_id AND w.kind = g.kind AND w.subject_id = g.subject_id;
    END IF;
    IF b.wakeup_kinds IS NOT NULL THEN
        INSERT INTO @schema@.flow_wakeups (run_id, kind, subject_id, due_key)
        SELECT b.run_id, s.kind, s.subject_id, s.due_key
        FROM unnest(b.wakeup_kinds, b.wakeup_subjects, b.wakeup_dues) AS s (kind, subject_id, due_key)
        ON CONFLICT (run_id, kind, subject_id) DO UPDATE SET due_key = excluded.due_key;
    END IF;
    IF b.clear_hooks THEN
        DELETE FROM @schema@.flow_hooks AS h WHERE h.run_id = b.run_id;
    END IF;
    IF b.gone_tokens IS NOT NULL THEN
        DELETE FROM @schema@.flow_hooks AS h USING unnest(b.gone_tokens, b.gone_hooks) AS g (token_hash, hook_id)
        WHERE h.token_hash = g.token_hash AND h.run_id = b.run_id AND h.hook_id = g.hook_id;
    END IF;
    IF b.tokens IS NOT NULL THEN
        INSERT INTO @schema@.flow_hooks (token_hash, run_id, hook_id, sequence)
        SELECT t.token_hash, b.run_id, t.hook_id, t.sequence
        FROM unnest(b.tokens, b.hooks, b.hook_sequences) AS t (token_hash, hook_id, sequence);
    END IF;
    IF b.links IS NOT NULL THEN
        INSERT INTO @schema@.flow_links (run_id, linked_run_id) SELECT b.run_id, unnest(b.links) ON CONFLICT DO NOTHING;
    END IF;
END $perdure$;

-- The run's row: the new one of a run without events, or the old one moved on.
CREATE FUNCTION @schema@.flow_write_run(r @schema@.flow_runs, b @schema@.flow_batch) RETURNS void
LANGUAGE plpgsql AS $perdure$
BEGIN
    IF b.has_lines AND b.expected = 0 THEN
        INSERT INTO @schema@.flow_runs VALUES (
            b.run_id, b.name, b.version, b.build, b.status, b.terminal, b.open_waits, b.active_hooks, b.pending_retries,
            b.created_at, b.updated_at, b.ended_at, b.last_sequence,
            r.owner, r.epoch, r.parked_sequence, r.failures, r.not_before, r.hold, r.claim_at);
    ELSIF b.has_lines THEN
        UPDATE @schema@.flow_runs AS f SET
            last_sequence = b.last_sequence, status = b.status, terminal = b.terminal, open_waits = b.open_waits,
            active_hooks = b.active_hooks, pending_retries = b.pending_retries, updated_at = b.updated_at,
            ended_at = b.ended_at,
            owner = r.owner, epoch = r.epoch, parked_sequence = r.parked_sequence, failures = r.failures,
            not_before = r.not_before, hold = r.hold, claim_at = r.claim_at
        WHERE f.run_id = b.run_id;
    ELSE
        UPDATE @schema@.flow_runs AS f SET
            owner = r.owner, epoch = r.epoch, parked_sequence = r.parked_sequence, failures = r.failures,
            not_before = r.not_before, hold = r.hold, claim_at = r.claim_at
        WHERE f.run_id = b.run_id;
    END IF;
END $perdure$;

-- Locks in one order for all, so that no two groups wait for each other: ids of runs to be created, runs, linked runs,
-- tokens. A run that is being created has no row to lock yet, and its creator may go on to wait for a token.
CREATE FUNCTION @schema@.flow_lock(creations text[], runs text[], linked text[], tokens bytea[]) RETURNS void
LANGUAGE plpgsql AS $perdure$
BEGIN
    IF creations IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('perdure'), c.key)
        FROM (SELECT DISTINCT hashtext(run_id) AS key FROM unnest(creations) AS run_id ORDER BY key) AS c;
    END IF;
    PERFORM FROM @schema@.flow_runs AS f WHERE f.run_id = ANY (runs) ORDER BY f.run_id FOR NO KEY UPDATE;
    IF linked IS NOT NULL THEN
        PERFORM FROM @schema@.flow_runs AS f WHERE f.run_id = ANY (linked) ORDER BY f.run_id FOR KEY SHARE;
    END IF;
    IF tokens IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(t.key)
        FROM (
            SELECT DISTINCT ('x' || encode(substr(token_hash, 1, 8), 'hex'))::bit(64)::bigint AS key
            FROM unnest(tokens) AS token_hash ORDER BY key
        ) AS t;
    END IF;
END $perdure$;

-- Commits the plain batches whose run and lease are as expected and need no other change; says which. The rows are found by
-- run id one after the other and changed where they lie, whatever the planner believed of the tables when it made the plan.
-- They must be locked already: an update by place would change a row that another writer had changed meanwhile.
CREATE FUNCTION @schema@.flow_move(plain json, lines bytea[], clock bigint) RETURNS TABLE (place bigint, held bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $perdure$
BEGIN
    RETURN QUERY
    WITH batch AS MATERIALIZED (
        SELECT b.*, r.at FROM json_populate_recordset(NULL::@schema@.flow_plain_batch, plain) AS b
        CROSS JOIN LATERAL (
            SELECT f.ctid AS at, f.last_sequence AS actual, f.terminal, f.owner, f.epoch, f.claim_at, f.failures, f.hold
            FROM @schema@.flow_runs AS f WHERE f.run_id = b.run_id OFFSET 0
        ) AS r
        WHERE r.actual = b.expected AND NOT r.terminal AND r.owner = b.owner AND r.epoch = b.epoch
            AND r.claim_at >= @schema@.flow_microseconds(clock + b.ttl / 2) AND r.failures = 0 AND r.hold IS NULL
    ), moved AS (
        UPDATE @schema@.flow_runs AS f SET
            last_sequence = b.last_sequence, status = b.status, open_waits = b.open_waits,
            active_hooks = b.active_hooks, pending_retries = b.pending_retries, updated_at = b.updated_at
        FROM batch AS b WHERE f.ctid = b.at
        RETURNING b.position, b.run_id, b.expected, b.last_sequence, b.epoch
    ), written AS (
        INSERT INTO @schema@.flow_commits
        SELECT m.run_id, m.expected + 1, m.last_sequence, lines[m.position] FROM moved AS m
    )
    SELECT m.position, m.epoch FROM moved AS m;
END $perdure$;

-- Commits one batch, or says why not.
CREATE FUNCTION @schema@.flow_apply(
    b @schema@.flow_batch, lines bytea, clock bigint,
    OUT verdict text, OUT held bigint, OUT actual bigint, OUT other text, OUT other_hook text, OUT token bigint)
LANGUAGE plpgsql AS $perdure$
DECLARE
    r @schema@.flow_runs;
BEGIN
    SELECT * INTO r FROM @schema@.flow_runs AS f WHERE f.run_id = b.run_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        r.last_sequence := 0; r.epoch := 0; r.parked_sequence := -1; r.failures := 0; r.claim_at := 0;
    END IF;
    SELECT x.* INTO verdict, other, other_hook, token FROM @schema@.flow_refusal(r, b, clock) AS x;
    IF verdict IS NOT NULL THEN
        actual := r.last_sequence;
        RETURN;
    END IF;
    IF b.has_lines THEN
        INSERT INTO @schema@.flow_commits VALUES (b.run_id, b.expected + 1, b.last_sequence, lines);
        PERFORM @schema@.flow_write_index(b);
    END IF;
    r := @schema@.flow_leased(r, b, clock);
    IF b.after = 'keep' AND r.owner = b.owner AND (b.epoch IS NOT NULL OR b.claim <> 'none') THEN
        held := r.epoch;
    END IF;
    PERFORM @schema@.flow_write_run(r, b);
END $perdure$;

-- Commits a group: `plain` batches, of which those that are not so plain after all are looked at like any other, and
-- `batches`. `clock` replaces the server's where a test sets the time; `durability` is a
-- synchronous_commit for this transaction only. Answers come in no order; `place` is the batch's position.
CREATE FUNCTION @schema@.flow_commit(
    plain json, batches json, lines bytea[], creations text[], runs text[], linked text[], tokens bytea[], clock bigint,
    durability text)
RETURNS TABLE (place bigint, now bigint, verdict text, held bigint, actual bigint, other text, other_hook text, token bigint)
LANGUAGE plpgsql AS $perdure$
DECLARE
    b @schema@.flow_batch;
    v_moved bigint[] := '{}';
    v_held  bigint[];
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
    IF plain IS NOT NULL THEN
        SELECT coalesce(array_agg(m.place), '{}'), array_agg(m.held) INTO v_moved, v_held
        FROM @schema@.flow_move(plain, lines, flow_commit.now) AS m;
        RETURN QUERY
        SELECT m.place, flow_commit.now, NULL::text, m.held, NULL::bigint, NULL::text, NULL::text, NULL::bigint
        FROM unnest(v_moved, v_held) AS m (place, held);
        IF cardinality(v_moved) = cardinality(lines) THEN
            RETURN;
        END IF;
    END IF;
    -- Plain batches have no order among the others: they touch neither tokens nor the existence of runs.
    FOR b IN
        SELECT x.* FROM (
            SELECT * FROM json_populate_recordset(NULL::@schema@.flow_batch, batches)
            UNION ALL
            SELECT * FROM json_populate_recordset(NULL::@schema@.flow_batch, plain)
        ) AS x
        WHERE x.position <> ALL (v_moved) ORDER BY x.run_id COLLATE "C"
    LOOP
        SELECT x.* INTO verdict, held, actual, other, other_hook, token
        FROM @schema@.flow_apply(b, lines[b.position], flow_commit.now) AS x;
        place := b.position;
        RETURN NEXT;
    END LOOP;
END $perdure$;
