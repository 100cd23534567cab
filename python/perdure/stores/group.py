"""Group commit without added delay: what arrives while one group is written is the next group (DESIGN §7).

A lone commit goes out at once; under load a group grows to whatever came in during the previous one, so the cost of making
it durable is shared. A thread writes, so that no event loop waits for a disk; where writing takes less time than the way to
the thread and back, the loop does it itself. A call's batches are never split over two groups, and a group holds at most one
batch of a run (R48). What else must write, such as a claim or a renewal, goes ahead of the next group, in the same turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from perdure.errors import FlowError, OutcomeUnknown, StoreError, StoreUnavailable
from perdure.stores.base import Append, Committed
from perdure.stores.bell import Bell
from perdure.stores.rules import check_call

__all__ = ["Answer", "GroupCommitter", "Turns"]

T = TypeVar("T")
Answer = Committed | FlowError
_MOST_ON_A_LOOP: Final = 128
"""Calls; a larger group would keep the loop from its other work for too long."""
_IN_A_ROW: Final = 4
"""Commits of a run without company before the loop has its turn."""


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
        self.run_ids = [append.batch.run_id for append in appends]


class _Job(_Caller):
    """One caller's work of another kind."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work


_Outcome = tuple[_Caller, object]  # an exception, or what the caller is given


class Turns(Protocol):
    """When a medium may be written."""

    def is_quick(self) -> bool:
        """Whether the last writes took so little time that handing the next one to a thread would cost more."""
        ...

    def take(self, *, wait: bool) -> bool:
        """Makes ready to write until `release`. Without `wait` it answers False rather than wait, and raises nothing; with
        it, it raises `StoreUnavailable` or `StoreError` when nobody gives way."""
        ...

    def release(self) -> None:
        """Lets others write."""
        ...


class _AlwaysOurs:
    """The turns of a medium that nobody else writes, on the thread."""

    def is_quick(self) -> bool:
        return False

    def take(self, *, wait: bool) -> bool:
        return wait

    def release(self) -> None:
        """Nobody waits."""


class GroupCommitter:
    """Collects `commit` calls into groups for `write`, one group at a time, on `executor`, or on the caller's event loop where
    that takes less time than the way to a thread and back.

    `write` takes batches of different runs and answers each, in the order given, or raises with nothing reported as
    committed. `database` names the store in errors.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Append]], list[Answer]],
        executor: Executor,
        database: str,
        turns: Turns | None = None,
    ) -> None:
        self._write = write
        self._executor = executor
        self._database = database
        self._turns = _AlwaysOurs() if turns is None else turns
        self._lock = Lock()
        self._queue: deque[_Call] = deque()
        self._jobs: deque[_Job] = deque()
        self._writing = False
        self._here: asyncio.AbstractEventLoop | None = None
        """The loop that is about to write what is queued."""
        self._on_a_loop = Lock()
        self._alone: str | None = None
        """The run whose call was the last group by itself: its next one goes out without waiting for company."""
        self._in_a_row = 0
        """Commits that went out at once since the loop had its turn."""
        self._closed = False
        self.groups = 0
        """How many groups have been handed to `write`."""
        self.bell = Bell()
        """Rung when something was written, and at the close."""

    async def commit(self, appends: Sequence[Append]) -> list[Answer]:
        """Queues `appends` and waits for their answers, in order. Raises what `write` raises, and `ValueError`.

        A caller cancelled before its group began has written nothing; one cancelled later may have.
        """
        check_call(appends)
        if appends and self._alone == appends[0].batch.run_id and (given := self._at_once(appends)) is not None:
            self._in_a_row += 1
            if self._in_a_row >= _IN_A_ROW:
                self._in_a_row = 0
                await asyncio.sleep(0)
            return given
        call = _Call(appends)
        self._enqueue(call)
        answers: list[Answer] = await call.future
        return answers

    async def between_groups(self, work: Callable[[], T]) -> T:
        """Runs `work` on the writing thread, ahead of what is queued, and waits for what it gives or raises."""
        job = _Job(work)
        self._enqueue(job)
        given: T = await job.future
        return given

    def close(self) -> None:
        """Takes no more calls. What is queued is written before anything given to the executor from now on."""
        with self._lock:
            self._closed, self._here = True, None
        with self._on_a_loop:
            # A loop that is writing has ended, and one that was about to finds the store closed.
            self._executor.submit(self._drain)
        self.bell.ring()

    # who writes ----------------------------------------------------------------------------------------------

    def _enqueue(self, caller: _Call | _Job) -> None:
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._database} is closed; open the store again to use it")
            if isinstance(caller, _Job):
                self._jobs.append(caller)
            else:
                self._queue.append(caller)
            if self._writing and (self._here is None or not self._here.is_closed()):
                return
            self._writing = True
            if self._jobs or len(self._queue) > 1 or not self._turns.is_quick():
                self._executor.submit(self._drain)
                return
            self._here = caller.loop
        # Not at once: what else this loop has ready to commit comes before, into the same group.
        caller.loop.call_soon(self._write_here)

    def _at_once(self, appends: Sequence[Append]) -> list[Answer] | None:
        """Writes one call, if nobody else writes or waits to; None if it has to be queued."""
        with self._lock:
            if self._writing or self._closed or not self._turns.is_quick():
                return None
            self._writing = True
        with self._on_a_loop:
            try:
                if not self._may_begin():
                    return None
                try:
                    self.groups += 1
                    return self._write(appends)
                finally:
                    self._turns.release()
            finally:
                if self._has_more() and not self._closed:
                    self._executor.submit(self._drain)
                self.bell.ring()

    def _may_begin(self) -> bool:
        # It may have been closed since, by another thread, which waits for who writes by then and for nobody later.
        return not self._closed and self._turns.take(wait=False)

    def _drain(self) -> None:
        """Writes what is queued, on the thread."""
        while self._has_more():
            _settle(self._one_turn())
            self.bell.ring()

    def _write_here(self) -> None:
        """Writes what is queued, on the loop, if it can be done at once."""
        with self._on_a_loop:
            with self._lock:
                if self._here is None:
                    return  # the store was closed meanwhile, and the thread does it
                self._here = None
                busy = bool(self._jobs) or len(self._queue) > _MOST_ON_A_LOOP
            if busy or not self._turns.take(wait=False):
                self._executor.submit(self._drain)
                return
            outcomes = self._written()
            self._alone = None
            if len(outcomes) == 1 and isinstance(call := outcomes[0][0], _Call) and call.run_ids:
                self._alone = call.run_ids[0]
            here = asyncio.get_running_loop()
            if all(caller.loop is here for caller, _ in outcomes):
                _deliver(outcomes)
            else:
                _settle(outcomes)
            if self._has_more():
                self._executor.submit(self._drain)
        self.bell.ring()

    def _has_more(self) -> bool:
        with self._lock:
            self._writing = bool(self._queue or self._jobs)
            return self._writing

    def _one_turn(self) -> list[_Outcome]:
        refused = _outcome(lambda: self._turns.take(wait=True))
        if not isinstance(refused, Exception):
            return self._written()
        with self._lock:
            callers: list[_Caller] = [*self._jobs, *self._queue]
            self._jobs.clear()
            self._queue.clear()
        return [(caller, _own(refused)) for caller in callers]

    def _written(self) -> list[_Outcome]:
        """What becomes of that which can be written in the turn that was taken; the turn is over then."""
        try:
            jobs, group = self._next()
            done: list[_Outcome] = [(job, _outcome(job.work)) for job in jobs]
            return done + self._outcomes(group) if group else done
        finally:
            self._turns.release()

    def _next(self) -> tuple[list[_Job], list[_Call]]:
        group: list[_Call] = []
        taken: set[str] = set()
        waiting: deque[_Call] = deque()
        with self._lock:
            for call in self._queue:
                if call.future.cancelled():
                    continue
                if taken.isdisjoint(call.run_ids):
                    group.append(call)
                    taken.update(call.run_ids)
                else:
                    waiting.append(call)
            self._queue = waiting
            jobs = [job for job in self._jobs if not job.future.cancelled()]
            self._jobs.clear()
        return jobs, group

    def _outcomes(self, group: list[_Call]) -> list[_Outcome]:
        self.groups += 1
        given = _outcome(lambda: self._write([append for call in group for append in call.appends]))
        if isinstance(given, StoreUnavailable | OutcomeUnknown):
            return [(call, _own(given)) for call in group]
        if isinstance(given, Exception):
            if len(group) == 1:
                return [(group[0], given)]
            # Nothing was written and one of the calls is to blame: let it fail alone.
            return [outcome for call in group for outcome in self._outcomes([call])]
        answers = iter(given)
        return [(call, [next(answers) for _ in call.appends]) for call in group]


def _own(error: Exception) -> Exception:
    """One for each: every caller adds its own run and traceback to what it is given."""
    return type(error)(error.detail) if isinstance(error, StoreUnavailable | OutcomeUnknown) else error


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
