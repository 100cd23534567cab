"""What the stores whose index is in memory answer alike: every question but a run's history, and every change of leases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from perdure.errors import LeaseLost
from perdure.stores import leases
from perdure.stores.base import (
    ActiveHook,
    Claimed,
    LeaseState,
    Outlook,
    RunFilter,
    RunnablePage,
    RunPage,
    RunSummary,
    Wakeup,
)
from perdure.stores.index import MemoryIndex
from perdure.stores.indexed_retention import IndexedRetention
from perdure.stores.leases import Wanted
from perdure.stores.rules import ALL_RUNS, check_limit

__all__ = ["IndexedStore"]

T = TypeVar("T")


class IndexedStore(IndexedRetention):
    """A store that answers out of a `MemoryIndex`. `clock` is the store's, ns (R45)."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock

    # what a store says of itself -----------------------------------------------------------------------------

    def _index(self, run_id: str | None = None) -> AbstractContextManager[MemoryIndex]:
        """The index, while nobody else changes it. Raises what stands in the way of an answer, or of one about this run."""
        raise NotImplementedError

    async def _alone(self, work: Callable[[], T]) -> T:
        """Runs `work`, which changes the index, while nothing is committed."""
        raise NotImplementedError

    def _keep_hold(self, run_id: str, hold: str) -> None:
        """Makes a hold that was just set durable."""

    def _drop_hold(self, run_id: str) -> None:
        """Makes durable that a hold ends, before it does. What it raises leaves the run held."""

    # questions -----------------------------------------------------------------------------------------------

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        """As `FlowEventStore.list_due_wakeups`."""
        check_limit(limit)
        with self._index() as index:
            return index.due(now, limit)

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """As `FlowEventStore.next_scheduled_wakeup`."""
        with self._index() as index:
            return index.next_wakeup()

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """As `FlowEventStore.find_active_hooks`."""
        with self._index() as index:
            return index.find_hooks(token_hash)

    async def list_active_hooks(self) -> list[ActiveHook]:
        """As `FlowEventStore.list_active_hooks`."""
        with self._index() as index:
            return index.hooks()

    async def runs(self, filter: RunFilter = ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
        """As `FlowEventStore.runs`."""
        check_limit(limit)
        with self._index() as index:
            return index.runs(filter, after, limit)

    async def run_ids(self) -> list[str]:
        """As `FlowEventStore.run_ids`."""
        with self._index() as index:
            return index.run_ids()

    async def summary(self) -> RunSummary:
        """As `FlowEventStore.summary`."""
        with self._index() as index:
            return index.summary()

    async def summary_by_build(self) -> dict[str | None, RunSummary]:
        """As `FlowEventStore.summary_by_build`."""
        with self._index() as index:
            return index.summary_by_build()

    async def runnable(self, now: int, *, after: tuple[int, str] | None = None, limit: int = 1000) -> RunnablePage:
        """As `FlowEventStore.runnable`."""
        check_limit(limit)
        with self._index() as index:
            return index.runnable(now, self._clock(), after, limit)

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> int | None:
        """As `FlowEventStore.next_claim`."""
        with self._index() as index:
            return index.next_claim(Wanted(workflows, builds, besides))

    async def outlook(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> Outlook:
        """As `FlowEventStore.outlook`."""
        with self._index() as index:
            claim_at = index.next_claim(Wanted(workflows, builds, besides))
            return Outlook(self._clock(), claim_at, tuple(index.owners()))

    async def lease(self, run_id: str) -> LeaseState:
        """As `FlowEventStore.lease`."""
        with self._index(run_id) as index:
            state = index.known(run_id)
            return leases.state_of(state.lease, state.last_sequence, self._clock())

    async def last_sequences(self, run_ids: Collection[str]) -> dict[str, int]:
        """As `FlowEventStore.last_sequences`."""
        with self._index() as index:
            return {run_id: index.state(run_id).last_sequence for run_id in run_ids if index.exists(run_id)}

    async def changes(self) -> int:
        """As `FlowEventStore.changes`. Nobody else writes."""
        with self._index() as index:
            return index.changes

    def elsewhere(self) -> None:
        """As `FlowEventStore.elsewhere`: locks guard the index, so this one serves every loop."""

    def clock(self) -> int:
        """As `FlowEventStore.clock`."""
        return self._clock()

    # leases --------------------------------------------------------------------------------------------------

    async def claim(
        self,
        owner: str,
        k: int,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds, besides)

        def work() -> list[Claimed]:
            with self._index() as index:
                return index.claim(owner, k, wanted, ttl_ns, self._clock())

        return await self._alone(work)

    async def claim_held(
        self,
        owner: str,
        k: int,
        *,
        build: str,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim_held`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds, besides)

        def work() -> list[Claimed]:
            with self._index() as index:
                return index.claim_held(owner, k, build, wanted, ttl_ns, self._clock())

        return await self._alone(work)

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """As `FlowEventStore.renew`."""

        def work() -> list[tuple[str, int] | LeaseLost]:
            with self._index() as index:
                return index.renew(owner, pairs, ttl_ns, self._clock())

        return await self._alone(work)

    async def void(self, owner: str) -> int:
        """As `FlowEventStore.void`."""

        def work() -> int:
            with self._index() as index:
                return index.void(owner)

        return await self._alone(work)

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        """As `FlowEventStore.set_hold`."""

        def work() -> bool:
            with self._index(run_id) as index:
                held = index.set_hold(run_id, hold, expected_sequence, self._clock())
            if held:
                self._keep_hold(run_id, hold)
            return held

        return await self._alone(work)

    async def release_hold(self, run_id: str) -> bool:
        """As `FlowEventStore.release_hold`."""

        def work() -> bool:
            with self._index(run_id) as index:
                held = index.known(run_id).lease.hold is not None
            if held:
                self._drop_hold(run_id)
                with self._index() as index:
                    index.release_hold(run_id)
            return held

        return await self._alone(work)
