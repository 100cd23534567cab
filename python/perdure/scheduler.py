"""`FlowScheduler`: sends a task for every run that has something to do (R46, spec 08 §8.1)."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure.dispatcher import as_dispatcher
from perdure.errors import InvalidWorkerConfiguration, RuntimeBuildRouteNotFound, StoreError
from perdure.instant import Instant
from perdure.outage import Outage
from perdure.stores.base import Runnable, Wakeup
from perdure.task_kinds import DriveRun, FlowTask, ResumeScheduledRun
from perdure.told import told
from perdure.wire import Moment, moment_ns

if TYPE_CHECKING:
    from perdure.engine import FlowEngine

__all__ = ["DueWork", "FlowScheduler"]

T = TypeVar("T")
_log = logging.getLogger("perdure")
_PAGE: Final = 1000
_SHORTEST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 10.0
_TOGETHER: Final = 200
"""Tasks given to a dispatcher in one call: so many are sent again at most, should it fail on the way."""
_SHARE: Final = 10
"""A tick is followed by a pause of this many times its own length at least: however much is runnable and waits for workers,
the scheduler leaves the store to them."""


@dataclass(frozen=True, slots=True)
class DueWork:
    """What a tick found and did. `due_waits` and `due_retries` are those of the runnable runs; `enqueued_tasks` leaves out
    runs that had a task already; `more`: the next tick goes on where this one ended; `next_at`: when the next run becomes
    runnable by itself, ns, None for never or not looked for."""

    due_waits: int = 0
    due_retries: int = 0
    enqueued_tasks: int = 0
    runnable: int = 0
    more: bool = False
    next_at: int | None = None

    @property
    def has_due_work(self) -> bool:
        """Whether any run was runnable."""
        return self.runnable > 0


class FlowScheduler:
    """Sends one task per runnable run to a dispatcher: a queue, a `RuntimeBuildTaskRouter`, or a host's own.

    Runs that are leased, held or backing off are left. A dispatcher that cannot say whether it has a run's task already (it
    answers None) is sent another only `redispatch_after` later, or when the run has moved on; so a delivery that was lost is
    made good. Any number of schedulers may run; two may send a task twice. A tick looks at up to `max_runs` runs, the next one
    goes on behind them. `interval` bounds the sleep of `run_forever`, and so how late a wakeup is that another host has
    scheduled meanwhile: not every store hints at those.

    Raises `InvalidWorkerConfiguration`."""

    def __init__(
        self,
        engine: FlowEngine,
        dispatcher: object,
        *,
        redispatch_after: timedelta = timedelta(seconds=60),
        interval: timedelta = timedelta(seconds=1),
        max_runs: int = 10_000,
    ) -> None:
        if redispatch_after <= timedelta() or interval <= timedelta():
            raise InvalidWorkerConfiguration("redispatch_after and interval must be above 0")
        if max_runs < 1:
            raise InvalidWorkerConfiguration(f"max_runs is {max_runs}; it must be at least 1")
        self._engine = engine
        self._dispatcher = as_dispatcher(dispatcher)
        self._redispatch_ns = redispatch_after // timedelta(microseconds=1) * 1000
        self._interval_seconds = min(interval, redispatch_after).total_seconds()
        self._max_runs = max_runs
        self._met = False
        self._cursor: tuple[int, str] | None = None
        self._marks: OrderedDict[str, tuple[int, int]] = OrderedDict()  # run id → (when, last sequence then)
        self._stopping = asyncio.Event()

    # ticks ----------------------------------------------------------------------------------------------------

    async def enqueue_due_work(self, now: Moment | None = None) -> DueWork:
        """Sends a task for every run that is runnable at `now`, the store's clock by default: `resume_scheduled_run` if a
        wakeup is due, else `drive_run`, one however many wakeups there are.

        Raises `RuntimeBuildRouteNotFound` before the first task is sent, if any of them would have nowhere to go. What the
        store or the dispatcher raises leaves the tasks sent before it."""
        moment = await self._clock() if now is None else moment_ns("now", now)
        runs, cursor, next_at = await self._look(moment, self._cursor)
        by_build: dict[str | None, list[Runnable]] = {}
        for run in runs:
            if not self._is_marked(run, moment):
                by_build.setdefault(run.build, []).append(run)
        for build in by_build:
            self._dispatcher.ensure_runtime_build_route(build)
        sent = 0
        for build, group in by_build.items():
            for part in (group[start : start + _TOGETHER] for start in range(0, len(group), _TOGETHER)):
                answers = await self._dispatcher.dispatch_many(build, [_task(run, moment) for run in part])
                sent += sum(answer is not False for answer in answers)
                for run, answer in zip(part, answers, strict=True):
                    if answer is None:
                        self._mark(run, moment)
        self._cursor = cursor
        waits, retries = sum(run.due_waits for run in runs), sum(run.due_retries for run in runs)
        return DueWork(waits, retries, sent, len(runs), cursor is not None, next_at)

    async def _clock(self) -> int:
        """The store's, known for sure once the store was asked something (R45)."""
        if not self._met:
            await self._engine.store.changes()
            self._met = True
        return self._engine.store.clock()

    async def _look(
        self, moment: int, cursor: tuple[int, str] | None
    ) -> tuple[list[Runnable], tuple[int, str] | None, int | None]:
        found: list[Runnable] = []
        looked = 0
        while True:
            limit = min(_PAGE, self._max_runs - looked)
            page = await self._engine.store.runnable(moment, after=cursor, limit=limit)
            found += page.runs
            looked += limit
            cursor = page.next
            if cursor is None or looked >= self._max_runs:
                return found, cursor, page.next_at

    def _is_marked(self, run: Runnable, moment: int) -> bool:
        at, last_sequence = self._marks.get(run.run_id, (0, -1))
        return last_sequence == run.last_sequence and self._is_young(at, moment)

    def _is_young(self, at: int, moment: int) -> bool:
        """A mark from after `moment` is none: somebody gave a later `now`, or the store's clock was put back."""
        return at <= moment < at + self._redispatch_ns

    def _mark(self, run: Runnable, moment: int) -> None:
        self._marks.pop(run.run_id, None)
        self._marks[run.run_id] = moment, run.last_sequence
        while self._marks:
            at, _ = next(iter(self._marks.values()))
            if self._is_young(at, moment):
                break
            self._marks.popitem(last=False)

    # when to tick ---------------------------------------------------------------------------------------------

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """The earliest wait or delayed retry, due or not; None if there is none. Hooks never count."""
        return await self._engine.store.next_scheduled_wakeup()

    async def next_wakeup(self, now: Moment) -> dict[str, Any] | None:
        """The same in the shape of `engine.next_wakeup`."""
        return await self._engine.next_wakeup(now)

    async def next_wakeup_delay(self, now: Moment | None = None) -> timedelta | None:
        """How long it is until that wakeup, rounded up to microseconds: zero when it is overdue, None when there is none."""
        wakeup = await self.next_scheduled_wakeup()
        if wakeup is None:
            return None
        moment = self._engine.store.clock() if now is None else moment_ns("now", now)
        return timedelta(microseconds=max(0, -((moment - wakeup.scheduled_at) // 1000)))

    async def run_forever(self) -> None:
        """Ticks until `stop` is called, or the engine closed: when the next run becomes runnable, when the store hints that
        something has changed, and every `interval` at least. A store or dispatcher that fails is tried again, ever more
        slowly.

        Raises `RuntimeBuildRouteNotFound`: without the route nothing can be sent, and only an operator can add it."""
        loop, failures = asyncio.get_running_loop(), 0
        outage = Outage("the scheduler cannot send all tasks", "the scheduler sends all tasks again")
        while not (self._stopping.is_set() or self._engine.closed):
            began = loop.time()
            try:
                ticked = await self._unless_stopped(self._tick())
            except RuntimeBuildRouteNotFound:
                raise
            except Exception as error:  # noqa: BLE001 - a host's dispatcher raises what its queue raises
                failures += 1
                outage.failed(told(error))
                await self._rest(min(_LAST_PAUSE_SECONDS, _SHORTEST_PAUSE_SECONDS * 2 ** min(failures, 10)))
                continue
            if ticked is None:
                return
            failures, (seen, work) = 0, ticked
            outage.over()
            share = 0 if work.more else _SHARE * (loop.time() - began)
            shortest = min(max(_SHORTEST_PAUSE_SECONDS, share), _LAST_PAUSE_SECONDS)
            await self._rest(shortest)
            await self._sleep(seen, self._pause(work) - shortest)

    async def _tick(self) -> tuple[int, DueWork]:
        return await self._engine.store.changes(), await self.enqueue_due_work()

    def stop(self) -> None:
        """Ends `run_forever` at once; may be called by a signal handler of the event loop."""
        self._stopping.set()

    def _pause(self, work: DueWork) -> float:
        if work.more:
            return 0.0
        if work.next_at is None:
            return self._interval_seconds
        return min(self._interval_seconds, max(0.0, (work.next_at - self._engine.store.clock()) / 1e9))

    async def _rest(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()

    async def _sleep(self, seen: int, seconds: float) -> None:
        """Until the time is up, a hint comes, or `stop` is called."""
        if seconds <= 0 or self._stopping.is_set():
            return
        try:
            await self._unless_stopped(self._engine.store.wait_for_change(seen, seconds))
        except StoreError:
            # The next tick will meet the store's failure itself; until then the time has to pass.
            await self._rest(min(seconds, _LAST_PAUSE_SECONDS))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` gives; it is cut off, and gives None, when `stop` is called."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (working, stopping):
                waiting.cancel()
            await asyncio.wait([working, stopping])
        return None if self._stopping.is_set() and working.cancelled() else working.result()


def _task(run: Runnable, moment: int) -> FlowTask:
    if run.due_waits or run.due_retries:
        return ResumeScheduledRun(run.run_id, Instant(moment))
    return DriveRun(run.run_id)
