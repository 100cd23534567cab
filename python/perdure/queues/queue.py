"""Task queues: what every queue does, and ours, in memory or in the tables of an SQL store (spec 08 §8.3, R45, R46)."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Final, Protocol

from perdure.codec import PayloadCodec
from perdure.dispatcher import FlowTaskDispatcher
from perdure.errors import (
    InvalidWorkerConfiguration,
    PayloadCodecFailed,
    QueueBackpressure,
    Serialization,
    TaskLeaseLost,
)
from perdure.instant import Instant
from perdure.stores.base import FlowEventStore
from perdure.stores.bell import Bell
from perdure.stores.memory_queue import MemoryTaskRows
from perdure.stores.task_rows import MAX_MICROSECONDS, DeadRow, NewTask, TaskRow, TaskRows, saturated
from perdure.task_codec import read_task, write_task
from perdure.task_kinds import FlowTask
from perdure.tasks import backoff_ns
from perdure.wire import Moment, moment_ns

__all__ = ["DeadTask", "DurableTaskQueue", "FlowTaskQueue", "MemoryTaskQueue", "TaskLease"]

_log = logging.getLogger("perdure")
_LEASE_ID: Final = re.compile(r"[0-9a-f]{32}")
_RANDOM: Final = Random()
_REDRIVE: Final = "a3s-flow-redrive:"
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")
_NANOSECONDS: Final = timedelta(microseconds=1)
_EVERY: Final = 1_000_000
_LOOK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class TaskLease:
    """A task that is ours until `expires_at`. `attempts`: how often it came back counted or its lease ran out; `nacks`: how
    often it came back at all."""

    lease_id: str
    task: FlowTask
    attempts: int
    nacks: int
    enqueued_at: Instant
    expires_at: Instant


@dataclass(frozen=True, slots=True)
class DeadTask:
    """A task that was set aside. `lease_id` is the lease it had then, and its name for `redrive` and `drop`; `task` is None
    if it cannot be read, and `raw` its JSON, which may hold a token."""

    lease_id: str
    task: FlowTask | None
    reason: str
    attempts: int
    enqueued_at: Instant
    dead_lettered_at: Instant
    run_id: str | None
    raw: bytes = field(repr=False)


class FlowTaskQueue(FlowTaskDispatcher, Protocol):
    """A queue of tasks under leases, which end by themselves on the queue's clock. It dispatches unpinned work; a
    `RuntimeBuildTaskRouter` gives each build a queue of its own.

    A lease id is a value: unknown, replaced or taken back, it is `TaskLeaseLost`, and the task is untouched. A lease that ran
    out is still its holder's until somebody else leases the task."""

    lease_ttl: timedelta

    async def enqueue(self, task: FlowTask) -> bool:
        """Adds a task at the end. False for one that only drives its run, if another such task of the run is pending or
        leased (R46). Raises `QueueBackpressure`."""
        ...

    async def lease(self) -> TaskLease | None:
        """Takes the first task; None if there is none to be had now."""
        ...

    async def heartbeat(self, lease_id: str) -> str:
        """Renews a lease and gives its new id; the old one is dead."""
        ...

    async def ack(self, lease_id: str) -> None:
        """The task is done."""
        ...

    async def nack(self, lease_id: str, *, reason: str, delay: timedelta = ..., counted: bool = True) -> None:
        """The task comes back after a delay. `counted`: set aside instead, with the reason, if that was the last attempt."""
        ...

    async def dead_letter(self, lease_id: str, reason: str) -> None:
        """Sets a task aside."""
        ...

    async def next_at(self) -> int | None:
        """The first instant at which there is a task to lease, ns; None for an empty queue."""
        ...

    async def changes(self) -> int:
        """A number that differs from the one before if a task may have been added between."""
        ...

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """`changes()` as soon as it may differ from `seen`, at most after the time-out. A hint."""
        ...

    def clock(self) -> int:
        """The queue's clock, ns."""
        ...


class _RowsQueue(FlowTaskQueue):
    """A queue over `TaskRows`."""

    def __init__(
        self,
        rows: TaskRows,
        name: str,
        lease_ttl: timedelta,
        max_attempts: int,
        max_pending: int | None,
        codec: PayloadCodec | None = None,
    ) -> None:
        if not _NAME.fullmatch(name) or not name.strip():
            raise InvalidWorkerConfiguration(f"{name!r} is no name for a queue; use 1 to 200 printable characters")
        if lease_ttl < timedelta(milliseconds=1):
            raise InvalidWorkerConfiguration(f"lease_ttl is {lease_ttl}; a task lease lasts at least 1 ms")
        for what, value in (("max_attempts", max_attempts), ("max_pending", 1 if max_pending is None else max_pending)):
            if value < 1:
                raise InvalidWorkerConfiguration(f"{what} is {value}; it must be at least 1")
        self.name = name
        self.lease_ttl = lease_ttl
        self.max_attempts = max_attempts
        self.max_pending = max_pending
        self._rows = rows
        self._codec = codec
        self._ttl_ns = _ns(lease_ttl)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    # adding ---------------------------------------------------------------------------------------------------

    async def enqueue(self, task: FlowTask) -> bool:
        """As `FlowTaskQueue.enqueue`."""
        (added,) = await self.enqueue_many([task])
        return added

    async def enqueue_many(self, tasks: Sequence[FlowTask]) -> list[bool]:
        """`enqueue` of each, in one transaction. Raises `QueueBackpressure` when no more fit; those before are queued."""
        new = [NewTask(uuid.uuid4().hex, write_task(task, self._codec), task.target, task.drives) for task in tasks]
        answers = await self._rows.put(self.name, new, self.max_pending) if new else []
        if self.max_pending is not None and None in answers:
            raise QueueBackpressure((await self._rows.counts(self.name)).pending, self.max_pending)
        return [bool(answer) for answer in answers]

    async def dispatch(self, task: FlowTask) -> bool:
        """As `enqueue`."""
        return await self.enqueue(task)

    async def dispatch_many(self, build: str | None, tasks: Sequence[FlowTask]) -> list[bool | None]:
        """As `FlowTaskDispatcher.dispatch_many`."""
        self.ensure_runtime_build_route(build)
        return [*await self.enqueue_many(tasks)]

    # leases ---------------------------------------------------------------------------------------------------

    async def lease(self) -> TaskLease | None:
        """As `FlowTaskQueue.lease`. A task that cannot be read, or whose leases ran out `max_attempts` times, is set aside on
        the way."""
        while (row := await self._rows.take(self.name, uuid.uuid4().hex, self._ttl_ns)) is not None:
            lease = await self._readable(row)
            if lease is not None:
                return lease
        return None

    async def _readable(self, row: TaskRow) -> TaskLease | None:
        if row.attempts >= self.max_attempts:
            reason = f"lease_expired: its workers ended {row.attempts} times without a word"
            await self._rows.bury(self.name, row.lease_id, reason)
            return None
        try:
            task = read_task(row.task, self._codec)
        except PayloadCodecFailed as error:  # another worker may have the key that is missing here
            delay_ns = backoff_ns(row.nacks, _RANDOM)
            await self._rows.put_back(self.name, row.lease_id, delay_ns, f"{error.code}: {error}", self.max_attempts)
            return None
        except Serialization as error:
            _log.warning("task %s of queue %s cannot be read and was set aside: %s", row.task_id, self.name, error)
            await self._rows.bury(self.name, row.lease_id, f"{error.code}: {error}")
            return None
        enqueued_at, expires_at = Instant(row.enqueued_at), Instant(row.expires_at)
        return TaskLease(row.lease_id, task, row.attempts, row.nacks, enqueued_at, expires_at)

    async def heartbeat(self, lease_id: str) -> str:
        """As `FlowTaskQueue.heartbeat`."""
        next_id = uuid.uuid4().hex
        if not (_is_one(lease_id) and await self._rows.beat(self.name, lease_id, next_id, self._ttl_ns)):
            raise TaskLeaseLost(lease_id)
        return next_id

    async def ack(self, lease_id: str) -> None:
        """As `FlowTaskQueue.ack`."""
        if not (_is_one(lease_id) and await self._rows.remove(self.name, lease_id)):
            raise TaskLeaseLost(lease_id)

    async def nack(self, lease_id: str, *, reason: str, delay: timedelta = timedelta(), counted: bool = True) -> None:
        """As `FlowTaskQueue.nack`."""
        limit = self.max_attempts if counted else None
        delay_ns = max(0, _ns(delay))
        if not (_is_one(lease_id) and await self._rows.put_back(self.name, lease_id, delay_ns, reason, limit)):
            raise TaskLeaseLost(lease_id)

    async def dead_letter(self, lease_id: str, reason: str) -> None:
        """As `FlowTaskQueue.dead_letter`."""
        if not (_is_one(lease_id) and await self._rows.bury(self.name, lease_id, reason)):
            raise TaskLeaseLost(lease_id)

    async def dequeue(self) -> FlowTask | None:
        """Takes the first task for good: a lease and its ack."""
        lease = await self.lease()
        if lease is None:
            return None
        await self.ack(lease.lease_id)
        return lease.task

    # for operators --------------------------------------------------------------------------------------------

    async def requeue_inflight(self) -> int:
        """Takes back all leases, each task to its old place; how many. For leases that would run out too late."""
        return await self._rows.requeue(self.name, MAX_MICROSECONDS)

    async def requeue_inflight_older_than(self, cutoff: Moment | int) -> int:
        """The same for leases given, or last renewed, at `cutoff` or before; also as ns since 1970, however large."""
        return await self._rows.requeue(self.name, _cutoff(cutoff))

    async def dead_letter_inflight_older_than(self, cutoff: Moment | int, reason: str) -> int:
        """Sets aside the tasks whose leases were given, or last renewed, at `cutoff` or before; how many."""
        return await self._rows.bury_older(self.name, _cutoff(cutoff), reason)

    async def len(self) -> int:
        """How many tasks are pending, those that came back and wait among them; not those that are leased or set aside."""
        return (await self._rows.counts(self.name)).pending

    async def is_empty(self) -> bool:
        """Whether no task is pending."""
        return await self.len() == 0

    async def inflight_len(self) -> int:
        """How many tasks are leased."""
        return (await self._rows.counts(self.name)).inflight

    async def dead_letter_len(self) -> int:
        """How many tasks are set aside."""
        return (await self._rows.counts(self.name)).dead

    async def dead_lettered_tasks(self, *, after: tuple[int, str] | None = None, limit: int = _EVERY) -> list[DeadTask]:
        """Tasks set aside, oldest first, past `after`: (time in ns, lease id)."""
        return [_dead_task(row, self._codec) for row in await self._rows.dead(self.name, after, limit)]

    async def redrive(self, lease_id: str) -> bool:
        """Enqueues a task that was set aside again, with all its attempts before it and past any capacity. False the second
        time: the new task's id follows from the lease, so nothing a crash cuts off is done twice."""
        if not _is_one(lease_id):
            return False
        task_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{_REDRIVE}{lease_id}").hex
        return await self._rows.redrive(self.name, lease_id, task_id)

    async def drop(self, lease_id: str) -> bool:
        """Deletes a task that was set aside. False if there is none of that lease."""
        return _is_one(lease_id) and await self._rows.drop(self.name, lease_id)

    async def purge_run(self, run_id: str) -> int:
        """Deletes every task that names the run, in all queues of the store, also those set aside; how many."""
        return await self._rows.purge(run_id)

    # waiting --------------------------------------------------------------------------------------------------

    async def next_at(self) -> int | None:
        """As `FlowTaskQueue.next_at`."""
        return await self._rows.next_at(self.name)

    def clock(self) -> int:
        """As `FlowTaskQueue.clock`."""
        return self._rows.clock()


class MemoryTaskQueue(_RowsQueue):
    """Tasks in the memory of this process; none survives it, and the scheduler finds again what was lost.

    `lease_ttl`: how long a task is its worker's without a heartbeat. `max_attempts`: how often it comes back counted before it
    is set aside. `max_pending`: how many may wait (`QueueBackpressure`). `clock` gives ns since 1970; take the store's."""

    def __init__(
        self,
        name: str = "default",
        *,
        clock: Callable[[], int] = time.time_ns,
        lease_ttl: timedelta = timedelta(seconds=30),
        max_attempts: int = 20,
        max_pending: int | None = None,
    ) -> None:
        super().__init__(MemoryTaskRows(clock), name, lease_ttl, max_attempts, max_pending)
        self._bell = Bell()
        self._added = 0

    async def enqueue_many(self, tasks: Sequence[FlowTask]) -> list[bool]:
        """As `DurableTaskQueue.enqueue_many`."""
        try:
            return await super().enqueue_many(tasks)
        finally:
            self._added += 1
            self._bell.ring()

    async def changes(self) -> int:
        """As `FlowTaskQueue.changes`."""
        return self._added

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowTaskQueue.wait_for_change`."""
        return await self._bell.wait(self.changes, seen, timeout_seconds, _LOOK_SECONDS)


class DurableTaskQueue(_RowsQueue):
    """Tasks in the tables of an SQL store, beside the runs they are about. Queues of one name are one queue, in whatever
    process; other names are others. The arguments are those of `MemoryTaskQueue`; the clock is the store's. `codec` is that of
    the engine, if it has one, so that payloads lie in no table in plain text (R42).

    Raises `InvalidWorkerConfiguration` for a store that has no such tables."""

    def __init__(
        self,
        store: FlowEventStore,
        name: str = "default",
        *,
        lease_ttl: timedelta = timedelta(seconds=30),
        max_attempts: int = 20,
        max_pending: int | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        make_rows: Callable[[], TaskRows] | None = getattr(store, "task_rows", None)
        if make_rows is None:
            raise InvalidWorkerConfiguration(
                f"{type(store).__name__} keeps no task queues; use an SQLite or PostgreSQL store, or a MemoryTaskQueue"
            )
        super().__init__(make_rows(), name, lease_ttl, max_attempts, max_pending, codec)
        self._store = store

    async def changes(self) -> int:
        """As `FlowTaskQueue.changes`: anything the store commits counts."""
        return await self._store.changes()

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowTaskQueue.wait_for_change`."""
        return await self._store.wait_for_change(seen, timeout_seconds)


def _is_one(lease_id: object) -> bool:
    return isinstance(lease_id, str) and _LEASE_ID.fullmatch(lease_id) is not None


def _cutoff(cutoff: Moment | int) -> int:
    return saturated(cutoff if isinstance(cutoff, int) else moment_ns("cutoff", cutoff))


def _ns(duration: timedelta) -> int:
    return duration // _NANOSECONDS * 1000


def _dead_task(row: DeadRow, codec: PayloadCodec | None) -> DeadTask:
    try:
        task = read_task(row.task, codec)
    except Serialization:
        task = None
    instants = Instant(row.enqueued_at), Instant(row.dead_lettered_at)
    return DeadTask(row.lease_id, task, row.reason, row.attempts, *instants, row.run_id, row.task)
