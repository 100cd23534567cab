"""A store in the memory of this process: for tests, for trying things out, and as the oracle of the other stores."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TypeVar

from perdure.errors import FlowError, RunNotFound
from perdure.retention import Digest, HistoryHold, Tombstone
from perdure.stores.base import Append, Committed
from perdure.stores.bell import Bell
from perdure.stores.index import MemoryIndex
from perdure.stores.indexed import IndexedStore
from perdure.stores.rules import check_call, lines_after, refusal

__all__ = ["MemoryEventStore"]

T = TypeVar("T")


class _Log:
    """One run's commits, in order."""

    __slots__ = ("commits", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.commits: list[bytes] = []


class MemoryEventStore(IndexedStore):
    """Keeps histories and index in memory; nothing survives the process.

    `clock` gives ns since 1970-01-01T00:00:00Z (R45). `close` frees nothing, so that a second engine can go on with the
    same store as if the first had died.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        super().__init__(clock)
        self._logs: dict[str, _Log] = {}
        self._rows = MemoryIndex()
        self._tombstones: dict[str, Tombstone] = {}
        self._bell = Bell()
        self._lock = RLock()  # a blocking caller and an event loop may share one store

    def __repr__(self) -> str:
        return f"<MemoryEventStore: {len(self._logs)} runs>"

    async def commit(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        """As `FlowEventStore.commit`; never raises but `ValueError` for two batches of one run."""
        check_call(appends)
        answers: dict[str, Committed | FlowError] = {}
        with self._lock:
            now = self._clock()
            for append in sorted(appends, key=lambda append: append.batch.run_id):
                answers[append.batch.run_id] = self._commit(append, now)
        self._bell.ring()
        return [answers[append.batch.run_id] for append in appends]

    def _commit(self, append: Append, now: int) -> Committed | FlowError:
        batch, index = append.batch, self._rows
        refused = refusal(append, index.state(batch.run_id), now, index)
        if refused is not None:
            return refused
        if batch.lines:
            log = self._logs.setdefault(batch.run_id, _Log())
            log.firsts.append(batch.first_sequence)
            log.commits.append(batch.lines)
        return Committed(batch.last_sequence, now, index.accept(append, now))

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """As `FlowEventStore.history`."""
        with self._lock:
            log = self._logs.get(run_id)
            if log is None:
                raise RunNotFound(run_id)
            start = bisect_right(log.firsts, max(after, 0) + 1) - 1
            return lines_after(log.commits[start], log.firsts[start], after) + b"".join(log.commits[start + 1 :])

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowEventStore.wait_for_change`."""
        return await self._bell.wait(self.changes, seen, timeout_seconds)

    async def close(self) -> None:
        """Does nothing: memory is freed with the object."""

    async def tombstone(self, run_id: str) -> Tombstone | None:
        """As `FlowEventStore.tombstone`."""
        with self._lock:
            return self._tombstones.get(run_id)

    def _bury(self, run_ids: Sequence[str], deleted_at: int) -> None:
        for run_id in run_ids:
            digest = Digest(run_id, self._rows.state(run_id).last_sequence)
            for lines in self._logs[run_id].commits:
                digest.add(lines)
            self._tombstones[run_id] = digest.tombstone(deleted_at)

    def _forget(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            del self._logs[run_id]

    def _keep_history_holds(self, run_id: str, holds: Collection[HistoryHold]) -> None:
        pass

    @contextmanager
    def _index(self, run_id: str | None = None) -> Iterator[MemoryIndex]:
        with self._lock:
            yield self._rows

    async def _alone(self, work: Callable[[], T]) -> T:
        with self._lock:
            done = work()
        self._bell.ring()
        return done
