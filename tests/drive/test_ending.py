"""How drives end, and what they owe when they do: leases, holds, and the outcomes beside a failure."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    EngineClosed,
    Flow,
    FlowEngine,
    LeaseHeld,
    MemoryEventStore,
    NonDeterministic,
    RunFilter,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StoreUnavailable,
    WorkflowContext,
    WorkflowRaised,
)
from perdure.kernel import KernelName


def flow() -> Flow:
    made = Flow()

    @made.step
    async def work(number: int) -> int:
        return number

    @made.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("a") else ctx.schedule_step("a", work, 1)

    return made


async def until_active(engine: FlowEngine) -> None:
    """Turns of the loop until the drive's task exists; it has not run then, because it was made in this very turn."""
    while (session := engine._sessions.get("r")) is None or session.active is None:  # noqa: ASYNC110 - counts turns
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_drive_cancelled_before_it_begins(name: KernelName) -> None:
    """R22: the last caller hangs up before the drive's task has run a line; the next call drives as if nothing was."""
    async with FlowEngine(flow(), kernel=name) as engine:
        await engine.submit("flow", run_id="r")
        call = asyncio.create_task(engine.drive("r"))
        await until_active(engine)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        async with asyncio.timeout(60):
            assert (await engine.drive("r")).status == "completed"


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_claim_whose_drive_never_began_goes_back(name: KernelName) -> None:
    """R2: the lease that `claim` gave is given back, so another engine may claim at once."""
    store = MemoryEventStore()
    async with FlowEngine(flow(), store, kernel=name) as engine:
        await engine.submit("flow", run_id="r")
        (claimed,) = await store.claim(engine.owner, 1, workflows=None, builds=None, ttl_ns=30_000_000_000)
        call = asyncio.create_task(engine.drive_claimed(claimed))
        await until_active(engine)
        call.cancel()
        await asyncio.wait([call])
    assert not (await store.lease("r")).live


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_worker_without_a_build_holds_what_drifts(name: KernelName) -> None:
    """R43: it raised and would claim the run again at once; with no build in its set, any worker that has one may try."""
    store = MemoryEventStore()
    first, changed = Flow(), Flow()
    first.workflow("flow")(lambda ctx: ctx.create_hook("h", "canary-one"))
    changed.workflow("flow")(lambda ctx: ctx.create_hook("h", "canary-two"))
    async with FlowEngine(first, store, kernel=name) as engine:
        await engine.start("flow", run_id="r")
        await engine.record_progress("r", {"progress_id": "p", "completed": 1})  # something to look at
    async with FlowEngine(changed, store, kernel=name) as worker:
        (claimed,) = await store.claim(worker.owner, 1, ttl_ns=30_000_000_000)
        with pytest.raises(NonDeterministic):
            await worker.drive_claimed(claimed)
        assert await store.claim(worker.owner, 1, ttl_ns=30_000_000_000) == []
        assert [row.run_id for row in (await worker.runs(RunFilter(held=True))).runs] == ["r"]
        assert await worker.release_hold("r")
        assert len(await store.claim(worker.owner, 1, ttl_ns=30_000_000_000)) == 1


class Gate:
    """Two engines' flows over one step that waits to be let through, and counts who runs it."""

    def __init__(self) -> None:
        self.open, self.runs = asyncio.Event(), 0
        self.flow = Flow()

        @self.flow.step
        async def slow(_: object) -> str:
            self.runs += 1
            await self.open.wait()
            return "done"

        @self.flow.workflow("flow")
        def workflow(ctx: WorkflowContext) -> RuntimeCommand:
            return ctx.complete() if ctx.step_completed("a") else ctx.schedule_step("a", slow, 1)


async def until_runs(gate: Gate, number: int) -> None:
    while gate.runs < number:  # noqa: ASYNC110 - the step says so in its own turn
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_drive_without_a_lease_is_refused_before_it_redelivers(name: KernelName) -> None:
    """R2: `lease=False` runs nothing while another's lease is live, also where there is no event to commit."""
    store, gate = MemoryEventStore(), Gate()
    async with FlowEngine(gate.flow, store, kernel=name) as owner:
        driving = asyncio.create_task(owner.run("flow", run_id="r"))
        await until_runs(gate, 1)
        async with FlowEngine(gate.flow, store, kernel=name, lease=False) as other:
            with pytest.raises(LeaseHeld):
                await other.drive("r")
        assert gate.runs == 1
        gate.open.set()
        assert (await driving).status == "completed"


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_step_that_cannot_be_planned_costs_no_outcome(name: KernelName) -> None:
    """R1: whatever looking up a step raises ends the drive by a typed error, with the outcomes beside it committed."""
    flow, calls = Flow(), []

    @flow.step(inline=True)
    def first() -> None:
        calls.append("first")

    def second(value: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821, UP037 - names nothing on purpose
        calls.append("second")

    flow.step(second)

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("b", "second", 1) if ctx.step_completed("a") else ctx.schedule_step("a", "first")

    async with FlowEngine(flow, kernel=name) as engine:
        for _ in range(2):
            with pytest.raises(WorkflowRaised):
                await engine.start("flow", run_id="r")
        assert calls == ["first"]
        assert [e.type for e in await engine.history("r")][-1] == "step_completed"


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_renewals_go_on_after_a_store_that_could_not_answer(name: KernelName) -> None:
    """R2: the first question of the lease keeper fails; the lease of a long step is renewed all the same."""
    store, gate = MemoryEventStore(), Gate()
    changes, renew, renewals = store.changes, store.renew, []
    failures = [StoreUnavailable("not now")]

    async def failing() -> int:
        if failures:
            raise failures.pop()
        return await changes()

    async def counted(*args: Any, **kwargs: Any) -> Any:
        renewals.append(args)
        if len(renewals) == 2:
            gate.open.set()
        return await renew(*args, **kwargs)

    store.changes, store.renew = failing, counted  # type: ignore[method-assign]  # this store's answers are the test
    ttl = timedelta(milliseconds=60)
    async with FlowEngine(
        gate.flow, store, kernel=name, lease_ttl=ttl, poll_interval=timedelta(milliseconds=5)
    ) as engine:
        async with asyncio.timeout(60):
            assert (await engine.run("flow", run_id="r")).status == "completed"
    assert len(renewals) >= 2


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_direct_drive_ends_a_hold(name: KernelName) -> None:
    """R43: an accepted decision clears the hold, also of a drive that has no event to add to a parked run."""
    store = MemoryEventStore()
    first, changed = Flow(), Flow()
    first.workflow("flow")(lambda ctx: ctx.wait_for("w", timedelta(hours=1)))
    changed.workflow("flow")(lambda ctx: ctx.wait_until("w", "2199-01-01T00:00:00Z"))
    builds = RuntimeBuildCompatibility("b1", accept_unpinned=True)
    async with FlowEngine(first, store, kernel=name, builds=builds) as engine:
        await engine.start("flow", run_id="r")
    async with FlowEngine(changed, store, kernel=name, builds=builds) as engine:
        with pytest.raises(NonDeterministic):
            await engine.drive("r")
    assert (await store.lease("r")).hold is not None
    async with FlowEngine(first, store, kernel=name, builds=builds) as engine:
        assert (await engine.drive("r")).status == "suspended"
    state = await store.lease("r")
    assert state.hold is None
    assert state.claim_at is not None  # the wait's time: a worker finds it again


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_history_in_a_workflow_shows_each_event_once(name: KernelName) -> None:
    """Spec 9.1: `ctx.history` after another call's append, with events of this drive staged beside it."""
    gate, shown = Gate(), []
    flow = gate.flow

    @flow.workflow("looks")
    def looks(ctx: WorkflowContext) -> RuntimeCommand:
        shown.append([event.sequence for event in ctx.history])
        return ctx.complete() if ctx.step_completed("a") else ctx.schedule_step("a", "slow", 1)

    async with FlowEngine(flow, kernel=name) as engine:
        driving = asyncio.create_task(engine.run("looks", run_id="r"))
        await until_runs(gate, 1)
        await engine.record_progress("r", {"progress_id": "p", "completed": 1})
        gate.open.set()
        last = (await driving).last_sequence
    assert shown == [list(range(1, len(seen) + 1)) for seen in shown]
    assert len(shown[-1]) == last - 1  # all but the end it decided then


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_a_refused_drive_waits_no_longer_than_its_settle_grace(name: KernelName) -> None:
    """R14: the step that still runs is let go and stays running; the first refusal is raised."""
    gate = Gate()

    @gate.flow.step(inline=True)
    def quick() -> None: ...

    @gate.flow.workflow("breaks")
    def breaks(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("q"):
            raise ValueError("a bug")
        return ctx.schedule_steps([ctx.step("a", "slow", 1), ctx.step("q", quick)])

    async with FlowEngine(gate.flow, kernel=name, settle_grace=timedelta(milliseconds=20)) as engine:
        async with asyncio.timeout(60):
            with pytest.raises(WorkflowRaised):
                await engine.start("breaks", run_id="r")
        snapshot = await engine.snapshot("r")
        assert (snapshot.steps["a"].status, snapshot.steps["q"].status) == ("running", "completed")


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_attempts_have_ended_before_the_lease_goes_back(name: KernelName) -> None:
    """R2: what an async attempt does when it is cancelled is over before another engine may run the step again."""
    store, log, flow = MemoryEventStore(), [], Flow()
    begun = asyncio.Event()

    @flow.step
    async def careful(_: object) -> None:
        log.append("begin")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _turn in range(20):
                await asyncio.sleep(0)
            log.append(f"leased: {(await store.lease('r')).live}")

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("a", careful, 1)

    engine = FlowEngine(flow, store, kernel=name)
    driving = asyncio.create_task(engine.start("flow", run_id="r"))
    await begun.wait()
    await engine.close()
    assert log == ["begin", "leased: True"]
    assert not (await store.lease("r")).live
    with pytest.raises(EngineClosed):
        await driving


@pytest.mark.parametrize("name", ["rust", "pure"])
async def test_accessors_of_spec_9(name: KernelName) -> None:
    flow = Flow()
    flow.workflow("flow")(lambda ctx: ctx.complete())
    builds = RuntimeBuildCompatibility("b1", frozenset({"b0"}), accept_unpinned=True)
    async with FlowEngine(flow, kernel=name, builds=builds) as engine:
        await engine.start("flow", run_id="r")
        assert await engine.runtime_build_id("r") is None
        assert engine.runtime_build_compatibility is builds
        assert [engine.supports_runtime_build(build) for build in (None, "b0", "b1", "b2")] == [True, True, True, False]
        assert engine.observer is None
    assert FlowEngine(flow, kernel=name).supports_runtime_build()
    assert not FlowEngine(flow, kernel=name).supports_runtime_build("b1")
