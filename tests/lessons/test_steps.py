"""Fixed bugs about steps, batches and their retries: 1 to 3, 6 to 8, 22, 37, 39."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from scenarios.kit import Crash, WatchedStore, World, stored

from perdure import Envelope, Flow, InvalidTransition, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext

HOUR = timedelta(hours=1)
BEGUN = ["run_created", "run_started"]


def flow_of(ask: Callable[[WorkflowContext], RuntimeCommand], calls: list[str], failing: str = "") -> Flow:
    """Steps `work` succeed, `fail` ones do not, and `flaky` ones succeed at their second attempt."""
    flow = Flow()

    @flow.step
    async def work(context: StepContext) -> str:
        calls.append(f"{context.step_id} {context.attempt}")
        return context.step_id

    @flow.step
    async def fail(context: StepContext) -> None:
        calls.append(f"{context.step_id} {context.attempt}")
        raise ValueError("no")

    @flow.step
    async def flaky(context: StepContext) -> str:
        calls.append(f"{context.step_id} {context.attempt}")
        if context.attempt == 1:
            raise ValueError("once")
        return context.step_id

    flow.workflow("flow", version="1")(ask)
    return flow


async def test_bug_01_an_interrupted_attempt_is_the_same_attempt(world: World) -> None:
    """Crash after `step_started` → same attempt redelivered, no second start event, budget untouched."""
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a"):
            return ctx.complete()
        return ctx.schedule_step("a", "flaky", retry=RetryPolicy.fixed(2))

    for _ in range(3):  # as often as it takes
        store = WatchedStore(world.store).crash(before=2)  # the first asks for nothing but the right to launch
        async with world.engine(flow_of(ask, calls), store, lease=False) as engine:
            with pytest.raises(Crash):
                await engine.start("flow", run_id="r")
    assert calls == ["a 1"] * 3
    assert await stored(world.store, "r") == [*BEGUN, "step_created a", "step_started a 1"]
    async with world.engine(flow_of(ask, calls), lease=False) as engine:
        assert (await engine.drive("r")).status == "completed"
    assert calls == ["a 1"] * 4 + ["a 2"]


async def test_bug_02_a_completed_step_scheduled_again(world: World) -> None:
    """Workflow re-schedules a completed step → `InvalidTransition` on the very next call, not 1024 loops."""
    calls: list[str] = []
    asked: list[int] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        asked.append(1)
        return ctx.schedule_step("a", "work")

    async with world.engine(flow_of(ask, calls)) as engine:
        with pytest.raises(InvalidTransition) as refused:
            await engine.start("flow", run_id="r")
    assert refused.value.rule == "nothing_new"
    assert (len(asked), calls) == (2, ["a 1"])
    assert (await stored(world.store, "r"))[-1] == "step_completed a"  # the outcome is kept (R1)


async def test_bug_03_only_the_unfinished_member_runs(world: World) -> None:
    """Batch with one finished and one unfinished member is re-emitted → only the unfinished runs."""
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a") and ctx.step_completed("b"):
            return ctx.complete()
        late = ctx.step("b", "flaky", retry=RetryPolicy.fixed(2, HOUR))
        return ctx.schedule_steps([ctx.step("a", "work"), late])

    async with world.engine(flow_of(ask, calls)) as engine:
        await engine.start("flow", run_id="r")
        await engine.resume_due_retries(world.clock.after(hours=1))
        assert (await engine.snapshot("r")).status == "completed"
    assert sorted(calls) == ["a 1", "b 1", "b 2"]


async def test_bug_06_members_overlap(world: World) -> None:
    """Batch members really overlap in time: a barrier in all siblings does not dead-lock."""
    flow = Flow()
    arrived: list[str] = []
    all_there = asyncio.Event()

    @flow.step
    async def meet(context: StepContext) -> None:
        arrived.append(context.step_id)
        if len(arrived) == 3:
            all_there.set()
        await all_there.wait()

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if all(ctx.step_completed(s) for s in "abc"):
            return ctx.complete()
        return ctx.schedule_steps([ctx.step(s, meet) for s in "abc"])

    async with world.engine(flow) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
    assert sorted(arrived) == ["a", "b", "c"]


async def test_bug_07_due_sibling_runs_future_one_waits(world: World) -> None:
    """Sibling A due, sibling B in the future → A runs now, B untouched."""
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        delays = {"a": HOUR, "b": 2 * HOUR}
        return ctx.schedule_steps([ctx.step(s, "flaky", retry=RetryPolicy.fixed(2, d)) for s, d in delays.items()])

    async with world.engine(flow_of(ask, calls)) as engine:
        await engine.start("flow", run_id="r")
        before = (await engine.snapshot("r")).steps["b"]
        assert await engine.resume_due_retries(world.clock.after(hours=1)) == [("r", "a")]
        snapshot = await engine.snapshot("r")
    assert sorted(calls) == ["a 1", "a 2", "b 1"]
    assert snapshot.steps["a"].status == "completed"
    after = snapshot.steps["b"]
    assert (after.status, after.attempt, after.retry_after) == (before.status, before.attempt, before.retry_after)


async def test_bug_08_an_exhausted_sibling_does_not_stop_the_others(world: World) -> None:
    """Exhausted fallible sibling with `continue_workflow` → others finish, workflow sees the failure."""
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_failed("bad") is not None and ctx.step_completed("good"):
            return ctx.complete(ctx.step_failed("bad"))
        bad = ctx.step("bad", "fail", retry=RetryPolicy.fixed(2).continue_workflow_on_failure())
        return ctx.schedule_steps([bad, ctx.step("good", "flaky")])

    async with world.engine(flow_of(ask, calls)) as engine:
        snapshot = await engine.run("flow", run_id="r")
    assert (snapshot.status, snapshot.output) == ("completed", "runtime error: no")
    assert snapshot.step_output("good") == "good"


@pytest.mark.parametrize("delay_ms", [2**64 - 1, 2**63 - 1])
async def test_bug_22_a_delay_beyond_the_calendar(world: World, delay_ms: int) -> None:
    """Retry delay not representable (u64 max, i64 max ms) → `InvalidTransition` before `step_created`, no side effect."""
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        late = ctx.step("b", "work", retry=RetryPolicy.fixed(2, delay_ms=delay_ms))
        return ctx.schedule_steps([ctx.step("a", "work"), late])

    async with world.engine(flow_of(ask, calls)) as engine:
        with pytest.raises(InvalidTransition) as refused:
            await engine.start("flow", run_id="r")
    assert refused.value.rule == "delay_out_of_range"
    assert calls == []
    assert await stored(world.store, "r") == BEGUN


def failing_batch(ctx: WorkflowContext) -> RuntimeCommand:
    """A member that fails for good beside one that waits for its retry."""
    bad = ctx.step("bad", "fail", retry=RetryPolicy.none())
    return ctx.schedule_steps([ctx.step("late", "flaky", retry=RetryPolicy.fixed(2, HOUR)), bad])


async def test_bug_37_a_final_failure_cancels_siblings(world: World) -> None:
    """Terminal batch failure cancels siblings; no sibling is left open in a run that has ended."""
    calls: list[str] = []
    async with world.engine(flow_of(failing_batch, calls)) as engine:
        snapshot = await engine.run("flow", run_id="r")
    assert snapshot.status == "failed"
    assert {key: step.status for key, step in snapshot.steps.items()} == {"late": "cancelled", "bad": "failed"}
    events = await stored(world.store, "r")
    assert events[-2:] == ["step_cancelled late 1", "run_retry_exhausted bad 1"]


async def test_bug_37_a_crash_in_the_middle_of_it(world: World) -> None:
    """The engine ends between the failure and the closing events: the next one closes the run without new side effects."""
    calls: list[str] = []
    async with world.engine(flow_of(failing_batch, calls)) as engine:
        await engine.start("flow", run_id="whole")
    history = Envelope.parse_lines(await world.store.history("whole"))
    failed = next(number for number, e in enumerate(history, 1) if e.type == "step_failed")
    calls.clear()
    for cut in range(failed, len(history)):
        await world.plant(f"r{cut}", history[:cut])
        async with world.engine(flow_of(failing_batch, calls)) as engine:
            assert (await engine.drive(f"r{cut}")).status == "failed"
        assert await stored(world.store, f"r{cut}") == await stored(world.store, "whole")
    assert calls == []


async def test_bug_39_the_deadline_is_after_the_failure(world: World) -> None:
    """90 s step with 1 s delay → `retry_after` after the failure, not after the drive start."""
    flow = Flow()

    @flow.step
    async def long() -> None:
        world.clock.advance(seconds=90)
        raise ValueError("too slow")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("a", long, retry=RetryPolicy.fixed(2, timedelta(seconds=1)))

    begun = world.clock.ns
    async with world.engine(flow) as engine:
        snapshot = await engine.run("flow", run_id="r")
    assert snapshot.status == "suspended"
    retry_after = snapshot.steps["a"].retry_after
    assert retry_after is not None
    assert retry_after.ns == begun + 91 * 10**9
