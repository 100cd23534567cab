"""The way from a simulated process to what others serve: requests and answers take time, are lost, or come late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, Protocol, TypeVar

from perdure.errors import OutcomeUnknown, StoreUnavailable
from perdure.testing._simulation.audit import Auditor, Party
from perdure.testing._simulation.chance import Chance
from perdure.testing._simulation.lanes import Lane, LaneLoop
from perdure.testing.virtual_time import Phase

__all__ = ["Hints", "Host", "Way"]

T = TypeVar("T")
_MOST_CALLS: Final = 1_500
_MOST_CALLS_PER_SECOND: Final = 10
"""More calls than any of these small worlds needs: something spins."""


class Host(Protocol):
    """The process a client belongs to."""

    party: Party
    lane: Lane
    closed: bool

    def crash(self) -> None:
        """Ends the process, now."""
        ...

    def note(self, text: str) -> None:
        """Writes a line of the trace."""
        ...

    def race(self, run_id: str) -> None:
        """Lets somebody else make a call on the run."""
        ...


class Hints:
    """Tells those who wait that something has changed. A part of the hints is lost: nobody may rely on one."""

    def __init__(self, random: Random, part: float) -> None:
        self._random = random
        self._part = part
        self._waiting: list[asyncio.Future[None]] = []
        self.count = 0

    def ring(self) -> None:
        """Something has changed."""
        self.count += 1
        self._waiting = [heard for heard in self._waiting if not heard.done()]
        for heard in self._waiting:
            if self._random.random() < self._part:
                heard.set_result(None)

    async def wait(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowEventStore.wait_for_change`."""
        if self.count == seen and timeout_seconds > 0:
            heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(heard)
            try:
                await asyncio.wait([heard], timeout=timeout_seconds)
            finally:
                heard.cancel()
        return self.count


class Way:
    """The way of one process. Once that is dead nothing it asks for arrives."""

    def __init__(self, auditor: Auditor, chance: Chance, loop: LaneLoop, host: Host, lag_ns: int) -> None:
        self._auditor = auditor
        self._medium = auditor.medium
        self._chance = chance
        self._loop = loop
        self._host = host
        self._lag_ns = lag_ns
        self._began_ns = loop.clock_ns()
        self.calls = 0

    def clock(self) -> int:
        """The clock of the other side as it was last heard, and the time since (R45)."""
        return self._loop.clock_ns() - self._lag_ns

    async def _travel(self) -> int:
        if self._host.lane.dead:
            await self._loop.create_future()  # whoever gets here is being buried
        way = self._chance.way_ns()
        if way is not None:
            await self._loop.sleep_until_ns(self._loop.clock_ns() + way, Phase.STEPS)
        return way or 0

    async def _die(self) -> None:
        self._host.note("crashes")
        self._host.crash()
        await self._loop.create_future()

    def _count(self) -> None:
        self.calls += 1
        most = _MOST_CALLS + _MOST_CALLS_PER_SECOND * (self._loop.clock_ns() - self._began_ns) // 1_000_000_000
        if self.calls > most:
            self._auditor.fail("R3", f"{self._host.party.name} has made {self.calls} calls, something spins")

    def _unavailable(self, name: str, *run_ids: str) -> StoreUnavailable:
        self._excuse(f"{name} {' '.join(run_ids)}: unavailable", run_ids)
        return StoreUnavailable("the simulation lost this request")

    def _unknown(self, name: str, *run_ids: str) -> OutcomeUnknown:
        self._excuse(f"{name} {' '.join(run_ids)}: outcome unknown", run_ids)
        return OutcomeUnknown("the simulation lost this answer")

    def _excuse(self, said: str, run_ids: tuple[str, ...]) -> None:
        self._host.party.mishaps += 1
        self._host.note(said)
        for run_id in run_ids:
            self._host.party.excuse(run_id)

    async def _ask(self, name: str, call: Callable[[], T], *run_ids: str, changes: bool = False) -> T:
        """Any request but a commit. `changes`: whether it must not be made twice, so that its outcome may be unknown."""
        self._count()
        await self._travel()
        fate = self._chance.of_request(self._loop.clock_ns())
        if fate == "crash_before":
            await self._die()
        if fate == "unavailable" or (fate == "applied_unknown" and not changes):
            raise self._unavailable(name, *run_ids)
        try:
            answer = call()
        except Exception:
            await self._travel()
            raise
        if fate == "applied_unknown":
            raise self._unknown(name, *run_ids)
        self._lag_ns = min(self._lag_ns, await self._travel())
        return answer

    async def _read(self, name: str, call: Coroutine[Any, Any, T], *run_ids: str, changes: bool = False) -> T:
        try:
            return await self._ask(name, lambda: self._medium.run(call), *run_ids, changes=changes)
        finally:
            call.close()
