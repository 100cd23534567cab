"""Every recorded history, cut and staged in every way, gives the pure kernel the same run.

`test_vectors.py` compares each prefix with the golden snapshots; here the same histories show what extending, refusing,
staging, accepting and the index changes must keep equal (invariants 3 and 8).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import kernel as seam
from perdure.errors import FlowError
from perdure.instant import due_key, parse_instant
from perdure.kernel import load

DATA = Path(__file__).parents[1] / "data"
MAX = 1_048_576
pure = load("pure")


def rows(file: str) -> Iterator[dict[str, Any]]:
    with (DATA / file).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def histories() -> Iterator[tuple[str, list[bytes]]]:
    for file in ("ours/cases.jsonl", "reference/cases.jsonl"):
        for row in rows(file):
            for recorded in (row["recorded"], row.get("recorded_older") or {"runs": {}}):
                for run_id, run in recorded["runs"].items():
                    yield run_id, [line.encode() + b"\n" for line in run["lines"]]
    for file in ("ours/projection.jsonl", "reference/projection.jsonl"):
        for row in rows(file):
            if "snapshot" in row:
                yield row["run_id"], [line.encode() + b"\n" for line in row["lines"]]


def refused() -> Iterator[tuple[str, list[bytes]]]:
    for file in ("ours/projection.jsonl", "reference/projection.jsonl"):
        for row in rows(file):
            if "refused" in row and len(row["lines"]) > 1:
                yield row["run_id"], [line.encode("utf-8", "surrogatepass") + b"\n" for line in row["lines"]]


HISTORIES = [*histories()]


def test_extending_at_any_cut_equals_projecting_at_once() -> None:
    for run_id, lines in HISTORIES:
        whole = pure.project(run_id, b"".join(lines), MAX)
        for cut in range(1, len(lines)):
            run = pure.project(run_id, b"".join(lines[:cut]), MAX)
            run.extend(b"".join(lines[cut:]))
            assert run.snapshot() == whole.snapshot(), run_id
            assert run.suspensions() == whole.suspensions()
            assert (run.last_visible, run.updated_at) == (whole.last_visible, whole.updated_at)


def test_a_refused_tail_leaves_the_run_as_it_was() -> None:
    for run_id, lines in refused():
        for cut in range(1, len(lines)):
            try:
                run = pure.project(run_id, b"".join(lines[:cut]), MAX)
            except FlowError:
                break
            before = run.snapshot(), run.suspensions(), run.starts(0, (), 9)
            with pytest.raises(FlowError):
                run.extend(b"".join(lines[cut:]))
            assert (run.snapshot(), run.suspensions(), run.starts(0, (), 9)) == before


def event_and_clock(line: bytes) -> tuple[bytes, int]:
    """The event span of a line, and the time it was stamped."""
    start = line.index(b'"event":') + len(b'"event":')
    clock = parse_instant(json.loads(line)["timestamp"])
    return line.rstrip()[start:-1], clock


def as_written(lines: list[bytes]) -> bool:
    """Whether the line has the form and the strict numbers that staging writes."""
    head = (b'{"run_id":', b'"sequence":', b'"event_id":', b'"timestamp":', b'"event":')
    return all(
        line.startswith(head[0]) and [*map(line.find, head)] == sorted(map(line.find, head)) and line.endswith(b"}}\n")
        for line in lines
    )


@pytest.mark.parametrize("layers", [1, 3, 100])
def test_staged_and_accepted_equals_projected(layers: int) -> None:
    for run_id, lines in HISTORIES:
        if not as_written(lines):
            continue
        events = [event_and_clock(line) for line in lines]
        run = pure.new(run_id, MAX)
        index = Index()
        for at in range(0, len(events), layers):
            view = run.stage([], 0)
            for event, clock in events[at : at + layers]:
                view = view.stage([event], clock)
            batch = view.append(bytes(16 * len(events[at : at + layers])))
            staged = view.snapshot(), view.suspensions(), view.active_hooks(), view.status
            index.apply(batch)
            run.accept(batch)
            assert (run.snapshot(), run.suspensions(), run.active_hooks(), run.status) == staged
            index.check(run)
        assert run.snapshot() == pure.project(run_id, b"".join(lines), MAX).snapshot(), run_id


class Index:
    """The index rows of one run, changed by batches as a store would; strict about what a batch may say."""

    def __init__(self) -> None:
        self.wakeups: dict[tuple[str, str], int] = {}
        self.hooks: dict[str, str] = {}

    def apply(self, batch: seam.Batch) -> None:
        if batch.clear_wakeups:
            self.wakeups.clear()
        for gone in batch.delete_wakeups:
            del self.wakeups[gone.kind, gone.subject_id]
        for row in batch.upsert_wakeups:
            assert self.wakeups.get((row.kind, row.subject_id)) != row.due
            assert row.due_key == due_key(row.due)
            self.wakeups[row.kind, row.subject_id] = row.due
        if batch.clear_hooks:
            self.hooks.clear()
        for removed in batch.delete_hooks:
            del self.hooks[removed.hook_id]
        for added in batch.insert_hooks:
            assert added.hook_id not in self.hooks
            self.hooks[added.hook_id] = added.token
        self.row = batch.row

    def check(self, run: seam.Run) -> None:
        open_rows = {(kind, key): due for kind, key, due in run.suspensions() if due is not None}
        assert self.wakeups == open_rows
        assert self.hooks == {hook.hook_id: hook.token for hook in run.active_hooks()}
        assert self.row.active_hooks == len(self.hooks)
        assert self.row.open_waits == sum(kind == "wait" for kind, _ in self.wakeups)
        assert self.row.pending_retries == sum(kind == "retry" for kind, _ in self.wakeups)
        assert (self.row.status, self.row.terminal) == (run.status, run.terminal)
        assert (self.row.last_sequence, self.row.updated_at) == (run.last_sequence, run.updated_at)
