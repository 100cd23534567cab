"""A store in the memory of this process: for tests, for trying things out, and as the oracle of the other stores."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from threading import Lock

from perdure.errors import FlowError, LeaseLost, RunNotFound
from perdure.stores import leases
from perdure.stores.base import (
    ActiveHook,
    Append,
    Claimed,
    Committed,
    LeaseState,
    RunFilter,
    RunPage,
    RunSummary,
    Wakeup,
)
from perdure.stores.index import MemoryIndex
from perdure.stores.leases import Columns, RunState, Wanted
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
        self._changes = 0
        self._lock = Lock()  # a blocking caller and an event loop may share one store

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
        return [answers[append.batch.run_id] for append in appends]

    def _commit(self, append: Append, now: int) -> Committed | FlowError:
        batch, index = append.batch, self._index
        row = index.state(batch.run_id)
        refused = refusal(append, row, now, index)
        if refused is not None:
            return refused
        if batch.lines:
            log = self._logs.setdefault(batch.run_id, _Log())
            log.firsts.append(batch.first_sequence)
            log.commits.append(batch.lines)
            index.apply(batch)
        columns, epoch = leases.committed(row.lease, append, now, lambda: index.earliest(batch.run_id))
        self._set(batch.run_id, columns)
        return Committed(batch.last_sequence, now, epoch)

    def _set(self, run_id: str, row: Columns) -> None:
        self._index.leases[run_id] = row
        self._changes += 1

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

    async def claim(
        self,
        owner: str,
        k: int,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim`."""
        check_limit(k, "k")
        with self._lock:
            return self._claimed(self._index.claim(owner, k, Wanted(workflows, builds), ttl_ns, self._clock()))

    async def claim_held(
        self,
        owner: str,
        k: int,
        *,
        build: str,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim_held`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds)
        with self._lock:
            return self._claimed(self._index.claim_held(owner, k, build, wanted, ttl_ns, self._clock()))

    def _claimed(self, runs: list[Claimed]) -> list[Claimed]:
        self._changes += len(runs)
        return runs

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
    ) -> int | None:
        """As `FlowEventStore.next_claim`."""
        with self._lock:
            return self._index.next_claim(Wanted(workflows, builds))

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """As `FlowEventStore.renew`."""
        answers: list[tuple[str, int] | LeaseLost] = []
        with self._lock:
            now = self._clock()
            for run_id, epoch in pairs:
                state = self._index.state(run_id)
                row = leases.renewed(state.lease, owner, epoch, ttl_ns, now)
                if row is None:
                    answers.append(LeaseLost(run_id))
                else:
                    self._set(run_id, row)
                    answers.append((run_id, state.last_sequence))
        return answers

    async def lease(self, run_id: str) -> LeaseState:
        """As `FlowEventStore.lease`."""
        with self._lock:
            state = self._known(run_id)
            return leases.state_of(state.lease, state.last_sequence, self._clock())

    async def last_sequences(self, run_ids: Collection[str]) -> dict[str, int]:
        """As `FlowEventStore.last_sequences`."""
        with self._lock:
            return {run_id: self._index.state(run_id).last_sequence for run_id in run_ids if self._index.exists(run_id)}

    async def void(self, owner: str) -> int:
        """As `FlowEventStore.void`."""
        with self._lock:
            run_ids = self._index.leases.owned_by(owner)
            for run_id in run_ids:
                self._set(run_id, leases.voided(self._index.leases[run_id]))
        return len(run_ids)

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        """As `FlowEventStore.set_hold`."""
        with self._lock:
            state = self._known(run_id)
            row = leases.held(state, hold, expected_sequence, self._clock())
            if row is not None:
                self._set(run_id, row)
        return row is not None

    async def release_hold(self, run_id: str) -> bool:
        """As `FlowEventStore.release_hold`."""
        with self._lock:
            row = leases.hold_released(self._known(run_id).lease)
            if row is not None:
                self._set(run_id, row)
        return row is not None

    def _known(self, run_id: str) -> RunState:
        if not self._index.exists(run_id):
            raise RunNotFound(run_id)
        return self._index.state(run_id)

    async def changes(self) -> int:
        """As `FlowEventStore.changes`."""
        return self._changes

    async def close(self) -> None:
        """Does nothing: memory is freed with the object."""

    def clock(self) -> int:
        """As `FlowEventStore.clock`."""
        return self._clock()
