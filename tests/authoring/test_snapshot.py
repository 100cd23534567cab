"""Snapshots over the kernel's JSON: every recorded one, and the reads by hand (spec 02 §2.7, R28)."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import Serialization
from perdure.instant import Instant
from perdure.model import ChildOperationReference, Envelope, RetryPolicy, WorkflowProgress, WorkflowRunSnapshot

DATA = Path(__file__).parent.parent / "data" / "ours" / "cases.jsonl"


def recorded_runs() -> Iterator[Any]:
    with DATA.open(encoding="utf-8") as rows:
        for row in rows:
            yield from json.loads(row)["recorded"]["runs"].values()


def test_every_recorded_snapshot_reads() -> None:
    count = 0
    for run in recorded_runs():
        for found in run["snapshots"]:
            snapshot = WorkflowRunSnapshot(found.encode())
            plain = json.loads(snapshot.json)
            assert (snapshot.run_id, snapshot.status) == (plain["run_id"], plain["status"])
            assert [s.output for s in snapshot.steps.values()] == [s["output"] for s in plain["steps"].values()]
            assert [str(w.resume_at) for w in snapshot.waits.values()] == [
                w["resume_at"] for w in plain["waits"].values()
            ]
            assert [h.token for h in snapshot.hooks.values()] == [h["token"] for h in plain["hooks"].values()]
            assert [list(entry) for entry in snapshot.resolutions] == plain["resolutions"]
            assert snapshot.terminal == (plain["terminal_outcome"] is not None)
            count += 1
    assert count > 500


def test_every_recorded_line_reads() -> None:
    for run in recorded_runs():
        lines = [line for line in run["lines"] if '"event"' in line]
        for envelope, line in zip(Envelope.parse_lines("\n".join(lines).encode()), lines, strict=True):
            plain = json.loads(line)
            assert (envelope.sequence, envelope.type) == (plain["sequence"], plain["event"]["type"])
            assert envelope.event == plain["event"]


@dataclass
class Receipt:
    id: int


def step(step_id: str, **parts: object) -> dict[str, object]:
    retry = {"max_attempts": 2, "delay_ms": 5}
    plain = {"step_id": step_id, "step_name": "n", "status": "pending", "input": None, "output": None, "retry": retry}
    return {**plain, "error": None, "attempt": 0, "retry_after": None, **parts}


RAW = json.dumps(
    {
        "run_id": "r",
        "spec": {
            "name": "w",
            "version": "1",
            "runtime": {"kind": "rust_embedded", "entrypoint": "w", "export_name": "main"},
        },
        "input": {"id": 1},
        "status": "completed",
        "steps": {
            "a": step("a", status="completed", input={"id": 2}, output={"id": 3}, attempt=2),
            "b": step("b", error="runtime error: x", attempt=1, retry_after="2026-01-01T00:00:00.000000001Z"),
        },
        "waits": {"w": {"wait_id": "w", "status": "waiting", "resume_at": "2026-01-01T00:00:00Z"}},
        "hooks": {
            "h": {
                "hook_id": "h",
                "token": "canary-t",
                "status": "received",
                "metadata": {"kind": "k"},
                "payload": {"id": 4},
            },
            "g": {"hook_id": "g", "token": "canary-u", "status": "active", "metadata": None, "payload": None},
        },
        "cancellation": {"request": {"reason": "stop"}, "requested_at": "2026-01-01T00:00:00Z", "sequence": 5},
        "progress": [{"progress_id": "p", "completed": 1}],
        "child_operations": {"c": {"reference_id": "c", "kind": "job", "operation_id": "7"}},
        "output": {"id": 5},
        "error": None,
        "terminal_outcome": {"type": "completed", "output": {"id": 5}},
        "last_sequence": 12,
        "resolutions": [["step", "a", 4], ["hook", "h", 7]],
        "failures": {"b": {"type": "builtins.ValueError", "message": "x", "traceback": "…"}},
    }
).encode()


def test_reads() -> None:
    snapshot = WorkflowRunSnapshot(RAW)
    assert (snapshot.run_id, snapshot.status, snapshot.terminal, snapshot.error) == ("r", "completed", True, None)
    assert (snapshot.input, snapshot.output, snapshot.last_sequence) == ({"id": 1}, {"id": 5}, 12)
    assert snapshot.spec.name == "w"
    assert (snapshot.input_as(Receipt), snapshot.output_as(Receipt)) == (Receipt(1), Receipt(5))
    assert (snapshot.step_output("a"), snapshot.step_output_as("a", Receipt)) == ({"id": 3}, Receipt(3))
    assert (snapshot.step_output("b"), snapshot.step_output_as("b", Receipt), snapshot.step_output("z")) == (None,) * 3
    assert (snapshot.hook_payload("h"), snapshot.hook_payload_as("h", Receipt)) == ({"id": 4}, Receipt(4))
    assert (snapshot.hook_payload("g"), snapshot.hook_payload_as("g", Receipt)) == (None, None)
    assert snapshot.steps["a"].retry == RetryPolicy(2, 5)
    assert snapshot.steps["b"].retry_after == Instant.parse("2026-01-01T00:00:00.000000001Z")
    assert snapshot.hooks["h"].metadata == {"kind": "k"}
    assert snapshot.cancellation is not None
    assert (snapshot.cancellation.reason, snapshot.cancellation.sequence) == ("stop", 5)
    assert snapshot.progress == [WorkflowProgress("p", 1)]
    assert snapshot.child_operations == {"c": ChildOperationReference("c", "job", "7")}
    assert snapshot.terminal_outcome == {"type": "completed", "output": {"id": 5}}
    assert snapshot.resolutions == [("step", "a", 4), ("hook", "h", 7)]
    assert snapshot.failures["b"]["message"] == "x"


def test_a_snapshot_is_a_value_and_hides_what_is_private() -> None:
    snapshot = WorkflowRunSnapshot(RAW)
    assert snapshot == WorkflowRunSnapshot(RAW) == pickle.loads(pickle.dumps(snapshot))
    assert hash(snapshot) == hash(WorkflowRunSnapshot(RAW))
    shown = repr([snapshot, snapshot.steps, snapshot.waits, snapshot.hooks])
    assert "canary" not in shown
    assert "'id'" not in shown
    assert repr(snapshot) == "<WorkflowRunSnapshot 'r': completed at 12>"


def test_other_json_is_a_typed_error() -> None:
    with pytest.raises(Serialization, match="shape: not a snapshot"):
        _ = WorkflowRunSnapshot(b"{}").status
