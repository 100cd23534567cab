"""Scenarios 69 to 72: histories that no engine wrote, on both kernels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure import InvalidTransition, Serialization, WorkflowSpec
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel

Event = dict[str, Any]

CREATED: Event = {"type": "run_created", "spec": json.loads(WorkflowSpec.python("flow", "1").to_json()), "input": None}
STARTED: Event = {"type": "run_started"}
REQUEST: Event = {"type": "run_cancellation_requested", "request": {"reason": "stop"}}
DONE: Event = {"type": "run_completed", "output": 1}
DUE = "2026-01-01T00:01:00Z"
WAIT: Event = {"type": "wait_created", "wait_id": "w", "resume_at": DUE}
WAITED: Event = {"type": "wait_completed", "wait_id": "w"}
HOOK: Event = {"type": "hook_created", "hook_id": "h", "token": "canary-h", "metadata": None}
RECEIVED: Event = {"type": "hook_received", "hook_id": "h", "payload": 1}
DISPOSED: Event = {"type": "hook_disposed", "hook_id": "h"}


def step(kind: str, attempt: int | None = None, **more: Any) -> Event:
    found: Event = {"type": f"step_{kind}", "step_id": "s"}
    return found | ({} if attempt is None else {"attempt": attempt}) | more


def created(max_attempts: int = 2, delay_ms: int = 0) -> Event:
    return step("created", step_name="work", input=None, retry={"max_attempts": max_attempts, "delay_ms": delay_ms})


def line(sequence: int, event: Event, run_id: str = "r") -> bytes:
    head = {"run_id": run_id, "sequence": sequence, "event_id": f"00000000-0000-4000-8000-{sequence:012}"}
    return json.dumps(head | {"timestamp": "2026-01-01T00:00:00Z", "event": event}).encode() + b"\n"


def lines(*events: Event) -> bytes:
    return b"".join(line(number, event) for number, event in enumerate(events, 1))


def fold(kernel: Kernel, lines: list[bytes]) -> None:
    """Folds line by line; a refused tail must leave the run as it was."""
    run = kernel.project("r", lines[0], DEFAULT_MAX_EVENT_BYTES)
    for one in lines[1:]:
        before = run.snapshot()
        try:
            run.extend(one)
        except InvalidTransition:
            assert run.snapshot() == before
            raise


def refused(kernel: Kernel, history: bytes) -> tuple[Any, ...]:
    """The fields of the refusal, the same from nothing and folded line by line onto what went before."""
    with pytest.raises(InvalidTransition) as whole:
        kernel.project("r", history, DEFAULT_MAX_EVENT_BYTES)
    with pytest.raises(InvalidTransition) as stepwise:
        fold(kernel, history.splitlines(keepends=True))
    assert stepwise.value.args == whole.value.args
    return whole.value.args[1:]


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((STARTED,), ("first_not_created", None, None, 1, None)),
        ((CREATED, CREATED), ("created_again", None, None, 2, None)),
        ((CREATED, STARTED, DONE, WAIT), ("run_ended", None, None, 4, None)),
        ((CREATED, STARTED, DONE, DONE), ("run_ended", None, None, 4, None)),
        ((CREATED, STARTED, STARTED), ("run_not_pending", None, None, 3, "running")),
    ],
)
def test_69_order_of_run_events(kernel: Kernel, events: tuple[Event, ...], rule: tuple[Any, ...]) -> None:
    """First event not created, a second creation, anything behind the end."""
    assert refused(kernel, lines(*events)) == rule


@pytest.mark.parametrize(("numbers", "found", "due"), [((1, 3), 3, "2"), ((1, 1), 1, "2"), ((2,), 2, "1")])
def test_69_gap_in_the_sequence(kernel: Kernel, numbers: tuple[int, ...], found: int, due: str) -> None:
    """A gap, a repeat, a history that does not begin at 1."""
    history = b"".join(line(number, event) for number, event in zip(numbers, (CREATED, STARTED), strict=False))
    assert refused(kernel, history) == ("sequence_gap", None, None, found, due)


def test_69_foreign_run_id(kernel: Kernel) -> None:
    """A line of another run is `Serialization`, with its line."""
    with pytest.raises(Serialization) as refused:
        kernel.project("r", lines(CREATED) + line(2, STARTED, "other"), DEFAULT_MAX_EVENT_BYTES)
    assert (refused.value.rule, refused.value.line) == ("foreign_run", 2)


RUNNING = (CREATED, STARTED, created(), step("started", 1))
DELAYED = (CREATED, STARTED, created(delay_ms=60_000), step("started", 1))


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((*RUNNING, step("started", 1)), ("step_not_pending", "step", "s", 5, "running")),
        ((*RUNNING[:3], step("completed", output=1)), ("step_not_running", "step", "s", 4, "pending")),
        ((*RUNNING[:2], step("started", 1)), ("id_unknown", "step", "s", 3, None)),
        ((*RUNNING[:3], step("started", 2)), ("attempt_mismatch", "step", "s", 4, "1")),
        ((*RUNNING, step("failed", 2, error="e")), ("attempt_mismatch", "step", "s", 5, "1")),
        (
            (*RUNNING, step("retrying", 1, error="e", retry_after=None), step("started", 1)),
            ("attempt_mismatch", "step", "s", 6, "2"),
        ),
        (
            (CREATED, STARTED, created(1), step("started", 1), step("retrying", 1, error="e", retry_after=None)),
            ("retry_beyond_budget", "step", "s", 5, "1"),
        ),
        (
            (*RUNNING, step("retrying", 1, error="e", retry_after=DUE)),
            ("retry_after_unexpected", "step", "s", 5, None),
        ),
        ((*DELAYED, step("retrying", 1, error="e", retry_after=None)), ("retry_after_missing", "step", "s", 5, None)),
        ((*RUNNING, step("failed", 1, error="e")), ("attempts_left", "step", "s", 5, "2")),
        ((*RUNNING[:3], created()), ("id_used", "step", "s", 4, None)),
    ],
)
def test_70_steps(kernel: Kernel, events: tuple[Event, ...], rule: tuple[Any, ...]) -> None:
    """Started twice, completed before it started, retry beyond the budget, deadline against delay, wrong attempt."""
    assert refused(kernel, lines(*events)) == rule


@pytest.mark.parametrize(
    ("field", "change"),
    [("attempt", {"attempt": 1}), ("error", {"error": "other"}), ("status", {"step_id": "s"})],
)
def test_70_exhaustion_must_match_its_step(kernel: Kernel, field: str, change: Event) -> None:
    """`run_retry_exhausted` with another attempt or error, or of a step that has not failed (fixed bug 25)."""
    failed: tuple[Event, ...] = (*RUNNING, step("retrying", 1, error="e", retry_after=None), step("started", 2))
    if field != "status":
        failed = (*failed, step("failed", 2, error="e"))
    event = {"type": "run_retry_exhausted", "step_id": "s", "attempt": 2, "error": "e"} | change
    assert refused(kernel, lines(*failed, event)) == ("exhausted_mismatch", "step", "s", len(failed) + 1, field)


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((WAIT, WAIT), ("id_used", "wait", "w", 4, None)),
        ((WAITED,), ("id_unknown", "wait", "w", 3, None)),
        ((WAIT, WAITED, WAITED), ("wait_not_waiting", "wait", "w", 5, "completed")),
        ((HOOK, HOOK), ("id_used", "hook", "h", 4, None)),
        ((RECEIVED,), ("id_unknown", "hook", "h", 3, None)),
        ((DISPOSED,), ("id_unknown", "hook", "h", 3, None)),
        ((HOOK, RECEIVED, RECEIVED), ("hook_not_active", "hook", "h", 5, "received")),
        ((HOOK, RECEIVED, DISPOSED), ("hook_not_active", "hook", "h", 5, "received")),
        ((HOOK, DISPOSED, RECEIVED), ("hook_not_active", "hook", "h", 5, "disposed")),
        ((WAIT, REQUEST, WAITED), ("wait_not_waiting", "wait", "w", 5, "cancelled")),
    ],
)
def test_71_waits_and_hooks(kernel: Kernel, events: tuple[Event, ...], rule: tuple[Any, ...]) -> None:
    """Wait and hook: duplicate, unknown, resolved twice."""
    assert refused(kernel, lines(CREATED, STARTED, *events)) == rule


@pytest.mark.parametrize(("event", "rule"), [(REQUEST, "request_twice"), (DONE, "complete_while_cancelling")])
def test_72_cancelling(kernel: Kernel, event: Event, rule: str) -> None:
    """A second cancellation request; complete while cancelling."""
    assert refused(kernel, lines(CREATED, STARTED, REQUEST, event)) == (rule, None, None, 4, None)


@pytest.mark.parametrize(
    "events", [(*RUNNING, step("completed", output=1), DONE), (CREATED, STARTED, WAIT, WAITED, HOOK, DISPOSED)]
)
def test_72_the_base_histories_are_legal(kernel: Kernel, events: tuple[Event, ...]) -> None:
    """What the refusals above vary is itself accepted."""
    assert kernel.project("r", lines(*events), DEFAULT_MAX_EVENT_BYTES).last_sequence == len(events)
