"""Group commit without added delay: one thread writes, and what arrives while it writes is the next group (DESIGN §7).

A lone commit goes out at once; under load a group grows to whatever came in during the previous one, so the cost of making
it durable is shared. A call's batches are never split over two groups, and a group holds at most one batch of a run (R48).
What else must write, such as a claim, takes its turn between two groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Lock
from typing import Any, TypeVar

from perdure.errors import FlowError, OutcomeUnknown, StoreError, StoreUnavailable
from perdure.stores.base import Append, Committed
from perdure.stores.bell import Bell
from perdure.stores.rules import check_call

__all__ = ["Answer", "GroupCommitter"]

T = TypeVar("T")
C = TypeVar("C")
Answer = Committed | FlowError


class _Caller:
    """Where an answer is awaited."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


class _Call(_Caller):
    """One caller's batches."""

    __slots__ = ("appends", "run_ids")

    def __init__(self, appends: Sequence[Append]) -> None:
        super().__init__()
        self.appends = appends
        self.run_ids = {append.batch.run_id for append in appends}


class _Job(_Caller):
    """One caller's work of another kind."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work


_Outcome = tuple[_Caller, object]  # an exception, or what the caller is given


class GroupCommitter:
    """Collects `commit` calls into groups for `write`, which runs on `executor`, one group at a time.

    `write` takes batches of different runs and answers each, in the order given, or raises with nothing reported as
    committed. `database` names the store in errors.
    """

    def __init__(self, write: Callable[[Sequence[Append]], list[Answer]], executor: Executor, database: str) -> None:
        self._write = write
        self._executor = executor
        self._database = database
        self._lock = Lock()
        self._queue: deque[_Call] = deque()
        self._jobs: deque[_Job] = deque()
        self._writing = False
        self._closed = False
        self.bell = Bell()
        """Rung when something was written, and at the close."""

    async def commit(self, appends: Sequence[Append]) -> list[Answer]:
        """Queues `appends` and waits for their answers, in order. Raises what `write` raises, and `ValueError`.

        A caller cancelled before its group began has written nothing; one cancelled later may have.
        """
        check_call(appends)
        call = _Call(appends)
        self._enqueue(self._queue, call)
        answers: list[Answer] = await call.future
        return answers

    async def between_groups(self, work: Callable[[], T]) -> T:
        """Runs `work` on the writing thread and waits for what it gives or raises."""
        job = _Job(work)
        self._enqueue(self._jobs, job)
        given: T = await job.future
        return given

    def _enqueue(self, queue: deque[C], caller: C) -> None:
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._database} is closed; open the store again to use it")
            queue.append(caller)
            if not self._writing:
                self._executor.submit(self._drain)
                self._writing = True

    def close(self) -> None:
        """Takes no more calls. What is queued is written before anything given to the executor from now on."""
        with self._lock:
            self._closed = True
        self.bell.ring()

    def _drain(self) -> None:
        while True:
            jobs, group = self._next()
            if not jobs and not group:
                return
            for job in jobs:
                _settle([(job, _outcome(job.work))])
            if group:
                _settle(self._outcomes(group))
            self.bell.ring()

    def _next(self) -> tuple[list[_Job], list[_Call]]:
        group: list[_Call] = []
        taken: set[str] = set()
        waiting: deque[_Call] = deque()
        with self._lock:
            while self._queue:
                call = self._queue.popleft()
                if call.future.cancelled():
                    continue
                if taken.isdisjoint(call.run_ids):
                    group.append(call)
                    taken |= call.run_ids
                else:
                    waiting.append(call)
            self._queue.extend(waiting)
            jobs = [job for job in self._jobs if not job.future.cancelled()]
            self._jobs.clear()
            self._writing = bool(group or jobs)
        return jobs, group

    def _outcomes(self, group: list[_Call]) -> list[_Outcome]:
        given = _outcome(lambda: self._write([append for call in group for append in call.appends]))
        if isinstance(given, StoreUnavailable | OutcomeUnknown):
            # One each: every caller adds its own run and traceback to what it is given.
            return [(call, type(given)(given.detail)) for call in group]
        if isinstance(given, Exception):
            if len(group) == 1:
                return [(group[0], given)]
            # Nothing was written and one of the calls is to blame: let it fail alone.
            return [outcome for call in group for outcome in self._outcomes([call])]
        answers = iter(given)
        return [(call, [next(answers) for _ in call.appends]) for call in group]


def _outcome(work: Callable[[], T]) -> T | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the thread must live on, and its callers must hear of everything
        return error


def _settle(outcomes: list[_Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, answered)
        except RuntimeError:
            # The loop was closed while its callers waited: nobody is left to hear the answer.
            continue


def _deliver(answered: list[_Outcome]) -> None:
    for caller, outcome in answered:
        if caller.future.done():
            continue
        if isinstance(outcome, Exception):
            caller.future.set_exception(outcome)
        else:
            caller.future.set_result(outcome)
