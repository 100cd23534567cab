"""decide: what is accepted, and which refusal comes first (R16, R34, R40, spec 03)."""

from __future__ import annotations

from typing import Any

import pytest
from kernel.pure_support import (
    MS,
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
    types,
    wait_created,
)

from perdure.errors import FlowError
from perdure.instant import MAX_NS
from perdure.kernel import Decision, Reads

Member = dict[str, Any]


def step(step_id: str, value: object = 1, **more: object) -> Member:
    return {"type": "step", "step_id": step_id, "step_name": "n", "input": value, **more}


def wait(wait_id: str, resume_at: str = "1970-01-01T00:00:10Z") -> Member:
    return {"type": "wait_until", "wait_id": wait_id, "resume_at": resume_at}


def hook(hook_id: str, token: str | None = None, **more: object) -> Member:
    return {"type": "hook", "hook_id": hook_id, "token": token or f"secret-{hook_id}", **more}


def progress(progress_id: str, completed: int = 1, **more: object) -> Member:
    return {"type": "record_progress", "progress": {"progress_id": progress_id, "completed": completed, **more}}


def child(reference_id: str, **more: object) -> Member:
    return {
        "type": "link_child_operation",
        "child": {"reference_id": reference_id, "kind": "k", "operation_id": "o", **more},
    }


def dispose(hook_id: str) -> Member:
    return {"type": "dispose_hook", "hook_id": hook_id}


def close(wait_id: str) -> Member:
    return {"type": "close_wait", "wait_id": wait_id}


def decide(reads: Reads, *members: Member, clock: int = 0, horizon: int = 0) -> Decision:
    return reads.decide(j({"type": "schedule_all", "members": members}), clock, horizon)


def refused(reads: Reads, *members: Member, clock: int = 0) -> tuple[object, ...]:
    with pytest.raises(FlowError) as info:
        decide(reads, *members, clock=clock)
    return refusal(info)


def everything() -> Reads:
    """A run with one of everything in each state that a command can meet."""
    done = [step_created("done"), step_started("done"), event("step_completed", step_id="done", output=2)]
    return started(
        step_created("open"),
        *done,
        wait_created("open"),
        wait_created("done"),
        event("wait_completed", wait_id="done"),
        hook_created("open"),
        hook_created("got"),
        event("hook_received", hook_id="got", payload=1),
        hook_created("gone"),
        event("hook_disposed", hook_id="gone"),
        event("run_progress_recorded", progress={"progress_id": "p", "completed": 1}),
        event("child_operation_linked", child={"reference_id": "c", "kind": "k", "operation_id": "o"}),
    )


DEFAULT_RETRY = {"max_attempts": 1, "delay_ms": 0}


def test_new_members_become_drafts_in_their_order() -> None:
    run = everything()
    decision = decide(run, hook("h"), dispose("open"), wait("w"), step("s"), close("open"), child("c2"), progress("p2"))
    assert types(decision.drafts) == [
        "hook_created",
        "hook_disposed",
        "wait_created",
        "step_created",
        "wait_completed",
        "child_operation_linked",
        "run_progress_recorded",
    ]
    assert not decision.ends and not decision.counts and decision.concurrency is None


def test_resolved_members_are_skipped_and_open_ones_only_checked() -> None:
    run = everything()
    known = [step(key, retry=DEFAULT_RETRY) for key in ("open", "done")]
    decision = decide(run, *known, wait("done"), hook("got"), progress("p"), step("new"))
    assert types(decision.drafts) == ["step_created"]
    assert decide(run, known[0], known[1]).drafts == []


def test_drafts_are_written_by_the_catalogue() -> None:
    run = started()
    retry = {"on_exhausted": "fail_run", "delay_ms": 5, "max_attempts": 2, "backoff": "exponential", "max_delay_ms": 9}
    drafts = decide(run, step('é"\\', {"b": [1.0, "\u2028"]}, retry=retry), step("d")).drafts
    assert texts(drafts) == [
        (
            '{"type":"step_created","step_id":"é\\"\\\\","step_name":"n","input":{"b":[1.0,"\u2028"]},'
            '"retry":{"max_attempts":2,"delay_ms":5,"backoff":"exponential","max_delay_ms":9}}'
        ),
        '{"type":"step_created","step_id":"d","step_name":"n","input":1,"retry":{"max_attempts":3,"delay_ms":0}}',
    ]


def test_payloads_stay_byte_for_byte_and_a_line_feed_between_tokens_becomes_a_space() -> None:
    command = b'{"type":"complete","output":{ "a" : 1e400,\n"a":"\\ud800"}}\n'
    decision = started().decide(command, 0, 0)
    assert decision.drafts == [b'{"type":"run_completed","output":{ "a" : 1e400, "a":"\\ud800"}}']
    assert decision.ends and not decision.counts


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"unknown"}',
        b'{"type":"fail"}',
        b'{"type":"fail","error":1}',
        b'{"type":"fail","error":"\\ud800"}',
        b'{"type":"fail","error":"a","error":"b"}',
        b'{"type":"timeout","deadline":"yesterday"}',
        b'{"type":"schedule_steps","steps":{}}',
        b'{"type":"schedule_steps","steps":[],"concurrency":0}',
        b'{"type":"schedule_all","members":[{"type":"schedule_step","step_id":"a","step_name":"n","input":1}]}',
        b'{"type":"schedule_step","step_id":"a","step_name":"n","input":1,"retry":null}',
        b'{"type":"schedule_step","step_id":"","step_name":"n"}',
        b'{"type":"wait_for","wait_id":"w","delay_ms":-1}',
    ],
)
def test_what_is_no_command_is_serialization(command: bytes) -> None:
    with pytest.raises(FlowError) as info:
        started().decide(command, 0, 0)
    assert refusal(info)[0] == "Serialization"


def test_refusals_come_in_the_order_of_r16() -> None:
    run = everything()
    drift = step("open", 2, retry=DEFAULT_RETRY)
    invalid = step("bad", retry={"max_attempts": 1, "delay_ms": 1, "max_delay_ms": 1})
    clash = hook("clash", "secret-open")
    assert refused(run) == ("empty_list", None, None, None, None)
    assert refused(run, drift, step("x"), step("x"), step("\u2003")) == ("blank_id", "step", "\u2003", None, None)
    assert refused(run, drift, hook("x", " ")) == ("blank_token", "hook", "x", None, None)
    assert refused(run, drift, progress("x", 2, total=1)) == ("progress_invalid", "progress", "x", None, "completed")
    assert refused(run, drift, child("x", flow_run_id="")) == ("child_invalid", "child", "x", None, "flow_run_id")
    assert refused(run, invalid, drift, step("x"), step("x")) == ("named_twice", "step", "x", None, None)
    assert refused(run, clash, drift, invalid) == ("NonDeterministic", "r", "step", "open", "input", 3, "1", "2")
    assert refused(run, invalid, clash) == ("HookTokenConflict", "secret-open", "r", "open")
    assert refused(run, step("done", retry=DEFAULT_RETRY), wait("done")) == ("nothing_new", None, None, None, None)
    assert refused(run, step("a"), invalid) == ("policy_invalid", "step", "bad", None, "max_delay_ms")


def test_limits_hold_for_new_ids_only() -> None:
    long, control = "é" * 257, "a\x9f"
    run = commit(started(), step_created(long), step_created(control), wait_created(long))
    known = [step(key, retry=DEFAULT_RETRY) for key in (long, control)]
    assert types(decide(run, *known, wait(long), step("new")).drafts) == ["step_created"]
    assert refused(started(), step(long)) == ("id_too_long", "step", long, None, "514")
    assert refused(started(), wait(control)) == ("id_control_character", "wait", control, None, None)
    assert refused(started(), step("a", step_name=long)) == ("name_too_long", "step", "a", None, "514")
    assert refused(started(), step("a", step_name="\t")) == ("name_control_character", "step", "a", None, None)
    assert types(decide(started(), step("a" * 512, step_name="")).drafts) == ["step_created"]


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        (step("open", step_name="m"), ("step", "open", "step_name", 3, '"n"', '"m"')),
        (step("open", 1.0), ("step", "open", "input", 3, "1", "1.0")),
        (
            step("open"),
            ("step", "open", "retry", 3, '{"max_attempts":1,"delay_ms":0}', '{"max_attempts":3,"delay_ms":0}'),
        ),
        (
            wait("open", "1970-01-01T01:00:10.5+01:00"),
            ("wait", "open", "resume_at", 7, '"1970-01-01T00:00:10Z"', '"1970-01-01T00:00:10.500Z"'),
        ),
        (hook("open", "other"), ("hook", "open", "token", 10, "<redacted>", "<redacted>")),
        (hook("open", metadata={}), ("hook", "open", "metadata", 10, "null", "{}")),
        (
            progress("p", 2),
            ("progress", "p", "progress", 15, '{"progress_id":"p","completed":1}', '{"progress_id":"p","completed":2}'),
        ),
        (
            child("c", metadata=0),
            (
                "child",
                "c",
                "child",
                16,
                '{"reference_id":"c","kind":"k","operation_id":"o"}',
                '{"reference_id":"c","kind":"k","operation_id":"o","metadata":0}',
            ),
        ),
    ],
)
def test_drift(member: Member, expected: tuple[object, ...]) -> None:
    assert refused(everything(), step("new"), member) == ("NonDeterministic", "r", *expected)


def test_equal_definitions_in_another_spelling_are_no_drift() -> None:
    run = started(step_created("a", value={"x": 1, "y": [1.5]}), hook_created("h", metadata={"a": None}))
    spelt = step("a", {"y": [1.5], "x": 1}, retry={"delay_ms": 0, "max_attempts": 1, "backoff": "fixed"})
    assert decide(run, spelt, hook("h", metadata={"a": None})).drafts == []
    exact = b'{"type":"wait_for","wait_id":"w","delay_ms":1}'
    assert commit(run, wait_created("w")).decide(exact, 0, 0).drafts == []


def test_work_that_a_request_cancelled_needs_new_ids() -> None:
    run = started(
        step_created("s"), wait_created("w"), hook_created("h"), event("run_cancellation_requested", request={})
    )
    assert refused(run, step("s", retry=DEFAULT_RETRY)) == ("already_cancelled", "step", "s", None, None)
    assert refused(run, step("s"))[0] == "NonDeterministic"
    assert refused(run, wait("w"))[:3] == ("already_cancelled", "wait", "w")
    assert refused(run, hook("h"))[:3] == ("already_cancelled", "hook", "h")
    assert refused(run, dispose("h")) == ("cannot_dispose", "hook", "h", None, "cancelled")
    assert refused(run, close("w")) == ("cannot_close", "wait", "w", None, "cancelled")


def test_disposing_and_closing() -> None:
    run = everything()
    assert refused(run, hook("new"), dispose("new")) == ("cannot_dispose", "hook", "new", None, "unknown")
    assert refused(run, wait("new"), close("new")) == ("cannot_close", "wait", "new", None, "unknown")
    assert refused(run, dispose("got")) == ("cannot_dispose", "hook", "got", None, "received")
    assert refused(run, dispose("open"), dispose("open")) == ("named_twice", "hook", "open", None, None)
    assert refused(run, close("open"), close("open")) == ("named_twice", "wait", "open", None, None)
    assert refused(run, dispose("gone"), close("done"))[0] == "nothing_new"
    decision = decide(run, dispose("open"), hook("again", "secret-open"), close("open"))
    assert types(decision.drafts) == ["hook_disposed", "hook_created", "wait_completed"]
    assert decide(run, dispose("open"), close("open"), progress("q")).counts
    assert refused(run, hook("again", "secret-open"), dispose("open"))[0] == "HookTokenConflict"
    assert refused(run, hook("x", "t"), hook("y", "t")) == ("HookTokenConflict", "t", "r", "x")


def test_relative_waits_count_from_the_later_of_clock_and_horizon() -> None:
    run = started()
    wait_for = {"type": "wait_for", "wait_id": "w", "delay_ms": 1}
    assert texts(decide(run, wait_for, clock=5 * MS, horizon=7 * MS).drafts) == [
        '{"type":"wait_created","wait_id":"w","resume_at":"1970-01-01T00:00:00.008Z"}'
    ]
    assert refused(run, wait_for, clock=MAX_NS) == ("delay_out_of_range", "wait", "w", None, "1")
    assert types(decide(run, {**wait_for, "delay_ms": 0}, clock=MAX_NS).drafts) == ["wait_created"]
    late = step("s", retry={"max_attempts": 1, "delay_ms": 1})
    assert refused(run, late, clock=MAX_NS) == ("delay_out_of_range", "step", "s", None, "1")


def test_ends() -> None:
    run = started(step_created("open"))
    assert texts(run.decide(b'{"type":"fail","error":"no"}', 0, 0).drafts) == ['{"type":"run_failed","error":"no"}']
    timeout = run.decide(b'{"type":"timeout","deadline":"2026-01-01T00:00:00.10Z"}', 0, 0)
    assert texts(timeout.drafts) == ['{"type":"run_timed_out","deadline":"2026-01-01T00:00:00.100Z","reason":null}']
    with pytest.raises(FlowError) as info:
        run.decide(b'{"type":"cancel"}', 0, 0)
    assert refusal(info)[0] == "cancel_without_request"
    view = stage(run, event("run_cancellation_requested", request={"reason": "stop"}))
    assert texts(view.decide(b'{"type":"cancel"}', 0, 0).drafts) == ['{"type":"run_cancelled","reason":"stop"}']
    with pytest.raises(FlowError) as info:
        view.decide(b'{"type":"complete","output":1}', 0, 0)
    assert refusal(info)[0] == "complete_while_cancelling"


def test_nothing_is_decided_before_the_first_event_or_after_the_last() -> None:
    complete = b'{"type":"complete","output":1}'
    for reads, rule in ((pure.new("r", 99), "no_events"), (started(event("run_failed", error="e")), "run_ended")):
        with pytest.raises(FlowError) as info:
            reads.decide(complete, 0, 0)
        assert refusal(info) == (rule, None, None, None, None)
    assert types(created().decide(complete, 0, 0).drafts) == ["run_completed"]


def test_the_size_limit_is_the_last_refusal() -> None:
    size = len(j(event("run_created", spec=SPEC, input={"k": 1})))
    run = started(max_bytes=size)
    big = {"type": "complete", "output": "x" * size}
    with pytest.raises(FlowError) as info:
        run.decide(j(big), 0, 0)
    assert refusal(info) == ("PayloadTooLarge", "flow.run.completed", size + 36, size)
    invalid = step("b", retry={"max_attempts": 1, "delay_ms": 1, "max_delay_ms": 1})
    assert refused(run, step("a", "x" * size), invalid)[0] == "policy_invalid"
    assert refused(run, step("a", "x" * size))[:2] == ("PayloadTooLarge", "flow.step.created")


def test_concurrency_is_passed_on() -> None:
    command = {"type": "schedule_steps", "steps": [step("a")], "concurrency": 2**64 - 1}
    assert started().decide(j(command), 0, 0).concurrency == 2**64 - 1
