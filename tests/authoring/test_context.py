"""What a workflow reads of its run, and the commands its builders make (spec 03 §3.1, 09 §9.1, R16, R32, R40, R56)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authoring.fakes import FakeReads, context, wire
from perdure.commands import Member, RawCommand, RuntimeCommand, ScheduleStep
from perdure.context import WorkflowContext
from perdure.envelope import Envelope
from perdure.errors import Serialization
from perdure.flow import Flow
from perdure.instant import Instant
from perdure.kernel import Reads
from perdure.model import ChildOperationReference, HookMetadata, RetryPolicy, WorkflowProgress

ctx = context()
flow = Flow()


@dataclass
class Order:
    id: int


@flow.step(retry=RetryPolicy.fixed(2))
def charge(order: Order) -> int:
    return order.id


@flow.step(inline=True, name="tick")
def no_input() -> None: ...


# -- reads ------------------------------------------------------------------------------------------------------------


def test_run_id_input_and_history() -> None:
    events: list[Envelope] = []
    found = WorkflowContext(cast(Reads, FakeReads(input=b'{"id":7}')), lambda: events)
    assert (found.run_id, found.input, found.input_as(Order)) == ("run-1", {"id": 7}, Order(7))
    assert found.history is events
    found.input["id"] = 8
    assert found.input == {"id": 7}


def test_what_is_not_there_reads_as_none_or_false() -> None:
    nothing = [
        ctx.step_output("a"),
        ctx.step_failed("a"),
        ctx.hook_payload("a"),
        ctx.progress("a"),
        ctx.child_operation("a"),
    ]
    typed = [ctx.step_output_as("a", int), ctx.hook_payload_as("a", int), ctx.step_output("a", as_=int)]
    assert [*nothing, *typed, ctx.cancellation_request(), ctx.first_resolved(("step", "a"))] == [None] * 10
    assert not any([ctx.step_completed("a"), ctx.step_cancelled("a"), ctx.wait_completed("a")])
    assert not any([ctx.hook_disposed("a"), ctx.hook_received("a")])


def test_steps() -> None:
    found = context(
        steps={
            "done": {"status": "completed", "output": b'{"id":1}', "error": None},
            "null": {"status": "completed", "output": b"null", "error": None},
            "bad": {"status": "failed", "output": None, "error": "runtime error: x"},
            "open": {"status": "pending", "output": None, "error": "runtime error: earlier"},
        }
    )
    assert [found.step_completed(id) for id in ("done", "null", "bad", "open")] == [True, True, False, False]
    assert found.step_output("done") == {"id": 1}
    assert found.step_output("done", as_=Order) == found.step_output_as("done", Order) == Order(1)
    assert found.step_output("null") is None
    assert [found.step_failed(id) for id in ("done", "bad", "open")] == [None, "runtime error: x", None]
    with pytest.raises(Serialization, match=r"\$: Object missing required field `id`, decoding Order"):
        context(steps={"done": {"status": "completed", "output": b"{}"}}).step_output_as("done", Order)


def test_a_step_cancelled_by_a_request_has_not_failed() -> None:
    cancelled = {"status": "cancelled", "output": None, "error": "runtime error: earlier attempt"}
    found = context(
        steps={"by-request": cancelled, "by-failure": {**cancelled, "error": "run failed by step x"}},
        cancellation=b'{"request":{"reason":"stop"},"requested_at":"2026-01-01T00:00:00Z","sequence":9}',
        resolutions=[("step", "by-request", 9), ("step", "by-failure", 7)],
    )
    assert found.step_failed("by-request") is None
    assert found.step_failed("by-failure") == "run failed by step x"
    assert found.step_cancelled("by-request")
    request = found.cancellation_request()
    assert request is not None
    assert (request.reason, request.sequence) == ("stop", 9)
    assert str(request.requested_at) == "2026-01-01T00:00:00Z"


def test_waits_hooks_and_which_came_first() -> None:
    found = context(
        waits={"w": {"status": "completed"}, "v": {"status": "waiting"}},
        hooks={
            "yes": {"status": "received", "payload": b'{"id":3}'},
            "off": {"status": "disposed", "payload": None},
            "on": {"status": "active", "payload": None},
        },
        resolutions=[("hook", "yes", 8), ("wait", "w", 6)],
    )
    assert (found.wait_completed("w"), found.wait_completed("v")) == (True, False)
    assert found.hook_payload("yes") == {"id": 3}
    assert found.hook_payload("yes", as_=Order) == found.hook_payload_as("yes", Order) == Order(3)
    assert found.hook_payload("on") is None
    assert (found.hook_received("yes"), found.hook_disposed("off"), found.hook_disposed("yes")) == (True, True, False)
    assert found.first_resolved(("hook", "yes"), ("wait", "w")) == ("wait", "w")
    assert found.first_resolved(("hook", "yes"), ("wait", "v")) == ("hook", "yes")


def test_facts() -> None:
    progress, child = WorkflowProgress("p", 1, 2), ChildOperationReference("c", "job", "7")
    found = context(progress={"p": progress.to_json()}, children={"c": child.to_json()})
    assert found.progress("p") == progress
    assert found.child_operation("c") == child


# -- builders ---------------------------------------------------------------------------------------------------------

AT = "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("command", "raw"),
    [
        (ctx.complete({"b": 1, "a": [None]}), '{"type":"complete","output":{"b":1,"a":[null]}}'),
        (ctx.complete(), '{"type":"complete","output":null}'),
        (ctx.fail('no "way"'), '{"type":"fail","error":"no \\"way\\""}'),
        (ctx.cancel(), '{"type":"cancel"}'),
        (ctx.timeout(AT), f'{{"type":"timeout","deadline":"{AT}"}}'),
        (ctx.timeout(AT, "late"), f'{{"type":"timeout","deadline":"{AT}","reason":"late"}}'),
        (
            ctx.record_progress(WorkflowProgress("p", 1)),
            '{"type":"record_progress","progress":{"progress_id":"p","completed":1}}',
        ),
        (
            ctx.link_child_operation(ChildOperationReference("c", "job", "7")),
            '{"type":"link_child_operation","child":{"reference_id":"c","kind":"job","operation_id":"7"}}',
        ),
        (
            ctx.schedule_step("a", "by-name", {}),
            '{"type":"schedule_step","step_id":"a","step_name":"by-name","input":{}}',
        ),
        (
            ctx.schedule_step("a", charge, Order(1)),
            (
                '{"type":"schedule_step","step_id":"a","step_name":"charge","input":{"id":1},'
                '"retry":{"max_attempts":2,"delay_ms":0}}'
            ),
        ),
        (
            ctx.step("a", charge, Order(1), retry=RetryPolicy.none().continue_workflow_on_failure()),
            (
                '{"type":"schedule_step","step_id":"a","step_name":"charge","input":{"id":1},'
                '"retry":{"max_attempts":1,"delay_ms":0,"on_exhausted":"continue_workflow"}}'
            ),
        ),
        (ctx.wait_until("w", AT), f'{{"type":"wait_until","wait_id":"w","resume_at":"{AT}"}}'),
        (ctx.wait_for("w", timedelta(seconds=2)), '{"type":"wait_for","wait_id":"w","delay_ms":2000}'),
        (ctx.wait_for("w", timedelta(microseconds=1)), '{"type":"wait_for","wait_id":"w","delay_ms":1}'),
        (ctx.wait_for("w", timedelta(0)), '{"type":"wait_for","wait_id":"w","delay_ms":0}'),
        (ctx.close_wait("w"), '{"type":"close_wait","wait_id":"w"}'),
        (ctx.dispose_hook("h"), '{"type":"dispose_hook","hook_id":"h"}'),
        (ctx.create_hook("h", "t"), '{"type":"create_hook","hook_id":"h","token":"t","metadata":null}'),
        (ctx.create_hook("h", "t", [1]), '{"type":"create_hook","hook_id":"h","token":"t","metadata":[1]}'),
        (
            ctx.create_hook("h", "t", HookMetadata.human_approval("o")),
            '{"type":"create_hook","hook_id":"h","token":"t","metadata":{"kind":"human_approval","subject":"o"}}',
        ),
        (
            ctx.schedule_steps([ctx.step("a", "x"), ctx.step("b", "y", 1)], concurrency=2),
            (
                '{"type":"schedule_steps","steps":[{"step_id":"a","step_name":"x","input":null},'
                '{"step_id":"b","step_name":"y","input":1}],"concurrency":2}'
            ),
        ),
        (ctx.schedule_steps([]), '{"type":"schedule_steps","steps":[]}'),
        (RawCommand(b'{"type":"complete","output":1e400}'), '{"type":"complete","output":1e400}'),
    ],
)
def test_the_wire_form_of_every_command(command: RuntimeCommand, raw: str) -> None:
    assert wire(command) == raw


def test_members_of_schedule_all_are_what_the_one_kind_builders_return() -> None:
    members = [
        ctx.schedule_step("a", "x"),
        ctx.wait_until("w", AT),
        ctx.wait_for("v", timedelta(seconds=1)),
        ctx.create_hook("h", "t"),
        ctx.record_progress(WorkflowProgress("p", 1)),
        ctx.link_child_operation(ChildOperationReference("c", "job", "7")),
        ctx.dispose_hook("g"),
        ctx.close_wait("u"),
    ]
    found = json.loads(wire(ctx.schedule_all(members, concurrency=3)))
    assert found["concurrency"] == 3
    types = "step wait_until wait_for hook record_progress link_child_operation dispose_hook close_wait"
    assert [member.pop("type") for member in found["members"]] == types.split()
    for member, command in zip(found["members"], members, strict=True):
        alone = json.loads(wire(command))
        assert alone.pop("type")
        assert member == alone


def test_what_cannot_be_a_member_is_a_typed_error() -> None:
    with pytest.raises(Serialization, match="member 1 of schedule_all is Complete"):
        ctx.schedule_all(cast(list[Member], [ctx.close_wait("w"), ctx.complete()]))
    with pytest.raises(Serialization, match="member 0 of schedule_steps is CloseWait"):
        ctx.schedule_steps(cast(list[ScheduleStep], [ctx.close_wait("w")]))


def test_time_limits_travel_beside_the_wire() -> None:
    plain, limited = ctx.step("a", "x"), ctx.step("b", "x", timeout=timedelta(milliseconds=1.5))
    assert (dict(plain.timeouts), dict(limited.timeouts)) == ({}, {"b": 2})
    assert "timeout" not in wire(limited)
    wait = ctx.close_wait("w")
    assert dict(ctx.schedule_steps([plain, limited]).timeouts) == {"b": 2}
    assert dict(ctx.schedule_all([wait, limited, plain]).timeouts) == {"b": 2}
    assert dict(ctx.complete().timeouts) == {}


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: ctx.wait_for("w", timedelta(microseconds=-1)), ValueError),
        (lambda: ctx.wait_for("w", cast(Any, 5)), ValueError),
        (lambda: ctx.step("a", "x", timeout=timedelta(0)), ValueError),
        (lambda: ctx.step("a", no_input, timeout=timedelta(1)), ValueError),
        (lambda: ctx.step("a", no_input, {"given": 1}), TypeError),
        (lambda: ctx.step("a", cast(Any, len), [1]), TypeError),
    ],
)
def test_mistakes_that_would_only_show_later_are_raised_by_the_builder(
    build: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        build()


@pytest.mark.parametrize(
    ("build", "detail"),
    [
        (lambda: ctx.complete({"a": float("nan")}), "$.a: NaN"),
        (lambda: ctx.step("a", "x", {1: 2}), "$: keys must be str"),
        (lambda: ctx.create_hook("h", "t", object()), "$: type object"),
        (lambda: ctx.fail("\ud800"), "error: a lone surrogate"),
        (lambda: ctx.fail(cast(Any, ValueError("x"))), "error: must be str, and is ValueError"),
        (lambda: ctx.step("\ud800", "x").to_json(), "step_id: a lone surrogate"),
        (lambda: ctx.step(cast(Any, 7), "x").to_json(), "step_id: must be str, and is int"),
        (
            lambda: ctx.wait_until("w", datetime(2026, 1, 1)),
            "resume_at: datetime.datetime(2026, 1, 1, 0, 0) has no time",
        ),
        (lambda: ctx.wait_until("w", "tomorrow"), "resume_at: not an RFC 3339 instant"),
        (lambda: ctx.timeout(cast(Any, 7)), "deadline: must be an aware datetime"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_the_builder(build: Callable[[], object], detail: str) -> None:
    with pytest.raises(Serialization) as caught:
        build()
    assert caught.value.rule == "payload"
    assert caught.value.detail.startswith(detail)


@pytest.mark.parametrize(
    "when",
    [
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        datetime(2026, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2))),
        "2026-01-02 05:04:05.000+02:00",
        Instant.parse(AT),
    ],
)
def test_points_in_time_have_one_text(when: Any) -> None:
    assert ctx.wait_until("w", when) == ctx.wait_until("w", AT)


def test_commands_are_frozen_values_and_hide_payloads_and_tokens() -> None:
    hook = ctx.create_hook("h", "canary", {"a": "canary"})
    shown = [hook, ctx.complete("canary"), ctx.step("a", "x", "canary"), ctx.schedule_all([hook])]
    assert "canary" not in repr(shown)
    assert hook == ctx.create_hook("h", "canary", {"a": "canary"})
    with pytest.raises(AttributeError):
        hook.hook_id = "other"  # type: ignore[attr-defined]  # that it cannot be set is the case


@given(st.text(), st.text(), st.dictionaries(st.text(), st.integers(-(2**63), 2**64 - 1)))
def test_any_text_crosses_as_it_is(step_id: str, name: str, value: dict[str, int]) -> None:
    found = json.loads(wire(ctx.step(step_id, name, value)))
    assert (found["step_id"], found["step_name"], found["input"]) == (step_id, name, value)
