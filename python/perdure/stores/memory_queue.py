"""Task queues in the memory of this process; nothing survives it."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from perdure.stores.leases import microseconds
from perdure.stores.task_rows import DeadRow, NewTask, QueueCounts, TaskRow

__all__ = ["MemoryTaskRows"]


@dataclass(slots=True)
class _Task:
    new: NewTask
    position: int
    enqueued_at: int
    due_at: int
    lease_id: str | None = None
    leased_at: int = 0
    attempts: int = 0
    nacks: int = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.due_at, self.position


@dataclass(slots=True)
class _Queue:
    """The tasks in the order of their instants, by lease, and the runs that have a drive."""

    order: list[tuple[int, int]] = field(default_factory=list)
    tasks: dict[int, _Task] = field(default_factory=dict)
    leased: dict[str, _Task] = field(default_factory=dict)
    drives: set[str | None] = field(default_factory=set)
    dead: dict[str, tuple[DeadRow, bool]] = field(default_factory=dict)

    def add(self, task: _Task) -> None:
        self.tasks[task.position] = task
        insort(self.order, task.place)
        if task.new.drives:
            self.drives.add(task.new.run_id)

    def remove(self, task: _Task) -> None:
        del self.order[bisect_left(self.order, task.place)]
        del self.tasks[task.position]
        if task.lease_id is not None:
            del self.leased[task.lease_id]
        if task.new.drives:
            self.drives.discard(task.new.run_id)

    def move(self, task: _Task, due_at: int, lease_id: str | None) -> None:
        self.remove(task)
        task.due_at, task.lease_id = due_at, lease_id
        self.add(task)
        if lease_id is not None:
            self.leased[lease_id] = task

    def pending(self, at: int) -> int:
        return len(self.tasks) - sum(task.due_at > at for task in self.leased.values())


class MemoryTaskRows:
    """`TaskRows` in memory. For one event loop. `clock` gives ns since 1970."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.clock = clock
        self._queues: dict[str, _Queue] = {}
        self._positions = count(1)

    def _of(self, queue: str) -> _Queue:
        return self._queues.setdefault(queue, _Queue())

    async def put(self, queue: str, tasks: Sequence[NewTask], capacity: int | None) -> list[bool | None]:
        """As `TaskRows.put`."""
        rows, at = self._of(queue), self.clock() // 1000
        pending, answers = rows.pending(at), list[bool | None]()
        for new in tasks:
            if new.drives and new.run_id in rows.drives:
                answers.append(False)
            elif capacity is not None and pending >= capacity:
                answers.append(None)
            else:
                rows.add(_Task(new, next(self._positions), at, at))
                pending += 1
                answers.append(True)
        return answers

    async def take(self, queue: str, lease_id: str, ttl_ns: int) -> TaskRow | None:
        """As `TaskRows.take`."""
        rows, now = self._of(queue), self.clock()
        if not rows.order or rows.order[0][0] > now // 1000:
            return None
        task = rows.tasks[rows.order[0][1]]
        task.attempts += task.lease_id is not None
        rows.move(task, microseconds(now + ttl_ns), lease_id)
        task.leased_at = now // 1000
        new = task.new
        instants = task.enqueued_at * 1000, task.due_at * 1000
        return TaskRow(lease_id, new.task_id, new.task, task.attempts, task.nacks, *instants)

    async def beat(self, queue: str, lease_id: str, next_id: str, ttl_ns: int) -> bool:
        """As `TaskRows.beat`."""
        rows, now = self._of(queue), self.clock()
        task = rows.leased.get(lease_id)
        if task is None:
            return False
        rows.move(task, microseconds(now + ttl_ns), next_id)
        task.leased_at = now // 1000
        return True

    async def remove(self, queue: str, lease_id: str) -> bool:
        """As `TaskRows.remove`."""
        rows = self._of(queue)
        task = rows.leased.get(lease_id)
        if task is not None:
            rows.remove(task)
        return task is not None

    async def put_back(self, queue: str, lease_id: str, delay_ns: int, reason: str, limit: int | None) -> bool:
        """As `TaskRows.put_back`."""
        rows = self._of(queue)
        task = rows.leased.get(lease_id)
        if task is None:
            return False
        task.attempts += limit is not None
        task.nacks += 1
        if limit is not None and task.attempts >= limit:
            self._bury(rows, task, reason)
        else:
            rows.move(task, self.clock() // 1000 + microseconds(delay_ns), None)
        return True

    async def bury(self, queue: str, lease_id: str, reason: str) -> bool:
        """As `TaskRows.bury`."""
        rows = self._of(queue)
        task = rows.leased.get(lease_id)
        if task is not None:
            self._bury(rows, task, reason)
        return task is not None

    async def requeue(self, queue: str, cutoff: int) -> int:
        """As `TaskRows.requeue`."""
        rows = self._of(queue)
        found = [task for task in rows.leased.values() if task.leased_at <= cutoff]
        for task in found:
            rows.move(task, task.enqueued_at, None)
        return len(found)

    async def bury_older(self, queue: str, cutoff: int, reason: str) -> int:
        """As `TaskRows.bury_older`."""
        rows = self._of(queue)
        found = [task for task in rows.leased.values() if task.leased_at <= cutoff]
        for task in found:
            self._bury(rows, task, reason)
        return len(found)

    def _bury(self, rows: _Queue, task: _Task, reason: str) -> None:
        lease_id, new = task.lease_id or "", task.new
        rows.remove(task)
        instants = task.enqueued_at * 1000, self.clock() // 1000 * 1000
        dead = DeadRow(lease_id, new.task_id, new.task, new.run_id, reason, task.attempts, *instants)
        rows.dead[lease_id] = dead, new.drives

    async def counts(self, queue: str) -> QueueCounts:
        """As `TaskRows.counts`."""
        rows = self._of(queue)
        pending = rows.pending(self.clock() // 1000)
        return QueueCounts(pending, len(rows.tasks) - pending, len(rows.dead))

    async def next_at(self, queue: str) -> int | None:
        """As `TaskRows.next_at`."""
        rows = self._of(queue)
        return rows.order[0][0] * 1000 if rows.order else None

    async def dead(self, queue: str, after: tuple[int, str] | None, limit: int) -> list[DeadRow]:
        """As `TaskRows.dead`."""
        places = sorted((row.dead_lettered_at, row.lease_id) for row, _ in self._of(queue).dead.values())
        start = 0 if after is None else bisect_right(places, after)
        return [self._of(queue).dead[lease_id][0] for _, lease_id in places[start : start + limit]]

    async def redrive(self, queue: str, lease_id: str, task_id: str) -> bool:
        """As `TaskRows.redrive`."""
        rows, at = self._of(queue), self.clock() // 1000
        found = rows.dead.pop(lease_id, None)
        if found is None:
            return False
        row, drives = found
        if not (drives and row.run_id in rows.drives):
            rows.add(_Task(NewTask(task_id, row.task, row.run_id, drives), next(self._positions), at, at))
        return True

    async def drop(self, queue: str, lease_id: str) -> bool:
        """As `TaskRows.drop`."""
        return self._of(queue).dead.pop(lease_id, None) is not None

    async def purge(self, run_id: str) -> int:
        """As `TaskRows.purge`."""
        gone = 0
        for rows in self._queues.values():
            tasks = [task for task in rows.tasks.values() if task.new.run_id == run_id]
            dead = [lease_id for lease_id, (row, _) in rows.dead.items() if row.run_id == run_id]
            for task in tasks:
                rows.remove(task)
            for lease_id in dead:
                del rows.dead[lease_id]
            gone += len(tasks) + len(dead)
        return gone
