"""Invariant 8: the index tables are what a replay of the histories gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

import orjson

from perdure.instant import MAX_NS, parse_instant
from perdure.stores.base import RunRecord, Wakeup
from perdure.testing._simulation.medium import Medium

if TYPE_CHECKING:
    from perdure.testing._simulation.audit import Book

__all__ = ["check_index"]

_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


def check_index(medium: Medium, book: Book, fail: Callable[[int, str], NoReturn]) -> None:
    """Compares the index rows of one run with its history."""
    run, run_id = book.run, book.run_id
    if not book.lines:
        return
    suspensions = run.suspensions()
    wakeups = sorted((kind, subject, due) for kind, subject, due in suspensions if kind != "hook" and due is not None)
    found = sorted(
        (w.kind, w.subject_id, w.scheduled_at)
        for w in medium.run(medium.store.list_due_wakeups(MAX_NS))
        if w.run_id == run_id
    )
    if found != wakeups:
        fail(8, f"run {run_id}: the wakeups are {found}, its history says {wakeups}")
    hooks = [subject for kind, subject, _ in suspensions if kind == "hook"]
    listed = [h.hook_id for h in medium.run(medium.store.list_active_hooks()) if h.run_id == run_id]
    if sorted(listed) != sorted(hooks):
        fail(8, f"run {run_id}: the active hooks are {listed}, its history says {hooks}")
    expected = _record(book)
    (record,) = (r for r in medium.run(medium.store.runs()).runs if r.run_id == run_id)
    shown = _without_hold(record)
    if shown != expected:
        fail(8, f"run {run_id}: its row is {shown}, its history says {expected}")


def check_first_wakeup(medium: Medium, books: list[Book], fail: Callable[[int, str], NoReturn]) -> None:
    """The earliest wakeup of all runs, and the order of a listing."""
    everything: list[Wakeup] = medium.run(medium.store.list_due_wakeups(MAX_NS))
    order = {"wait": 0, "retry": 1}
    if everything != sorted(everything, key=lambda w: (order[w.kind], w.run_id, w.subject_id)):
        fail(8, "wakeups are listed out of order")
    first = min(everything, key=lambda w: (w.scheduled_at, w.run_id, order[w.kind], w.subject_id), default=None)
    if medium.run(medium.store.next_scheduled_wakeup()) != first:
        fail(8, f"the next wakeup is not {first}")
    summary = medium.run(medium.store.summary())
    runs = [book.run for book in books if book.lines]
    if (summary.total_runs, summary.terminal_runs) != (len(runs), sum(run.terminal for run in runs)):
        fail(8, f"the counters say {summary}")


def _record(book: Book) -> tuple[object, ...]:
    """The row, from the events themselves where they say it."""
    snapshot = orjson.loads(book.run.snapshot())
    lines = book.lines.splitlines()
    first, last = orjson.loads(lines[0]), orjson.loads(lines[-1])
    status = snapshot["status"]
    spec = snapshot["spec"]
    if status in _TERMINAL:
        snapshot |= {"waits": {}, "hooks": {}, "steps": {}}  # what was left open has no rows any more (R20)
    return (
        *(spec["name"], spec["version"], spec.get("runtime_build_id"), status, status in _TERMINAL),
        sum(wait["status"] == "waiting" for wait in snapshot["waits"].values()),
        sum(hook["status"] == "active" for hook in snapshot["hooks"].values()),
        sum(step["retry_after"] is not None for step in snapshot["steps"].values()),
        *(parse_instant(first["timestamp"]), parse_instant(last["timestamp"])),
        parse_instant(last["timestamp"]) if status in _TERMINAL else None,
        len(lines),
    )


def _without_hold(r: RunRecord) -> tuple[object, ...]:
    return (
        *(r.name, r.version, r.build, r.status, r.terminal, r.open_waits, r.active_hooks, r.pending_retries),
        *(r.created_at, r.updated_at, r.ended_at, r.last_sequence),
    )
