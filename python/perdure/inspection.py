"""What an engine tells about its runs, from the indexes and the projections (spec 09 §9.3)."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from perdure import payload
from perdure.codec import Coding
from perdure.errors import RunNotFound, StoreError
from perdure.kernel import Run
from perdure.model import WorkflowRunSnapshot
from perdure.stores.base import FlowEventStore, RunFilter, RunPage, RunSummary, Wakeup
from perdure.wire import Moment, moment_ns

__all__ = ["Inspection", "every_run_id"]

T = TypeVar("T")
_PAGE = 500
_LONGEST_WAIT = 1.0
_SHORTEST_WAIT = 0.02
"""Seconds between two looks at a run that somebody waits for."""


class Inspection(ABC):
    """The reading half of an engine: nothing here appends."""

    @property
    @abstractmethod
    def store(self) -> FlowEventStore:
        """The engine's store."""

    @abstractmethod
    async def read(self, run_id: str, look: Callable[[Run], T]) -> T:
        """What `look` says of the run, its latest events folded. Raises `RunNotFound`."""

    _coding: Coding | None = None
    """The engine's codec, through which payloads are read (R42)."""

    async def snapshot(self, run_id: str) -> WorkflowRunSnapshot:
        """The run as it stands. Raises `RunNotFound`."""
        return await self.read(run_id, lambda run: WorkflowRunSnapshot(run.snapshot(), self._coding))

    async def list_run_ids(self) -> list[str]:
        """All run ids, sorted."""
        return await self.store.run_ids()

    async def wait_until_ended(self, run_id: str, within: timedelta | None = None) -> WorkflowRunSnapshot:
        """The run's snapshot when it has ended, whoever drives it, or as it is after `within`: for a web handler that would rather
        answer than wait longer. Raises `RunNotFound`."""
        if within is not None and not isinstance(within, timedelta):
            raise TypeError(f"within must be a timedelta, not {type(within).__name__}")
        loop = asyncio.get_running_loop()
        until = math.inf if within is None else loop.time() + within.total_seconds()
        while True:
            seen = await self.store.changes()
            ended = await self.read(run_id, lambda run: run.terminal)
            left = until - loop.time()
            if ended or left <= 0:
                return await self.snapshot(run_id)
            await self.store.wait_for_change(seen, min(left, _LONGEST_WAIT))
            await asyncio.sleep(max(0.0, min(until - loop.time(), _SHORTEST_WAIT)))

    async def list_snapshots(self) -> list[WorkflowRunSnapshot]:
        """All runs as they stand, by run id. For many runs, page `runs()` instead."""
        return [await self.snapshot(run_id) for run_id in await self.store.run_ids()]

    async def runs(self, filter: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        """One page of the run index; pass `page.next` as `after` for the following one."""
        return await self.store.runs(filter or RunFilter(), after=after, limit=limit)

    async def run_summary(self) -> RunSummary:
        """The counters of spec 02 §2.7."""
        return await self.store.summary()

    async def run_summary_by_build(self) -> dict[str | None, RunSummary]:
        """The same for each build, None for runs that are not pinned to one: a route may go when its `non_terminal_runs` are
        0 (spec 08 §8.5)."""
        return await self.store.summary_by_build()

    async def list_due_wakeups(self, now: Moment) -> list[Wakeup]:
        """Waits and delayed retries due at `now`, waits first, then by run and subject."""
        return await self.store.list_due_wakeups(moment_ns("now", now))

    async def list_due_waits(self, now: Moment) -> list[tuple[str, str]]:
        """(run id, wait id) of the waits due at `now`, sorted."""
        return sorted((w.run_id, w.subject_id) for w in await self.list_due_wakeups(now) if w.kind == "wait")

    async def list_due_retries(self, now: Moment) -> list[tuple[str, str]]:
        """(run id, step id) of the delayed retries due at `now`, sorted."""
        return sorted((w.run_id, w.subject_id) for w in await self.list_due_wakeups(now) if w.kind == "retry")

    async def next_wakeup(self, now: Moment) -> dict[str, Any] | None:
        """The earliest wait or delayed retry, due or not, in the shape of `list_open_suspensions`; None if there is
        none.

        Its `due` says whether `now` has reached it. Raises `StoreError` if the index names one that no history holds."""
        moment, before = moment_ns("now", now), None
        while (wakeup := await self.store.next_scheduled_wakeup()) not in (None, before):
            look = partial(_suspensions, coding=self._coding, now=moment, only=(wakeup.kind, wakeup.subject_id))
            if found := await self._look(wakeup.run_id, look):
                return found[0]
            before = wakeup  # resolved between the two looks, unless the index says it again
        if wakeup is None:
            return None
        raise StoreError(
            f"the index names {wakeup.kind} {wakeup.subject_id!r} of run {wakeup.run_id!r}, which its history does not hold; "
            "restore the database from a backup, or export the runs and import them into a new one"
        )

    async def list_open_suspensions(self, now: Moment) -> list[dict[str, Any]]:
        """Open waits, hooks and delayed retries of open runs: {kind, run_id, wait | hook | step, due (not for hooks)},
        sorted by run, kind (wait, hook, retry) and id. Holds hook tokens in clear."""
        moment = moment_ns("now", now)
        found: list[dict[str, Any]] = []
        for run_id in sorted(await every_run_id(self.store, RunFilter(terminal=False))):
            found += await self._look(run_id, partial(_suspensions, coding=self._coding, now=moment))
        return found

    async def list_active_hooks(self) -> list[dict[str, Any]]:
        """{run_id, hook} of each active hook of an open run, sorted. Holds tokens in clear."""
        found: list[dict[str, Any]] = []
        for run_id in dict.fromkeys(hook.run_id for hook in await self.store.list_active_hooks()):
            found += await self._look(run_id, self._hooks)
        return found

    def _hooks(self, run: Run) -> list[dict[str, Any]]:
        return [{"run_id": run.run_id, "hook": _entry(hook, run, self._coding)} for hook in run.active_hooks()]

    async def _look(self, run_id: str, look: Callable[[Run], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        try:
            return await self.read(run_id, look)
        except RunNotFound:  # pruned between the listing and this look
            return []


async def every_run_id(store: FlowEventStore, filter: RunFilter) -> list[str]:
    """The ids of all runs that `filter` means, in the order of the run index, read page by page."""
    page = await store.runs(filter, limit=_PAGE)
    found = [row.run_id for row in page.runs]
    while page.next is not None:
        page = await store.runs(filter, after=page.next, limit=_PAGE)
        found += [row.run_id for row in page.runs]
    return found


def _suspensions(
    run: Run, coding: Coding | None, now: int, only: tuple[str, str] | None = None
) -> list[dict[str, Any]]:
    found = [(kind, id, due) for kind, id, due in run.suspensions() if only in (None, (kind, id))]
    return [_suspension(run, coding, kind, id, due, now) for kind, id, due in found]


def _suspension(run: Run, coding: Coding | None, kind: str, id: str, due: int | None, now: int) -> dict[str, Any]:
    item: dict[str, Any] = {"kind": kind, "run_id": run.run_id}
    if due is None:
        return item | {"hook": _entry(run.hook(id), run, coding)}
    entry = {"wait": _entry(run.wait(id), run)} if kind == "wait" else {"step": _entry(run.step(id), run, coding)}
    return item | entry | {"due": due <= now}


def _entry(item: Any, run: Run, coding: Coding | None = None) -> object:
    if item is None:
        return None
    json: bytes = item.to_json()
    return payload.decode(json if coding is None else coding.entry(json, run.run_id))
