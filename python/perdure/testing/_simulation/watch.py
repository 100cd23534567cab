"""Where nothing goes wrong: whatever can be done is done within a tick (invariant 6), and who has nothing to do asks for
nothing (R3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from perdure.stores.leases import Wanted
from perdure.testing._simulation.audit import Auditor, Book
from perdure.testing._simulation.post import Post
from perdure.testing._simulation.process import Process

__all__ = ["Watch"]

_EVERY_S: Final = 1.0
_SLACK_S: Final = 8.0
"""Requests under way, the pauses after failures, and the spread between workers."""
_HELD_S: Final = 30.0
_MINUTE_S: Final = 60.0
_LATE_S: Final = 3.0
_NOT_YET_S: Final = 1e9
_LOOKS_MORE: Final = 8
"""Looks at held runs, and those that were due anyway."""

_Able = tuple[str, str, str, float]
"""Process, what it could do, the rule, and within how many seconds it must have done it."""


class Watch:
    """Looks every second at what lies there undone, and for how long a process could have done it."""

    def __init__(self, auditor: Auditor, processes: Callable[[], list[Process]], post: Post | None) -> None:
        self._auditor = auditor
        self._processes = processes
        self._post = post
        self._since: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            now, found = loop.time(), dict[tuple[str, str], float]()
            for process, what, rule, seconds in self._undone(now):
                since = found[process, what] = self._since.get((process, what), now)
                if now - since > seconds + _SLACK_S:
                    self._auditor.fail(rule, f"{process} has left {what} for {now - since:.1f} s")
            self._since = found
            await asyncio.sleep(_EVERY_S)

    def _undone(self, now: float) -> Iterator[_Able]:
        books = [book for book in self._auditor.books.values() if book.lines and not book.run.terminal]
        tasked = set() if self._post is None else {task.target for task in self._post.waiting() if task.drives}
        for process in self._processes():
            if process.lane.paused:
                continue
            for book in books:
                yield from self._of_worker(process, book, now)
                yield from self._of_scheduler(process, book, tasked)
            yield from self._of_task_worker(process)

    def _of_worker(self, process: Process, book: Book, now: float) -> Iterator[_Able]:
        worker, run_id, own = process.worker, book.run_id, process.settings
        if worker is None or len(worker._drives) >= own.at_once or run_id in worker._shunned.at(now):
            return
        if run_id in worker._drives.values() or not process.supports(book.run.build_id):
            return
        model, clock = self._auditor.leases.of(run_id), self._auditor.medium.clock()
        wakeup = f"the wakeup of run {run_id}, parked at {model.parked}"  # another parking may be for what is long due
        if model.runnable(clock):
            yield process.name, f"the runnable run {run_id} at {book.run.last_sequence}", "invariant 6", own.look_s
            # One whose wakeup it could know of ahead, by a look since the run was parked, is not left until its next look.
            is_late = model.waits and min(model.waits.values()) / 1e9 < clock / 1e9 - _LATE_S
            if not model.owes_a_look and is_late:
                yield process.name, wakeup, "R3", own.look_s
        elif not model.owes_a_look and model.hold is None:
            yield process.name, wakeup, "R3", _NOT_YET_S
        elif model.hold is not None and not model.live(clock) and own.build not in (None, *model.hold):
            what = f"run {run_id} at epoch {model.epoch}, held by {sorted(model.hold)},"
            yield process.name, what, "R43", _HELD_S

    def _of_scheduler(self, process: Process, book: Book, tasked: set[str | None]) -> Iterator[_Able]:
        if process.scheduler is None or self._post is None or not self._post.own or book.run_id in tasked:
            return
        if self._auditor.leases.runnable(Wanted(), {book.run_id: book.run}):
            what = f"the runnable run {book.run_id} at {book.run.last_sequence} without a task"
            yield process.name, what, "R46", process.settings.look_s

    def _of_task_worker(self, process: Process) -> Iterator[_Able]:
        worker = process.task_worker
        if worker is None or self._post is None or len(worker._working) >= process.settings.at_once:
            return
        for due_at, place in self._post.overdue():  # one that came back is due anew
            yield process.name, f"task {place}, due at {due_at},", "R46", process.settings.look_s

    # -- idleness --------------------------------------------------------------------------------------------------

    async def idle_minute(self) -> None:
        """Nothing is left to do: whoever works looks once in a while, and nobody else asks for anything."""
        before = {process.name: _calls(process) for process in self._processes()}
        await asyncio.sleep(_MINUTE_S)
        for process in self._processes():
            made, most = _calls(process) - before.get(process.name, 0), _most_calls(process)
            if made > most:
                self._auditor.fail(
                    "R3", f"{process.name} has nothing to do and asks {made} times a minute, not {most:g}"
                )


def _calls(process: Process) -> int:
    return process.client.calls + (0 if process.post is None else process.post.calls)


def _most_calls(process: Process) -> float:
    """In an idle minute: one for each look of a worker or scheduler, two for one at the queue."""
    own, queue = process.settings, process.world.settings.queue
    looks, most = _MINUTE_S / own.look_s + _LOOKS_MORE, 0.0
    most += looks if process.worker is not None else 0
    most += 2 * looks if process.task_worker is not None else 0
    if process.scheduler is not None and queue is not None:
        most += _MINUTE_S / min(own.look_s, queue.redispatch_s) + _LOOKS_MORE
    return most
