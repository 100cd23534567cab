"""Blocks of a workflow: `cleanup`, `timeout` and `wait_for` (R39, R65)."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Generator
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from perdure.coroutine.chain import Chain, Rank, Shield, Signal
from perdure.coroutine.groups import close_unstarted, pass_over
from perdure.coroutine.handles import Handle, WaitHandle
from perdure.coroutine.places import Place, place_of
from perdure.coroutine.signals import BranchCancelled
from perdure.wire import whole_ms

if TYPE_CHECKING:
    from perdure.coroutine.replay import Replay

__all__ = ["AWAITING", "INSIDE", "Cleanup", "Limited", "Timeout", "awaiting"]

T = TypeVar("T")


class Cleanup:
    """`async with ctx.cleanup():` keeps cancellation off until the outermost block ends."""

    __slots__ = ("_chain", "_replay", "_shield")

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._shield = Shield()
        self._chain: Chain | None = None

    async def __aenter__(self) -> None:
        replay = self._replay
        if replay.absent():
            return
        self._chain = chain = replay.current_chain()
        fault = replay.fault_at(chain)
        if fault is not None:
            raise replay.end_pass(replay.raised(fault))
        chain.shelter(self._shield)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        chain = self._chain
        if chain is None or self._replay.over:
            return
        self._replay.lowered(self._shield)
        if error is None:
            chain.raise_pending()  # after a failure it is raised at the next await, so that neither is lost


class Timeout:
    """`async with ctx.timeout(delay):` raises `TimeoutError` if the block takes longer."""

    def __init__(self, replay: Replay, delay: timedelta, place: Place) -> None:
        self._replay, self._place = replay, place
        self._delay, self._delay_ms = delay, whole_ms("delay", delay, 0)
        self._chain: Chain | None = None
        self._timer: WaitHandle | None = None
        self._shields: tuple[Shield, ...] = ()
        self._error: BranchCancelled | None = None

    async def __aenter__(self) -> None:
        replay = self._replay
        if replay.absent():
            return
        self._chain = chain = replay.current_chain()
        self._shields = tuple(chain.shields)
        self._timer = timer = WaitHandle(replay, self._place, "timeout", None, self._delay_ms)
        timer.seen = True
        timer.open(chain)
        timer.watch(self)

    def wake(self, handle: Handle[Any]) -> None:
        """The timer resolved; one that the cancellation request took away limits nothing any more."""
        chain, timer = self._chain, self._timer
        if chain is not None and timer is not None and timer.ended == "wait_completed":
            self._error = BranchCancelled(f"timed out after {self._delay}")
            chain.interrupt(Signal(Rank.TIMEOUT, self._error, self._shields, self))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        chain, timer = self._chain, self._timer
        if chain is None or timer is None or self._replay.over:
            return
        timer.unwatch(self)
        timer.close()
        chain.forget(self)
        if error is not None and error is self._error:
            raise TimeoutError(str(error)) from error


class Limited(Generic[T]):
    """`ctx.wait_for(awaitable, delay)`: the awaitable inside a time limit."""

    called = "wait_for"

    def __init__(self, replay: Replay, awaitable: Awaitable[T], delay: timedelta, place: Place) -> None:
        if not hasattr(awaitable, "__await__"):
            raise TypeError(f"wait_for takes something to await, not {type(awaitable).__name__}")
        self._replay, self._awaitable = replay, awaitable
        self._timeout = Timeout(replay, delay, place)
        self.place = place
        replay.idle[self] = None

    def __await__(self) -> Generator[Any, Any, T]:
        replay = self._replay
        replay.idle.pop(self, None)
        try:
            if replay.over:
                yield from replay.refuse()
            replay.enter(place_of(sys._getframe(1)))
        except BaseException:
            pass_over(replay, [self._awaitable])
            raise
        return (yield from self._inside().__await__())

    def forget(self) -> None:
        """It will never be awaited."""
        close_unstarted([self._awaitable])

    async def _inside(self) -> T:
        async with self._timeout:
            return await self._awaitable


async def awaiting(awaitable: Awaitable[T]) -> T:
    """Any awaitable as a coroutine, for a chain."""
    return await awaitable


INSIDE: Final = Limited._inside.__code__
AWAITING: Final = awaiting.__code__
"""Code of ours that awaits for the user: the place of such an await is the one that led here."""
