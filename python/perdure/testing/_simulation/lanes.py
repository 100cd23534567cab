"""Processes in one thread: an event loop on virtual time whose callbacks belong to lanes, one lane per simulated process.

Inside a lane callbacks run in the order asyncio promises; between lanes the seed chooses. A lane can be held back for a
while (a process that is stopped) or ended at once (one that is killed: nothing of it ever runs again).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final, TypeVar
from warnings import catch_warnings, simplefilter

from perdure.testing.virtual_time import VirtualTimeLoop

__all__ = ["Lane", "LaneLoop", "Spinning"]

_T = TypeVar("_T")
_MOST_TURNS: Final = 5_000
"""Callbacks at one instant."""
_LANE: Final[ContextVar[Lane]] = ContextVar("perdure_simulation_lane")


class Spinning(RuntimeError):
    """Callbacks call each other without end, and time does not pass."""


class Lane:
    """One simulated process: its callbacks that are ready, and the tasks it began. A thread of it is a lane of its own."""

    def __init__(self, name: str, skew_ns: int = 0) -> None:
        self.name = name
        self.skew_ns = skew_ns  # by how much the clock of this machine is wrong
        self.threads: list[Lane] = []
        self.dead = False
        self.paused = False
        self.queue: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = copy_context()
        self.context.run(_LANE.set, self)

    def __repr__(self) -> str:
        return self.name


class _Ready:
    """Stands in for the loop's queue of callbacks: a queue per lane, and the seed's choice among them."""

    def __init__(self, main: Lane, random: Random) -> None:
        self._main = main
        self._random = random
        self._runnable: list[Lane] = []
        self.turns = 0

    def __len__(self) -> int:
        return sum(len(lane.queue) for lane in self._runnable)

    def __bool__(self) -> bool:
        return bool(self._runnable)

    def append(self, handle: asyncio.Handle) -> None:
        context: Context = handle._context  # type: ignore[attr-defined]  # who asked for it: asyncio has no public way
        lane = context.get(_LANE, self._main)
        if lane.dead:
            return
        lane.queue.append(handle)
        if not lane.paused and len(lane.queue) == 1:
            self._runnable.append(lane)

    def extend(self, handles: Iterable[asyncio.Handle]) -> None:
        for handle in handles:
            self.append(handle)

    def popleft(self) -> asyncio.Handle:
        """The next callback of some lane."""
        self.turns += 1
        if self.turns > _MOST_TURNS:
            raise Spinning(f"time stands still while callbacks go on and on in {self._runnable[0]}")
        count = len(self._runnable)
        lane = self._runnable[int(self._random.random() * count) if count > 1 else 0]
        handle = lane.queue.popleft()
        if not lane.queue:
            self._runnable.remove(lane)
        return handle

    def hold_back(self, lane: Lane) -> None:
        if lane in self._runnable:
            self._runnable.remove(lane)

    def let_go_on(self, lane: Lane) -> None:
        if lane.queue and lane not in self._runnable:
            self._runnable.append(lane)

    def clear(self) -> None:
        for lane in self._runnable:
            lane.queue.clear()
        self._runnable.clear()


class LaneLoop(VirtualTimeLoop):
    """The loop. `random` chooses between lanes; `main` is the lane of whoever is in none."""

    def __init__(self, start_ns: int, random: Random) -> None:
        super().__init__(start_ns)
        self.main = Lane("director")
        self.lanes: list[Lane] = [self.main]
        self._queues = _Ready(self.main, random)
        self._ready: Any = self._queues

    def new_lane(self, name: str, skew_ns: int = 0) -> Lane:
        """A process that has just been started."""
        lane = Lane(name, skew_ns)
        self.lanes.append(lane)
        return lane

    def new_thread(self, of: Lane) -> Lane:
        """A thread of a process. It is stopped and killed with it, and goes on while only the process's loop is blocked."""
        lane = self.new_lane(f"{of.name}/thread", of.skew_ns)
        lane.dead, lane.paused = of.dead, of.paused
        of.threads.append(lane)
        return lane

    def own_clock_ns(self) -> int:
        """What the machine of the process that is running takes for the time."""
        return self.clock_ns() + self.current_lane().skew_ns

    def jump(self) -> bool:
        before = self.clock_ns()
        moves = super().jump()
        if self.clock_ns() != before:
            self._queues.turns = 0
        return moves

    def _run_once(self) -> None:
        """One turn: a callback of some lane, or the jump to the next timer. Nothing from outside is ever waited for, so the
        base loop's look at its sockets, which costs more than all the rest, is left out."""
        if not self._queues:
            if not self.jump():
                self.stand_still()
            return
        handle = self._queues.popleft()
        if not handle.cancelled():
            handle._run()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        context = options.get("context")
        lane = _LANE.get(self.main) if context is None else context.get(_LANE, self.main)
        lane.tasks.append(task)
        return task

    def spawn(self, lane: Lane, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Runs `work` as a task of `lane`."""
        return self.create_task(work, context=lane.context.copy())

    def current_lane(self) -> Lane:
        """The lane whose callback is running."""
        return _LANE.get(self.main)

    def pause(self, lane: Lane, *, threads: bool = True) -> None:
        """Holds back all callbacks of the lane; without `threads` only its loop is blocked."""
        for one in (lane, *(lane.threads if threads else ())):
            one.paused = True
            self._queues.hold_back(one)

    def go_on(self, lane: Lane) -> None:
        """Ends a pause."""
        for one in (lane, *lane.threads):
            one.paused = False
            if not one.dead:
                self._queues.let_go_on(one)

    def kill(self, lane: Lane) -> None:
        """Ends the lane and its threads: what they have under way never goes on."""
        for one in (lane, *lane.threads):
            one.dead = True
            self._queues.hold_back(one)
            one.queue.clear()

    def bury(self) -> None:
        """Frees what killed lanes left half done; their clean-up code runs, and whatever it asks for is refused."""
        for task in (task for lane in self.lanes if lane.dead for task in lane.tasks if not task.done()):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is pending is the point
            close: Callable[[], None] = getattr(task.get_coro(), "close", lambda: None)
            with suppress(BaseException), catch_warnings():
                simplefilter("ignore")  # of coroutines that never began
                close()
