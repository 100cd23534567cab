"""A store in the memory of this process: for tests, for trying things out, and as the oracle of the other stores."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from threading import Lock

from perdure.errors import FlowError, RunNotFound
from perdure.kernel import Batch
from perdure.stores.base import ActiveHook, Append, Committed, RunFilter, RunPage, RunSummary, Wakeup
from perdure.stores.index import MemoryIndex
from perdure.stores.rules import ALL_RUNS, check_call, check_limit, lines_after, refusal

__all__ = ["MemoryEventStore"]


class _Log:
    """One run's commits, in order."""

    __slots__ = ("commits", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.commits: list[bytes] = []


class MemoryEventStore:
    """Keeps histories and index in memory; nothing survives the process.

    `clock` gives ns since 1970-01-01T00:00:00Z (R45). `close` frees nothing, so that a second engine can go on with the
    same store as if the first had died.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._index = MemoryIndex()
        self._lock = Lock()  # a blocking caller and an event loop may share one store

    def __repr__(self) -> str:
        return f"<MemoryEventStore: {len(self._logs)} runs>"

    async def commit(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        """As `FlowEventStore.commit`; never raises but `ValueError` for two batches of one run."""
        batches = [append.batch for append in appends]
        check_call(batches)
        answers: dict[str, Committed | FlowError] = {}
        with self._lock:
            for batch in sorted(batches, key=lambda batch: batch.run_id):
                answers[batch.run_id] = self._commit(batch)
        return [answers[batch.run_id] for batch in batches]

    def _commit(self, batch: Batch) -> Committed | FlowError:
        refused = refusal(batch, self._index)
        if refused is not None:
            return refused
        if batch.lines:
            log = self._logs.setdefault(batch.run_id, _Log())
            log.firsts.append(batch.first_sequence)
            log.commits.append(batch.lines)
            self._index.apply(batch)
        return Committed(batch.last_sequence)

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """As `FlowEventStore.history`."""
        with self._lock:
            log = self._logs.get(run_id)
            if log is None:
                raise RunNotFound(run_id)
            start = bisect_right(log.firsts, max(after, 0) + 1) - 1
            return lines_after(log.commits[start], log.firsts[start], after) + b"".join(log.commits[start + 1 :])

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        """As `FlowEventStore.list_due_wakeups`."""
        check_limit(limit)
        with self._lock:
            return self._index.due(now, limit)

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """As `FlowEventStore.next_scheduled_wakeup`."""
        with self._lock:
            return self._index.next_wakeup()

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """As `FlowEventStore.find_active_hooks`."""
        with self._lock:
            return self._index.find_hooks(token_hash)

    async def list_active_hooks(self) -> list[ActiveHook]:
        """As `FlowEventStore.list_active_hooks`."""
        with self._lock:
            return self._index.hooks()

    async def runs(self, filter: RunFilter = ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
        """As `FlowEventStore.runs`."""
        check_limit(limit)
        with self._lock:
            return self._index.runs(filter, after, limit)

    async def run_ids(self) -> list[str]:
        """As `FlowEventStore.run_ids`."""
        with self._lock:
            return self._index.run_ids()

    async def summary(self) -> RunSummary:
        """As `FlowEventStore.summary`."""
        with self._lock:
            return self._index.summary()

    async def close(self) -> None:
        """Does nothing: memory is freed with the object."""

    def clock(self) -> int:
        """As `FlowEventStore.clock`."""
        return self._clock()
