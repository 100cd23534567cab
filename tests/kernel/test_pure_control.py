"""control: the tables of spec 06 with R22 to R24, R33 and R58."""

from __future__ import annotations

import pytest
from kernel.pure_support import (
    SECOND,
    SPEC,
    commit,
    created,
    event,
    hook_created,
    j,
    pure,
    refusal,
    stage,
    started,
    step_created,
    step_started,
    texts,
    wait_created,
)

from perdure.errors import FlowError
from perdure.kernel import Reads, Run

Answer = tuple[list[str], bool, bool]
NOTHING: Answer = ([], False, False)


def call(reads: Reads, op: str, *, clock: int = 0, **fields: object) -> Answer:
    answer = reads.control(j({"op": op, **fields}), clock)
    return texts(answer.drafts), answer.drive, answer.admit


def refused(reads: Reads, op: str, **fields: object) -> tuple[object, ...]:
    with pytest.raises(FlowError) as info:
        call(reads, op, **fields)
    return refusal(info)


def ended(run: Run) -> Run:
    return commit(run, event("run_cancelled", reason=None))


def kept_hooks() -> Run:
    """One hook in each state, on an open run."""
    return started(
        hook_created("received"),
        hook_created("disposed"),
        hook_created("cancelled"),
        event("hook_received", hook_id="received", payload={"a": 1, "b": 2}),
        event("hook_disposed", hook_id="disposed"),
        event("run_cancellation_requested", request={"reason": "r"}),
        hook_created("active"),
    )


CREATED = (
    '{"type":"run_created","spec":{"name":"demo","version":"1","runtime":{"kind":"rust_embedded","entrypoint":"demo",'
    '"export_name":"main"}},"input":{"k":1}}'
)
STARTED = '{"type":"run_started"}'


def test_starting_a_new_run() -> None:
    run = pure.new("r", 999)
    spec = {**SPEC, "extra": 1, "signal_names": None}
    assert call(run, "start", spec=spec, input={"k": 1}) == ([CREATED, STARTED], True, True)
    assert call(run, "start", spec=spec, input={"k": 1}, drive=False) == ([CREATED], False, True)
    assert refused(run, "start", spec={**SPEC, "name": " "}, input=1) == ("InvalidWorkflow", "name")
    assert refused(run, "start", spec=SPEC, input="x" * 999)[:2] == ("PayloadTooLarge", "flow.run.created")
    assert refused(pure.new("a" * 201, 999), "start", spec=SPEC, input=1) == ("InvalidRunId", "a" * 201, "length")
    assert refused(pure.new("a/b", 999), "start", spec=SPEC, input=1) == ("InvalidRunId", "a/b", "characters")


def test_starting_again() -> None:
    same = {"spec": SPEC, "input": {"k": 1}}
    assert call(created(), "start", **same) == ([STARTED], True, True)
    assert call(created(), "start", **same, drive=False) == NOTHING
    assert call(started(), "start", **same) == ([], True, True)
    assert call(ended(created()), "start", **same) == NOTHING
    assert refused(started(), "start", spec={**SPEC, "version": "2"}, input=2) == ("RunConflict", "r", "spec")
    assert refused(started(), "start", spec=SPEC, input={"k": 1.0}) == ("RunConflict", "r", "input")
    pinned = pure.new("r", 999)
    pinned = commit(pinned, event("run_created", spec={**SPEC, "runtime_build_id": "b1"}, input={"k": 1}))
    assert call(pinned, "start", **same) == ([STARTED], True, True)
    assert refused(pinned, "start", spec={**SPEC, "runtime_build_id": "b2"}, input=1) == ("RunConflict", "r", "spec")


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("drive", {}),
        ("resume_wait", {"wait_id": "w"}),
        ("resume_hook", {"hook_id": "h", "payload": 1}),
        ("dispose_hook", {"hook_id": "h"}),
        ("request_cancellation", {}),
        ("force_cancel", {}),
        ("terminate_for_timeout", {"deadline": "2026-01-01T00:00:00Z"}),
        ("terminate_for_host_shutdown", {}),
        ("record_progress", {"progress": {"progress_id": "p", "completed": 1}}),
        ("link_child_operation", {"child": {"reference_id": "c", "kind": "k", "operation_id": "o"}}),
        ("resume_scheduled_run", {"now": "2026-01-01T00:00:00Z"}),
        ("resume_due_waits", {"now": "2026-01-01T00:00:00Z"}),
        ("resume_due_retries", {"now": "2026-01-01T00:00:00Z"}),
    ],
)
def test_only_start_is_legal_on_a_run_without_events(op: str, fields: dict[str, object]) -> None:
    assert refused(pure.new("r", 999), op, **fields) == ("RunNotFound", "r")


def test_drive_repairs_a_pending_run() -> None:
    assert call(created(), "drive") == ([STARTED], True, True)
    assert call(started(), "drive") == ([], True, True)
    assert call(ended(started()), "drive") == NOTHING


def test_resume_wait() -> None:
    run = started(wait_created("w"), wait_created("c"), event("wait_completed", wait_id="c"))
    done = ['{"type":"wait_completed","wait_id":"w"}']
    assert call(run, "resume_wait", wait_id="w", clock=10 * SECOND) == (done, True, True)
    assert call(run, "resume_wait", wait_id="w", clock=10 * SECOND, drive=False) == (done, False, True)
    assert call(run, "resume_wait", wait_id="w", early=True) == (done, True, True)
    not_due = ("wait_not_due", "wait", "w", None, "1970-01-01T00:00:10Z")
    assert refused(run, "resume_wait", wait_id="w", clock=10 * SECOND - 1) == not_due
    assert call(run, "resume_wait", wait_id="c") == ([], True, True)
    assert call(run, "resume_wait", wait_id="c", drive=False) == NOTHING
    assert refused(run, "resume_wait", wait_id="x") == ("id_unknown", "wait", "x", None, None)
    assert refused(run, "resume_wait", wait_id="") == ("blank_id", "wait", "", None, None)
    over = ended(run)
    assert call(over, "resume_wait", wait_id="w") == NOTHING
    assert refused(over, "resume_wait", wait_id="x") == ("RunTerminal", "r")
    assert refused(over, "resume_wait", wait_id="\x85") == ("blank_id", "wait", "\x85", None, None)


def test_resume_hook() -> None:
    run = kept_hooks()
    received = ['{"type":"hook_received","hook_id":"active","payload":{"b":[1.0]}}']
    assert call(run, "resume_hook", hook_id="active", payload={"b": [1.0]}) == (received, True, True)
    assert call(run, "resume_hook", hook_id="received", payload={"b": 2, "a": 1}) == ([], True, True)
    assert refused(run, "resume_hook", hook_id="received", payload={"b": 2, "a": 1.0}) == (
        "HookConflict",
        "r",
        "received",
        "payload",
    )
    assert refused(run, "resume_hook", hook_id="disposed", payload=1) == ("HookConflict", "r", "disposed", "disposed")
    assert refused(run, "resume_hook", hook_id="cancelled", payload=1) == (
        "HookConflict",
        "r",
        "cancelled",
        "cancelled",
    )
    assert refused(run, "resume_hook", hook_id="x", payload=1) == ("id_unknown", "hook", "x", None, None)
    over = ended(run)
    assert refused(over, "resume_hook", hook_id="active", payload=1) == ("RunTerminal", "r")
    assert refused(over, "resume_hook", hook_id="x", payload=1) == ("RunTerminal", "r")
    assert call(over, "resume_hook", hook_id="received", payload={"a": 1, "b": 2}) == NOTHING
    assert refused(over, "resume_hook", hook_id="received", payload=0) == ("HookConflict", "r", "received", "payload")
    assert (
        refused(started(hook_created("h"), max_bytes=200), "resume_hook", hook_id="h", payload="x" * 200)[0]
        == "PayloadTooLarge"
    )


def test_dispose_hook() -> None:
    run = kept_hooks()
    assert call(run, "dispose_hook", hook_id="active", drive=False)[1:] == (False, True)
    assert call(run, "dispose_hook", hook_id="disposed") == ([], True, True)
    assert refused(run, "dispose_hook", hook_id="received") == ("HookConflict", "r", "received", "received")
    assert refused(run, "dispose_hook", hook_id="cancelled") == ("HookConflict", "r", "cancelled", "cancelled")
    over = ended(run)
    assert call(over, "dispose_hook", hook_id="disposed") == NOTHING
    assert refused(over, "dispose_hook", hook_id="active") == ("RunTerminal", "r")
    assert refused(over, "dispose_hook", hook_id="x") == ("RunTerminal", "r")


def test_request_cancellation() -> None:
    request = '{"type":"run_cancellation_requested","request":'
    assert call(created(), "request_cancellation") == ([request + "{}}"], True, True)
    assert call(started(), "request_cancellation", reason="r", drive=False) == (
        [request + '{"reason":"r"}}'],
        False,
        True,
    )
    run = started(event("run_cancellation_requested", request={"reason": "r"}))
    assert call(run, "request_cancellation", reason="r") == ([], True, True)
    assert call(run, "request_cancellation", reason="r", drive=False) == NOTHING
    assert refused(run, "request_cancellation", reason=None) == ("RunConflict", "r", "request")
    assert call(ended(run), "request_cancellation", reason="other") == NOTHING


def test_forced_ends_need_no_admission_and_drive_nothing() -> None:
    for op, fields, draft in (
        ("force_cancel", {}, '{"type":"run_cancelled","reason":null}'),
        ("force_cancel", {"reason": "r"}, '{"type":"run_cancelled","reason":"r"}'),
        (
            "terminate_for_timeout",
            {"deadline": "2026-01-01T01:00:00+01:00"},
            '{"type":"run_timed_out","deadline":"2026-01-01T00:00:00Z","reason":null}',
        ),
        ("terminate_for_host_shutdown", {"reason": None}, '{"type":"run_host_shutdown","reason":null}'),
    ):
        for run in (created(), started(), started(event("run_cancellation_requested", request={}))):
            assert call(run, op, **fields) == ([draft], False, False)
        assert call(ended(started()), op, **fields) == NOTHING


def test_progress_and_child_links() -> None:
    first = {"progress_id": "p", "completed": 1, "total": 2, "details": {"a": 1}}
    run = started()
    drafts, *flags = call(run, "record_progress", progress={**first, "message": None})
    assert drafts == [
        '{"type":"run_progress_recorded","progress":{"progress_id":"p","completed":1,"total":2,"details":{"a":1}}}'
    ]
    assert flags == [False, False]
    commit(run, event("run_progress_recorded", progress=first))
    assert call(run, "record_progress", progress=first) == NOTHING
    drifted = refused(run, "record_progress", progress={**first, "completed": 2})
    assert drifted[:6] == ("NonDeterministic", "r", "progress", "p", "progress", 3)
    assert refused(run, "record_progress", progress={**first, "total": 0})[0] == "progress_invalid"
    assert refused(run, "record_progress", progress={"progress_id": "é" * 257, "completed": 1})[0] == "id_too_long"
    link = {"reference_id": "c", "kind": "k", "operation_id": "o", "flow_run_id": "other"}
    assert call(run, "link_child_operation", child=link)[1:] == (False, False)
    assert refused(run, "link_child_operation", child={**link, "kind": ""}) == (
        "child_invalid",
        "child",
        "c",
        None,
        "kind",
    )
    assert refused(run, "link_child_operation", child={**link, "reference_id": ""})[0] == "blank_id"
    over = ended(run)
    assert refused(over, "record_progress", progress=first) == ("RunTerminal", "r")
    assert refused(over, "record_progress", progress={**first, "total": 0})[0] == "progress_invalid"


def test_due_work() -> None:
    run = started(
        wait_created("b", "1970-01-01T00:00:01Z"),
        wait_created("a", "1970-01-01T00:00:01Z"),
        wait_created("first", "1970-01-01T00:00:00.5Z"),
        step_created("s", attempts=2, delay_ms=1),
        step_started("s"),
        event("step_retrying", step_id="s", attempt=1, error="e", retry_after="1970-01-01T00:00:02Z"),
    )
    completed = [f'{{"type":"wait_completed","wait_id":"{key}"}}' for key in ("first", "a", "b")]
    for now, waits, retry in ((0, 0, False), (0.5, 1, False), (1, 3, False), (2, 3, True)):
        at = {"now": f"1970-01-01T00:00:0{now}Z"}
        assert call(run, "resume_scheduled_run", **at) == (completed[:waits], bool(waits) or retry, True)
        assert call(run, "resume_due_waits", **at) == (completed[:waits], waits > 0, waits > 0)
        assert call(run, "resume_due_retries", **at) == ([], retry, retry)
    over = ended(run)
    for op in ("resume_scheduled_run", "resume_due_waits", "resume_due_retries"):
        assert call(over, op, now="2026-01-01T00:00:00Z") == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b'{"op":"undo"}',
        b'{"op":"resume_wait"}',
        b'{"op":"resume_wait","wait_id":"","early":null}',
        b'{"op":"resume_hook","hook_id":""}',
        b'{"op":"start","spec":{},"input":1}',
        b'{"op":"drive","op":"drive"}',
        b'{"op":"resume_due_waits","now":1}',
    ],
)
def test_what_is_no_call_is_serialization(text: bytes) -> None:
    with pytest.raises(FlowError) as info:
        pure.new("r", 999).control(text, 0)
    assert refusal(info)[0] == "Serialization"


def test_a_view_answers_calls_too() -> None:
    assert call(stage(created(), event("run_started")), "drive") == ([], True, True)
