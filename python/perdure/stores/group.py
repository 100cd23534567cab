"""Group commit without added delay: one thread writes, and what arrives while it writes is the next group (DESIGN §7).

A lone commit goes out at once; under load a group grows to whatever came in during the previous one, so the cost of making
it durable is shared. A call's batches are never split over two groups, and a group holds at most one batch of a run (R48).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Lock

from perdure.errors import FlowError, OutcomeUnknown, StoreError, StoreUnavailable
from perdure.kernel import Batch
from perdure.stores.base import Committed
from perdure.stores.rules import check_call

__all__ = ["Answer", "GroupCommitter"]

Answer = Committed | FlowError
_Outcome = list[Answer] | Exception


class _Call:
    """One caller's batches, and where its answer is awaited."""

    __slots__ = ("batches", "future", "loop", "run_ids")

    def __init__(self, batches: Sequence[Batch], loop: asyncio.AbstractEventLoop) -> None:
        self.batches = batches
        self.run_ids = {batch.run_id for batch in batches}
        self.loop = loop
        self.future: asyncio.Future[list[Answer]] = loop.create_future()


class GroupCommitter:
    """Collects `commit` calls into groups for `write`, which runs on `executor`, one group at a time.

    `write` takes batches of different runs and answers each, in the order given, or raises with nothing reported as
    committed. `database` names the store in errors.
    """

    def __init__(self, write: Callable[[Sequence[Batch]], list[Answer]], executor: Executor, database: str) -> None:
        self._write = write
        self._executor = executor
        self._database = database
        self._lock = Lock()
        self._queue: deque[_Call] = deque()
        self._writing = False
        self._closed = False

    async def commit(self, batches: Sequence[Batch]) -> list[Answer]:
        """Queues `batches` and waits for their answers, in order. Raises what `write` raises, and `ValueError`.

        A caller cancelled before its group began has written nothing; one cancelled later may have.
        """
        check_call(batches)
        call = _Call(batches, asyncio.get_running_loop())
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._database} is closed; open the store again to use it")
            self._queue.append(call)
            if not self._writing:
                self._executor.submit(self._drain)
                self._writing = True
        return await call.future

    def close(self) -> None:
        """Takes no more calls. What is queued is written before anything given to the executor from now on."""
        with self._lock:
            self._closed = True

    def _drain(self) -> None:
        while group := self._next_group():
            self._settle(group)

    def _next_group(self) -> list[_Call]:
        group: list[_Call] = []
        taken: set[str] = set()
        waiting: deque[_Call] = deque()
        with self._lock:
            for call in self._queue:
                if call.future.cancelled():
                    continue
                if taken.isdisjoint(call.run_ids):
                    group.append(call)
                    taken |= call.run_ids
                else:
                    waiting.append(call)
            self._queue = waiting
            self._writing = bool(group)
        return group

    def _settle(self, group: list[_Call]) -> None:
        outcomes = self._outcomes(group)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Call, _Outcome]]] = {}
        for call, outcome in zip(group, outcomes, strict=True):
            by_loop.setdefault(call.loop, []).append((call, outcome))
        for loop, answered in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, answered)
            except RuntimeError:
                # The loop was closed while its callers waited: nobody is left to hear the answer.
                continue

    def _outcomes(self, group: list[_Call]) -> list[_Outcome]:
        try:
            answers = iter(self._write([batch for call in group for batch in call.batches]))
        except (StoreUnavailable, OutcomeUnknown) as error:
            # One each: every caller adds its own run and traceback to what it is given.
            return [type(error)(error.detail) for _ in group]
        except Exception as error:  # noqa: BLE001 - the thread must live on, and its callers must hear of everything
            if len(group) == 1:
                return [error]
            # Nothing was written and one of the calls is to blame: let it fail alone.
            return [outcome for call in group for outcome in self._outcomes([call])]
        return [[next(answers) for _ in call.batches] for call in group]


def _deliver(answered: list[tuple[_Call, _Outcome]]) -> None:
    for call, outcome in answered:
        if call.future.done():
            continue
        if isinstance(outcome, Exception):
            call.future.set_exception(outcome)
        else:
            call.future.set_result(outcome)
