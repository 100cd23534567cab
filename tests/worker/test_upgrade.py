"""Two builds side by side (spec 08 §8.5, R43)."""

from __future__ import annotations

from datetime import timedelta

from scenarios.kit import one_workflow

from perdure import (
    Flow,
    FlowEngine,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowSpec,
)
from perdure.stores.base import FlowEventStore
from worker.kit import until, working

OLD, NEW = "2026.1", "2026.2"


def code(build: str, ran: list[tuple[str, str]], steps: tuple[str, ...]) -> Flow:
    """A workflow of these steps with a short wait after each; they say where they ran."""
    flow = Flow()

    @flow.step
    async def step(context: StepContext) -> str:
        ran.append((context.run_id, build))
        return build

    @flow.workflow("order")
    def order(ctx: WorkflowContext) -> RuntimeCommand:
        for step_id in steps:
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, step)
            if not ctx.wait_completed(step_id):
                return ctx.wait_for(step_id, timedelta(milliseconds=50))
        return ctx.complete(len(steps))

    return flow


async def all_ended(store: FlowEventStore, count: int) -> bool:
    return (await store.summary()).terminal_runs == count


async def test_86_old_runs_stay_on_the_old_worker_and_new_ones_go_to_the_new(store: FlowEventStore) -> None:
    """The code differs in a way that would be drift; nothing drifts, because no worker takes the other's runs."""
    ran: list[tuple[str, str]] = []
    old = FlowEngine(code(OLD, ran, ("reserve", "charge")), store, builds=RuntimeBuildCompatibility(OLD))
    new = FlowEngine(code(NEW, ran, ("charge", "reserve", "ship")), store, builds=RuntimeBuildCompatibility(NEW))
    async with old, new:
        for number in range(4):
            await old.submit(WorkflowSpec.python("order", "1", OLD), run_id=f"old-{number}")
        async with working(old):
            await until(lambda: _begun(ran))
            async with working(new):
                for number in range(4):
                    await new.submit(WorkflowSpec.python("order", "1", NEW), run_id=f"new-{number}")
                await until(lambda: all_ended(store, 8))
        assert {(run_id.partition("-")[0], build) for run_id, build in ran} == {("old", OLD), ("new", NEW)}
        assert {run.status for run in (await store.runs()).runs} == {"completed"}


async def _begun(ran: list[tuple[str, str]]) -> bool:
    return bool(ran)


async def test_a_compatible_build_takes_over_when_the_old_worker_is_gone(store: FlowEventStore) -> None:
    """Until then an operator counts the old runs that are left; a drifted one is held and repaired by the next build."""
    ran: list[tuple[str, str]] = []
    steps = ("reserve", "charge")
    async with FlowEngine(code(OLD, ran, steps), store, builds=RuntimeBuildCompatibility(OLD)) as old:
        await old.start(WorkflowSpec.python("order", "1", OLD), run_id="r")
    wrong = one_workflow(lambda ctx: ctx.wait_for("reserve-2", timedelta(hours=1)))
    wrong.workflow("order")(lambda ctx: ctx.schedule_step("reserve", "another step"))
    async with FlowEngine(wrong, store, builds=RuntimeBuildCompatibility("broken", [OLD])) as broken, working(broken):
        await until(lambda: _is_held(store))
    async with FlowEngine(code(NEW, ran, steps), store, builds=RuntimeBuildCompatibility(NEW, [OLD])) as new:
        async with working(new):
            await until(lambda: all_ended(store, 1))
        assert (await store.lease("r")).hold is None
        assert (await new.snapshot("r")).output == len(steps)
        assert ran == [("r", OLD), ("r", NEW)]


async def _is_held(store: FlowEventStore) -> bool:
    return (await store.lease("r")).hold is not None
