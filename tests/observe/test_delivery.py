"""Scenario 87: each committed event is observed once and in order; what was not committed is not observed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

import pytest
from scenarios.kit import Crash, WatchedStore, World, one_workflow

from observe.tour import flow, sequences, take_the_tour
from perdure import Flow, RuntimeCommand, WorkflowContext, WorkflowProgress
from perdure.commands import RawCommand
from perdure.observe import MemoryObserver, Observation


async def test_87_every_event_once_and_in_order(world: World) -> None:
    """One call per envelope, also for the batches of a staged commit, whoever made the commit: drive or host call."""
    memory = MemoryObserver()
    history = await take_the_tour(world, memory)
    assert [seen.envelope for seen in memory.observations] == history
    assert {seen.spec for seen in memory.observations} == {flow.find_workflow("tour", "3").spec()}
    assert len({event.type for event in history}) >= 16
    assert memory.observations[0].status in ("running", "suspended")
    assert memory.observations[-1].status == "cancelled"


@pytest.mark.parametrize("commit", ["staged", "each"])
async def test_87_batches_of_every_size(world: World, commit: str) -> None:
    memory = MemoryObserver()
    async with world.engine(batch_flow(), observer=memory, commit=commit) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
        history = await engine.history("r")
    assert [seen.envelope for seen in memory.observations] == history


def batch_flow() -> Flow:
    flow = Flow()

    @flow.step
    async def work(number: int) -> int:
        return number

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        ids = [f"s{number}" for number in range(5)]
        if all(ctx.step_completed(step_id) for step_id in ids):
            return ctx.complete()
        return ctx.schedule_steps([ctx.step(step_id, work, 1) for step_id in ids])

    return flow


async def test_87_the_status_is_the_one_after_the_commit(world: World) -> None:
    memory = MemoryObserver()
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), observer=memory) as engine:
        await engine.start("flow", run_id="later", drive=False)
        await engine.drive("later")
    assert [(seen.envelope.type, seen.status) for seen in memory.observations] == [
        ("run_created", "pending"),
        ("run_started", "completed"),
        ("run_completed", "completed"),
    ]


async def test_87_order_is_kept_in_each_of_many_runs(world: World) -> None:
    memory = MemoryObserver()
    async with world.engine(batch_flow(), observer=memory) as engine:
        await asyncio.gather(*(engine.run("flow", run_id=f"r{number}") for number in range(10)))
    seen: dict[str, list[int]] = defaultdict(list)
    for observation in memory.observations:
        seen[observation.envelope.run_id].append(observation.envelope.sequence)
    assert seen == {f"r{number}": list(range(1, 19)) for number in range(10)}


async def test_87_a_refused_append_is_not_observed(world: World) -> None:
    """Between the decision and its commit another engine appends: of the refused batch nothing is told, of what follows
    all, and of what the other engine wrote nothing."""
    store, memory = WatchedStore(world.store), MemoryObserver()

    async def foreign() -> None:
        async with world.engine(flow, lease=False) as other:
            await other.record_progress("r", WorkflowProgress("foreign", 1))

    store.before[2] = foreign
    asking = one_workflow(lambda ctx: ctx.complete())
    async with world.engine(asking, store, observer=memory, lease=False) as engine:
        await engine.submit("flow", run_id="r")
        await engine.drive("r")
        history = await engine.history("r")
    own = [event for event in history if event.type != "run_progress_recorded"]
    assert len(history) == 4
    assert [seen.envelope for seen in memory.observations] == own


async def test_87_a_commit_that_failed_is_not_observed(world: World) -> None:
    store, memory = WatchedStore(world.store).crash(before=1), MemoryObserver()
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), store, observer=memory) as engine:
        with pytest.raises(Crash):
            await engine.start("flow", run_id="r")
        assert memory.observations == []
        await engine.start("flow", run_id="r")
    assert sequences(memory.observations) == [1, 2, 3]


async def test_a_host_call_that_changes_nothing_is_not_observed(world: World) -> None:
    memory = MemoryObserver()
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), observer=memory) as engine:
        for _ in range(3):
            await engine.start("flow", run_id="r")
        await engine.force_cancel("r")
    assert sequences(memory.observations) == [1, 2, 3]


class Where:
    """Notes on which thread it is told."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()

    def observe(self, _: Observation) -> None:
        self.threads.add(threading.current_thread())


class WhereAsync(Where):
    async def observe(self, _: Observation) -> None:  # type: ignore[override] # both fit the protocol
        self.threads.add(threading.current_thread())
        assert asyncio.get_running_loop().is_running()


async def test_a_plain_observer_is_never_told_on_the_loops_thread(world: World) -> None:
    observer = Where()
    await take_the_tour(world, observer)
    (thread,) = observer.threads
    assert thread is not threading.current_thread()
    assert thread.daemon


async def test_a_coroutine_is_awaited_on_the_engines_loop(world: World) -> None:
    observer = WhereAsync()
    await take_the_tour(world, observer)
    assert observer.threads == {threading.current_thread()}


def test_the_blocking_engine_tells_all_before_it_is_closed(world: World) -> None:
    class Slowly(MemoryObserver):
        async def observe(self, observation: Observation) -> None:  # type: ignore[override] # both fit the protocol
            await asyncio.sleep(0.001)
            self.observations.append(observation)

    for memory in (MemoryObserver(), Slowly()):
        run_id = type(memory).__name__
        with world.blocking(batch_flow(), observer=memory) as engine:
            engine.run("flow", run_id=run_id)
            history = engine.history(run_id)
        assert [seen.envelope for seen in memory.observations] == history


async def test_an_event_with_a_payload_that_python_refuses_is_told_like_any_other(world: World) -> None:
    """R30: a kernel takes payloads it never reads; they are refused when they are decoded, if they ever are."""
    memory = MemoryObserver()
    odd = one_workflow(lambda ctx: RawCommand(b'{"type":"complete","output":["\\ud800",1e400]}'))
    async with world.engine(odd, observer=memory) as engine:
        await engine.start("flow", run_id="r")
    assert sequences(memory.observations) == [1, 2, 3]


async def test_87_a_commit_that_outlives_its_drive_is_observed(world: World) -> None:
    """The caller leaves while the store answers; the events are durable, so they are told."""
    store, memory = WatchedStore(world.store), MemoryObserver()
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await gate.wait()

    store.after[1] = hold
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), store, observer=memory) as engine:
        starting = asyncio.create_task(engine.start("flow", run_id="r"))
        await reached.wait()
        starting.cancel()
        await asyncio.wait([starting])
        gate.set()
        await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "perdure drive r"])
    assert sequences(memory.observations) == [1, 2, 3]


async def test_87_a_host_call_that_was_cancelled_after_its_commit_is_observed(world: World) -> None:
    """The same without a drive: the call's own events are durable when its caller leaves."""
    store, memory = WatchedStore(world.store), MemoryObserver()
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await gate.wait()

    store.after[2] = hold
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), store, observer=memory) as engine:
        await engine.submit("flow", run_id="r")
        ending = asyncio.create_task(engine.force_cancel("r"))
        await reached.wait()
        ending.cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait([ending])
        assert (await engine.snapshot("r")).status == "cancelled"
    assert sequences(memory.observations) == [1, 2]


async def test_the_engine_counts_what_its_observer_missed(world: World) -> None:
    gate = asyncio.Event()

    class Slow(MemoryObserver):
        async def observe(self, observation: Observation) -> None:  # type: ignore[override] # both fit the protocol
            await gate.wait()
            self.observations.append(observation)

    slow = Slow()
    async with world.engine(batch_flow(), observer=slow, observer_limit=3) as engine:
        await engine.run("flow", run_id="r")
        assert engine.observations_dropped >= 18 - 4
        gate.set()
    assert len(slow.observations) + engine.observations_dropped == 18
