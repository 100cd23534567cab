-- Task queues. A pending task may be leased from due_at on; a leased one is another's from then on. Times are microseconds
-- since 1970.
CREATE TABLE flow_tasks (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    queue        TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    run_id       TEXT,
    drives       INTEGER NOT NULL CHECK (drives IN (0, 1)),
    task         BLOB    NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    lease_id     TEXT,
    leased_at    INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0,
    nacks        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX flow_tasks_by_due ON flow_tasks (queue, due_at, position);
CREATE UNIQUE INDEX flow_tasks_by_id ON flow_tasks (queue, task_id);
CREATE UNIQUE INDEX flow_tasks_by_lease ON flow_tasks (lease_id) WHERE lease_id IS NOT NULL;
-- Of the tasks that only drive a run one is enough.
CREATE UNIQUE INDEX flow_tasks_of_drives ON flow_tasks (queue, run_id) WHERE drives = 1;
CREATE INDEX flow_tasks_by_run ON flow_tasks (run_id) WHERE run_id IS NOT NULL;

-- Tasks set aside, each under the lease it had then.
CREATE TABLE flow_task_dead_letters (
    queue             TEXT    NOT NULL,
    lease_id          TEXT    NOT NULL,
    task_id           TEXT    NOT NULL,
    run_id            TEXT,
    drives            INTEGER NOT NULL CHECK (drives IN (0, 1)),
    task              BLOB    NOT NULL,
    reason            TEXT    NOT NULL,
    attempts          INTEGER NOT NULL,
    enqueued_at       INTEGER NOT NULL,
    dead_lettered_at  INTEGER NOT NULL,
    PRIMARY KEY (queue, lease_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_task_dead_letters_by_time ON flow_task_dead_letters (queue, dead_lettered_at, lease_id);
CREATE INDEX flow_task_dead_letters_by_run ON flow_task_dead_letters (run_id) WHERE run_id IS NOT NULL;
