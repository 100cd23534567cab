"""Several calls on one run in one process share one drive, and wake it (R21, R22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from scenarios.kit import TOKEN, WatchedStore, World, settled, stored

from perdure import (
    EngineClosed,
    Flow,
    RetryPolicy,
    RunConflict,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowProgress,
    WorkflowRaised,
)


@dataclass
class Bench:
    """A flow whose step `slow` stands still until `gate` is opened."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    contexts: list[StepContext] = field(default_factory=list)

    def flow(self, ask: Callable[[WorkflowContext], RuntimeCommand]) -> Flow:
        flow = Flow()

        @flow.step
        async def slow(context: StepContext) -> str:
            self.calls.append(context.step_id)
            self.contexts.append(context)
            self.entered.set()
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(context.step_id)
                raise
            return "slow"

        @flow.step
        async def quick(context: StepContext) -> str:
            self.calls.append(context.step_id)
            return "quick"

        flow.workflow("flow")(ask)
        return flow

    async def begin(self, call: Any) -> asyncio.Task[Any]:
        """The call as a task, its step entered."""
        task = asyncio.create_task(call)
        await self.entered.wait()
        await settled()
        return task


def one_step(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", "slow")


ONE_STEP = ["run_created", "run_started", "step_created a", "step_started a 1"]


async def test_two_drives_run_a_step_once(world: World) -> None:
    """The second joins the first; both return when it ends, with the same snapshot."""
    bench = Bench()
    async with world.engine(bench.flow(one_step)) as engine:
        first = await bench.begin(engine.run("flow", run_id="r"))
        second = asyncio.create_task(engine.drive("r"))
        await settled()
        assert not second.done()
        bench.gate.set()
        assert (await first) == (await second)
        assert (await first).output == "slow"
    assert bench.calls == ["a"]
    assert await stored(world.store, "r") == [*ONE_STEP, "step_completed a", "run_completed"]


async def test_a_start_joins_or_conflicts(world: World) -> None:
    """While the first start drives, an equal one joins it; one with another input is `RunConflict` at once."""
    bench = Bench()
    async with world.engine(bench.flow(one_step)) as engine:
        first = await bench.begin(engine.start("flow", 1, run_id="r"))
        with pytest.raises(RunConflict) as refused:
            await engine.start("flow", 2, run_id="r")
        assert refused.value.args == ("r", "input")
        equal = asyncio.create_task(engine.start("flow", 1, run_id="r"))
        await settled()
        assert (first.done(), equal.done()) == (False, False)
        bench.gate.set()
        assert [await first, await equal] == ["r", "r"]
    assert bench.calls == ["a"]


async def test_a_start_while_the_creation_is_being_committed(world: World) -> None:
    """The run does not exist yet; the second start waits for the first commit and is compared with it."""
    bench = Bench()
    bench.gate.set()
    committing, go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        committing.set()
        await go.wait()

    store = WatchedStore(world.store)
    store.before[1] = hold
    async with world.engine(bench.flow(one_step), store) as engine:
        first = asyncio.create_task(engine.start("flow", 1, run_id="r"))
        await committing.wait()
        other = asyncio.create_task(engine.start("flow", 2, run_id="r"))
        equal = asyncio.create_task(engine.start("flow", 1, run_id="r"))
        await settled()
        assert not (other.done() or equal.done())
        go.set()
        assert [await first, await equal] == ["r", "r"]
        with pytest.raises(RunConflict):
            await other
    assert bench.calls == ["a"]


async def test_a_refused_creation_is_not_a_join(world: World) -> None:
    """The first start of an id fails before anything is durable; the one that waited for it makes the run."""
    bench = Bench()
    bench.gate.set()
    committing, go = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        committing.set()
        await go.wait()
        raise RuntimeError("broken store")

    store = WatchedStore(world.store)
    store.before[1] = fail
    async with world.engine(bench.flow(one_step), store) as engine:
        first = asyncio.create_task(engine.start("flow", 1, run_id="r"))
        await committing.wait()
        other = asyncio.create_task(engine.start("flow", 2, run_id="r"))
        await settled()
        go.set()
        with pytest.raises(RuntimeError):
            await first
        assert await other == "r"
        assert (await engine.snapshot("r")).input == 2


async def test_the_last_waiter_takes_the_drive_with_it(world: World) -> None:
    """One of two waiters cancelled: the drive goes on. Both: the attempt is aborted, its step stays `running`."""
    bench = Bench()
    async with world.engine(bench.flow(one_step)) as engine:
        first = await bench.begin(engine.start("flow", run_id="r"))
        second = asyncio.create_task(engine.drive("r"))
        await settled()
        first.cancel()
        await settled()
        assert first.cancelled()
        assert bench.cancelled == []
        second.cancel()
        await settled()
        assert second.cancelled()
        assert bench.cancelled == ["a"]
        assert bench.contexts[0].cancelled.is_set()
        assert await stored(world.store, "r") == ONE_STEP
        bench.gate.set()
        snapshot = await engine.drive("r")
    assert (snapshot.status, snapshot.steps["a"].attempt, bench.calls) == ("completed", 1, ["a", "a"])


async def test_a_drive_begun_while_the_last_one_is_being_cancelled(world: World) -> None:
    """The new call does not join a drive that is on its way out; it starts its own when that has gone."""
    bench = Bench()
    async with world.engine(bench.flow(one_step)) as engine:
        first = await bench.begin(engine.start("flow", run_id="r"))
        first.cancel()
        second = asyncio.create_task(engine.drive("r"))
        await settled()
        bench.gate.set()
        assert (await second).status == "completed"
    assert bench.calls == ["a", "a"]


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_drive_cancelled_while_its_commit_is_under_way(world: World, side: str) -> None:
    """A commit once begun is seen to its end; the next drive finds it in the tail and runs no durable outcome again."""
    bench = Bench()
    bench.gate.set()
    committing, go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        committing.set()
        await go.wait()

    store = WatchedStore(world.store)
    (store.after if side == "after" else store.before)[2] = hold
    async with world.engine(bench.flow(one_step), store) as engine:
        started = asyncio.create_task(engine.start("flow", run_id="r"))
        await committing.wait()
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started
        go.set()
        assert (await engine.drive("r")).output == "slow"
    assert bench.calls == ["a"]
    assert await stored(world.store, "r") == [*ONE_STEP, "step_completed a", "run_completed"]


async def test_a_busy_run_leaves_others_their_turn(world: World) -> None:
    """A run of inline steps over a memory store never waits for anything, and still other tasks of the loop go on."""
    bench = Bench()
    ids = [f"s{number}" for number in range(50)]

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        step_id = next((step_id for step_id in ids if not ctx.step_completed(step_id)), None)
        return ctx.complete() if step_id is None else ctx.schedule_step(step_id, "inline")

    flow = bench.flow(ask)
    ticks, seen = [0], []

    @flow.step(inline=True)
    def inline() -> None:
        seen.append(ticks[0])

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    async with world.engine(flow) as engine:
        ticker = asyncio.create_task(tick())
        assert (await engine.run("flow", run_id="r")).status == "completed"
        ticker.cancel()
    assert len(set(seen)) > len(ids) // 2


async def test_a_hook_wakes_the_drive(world: World) -> None:
    """A payload committed by another call is seen at once, with the step still running; the run may end with it open."""
    bench = Bench()

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.hook_received("h"):
            return ctx.complete(ctx.hook_payload("h"))
        return ctx.schedule_all([ctx.step("a", "slow"), ctx.create_hook("h", TOKEN)])

    async with world.engine(bench.flow(ask)) as engine:
        started = await bench.begin(engine.run("flow", run_id="r"))
        assert await engine.resume_hook_by_token(TOKEN, {"ok": 1}) == ("r", "h")
        assert (await started).output == {"ok": 1}
        await settled()
    assert bench.cancelled == ["a"]
    assert (await stored(world.store, "r"))[-2:] == ["hook_received h", "run_completed"]


async def test_progress_from_outside_costs_no_result(world: World) -> None:
    """W4: a fact appended while the step runs is shown to the workflow at once, and the step's outcome is kept."""
    bench = Bench()
    asked: list[int] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        asked.append(1)
        return one_step(ctx)

    async with world.engine(bench.flow(ask)) as engine:
        started = await bench.begin(engine.run("flow", run_id="r"))
        await engine.record_progress("r", WorkflowProgress("half", 1, total=2))
        await settled()
        assert len(asked) == 2
        bench.gate.set()
        assert (await started).output == "slow"
    assert bench.calls == ["a"]
    assert await stored(world.store, "r") == [
        *ONE_STEP,
        "run_progress_recorded half",
        "step_completed a",
        "run_completed",
    ]


def with_clean_up(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.cancellation_request() is None:
        return ctx.schedule_step("a", "slow")
    return ctx.cancel() if ctx.step_completed("undo") else ctx.schedule_step("undo", "quick")


@pytest.mark.parametrize("grace", [timedelta(0), timedelta(hours=1)])
async def test_cancellation_is_told_at_once(world: World, grace: timedelta) -> None:
    """R21: the token is set, clean-up does not wait for the old attempt, which is cancelled after the grace period."""
    bench = Bench()
    async with world.engine(bench.flow(with_clean_up), cancel_grace=grace) as engine:
        started = await bench.begin(engine.run("flow", run_id="r"))
        snapshot = await engine.request_cancellation("r", "customer left")
        assert snapshot == await started
        assert bench.contexts[0].cancelled.is_set()
        await settled()
        assert bench.cancelled == ([] if grace else ["a"])
        bench.gate.set()
        await settled()
    assert snapshot.terminal_outcome == {"type": "cancelled", "reason": "customer left"}
    assert snapshot.steps["a"].status == "cancelled"
    assert bench.calls == ["a", "undo"]
    assert (await stored(world.store, "r"))[4:] == [
        "run_cancellation_requested",
        "step_created undo",
        "step_started undo 1",
        "step_completed undo",
        "run_cancelled",
    ]


async def test_force_cancel_ends_a_live_drive(world: World) -> None:
    """R20: the token is set, the async attempt cancelled, its result dropped; whoever waits gets the snapshot."""
    bench = Bench()
    async with world.engine(bench.flow(one_step)) as engine:
        started = await bench.begin(engine.run("flow", run_id="r"))
        assert (await engine.force_cancel("r", "stop")).status == "cancelled"
        assert (await started).status == "cancelled"
        await settled()
    assert bench.cancelled == ["a"]
    assert bench.contexts[0].cancelled.is_set()
    assert await stored(world.store, "r") == [*ONE_STEP, "run_cancelled"]


async def test_each_joiner_gets_its_own_error(world: World) -> None:
    """A refusal reaches each joiner as its own instance, cause and run id included."""
    bench = Bench()

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a"):
            raise ValueError("a bug")
        return ctx.schedule_step("a", "slow")

    async with world.engine(bench.flow(ask)) as engine:
        first = await bench.begin(engine.start("flow", run_id="r"))
        second = asyncio.create_task(engine.drive("r"))
        await settled()
        bench.gate.set()
        errors = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in errors] == [WorkflowRaised, WorkflowRaised]
    one, other = errors
    assert one is not other
    for error in errors:
        assert isinstance(error, WorkflowRaised)
        assert error.run_id == "r"
        assert error.error == "ValueError: a bug"
        assert isinstance(error.__cause__, ValueError)
    assert await stored(world.store, "r") == [*ONE_STEP, "step_completed a"]


def beside_a_wait(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.wait_completed("w") and ctx.step_completed("a"):
        return ctx.complete()
    return ctx.schedule_all([ctx.step("a", "slow"), ctx.wait_for("w", timedelta(hours=1))])


async def test_due_waits_are_completed_into_a_live_drive(world: World) -> None:
    """R22: `resume_due_waits` appends what is due at its `now`, wakes the drive, and reports what it completed."""
    bench = Bench()
    async with world.engine(bench.flow(beside_a_wait)) as engine:
        started = await bench.begin(engine.run("flow", run_id="r"))
        resumed = asyncio.create_task(engine.resume_due_waits(world.clock.after(hours=2)))
        await settled()
        assert (await engine.snapshot("r")).waits["w"].status == "completed"
        bench.gate.set()
        assert await resumed == [("r", "w")]
        assert (await started).status == "completed"
    assert bench.calls == ["a"]


async def test_racing_resumes_of_a_wait_report_once(world: World) -> None:
    """Fixed bug 33: of two calls at once one reports the wait; there is one event."""
    bench = Bench()
    bench.gate.set()
    async with world.engine(bench.flow(beside_a_wait)) as engine:
        await engine.start("flow", run_id="r")
        later = world.clock.after(hours=2)
        reports = await asyncio.gather(engine.resume_due_waits(later), engine.resume_due_waits(later))
        assert sorted(reports) == [[], [("r", "w")]]
    assert (await stored(world.store, "r")).count("wait_completed w") == 1


async def test_due_retries_start_in_a_live_drive(world: World) -> None:
    """R22: `resume_due_retries` hands its `now` over as the horizon; the retry starts beside the running step."""
    bench = Bench()
    flow = bench.flow(
        lambda ctx: (
            ctx.complete()
            if ctx.step_completed("a") and ctx.step_completed("b")
            else ctx.schedule_steps(
                [ctx.step("b", "flaky", retry=RetryPolicy.fixed(2, timedelta(hours=1))), ctx.step("a", "slow")]
            )
        )
    )
    attempts: list[int] = []

    @flow.step
    async def flaky(context: StepContext) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise ValueError("once")

    async with world.engine(flow) as engine:
        started = await bench.begin(engine.run("flow", run_id="r"))
        assert attempts == [1]
        resumed = asyncio.create_task(engine.resume_due_retries(world.clock.after(hours=1)))
        await settled()
        assert attempts == [1, 2]
        bench.gate.set()
        assert await resumed == [("r", "b")]
        assert (await started).status == "completed"


async def test_closing_the_engine_ends_its_drives(world: World) -> None:
    """The attempt is aborted, its step stays `running`, nothing is appended, and the caller hears that the engine closed."""
    bench = Bench()
    engine = world.engine(bench.flow(one_step))
    started = await bench.begin(engine.start("flow", run_id="r"))
    await engine.close()
    with pytest.raises(EngineClosed):
        await started
    assert bench.cancelled == ["a"]
    assert await stored(world.store, "r") == ONE_STEP
    with pytest.raises(EngineClosed):
        await engine.snapshot("r")


async def test_calls_without_driving_append_only(world: World) -> None:
    """R23: `drive=False` appends by the same rows and drives nothing; a later drive sees it all."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.hook_received("h") and ctx.wait_completed("w"):
            return ctx.complete(ctx.hook_payload("h"))
        return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.wait_until("w", "2020-01-01T00:00:00Z")])

    async with world.engine(Bench().flow(ask)) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.resume_hook("r", "h", 5, drive=False)).status == "suspended"
        assert (await engine.resume_wait("r", "w", drive=False)).status == "running"
        assert (await stored(world.store, "r"))[4:] == ["hook_received h", "wait_completed w"]
        assert (await engine.drive("r")).output == 5


async def test_another_engine_may_finish_first(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Without leases two engines may run one step; the outcome committed first wins, the other is dropped and logged."""
    slow, fast = Bench(), Bench()
    fast.gate.set()
    one = world.engine(slow.flow(one_step), lease=False)
    two = world.engine(fast.flow(one_step), lease=False)
    async with one, two:
        started = await slow.begin(one.run("flow", run_id="r"))
        assert (await two.drive("r")).status == "completed"
        before = await world.store.history("r")
        slow.gate.set()
        assert (await started).output == "slow"
        assert await world.store.history("r") == before
    assert "outcome_discarded" in caplog.text
