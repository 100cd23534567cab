"""Runs that are held, and runs whose drive keeps failing (R43, R44), as a worker meets them: it claims, then drives."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import orjson
import pytest

from perdure import (
    Flow,
    FlowEngine,
    FlowError,
    HookTokenConflict,
    NonDeterministic,
    RunFilter,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StepNotRegistered,
    WorkflowContext,
    WorkflowNotRegistered,
    WorkflowProgress,
    WorkflowRaised,
    WorkflowRunSnapshot,
)
from perdure.stores.base import LeaseState
from scenarios.kit import TOKEN, World, one_workflow
from scenarios.shells import SHELLS, OpenEngine

TTL = 30 * 10**9
V1, V2, V3 = (RuntimeBuildCompatibility(f"v{n}", accept_unpinned=True) for n in (1, 2, 3))


async def work(world: World, engine: FlowEngine) -> list[WorkflowRunSnapshot]:
    """What a worker does once: claims what is runnable and drives it."""
    claimed = await world.store.claim(engine.owner, 10, ttl_ns=TTL)
    return [await engine.drive_claimed(run) for run in claimed]


async def work_on_held(world: World, engine: FlowEngine, build: str) -> list[WorkflowRunSnapshot]:
    """The same with the held runs that this build did not cause."""
    claimed = await world.store.claim_held(engine.owner, 10, build=build, ttl_ns=TTL)
    return [await engine.drive_claimed(run) for run in claimed]


async def row(world: World) -> LeaseState:
    return await world.store.lease("r")


async def held(engine: FlowEngine) -> list[str]:
    return [record.run_id for record in (await engine.runs(RunFilter(held=True))).runs]


def asking(metadata: str) -> Flow:
    """A hook whose metadata the code decides: another one is drift."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.progress("nudge") and metadata == "new":
            return ctx.schedule_all([ctx.create_hook("h", TOKEN, "old"), ctx.create_hook("i", f"{TOKEN}-i", "new")])
        return ctx.create_hook("h", TOKEN, metadata)

    return one_workflow(ask)


@pytest.mark.parametrize("open_engine", SHELLS)
async def test_a_worker_in_either_shell(world: World, open_engine: OpenEngine) -> None:
    """Claim, drive, drift, hold, release, drive: the whole round through one shell."""
    async with open_engine(world, asking("old"), builds=V1) as engine:
        await engine.submit("flow", run_id="r")
        assert [snapshot.status for snapshot in await work(world, engine)] == ["suspended"]
        await engine.record_progress("r", WorkflowProgress("news", 1))
    async with open_engine(world, asking("changed"), builds=V2) as engine:
        with pytest.raises(NonDeterministic):
            await work(world, engine)
        assert await held(engine) == ["r"]
        assert (await row(world)).failures == 0
        assert await engine.release_hold("r") is True
    async with open_engine(world, asking("old"), builds=V1) as engine:
        assert [snapshot.status for snapshot in await work(world, engine)] == ["suspended"]


async def drifted(world: World, builds: RuntimeBuildCompatibility | None = V2) -> None:
    """Run `r`, suspended, woken from outside, and driven by changed code."""
    async with world.engine(asking("old"), builds=V1) as engine:
        await engine.start("flow", run_id="r")
    await drift_again(world, builds)


async def drift_again(world: World, builds: RuntimeBuildCompatibility | None) -> None:
    async with world.engine(asking("changed"), builds=builds) as engine:
        with pytest.raises(NonDeterministic):
            await engine.drive("r")


# -- drift -----------------------------------------------------------------------------------------------------------------


async def test_a_held_run_is_listed_and_left_alone(world: World) -> None:
    """R43, W21: listings show it, workers skip it, whatever comes for it; a host's release makes it runnable at once."""
    await drifted(world)
    async with world.engine(asking("old")) as engine:
        assert await held(engine) == ["r"]
        assert [record.run_id for record in (await engine.runs(RunFilter(held=False))).runs] == []
        assert await work(world, engine) == []
        await engine.record_progress("r", WorkflowProgress("news", 1))
        world.clock.advance(days=1)
        assert (await work(world, engine), await row(world)) == ([], await row(world))
        assert (await row(world)).claim_at is None
        assert await engine.release_hold("r") is True
        assert await engine.release_hold("r") is False
        state = await row(world)
        assert (state.hold, state.parked_sequence, state.failures, state.claim_at) == (None, -1, 0, 0)
        (snapshot,) = await work(world, engine)
        assert snapshot.status == "suspended"
        assert await held(engine) == []


async def test_the_reason_has_places_and_no_values(world: World) -> None:
    """R60: code, workflow, builds, kind, id, sequence and path; the history is as it was."""
    async with world.engine(asking("old"), builds=V1) as engine:
        await engine.start("flow", run_id="r")
    before = await world.store.history("r")
    await drift_again(world, V2)
    async with world.engine(asking("old")) as engine:
        (record,) = (await engine.runs(RunFilter(held=True))).runs
    assert record.hold is not None
    hold = orjson.loads(record.hold)
    assert (hold["code"], hold["workflow"], hold["version"], hold["builds"]) == (
        "non_deterministic",
        "flow",
        "1",
        ["v2"],
    )
    assert hold["reason"] == {"kind": "hook", "id": "h", "part": "metadata", "sequence": 3, "path": "$"}
    assert hold["at"] == str(world.clock.now)
    assert "changed" not in record.hold
    assert TOKEN not in record.hold
    assert await world.store.history("r") == before


async def test_without_a_build_nothing_is_held(world: World) -> None:
    """R43: an engine that does not know its build raises and holds nothing; the run stays runnable as it was."""
    await drifted(world, None)
    async with world.engine(asking("old")) as engine:
        assert await held(engine) == []
        await engine.record_progress("r", WorkflowProgress("news", 1))
        assert [snapshot.status for snapshot in await work(world, engine)] == ["suspended"]


async def test_a_worker_of_another_build_tries(world: World) -> None:
    """R43: it claims what builds of others caused; drifting too it joins the set, else its decision ends the hold."""
    await drifted(world)
    async with world.engine(asking("changed"), builds=V3) as engine:
        assert await work_on_held(world, engine, "v2") == []
        with pytest.raises(NonDeterministic):
            await work_on_held(world, engine, "v3")
        hold = (await row(world)).hold
        assert hold is not None
        assert orjson.loads(hold)["builds"] == ["v2", "v3"]
        assert await work_on_held(world, engine, "v3") == []
    async with world.engine(asking("old"), builds=V1) as engine:
        assert [snapshot.status for snapshot in await work_on_held(world, engine, "v1")] == ["suspended"]
        assert (await row(world)).hold is None


async def test_a_direct_call_ignores_the_hold_and_ends_it(world: World) -> None:
    """R43: any accepted decision clears it; a call that does not drive does not."""
    await drifted(world)
    async with world.engine(asking("old")) as engine:
        await engine.resume_hook("r", "h", 1, drive=False)
        assert await held(engine) == ["r"]
    async with world.engine(one_workflow(lambda ctx: ctx.complete(ctx.hook_payload("h")))) as engine:
        assert (await engine.drive("r")).output == 1
        assert await held(engine) == []
        assert await engine.release_hold("r") is False


@pytest.mark.parametrize("lease", [True, False])
async def test_a_run_that_ends_is_not_held(world: World, lease: bool) -> None:
    """A forced end takes the hold away; a terminal run takes none."""
    await drifted(world)
    async with world.engine(asking("old"), lease=lease) as engine:
        await engine.force_cancel("r")
        assert await held(engine) == []


# -- failures ----------------------------------------------------------------------------------------------------------------


class Steps:
    """A workflow that raises while `broken`."""

    def __init__(self) -> None:
        self.broken = True

    def flow(self) -> Flow:
        def ask(ctx: WorkflowContext) -> RuntimeCommand:
            if self.broken:
                raise ValueError("a bug")
            return ctx.complete("repaired")

        return one_workflow(ask)


async def test_failing_drives_are_counted_and_backed_off(world: World) -> None:
    """R44: each adds a failure and a delay of up to 1 s · 2^failures; an accepted decision forgets them."""
    steps = Steps()
    async with world.engine(steps.flow(), random=fixed(0.5)) as engine:
        await engine.submit("flow", run_id="r")
        for failures, delay_ms in [(1, 500), (2, 1000), (3, 2000), (4, 4000)]:
            now = world.clock.ns
            with pytest.raises(WorkflowRaised):
                await work(world, engine)
            state = await row(world)
            assert (state.failures, state.not_before) == (failures, now + delay_ms * 1_000_000)
            assert (state.live, state.hold, state.parked_sequence) == (False, None, -1)
            world.clock.ns = now + delay_ms * 1_000_000 - 1000
            assert await work(world, engine) == []
            world.clock.ns += 1000
        steps.broken = False
        assert [snapshot.output for snapshot in await work(world, engine)] == ["repaired"]
        assert (await row(world)).failures in (0, 4)  # of a run that has ended nobody asks


async def test_the_delay_is_at_most_ten_minutes(world: World) -> None:
    """R44: min(10 min, 1 s · 2^failures)."""
    async with world.engine(Steps().flow(), random=fixed(1.0), max_failures=99) as engine:
        await engine.submit("flow", run_id="r")
        for _ in range(14):
            with pytest.raises(WorkflowRaised):
                await work(world, engine)
            state = await row(world)
            assert state.not_before is not None
            delay, world.clock.ns = state.not_before - world.clock.ns, state.not_before
        assert delay == 600 * 10**9


async def test_after_max_failures_the_run_is_held(world: World) -> None:
    """R44: held with reason `failing`; released it begins anew."""
    async with world.engine(Steps().flow(), random=fixed(0.0), max_failures=3, builds=V2) as engine:
        await engine.submit("flow", run_id="r")
        for number in range(3):
            assert await held(engine) == []
            with pytest.raises(WorkflowRaised):
                await work(world, engine)
            assert (await row(world)).failures == number + 1
        assert await held(engine) == ["r"]
        assert await work(world, engine) == []
        hold = orjson.loads((await row(world)).hold or "{}")
        assert (hold["code"], hold["reason"], hold["workflow"]) == ("failing", {"failures": 3}, "flow")
        await engine.release_hold("r")
        assert ((await row(world)).failures, (await row(world)).claim_at) == (0, 0)


async def test_news_from_outside_ends_the_delay(world: World) -> None:
    """R44: an append by a call sets `not_before` to none and leaves the failures as they are."""
    async with world.engine(Steps().flow(), random=fixed(1.0)) as engine:
        await engine.submit("flow", run_id="r")
        with pytest.raises(WorkflowRaised):
            await work(world, engine)
        await engine.record_progress("r", WorkflowProgress("news", 1))
        state = await row(world)
        assert (state.failures, state.not_before) == (1, None)
        with pytest.raises(WorkflowRaised):
            await work(world, engine)
        assert (await row(world)).failures == 2


async def test_direct_calls_do_not_count(world: World) -> None:
    """R44: a direct call that fails releases the run without counting."""
    async with world.engine(Steps().flow(), max_failures=1) as engine:
        for _ in range(3):
            with pytest.raises(WorkflowRaised):
                await engine.start("flow", run_id="r")
        state = await row(world)
        assert (state.failures, state.hold, state.live) == (0, None, False)


def unknown_step(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.schedule_step("a", "not here")


@pytest.mark.parametrize(
    ("flow", "kind"),
    [(Flow, WorkflowNotRegistered), (lambda: one_workflow(unknown_step), StepNotRegistered)],
    ids=["workflow", "step"],
)
async def test_what_is_missing_here_is_no_failure_of_the_run(
    world: World, flow: Callable[[], Flow], kind: type[FlowError]
) -> None:
    """R44: a missing registration is not counted; the run is released unparked, for a worker that knows it."""
    async with world.engine(Steps().flow()) as engine:
        await engine.submit("flow", run_id="r")
    async with world.engine(flow(), max_failures=1) as engine:
        with pytest.raises(kind):
            await work(world, engine)
    state = await row(world)
    assert (state.failures, state.hold, state.live, state.parked_sequence, state.claim_at) == (0, None, False, -1, 0)


async def test_a_taken_token_backs_off_and_never_holds(world: World) -> None:
    """R44: `HookTokenConflict` waits for the token to be free, however long."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.hook_received("h") else ctx.create_hook("h", TOKEN)

    async with world.engine(one_workflow(ask), max_failures=1, random=fixed(1.0)) as engine:
        await engine.start("flow", run_id="owner")
        await engine.submit("flow", run_id="r")
        for failures in (1, 2, 3):
            with pytest.raises(HookTokenConflict):
                await work(world, engine)
            state = await row(world)
            assert (state.failures, state.hold) == (failures, None)
            assert state.not_before is not None
            world.clock.ns = state.not_before
        await engine.resume_hook("owner", "h", None)
        assert [snapshot.hooks["h"].status for snapshot in await work(world, engine)] == ["active"]
        state = await row(world)
        assert (state.failures, state.not_before, state.parked_sequence) == (0, None, state.last_sequence)


async def test_a_worker_completes_what_is_due_first(world: World) -> None:
    """R9: a claim completes the waits due at its clock in the drive's first commit; an idle run is not claimed."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_for("w", timedelta(hours=1))

    async with world.engine(one_workflow(ask)) as engine:
        await engine.submit("flow", run_id="r")
        assert [snapshot.status for snapshot in await work(world, engine)] == ["suspended"]
        assert await world.store.next_claim() == world.clock.after(hours=1).ns // 1000
        assert await work(world, engine) == []
        world.clock.advance(hours=1)
        assert [snapshot.status for snapshot in await work(world, engine)] == ["completed"]
        assert await world.store.next_claim() is None


def fixed(fraction: float) -> Random:
    """A source of chance that always says the same."""
    source: Any = Random(0)
    source.random = lambda: fraction
    chosen: Random = source
    return chosen
