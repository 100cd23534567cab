"""Attempts: what a step is told, how it may fail, its time limit, and the threads it runs on (R5, R15, R20, R53, R54, R57)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from scenarios.kit import World, hurry, settled, stored

from perdure import (
    Flow,
    NonRetryable,
    RetryAfter,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    StepNotRegistered,
    WorkflowContext,
    WorkflowNotRegistered,
    WorkflowSpec,
)

CREATED = ["run_created", "run_started"]
BEGUN = [*CREATED, "step_created a", "step_started a 1"]
TWICE = RetryPolicy.fixed(2)


def one_step(step: Callable[..., Any] | str, **options: Any) -> Callable[[WorkflowContext], RuntimeCommand]:
    """Step `a`, then its output."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a"):
            return ctx.complete(ctx.step_output("a"))
        return ctx.schedule_step("a", step, **options)  # type: ignore[arg-type]  # a decorated step or its name

    return ask


def flow_of(step: Callable[..., Any], declared: dict[str, Any] | None = None, **options: Any) -> Flow:
    """A workflow of the one step, which is decorated with `declared` and scheduled with `options`."""
    flow = Flow()
    flow.workflow("flow")(one_step(flow.step(**(declared or {}))(step), **options))
    return flow


async def error_of(world: World, step: Callable[..., Any], **options: Any) -> str | None:
    """The error text stored for a step that fails."""
    async with world.engine(flow_of(step, retry=RetryPolicy.none()), **options) as engine:
        return (await engine.run("flow", run_id="r")).error


# -- what is not registered -----------------------------------------------------------------------------------------------


async def test_an_unknown_step_uses_no_attempt(world: World) -> None:
    """R57: `StepNotRegistered` before `step_started`; the run is open, and attempt 1 is still there once it is known."""
    flow = Flow()
    flow.workflow("flow")(one_step("tool"))
    async with world.engine(flow) as engine:
        with pytest.raises(StepNotRegistered) as refused:
            await engine.start("flow", run_id="r")
        error = refused.value
        assert (error.step_name, error.step_id, error.run_id) == ("tool", "a", "r")
        assert "step_started a 1" not in await stored(world.store, "r")
        assert not (await engine.snapshot("r")).terminal

        @flow.step(name="tool")
        async def tool() -> int:
            return 7

        snapshot = await engine.drive("r")
    assert (snapshot.output, snapshot.steps["a"].attempt) == (7, 1)


async def test_an_unknown_step_does_not_sink_its_sibling(world: World) -> None:
    """R14, R57: a running sibling settles and its outcome is committed before the refusal."""
    flow = Flow()

    @flow.step
    async def known() -> int:
        return 1

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", known)
        return ctx.schedule_steps([ctx.step("b", known), ctx.step("c", "tool")])

    async with world.engine(flow) as engine:
        with pytest.raises(StepNotRegistered):
            await engine.start("flow", run_id="r")
        events = await stored(world.store, "r")
        assert events[:5] == [*BEGUN, "step_completed a"]
        assert not [event for event in events if event.startswith("step_started c")]


async def test_an_interrupted_step_that_is_unknown_here(world: World) -> None:
    """The step runs elsewhere or was renamed: nothing is written, the running step stays as it is."""

    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    flow = flow_of(hang, {"name": "tool"})
    async with world.engine(flow) as engine:
        started = asyncio.create_task(engine.start("flow", run_id="r"))
        await entered.wait()
        started.cancel()
        await asyncio.wait([started])
    other = Flow()
    other.workflow("flow")(one_step("tool"))
    async with world.engine(other) as engine:
        with pytest.raises(StepNotRegistered):
            await engine.drive("r")
    assert await stored(world.store, "r") == BEGUN


async def test_an_unknown_workflow_leaves_the_run_open(world: World) -> None:
    """R57: by name it cannot be started; by spec the run is made and waits for a process that knows it."""
    flow = Flow()
    async with world.engine(flow) as engine:
        with pytest.raises(WorkflowNotRegistered):
            await engine.start("nobody", run_id="by-name")
        with pytest.raises(WorkflowNotRegistered) as refused:
            await engine.start(WorkflowSpec.python("nobody", "3"), run_id="r")
        assert (refused.value.name, refused.value.version, refused.value.run_id) == ("nobody", "3", "r")
        assert await engine.list_run_ids() == ["r"]
        assert (await engine.snapshot("r")).status == "running"


# -- how a step may fail --------------------------------------------------------------------------------------------------


async def test_non_retryable(world: World) -> None:
    """`NonRetryable` ends the step at once, whatever the budget; under `fail_run` the run with it."""

    async def declined() -> None:
        raise NonRetryable("card declined")

    async with world.engine(flow_of(declined, retry=RetryPolicy.fixed(9))) as engine:
        snapshot = await engine.run("flow", run_id="r")
    assert await stored(world.store, "r") == [*BEGUN, "step_non_retryable a 1", "run_failed"]
    assert snapshot.terminal_outcome == {"type": "failed", "error": "non-retryable step error: card declined"}


async def test_non_retryable_goes_to_the_workflow(world: World) -> None:
    """W9: under `continue_workflow` the workflow reads it with `step_failed`."""
    flow = Flow()

    @flow.step
    def declined() -> None:
        raise NonRetryable("card declined")

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if error := ctx.step_failed("a"):
            return ctx.complete(error)
        return ctx.schedule_step("a", declined, retry=TWICE.continue_workflow_on_failure())

    async with world.engine(flow) as engine:
        assert (await engine.run("flow", run_id="r")).output == "non-retryable step error: card declined"


@pytest.mark.parametrize(
    ("policy_seconds", "suggested_seconds", "due_seconds"), [(0, 5, 5), (9, 5, 9), (5, 9, 9), (5, -1, 5), (5, 0, 5)]
)
async def test_retry_after(world: World, policy_seconds: int, suggested_seconds: int, due_seconds: int) -> None:
    """R5: the longer of policy and suggestion holds; a suggestion that is not positive is left out, every other written."""

    async def later() -> None:
        raise RetryAfter(timedelta(seconds=suggested_seconds), "rate limit")

    policy = RetryPolicy.fixed(2, timedelta(seconds=policy_seconds))
    async with world.engine(flow_of(later, retry=policy)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        event = (await engine.history("r"))[-1].event
    assert (snapshot.status, event["type"], event["error"]) == (
        "suspended",
        "step_retrying",
        "runtime error: rate limit",
    )
    assert snapshot.steps["a"].retry_after == world.clock.after(seconds=due_seconds)
    assert event.get("suggested_delay_ms") == (suggested_seconds * 1000 if suggested_seconds > 0 else None)


async def test_a_senseless_suggestion_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """R5: ignored with a warning, never an error of the run; without a delay of its own the policy retries at once."""
    calls: list[int] = []

    async def later() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise RetryAfter(timedelta(seconds=-1))
        return "ok"

    async with world.engine(flow_of(later, retry=TWICE)) as engine:
        assert (await engine.run("flow", run_id="r")).output == "ok"
    ignored, failed = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert ignored == "run r step a attempt 1: the delay of its RetryAfter is out of range and ignored"
    assert failed.startswith("run r step a (later) attempt 1 failed: RetryAfter at ")


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (ValueError("no stock"), "runtime error: no stock"),
        (ValueError(""), "runtime error: ValueError"),
        (ValueError(" \n"), "runtime error: ValueError"),
        (KeyError("x"), "runtime error: 'x'"),
        (ValueError("half \ud800"), "runtime error: half \ufffd"),
        (asyncio.CancelledError(), "runtime error: CancelledError"),
        (TimeoutError("my own"), "runtime error: my own"),
    ],
)
async def test_error_texts(world: World, raised: BaseException, text: str) -> None:
    """R53: the class name for a blank text, U+FFFD for half characters; a `CancelledError` of the step is a failure."""

    async def fail() -> None:
        raise raised

    assert await error_of(world, fail) == text


async def test_a_long_error_is_cut(world: World) -> None:
    """R53: `error` at 64 KiB of UTF-8, prefix included, at a character boundary."""

    async def fail() -> None:
        raise ValueError("é" * 40_000)

    error = await error_of(world, fail)
    assert error is not None
    assert error == "runtime error: " + "é" * ((65_536 - len("runtime error: ")) // 2)


async def test_failure_detail(world: World) -> None:
    """R53: type, message and the user's own lines, unless `record_tracebacks=False`."""

    async def fail() -> None:
        raise KeyError("stock")

    async with world.engine(flow_of(fail, retry=TWICE), record_tracebacks=True) as engine:
        snapshot = await engine.run("flow", run_id="r")
        history = await engine.history("r")
    failure = snapshot.failures["a"]
    assert (failure["type"], failure["message"]) == ("builtins.KeyError", "'stock'")
    assert 'raise KeyError("stock")' in failure["traceback"]
    assert "perdure/attempts.py" not in failure["traceback"]
    assert [e.type for e in history if "failure" in e.event] == ["step_retrying", "step_failed"]
    assert [list(e.event)[-1] for e in history if "failure" in e.event] == ["failure", "failure"]
    async with world.engine(flow_of(fail, retry=TWICE)) as engine:
        assert (await engine.run("flow", run_id="quiet")).failures == {}


@pytest.mark.parametrize(
    ("output", "path"),
    [(float("nan"), "$"), ({"rows": [1, {"x": float("inf")}]}, "$.rows[1].x"), ({1: 2}, "$"), (2**64, "$")],
)
async def test_an_output_that_cannot_be_stored(world: World, output: object, path: str) -> None:
    """R15: a final failure of its step with the path, whatever the budget; its sibling's outcome is unharmed."""
    flow = Flow()

    @flow.step
    async def bad() -> object:
        return output

    @flow.step
    async def good() -> str:
        return "kept"

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_failed("bad") and ctx.step_completed("good"):
            return ctx.complete([ctx.step_failed("bad"), ctx.step_output("good")])
        policy = RetryPolicy.fixed(9).continue_workflow_on_failure()
        return ctx.schedule_steps([ctx.step("bad", bad, retry=policy), ctx.step("good", good)])

    async with world.engine(flow) as engine:
        error, kept = (await engine.run("flow", run_id="r")).output
    assert error.startswith("serialization error: ")
    assert path in error
    assert kept == "kept"
    assert "step_non_retryable bad 1" in await stored(world.store, "r")


# -- what a step is told --------------------------------------------------------------------------------------------------


async def test_step_context(world: World) -> None:
    """R54: run, step, attempt; one idempotency key over all attempts, an attempt key for each."""
    seen: list[StepContext] = []

    async def work(context: StepContext, amount: int) -> None:
        seen.append(context)
        assert amount == 3
        if context.attempt == 1:
            raise ValueError("once")

    async with world.engine(flow_of(work, {"name": "pay"}, input=3, retry=TWICE)) as engine:
        assert (await engine.run("flow", run_id="run-1")).status == "completed"
    assert [(c.run_id, c.step_id, c.step_name, c.attempt) for c in seen] == [
        ("run-1", "a", "pay", 1),
        ("run-1", "a", "pay", 2),
    ]
    assert {c.idempotency_key for c in seen} == {"flow.step.v1/5/run-11:a"}
    assert [c.attempt_key for c in seen] == ["flow.step.v1/5/run-11:a/1", "flow.step.v1/5/run-11:a/2"]
    assert not any(c.cancelled.is_set() for c in seen)


def test_the_golden_keys() -> None:
    """R54: the vector of the reference; lengths count bytes."""
    context = StepContext("run/1", "step/1", "pay", 3)
    assert context.attempt_key == "flow.step.v1/5/run/16:step/1/3"
    assert context.idempotency_key == "flow.step.v1/5/run/16:step/1"
    assert StepContext("é", "ü", "pay", 1).idempotency_key == "flow.step.v1/2/é2:ü"


async def test_a_thread_sees_that_its_run_was_ended(world: World) -> None:
    """R20: the token of a thread step is set; the thread is abandoned and what it returns is dropped."""
    entered, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work(context: StepContext) -> str:
        entered.set()
        seen.append(context.cancelled.wait(20))
        ended.set()
        return "too late"

    async with world.engine(flow_of(work)) as engine:
        started = asyncio.create_task(engine.run("flow", run_id="r"))
        await asyncio.to_thread(entered.wait, 20)
        await engine.force_cancel("r")
        assert (await started).status == "cancelled"
        await asyncio.to_thread(ended.wait, 20)
    assert seen == [True]
    assert await stored(world.store, "r") == [*BEGUN, "run_cancelled"]


# -- time limits ----------------------------------------------------------------------------------------------------------

SHORT = timedelta(milliseconds=10)


async def test_an_async_attempt_that_takes_too_long(world: World) -> None:
    """R54: it is cancelled; the timeout is a retryable failure of that attempt, and the next one gets its time anew."""
    ends: list[str] = []

    async def work(context: StepContext) -> str:
        if context.attempt == 2:
            return "in time"
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(f"cancelled {context.cancelled.is_set()}")
        return "never"

    async with world.engine(flow_of(work, {"timeout": SHORT}, retry=TWICE)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        retrying = (await engine.history("r"))[4].event
    assert (snapshot.output, ends) == ("in time", ["cancelled True"])
    assert retrying["error"] == "runtime error: attempt timed out after 10 ms"


async def test_a_thread_attempt_that_takes_too_long(world: World) -> None:
    """R54: it is fenced: its late result is dropped, also when a later attempt is under way."""
    late, second, go = threading.Event(), threading.Event(), threading.Event()

    def work(context: StepContext) -> str:
        if context.attempt == 1:
            context.cancelled.wait(20)
            second.wait(20)
            late.set()
            return "late"
        second.set()
        late.wait(20)
        go.wait(20)
        return "in time"

    async with world.engine(flow_of(work, {"timeout": timedelta(seconds=9)}, timeout=SHORT, retry=TWICE)) as engine:
        running = asyncio.create_task(engine.run("flow", run_id="r"))
        await asyncio.to_thread(late.wait, 20)
        go.set()
        await running
        events = await stored(world.store, "r")
    # The second attempt may itself run out of its 10 ms; what counts is that the late result is nowhere.
    assert events[4:6] == ["step_retrying a 1", "step_started a 2"]
    assert b'"late"' not in await world.store.history("r")


async def test_the_limit_of_the_command_goes_before_the_declared_one(world: World) -> None:
    """R54: the limit named with the command holds for this drive."""

    async def work() -> None:
        await asyncio.Event().wait()

    declared = {"timeout": timedelta(hours=1)}
    async with world.engine(flow_of(work, declared, timeout=SHORT, retry=RetryPolicy.none())) as engine:
        snapshot = await engine.run("flow", run_id="r")
    assert snapshot.error == "runtime error: attempt timed out after 10 ms"
    assert b"timeout" not in (await world.store.history("r")).replace(b"timed out", b"")


async def test_a_swallowed_cancellation_does_not_revive_an_attempt(world: World) -> None:
    """An async step that ignores its cancellation ends late; its result is dropped like a thread's."""
    finished = asyncio.Event()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            finished.set()
        return "late"

    async with world.engine(flow_of(work, {"timeout": SHORT}, retry=RetryPolicy.none())) as engine:
        assert (await engine.run("flow", run_id="r")).status == "failed"
        await finished.wait()
    assert (await stored(world.store, "r"))[-2:] == ["step_failed a 1", "run_retry_exhausted a 1"]


# -- threads --------------------------------------------------------------------------------------------------------------


def crowd(count: int, step: Callable[..., Any], concurrency: int | None = None) -> Flow:
    """`count` steps in one batch."""
    flow = Flow()
    work = flow.step(step)
    ids = [f"s{number}" for number in range(count)]

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if all(ctx.step_completed(step_id) for step_id in ids):
            return ctx.complete()
        members = [ctx.step(step_id, work, retry=RetryPolicy.none()) for step_id in ids]
        return ctx.schedule_steps(members, concurrency=concurrency)

    return flow


async def test_twenty_threads_meet(world: World) -> None:
    """R26: the pool is no smaller than the limit, so twenty steps that wait for each other do not dead-lock."""
    barrier = threading.Barrier(20, timeout=20)

    def meet() -> None:
        barrier.wait()

    async with world.engine(crowd(20, meet)) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"


@pytest.mark.parametrize(("engine_limit", "command_limit"), [(2, None), (64, 2), (2, 64)])
async def test_no_more_than_the_limit_at_once(world: World, engine_limit: int, command_limit: int | None) -> None:
    """R26: two steps are entered and no third, however long one waits; each that ends lets one more in."""
    gates: list[asyncio.Event] = []

    async def work() -> None:
        gate = asyncio.Event()
        gates.append(gate)
        await gate.wait()

    async with world.engine(crowd(6, work, command_limit), concurrency=engine_limit) as engine:
        running = asyncio.create_task(engine.run("flow", run_id="r"))
        for entered in (2, 3, 4, 5, 6):
            await settled()
            assert len(gates) == entered
            gates[entered - 2].set()
        gates[-1].set()
        assert (await running).status == "completed"


async def test_threads_keep_to_the_limit(world: World) -> None:
    """The same on threads: pairs meet at a barrier of two, so both slots are used."""
    barrier = threading.Barrier(2, timeout=20)

    def meet() -> None:
        barrier.wait()

    async with world.engine(crowd(6, meet), concurrency=2) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"


async def test_a_stuck_thread_holds_nobody_up(world: World) -> None:
    """R54: an abandoned thread frees its slot; the run goes on beside it and the engine closes without it."""
    entered, stuck = threading.Event(), threading.Event()
    calls: list[int] = []

    def work(context: StepContext) -> str:
        calls.append(context.attempt)
        if context.attempt == 1:
            entered.set()
            stuck.wait()
        return "done"

    limit = timedelta(seconds=30)
    async with world.engine(flow_of(work, {"timeout": limit}, retry=TWICE), concurrency=1) as engine:
        running = asyncio.create_task(engine.run("flow", run_id="r"))
        await asyncio.to_thread(entered.wait)
        hurry(limit.total_seconds())  # of the first attempt alone
        assert (await running).output == "done"
    assert calls == [1, 2]
    stuck.set()


async def test_a_stuck_task_does_not_keep_its_engine(world: World) -> None:
    """It swallows every cancellation; the end of the engine waits for it no longer than the grace."""
    begun, gate = asyncio.Event(), asyncio.Event()

    async def stuck() -> None:
        begun.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    async with world.engine(flow_of(stuck), cancel_grace=timedelta(milliseconds=10)) as engine:
        running = asyncio.create_task(engine.start("flow", run_id="r"))
        await begun.wait()
        await asyncio.wait_for(engine.close(), 30)
        await asyncio.wait([running])
        assert (await world.store.lease("r")).owner is None
        gate.set()


async def test_many_stuck_threads_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """R54: a warning from 8 abandoned threads per engine."""
    stuck = threading.Event()

    def work() -> None:
        stuck.wait(60)

    flow = flow_of(work, {"timeout": SHORT}, retry=RetryPolicy.none())
    async with world.engine(flow) as engine:
        for number in range(8):
            assert "abandoned" not in caplog.text
            assert (await engine.run("flow", run_id=f"r{number}")).status == "failed"
        assert "8 step threads were abandoned" in caplog.text
    stuck.set()


async def test_inline_steps_run_in_place(world: World) -> None:
    """An inline step runs on the loop's own thread; its outcome is ready at once."""

    def work() -> bool:
        return threading.current_thread() is threading.main_thread()

    async with world.engine(flow_of(work, {"inline": True})) as engine:
        assert (await engine.run("flow", run_id="r")).output is True
