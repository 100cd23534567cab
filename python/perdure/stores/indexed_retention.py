"""Retention in the stores whose index is in memory: what may go is read off the index, and how a history goes is said by the
store (R51)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from perdure.errors import RunConflict, RunNotFound
from perdure.retention import HistoryHold, Part, Standing, check_hold, may_go
from perdure.stores.index import MemoryIndex
from perdure.stores.retaining import Retaining
from perdure.stores.rules import check_limit

__all__ = ["IndexedRetention"]

T = TypeVar("T")


class IndexedRetention(Retaining):
    """A store that answers out of a `MemoryIndex`."""

    # what a store says of itself -----------------------------------------------------------------------------

    def _index(self, run_id: str | None = None) -> AbstractContextManager[MemoryIndex]:
        """The index, while nobody else changes it. Raises what stands in the way of an answer, or of one about this run."""
        raise NotImplementedError

    async def _alone(self, work: Callable[[], T]) -> T:
        """Runs `work`, which changes the index, while nothing is committed."""
        raise NotImplementedError

    def clock(self) -> int:
        """As `FlowEventStore.clock`."""
        raise NotImplementedError

    def _bury(self, run_ids: Sequence[str], deleted_at: int) -> None:
        """Makes the tombstones of these runs durable. What it raises leaves the runs as they were."""
        raise NotImplementedError

    def _forget(self, run_ids: Sequence[str]) -> None:
        """Deletes the histories of these runs, which have tombstones."""
        raise NotImplementedError

    def _keep_history_holds(self, run_id: str, holds: Collection[HistoryHold]) -> None:
        """Makes durable which retention holds a run has. What it raises leaves them as they were."""
        raise NotImplementedError

    # retention -----------------------------------------------------------------------------------------------

    async def _standings(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        with self._index() as index:
            return _standings(index, run_ids)

    async def _delete(self, parts: Sequence[Part], cutoff: int) -> list[bool]:
        def work() -> list[bool]:
            with self._index() as index:
                standings = _standings(index, (run_id for part in parts for run_id in part.looked_at))
            gone = [may_go(part, standings, cutoff) for part in parts]
            buried = [run_id for part, is_gone in zip(parts, gone, strict=True) if is_gone for run_id in part.run_ids]
            self._bury(buried, self.clock())
            with self._index() as index:
                for run_id in buried:
                    index.remove(run_id)
            self._forget(buried)
            return gone

        return await self._alone(work)

    async def hold_history(self, run_id: str, hold_id: str, reason: str) -> bool:
        """As `FlowEventStore.hold_history`."""
        check_hold(hold_id, reason)

        def work() -> bool:
            with self._index(run_id) as index:
                if not index.exists(run_id):
                    raise RunConflict(run_id, "pruned") if index.pruned(run_id) else RunNotFound(run_id)
                holds = dict(index.history_holds.get(run_id, {}))
            there = holds.get(hold_id)
            if there is not None:
                if there.reason != reason:
                    raise RunConflict(run_id, "history_hold")
                return False
            holds[hold_id] = HistoryHold(run_id, hold_id, reason, self.clock())
            self._set_history_holds(run_id, holds)
            return True

        return await self._alone(work)

    async def release_history(self, run_id: str, hold_id: str) -> bool:
        """As `FlowEventStore.release_history`."""

        def work() -> bool:
            with self._index(run_id) as index:
                holds = dict(index.history_holds.get(run_id, {}))
            if holds.pop(hold_id, None) is None:
                return False
            self._set_history_holds(run_id, holds)
            return True

        return await self._alone(work)

    def _set_history_holds(self, run_id: str, holds: dict[str, HistoryHold]) -> None:
        self._keep_history_holds(run_id, holds.values())
        with self._index() as index:
            index.history_holds.pop(run_id, None)
            if holds:
                index.history_holds[run_id] = holds

    async def history_holds(
        self, run_id: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[HistoryHold]:
        """As `FlowEventStore.history_holds`."""
        check_limit(limit)
        with self._index() as index:
            found = [index.history_holds.get(run_id, {})] if run_id is not None else index.history_holds.values()
            holds = {(hold.run_id, hold.hold_id): hold for part in found for hold in part.values()}
        return [holds[key] for key in sorted(holds) if after is None or key > after][:limit]


def _standings(index: MemoryIndex, run_ids: Iterable[str]) -> dict[str, Standing]:
    return {
        run_id: Standing(
            index.record(run_id),
            run_id in index.history_holds,
            frozenset(linked for linked in index.linked(run_id) if not index.pruned(linked)),
        )
        for run_id in run_ids
    }
