"""Tasks as JSON: scenario 82, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from perdure import (
    DisposeHook,
    DisposeHookByToken,
    DriveRun,
    FlowTask,
    Instant,
    ResumeDueRetries,
    ResumeDueWaits,
    ResumeHook,
    ResumeHookByToken,
    ResumeScheduledRun,
    ResumeWait,
    Serialization,
)

NOW = "2026-01-01T00:00:00.000000001Z"
KINDS: list[tuple[FlowTask, dict[str, object], str | None]] = [
    (DriveRun("r"), {"type": "drive_run", "run_id": "r"}, "r"),
    (ResumeWait("r", "w/1"), {"type": "resume_wait", "run_id": "r", "wait_id": "w/1"}, "r"),
    (
        ResumeHook("r", "h", {"é": [1, 2.5, None]}),
        {"type": "resume_hook", "run_id": "r", "hook_id": "h", "payload": {"é": [1, 2.5, None]}},
        "r",
    ),
    (
        ResumeHookByToken("canary-t", None),
        {"type": "resume_hook_by_token", "token": "canary-t", "payload": None},
        None,
    ),
    (DisposeHook("r", "h"), {"type": "dispose_hook", "run_id": "r", "hook_id": "h"}, "r"),
    (DisposeHookByToken("canary-t"), {"type": "dispose_hook_by_token", "token": "canary-t"}, None),
    (ResumeScheduledRun("r", NOW), {"type": "resume_scheduled_run", "run_id": "r", "now": NOW}, "r"),
    (ResumeDueWaits(NOW), {"type": "resume_due_waits", "now": NOW}, None),
    (ResumeDueRetries(NOW), {"type": "resume_due_retries", "now": NOW}, None),
]


@pytest.mark.parametrize(("task", "shape", "target"), KINDS, ids=[task.type for task, _, _ in KINDS])
def test_scenario_82_each_kind_round_trips(task: FlowTask, shape: dict[str, object], target: str | None) -> None:
    raw = task.to_json()
    assert json.loads(raw) == shape
    assert list(json.loads(raw)) == list(shape)
    again = FlowTask.from_json(raw)
    assert again == task
    assert type(again) is type(task)
    assert FlowTask.from_json(json.dumps({**shape, "later": 1}, indent=1).encode()) == task
    assert task.target == target


def test_only_two_kinds_drive_and_nothing_else() -> None:
    assert [task.type for task, _, _ in KINDS if task.drives] == ["drive_run", "resume_scheduled_run"]


def test_now_is_an_instant_however_it_is_given() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert (
        ResumeDueWaits(moment)
        == ResumeDueWaits("2026-01-01T01:00:00+01:00")
        == ResumeDueWaits(Instant.parse("2026-01-01T00:00:00Z"))
    )
    with pytest.raises(Serialization):
        ResumeScheduledRun("r", datetime(2026, 1, 1))


def test_tokens_and_payloads_are_in_no_repr() -> None:
    task = ResumeHookByToken("canary-secret", {"card": "4711"})
    assert "canary" not in repr(task)
    assert "4711" not in repr(task)
    assert "4711" not in repr(ResumeHook("r", "h", {"card": "4711"}))
    assert "canary" not in repr(DisposeHookByToken("canary-secret"))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'{"run_id":"r"}',
        b'{"type":7}',
        b'{"type":"send_signal","run_id":"r","signal":"canary-s"}',
        b'{"type":"drive_run"}',
        b'{"type":"drive_run","run_id":null}',
        b'{"type":"resume_hook","run_id":"r","hook_id":"h"}',
        b'{"type":"resume_due_waits","now":"canary-now"}',
        b'{"type":"resume_due_waits","now":5}',
        b'{"type":"drive_run","run_id":"canary"} {}',
        b'{"type":"drive_run","run_id":"\xff"}',
        b'{"type":"resume_hook","run_id":"r","hook_id":"h","payload":1e400}',
    ],
)
def test_what_is_no_task_is_refused_without_its_bytes(raw: bytes) -> None:
    with pytest.raises(Serialization) as refused:
        FlowTask.from_json(raw)
    assert "canary" not in str(refused.value)


def test_a_field_that_cannot_be_stored_is_refused() -> None:
    for task in (DriveRun("\ud800"), DriveRun(5), ResumeHook("r", "h", object())):  # type: ignore[arg-type]  # refused at the door
        with pytest.raises(Serialization):
            task.to_json()
