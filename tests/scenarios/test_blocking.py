"""Scenarios again through `BlockingFlowEngine`: same drive, same stores, plain functions for steps (R55)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import (
    CallFromLoopThread,
    EngineClosed,
    Flow,
    InvalidTransition,
    RetryPolicy,
    RunConflict,
    RunNotFound,
    RuntimeCommand,
    WorkflowContext,
    WorkflowRaised,
)
from scenarios.kit import TOKEN, World, one_workflow, stored, story

CREATED = ["run_created", "run_started"]


def shop(calls: list[str]) -> Flow:
    """A workflow for each scenario below; every step call is noted with its attempt."""
    flow = Flow()

    @flow.step
    def add(amount: int) -> int:
        calls.append("add")
        return amount + 1

    @flow.step
    def flaky() -> str:
        calls.append("flaky")
        if calls.count("flaky") == 1:
            raise ValueError("once")
        return "done"

    @flow.step(inline=True)
    def where() -> str:
        return threading.current_thread().name

    @flow.workflow("two", version="1")
    def two(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", add, ctx.input)
        if not ctx.step_completed("b"):
            return ctx.schedule_step("b", add, ctx.step_output("a"))
        return ctx.complete(ctx.step_output("b"))

    @flow.workflow("retry", version="1")
    def retry(ctx: WorkflowContext) -> RuntimeCommand:
        policy = RetryPolicy.fixed(2, timedelta(seconds=ctx.input))
        return ctx.complete("ok") if ctx.step_completed("a") else ctx.schedule_step("a", flaky, retry=policy)

    @flow.workflow("hook", version="1")
    def hook(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.hook_payload("h")) if ctx.hook_received("h") else ctx.create_hook("h", TOKEN)

    @flow.workflow("inline", version="1")
    def inline(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", where)

    return flow


def test_01_two_steps(world: World) -> None:
    """Two steps: the events in order, and an equal start again changes nothing (scenario 4)."""
    calls: list[str] = []
    with world.blocking(shop(calls)) as engine:
        snapshot = engine.run("two", 5, run_id="r")
        assert engine.start("two", 5, run_id="r") == "r"
        with pytest.raises(RunConflict):
            engine.start("two", 6, run_id="r")
        history = engine.history("r")
    assert (snapshot.output, calls) == (7, ["add", "add"])
    assert story(history) == [
        *CREATED,
        *("step_created a", "step_started a 1", "step_completed a"),
        *("step_created b", "step_started b 1", "step_completed b"),
        "run_completed",
    ]


def test_08_a_workflow_that_raises(world: World) -> None:
    """The error comes to the caller, with its cause; the run stays open."""
    bug: list[Exception] = [ValueError("no")]

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if bug:
            raise bug.pop()
        return ctx.complete()

    with world.blocking(one_workflow(ask)) as engine:
        with pytest.raises(WorkflowRaised) as refused:
            engine.start("flow", run_id="r")
        assert isinstance(refused.value.__cause__, ValueError)
        assert engine.drive("r").status == "completed"
        with pytest.raises(RunNotFound):
            engine.drive("nobody")


def test_11_fails_once_then_succeeds(world: World) -> None:
    """An immediate retry happens inside the one drive."""
    with world.blocking(shop([])) as engine:
        assert engine.run("retry", 0, run_id="r").status == "completed"
    assert asyncio.run(stored(world.store, "r"))[3:] == [
        "step_started a 1",
        "step_retrying a 1",
        "step_started a 2",
        "step_completed a",
        "run_completed",
    ]


def test_15_a_delay_suspends(world: World) -> None:
    """A delayed retry suspends, and `resume_due_retries` completes the run at its time."""
    with world.blocking(shop([])) as engine:
        assert engine.run("retry", 60, run_id="r").status == "suspended"
        assert engine.list_due_retries(world.clock.now) == []
        assert engine.resume_due_retries(world.clock.after(seconds=120)) == [("r", "a")]
        assert engine.snapshot("r").status == "completed"


def test_29_thread_members_overlap(world: World) -> None:
    """Steps of a batch overlap: a barrier of three is passed."""
    barrier = threading.Barrier(3, timeout=20)
    flow = Flow()

    @flow.step
    def meet() -> None:
        barrier.wait()

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if all(ctx.step_completed(s) for s in "abc"):
            return ctx.complete()
        return ctx.schedule_steps([ctx.step(s, meet, retry=RetryPolicy.none()) for s in "abc"])

    with world.blocking(flow) as engine:
        assert engine.run("flow", run_id="r").status == "completed"


def test_33_refusals_keep_their_fields(world: World) -> None:
    """A refused command raises here what it raises there."""
    with world.blocking(one_workflow(lambda ctx: ctx.schedule_steps([]))) as engine:
        with pytest.raises(InvalidTransition) as refused:
            engine.start("flow", run_id="r")
        assert (refused.value.run_id, refused.value.rule) == ("r", "empty_list")


def test_hooks_by_token(world: World) -> None:
    """Calls from several threads share one engine; a hook is resumed by its token."""
    with world.blocking(shop([])) as engine:
        engine.start("hook", run_id="r")
        found: list[tuple[str, str]] = []
        caller = threading.Thread(target=lambda: found.append(engine.resume_hook_by_token(TOKEN, {"ok": True})))
        caller.start()
        caller.join()
        assert found == [("r", "h")]
        assert engine.snapshot("r").output == {"ok": True}


def test_inline_steps_run_on_the_loop_thread(world: World) -> None:
    """An inline step runs on the engine's own loop thread (R55)."""
    with world.blocking(shop([])) as engine:
        assert engine.run("inline", run_id="r").output == "perdure-loop"


def test_a_call_from_the_loop_thread_is_refused(world: World) -> None:
    """A blocking call from an inline step could only wait for itself: `CallFromLoopThread`, the failure of that step."""
    flow = Flow()
    caught: list[BaseException] = []

    @flow.step(inline=True)
    def call_back() -> None:
        try:
            engine.snapshot("r")
        except CallFromLoopThread as error:
            caught.append(error)

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("a") else ctx.schedule_step("a", call_back)

    with world.blocking(flow) as engine:
        assert engine.run("flow", run_id="r").status == "completed"
    assert [type(error) for error in caught] == [CallFromLoopThread]


def test_a_closed_engine_takes_no_calls(world: World) -> None:
    """`close` is idempotent; later calls raise `EngineClosed`."""
    engine = world.blocking(shop([]))
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        engine.snapshot("r")
