"""`TaskWorker`: takes tasks of a queue, does them under heartbeats, and tells the queue what became of each (spec 08 §8.4)."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import FlowError, InvalidWorkerConfiguration, StoreError, TaskLeaseLost
from perdure.outage import Outage
from perdure.queues.queue import FlowTaskQueue, TaskLease
from perdure.task_kinds import FlowTask
from perdure.tasks import Ack, DeadLetter, Disposition, Nack, TaskOutcome, backoff_ns, handle
from perdure.told import told

if TYPE_CHECKING:
    from perdure.engine import FlowEngine

__all__ = ["TaskWorker"]

_log = logging.getLogger("perdure")
_SHORTEST_PAUSE_SECONDS: Final = 0.02
"""Between two looks of an idle worker, however often it is hinted at."""
_LAST_PAUSE_SECONDS: Final = 5.0
_DRAINED: Final = Nack("drained", counted=False)


class TaskWorker:
    """Does the tasks of one queue with one engine, up to `concurrency` at a time.

    A heartbeat every `heartbeat` (a third of the queue's `lease_ttl` by default) keeps a task ours; a lease that was lost all
    the same ends the handling, and what it committed stays. An idle worker looks when a task's time comes, at a hint, and every
    `interval`. `stop` lets the tasks at work end within `drain`; then they are cut off and given back.

    Raises `InvalidWorkerConfiguration`."""

    def __init__(
        self,
        engine: FlowEngine,
        queue: FlowTaskQueue,
        *,
        concurrency: int = 16,
        heartbeat: timedelta | None = None,
        interval: timedelta = timedelta(seconds=5),
        drain: timedelta = timedelta(seconds=30),
        random: Random | None = None,
    ) -> None:
        beat = queue.lease_ttl / 3 if heartbeat is None else heartbeat
        if concurrency < 1:
            raise InvalidWorkerConfiguration(f"concurrency is {concurrency}; it must be at least 1")
        if not timedelta() < beat < queue.lease_ttl:
            raise InvalidWorkerConfiguration(
                f"heartbeat is {beat}; it must be above 0 and below the queue's lease_ttl of {queue.lease_ttl}"
            )
        if interval <= timedelta() or drain < timedelta():
            raise InvalidWorkerConfiguration("interval must be above 0, and drain not below")
        self._engine = engine
        self._queue = queue
        self._concurrency = concurrency
        self._beat_seconds = beat.total_seconds()
        self._interval_seconds = interval.total_seconds()
        self._drain_seconds = drain.total_seconds()
        self._random = random or Random()
        self._stopping = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()

    async def run_once(self) -> TaskOutcome | None:
        """Does one task; None if there is none to be had now. Raises `TaskLeaseLost` if the task was taken back meanwhile,
        `EngineClosed`, `EngineElsewhere`, and what the queue raises."""
        self._engine.check_use()  # else the task would come back counted
        lease = await self._lease()
        return None if lease is None else await self._work(lease)

    async def run_until_idle(self, limit: int | None = None) -> list[TaskOutcome]:
        """Does tasks, one after the other, until there is none to be had now, `limit` are done, or `stop` is called."""
        outcomes: list[TaskOutcome] = []
        while not self._stopping.is_set() and (limit is None or len(outcomes) < limit):
            outcome = await self._drained(self.run_once())
            if outcome is None:
                break
            outcomes.append(outcome)
        return outcomes

    async def run_forever(self) -> None:
        """Does tasks until `stop` is called, or the engine closed. A queue that cannot be reached is tried again, ever more
        slowly. Raises `EngineElsewhere`."""
        if not self._engine.closed:
            self._engine.check_use()  # else every task would come back counted
        failures, grace_seconds = 0, 0.0
        outage = Outage(f"queue {self._queue!r} cannot be reached", f"queue {self._queue!r} is reached again")
        try:
            while not (self._stopping.is_set() or self._engine.closed):
                try:
                    await self._turn()
                    failures = 0
                    outage.over()
                except StoreError as error:
                    failures += 1
                    outage.failed(told(error))
                    await self._rest(min(_LAST_PAUSE_SECONDS, 0.05 * 2 ** min(failures, 10)))
            grace_seconds = self._drain_seconds
        finally:
            await self._drain(grace_seconds)

    def stop(self) -> None:
        """Ends `run_forever` and `run_until_idle`; may be called by a signal handler of the event loop."""
        self._stopping.set()

    # turns ----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        if len(self._working) >= self._concurrency:
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait([*self._working, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            return
        seen = await self._queue.changes()
        lease = await self._lease()
        if lease is None:
            await self._idle(seen)
            return
        task = asyncio.create_task(self._work_on(lease), name=f"perdure task {lease.task.type}")
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _idle(self, seen: int) -> None:
        """Until a task's time comes, a hint, or the interval is over."""
        at = await self._queue.next_at()
        seconds = self._interval_seconds
        if at is not None:
            seconds = min(seconds, max(0.0, (at - self._queue.clock()) / 1e9))
        await self._rest(_SHORTEST_PAUSE_SECONDS)
        hint = asyncio.ensure_future(self._queue.wait_for_change(seen, max(0.0, seconds - _SHORTEST_PAUSE_SECONDS)))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([hint, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (hint, stopping):
                waiting.cancel()
            await asyncio.wait([hint, stopping])
        if not hint.cancelled():
            hint.result()

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _drain(self, grace_seconds: float) -> None:
        working = set(self._working)
        if working:
            await asyncio.wait(working, timeout=grace_seconds)
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working)

    async def _drained(self, doing: Coroutine[Any, Any, TaskOutcome | None]) -> TaskOutcome | None:
        """What one task came to; None for one that had not ended `drain` after `stop` was called, and was cut off."""
        working, stopping = asyncio.ensure_future(doing), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([working], timeout=self._drain_seconds)
        finally:
            for waiting in (working, stopping):
                waiting.cancel()
            await asyncio.wait([working, stopping])
        return None if self._stopping.is_set() and working.cancelled() else working.result()

    # one task -------------------------------------------------------------------------------------------------

    async def _lease(self) -> TaskLease | None:
        leasing = asyncio.ensure_future(self._queue.lease())
        try:
            return await asyncio.shield(leasing)
        except asyncio.CancelledError:
            with suppress(FlowError):  # in whose place the cancellation is told of
                if (lease := await leasing) is not None:
                    await self._settle(lease.lease_id, lease, _DRAINED, delay_ns=0)
            raise

    async def _work_on(self, lease: TaskLease) -> None:
        try:
            await self._work(lease)
        except FlowError as error:
            _log.warning("task %s is another worker's now, or could not be settled: %s", lease.task.type, told(error))

    async def _work(self, lease: TaskLease) -> TaskOutcome:
        lease_id = lease.lease_id
        handling = asyncio.ensure_future(self._handle(lease.task))
        try:
            while True:
                await asyncio.wait([handling], timeout=self._beat_seconds)
                if handling.done():
                    break
                lease_id = await self._beat(lease_id)
        except (TaskLeaseLost, asyncio.CancelledError) as error:
            handling.cancel()
            await asyncio.wait([handling])
            if isinstance(error, asyncio.CancelledError):
                await self._settle(lease_id, lease, _DRAINED, delay_ns=0)
            raise
        outcome = handling.result()
        await self._settle(lease_id, lease, outcome.disposition)
        return outcome

    async def _beat(self, lease_id: str) -> str:
        try:
            return await self._queue.heartbeat(lease_id)
        except StoreError as error:  # the lease has not ended yet, so the next heartbeat may be in time
            _log.warning("a task lease could not be renewed and is tried again: %s", told(error))
            return lease_id

    async def _handle(self, task: FlowTask) -> TaskOutcome:
        try:
            return await handle(self._engine, task)
        except Exception as error:  # noqa: BLE001 - a fault, not a refusal: one task must not end the worker
            # Places only: its text, and the source lines of a traceback, may quote a payload (R60).
            places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            _log.error("task %s failed with %s at %s and comes back", task.type, type(error).__name__, " ".join(places))
            return TaskOutcome(task, disposition=Nack(type(error).__name__))

    async def _settle(
        self, lease_id: str, lease: TaskLease, disposition: Disposition, delay_ns: int | None = None
    ) -> None:
        match disposition:
            case Ack():
                await self._queue.ack(lease_id)
            case Nack(reason, counted, not_before):
                if delay_ns is None:
                    delay_ns = backoff_ns(lease.nacks, self._random)
                    if not_before is not None:
                        delay_ns = max(delay_ns, not_before - self._queue.clock() + 1000)
                delay = timedelta(microseconds=-(-delay_ns // 1000))
                await self._queue.nack(lease_id, reason=reason, delay=delay, counted=counted)
            case DeadLetter(reason):
                await self._queue.dead_letter(lease_id, reason)
