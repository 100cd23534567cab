"""The rows of a task queue, as bytes: what a store keeps of tasks, and the protocol by which queues reach it (spec 08 §8.3,
R45, R46).

A row has one instant, `due_at`: a pending task may be leased from then on, a leased one is another's from then on. So leases
end by themselves, and who looks for work reads the first row of one index. Instants are the store's clock in microseconds;
the end of a lease is rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = ["MAX_MICROSECONDS", "DeadRow", "NewTask", "QueueCounts", "TaskRow", "TaskRows", "saturated"]

MAX_MICROSECONDS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to enqueue. `drives`: it only drives its run, of which a queue takes one at a time (R46)."""

    task_id: str
    task: bytes = field(repr=False)
    run_id: str | None
    drives: bool


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A leased task. `attempts`: how often it came back counted, or its lease ran out; `nacks`: how often it came back at
    all. Instants in ns."""

    lease_id: str
    task_id: str
    task: bytes = field(repr=False)
    attempts: int
    nacks: int
    enqueued_at: int
    expires_at: int


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A task that was set aside, known by the lease it had then. Instants in ns."""

    lease_id: str
    task_id: str
    task: bytes = field(repr=False)
    run_id: str | None
    reason: str
    attempts: int
    enqueued_at: int
    dead_lettered_at: int


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many tasks wait for a worker, are leased, and are set aside. One whose lease has run out waits again."""

    pending: int = 0
    inflight: int = 0
    dead: int = 0


class TaskRows(Protocol):
    """The rows of all queues of one store. Each call is one transaction; what it answers with False has changed nothing.
    Raises what the store raises."""

    async def put(self, queue: str, tasks: Sequence[NewTask], capacity: int | None) -> list[bool | None]:
        """Adds tasks at the end. For each: True; False for a drive whose run has one already; None for one that finds
        `capacity` tasks pending."""
        ...

    async def take(self, queue: str, lease_id: str, ttl_ns: int) -> TaskRow | None:
        """Leases the task whose instant came first; None if there is none."""
        ...

    async def beat(self, queue: str, lease_id: str, next_id: str, ttl_ns: int) -> bool:
        """Renews a lease under another id; the old one is dead. A lease that ran out and that nobody took is still its
        holder's, as of runs."""
        ...

    async def remove(self, queue: str, lease_id: str) -> bool:
        """The task is done."""
        ...

    async def put_back(self, queue: str, lease_id: str, delay_ns: int, reason: str, limit: int | None) -> bool:
        """The task comes back after a delay. With `limit` this counts as an attempt, and the task is set aside if it is
        the last one."""
        ...

    async def bury(self, queue: str, lease_id: str, reason: str) -> bool:
        """Sets the task aside."""
        ...

    async def requeue(self, queue: str, cutoff: int) -> int:
        """Takes back what was leased, or last renewed, at `cutoff` (microseconds) or before; each to its old place."""
        ...

    async def bury_older(self, queue: str, cutoff: int, reason: str) -> int:
        """Sets aside what was leased, or last renewed, at `cutoff` (microseconds) or before."""
        ...

    async def counts(self, queue: str) -> QueueCounts:
        """How many there are."""
        ...

    async def next_at(self, queue: str) -> int | None:
        """The first instant at which there is a task to lease, ns; None for an empty queue."""
        ...

    async def dead(self, queue: str, after: tuple[int, str] | None, limit: int) -> list[DeadRow]:
        """Tasks set aside, by (time in ns, lease id), past `after`."""
        ...

    async def redrive(self, queue: str, lease_id: str, task_id: str) -> bool:
        """Enqueues a task that was set aside again, as `task_id`, past any capacity. Of two drives of one run one will do."""
        ...

    async def drop(self, queue: str, lease_id: str) -> bool:
        """Deletes a task that was set aside."""
        ...

    async def purge(self, run_id: str) -> int:
        """Deletes every task that names the run, also those set aside; how many."""
        ...

    def clock(self) -> int:
        """The store's clock, ns."""
        ...


def saturated(cutoff_ns: int) -> int:
    """A cut-off in microseconds, rounded down, that fits the columns whatever it was."""
    return min(max(cutoff_ns // 1000, -MAX_MICROSECONDS), MAX_MICROSECONDS)
