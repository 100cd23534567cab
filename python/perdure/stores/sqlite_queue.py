"""Task queues in SQLite: the tables of migration 0004, in the file of the runs they are about."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from perdure.stores.leases import microseconds
from perdure.stores.task_rows import DeadRow, NewTask, QueueCounts, TaskRow

__all__ = ["SqliteTaskRows", "purge_tasks"]

T = TypeVar("T")

_PENDING: Final = "queue = ? AND (lease_id IS NULL OR due_at <= ?)"
_HAS_DRIVE: Final = "SELECT 1 FROM flow_tasks WHERE queue = ? AND run_id = ? AND drives = 1"
_PUT: Final = """
INSERT INTO flow_tasks (queue, task_id, run_id, drives, task, enqueued_at, due_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING"""
_NEXT: Final = "SELECT due_at FROM flow_tasks WHERE queue = ? ORDER BY due_at, position LIMIT 1"
TAKE: Final = """
UPDATE flow_tasks SET lease_id = ?, due_at = ?, leased_at = ?, attempts = attempts + (lease_id IS NOT NULL)
WHERE position = (
    SELECT position FROM flow_tasks WHERE queue = ? AND due_at <= ? ORDER BY due_at, position LIMIT 1)
RETURNING lease_id, task_id, task, attempts, nacks, enqueued_at * 1000, due_at * 1000"""
_BEAT: Final = "UPDATE flow_tasks SET lease_id = ?, due_at = ?, leased_at = ? WHERE queue = ? AND lease_id = ?"
_REMOVE: Final = "DELETE FROM flow_tasks WHERE queue = ? AND lease_id = ?"
_BACK: Final = """
UPDATE flow_tasks SET lease_id = NULL, leased_at = NULL, due_at = ?, nacks = nacks + 1, attempts = attempts + ?
WHERE queue = ? AND lease_id = ?"""
_REQUEUE: Final = """
UPDATE flow_tasks SET lease_id = NULL, leased_at = NULL, due_at = enqueued_at
WHERE queue = ? AND lease_id IS NOT NULL AND leased_at <= ?"""
_BURY: Final = """
INSERT OR REPLACE INTO flow_task_dead_letters
SELECT queue, lease_id, task_id, run_id, drives, task, ?, attempts + ?, enqueued_at, ? FROM flow_tasks
WHERE queue = ? AND lease_id IS NOT NULL AND """
_DEAD: Final = """
SELECT lease_id, task_id, task, run_id, reason, attempts, enqueued_at * 1000, dead_lettered_at * 1000
FROM flow_task_dead_letters WHERE queue = ? AND (dead_lettered_at, lease_id) > (?, ?)
ORDER BY dead_lettered_at, lease_id LIMIT ?"""
_REDRIVE: Final = """
INSERT INTO flow_tasks (queue, task_id, run_id, drives, task, enqueued_at, due_at)
SELECT queue, ?, run_id, drives, task, ?, ? FROM flow_task_dead_letters WHERE queue = ? AND lease_id = ?
ON CONFLICT DO NOTHING"""
_DROP: Final = "DELETE FROM flow_task_dead_letters WHERE queue = ? AND lease_id = ?"


class _Read(Protocol):
    def __call__(self, query: Callable[[sqlite3.Connection], T]) -> Awaitable[T]: ...


class _Transact(Protocol):
    def __call__(self, work: Callable[[sqlite3.Connection, int], T]) -> Awaitable[T]: ...


class SqliteTaskRows:
    """`TaskRows` of an SQLite store, by its readers and its one writer."""

    def __init__(self, read: _Read, transact: _Transact, clock: Callable[[], int]) -> None:
        self._read = read
        self._transact = transact
        self.clock = clock

    async def put(self, queue: str, tasks: Sequence[NewTask], capacity: int | None) -> list[bool | None]:
        """As `TaskRows.put`. A scheduler whose tasks are all there already takes no lock."""

        def is_there(db: sqlite3.Connection) -> bool:
            return all(t.drives and db.execute(_HAS_DRIVE, (queue, t.run_id)).fetchone() for t in tasks)

        if await self._read(is_there):
            return [False for _ in tasks]

        def work(db: sqlite3.Connection, now: int) -> list[bool | None]:
            at, room = now // 1000, None
            if capacity is not None:
                limited = f"SELECT count(*) FROM (SELECT 1 FROM flow_tasks WHERE {_PENDING} LIMIT ?)"
                room = capacity - db.execute(limited, (queue, at, capacity)).fetchone()[0]
            answers: list[bool | None] = []
            for task in tasks:
                if task.drives and db.execute(_HAS_DRIVE, (queue, task.run_id)).fetchone():
                    answers.append(False)
                elif room is not None and room <= 0:
                    answers.append(None)
                else:
                    values = (queue, task.task_id, task.run_id, task.drives, task.task, at, at)
                    answers.append(db.execute(_PUT, values).rowcount > 0)
                    room = None if room is None else room - bool(answers[-1])
            return answers

        return await self._transact(work)

    async def take(self, queue: str, lease_id: str, ttl_ns: int) -> TaskRow | None:
        """As `TaskRows.take`. An idle look takes no lock."""
        due = await self.next_at(queue)
        if due is None or due // 1000 > self.clock() // 1000:
            return None

        def work(db: sqlite3.Connection, now: int) -> TaskRow | None:
            values = (lease_id, microseconds(now + ttl_ns), now // 1000, queue, now // 1000)
            found = db.execute(TAKE, values).fetchall()
            return TaskRow(*found[0]) if found else None

        return await self._transact(work)

    async def beat(self, queue: str, lease_id: str, next_id: str, ttl_ns: int) -> bool:
        """As `TaskRows.beat`."""

        def work(db: sqlite3.Connection, now: int) -> bool:
            values = (next_id, microseconds(now + ttl_ns), now // 1000, queue, lease_id)
            return db.execute(_BEAT, values).rowcount > 0

        return await self._transact(work)

    async def remove(self, queue: str, lease_id: str) -> bool:
        """As `TaskRows.remove`."""
        return await self._transact(lambda db, now: db.execute(_REMOVE, (queue, lease_id)).rowcount > 0)

    async def put_back(self, queue: str, lease_id: str, delay_ns: int, reason: str, limit: int | None) -> bool:
        """As `TaskRows.put_back`."""

        def work(db: sqlite3.Connection, now: int) -> bool:
            if limit is not None and _bury(
                db, queue, now, reason, 1, "lease_id = ? AND attempts + 1 >= ?", lease_id, limit
            ):
                return True
            values = (now // 1000 + microseconds(delay_ns), int(limit is not None), queue, lease_id)
            return db.execute(_BACK, values).rowcount > 0

        return await self._transact(work)

    async def bury(self, queue: str, lease_id: str, reason: str) -> bool:
        """As `TaskRows.bury`."""
        return await self._transact(lambda db, now: _bury(db, queue, now, reason, 0, "lease_id = ?", lease_id) > 0)

    async def requeue(self, queue: str, cutoff: int) -> int:
        """As `TaskRows.requeue`."""
        return await self._transact(lambda db, now: db.execute(_REQUEUE, (queue, cutoff)).rowcount)

    async def bury_older(self, queue: str, cutoff: int, reason: str) -> int:
        """As `TaskRows.bury_older`."""
        return await self._transact(lambda db, now: _bury(db, queue, now, reason, 0, "leased_at <= ?", cutoff))

    async def counts(self, queue: str) -> QueueCounts:
        """As `TaskRows.counts`."""

        def query(db: sqlite3.Connection) -> QueueCounts:
            def count(table: str, where: str, *values: object) -> int:
                return int(db.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0])

            pending = count("flow_tasks", _PENDING, queue, self.clock() // 1000)
            every, dead = count("flow_tasks", "queue = ?", queue), count("flow_task_dead_letters", "queue = ?", queue)
            return QueueCounts(pending, every - pending, dead)

        return await self._read(query)

    async def next_at(self, queue: str) -> int | None:
        """As `TaskRows.next_at`."""
        row = await self._read(lambda db: db.execute(_NEXT, (queue,)).fetchone())
        return None if row is None else row[0] * 1000

    async def dead(self, queue: str, after: tuple[int, str] | None, limit: int) -> list[DeadRow]:
        """As `TaskRows.dead`."""
        at, lease_id = after or (-1000, "")
        rows = await self._read(lambda db: db.execute(_DEAD, (queue, at // 1000, lease_id, limit)).fetchall())
        return [DeadRow(*row) for row in rows]

    async def redrive(self, queue: str, lease_id: str, task_id: str) -> bool:
        """As `TaskRows.redrive`."""

        def work(db: sqlite3.Connection, now: int) -> bool:
            db.execute(_REDRIVE, (task_id, now // 1000, now // 1000, queue, lease_id))
            return db.execute(_DROP, (queue, lease_id)).rowcount > 0

        return await self._transact(work)

    async def drop(self, queue: str, lease_id: str) -> bool:
        """As `TaskRows.drop`."""
        return await self._transact(lambda db, now: db.execute(_DROP, (queue, lease_id)).rowcount > 0)

    async def purge(self, run_id: str) -> int:
        """As `TaskRows.purge`."""
        return await self._transact(lambda db, now: purge_tasks(db, run_id))


def purge_tasks(db: sqlite3.Connection, run_id: str) -> int:
    """Deletes every task that names the run, inside a transaction; how many."""
    tables = ("flow_tasks", "flow_task_dead_letters")
    return sum(db.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,)).rowcount for table in tables)


def _bury(db: sqlite3.Connection, queue: str, now: int, reason: str, more: int, where: str, *values: Any) -> int:
    """Moves the leased tasks that `where` means; `more` attempts are added to theirs."""
    db.execute(_BURY + where, (reason, more, now // 1000, queue, *values))
    return db.execute(
        f"DELETE FROM flow_tasks WHERE queue = ? AND lease_id IS NOT NULL AND {where}", (queue, *values)
    ).rowcount
