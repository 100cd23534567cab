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
