"""Scenarios 46 to 52: cooperative cancellation and the forced ends (spec 06 §6.4, §6.5), in both shells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Flow,
    FlowEngine,
    InvalidTransition,
    RetryPolicy,
    RunConflict,
    RunNotFound,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
)
from scenarios.kit import TOKEN, World, one_workflow, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

DEADLINE = "2031-01-01T00:00:00Z"
HOUR = timedelta(hours=1)


def with_clean_up(clean_up: Callable[[WorkflowContext], RuntimeCommand], calls: list[str] | None = None) -> Flow:
    """Opens a wait, a hook and a step that is delayed for an hour; asked to cancel, it does what `clean_up` says."""
    flow = Flow()

    @flow.step
    async def work(context: StepContext) -> str:
        if calls is not None:
            calls.append(f"{context.step_id} {context.attempt}")
        if context.step_id in ("late", "undo-late") and context.attempt == 1:
            raise ValueError("later")
        return f"{context.step_id} done"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.cancellation_request() is not None:
            return clean_up(ctx)
        late = ctx.step("late", work, retry=RetryPolicy.fixed(2, HOUR))
        return ctx.schedule_all([ctx.wait_for("w", HOUR), ctx.create_hook("h", TOKEN), late])

    return flow


def undo(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.cancel() if ctx.step_completed("undo") else ctx.schedule_step("undo", "work")


async def test_46_open_work_is_cancelled_and_clean_up_runs(world: World, open_engine: OpenEngine) -> None:
    """Request with open wait, hook and delayed step → all `cancelled`; cleanup step with new id runs; ends cancelled with
    the request's reason."""
    calls: list[str] = []
    async with open_engine(world, with_clean_up(undo, calls)) as engine:
        await engine.start("flow", run_id="r")
        snapshot = await engine.request_cancellation("r", "customer left")
        assert (snapshot.status, snapshot.steps["late"].status) == ("cancelled", "cancelled")
        assert (snapshot.waits["w"].status, snapshot.hooks["h"].status) == ("cancelled", "cancelled")
        assert snapshot.step_output("undo") == "undo done"
        assert snapshot.terminal_outcome == {"type": "cancelled", "reason": "customer left"}
        request = snapshot.cancellation
        assert request is not None
        assert (request.reason, request.requested_at) == ("customer left", world.clock.now)
        assert await engine.list_due_wakeups(world.clock.after(hours=9)) == []
        assert await engine.list_active_hooks() == []
    assert calls == ["late 1", "undo 1"]
    assert (await stored(world.store, "r"))[-5:] == [
        "run_cancellation_requested",
        "step_created undo",
        "step_started undo 1",
        "step_completed undo",
        "run_cancelled",
    ]


async def test_46_a_running_step_is_told(world: World, open_engine: OpenEngine) -> None:
    """R21: the token of a running thread step is set at once, clean-up does not wait for it, and its result is dropped."""
    entered, told = threading.Event(), threading.Event()
    flow = Flow()

    @flow.step
    def slow(context: StepContext) -> str:
        entered.set()
        while not context.cancelled.is_set() and not told.wait(0.001):
            pass
        told.set()
        return "too late"

    @flow.step
    async def work() -> str:
        return "undone"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return undo(ctx) if ctx.cancellation_request() else ctx.schedule_step("a", slow)

    async with open_engine(world, flow) as engine:
        driving = asyncio.ensure_future(engine.run("flow", run_id="r"))
        assert await asyncio.to_thread(entered.wait, 20)
        snapshot = await engine.request_cancellation("r", "stop")
        assert await asyncio.to_thread(told.wait, 20)
        assert (await driving).terminal_outcome == snapshot.terminal_outcome == {"type": "cancelled", "reason": "stop"}
        assert snapshot.steps["a"].status == "cancelled"
    assert (await stored(world.store, "r"))[4:] == [
        "run_cancellation_requested",
        "step_created undo",
        "step_started undo 1",
        "step_completed undo",
        "run_cancelled",
    ]


@pytest.mark.parametrize("kind", ["step", "wait", "hook"])
async def test_47_a_cancelled_id_is_used_up(world: World, open_engine: OpenEngine, kind: str) -> None:
    """Cleanup that re-uses a cancelled id → `InvalidTransition`."""

    def again(ctx: WorkflowContext) -> RuntimeCommand:
        if kind == "step":
            return ctx.schedule_step("late", "work", retry=RetryPolicy.fixed(2, HOUR))
        return ctx.wait_for("w", HOUR) if kind == "wait" else ctx.create_hook("h", TOKEN)

    async with open_engine(world, with_clean_up(again)) as engine:
        await engine.start("flow", run_id="r")
        with pytest.raises(InvalidTransition) as refused:
            await engine.request_cancellation("r")
        assert (refused.value.rule, refused.value.kind) == ("already_cancelled", kind)
        assert (await stored(world.store, "r"))[-1] == "run_cancellation_requested"
        assert (await engine.snapshot("r")).status == "cancelling"


async def test_48_complete_is_no_end_of_a_cancelling_run(world: World, open_engine: OpenEngine) -> None:
    """`complete` while cancelling → `InvalidTransition`; fail and timeout allowed."""
    ends: dict[str, Callable[[WorkflowContext], RuntimeCommand]] = {
        "complete": lambda ctx: ctx.complete(),
        "fail": lambda ctx: ctx.fail("could not undo"),
        "timeout": lambda ctx: ctx.timeout(DEADLINE, "took too long"),
    }
    asked: list[str] = []

    def as_asked(ctx: WorkflowContext) -> RuntimeCommand:
        return ends[asked[-1]](ctx)

    async with open_engine(world, with_clean_up(as_asked)) as engine:
        for name in ("fail", "timeout"):
            asked.append("complete")
            await engine.start("flow", run_id=name)
            with pytest.raises(InvalidTransition) as refused:
                await engine.request_cancellation(name, "stop")
            assert refused.value.rule == "complete_while_cancelling"
            assert (await stored(world.store, name))[-1] == "run_cancellation_requested"
            asked.append(name)
            assert (await engine.drive(name)).status == "failed"
        assert (await engine.snapshot("fail")).terminal_outcome == {"type": "failed", "error": "could not undo"}
        assert (await engine.snapshot("timeout")).terminal_outcome == {
            "type": "timed_out",
            "deadline": DEADLINE,
            "reason": "took too long",
        }


async def test_49_cancel_needs_a_request(world: World, open_engine: OpenEngine) -> None:
    """`cancel` without a request → `InvalidTransition`."""
    async with open_engine(world, one_workflow(lambda ctx: ctx.cancel())) as engine:
        with pytest.raises(InvalidTransition) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.rule == "cancel_without_request"
        assert await stored(world.store, "r") == ["run_created", "run_started"]


async def test_50_requests_again(world: World, open_engine: OpenEngine) -> None:
    """Same request twice → one event; other reason → `RunConflict`; on terminal run → Ok."""

    def wait(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.cancel() if ctx.hook_received("go") else ctx.create_hook("go", f"{TOKEN}-go")

    async with open_engine(world, with_clean_up(wait)) as engine:
        with pytest.raises(RunNotFound):
            await engine.request_cancellation("nobody", "stop")
        await engine.start("flow", run_id="r")
        assert (await engine.request_cancellation("r", "stop")).status == "cancelling"
        before = await world.store.history("r")
        assert (await engine.request_cancellation("r", "stop")).status == "cancelling"
        for reason in ("another", None):
            with pytest.raises(RunConflict) as refused:
                await engine.request_cancellation("r", reason)
            assert refused.value.args == ("r", "request")
        assert await world.store.history("r") == before
        assert (await engine.resume_hook("r", "go", None)).status == "cancelled"
        ended = await world.store.history("r")
        for reason in ("stop", "another"):
            assert (await engine.request_cancellation("r", reason)).status == "cancelled"
        assert await world.store.history("r") == ended


async def test_50_two_requests_at_once(world: World, open_engine: OpenEngine) -> None:
    """Racing requests with two reasons: one is recorded, the other conflicts."""
    async with open_engine(world, with_clean_up(undo)) as engine:
        await engine.start("flow", run_id="r")
        calls = [engine.request_cancellation("r", reason, drive=False) for reason in ("one", "other")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == ["RunConflict", "WorkflowRunSnapshot"]
    assert (await stored(world.store, "r"))[-1] == "run_cancellation_requested"


async def test_51_a_delayed_retry_of_the_clean_up(world: World, open_engine: OpenEngine) -> None:
    """Cleanup delayed retry → scheduler lists it while `cancelling`."""

    def undo_late(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("undo-late"):
            return ctx.cancel()
        return ctx.schedule_step("undo-late", "work", retry=RetryPolicy.fixed(2, HOUR))

    async with open_engine(world, with_clean_up(undo_late)) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.request_cancellation("r")).status == "cancelling"
        later = world.clock.after(hours=1)
        assert await engine.list_due_retries(later) == [("r", "undo-late")]
        assert [(w.kind, w.subject_id) for w in await engine.list_due_wakeups(later)] == [("retry", "undo-late")]
        assert (await engine.run_summary()).cancelling_runs == 1
        assert await engine.resume_due_retries(later) == [("r", "undo-late")]
        assert (await engine.snapshot("r")).terminal_outcome == {"type": "cancelled"}


Ender = Callable[[FlowEngine, str], Awaitable[Any]]
FORCED: dict[str, tuple[Ender, dict[str, Any]]] = {
    "run_cancelled": (
        lambda engine, run_id: engine.force_cancel(run_id, "why"),
        {"type": "cancelled", "reason": "why"},
    ),
    "run_timed_out": (
        lambda engine, run_id: engine.terminate_for_timeout(run_id, DEADLINE, "why"),
        {"type": "timed_out", "deadline": DEADLINE, "reason": "why"},
    ),
    "run_host_shutdown": (
        lambda engine, run_id: engine.terminate_for_host_shutdown(run_id, "why"),
        {"type": "host_shutdown", "reason": "why"},
    ),
}


@pytest.mark.parametrize("event", FORCED)
async def test_52_forced_ends(world: World, open_engine: OpenEngine, event: str) -> None:
    """Force cancel / timeout / host shutdown from pending, running, cancelling; repeated → Ok, one event."""
    end, outcome = FORCED[event]

    def wait(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.wait_for("clean-up", HOUR)

    calls: list[str] = []
    async with open_engine(world, with_clean_up(wait, calls)) as engine:
        await engine.submit("flow", run_id="pending")
        for run_id in ("running", "cancelling"):
            await engine.start("flow", run_id=run_id)
            await engine.dispose_hook(run_id, "h")  # its token is free for the next run
        await engine.request_cancellation("cancelling")
        worked = list(calls)
        for run_id in ("pending", "running", "cancelling"):
            open_status = (await engine.snapshot(run_id)).waits
            snapshot = await end(engine, run_id)
            assert snapshot.terminal_outcome == outcome
            assert snapshot.status == ("cancelled" if event == "run_cancelled" else "failed")
            assert {w: wait.status for w, wait in snapshot.waits.items()} == {
                w: wait.status for w, wait in open_status.items()
            }
            for again, _ in FORCED.values():
                assert (await again(engine, run_id)).terminal_outcome == outcome
            assert (await stored(world.store, run_id)).count(event) == 1
        assert await stored(world.store, "pending") == ["run_created", event]
        with pytest.raises(RunNotFound):
            await end(engine, "nobody")
        assert await engine.list_open_suspensions(world.clock.after(hours=9)) == []
    assert calls == worked


async def test_52_cancel_is_the_old_name(world: World, open_engine: OpenEngine) -> None:
    """`cancel` is `force_cancel`; a reason is optional."""
    async with open_engine(world, with_clean_up(undo)) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.cancel("r")).terminal_outcome == {"type": "cancelled"}
