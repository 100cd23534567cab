"""Group commit on an event loop: what arrives while a group is written is the next group (DESIGN §7, R48).

The counterpart of `group.py` for a driver that is itself asynchronous: no thread, and so no lock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.stores.base import Append
from perdure.stores.rules import check_call

__all__ = ["AsyncGroupCommitter"]

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Call(Generic[Answer]):
    """One caller's batches, and where it waits."""

    appends: Sequence[Append]
    run_ids: set[str]
    future: asyncio.Future[list[Answer]]


class AsyncGroupCommitter(Generic[Answer]):
    """Collects `commit` calls into groups for `write`, one group at a time.

    `write` takes batches of different runs and answers each, in the order given, or raises with nothing reported as
    committed. `database` names the store in errors.
    """

    def __init__(self, write: Callable[[Sequence[Append]], Awaitable[list[Answer]]], database: str) -> None:
        self._write = write
        self._database = database
        self._queue: deque[_Call[Answer]] = deque()
        self._idle = asyncio.Event()  # nobody writes, and nothing is queued
        self._idle.set()
        self._closed = False
        self.groups = 0  # that were written

    async def commit(self, appends: Sequence[Append]) -> list[Answer]:
        """Writes `appends`, or queues them while somebody writes, and waits for their answers, in order. Raises what `write`
        raises, and `ValueError`.

        A caller cancelled before its group began has written nothing; one cancelled later may have.
        """
        check_call(appends)
        if self._closed:
            raise StoreError(f"{self._database} is closed; open the store again to use it")
        if not appends:
            return []
        if not self._idle.is_set():
            future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
            call = _Call(appends, {append.batch.run_id for append in appends}, future)
            self._queue.append(call)
            return await call.future
        # Nobody writes: a lone call goes out at once, without the detour over a task.
        self._idle.clear()
        self.groups += 1
        try:
            return await self._write(appends)
        finally:
            self._go_on()

    async def close(self) -> None:
        """Takes no more calls, and waits for those that are queued."""
        self._closed = True
        await self._idle.wait()

    def _go_on(self) -> None:
        if self._queue:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._idle.set()

    async def _drain(self) -> None:
        group: list[_Call[Answer]] = []
        try:
            while self._queue:
                group = self._next()
                if group:
                    await self._answer(group)
                    # Those who were answered often have their next batch at once: one turn of the loop, and it comes along.
                    await asyncio.sleep(0)
        finally:
            # Only where the loop was shut down over it is anybody left.
            for call in (*group, *self._queue):
                if not call.future.done():
                    call.future.set_exception(
                        OutcomeUnknown(f"{self._database}: the event loop ended while committing")
                    )
            self._queue.clear()
            self._idle.set()

    def _next(self) -> list[_Call[Answer]]:
        """The calls that can go out together: a call is never split, and a group has one batch of a run at most."""
        group: list[_Call[Answer]] = []
        taken: set[str] = set()
        waiting: deque[_Call[Answer]] = deque()
        for call in self._queue:
            if call.future.cancelled():
                continue
            if taken.isdisjoint(call.run_ids):
                group.append(call)
                taken |= call.run_ids
            else:
                waiting.append(call)
        self._queue = waiting
        return group

    async def _answer(self, group: list[_Call[Answer]]) -> None:
        self.groups += 1
        try:
            answers = iter(await self._write([append for call in group for append in call.appends]))
        except (StoreUnavailable, OutcomeUnknown) as error:
            for call in group:
                # One each: every caller adds its own run and traceback to what it is given.
                _fail(call, type(error)(error.detail))
        except Exception as error:  # noqa: BLE001 - the writer must live on, and its callers must hear of everything
            if len(group) == 1:
                _fail(group[0], error)
            else:
                # Nothing was written and one of the calls is to blame: let it fail alone.
                for call in group:
                    await self._answer([call])
        else:
            for call in group:
                given = [next(answers) for _ in call.appends]
                if not call.future.done():
                    call.future.set_result(given)


def _fail(call: _Call[Answer], error: Exception) -> None:
    if not call.future.done():
        call.future.set_exception(error)
