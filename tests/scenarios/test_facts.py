"""Progress and child operations recorded from outside (spec 06 §6.6), in both shells."""

from __future__ import annotations

import asyncio
import threading

import pytest

from perdure import (
    ChildOperationReference,
    Flow,
    InvalidTransition,
    NonDeterministic,
    RunNotFound,
    RunTerminal,
    RuntimeCommand,
    WorkflowContext,
    WorkflowProgress,
)
from scenarios.kit import TOKEN, World, one_workflow, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

HALF = WorkflowProgress("half", 1, total=2, message="half way", details={"of": ["a", "b"]})
CHILD = ChildOperationReference("ci", "build", "job-7", metadata={"url": "https://example.org/7"})


def one_hook(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete() if ctx.hook_received("h") else ctx.create_hook("h", TOKEN)


async def test_recorded_once_and_never_driven(world: World, open_engine: OpenEngine) -> None:
    """Equal again is Ok without an event; another value under the id is `NonDeterministic`; the run is not driven."""
    calls: list[int] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append(1)
        return one_hook(ctx)

    async with open_engine(world, one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        for _ in range(2):
            assert (await engine.record_progress("r", HALF)).progress == [HALF]
            assert (await engine.link_child_operation("r", CHILD)).child_operations == {"ci": CHILD}
        assert len(calls) == 1
        assert (await stored(world.store, "r"))[3:] == ["run_progress_recorded half", "child_operation_linked ci"]
        before = await world.store.history("r")
        for call, kind in [
            (engine.record_progress("r", WorkflowProgress("half", 2, total=2)), "progress"),
            (engine.link_child_operation("r", ChildOperationReference("ci", "build", "job-8")), "child"),
        ]:
            with pytest.raises(NonDeterministic) as drift:
                await call
            assert (drift.value.kind, drift.value.run_id) == (kind, "r")
        assert await world.store.history("r") == before


async def test_what_is_refused(world: World, open_engine: OpenEngine) -> None:
    """Invalid content is judged first, then the run: unknown, ended. Nothing is appended."""
    invalid = [WorkflowProgress("p", 3, total=2), WorkflowProgress("p", 0, total=0), WorkflowProgress(" ", 1)]
    async with open_engine(world, one_workflow(one_hook)) as engine:
        with pytest.raises(RunNotFound):
            await engine.record_progress("nobody", HALF)
        await engine.start("flow", run_id="r")
        before = await world.store.history("r")
        for progress in invalid:
            with pytest.raises(InvalidTransition):
                await engine.record_progress("r", progress)
        with pytest.raises(InvalidTransition):
            await engine.link_child_operation("r", ChildOperationReference("c", " ", "job"))
        assert await world.store.history("r") == before
        await engine.resume_hook("r", "h", None)
        ended = await world.store.history("r")
        for call in (engine.record_progress("r", HALF), engine.link_child_operation("r", CHILD)):
            with pytest.raises(RunTerminal):
                await call
        assert await world.store.history("r") == ended


async def test_beside_a_running_step(world: World, open_engine: OpenEngine) -> None:
    """W4: facts appended while a step runs cost it nothing; its outcome is recorded behind them, and it ran once."""
    entered, go = threading.Event(), threading.Event()
    calls: list[int] = []
    flow = Flow()

    @flow.step
    def slow() -> str:
        calls.append(1)
        entered.set()
        go.wait(20)
        return "slow"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", slow)

    async with open_engine(world, flow) as engine, open_engine(world, flow) as other:
        driving = asyncio.ensure_future(engine.run("flow", run_id="r"))
        assert await asyncio.to_thread(entered.wait, 20)
        await engine.record_progress("r", WorkflowProgress("here", 1))
        await other.record_progress("r", WorkflowProgress("elsewhere", 1))
        go.set()
        assert (await driving).output == "slow"
    assert calls == [1]
    assert (await stored(world.store, "r"))[4:] == [
        "run_progress_recorded here",
        "run_progress_recorded elsewhere",
        "step_completed a",
        "run_completed",
    ]
