"""Task queues in PostgreSQL: the tables of migration 0005, in the schema of the runs they are about; each call is one
statement. Two workers never get one task: a row that somebody else is about to lease is passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from perdure.stores.task_rows import DeadRow, NewTask, QueueCounts, TaskRow

__all__ = ["PURGE", "PostgresTaskRows"]

_CLOCK: Final = "clock AS MATERIALIZED (SELECT coalesce($1::bigint, @schema@.flow_clock()) AS now)"
_COLUMNS: Final = "queue, lease_id, task_id, run_id, drives, task"

PUT: Final = """
SELECT place, queued
FROM @schema@.flow_enqueue($2, $3::text[], $4::bytea[], $5::text[], $6::boolean[], $7::bigint, $1::bigint, $8)
ORDER BY place"""
TAKE: Final = f"""
WITH {_CLOCK},
picked AS MATERIALIZED (
    SELECT t.position FROM @schema@.flow_tasks AS t
    WHERE t.queue = $2 AND t.due_at <= (SELECT clock.now / 1000 FROM clock)
    ORDER BY t.due_at, t.position LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE @schema@.flow_tasks AS t SET lease_id = $3, due_at = @schema@.flow_microseconds(clock.now + $4::bigint),
    leased_at = clock.now / 1000, attempts = t.attempts + CASE WHEN t.lease_id IS NULL THEN 0 ELSE 1 END
FROM picked, clock WHERE t.position = picked.position
RETURNING t.lease_id, t.task_id, t.task, t.attempts, t.nacks, t.enqueued_at * 1000, t.due_at * 1000"""
BEAT: Final = f"""
WITH {_CLOCK}
UPDATE @schema@.flow_tasks AS t SET lease_id = $4, due_at = @schema@.flow_microseconds(clock.now + $5::bigint),
    leased_at = clock.now / 1000
FROM clock WHERE t.queue = $2 AND t.lease_id IN ($3, $4) RETURNING 1"""
REMOVE: Final = "DELETE FROM @schema@.flow_tasks WHERE queue = $1 AND lease_id = $2 RETURNING 1"
BACK: Final = f"""
WITH {_CLOCK},
gone AS (
    DELETE FROM @schema@.flow_tasks AS t WHERE t.queue = $2 AND t.lease_id = $3 AND t.attempts + 1 >= $6::bigint
    RETURNING {_COLUMNS}, $5::text, attempts + 1, enqueued_at
),
buried AS (
    INSERT INTO @schema@.flow_task_dead_letters SELECT gone.*, clock.now / 1000 FROM gone, clock
    ON CONFLICT DO NOTHING
),
back AS (
    UPDATE @schema@.flow_tasks AS t SET lease_id = NULL, leased_at = NULL, nacks = t.nacks + 1,
        due_at = clock.now / 1000 + @schema@.flow_microseconds($4::bigint),
        attempts = t.attempts + CASE WHEN $6::bigint IS NULL THEN 0 ELSE 1 END
    FROM clock WHERE t.queue = $2 AND t.lease_id = $3 AND (t.attempts + 1 >= $6::bigint) IS NOT TRUE
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM back)"""
_BURY: Final = f"""
WITH {_CLOCK},
gone AS (
    DELETE FROM @schema@.flow_tasks AS t WHERE t.queue = $2 AND t.lease_id IS NOT NULL AND @which@
    RETURNING {_COLUMNS}, $4::text, attempts, enqueued_at
),
buried AS (
    INSERT INTO @schema@.flow_task_dead_letters SELECT gone.*, clock.now / 1000 FROM gone, clock
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM gone"""
BURY: Final = _BURY.replace("@which@", "t.lease_id = $3")
BURY_OLDER: Final = _BURY.replace("@which@", "t.leased_at <= $3::bigint")
REQUEUE: Final = """
UPDATE @schema@.flow_tasks SET lease_id = NULL, leased_at = NULL, due_at = enqueued_at
WHERE queue = $1 AND lease_id IS NOT NULL AND leased_at <= $2::bigint RETURNING 1"""
COUNTS: Final = f"""
WITH {_CLOCK}
SELECT count(*) FILTER (WHERE t.lease_id IS NULL OR t.due_at <= clock.now / 1000),
    count(*) FILTER (WHERE t.lease_id IS NOT NULL AND t.due_at > clock.now / 1000),
    (SELECT count(*) FROM @schema@.flow_task_dead_letters AS d WHERE d.queue = $2)
FROM @schema@.flow_tasks AS t, clock WHERE t.queue = $2"""
NEXT: Final = "SELECT due_at FROM @schema@.flow_tasks WHERE queue = $1 ORDER BY due_at, position LIMIT 1"
DEAD: Final = """
SELECT lease_id, task_id, task, run_id, reason, attempts, enqueued_at * 1000, dead_lettered_at * 1000
FROM @schema@.flow_task_dead_letters WHERE queue = $1 AND (dead_lettered_at, lease_id) > ($2::bigint, $3)
ORDER BY dead_lettered_at, lease_id LIMIT $4::bigint"""
REDRIVE: Final = f"""
WITH {_CLOCK},
gone AS (
    DELETE FROM @schema@.flow_task_dead_letters WHERE queue = $2 AND lease_id = $3 RETURNING run_id, drives, task
),
again AS (
    INSERT INTO @schema@.flow_tasks (queue, task_id, run_id, drives, task, enqueued_at, due_at)
    SELECT $2, $4, gone.run_id, gone.drives, gone.task, clock.now / 1000, clock.now / 1000 FROM gone, clock
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM gone"""
DROP: Final = "DELETE FROM @schema@.flow_task_dead_letters WHERE queue = $1 AND lease_id = $2 RETURNING 1"
PURGE: Final = """
WITH gone AS (DELETE FROM @schema@.flow_tasks WHERE run_id = ANY ($1::text[]) RETURNING 1),
buried AS (DELETE FROM @schema@.flow_task_dead_letters WHERE run_id = ANY ($1::text[]) RETURNING 1)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM buried)"""
"""Deletes every task that names one of these runs, as a part of their prune (R51)."""


class _Ask(Protocol):
    def __call__(self, statement: str, *values: object) -> Awaitable[list[tuple[Any, ...]]]: ...


class PostgresTaskRows:
    """`TaskRows` of a PostgreSQL store. `ask` runs what may run twice, `change` what may not; `test_time` is a time that a
    test sets in place of the server's, `clock` the store's as last heard."""

    def __init__(
        self, ask: _Ask, change: _Ask, test_time: Callable[[], int | None], clock: Callable[[], int], channel: str
    ) -> None:
        self._ask = ask
        self._change = change
        self._time = test_time
        self.clock = clock
        self._channel = channel

    async def put(self, queue: str, tasks: Sequence[NewTask], capacity: int | None) -> list[bool | None]:
        """As `TaskRows.put`."""
        ids, texts = [task.task_id for task in tasks], [task.task for task in tasks]
        runs, drives = [task.run_id for task in tasks], [task.drives for task in tasks]
        values = (self._time(), queue, ids, texts, runs, drives, capacity, self._channel)
        return [queued for _, queued in await self._change(PUT, *values)]

    async def take(self, queue: str, lease_id: str, ttl_ns: int) -> TaskRow | None:
        """As `TaskRows.take`."""
        rows = await self._change(TAKE, self._time(), queue, lease_id, ttl_ns)
        return TaskRow(*rows[0]) if rows else None

    async def beat(self, queue: str, lease_id: str, next_id: str, ttl_ns: int) -> bool:
        """As `TaskRows.beat`."""
        # The next id is the caller's and new, so asking again after a lost answer finds it in place.
        return bool(await self._ask(BEAT, self._time(), queue, lease_id, next_id, ttl_ns))

    async def remove(self, queue: str, lease_id: str) -> bool:
        """As `TaskRows.remove`."""
        return bool(await self._change(REMOVE, queue, lease_id))

    async def put_back(self, queue: str, lease_id: str, delay_ns: int, reason: str, limit: int | None) -> bool:
        """As `TaskRows.put_back`."""
        return await self._count(BACK, self._time(), queue, lease_id, delay_ns, reason, limit) > 0

    async def bury(self, queue: str, lease_id: str, reason: str) -> bool:
        """As `TaskRows.bury`."""
        return await self._count(BURY, self._time(), queue, lease_id, reason) > 0

    async def requeue(self, queue: str, cutoff: int) -> int:
        """As `TaskRows.requeue`."""
        return len(await self._change(REQUEUE, queue, cutoff))

    async def bury_older(self, queue: str, cutoff: int, reason: str) -> int:
        """As `TaskRows.bury_older`."""
        return await self._count(BURY_OLDER, self._time(), queue, cutoff, reason)

    async def counts(self, queue: str) -> QueueCounts:
        """As `TaskRows.counts`."""
        ((pending, inflight, dead),) = await self._ask(COUNTS, self._time(), queue)
        return QueueCounts(pending, inflight, dead)

    async def next_at(self, queue: str) -> int | None:
        """As `TaskRows.next_at`."""
        rows = await self._ask(NEXT, queue)
        return rows[0][0] * 1000 if rows else None

    async def dead(self, queue: str, after: tuple[int, str] | None, limit: int) -> list[DeadRow]:
        """As `TaskRows.dead`."""
        at, lease_id = after or (-1000, "")
        return [DeadRow(*row) for row in await self._ask(DEAD, queue, at // 1000, lease_id, limit)]

    async def redrive(self, queue: str, lease_id: str, task_id: str) -> bool:
        """As `TaskRows.redrive`."""
        return await self._count(REDRIVE, self._time(), queue, lease_id, task_id) > 0

    async def drop(self, queue: str, lease_id: str) -> bool:
        """As `TaskRows.drop`."""
        return bool(await self._change(DROP, queue, lease_id))

    async def purge(self, run_id: str) -> int:
        """As `TaskRows.purge`."""
        return await self._count(PURGE, [run_id])

    async def _count(self, statement: str, *values: object) -> int:
        ((count,),) = await self._change(statement, *values)
        return int(count)
