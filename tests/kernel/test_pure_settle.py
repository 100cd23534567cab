"""settle, starts, closing: attempts and what they lead to (R5, R7, R10, R15, R19, R25, R26, R53)."""

from __future__ import annotations

import json

import pytest
from kernel.pure_support import (
    MS,
    SECOND,
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
    types,
    wait_created,
)

from perdure.errors import FlowError
from perdure.instant import MAX_NS, format_instant
from perdure.kernel import Reads, Run


def running(*, attempts: int = 3, delay_ms: int = 0, **policy: object) -> Run:
    return started(step_created("a", attempts=attempts, delay_ms=delay_ms, **policy), step_started("a"))


def settle(
    reads: Reads,
    outcome: object,
    *,
    attempt: int = 1,
    clock: int = 0,
    horizon: int = 0,
    restart: bool = True,
    step_id: str = "a",
) -> list[str]:
    return texts(reads.settle(step_id, attempt, j(outcome), clock, horizon, restart))


FAILED = {"type": "failed", "error": "runtime error: no"}
RETRYING = '{"type":"step_retrying","step_id":"a","attempt":1,"error":"runtime error: no","retry_after":'


def test_success_keeps_the_output_byte_for_byte() -> None:
    outcome = b'{"type":"completed","output":{"a": 1e400}}'
    assert running().settle("a", 1, outcome, 0, 0, True) == [
        b'{"type":"step_completed","step_id":"a","output":{"a": 1e400}}'
    ]


def test_an_immediate_retry_restarts_in_the_same_append_unless_settling() -> None:
    assert settle(running(), FAILED) == [RETRYING + "null}", '{"type":"step_started","step_id":"a","attempt":2}']
    assert settle(running(), FAILED, restart=False) == [RETRYING + "null}"]


def test_a_delay_counts_from_the_later_of_clock_and_horizon() -> None:
    run = running(delay_ms=1500)
    assert settle(run, FAILED, clock=SECOND, horizon=2 * SECOND) == [RETRYING + '"1970-01-01T00:00:03.500Z"}']
    assert settle(run, FAILED, clock=2 * SECOND, horizon=SECOND) == [RETRYING + '"1970-01-01T00:00:03.500Z"}']


def test_an_exponential_delay_is_the_jittered_one() -> None:
    run = started(
        step_created("step-1", attempts=9, delay_ms=100, backoff="exponential", max_delay_ms=400),
        step_started("step-1"),
        run_id="run-1",
    )
    [draft] = settle(run, FAILED, step_id="step-1")
    assert json.loads(draft)["retry_after"] == format_instant(90 * MS)


@pytest.mark.parametrize(
    ("suggestion", "delay_ms", "due", "written"),
    [
        (500, 0, '"1970-01-01T00:00:00.500Z"', True),
        (500, 1000, '"1970-01-01T00:00:01Z"', True),
        (5000, 1000, '"1970-01-01T00:00:05Z"', True),
        (2**64 - 1, 0, f'"{format_instant(MAX_NS)}"', True),
        (2**64, 0, "null", False),
        (10**30, 1000, '"1970-01-01T00:00:01Z"', False),
        (0, 0, "null", False),
        (-1, 0, "null", False),
        (-(10**30), 0, "null", False),
        (None, 0, "null", False),
    ],
)
def test_a_suggested_delay(suggestion: int | None, delay_ms: int, due: str, written: bool) -> None:
    run = running(delay_ms=delay_ms)
    draft = settle(run, {**FAILED, "retry_after_ms": suggestion}, restart=False)[0]
    assert draft == RETRYING + due + (f',"suggested_delay_ms":{suggestion}}}' if written else "}")
    stage(run, json.loads(draft))


def test_a_deadline_past_the_calendar_is_its_last_instant() -> None:
    [draft] = settle(running(delay_ms=1), FAILED, clock=MAX_NS)
    assert json.loads(draft)["retry_after"] == "9999-12-31T23:59:59.999999999Z"


def test_exhaustion_and_final_failures() -> None:
    run = running(attempts=1)
    failure = {"type": "m.E", "message": "no", "traceback": "…"}
    text = json.dumps(failure, separators=(",", ":"), ensure_ascii=False)
    failed = '{"type":"step_failed","step_id":"a","attempt":1,"error":"runtime error: no"'
    assert settle(run, {**FAILED, "retry_after_ms": 5}) == [failed + "}"]
    assert settle(run, {**FAILED, "failure": failure}) == [f'{failed},"failure":{text}}}']
    final = {"type": "non_retryable", "error": "non-retryable step error: no", "failure": failure}
    assert settle(running(), final) == [
        (
            '{"type":"step_non_retryable","step_id":"a","attempt":1,"error":"non-retryable step error: no",'
            f'"failure":{text}}}'
        )
    ]
    assert settle(running(attempts=0), FAILED) == [failed + "}"]


def test_an_outcome_that_no_longer_counts_is_dropped() -> None:
    run = running()
    assert settle(run, FAILED, attempt=2) == settle(run, FAILED, attempt=0) == settle(run, FAILED, step_id="b") == []
    done = stage(run, event("step_completed", step_id="a", output=1))
    assert settle(done, FAILED) == []
    assert settle(stage(run, event("run_cancelled", reason=None)), FAILED) == []
    assert settle(stage(run, event("run_cancellation_requested", request={})), FAILED) == []
    assert settle(started(step_created("a")), FAILED, attempt=0) == []
    assert settle(pure.new("r", 9), FAILED) == []


def test_an_oversized_output_is_a_final_failure() -> None:
    run = started(step_created("a", attempts=3), step_started("a"), max_bytes=200)
    fits = "x" * (200 - len('{"type":"step_completed","step_id":"a","output":""}'))
    assert types(run.settle("a", 1, j({"type": "completed", "output": fits}), 0, 0, True)) == ["step_completed"]
    assert settle(run, {"type": "completed", "output": fits + "y"}) == [
        (
            '{"type":"step_non_retryable","step_id":"a","attempt":1,'
            '"error":"serialization error: flow.step.completed would take 201 bytes and 200 are allowed"}'
        )
    ]


def test_long_texts_are_cut_at_a_character_and_lone_surrogates_replaced() -> None:
    run = running(attempts=1)
    message = "x" * 65_535 + "é"
    failure = {"type": "E", "message": message, "more": [1.0]}
    stored = json.loads(settle(run, {"type": "failed", "error": message, "failure": failure})[0])
    assert stored["error"] == "x" * 65_535
    assert stored["failure"] == {**failure, "message": "x" * 65_535}
    raw = b'{"type":"failed","error":"a\\ud800b\\ud83d\\ude00","failure":{ "message" : "\\udc00", "raw":"\\udc00"}}'
    assert run.settle("a", 1, raw, 0, 0, True) == [
        '{"type":"step_failed","step_id":"a","attempt":1,"error":"a\ufffdb😀",'
        '"failure":{ "message" : "\ufffd", "raw":"\\udc00"}}'.encode()
    ]


@pytest.mark.parametrize(
    "outcome",
    [
        b"{",
        b"1",
        b'{"type":"ok"}',
        b'{"type":"completed"}',
        b'{"type":"failed","error":null}',
        b'{"type":"failed","error":"e","retry_after_ms":1.0}',
        b'{"type":"failed","error":"e","failure":[]}',
        b'{"type":"failed","error":"e","failure":{"a":1,"a":2}}',
    ],
)
def test_what_is_no_outcome_is_serialization(outcome: bytes) -> None:
    with pytest.raises(FlowError) as info:
        running().settle("a", 9, outcome, 0, 0, True)
    assert refusal(info)[0] == "Serialization"


def test_starts_running_before_pending_each_in_order_of_creation() -> None:
    run = started(*(step_created(key) for key in "dcba"), step_started("b"), step_started("d"))
    assert run.starts(0, (), 9) == [("d", 1, False), ("b", 1, False), ("c", 1, True), ("a", 1, True)]
    assert run.starts(0, {("d", 1)}, 9) == [("b", 1, False), ("c", 1, True), ("a", 1, True)]
    assert run.starts(0, {("d", 1)}, 3) == [("b", 1, False), ("c", 1, True)]
    assert run.starts(0, {("d", 1), ("b", 1)}, 2) == run.starts(0, {("d", 1)}, 1) == run.starts(0, (), 0) == []
    assert run.starts(0, {("d", 2), ("x", 1)}, 1) == [("d", 1, False)]
    ended = stage(run, event("step_completed", step_id="d", output=1))
    assert ended.starts(0, {("d", 1)}, 1) == [("b", 1, False)]


def test_a_delayed_retry_starts_once_it_is_due() -> None:
    run = started(step_created("a", attempts=2, delay_ms=1000), step_started("a"))
    due = commit(run, event("step_retrying", step_id="a", attempt=1, error="e", retry_after="1970-01-01T00:00:01Z"))
    assert due.starts(SECOND - 1, (), 9) == []
    assert due.starts(SECOND, (), 9) == [("a", 2, True)]
    assert stage(due, event("run_failed", error="e")).starts(SECOND, (), 9) == []
    assert pure.new("r", 9).starts(0, (), 9) == []


def failed_run(*, kind: str = "step_failed", **policy: object) -> Run:
    return started(
        *(step_created(key) for key in ("b", "é", "z", "done")),
        step_started("z"),
        step_started("done"),
        event("step_completed", step_id="done", output=1),
        step_created("a", **policy),
        step_started("a"),
        wait_created("w"),
        hook_created("h"),
        event(kind, step_id="a", attempt=1, error="why"),
    )


def test_closing_cancels_open_steps_by_id_and_ends_the_run() -> None:
    run = failed_run()
    reason = '"reason":"run failed by step a; outcome unknown"}'
    assert texts(run.closing()) == [
        '{"type":"step_cancelled","step_id":"b","attempt":0,' + reason,
        '{"type":"step_cancelled","step_id":"z","attempt":1,' + reason,
        '{"type":"step_cancelled","step_id":"é","attempt":0,' + reason,
        '{"type":"run_retry_exhausted","step_id":"a","attempt":1,"error":"why"}',
    ]
    view = run.stage(run.closing(), 0)
    assert view.terminal and view.closing() == []
    wait, hook = view.wait("w"), view.hook("h")
    assert wait is not None and wait.status == "waiting" and hook is not None and hook.status == "active"


def test_closing_names_the_first_final_failure_and_its_kind() -> None:
    assert texts(failed_run(kind="step_non_retryable").closing())[-1] == '{"type":"run_failed","error":"why"}'
    second = commit(failed_run(), event("step_non_retryable", step_id="z", attempt=1, error="later"))
    assert types(second.closing()) == ["step_cancelled", "step_cancelled", "run_retry_exhausted"]
    assert failed_run(on_exhausted="continue_workflow").closing() == []
    assert created().closing() == pure.new("r", 9).closing() == []


def test_a_final_failure_before_a_request_still_closes() -> None:
    run = commit(failed_run(), event("run_cancellation_requested", request={}))
    assert types(run.closing()) == ["run_retry_exhausted"]
