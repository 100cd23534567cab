"""One executor per run: engines that meet on one store, and what each ending leaves in the run's row (R2, R3, R22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from scenarios.kit import TOKEN, WatchedStore, World, stored

from perdure import (
    Flow,
    FlowEngine,
    LeaseHeld,
    LeaseLost,
    NonDeterministic,
    RunConflict,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowProgress,
    WorkflowRaised,
)
from perdure.builds import RuntimeBuildCompatibility
from perdure.stores.base import LeaseState

ONE_STEP = ["run_created", "run_started", "step_created a", "step_started a 1"]
TTL_SECONDS = 30
POLL = timedelta(milliseconds=1)


@dataclass
class Side:
    """One engine's code: its step `slow` stands still until its own gate is opened."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    contexts: list[StepContext] = field(default_factory=list)

    def flow(self, ask: Callable[[WorkflowContext], RuntimeCommand]) -> Flow:
        flow = Flow()

        @flow.step
        async def slow(context: StepContext) -> str:
            self.contexts.append(context)
            self.entered.set()
            await self.gate.wait()
            return "slow"

        flow.workflow("flow")(ask)
        return flow

    async def begin(self, call: Any) -> asyncio.Task[Any]:
        """The call as a task, its step entered."""
        task = asyncio.create_task(call)
        await self.entered.wait()
        return task


def one_step(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", "slow")


def beside(*members: Callable[[WorkflowContext], Any]) -> Callable[[WorkflowContext], RuntimeCommand]:
    """A step beside other open work; the run ends with whichever of hook and step comes first."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.hook_received("h"):
            return ctx.complete(ctx.hook_payload("h"))
        if ctx.cancellation_request():
            return ctx.cancel()
        if ctx.step_completed("a"):
            return ctx.complete("slow")
        return ctx.schedule_all([ctx.step("a", "slow"), *(member(ctx) for member in members)])

    return ask


async def lease_of(world: World, run_id: str = "r") -> LeaseState:
    return await world.store.lease(run_id)


# -- two engines ----------------------------------------------------------------------------------------------------------


async def test_a_second_engine_stands_aside(stored_world: World) -> None:
    """While a lease is live another drive executes nothing, writes nothing and gives the snapshot."""
    one, two = Side(), Side()

    def never(ctx: WorkflowContext) -> RuntimeCommand:
        raise AssertionError("it looks at the lease before it asks")

    async with stored_world.engine(one.flow(one_step)) as first, stored_world.engine(two.flow(never)) as second:
        started = await one.begin(first.run("flow", run_id="r"))
        before = await lease_of(stored_world)
        assert before.live
        assert (await second.drive("r")).status == "running"
        assert await second.start("flow", run_id="r") == "r"
        assert await lease_of(stored_world) == before
        one.gate.set()
        assert (await started).output == "slow"
    assert two.contexts == []
    assert await stored(stored_world.store, "r") == [*ONE_STEP, "step_completed a", "run_completed"]


async def test_two_engines_start_one_run(stored_world: World) -> None:
    """An equal start elsewhere is answered without a second execution, one with another input by `RunConflict`."""
    one, two = Side(), Side()
    async with stored_world.engine(one.flow(one_step)) as first, stored_world.engine(two.flow(one_step)) as second:
        started = await one.begin(first.start("flow", 1, run_id="r"))
        assert await second.start("flow", 1, run_id="r") == "r"
        with pytest.raises(RunConflict) as refused:
            await second.start("flow", 2, run_id="r")
        assert refused.value.args == ("r", "input")
        one.gate.set()
        await started
    assert two.contexts == []


async def test_a_start_that_is_overtaken_stands_aside(stored_world: World) -> None:
    """Another engine creates the run between this one's look and its first commit: `LeaseHeld`, compared, left alone."""
    one, two = Side(), Side()
    store = WatchedStore(stored_world.store)
    async with (
        stored_world.engine(one.flow(one_step)) as first,
        stored_world.engine(two.flow(one_step), store) as second,
    ):
        begun: list[asyncio.Task[Any]] = []

        async def overtake() -> None:
            begun.append(await one.begin(first.run("flow", 1, run_id="r")))

        store.before[1] = overtake
        assert await second.start("flow", 1, run_id="r") == "r"
        assert two.contexts == []
        one.gate.set()
        assert (await begun[0]).output == "slow"


def hook(ctx: WorkflowContext) -> Any:
    return ctx.create_hook("h", TOKEN)


async def test_the_owner_sees_what_others_append(stored_world: World) -> None:
    """A call elsewhere appends its own event and executes nothing; the owner notices and goes on with it."""
    one, two = Side(), Side()
    ask = beside(hook)
    owner = stored_world.engine(one.flow(ask), poll_interval=POLL)
    async with owner as first, stored_world.engine(two.flow(ask)) as second:
        started = await one.begin(first.run("flow", run_id="r"))
        assert await second.resume_hook_by_token(TOKEN, {"ok": 1}) == ("r", "h")
        assert (await started).output == {"ok": 1}
    assert two.contexts == []
    assert (await stored(stored_world.store, "r"))[-2:] == ["hook_received h", "run_completed"]


@pytest.mark.parametrize("end", ["request_cancellation", "force_cancel"])
async def test_the_owner_hears_of_an_end_from_elsewhere(stored_world: World, end: str) -> None:
    """R20, R21 across engines: the attempt is told, its step is not recorded, and the owner's call returns."""
    one = Side()
    ask = beside(hook)
    owner = stored_world.engine(one.flow(ask), poll_interval=POLL)
    async with owner as first, stored_world.engine(Side().flow(ask)) as second:
        started = await one.begin(first.run("flow", run_id="r"))
        await getattr(second, end)("r", "stop")
        assert (await started).terminal_outcome == {"type": "cancelled", "reason": "stop"}
        assert one.contexts[0].cancelled.is_set()
    assert "step_completed a" not in await stored(stored_world.store, "r")


async def test_facts_from_elsewhere_cost_no_result(stored_world: World) -> None:
    """W4 across engines: whether the owner has noticed the fact or meets it at its commit, the outcome is kept."""
    one = Side()
    async with stored_world.engine(one.flow(one_step)) as first, stored_world.engine(Flow()) as second:
        started = await one.begin(first.run("flow", run_id="r"))
        await second.record_progress("r", WorkflowProgress("half", 1))
        one.gate.set()
        assert (await started).output == "slow"
    assert len(one.contexts) == 1


async def test_due_waits_are_the_owners(stored_world: World) -> None:
    """`resume_due_waits` and `resume_scheduled_run` that meet a live lease append nothing: its owner completes them."""
    one = Side()
    ask = beside(lambda ctx: ctx.wait_for("w", timedelta(hours=1)))
    async with stored_world.engine(one.flow(ask)) as first, stored_world.engine(Side().flow(ask)) as second:
        started = await one.begin(first.run("flow", run_id="r"))
        before = await stored(stored_world.store, "r")
        later = stored_world.clock.after(hours=2)
        assert await second.resume_due_waits(later) == []
        await second.resume_scheduled_run("r", later)
        assert await stored(stored_world.store, "r") == before
        one.gate.set()
        await started


# -- losing a lease -------------------------------------------------------------------------------------------------------


SELDOM = timedelta(hours=1)
"""Of an engine that is to hear by its own commit that it lost the run, and not before by the other's appends."""


async def lose(world: World, take: Callable[[FlowEngine], Any]) -> tuple[Side, Side]:
    """The second engine takes the run from the first, ends it, and then the first one's step returns."""
    one, two = Side(), Side()
    two.gate.set()
    unaware = world.engine(one.flow(one_step), poll_interval=SELDOM)
    async with unaware as first, world.engine(two.flow(one_step)) as second:
        started = await one.begin(first.start("flow", run_id="r"))
        epoch = (await lease_of(world)).epoch
        assert (await take(second)).output == "slow"
        assert (await lease_of(world)).epoch == epoch + 1
        before = await world.store.history("r")
        one.gate.set()
        with pytest.raises(LeaseLost) as refused:
            await started
        assert refused.value.run_id == "r"
        assert await world.store.history("r") == before
    return one, two


async def test_take_over(stored_world: World) -> None:
    """`take_over=True` claims regardless; the former owner's outcome is dropped (W5 wins over W4), the attempt repeated."""
    one, two = await lose(stored_world, lambda engine: engine.drive("r", take_over=True))
    assert [c.attempt_key for c in one.contexts] == [c.attempt_key for c in two.contexts]
    assert (await stored(stored_world.store, "r")).count("step_completed a") == 1


async def test_an_expired_lease_is_taken(stored_world: World) -> None:
    """After the TTL any drive may take the run; whose lease it was hears it at its next commit."""

    async def take(engine: FlowEngine) -> Any:
        assert (await engine.drive("r")).status == "running"
        stored_world.clock.advance(seconds=TTL_SECONDS)
        return await engine.drive("r")

    await lose(stored_world, take)


async def test_a_lost_lease_drops_everything_at_once(stored_world: World) -> None:
    """LeaseLost is raised without waiting for the siblings that still run; their attempts are ended and told."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a") and ctx.step_completed("b"):
            return ctx.complete()
        return ctx.schedule_steps([ctx.step("b", "hang"), ctx.step("a", "slow")])

    one, two = Side(), Side()
    hanging: list[StepContext] = []
    flow = one.flow(ask)

    @flow.step
    async def hang(context: StepContext) -> None:
        hanging.append(context)
        await asyncio.Event().wait()

    other = two.flow(ask)
    other.step(name="hang")(lambda: None)
    two.gate.set()
    unaware = stored_world.engine(flow, poll_interval=SELDOM)
    async with unaware as first, stored_world.engine(other) as second:
        started = await one.begin(first.start("flow", run_id="r"))
        assert (await second.drive("r", take_over=True)).status == "completed"
        one.gate.set()
        with pytest.raises(LeaseLost):
            await started
    assert hanging[0].cancelled.is_set()


async def test_an_expired_lease_that_nobody_took(stored_world: World) -> None:
    """The epoch alone decides: the commit renews it (R47)."""
    one = Side()
    async with stored_world.engine(one.flow(one_step)) as first:
        started = await one.begin(first.run("flow", run_id="r"))
        stored_world.clock.advance(seconds=TTL_SECONDS + 1)
        assert not (await lease_of(stored_world)).live
        one.gate.set()
        assert (await started).status == "completed"


async def test_driving_without_a_lease(stored_world: World) -> None:
    """`lease=False` is refused while another's is live, and leaves none behind itself."""
    one, two = Side(), Side()
    two.gate.set()
    async with (
        stored_world.engine(one.flow(one_step)) as first,
        stored_world.engine(two.flow(one_step), lease=False) as second,
    ):
        started = await one.begin(first.start("flow", run_id="r"))
        before = await stored(stored_world.store, "r")
        stored_world.clock.advance(seconds=TTL_SECONDS - 1)
        with pytest.raises(LeaseHeld):
            await second.drive("r")
        assert await stored(stored_world.store, "r") == before
        one.gate.set()
        await started
        await second.start("flow", run_id="other")
        assert (await lease_of(stored_world, "other")).owner is None


# -- what a drive leaves behind -------------------------------------------------------------------------------------------


async def test_a_suspended_run_is_parked(stored_world: World) -> None:
    """R3: given back with the commit that leaves nothing to do; runnable when its earliest wakeup is due."""
    due = stored_world.clock.after(hours=1)
    flow = Side().flow(lambda ctx: ctx.schedule_all([ctx.wait_until("w", due), hook(ctx)]))
    store = WatchedStore(stored_world.store)
    async with stored_world.engine(flow, store) as engine:
        assert (await engine.run("flow", run_id="r")).status == "suspended"
        assert store.commits == 1
        state = await lease_of(stored_world)
        assert (state.live, state.parked_sequence, state.claim_at) == (False, 4, due.ns // 1000)
        await engine.drive("r")
        assert store.commits == 1
        await engine.record_progress("r", WorkflowProgress("p", 1))
        state = await lease_of(stored_world)
        assert (state.live, state.parked_sequence, state.claim_at) == (False, 4, 0)
        await engine.drive("r")
        assert (await lease_of(stored_world)).parked_sequence == 5


async def test_a_failed_drive_leaves_the_run_unparked(stored_world: World) -> None:
    """R3: free at once, and still runnable: the workflow has not seen everything."""
    bugs = [ValueError("a bug")]

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a") and bugs:
            raise bugs.pop()
        return one_step(ctx)

    side = Side()
    side.gate.set()
    async with stored_world.engine(side.flow(ask)) as engine, stored_world.engine(side.flow(ask)) as other:
        with pytest.raises(WorkflowRaised):
            await engine.start("flow", run_id="r")
        state = await lease_of(stored_world)
        assert (state.live, state.parked_sequence, state.failures, state.hold) == (False, -1, 0, None)
        assert state.claim_at == 0
        assert (await other.drive("r")).output == "slow"


async def test_a_cancelled_call_gives_the_lease_back(stored_world: World) -> None:
    """R2, R22: the last waiter leaves: the attempt ends, the lease is given back unparked, another engine goes on at once."""
    one, two = Side(), Side()
    two.gate.set()
    async with stored_world.engine(one.flow(one_step)) as first, stored_world.engine(two.flow(one_step)) as second:
        started = await one.begin(first.start("flow", run_id="r"))
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started
        snapshot = await first.snapshot("r")  # behind the drive that is on its way out
        assert snapshot.steps["a"].status == "running"
        state = await lease_of(stored_world)
        assert (state.live, state.parked_sequence) == (False, -1)
        assert (await second.drive("r")).output == "slow"
    assert [c.attempt for c in two.contexts] == [1]


async def test_a_lease_is_given_back_behind_an_event_of_another(stored_world: World) -> None:
    """The owner is one event behind when it is cancelled; it catches up and gives the lease back all the same."""
    one, two = Side(), Side()
    two.gate.set()
    owner = stored_world.engine(one.flow(one_step), poll_interval=timedelta(hours=1))
    async with owner as first, stored_world.engine(two.flow(one_step)) as second:
        started = await one.begin(first.start("flow", run_id="r"))
        await second.record_progress("r", WorkflowProgress("half", 1))
        started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await started
        await first.snapshot("r")  # behind the drive that is on its way out
        assert not (await lease_of(stored_world)).live
        assert (await second.drive("r")).output == "slow"


async def test_a_redelivery_claims_before_it_launches(stored_world: World) -> None:
    """R2: without events to write the claim is a batch of its own, committed before the step is called."""
    one, two = Side(), Side()
    async with stored_world.engine(one.flow(one_step)) as first:
        started = await one.begin(first.start("flow", run_id="r"))
        started.cancel()
        await asyncio.wait([started])
    before = await stored_world.store.history("r")
    store = WatchedStore(stored_world.store)
    async with stored_world.engine(two.flow(one_step), store) as second:
        driving = await two.begin(second.drive("r"))
        assert (await lease_of(stored_world)).live
        assert (store.commits, await stored_world.store.history("r")) == (1, before)
        two.gate.set()
        assert (await driving).output == "slow"


@pytest.mark.parametrize("build", [None, "build-2"])
async def test_a_drift_holds_the_run(stored_world: World, build: str | None) -> None:
    """R43: an engine that knows its build holds what drifts, with places and without values; one without only raises."""
    flow = Side().flow(lambda ctx: ctx.create_hook("h", TOKEN, {"secret": 1}))
    async with stored_world.engine(flow) as engine:
        await engine.start("flow", run_id="r")
    changed = Side().flow(lambda ctx: ctx.create_hook("h", TOKEN, {"secret": 2}))
    builds = RuntimeBuildCompatibility(build, accept_unpinned=True) if build else None
    async with stored_world.engine(changed, builds=builds) as engine:
        with pytest.raises(NonDeterministic):
            await engine.drive("r")
    hold = (await lease_of(stored_world)).hold
    if build is None:
        assert hold is None
    else:
        assert hold is not None
        assert '"builds":["build-2"]' in hold
        assert '"path":"$.secret"' in hold
        assert TOKEN not in hold
    async with stored_world.engine(flow, builds=builds) as engine:
        assert (await engine.drive("r")).status == "suspended"  # a direct call ignores the hold
