"""The thread of renewals of a simulated process, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from perdure.leasing import LeaseKeeper, RenewalThread
from perdure.testing._simulation.lanes import Lane, LaneLoop

__all__ = ["SimulatedRenewals"]


class SimulatedRenewals(RenewalThread):
    """Renews as the thread does, in a lane of its own: it goes on while the process's loop is blocked, and is stopped and
    killed with the process."""

    def __init__(self, keeper: LeaseKeeper, loop: LaneLoop) -> None:
        lane = loop.current_lane()
        self._keeper = keeper
        self._told = _Into(loop, lane)  # type: ignore[assignment]  # all that is asked of a loop here
        self._over = asyncio.Event()
        self._task = loop.spawn(loop.new_thread(lane), self._renew())

    async def end(self, *, wait: bool) -> None:
        """As `RenewalThread.end`."""
        self._over.set()
        if wait:
            await asyncio.wait([self._task])

    async def _ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()


class _Into:
    """Calls back in another lane, as `call_soon_threadsafe` does in another thread."""

    def __init__(self, loop: LaneLoop, lane: Lane) -> None:
        self._loop = loop
        self._lane = lane

    def call_soon_threadsafe(self, callback: Callable[..., object], *given: object) -> None:
        self._loop.call_soon(callback, *given, context=self._lane.context.copy())
