"""How a worker looks for held runs that its own build may repair (R43)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from perdure.engine import FlowEngine
from perdure.payload import decode
from perdure.stores.base import Claimed, RunFilter, RunRecord
from perdure.stores.leases import Wanted

__all__ = ["HeldRuns"]

_BETWEEN_LOOKS: Final = 30.0
_PAGE: Final = 1_000


class HeldRuns:
    """Looks through the held runs at the start and every 30 s, if the worker's build is set. It reads first: held runs of
    which none is for this build cost no write lock."""

    def __init__(self, engine: FlowEngine, wanted: Wanted) -> None:
        self._engine = engine
        self._wanted = wanted
        self._build = engine.leasing.build
        self.next_look: float | None = None if self._build is None else 0.0
        """When they are looked through again; None for never."""

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return self.next_look is not None and now >= self.next_look

    async def claim(self, k: int, besides: Collection[str], now: float) -> list[Claimed]:
        """Up to `k` held runs that no drive of this build has failed on, if it is time to look; there may be more if there
        are as many."""
        if self._build is None or not self.is_due(now):
            return []
        wanted = self._wanted._replace(besides=besides)
        claimed: list[Claimed] = []
        if await self._any(self._build, wanted):
            claimed = await self._engine.store.claim_held(
                self._engine.owner,
                k,
                build=self._build,
                workflows=wanted.workflows,
                builds=wanted.builds,
                besides=besides,
                ttl_ns=self._engine.leasing.ttl_ns,
            )
        if len(claimed) < k:
            self.next_look = now + _BETWEEN_LOOKS
        return claimed

    async def _any(self, build: str, wanted: Wanted) -> bool:
        after = None
        while True:
            page = await self._engine.store.runs(RunFilter(held=True), after=after, limit=_PAGE)
            if any(_may_try(run, build, wanted) for run in page.runs):
                return True
            if page.next is None:
                return False
            after = page.next


def _may_try(run: RunRecord, build: str, wanted: Wanted) -> bool:
    if run.hold is None or run.run_id in wanted.besides or not wanted.includes(run.name, run.version, run.build):
        return False
    caused: Collection[str] = decode(run.hold.encode()).get("builds", ())
    return build not in caused
