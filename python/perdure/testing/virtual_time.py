"""An asyncio event loop on which time passes only when nothing else can happen.

The clock stands still while a callback is ready, and while work is under way that the loop knows of and cannot see:

* what `run_in_executor` and `asyncio.to_thread` run, and what stands inside `outside_work()`, until it is done;
* a `def` step of an engine on this loop, until its function returned, at most `step_patience` of real time (5 s) after it was
  handed to a thread. A step that takes longer is taken to hang, or to wait for time to pass: time goes on without it, so that
  its time limit can end it. What it returns later counts as ever.

Work on other threads is not known: a loop of another thread, `BlockingFlowEngine` among them, and threads that a test starts.

Once the loop is idle its clock jumps to the next timer. Timers due at one instant fire in the order of their `Phase`, and inside
one phase in the order they were made; after each phase the loop runs until it is idle again. So a test that sleeps for
hours takes milliseconds, and every run of it interleaves alike, but for threads that work side by side.

No real clock moves this one: `time.sleep` in a step takes real time and no virtual time. A `def` step that blocks until this
loop's time has passed waits for something that waits for it; it goes on after `step_patience`. `docs/testing.md` says how
workflows are tested with it.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, TypeVar, TypeVarTuple

__all__ = ["Phase", "StoodStill", "VirtualTimeLoop", "run"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_NS: Final = 1_000_000_000
_REAL_PATIENCE_S: Final = 60.0
_STEP_PATIENCE: Final = timedelta(seconds=5)


class Phase(IntEnum):
    """Who is served first at one instant."""

    OTHERS = 0  # calls of other clients
    STEPS = 1  # attempts that end, and engines that learn of what others appended
    TIMERS = 2  # everything scheduled through the loop's own methods


class StoodStill(RuntimeError):
    """Something is awaited, and nothing is left that could bring it about: no callback is ready, no timer may fire, no `def` step
    is waited for, and no other thread has told this loop of anything for 60 s of real time."""


class _Selector(selectors.DefaultSelector):
    """The real selector; asked to wait, it lets the loop move its clock instead."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0 or self.loop.jump():
            return events
        # Only a thread can go on from here; it wakes this selector when it has.
        patience = self.loop.step_patience_left()
        if patience is None:
            events = super().select(_REAL_PATIENCE_S)
            if not events:
                self.loop.stand_still()
            return events
        return super().select(patience)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop. `start_ns` is what its clock shows first, in ns since 1970-01-01T00:00:00Z; `step_patience` is for how long, in
    real time, its clock stands still for one `def` step."""

    def __init__(self, start_ns: int, *, step_patience: timedelta = _STEP_PATIENCE) -> None:
        self._origin = self._now = start_ns
        self._timers: list[tuple[int, int, int, asyncio.TimerHandle]] = []
        self._serial = 0
        self._outside = 0
        self._patience_s = step_patience.total_seconds()
        # Under way on threads, oldest first, and until when on the monotonic clock this loop's time waits for them.
        self._steps: dict[object, float] = {}
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def clock_ns(self) -> int:
        """The instant it is, in ns since 1970-01-01T00:00:00Z."""
        return self._now

    def time(self) -> float:
        """Seconds since the loop was made."""
        return (self._now - self._origin) / _NS

    @contextmanager
    def outside_work(self) -> Iterator[None]:
        """Time stands still inside: something runs that the loop cannot see. To be entered and left on the loop's thread."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    def watch_step(self, work: Callable[[], None]) -> Callable[[], None]:
        """Time stands still until `work`, which is about to be handed to a thread, is done or `step_patience` is over. Gives what
        the thread is to run in its place. `perdure.threads.StepThreads` calls this on the loop's thread."""
        step = object()
        self._steps[step] = time.monotonic() + self._patience_s

        def watched() -> None:
            try:
                work()
            finally:
                with suppress(RuntimeError):  # the loop is closed: its time is over
                    self.call_soon_threadsafe(self._steps.pop, step, None)  # after what the work told the loop

        return watched

    def step_patience_left(self) -> float | None:
        """Real seconds for which time still stands still for the oldest step on a thread; None if it does for none."""
        if not self._steps:
            return None
        return max(next(iter(self._steps.values())) - time.monotonic(), 0.0)

    def call_at_ns(
        self,
        when_ns: int,
        phase: Phase,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Calls back at `when_ns`, or when the loop is next idle if that is past."""
        when_ns = max(when_ns, self._now)
        handle = asyncio.TimerHandle((when_ns - self._origin) / _NS, callback, args, self, context)
        self._serial += 1
        heapq.heappush(self._timers, (when_ns, phase, self._serial, handle))
        return handle

    async def sleep_until_ns(self, when_ns: int, phase: Phase = Phase.TIMERS) -> None:
        """Sleeps until `when_ns`; one already past still lets everything that is ready run first."""
        woken: asyncio.Future[None] = self.create_future()
        handle = self.call_at_ns(when_ns, phase, _wake, woken)
        try:
            await woken
        finally:
            handle.cancel()

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at_ns(self._now + _whole_ns(delay), Phase.TIMERS, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when_ns = max(self._origin + round(when * _NS), self._now + (when > self.time()))
        return self.call_at_ns(when_ns, Phase.TIMERS, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        future = super().run_in_executor(executor, func, *args)
        self._outside += 1
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _: object) -> None:
        self._outside -= 1

    def jump(self) -> bool:
        """Moves to the next instant and phase that has a timer and makes its timers ready. False if it must not or cannot."""
        while self._timers and self._timers[0][3].cancelled():
            heapq.heappop(self._timers)
        while self.step_patience_left() == 0:  # it hangs
            del self._steps[next(iter(self._steps))]
        if self._outside or self._steps or not self._timers:
            return False
        self._now, phase = self._timers[0][:2]
        ready: Any = self._ready  # type: ignore[attr-defined]  # the base loop's queue of callbacks
        while self._timers and self._timers[0][:2] == (self._now, phase):
            ready.append(heapq.heappop(self._timers)[3])
        return True

    def stand_still(self) -> None:
        """Ends `run_until_complete` by `StoodStill`."""
        waiting = sorted(str(task.get_coro()) for task in asyncio.all_tasks(self))
        raise StoodStill(f"nothing can happen any more; waiting: {'; '.join(waiting)}")


def _whole_ns(delay: float) -> int:
    """At least one for any delay at all: whoever sleeps out a rounding error must get on."""
    return max(round(delay * _NS), int(delay > 0))


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def run(
    main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, _T]],
    start_ns: int,
    *,
    step_patience: timedelta = _STEP_PATIENCE,
) -> _T:
    """Runs `main(loop)` on a `VirtualTimeLoop` of its own and gives its result. `start_ns` is what the clock shows first, in ns
    since 1970-01-01T00:00:00Z, and `step_patience` for how long in real time it stands still for one `def` step. Raises what
    `main` raises, `StoodStill`, and `RuntimeError` where a loop is running already."""
    loop = VirtualTimeLoop(start_ns, step_patience=step_patience)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
