CREATE SCHEMA @schema@;
CREATE TABLE @schema@.flow_migrations (number bigint NOT NULL PRIMARY KEY, title text NOT NULL, sha256 text NOT NULL, applied_at text NOT NULL);
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
INSERT INTO @schema@.flow_migrations VALUES (1, 'first', 'c120bccd8683161d3a317ba40428cf23cf9589f553ac32d2b1d86ee87ac29423', '2026-01-01T00:00:00.000000000Z');
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
INSERT INTO @schema@.flow_migrations VALUES (2, 'commit', 'e38231ff8c32da085dab7d39c7bed5312dce0fc08aaa13a3c4874cea6e91d0cc', '2026-01-01T00:00:00.000000000Z');
-- Retention holds: why a history must not be pruned, one row per reason. Not to be taken for a run hold, which is a column of
-- flow_runs and keeps workers away.
CREATE TABLE @schema@.flow_history_holds (
    run_id      text COLLATE "C" NOT NULL,
    hold_id     text COLLATE "C" NOT NULL,
    reason      text NOT NULL,
    created_at  text COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, hold_id)
);
INSERT INTO @schema@.flow_migrations VALUES (3, 'history_holds', '4a8ba1248eab6a8423faa36205e57f7c738099e2b97f5b08e4933d6ff0cae7c3', '2026-01-01T00:00:00.000000000Z');
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
INSERT INTO @schema@.flow_migrations VALUES (4, 'steps', '9c07a6498825f6347d7330d60fcaf92cdffbc8771762e3abdffa99897d148b48', '2026-01-01T00:00:00.000000000Z');
-- Task queues. A pending task may be leased from due_at on; a leased one is another's from then on. Times are microseconds
-- since 1970.
CREATE TABLE @schema@.flow_tasks (
    position     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue        text COLLATE "C" NOT NULL,
    task_id      text COLLATE "C" NOT NULL,
    run_id       text COLLATE "C",
    drives       boolean NOT NULL,
    task         bytea   NOT NULL,
    enqueued_at  bigint  NOT NULL,
    due_at       bigint  NOT NULL,
    lease_id     text COLLATE "C",
    leased_at    bigint,
    attempts     bigint  NOT NULL DEFAULT 0,
    nacks        bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 66);
CREATE INDEX flow_tasks_by_due ON @schema@.flow_tasks (queue, due_at, position);
CREATE UNIQUE INDEX flow_tasks_by_id ON @schema@.flow_tasks (queue, task_id);
CREATE UNIQUE INDEX flow_tasks_by_lease ON @schema@.flow_tasks (lease_id) WHERE lease_id IS NOT NULL;
-- Of the tasks that only drive a run one is enough.
CREATE UNIQUE INDEX flow_tasks_of_drives ON @schema@.flow_tasks (queue, run_id) WHERE drives;
CREATE INDEX flow_tasks_by_run ON @schema@.flow_tasks (run_id) WHERE run_id IS NOT NULL;

-- Tasks set aside, each under the lease it had then.
CREATE TABLE @schema@.flow_task_dead_letters (
    queue             text COLLATE "C" NOT NULL,
    lease_id          text COLLATE "C" NOT NULL,
    task_id           text COLLATE "C" NOT NULL,
    run_id            text COLLATE "C",
    drives            boolean NOT NULL,
    task              bytea   NOT NULL,
    reason            text    NOT NULL,
    attempts          bigint  NOT NULL,
    enqueued_at       bigint  NOT NULL,
    dead_lettered_at  bigint  NOT NULL,
    PRIMARY KEY (queue, lease_id)
);
CREATE INDEX flow_task_dead_letters_by_time ON @schema@.flow_task_dead_letters (queue, dead_lettered_at, lease_id);
CREATE INDEX flow_task_dead_letters_by_run ON @schema@.flow_task_dead_letters (run_id) WHERE run_id IS NOT NULL;

-- Adds tasks in order. For each: true; false for a drive whose run has one already; null for one that finds `capacity`
-- tasks pending. Those who add to a bounded queue take turns, so that none counts what another is about to add.
CREATE FUNCTION @schema@.flow_enqueue(
    p_queue text, p_ids text[], p_tasks bytea[], p_runs text[], p_drives boolean[], p_capacity bigint, p_now bigint,
    p_channel text)
RETURNS TABLE (place bigint, queued boolean) LANGUAGE plpgsql AS $perdure$
DECLARE
    v_now bigint;
    v_room bigint;
    v_added bigint;
    v_any boolean := false;
BEGIN
    IF p_capacity IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(@tenant@, hashtext('queue ' || p_queue));
    END IF;
    v_now := coalesce(p_now, @schema@.flow_clock()) / 1000;
    IF p_capacity IS NOT NULL THEN
        SELECT p_capacity - count(*) INTO v_room FROM (
            SELECT FROM @schema@.flow_tasks AS t
            WHERE t.queue = p_queue AND (t.lease_id IS NULL OR t.due_at <= v_now) LIMIT p_capacity
        ) AS pending;
    END IF;
    FOR i IN 1 .. cardinality(p_ids) LOOP
        place := i;
        IF p_drives[i] AND EXISTS (
            SELECT FROM @schema@.flow_tasks AS t WHERE t.queue = p_queue AND t.run_id = p_runs[i] AND t.drives
        ) THEN
            queued := false;
        ELSIF v_room <= 0 THEN
            queued := NULL;
        ELSE
            INSERT INTO @schema@.flow_tasks (queue, task_id, run_id, drives, task, enqueued_at, due_at)
            VALUES (p_queue, p_ids[i], p_runs[i], p_drives[i], p_tasks[i], v_now, v_now) ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS v_added = ROW_COUNT;
            queued := v_added > 0;
            v_room := v_room - v_added;
            v_any := v_any OR queued;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF v_any THEN
        PERFORM pg_notify(p_channel, '');
    END IF;
END $perdure$;
INSERT INTO @schema@.flow_migrations VALUES (5, 'tasks', 'de614f2a332c0d1461dd2d0c98ade66f282919d961c6421a1f00b005263f3ebb', '2026-01-01T00:00:00.000000000Z');
-- What people list: the runs of a workflow, and the open ones among however many ended.
CREATE INDEX flow_runs_by_name ON @schema@.flow_runs (name, run_id);
CREATE INDEX flow_runs_open ON @schema@.flow_runs (run_id) WHERE NOT terminal;
INSERT INTO @schema@.flow_migrations VALUES (6, 'listing', '7e18cd738da97a5f6748397ad7a7e51ee2661e58bab2b41908dbd2135c3c210d', '2026-01-01T00:00:00.000000000Z');
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('asking', 'asking', '1', NULL, 'suspended', false, 0, 1, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 3, NULL, 0,  -1, 0, NULL, '{"code":"nondeterministic","builds":["build-0"]}', NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('async-asking', 'async-asking', '1', NULL, 'suspended', false, 0, 1, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 3, 'a process of then', 1,  -1, 0, NULL, NULL, 1767225630000000);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('async-cancelled', 'async-cancelled', '1', NULL, 'cancelled', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 8, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('async-parade', 'async-parade', '1', NULL, 'completed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:35:00.000000000Z', '2026-01-01T00:35:00.000000000Z', 34, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('cancelled', 'cancelling', '1', NULL, 'cancelled', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:07:00.000000000Z', '2026-01-01T00:07:00.000000000Z', 15, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('cancelling', 'cancelling', '1', NULL, 'cancelling', false, 0, 0, 1, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 11, NULL, 0,  -1, 0, NULL, NULL, 0);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('declined', 'declined', '1', NULL, 'failed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 10, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('exhausted', 'exhausted', '1', NULL, 'failed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 8, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('failed', 'failed', '1', NULL, 'failed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 3, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('force-cancelled', 'waiting', '1', NULL, 'cancelled', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 4, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('handed-over', 'one-step', '1', 'build-1', 'completed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 6, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('host-shutdown', 'waiting', '1', NULL, 'failed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 4, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('host-timeout', 'waiting', '1', NULL, 'failed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 4, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('parade', 'parade', '1', NULL, 'completed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:21:00.000000000Z', '2026-01-01T00:21:00.000000000Z', 40, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('pending', 'one-step', '1', NULL, 'pending', false, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 1, NULL, 0,  -1, 0, NULL, NULL, 0);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('retrying', 'retrying', '1', NULL, 'suspended', false, 0, 0, 1, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 5, NULL, 0,  -1, 0, NULL, NULL, 0);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('running', 'one-step', '1', NULL, 'running', false, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 4, NULL, 0,  -1, 0, NULL, NULL, 0);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('timed-out', 'timed-out', '1', NULL, 'failed', true, 0, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', 3, NULL, 0,  -1, 0, NULL, NULL, NULL);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('waiting', 'waiting', '1', NULL, 'suspended', false, 1, 0, 0, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 3, NULL, 1, 3, 0, NULL, NULL, 1767229200000001);
INSERT INTO @schema@.flow_runs (run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, ended_at, last_sequence, owner, epoch, parked_sequence, failures, not_before, hold, claim_at) VALUES ('with-detail', 'retrying', '1', NULL, 'suspended', false, 0, 0, 1, '2026-01-01T00:00:00.000000000Z', '2026-01-01T00:00:00.000000000Z', NULL, 5, NULL, 0,  -1, 0, NULL, NULL, 0);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('asking', 1, 3, '\x7b2272756e5f6964223a2261736b696e67222c2273657175656e6365223a312c226576656e745f6964223a2239386130636539632d333932332d346566392d383665652d366238316330643632623962222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2261736b696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2261736b696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a2261736b696e67222c2273657175656e6365223a322c226576656e745f6964223a2262663033316438332d613331362d346333332d616464312d353662316234613166353436222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2261736b696e67222c2273657175656e6365223a332c226576656e745f6964223a2230336566636337332d386638352d343638322d613836342d383538383135343961666365222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a2268222c22746f6b656e223a2263616e6172792d7265636f726465642d61736b696e67222c226d65746164617461223a6e756c6c7d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('async-asking', 1, 3, '\x7b2272756e5f6964223a226173796e632d61736b696e67222c2273657175656e6365223a312c226576656e745f6964223a2236356538333633382d613038652d343662662d383234662d643766336634396131383138222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226173796e632d61736b696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226173796e632d61736b696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a226173796e632d61736b696e67222c2273657175656e6365223a322c226576656e745f6964223a2238363239663436352d303466362d346165322d396131662d626437636135663161633239222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a226173796e632d61736b696e67222c2273657175656e6365223a332c226576656e745f6964223a2233623337363866642d663331392d343761612d393531382d316264353662333334353339222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a22616e73776572222c22746f6b656e223a2263616e6172792d7265636f726465642d6173796e632d61736b696e67222c226d65746164617461223a7b22666f72223a22616461227d7d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('async-cancelled', 1, 8, '\x7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a312c226576656e745f6964223a2264643535356233322d616466362d343535362d393364302d353133346235326138663762222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226173796e632d63616e63656c6c6564222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226173796e632d63616e63656c6c6564222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a322c226576656e745f6964223a2261316430633239662d323434372d343966632d623539622d376165366364323333613963222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a332c226576656e745f6964223a2236626338323664372d333431302d346430302d623963352d626537613433343763316538222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a22736c656570222c22726573756d655f6174223a22323032362d30312d31305430303a30303a30305a227d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a342c226576656e745f6964223a2262393931323961372d306564362d343035382d393937332d623563636666356561346134222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63616e63656c6c6174696f6e5f726571756573746564222c2272657175657374223a7b22726561736f6e223a22637573746f6d6572206c656674227d7d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a352c226576656e745f6964223a2265623061623431352d346438622d346264352d623932342d316361393039303162323165222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22776f726b222c22737465705f6e616d65223a22776f726b222c22696e707574223a22756e646f222c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a362c226576656e745f6964223a2238393237653765382d303731342d343736332d623030302d343563383731363732346236222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22776f726b222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a372c226576656e745f6964223a2239323334303963302d613139382d343633332d393135612d363037616265333939366533222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a22776f726b222c226f7574707574223a22776f726b20756e646f20627920617474656d70742031227d7d0a7b2272756e5f6964223a226173796e632d63616e63656c6c6564222c2273657175656e6365223a382c226576656e745f6964223a2237663939623332642d616462362d343536662d396663372d303463613435386563366132222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63616e63656c6c6564222c22726561736f6e223a22637573746f6d6572206c656674227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('async-parade', 1, 34, '\x7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a312c226576656e745f6964223a2234643961343634372d336136612d343662342d386464662d353036613461316238396663222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226173796e632d706172616465222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226173796e632d706172616465222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a322c226576656e745f6964223a2234303664643835622d323466302d343661652d383537362d356165326339393936343631222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a332c226576656e745f6964223a2235646466326466352d666638372d343233622d626463302d613232363261376333653135222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f70726f67726573735f7265636f72646564222c2270726f6772657373223a7b2270726f67726573735f6964223a22626567756e222c22636f6d706c65746564223a302c22746f74616c223a337d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a342c226576656e745f6964223a2266303961316332642d626437642d346232362d623638362d363133623839386339346138222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22776f726b222c22737465705f6e616d65223a22776f726b222c22696e707574223a312c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a352c226576656e745f6964223a2265616539626233622d396539302d343630332d626638342d323637633265386363326434222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22776f726b222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a362c226576656e745f6964223a2235666363643039362d636630352d346532652d383535632d343334336263396332633438222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a22776f726b222c226f7574707574223a22776f726b203120627920617474656d70742031227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a372c226576656e745f6964223a2235393437306330312d346530632d346232352d616631332d343036623031663464613838222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22776f726b2332222c22737465705f6e616d65223a22776f726b222c22696e707574223a322c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a382c226576656e745f6964223a2265643636383735652d663761612d346339632d393162642d666239306635383839303531222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22666c616b79222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a392c226576656e745f6964223a2263303339666566332d323633362d343032302d616433312d633462306232613866346462222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22776f726b2332222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31302c226576656e745f6964223a2231363366663738332d376165302d343166332d623438652d316139656332653161626137222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22666c616b79222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31312c226576656e745f6964223a2264623732316261642d383138382d343262642d613537612d643230643564396165363734222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a22666c616b79222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a6e756c6c7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31322c226576656e745f6964223a2238666362343765362d333438332d343864652d393131342d616363376236643061656633222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22666c616b79222c22617474656d7074223a327d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31332c226576656e745f6964223a2239333138653064662d376632622d346161652d613336392d343163636338366532633866222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a22776f726b2332222c226f7574707574223a22776f726b2332203220627920617474656d70742031227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31342c226576656e745f6964223a2261336631373236342d323365342d343736352d383437612d323336366164306365353634222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a22666c616b79222c226f7574707574223a22666c616b7920627920617474656d70742032227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31352c226576656e745f6964223a2232633638383131612d356331342d343537622d386263642d363061323836363838333636222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2274696d6572222c22726573756d655f6174223a22323032362d30312d30315430393a30303a30305a227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31362c226576656e745f6964223a2232383739656630662d376463392d346233302d626462312d336431313064326431336663222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a22617070726f76616c222c22746f6b656e223a2263616e6172792d7265636f726465642d6173796e63222c226d65746164617461223a6e756c6c7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31372c226576656e745f6964223a2230613831373133352d333165632d346337302d613562332d386332396639343232343163222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a22736c656570222c22726573756d655f6174223a22323032362d30312d30315430303a30323a30305a227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31382c226576656e745f6964223a2239356331306435372d303934332d343939392d396439382d373530646130386333353161222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f7265636569766564222c22686f6f6b5f6964223a22617070726f76616c222c227061796c6f6164223a22796573227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a31392c226576656e745f6964223a2263383439306630302d313662622d343839312d626634632d623932366233643735663839222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226465636c696e696e67222c22737465705f6e616d65223a226465636c696e696e67222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32302c226576656e745f6964223a2239633931663931392d343534652d346566322d616638612d313535646130653231643964222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f636f6d706c65746564222c22776169745f6964223a22736c656570227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32312c226576656e745f6964223a2266613339383730362d396433332d343031322d623733662d643464663163363333633335222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f636f6d706c65746564222c22776169745f6964223a2274696d6572227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32322c226576656e745f6964223a2231636130333339642d346139312d343036302d396436372d303732363837616136386132222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226465636c696e696e67222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32332c226576656e745f6964223a2264656636393334302d376338642d343966342d623138352d656535383066663832653961222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f6e6f6e5f726574727961626c65222c22737465705f6964223a226465636c696e696e67222c22617474656d7074223a312c226572726f72223a226e6f6e2d726574727961626c652073746570206572726f723a206465636c696e6564227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32342c226576656e745f6964223a2261386430333935642d393266642d343137392d616239362d373231666333636538373164222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2274696d656f7574222c22726573756d655f6174223a22323032362d30312d30315430353a30303a30305a227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32352c226576656e745f6964223a2232366565353364392d323430372d343237632d396166612d336266656133396235326661222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a227475726e2d302f776f726b222c22737465705f6e616d65223a22776f726b222c22696e707574223a302c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32362c226576656e745f6964223a2264373135346237372d363832632d346237612d386239362d646337626265386464353466222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a227475726e2d302f776f726b222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32372c226576656e745f6964223a2239653839666331352d356165322d343432342d623366372d323831613535613165616266222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a227475726e2d302f776f726b222c226f7574707574223a227475726e2d302f776f726b203020627920617474656d70742031227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32382c226576656e745f6964223a2237656662623635372d363561382d343762642d396131622d633734336132663738363761222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a227475726e2d312f776f726b222c22737465705f6e616d65223a22776f726b222c22696e707574223a312c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a32392c226576656e745f6964223a2262626464326664342d663661312d346162312d616530612d353432396332376632653834222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a227475726e2d312f776f726b222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a33302c226576656e745f6964223a2266333939653930352d373666382d343833342d393363612d373366333064613562376633222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a227475726e2d312f776f726b222c226f7574707574223a227475726e2d312f776f726b203120627920617474656d70742031227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a33312c226576656e745f6964223a2237386530336238372d333563662d346235632d616262652d383732356535343461386230222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a22736c6565702332222c22726573756d655f6174223a22323032362d30312d30315430303a33303a30305a227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a33322c226576656e745f6964223a2230623539306438622d343337352d343565612d616434312d656330363261613831356332222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f636f6d706c65746564222c22776169745f6964223a2274696d656f7574227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a33332c226576656e745f6964223a2232353265333238372d303639622d346634632d616230652d376666616132333639366134222c2274696d657374616d70223a22323032362d30312d30315430303a33353a30305a222c226576656e74223a7b2274797065223a22776169745f636f6d706c65746564222c22776169745f6964223a22736c6565702332227d7d0a7b2272756e5f6964223a226173796e632d706172616465222c2273657175656e6365223a33342c226576656e745f6964223a2239326465303264642d613237372d346331372d383766332d333962326636343036666438222c2274696d657374616d70223a22323032362d30312d30315430303a33353a30305a222c226576656e74223a7b2274797065223a2272756e5f636f6d706c65746564222c226f7574707574223a5b22776f726b203120627920617474656d70742031222c22776f726b2332203220627920617474656d70742031222c22666c616b7920627920617474656d70742032222c747275652c226e6f6e2d726574727961626c652073746570206572726f723a206465636c696e6564222c5b227475726e2d302f776f726b203020627920617474656d70742031222c227475726e2d312f776f726b203120627920617474656d70742031225d5d7d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('cancelled', 1, 15, '\x7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a312c226576656e745f6964223a2230383732643834322d313861382d343538342d393730392d653035646434613138336538222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2263616e63656c6c696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2263616e63656c6c696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a322c226576656e745f6964223a2234363434633332612d366665372d346535622d393662392d396463353237663230383339222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a332c226576656e745f6964223a2261346639353738382d386332342d343438612d613032342d373063373862633062303830222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226c617465222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a342c226576656e745f6964223a2263326563363435342d626464622d346461322d383234322d313933393532383666633963222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a2268222c22746f6b656e223a2263616e6172792d7265636f726465642d63616e63656c6c6564222c226d65746164617461223a6e756c6c7d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a352c226576656e745f6964223a2236303333626663662d623138382d343463392d386231642d323466633032366232316332222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2277222c22726573756d655f6174223a22323032362d30312d30315430313a33393a30305a227d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a362c226576656e745f6964223a2238616531343564612d303731372d343533312d393232612d356263656135383234383364222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226c617465222c22617474656d7074223a317d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a372c226576656e745f6964223a2239373434376564312d333634302d343336362d613735312d363862646664633661366364222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a226c617465222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a227d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a382c226576656e745f6964223a2236353939306233612d333164332d346433332d623866382d383338343661663332363765222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f7265636569766564222c22686f6f6b5f6964223a2268222c227061796c6f6164223a7b226279223a22616461227d7d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a392c226576656e745f6964223a2238653235303635622d663531332d343362622d623633652d366230373236613935366664222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63616e63656c6c6174696f6e5f726571756573746564222c2272657175657374223a7b22726561736f6e223a22637573746f6d6572206c656674227d7d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a31302c226576656e745f6964223a2235636532323630372d383665622d343463612d626266392d383734373864623965343738222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22756e646f222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a31312c226576656e745f6964223a2235323430353934322d303462372d343233312d613431652d343962313239363465613961222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22756e646f222c22617474656d7074223a317d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a31322c226576656e745f6964223a2230383263646566342d373763622d343235382d383938332d376437323166326166656365222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a22756e646f222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a227d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a31332c226576656e745f6964223a2230373966653065662d653565392d346562392d616330662d663066636366316537613539222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22756e646f222c22617474656d7074223a327d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a31342c226576656e745f6964223a2264646562376166342d346164302d343966392d383563372d353835643962323539653134222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a22756e646f222c226f7574707574223a22756e646f20627920617474656d70742032227d7d0a7b2272756e5f6964223a2263616e63656c6c6564222c2273657175656e6365223a31352c226576656e745f6964223a2230303338373033382d383966382d343631612d626339312d313233613736323935373738222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a2272756e5f63616e63656c6c6564222c22726561736f6e223a22637573746f6d6572206c656674227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('cancelling', 1, 11, '\x7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a312c226576656e745f6964223a2264303964323231662d653466642d343136342d623361362d326537313534306465343530222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2263616e63656c6c696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2263616e63656c6c696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a322c226576656e745f6964223a2238353631393231322d666264372d343061622d623938302d396133643837396161373664222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a332c226576656e745f6964223a2265643061623831322d616564362d343233362d386438362d363261626163666538323464222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226c617465222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a342c226576656e745f6964223a2265653037623063382d363535322d343231662d626538362d613365356632306465356336222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a2268222c22746f6b656e223a2263616e6172792d7265636f726465642d63616e63656c6c696e67222c226d65746164617461223a6e756c6c7d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a352c226576656e745f6964223a2235396430383932372d383536302d343366302d616561312d353362376334613962396134222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2277222c22726573756d655f6174223a22323032362d30312d30315430313a33393a30305a227d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a362c226576656e745f6964223a2232663932303661392d323333302d346535642d383434352d396132346430616363623430222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226c617465222c22617474656d7074223a317d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a372c226576656e745f6964223a2232323535303165322d316531652d343332332d396630332d623166373166383962643737222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a226c617465222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a227d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a382c226576656e745f6964223a2266306436353532392d633139652d343162342d613433362d373836656534386137626665222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63616e63656c6c6174696f6e5f726571756573746564222c2272657175657374223a7b22726561736f6e223a22637573746f6d6572206c656674227d7d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a392c226576656e745f6964223a2237626231666538332d363731332d343036372d386435302d643035363736633664383662222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22756e646f222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a31302c226576656e745f6964223a2239363532316333322d373531622d346235622d393265342d386135313165303739613137222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22756e646f222c22617474656d7074223a317d7d0a7b2272756e5f6964223a2263616e63656c6c696e67222c2273657175656e6365223a31312c226576656e745f6964223a2238316530646562382d366431302d346635642d393564352d666330343234643638353536222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a22756e646f222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('declined', 1, 10, '\x7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a312c226576656e745f6964223a2266396438316635352d303333642d343531362d613163352d303263643561653433376632222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226465636c696e6564222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226465636c696e6564222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a322c226576656e745f6964223a2233313838626566382d376138312d343962382d626561622d353536353666623039313736222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a332c226576656e745f6964223a2234653439633136362d653635632d346362652d616434392d363166323866343462643135222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22706179222c22737465705f6e616d65223a226465636c696e696e67222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a342c226576656e745f6964223a2263323637386362392d353163612d346132382d396635632d383532623866396333636665222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226c617465222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a352c226576656e745f6964223a2233343936383532302d303937312d346430372d626363662d623132363836373933663937222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22706179222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a362c226576656e745f6964223a2230393633613465372d396536652d343137372d623465392d373663653962353265366137222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226c617465222c22617474656d7074223a317d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a372c226576656e745f6964223a2266396164366232352d656631312d343039632d393633302d393664336662663338613938222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f6e6f6e5f726574727961626c65222c22737465705f6964223a22706179222c22617474656d7074223a312c226572726f72223a226e6f6e2d726574727961626c652073746570206572726f723a206465636c696e6564227d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a382c226576656e745f6964223a2239363534663566612d616437342d346637392d393962632d343261386561646566646566222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a226c617465222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a227d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a392c226576656e745f6964223a2239323465623435392d366665302d343932372d396566632d373438633566373135633863222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63616e63656c6c6564222c22737465705f6964223a226c617465222c22617474656d7074223a312c22726561736f6e223a2272756e206661696c65642062792073746570207061793b206f7574636f6d6520756e6b6e6f776e227d7d0a7b2272756e5f6964223a226465636c696e6564222c2273657175656e6365223a31302c226576656e745f6964223a2237653238383832312d623234302d346130352d383136632d613530333262613961326363222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f6661696c6564222c226572726f72223a226e6f6e2d726574727961626c652073746570206572726f723a206465636c696e6564227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('exhausted', 1, 8, '\x7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a312c226576656e745f6964223a2232623432386366382d356336332d343362392d383531342d353161366639343434663161222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a22657868617573746564222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a22657868617573746564222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a322c226576656e745f6964223a2266393033636538362d313566632d346562662d386230392d303265663838656661353233222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a332c226576656e745f6964223a2238393232306536662d623338302d346566632d623938622d326164666634633464653331222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226e65766572222c22737465705f6e616d65223a2262726f6b656e222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a322c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a342c226576656e745f6964223a2231356539376564332d306435632d343864662d626364652d303633366432393832613037222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226e65766572222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a352c226576656e745f6964223a2230613366373834302d386462632d343833362d393164632d666634616436323534633830222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a226e65766572222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a20617474656d70742031206661696c73206c696b6520616c6c222c2272657472795f6166746572223a6e756c6c7d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a362c226576656e745f6964223a2234636664393333642d613038342d343063332d386462662d323039363032303937343533222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226e65766572222c22617474656d7074223a327d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a372c226576656e745f6964223a2233316262363534322d656562332d346138622d383636382d343436626234636438646435222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f6661696c6564222c22737465705f6964223a226e65766572222c22617474656d7074223a322c226572726f72223a2272756e74696d65206572726f723a20617474656d70742032206661696c73206c696b6520616c6c227d7d0a7b2272756e5f6964223a22657868617573746564222c2273657175656e6365223a382c226576656e745f6964223a2237623062386532312d343437302d343730662d626465302d663665383161383836626264222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f72657472795f657868617573746564222c22737465705f6964223a226e65766572222c22617474656d7074223a322c226572726f72223a2272756e74696d65206572726f723a20617474656d70742032206661696c73206c696b6520616c6c227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('failed', 1, 3, '\x7b2272756e5f6964223a226661696c6564222c2273657175656e6365223a312c226576656e745f6964223a2266303936393135612d666165642d346665352d386430392d346137353531663339376139222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226661696c6564222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226661696c6564222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a226661696c6564222c2273657175656e6365223a322c226576656e745f6964223a2235653538353639352d313765632d343664302d383866652d376665373334373034613834222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a226661696c6564222c2273657175656e6365223a332c226576656e745f6964223a2235623462616536622d303136642d346664332d393263342d656665613463616263666530222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f6661696c6564222c226572726f72223a226e6f7468696e6720746f20646f227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('force-cancelled', 1, 4, '\x7b2272756e5f6964223a22666f7263652d63616e63656c6c6564222c2273657175656e6365223a312c226576656e745f6964223a2262393363643638642d383937322d346237352d613164632d633137303835626130316234222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2277616974696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2277616974696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a22666f7263652d63616e63656c6c6564222c2273657175656e6365223a322c226576656e745f6964223a2234373035613130342d626136372d343436322d613530622d646435343863386237363834222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a22666f7263652d63616e63656c6c6564222c2273657175656e6365223a332c226576656e745f6964223a2235306166623939662d363165312d343234622d623539652d323338336564353466356635222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2277222c22726573756d655f6174223a22323032362d30312d30315430313a30303a30302e3030303030303030315a227d7d0a7b2272756e5f6964223a22666f7263652d63616e63656c6c6564222c2273657175656e6365223a342c226576656e745f6964223a2239373563373531302d306362632d343331632d393936612d326566636131663832356562222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63616e63656c6c6564222c22726561736f6e223a2262792068616e64227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('handed-over', 1, 6, '\x7b2272756e5f6964223a2268616e6465642d6f766572222c2273657175656e6365223a312c226576656e745f6964223a2235306134613361362d643037662d346330632d623332662d386231323234303833666432222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226f6e652d73746570222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226f6e652d73746570222c226578706f72745f6e616d65223a226d61696e227d2c2272756e74696d655f6275696c645f6964223a226275696c642d31227d2c22696e707574223a5b312c322e352c6e756c6c2c22c3a9225d7d7d0a7b2272756e5f6964223a2268616e6465642d6f766572222c2273657175656e6365223a322c226576656e745f6964223a2232623930326638392d313165382d343831382d623863392d396435643564393833313935222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2268616e6465642d6f766572222c2273657175656e6365223a332c226576656e745f6964223a2237353034643930652d393435642d343265382d623534652d653738316363373566363336222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a2261222c22737465705f6e616d65223a22776f726b222c22696e707574223a5b312c322e352c6e756c6c2c22c3a9225d2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a2268616e6465642d6f766572222c2273657175656e6365223a342c226576656e745f6964223a2264383530393930392d356161332d343031362d396136372d303336663962353430643662222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2261222c22617474656d7074223a317d7d0a7b2272756e5f6964223a2268616e6465642d6f766572222c2273657175656e6365223a352c226576656e745f6964223a2238663062653231312d323431372d346333642d393966372d333831376365366531313864222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a2261222c226f7574707574223a2261205b312c20322e352c204e6f6e652c2027c3a9275d20627920617474656d70742031227d7d0a7b2272756e5f6964223a2268616e6465642d6f766572222c2273657175656e6365223a362c226576656e745f6964223a2232363461616436632d623664642d343130662d616639342d616364336366393263313930222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f636f6d706c65746564222c226f7574707574223a2261205b312c20322e352c204e6f6e652c2027c3a9275d20627920617474656d70742031227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('host-shutdown', 1, 4, '\x7b2272756e5f6964223a22686f73742d73687574646f776e222c2273657175656e6365223a312c226576656e745f6964223a2235303239643263392d353938312d343233612d626231302d633166383133336535626530222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2277616974696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2277616974696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a22686f73742d73687574646f776e222c2273657175656e6365223a322c226576656e745f6964223a2266316435643231612d303330612d343531352d613730352d666334333563393439633435222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a22686f73742d73687574646f776e222c2273657175656e6365223a332c226576656e745f6964223a2238353733323230612d663666392d343865372d626636302d366363376539323637613265222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2277222c22726573756d655f6174223a22323032362d30312d30315430313a30303a30302e3030303030303030315a227d7d0a7b2272756e5f6964223a22686f73742d73687574646f776e222c2273657175656e6365223a342c226576656e745f6964223a2239316634336234352d363239322d346163312d396238642d326132313533656364636431222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f686f73745f73687574646f776e222c22726561736f6e223a6e756c6c7d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('host-timeout', 1, 4, '\x7b2272756e5f6964223a22686f73742d74696d656f7574222c2273657175656e6365223a312c226576656e745f6964223a2238326439313836632d376239362d346564392d613936612d353265396236396230636164222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2277616974696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2277616974696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a22686f73742d74696d656f7574222c2273657175656e6365223a322c226576656e745f6964223a2233373962613864312d383232382d346466322d393433332d333434323661333265633637222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a22686f73742d74696d656f7574222c2273657175656e6365223a332c226576656e745f6964223a2235656661336332362d366238622d346538392d613364322d346565623238636263383833222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2277222c22726573756d655f6174223a22323032362d30312d30315430313a30303a30302e3030303030303030315a227d7d0a7b2272756e5f6964223a22686f73742d74696d656f7574222c2273657175656e6365223a342c226576656e745f6964223a2234633832313239322d316465352d346537652d386538652d346562333737373362393533222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f74696d65645f6f7574222c22646561646c696e65223a22323032362d30312d30315430303a30303a30305a222c22726561736f6e223a6e756c6c7d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('parade', 1, 40, '\x7b2272756e5f6964223a22706172616465222c2273657175656e6365223a312c226576656e745f6964223a2232333763623131662d356431302d346366322d393933302d323633393338623337306131222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a22706172616465222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a22706172616465222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a322c226576656e745f6964223a2262353736396661302d663134382d346639352d613930642d396466326631333064363066222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a332c226576656e745f6964223a2263663034626439332d663530612d343639352d393464612d386336353963653262313063222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f70726f67726573735f7265636f72646564222c2270726f6772657373223a7b2270726f67726573735f6964223a22626567756e222c22636f6d706c65746564223a302c22746f74616c223a397d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a342c226576656e745f6964223a2263636461656266392d393064312d343833382d623064372d656330623365393738313865222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a226368696c645f6f7065726174696f6e5f6c696e6b6564222c226368696c64223a7b227265666572656e63655f6964223a227369626c696e67222c226b696e64223a2272756e222c226f7065726174696f6e5f6964223a226f702d31222c22666c6f775f72756e5f6964223a2268616e6465642d6f766572227d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a352c226576656e745f6964223a2263623936633464622d616462652d343732322d393664352d323334613432623234633662222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226f6e65222c22737465705f6e616d65223a22776f726b222c22696e707574223a7b226e223a312c2274657874223a22c3a95c6e5c2227227d2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a362c226576656e745f6964223a2261346536656432342d656336332d346138612d383061312d323731653538363632373932222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226f6e65222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a372c226576656e745f6964223a2233386161663834652d353830352d346438662d616661382d656464303934626139376165222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a226f6e65222c226f7574707574223a226f6e65207b276e273a20312c202774657874273a2027c3a95c5c6e5c225c5c27277d20627920617474656d70742031227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a382c226576656e745f6964223a2238623135343432652d653264622d343131612d393162662d653339343639373333613932222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a2274776f222c22737465705f6e616d65223a22776f726b222c22696e707574223a7b226e223a312c2274657874223a22c3a95c6e5c2227227d2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a392c226576656e745f6964223a2234376435386661332d633535302d343833302d383337322d353535666432333566313138222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2274776f222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31302c226576656e745f6964223a2232396662333838632d323265342d346362362d623766302d313231306333373037613930222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a2274776f222c226f7574707574223a2274776f207b276e273a20312c202774657874273a2027c3a95c5c6e5c225c5c27277d20627920617474656d70742031227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31312c226576656e745f6964223a2262343035343230662d623136392d343739652d396662352d623933343234303531353766222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a2278222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31322c226576656e745f6964223a2235346231326561652d363264312d346538382d626562302d373636643138373766386336222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a2279222c22737465705f6e616d65223a22776f726b222c22696e707574223a322c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31332c226576656e745f6964223a2265666632366235302d313061662d343137372d393136312d653739353837613736366563222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a227a222c22737465705f6e616d65223a22776f726b222c22696e707574223a322c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31342c226576656e745f6964223a2233306534303337342d353861392d343035632d616438372d626434633737653239383366222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2278222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31352c226576656e745f6964223a2232373734356363622d396133312d343532652d393434632d663162323230656161326337222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2279222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31362c226576656e745f6964223a2266623162376433652d336637332d343431342d616636652d306439333535323064643463222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a2278222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a6e756c6c7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31372c226576656e745f6964223a2232313437373338362d303666322d346637652d383730322d303965306364303565653537222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2278222c22617474656d7074223a327d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31382c226576656e745f6964223a2232306564626362612d336163632d343637322d383834612d623634396663626365343962222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a2279222c226f7574707574223a2279203220627920617474656d70742031227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a31392c226576656e745f6964223a2233386264656366612d636534612d346431322d393038662d333931656263303730653833222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a227a222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32302c226576656e745f6964223a2265383138306136622d643466342d346132612d626666632d643363313265663839303537222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a2278222c226f7574707574223a227820627920617474656d70742032227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32312c226576656e745f6964223a2235353735653832362d653263622d346165652d383261662d326337643639366366343662222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a227a222c226f7574707574223a227a203220627920617474656d70742031227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32322c226576656e745f6964223a2239373763303930612d663465312d343666362d393033312d313061623836656664653133222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a22617070726f76616c222c22746f6b656e223a2263616e6172792d7265636f726465642d706172616465222c226d65746164617461223a7b22666f72223a22616461227d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32332c226576656e745f6964223a2239656561626163332d376130642d346538652d623264332d623139323565313330326361222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f63726561746564222c22686f6f6b5f6964223a227370617265222c22746f6b656e223a2263616e6172792d7265636f726465642d7370617265222c226d65746164617461223a6e756c6c7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32342c226576656e745f6964223a2235373530316665302d636139612d346664312d386363312d353135303432343231323537222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a22756e75736564222c22726573756d655f6174223a22323032362d30312d30315430303a30393a30305a227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32352c226576656e745f6964223a2238666530666562312d376234612d343535392d386439662d323839383462313432363766222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f7265636569766564222c22686f6f6b5f6964223a22617070726f76616c222c227061796c6f6164223a22796573227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32362c226576656e745f6964223a2231623033373439342d646431632d343163632d616164662d633937346431373239613131222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22686f6f6b5f646973706f736564222c22686f6f6b5f6964223a227370617265227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32372c226576656e745f6964223a2266653230303864372d333765382d343531372d393639652d643666313831626431613435222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f636f6d706c65746564222c22776169745f6964223a22756e75736564227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32382c226576656e745f6964223a2232393832356537392d343535392d343162322d396165312d303561616232643661333130222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a22756e74696c222c22726573756d655f6174223a22323032362d30312d30315430303a30353a30305a227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a32392c226576656e745f6964223a2230623038383830662d306634322d346462622d623666622d393462336362366434323466222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a22776169745f636f6d706c65746564222c22776169745f6964223a22756e74696c227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33302c226576656e745f6964223a2238313363616161352d623334382d343439332d386238392d336266653333386636356165222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a2270617469656e74222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a342c2264656c61795f6d73223a36303030302c226261636b6f6666223a226578706f6e656e7469616c222c226d61785f64656c61795f6d73223a3630303030307d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33312c226576656e745f6964223a2261356139363964322d373038332d343537322d616634302d646234383532656237346237222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2270617469656e74222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33322c226576656e745f6964223a2234663361633336322d383831322d343565332d396564332d326361623364353664353538222c2274696d657374616d70223a22323032362d30312d30315430303a30373a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a2270617469656e74222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30373a33352e3639385a227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33332c226576656e745f6964223a2230376166633630352d333535382d346566302d393261392d333137363239623266663561222c2274696d657374616d70223a22323032362d30312d30315430303a31343a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2270617469656e74222c22617474656d7074223a327d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33342c226576656e745f6964223a2265363337303532622d333833392d343539632d623866642d663931643061616136323765222c2274696d657374616d70223a22323032362d30312d30315430303a31343a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a2270617469656e74222c22617474656d7074223a322c226572726f72223a2272756e74696d65206572726f723a207265747279206c61746572222c2272657472795f6166746572223a22323032362d30312d30315430303a31373a30305a222c227375676765737465645f64656c61795f6d73223a3138303030307d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33352c226576656e745f6964223a2230306133313730662d666237362d346333372d383165612d616163343939323339353439222c2274696d657374616d70223a22323032362d30312d30315430303a32313a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2270617469656e74222c22617474656d7074223a337d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33362c226576656e745f6964223a2263663730316332312d653636312d343562642d383361662d363333663530396664633635222c2274696d657374616d70223a22323032362d30312d30315430303a32313a30305a222c226576656e74223a7b2274797065223a22737465705f636f6d706c65746564222c22737465705f6964223a2270617469656e74222c226f7574707574223a2270617469656e7420627920617474656d70742033227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33372c226576656e745f6964223a2239633437313536342d643237372d343465612d623038322d313564663363313031623766222c2274696d657374616d70223a22323032362d30312d30315430303a32313a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a22706179222c22737465705f6e616d65223a226465636c696e696e67222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a302c226f6e5f657868617573746564223a22636f6e74696e75655f776f726b666c6f77227d7d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33382c226576656e745f6964223a2265376639613031342d316166622d343632612d383266322d666437323736323864323636222c2274696d657374616d70223a22323032362d30312d30315430303a32313a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a22706179222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a33392c226576656e745f6964223a2231313138613838632d316637372d343034372d393937312d323565323765393730643233222c2274696d657374616d70223a22323032362d30312d30315430303a32313a30305a222c226576656e74223a7b2274797065223a22737465705f6e6f6e5f726574727961626c65222c22737465705f6964223a22706179222c22617474656d7074223a312c226572726f72223a226e6f6e2d726574727961626c652073746570206572726f723a206465636c696e6564227d7d0a7b2272756e5f6964223a22706172616465222c2273657175656e6365223a34302c226576656e745f6964223a2264393532626364312d623061612d343636652d383931362d326564643566333064623863222c2274696d657374616d70223a22323032362d30312d30315430303a32313a30305a222c226576656e74223a7b2274797065223a2272756e5f636f6d706c65746564222c226f7574707574223a5b226f6e65207b276e273a20312c202774657874273a2027c3a95c5c6e5c225c5c27277d20627920617474656d70742031222c2274776f207b276e273a20312c202774657874273a2027c3a95c5c6e5c225c5c27277d20627920617474656d70742031222c227820627920617474656d70742032222c2279203220627920617474656d70742031222c227a203220627920617474656d70742031222c2270617469656e7420627920617474656d70742033222c22796573222c226e6f6e2d726574727961626c652073746570206572726f723a206465636c696e6564225d7d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('pending', 1, 1, '\x7b2272756e5f6964223a2270656e64696e67222c2273657175656e6365223a312c226576656e745f6964223a2231316238303130312d353537642d346163362d383636662d393663636137373435393236222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226f6e652d73746570222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226f6e652d73746570222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a226c61746572227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('retrying', 1, 5, '\x7b2272756e5f6964223a227265747279696e67222c2273657175656e6365223a312c226576656e745f6964223a2238333936363037612d396530362d346338312d386533372d303666316465356536363366222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a227265747279696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a227265747279696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a227265747279696e67222c2273657175656e6365223a322c226576656e745f6964223a2237626631666662322d356231312d343138352d393461312d363465303563303134306530222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a227265747279696e67222c2273657175656e6365223a332c226576656e745f6964223a2232646266333266312d316565392d343465642d616261332d373434323035393633626563222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226c617465222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a227265747279696e67222c2273657175656e6365223a342c226576656e745f6964223a2265333462336338662d363239362d346265342d393266322d373966313766643764633333222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226c617465222c22617474656d7074223a317d7d0a7b2272756e5f6964223a227265747279696e67222c2273657175656e6365223a352c226576656e745f6964223a2264313339306164372d626433352d343137322d393433652d316232336530623961383661222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a226c617465222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('running', 1, 4, '\x7b2272756e5f6964223a2272756e6e696e67222c2273657175656e6365223a312c226576656e745f6964223a2231666561316532632d373033352d346432342d623664352d333637393337366237643965222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a226f6e652d73746570222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a226f6e652d73746570222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a226e6f77227d7d0a7b2272756e5f6964223a2272756e6e696e67222c2273657175656e6365223a322c226576656e745f6964223a2232653434613662392d356436312d346531652d396632662d373538656361333163663066222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2272756e6e696e67222c2273657175656e6365223a332c226576656e745f6964223a2265353930373335332d623034342d346461652d393438302d623238346237616564643837222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a2261222c22737465705f6e616d65223a22776f726b222c22696e707574223a226e6f77222c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a307d7d7d0a7b2272756e5f6964223a2272756e6e696e67222c2273657175656e6365223a342c226576656e745f6964223a2234313730333138652d643134342d343437622d623231342d633663383262306563386336222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a2261222c22617474656d7074223a317d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('timed-out', 1, 3, '\x7b2272756e5f6964223a2274696d65642d6f7574222c2273657175656e6365223a312c226576656e745f6964223a2262353130366338302d376462332d343932312d393661652d323538386462626664653236222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2274696d65642d6f7574222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2274696d65642d6f7574222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a7b226f72646572223a377d7d7d0a7b2272756e5f6964223a2274696d65642d6f7574222c2273657175656e6365223a322c226576656e745f6964223a2231393837303438362d393933352d343338322d386464372d633930343137333037306466222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2274696d65642d6f7574222c2273657175656e6365223a332c226576656e745f6964223a2261633036616337302d393231622d343963362d396432382d653032656237336363613962222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f74696d65645f6f7574222c22646561646c696e65223a22323032362d30312d30315430303a30303a30305a222c22726561736f6e223a22746f6f206c617465227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('waiting', 1, 3, '\x7b2272756e5f6964223a2277616974696e67222c2273657175656e6365223a312c226576656e745f6964223a2235616537623263352d393164352d343531392d393238622d663938313263636463313733222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a2277616974696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a2277616974696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a2277616974696e67222c2273657175656e6365223a322c226576656e745f6964223a2234303766636438662d633233352d343230372d383765392d386563326239663964646534222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a2277616974696e67222c2273657175656e6365223a332c226576656e745f6964223a2265656430393865392d623566302d343831302d386162612d373837313433366135623533222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22776169745f63726561746564222c22776169745f6964223a2277222c22726573756d655f6174223a22323032362d30312d30315430313a30303a30302e3030303030303030315a227d7d0a'::bytea);
INSERT INTO @schema@.flow_commits (run_id, first_sequence, last_sequence, lines) VALUES ('with-detail', 1, 5, '\x7b2272756e5f6964223a22776974682d64657461696c222c2273657175656e6365223a312c226576656e745f6964223a2238333936363037612d396530362d346338312d386533372d303666316465356536363366222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f63726561746564222c2273706563223a7b226e616d65223a227265747279696e67222c2276657273696f6e223a2231222c2272756e74696d65223a7b226b696e64223a22727573745f656d626564646564222c22656e747279706f696e74223a227265747279696e67222c226578706f72745f6e616d65223a226d61696e227d7d2c22696e707574223a6e756c6c7d7d0a7b2272756e5f6964223a22776974682d64657461696c222c2273657175656e6365223a322c226576656e745f6964223a2237626631666662322d356231312d343138352d393461312d363465303563303134306530222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a2272756e5f73746172746564227d7d0a7b2272756e5f6964223a22776974682d64657461696c222c2273657175656e6365223a332c226576656e745f6964223a2232646266333266312d316565392d343465642d616261332d373434323035393633626563222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f63726561746564222c22737465705f6964223a226c617465222c22737465705f6e616d65223a22666c616b79222c22696e707574223a6e756c6c2c227265747279223a7b226d61785f617474656d707473223a332c2264656c61795f6d73223a36303030307d7d7d0a7b2272756e5f6964223a22776974682d64657461696c222c2273657175656e6365223a342c226576656e745f6964223a2265333462336338662d363239362d346265342d393266322d373966313766643764633333222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f73746172746564222c22737465705f6964223a226c617465222c22617474656d7074223a317d7d0a7b2272756e5f6964223a22776974682d64657461696c222c2273657175656e6365223a352c226576656e745f6964223a2264313339306164372d626433352d343137322d393433652d316232336530623961383661222c2274696d657374616d70223a22323032362d30312d30315430303a30303a30305a222c226576656e74223a7b2274797065223a22737465705f7265747279696e67222c22737465705f6964223a226c617465222c22617474656d7074223a312c226572726f72223a2272756e74696d65206572726f723a2074686520666972737420617474656d7074206661696c73222c2272657472795f6166746572223a22323032362d30312d30315430303a30313a30305a222c226661696c757265223a7b2274797065223a226275696c74696e732e56616c75654572726f72222c226d657373616765223a2274686520666972737420617474656d7074206661696c73222c2274726163656261636b223a2254726163656261636b5c6e227d7d2c226f665f6c61746572223a5b31653430302c7b2261223a312c2261223a327d5d7d0a'::bytea);
INSERT INTO @schema@.flow_wakeups (run_id, kind, subject_id, due_key) VALUES ('cancelling', 2, 'undo', '2026-01-01T00:01:00.000000000Z');
INSERT INTO @schema@.flow_wakeups (run_id, kind, subject_id, due_key) VALUES ('retrying', 2, 'late', '2026-01-01T00:01:00.000000000Z');
INSERT INTO @schema@.flow_wakeups (run_id, kind, subject_id, due_key) VALUES ('waiting', 0, 'w', '2026-01-01T01:00:00.000000001Z');
INSERT INTO @schema@.flow_wakeups (run_id, kind, subject_id, due_key) VALUES ('with-detail', 2, 'late', '2026-01-01T00:01:00.000000000Z');
INSERT INTO @schema@.flow_hooks (token_hash, run_id, hook_id, sequence) VALUES ('\x86bde85a1239a429924f9bdac549235ddf3982652e4954f4e7bfb3688aeeb898'::bytea, 'asking', 'h', 3);
INSERT INTO @schema@.flow_hooks (token_hash, run_id, hook_id, sequence) VALUES ('\xb19d7ac03c735ad9f6900d3e1db0c34d9e873ba06f96cdd64cfa6234e4068bfc'::bytea, 'async-asking', 'answer', 3);
INSERT INTO @schema@.flow_links (run_id, linked_run_id) VALUES ('parade', 'handed-over');
INSERT INTO @schema@.flow_tombstones (run_id, deleted_at, last_sequence, last_event_id, history_sha256) VALUES ('gone', '2026-01-01T00:00:00.000000000Z', 3, '5b4bae6b-016d-4fd3-92c4-efea4cabcfe0', '\xb71c0ef9fee597c9cb1eea7eede76c54f82c194f9e7adb94a24297638700e2a1'::bytea);
INSERT INTO @schema@.flow_history_holds (run_id, hold_id, reason, created_at) VALUES ('parade', 'audit', 'case 7', '2026-01-01T00:00:00.000000000Z');
