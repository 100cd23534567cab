"""What reaches the store: how many commits, in which order, and what becomes of one whose answer is missing (R17, R18, R48)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from scenarios.kit import TOKEN, Crash, WatchedStore, World, hurry, raising, stored

from perdure import (
    Flow,
    OutcomeUnknown,
    RetryPolicy,
    RunNotFound,
    RuntimeCommand,
    StoreUnavailable,
    WorkflowContext,
    WorkflowProgress,
)
from perdure.stores.base import FlowEventStore

CREATED = ["run_created", "run_started"]


def in_row(count: int, calls: list[str] | None = None) -> Flow:
    """`count` inline steps one after the other."""
    flow = Flow()

    @flow.step(inline=True)
    def work(number: int) -> int:
        (calls if calls is not None else []).append(f"s{number}")
        return number

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        for number in range(count):
            if not ctx.step_completed(f"s{number}"):
                return ctx.schedule_step(f"s{number}", work, number)
        return ctx.complete(count)

    return flow


@pytest.mark.parametrize("count", [0, 1, 5])
async def test_n_steps_cost_n_plus_one_commits(stored_world: World, count: int) -> None:
    """R17: N sequential steps cost exactly N + 1 commits, creation included."""
    store = WatchedStore(stored_world.store)
    async with stored_world.engine(in_row(count), store) as engine:
        assert (await engine.run("flow", run_id="r")).output == count
    assert store.commits == count + 1


async def test_drives_without_news_commit_nothing(stored_world: World) -> None:
    """A drive of a run that has ended, and an equal start of it, reach the store with no commit."""
    store = WatchedStore(stored_world.store)
    async with stored_world.engine(in_row(1), store) as engine:
        await engine.start("flow", run_id="r")
        before = store.commits
        await engine.drive("r")
        await engine.start("flow", run_id="r")
        assert store.commits == before


async def test_submit_commits_the_creation_alone(stored_world: World) -> None:
    """R17: `submit` and `start(drive=False)` commit `run_created` alone; a drive adds the rest."""
    store = WatchedStore(stored_world.store)
    calls: list[str] = []
    async with stored_world.engine(in_row(1, calls), store) as engine:
        await engine.submit("flow", run_id="one")
        await engine.start("flow", run_id="two", drive=False)
        assert (store.commits, calls) == (2, [])
        for run_id in ("one", "two"):
            assert await stored(stored_world.store, run_id) == ["run_created"]
            assert (await engine.drive(run_id)).status == "completed"
    assert store.commits == 6


def retry_in_a_batch(flow: Flow) -> None:
    failed: set[str] = set()

    @flow.step
    async def once(key: str) -> str:
        if key not in failed:
            failed.add(key)
            raise ValueError("once")
        return key

    @flow.workflow("retry in a batch")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a") and ctx.step_completed("b"):
            return ctx.complete([ctx.step_output("a"), ctx.step_output("b")])
        return ctx.schedule_steps([ctx.step(s, once, f"{ctx.run_id}/{s}") for s in "ab"])


def failure_in_a_batch(flow: Flow) -> None:
    @flow.step
    async def never() -> None:
        raise ValueError("never")

    @flow.step
    async def fine() -> None:
        pass

    @flow.workflow("failure in a batch")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        failing = ctx.step("a", never, retry=RetryPolicy.none())
        late = ctx.step("c", never, retry=RetryPolicy.fixed(2, timedelta(seconds=9)))
        return ctx.schedule_steps([failing, ctx.step("b", fine), late])


def facts_and_a_fallback(flow: Flow) -> None:
    @flow.step
    async def declined() -> None:
        raise ValueError("declined")

    @flow.step
    async def manual() -> str:
        return "by hand"

    @flow.workflow("facts and a fallback")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.progress("begun") is None:
            return ctx.record_progress(WorkflowProgress("begun", 1))
        if ctx.step_failed("pay") is None:
            return ctx.schedule_step("pay", declined, retry=RetryPolicy.fixed(2).continue_workflow_on_failure())
        if not ctx.step_completed("manual"):
            return ctx.schedule_step("manual", manual)
        if not ctx.hook_disposed("h"):
            return ctx.dispose_hook("h") if ctx.progress("hooked") else hooked(ctx)
        return ctx.complete(ctx.step_output("manual"))

    def hooked(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_all(
            [ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}"), ctx.record_progress(WorkflowProgress("hooked", 1))]
        )


@pytest.mark.parametrize("build", [retry_in_a_batch, failure_in_a_batch, facts_and_a_fallback])
async def test_both_modes_write_the_same_events(world: World, build: Callable[[Flow], None]) -> None:
    """R18: `each` gives the event order of `staged`, in more commits."""
    flow = Flow()
    build(flow)
    name = next(iter(flow.workflows))[0]
    stores = {mode: WatchedStore(world.store) for mode in ("staged", "each")}
    for mode, store in stores.items():
        async with world.engine(flow, store, commit=mode) as engine:
            await engine.start(name, run_id=mode)
    assert await stored(world.store, "each") == await stored(world.store, "staged")
    assert stores["each"].commits > stores["staged"].commits


# -- a store that fails --------------------------------------------------------------------------------------------------

ONE_STEP = [*CREATED, "step_created s0", "step_started s0 1", "step_completed s0", "run_completed"]


@pytest.mark.parametrize("number", [1, 2])
async def test_an_unavailable_store_is_asked_again(stored_world: World, number: int) -> None:
    """R1: nothing was written; the drive keeps its attempts and commits again."""
    store = WatchedStore(stored_world.store)
    store.before[number] = raising(StoreUnavailable("the disk is full"))
    calls: list[str] = []
    async with stored_world.engine(in_row(1, calls), store) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
    assert (store.commits, calls) == (3, ["s0"])
    assert await stored(stored_world.store, "r") == ONE_STEP


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("written", [True, False])
async def test_an_unknown_outcome_is_settled_by_committing_again(
    stored_world: World, number: int, written: bool
) -> None:
    """R48: written or not, the same batch again tells: committed now, or a conflict whose tail is our own."""
    store = WatchedStore(stored_world.store)
    (store.after if written else store.before)[number] = raising(OutcomeUnknown("no answer to COMMIT"))
    calls: list[str] = []
    async with stored_world.engine(in_row(1, calls), store) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
    assert (store.commits, calls) == (3, ["s0"])
    assert await stored(stored_world.store, "r") == ONE_STEP


@pytest.mark.parametrize("written", [True, False])
async def test_an_unknown_outcome_met_by_another_writer(stored_world: World, written: bool) -> None:
    """R10, R48: somebody else's event lies behind ours, or where ours should be; either way the outcome is there once."""
    flow = in_row(1)
    store = WatchedStore(stored_world.store)
    other = stored_world.engine(flow)

    async def meet() -> None:
        await other.record_progress("r", WorkflowProgress("seen", 1))
        raise OutcomeUnknown("no answer to COMMIT")

    # The last event of the first commit leaves the run open, so that another writer may follow it.
    (store.after if written else store.before)[2 if not written else 1] = meet
    async with stored_world.engine(flow, store) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
    await other.close()
    events = await stored(stored_world.store, "r")
    assert sorted(events) == sorted([*ONE_STEP, "run_progress_recorded seen"])


PATIENCE = timedelta(seconds=30)
"""Far more than a machine stands still; a test that wants it to end says when."""


def patience_is_over() -> None:
    hurry(PATIENCE.total_seconds())


async def test_patience_ends(stored_world: World) -> None:
    """R1: after `store_patience` the error is raised without another commit; the run goes on when the store is back."""
    store = WatchedStore(stored_world.store)
    for number in range(2, 9):
        store.before[number] = raising(StoreUnavailable("the disk is full"))

    async def last() -> None:
        patience_is_over()
        raise StoreUnavailable("the disk is full")

    store.before[3] = last
    calls: list[str] = []
    async with stored_world.engine(in_row(1, calls), store, store_patience=PATIENCE) as engine:
        with pytest.raises(StoreUnavailable) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.run_id == "r"
        assert store.commits == 3
        assert await stored(stored_world.store, "r") == ONE_STEP[:4]
        store.before.clear()
        snapshot = await engine.drive("r")
    assert (snapshot.status, snapshot.steps["s0"].attempt, calls) == ("completed", 1, ["s0", "s0"])


class _AwayAtFirst(WatchedStore):
    """A store that is away for its first reads of histories. All patience is over during the one that leaves `late` of them."""

    def __init__(self, inner: FlowEventStore, reads: int, late: int = -1) -> None:
        super().__init__(inner)
        self.refusals, self.late = reads, late

    async def history(self, run_id: str, after: int = 0) -> bytes:
        if self.refusals:
            self.refusals -= 1
            if self.refusals == self.late:
                patience_is_over()
            raise StoreUnavailable("nobody answers")
        return await self.inner.history(run_id, after)


async def test_the_first_read_of_a_call_is_as_patient_as_its_commit(stored_world: World) -> None:
    """R1: a call that may append asks a store that is away again, from its first read on; one that only reads says so."""
    flow = in_row(1)
    store = _AwayAtFirst(stored_world.store, 2)
    async with stored_world.engine(flow, store) as engine:
        await engine.start("flow", run_id="r")
    assert (store.refusals, store.commits) == (0, 2)
    assert await stored(stored_world.store, "r") == ONE_STEP
    store = _AwayAtFirst(stored_world.store, 9, late=6)
    async with stored_world.engine(flow, store, store_patience=PATIENCE) as engine:
        with pytest.raises(StoreUnavailable) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.run_id == "r"
        assert store.refusals == 6
        with pytest.raises(StoreUnavailable):
            await engine.snapshot("r")
        assert store.refusals == 5


async def test_a_call_of_unknown_outcome_is_settled_too(stored_world: World) -> None:
    """R48 holds for host calls: one event, and the call succeeds."""
    flow = Flow()

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.hook_payload("h")) if ctx.hook_received("h") else ctx.create_hook("h", TOKEN)

    store = WatchedStore(stored_world.store)
    store.after[2] = raising(OutcomeUnknown("no answer to COMMIT"))
    async with stored_world.engine(flow, store) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.resume_hook("r", "h", 7)).output == 7
    assert await stored(stored_world.store, "r") == [*CREATED, "hook_created h", "hook_received h", "run_completed"]


async def test_attempts_outlive_a_failing_store(world: World) -> None:
    """R1: while the store fails, the attempts under way go on; their outcomes are recorded when it is back."""
    flow = Flow()
    failing, finished = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    @flow.step
    async def fast() -> None:
        calls.append("fast")

    @flow.step
    async def slow() -> None:
        calls.append("slow")
        await failing.wait()
        finished.set()

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a") and ctx.step_completed("b"):
            return ctx.complete()
        return ctx.schedule_steps([ctx.step("a", fast), ctx.step("b", slow)])

    store = WatchedStore(world.store)

    async def fail() -> None:
        failing.set()
        await finished.wait()
        raise StoreUnavailable("away")

    store.before[2] = fail
    async with world.engine(flow, store) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
    assert calls == ["fast", "slow"]


@pytest.mark.parametrize("after", [True, False])
async def test_a_lost_first_commit(stored_world: World, after: bool) -> None:
    """Scenario 54: lost, the run is unknown and a second start creates it; durable, the second start carries it on."""
    number = {"after": 1} if after else {"before": 1}
    calls: list[str] = []
    async with stored_world.engine(in_row(1, calls), WatchedStore(stored_world.store).crash(**number)) as engine:
        with pytest.raises(Crash):
            await engine.start("flow", run_id="r")
        assert calls == []
    stored_world.clock.advance(seconds=31)  # the crashed engine's lease expires
    async with stored_world.engine(in_row(1, calls)) as engine:
        if not after:
            with pytest.raises(RunNotFound):
                await engine.drive("r")
        await engine.start("flow", run_id="r")
    assert await stored(stored_world.store, "r") == ONE_STEP
    assert calls == ["s0"]
