"""How a worker ends: what runs may settle, leases go back, nothing is appended for it (R2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from scenarios.kit import story

from perdure import (
    DriveRun,
    EngineClosed,
    EngineElsewhere,
    Flow,
    FlowEngine,
    FlowWorker,
    MemoryEventStore,
    MemoryTaskQueue,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StoreError,
    StoreUnavailable,
    TaskWorker,
    WorkflowContext,
)
from perdure.stores.base import FlowEventStore
from worker.kit import CountingStore, chain, gated, until, working

NO_TIME = timedelta()


async def test_a_drain_lets_what_runs_settle_and_begins_nothing(store: FlowEventStore) -> None:
    """The running attempt is recorded, the workflow is not asked again, the lease is free at once, and nothing tells of the
    drain."""
    begun: list[str] = []
    gate = asyncio.Event()
    async with FlowEngine(gated(begun.append, gate), store) as engine:
        await engine.submit("gated", run_id="r")
        async with working(engine) as worker:
            await until(lambda: _begun(begun, 1))
            draining = asyncio.create_task(worker.drain())
            await asyncio.sleep(0.05)
            assert not draining.done(), "the attempt still runs"
            gate.set()
            await draining
        assert story(await engine.history("r")) == [
            *("run_created", "run_started", "step_created first", "step_started first 1", "step_completed first")
        ]
        assert begun == ["first"]
        state = await store.lease("r")
        assert (state.owner, state.claim_at, state.failures, state.parked_sequence) == (None, 0, 0, -1)
        await FlowWorker(engine).run_until_idle()
        assert begun == ["first", "second"]
        assert (await engine.snapshot("r")).output == "through"


async def _begun(begun: Sized, count: int) -> bool:
    return len(begun) >= count


async def test_after_the_deadline_attempts_are_cut_off(store: FlowEventStore) -> None:
    """Their steps stay running and are redelivered as the same attempt; the lease has gone back."""
    begun: list[str] = []
    gate = asyncio.Event()
    async with FlowEngine(gated(begun.append, gate), store) as engine:
        await engine.submit("gated", run_id="r")
        async with working(engine, drain_timeout=NO_TIME):
            await until(lambda: _begun(begun, 1))
        assert story(await engine.history("r"))[-1] == "step_started first 1"
        assert (await store.lease("r")).owner is None
        gate.set()
        await FlowWorker(engine).run_until_idle()
        assert begun == ["first", "first", "second"]
        assert (await engine.snapshot("r")).steps["first"].attempt == 1


@pytest.mark.usefixtures("unhurried")
async def test_a_second_stop_does_not_wait(store: FlowEventStore) -> None:
    begun: list[str] = []
    async with FlowEngine(gated(begun.append, asyncio.Event()), store) as engine:
        await engine.submit("gated", run_id="r")
        async with working(engine, drain_timeout=timedelta(hours=1)) as worker:
            await until(lambda: _begun(begun, 1))
            worker.stop()
            worker.stop()
        assert (await store.lease("r")).owner is None


@pytest.mark.usefixtures("unhurried")
async def test_a_cancelled_worker_gives_its_leases_back(store: FlowEventStore) -> None:
    begun: list[str] = []
    async with FlowEngine(gated(begun.append, asyncio.Event()), store) as engine:
        await engine.submit("gated", run_id="r")
        task = asyncio.create_task(FlowWorker(engine, drain_timeout=timedelta(hours=1)).run_forever(signals=False))
        await until(lambda: _begun(begun, 1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await store.lease("r")).owner is None


async def test_leaving_the_block_drains(store: FlowEventStore) -> None:
    async with FlowEngine(chain(2), store) as engine:
        async with FlowWorker(engine) as worker:
            task = asyncio.create_task(worker.run_forever(signals=False))
            await engine.submit("chain", run_id="r")
            await until(lambda: _ended(store))
        assert task.done()
    assert (await store.outlook()).owners == ()


async def _ended(store: FlowEventStore) -> bool:
    return (await store.summary()).terminal_runs == 1


async def test_a_drive_that_a_caller_waits_for_outlives_the_drain(store: FlowEventStore) -> None:
    begun: list[str] = []
    gate = asyncio.Event()
    async with FlowEngine(gated(begun.append, gate), store) as engine:
        await engine.submit("gated", run_id="r")
        async with working(engine, drain_timeout=NO_TIME):
            await until(lambda: _begun(begun, 1))
            call = asyncio.create_task(engine.drive("r"))
            await until(lambda: _joined(engine))
        gate.set()
        assert (await call).output == "through"
        assert begun == ["first", "second"]


async def _joined(engine: FlowEngine) -> bool:
    return [active.waiters for active in engine.active_drives] == [2]


@pytest.mark.usefixtures("long_memory")
async def test_a_run_that_cannot_be_read_is_handed_back_and_left_alone(store: FlowEventStore) -> None:
    """Claimed and not driven: other workers may try it at once, this one does not spin on it."""
    counting: Any = CountingStore(store)
    counting.failing["history"] = [StoreError("damaged") for _ in range(100)]
    async with FlowEngine(chain(1), store) as client:
        await client.submit("chain", run_id="r")
    async with FlowEngine(chain(1), counting) as engine, working(engine):
        await until(lambda: _tried(store))
        await asyncio.sleep(0.2)
        state = await store.lease("r")
        assert (state.live, state.epoch, state.failures) == (False, 1, 0)
        async with FlowEngine(chain(1), store) as other:
            await FlowWorker(other).run_until_idle()
    assert (await store.summary()).completed_runs == 1


async def _tried(store: FlowEventStore) -> bool:
    state = await store.lease("r")
    return state.epoch > 0 and not state.live


async def test_a_closed_engine_ends_its_worker(store: FlowEventStore) -> None:
    engine = FlowEngine(gated(lambda _: None, asyncio.Event()), store)
    await engine.submit("gated", run_id="r")
    task = asyncio.create_task(FlowWorker(engine, poll=timedelta(hours=1)).run_forever(signals=False))
    await until(lambda: _leased(store))
    await engine.close()
    await task
    assert not (await store.lease("r")).live
    with pytest.raises(EngineClosed):
        await engine.snapshot("r")


async def _leased(store: FlowEventStore) -> bool:
    return (await store.lease("r")).live


async def test_a_batch_in_flight_settles_as_a_whole(store: FlowEventStore) -> None:
    """With a limit of two, the third member is not begun by a worker that drains; what failed is recorded as to be
    retried."""
    begun: list[str] = []
    gate = asyncio.Event()
    flow = Flow()

    @flow.step
    async def step(name: str) -> str:
        begun.append(name)
        await gate.wait()
        return name

    @flow.workflow("batch")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        names = ["a", "b", "c"]
        if all(ctx.step_completed(name) for name in names):
            return ctx.complete()
        return ctx.schedule_steps([ctx.schedule_step(name, step, name) for name in names], concurrency=2)

    async with FlowEngine(flow, store) as engine:
        await engine.submit("batch", run_id="r")
        async with working(engine) as worker:
            await until(lambda: _begun(begun, 2))
            worker.stop()
            await until(lambda: _draining(engine))
            gate.set()
        assert begun == ["a", "b"]
        statuses = {step_id: step.status for step_id, step in (await engine.snapshot("r")).steps.items()}
        assert statuses == {"a": "completed", "b": "completed", "c": "pending"}
        await FlowWorker(engine).run_until_idle()
        assert begun == ["a", "b", "c"]


async def _draining(engine: FlowEngine) -> bool:
    return all(active.drive.draining for active in engine.active_drives)


async def test_a_store_that_is_away_is_waited_for(store: FlowEventStore) -> None:
    counting: Any = CountingStore(store)
    counting.failing["changes"] = [StoreUnavailable("not now")]
    counting.failing["outlook"] = [StoreUnavailable("not now"), StoreUnavailable("nor now")]
    counting.failing["claim"] = [StoreUnavailable("still not")]
    async with FlowEngine(chain(1), counting) as engine:
        await engine.submit("chain", run_id="r")
        await FlowWorker(engine).run_until_idle()
        assert (await engine.snapshot("r")).status == "completed"
    assert not any(counting.failing.values())


async def test_a_store_that_is_away_is_asked_at_growing_intervals(store: FlowEventStore) -> None:
    """Also where waiting for its news fails at once."""
    counting: Any = CountingStore(store)
    asked: list[float] = []

    async def outlook(*args: Any, **named: Any) -> Any:
        asked.append(asyncio.get_running_loop().time())
        raise StoreUnavailable("away")

    async def wait_for_change(seen: int, timeout_seconds: float) -> int:
        raise StoreUnavailable("away")

    counting.outlook, counting.wait_for_change = outlook, wait_for_change
    async with FlowEngine(chain(1), counting) as engine, working(engine):
        await until(lambda: _begun(asked, 4))
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert min(pauses) >= 0.09


async def test_a_store_that_cannot_be_worked_with_ends_the_worker(
    store: FlowEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.flow_worker._STORE_PATIENCE", 0.3)
    counting: Any = CountingStore(store)
    counting.failing["outlook"] = [StoreError("broken for good") for _ in range(1_000)]
    async with FlowEngine(chain(1), counting) as engine:
        with pytest.raises(StoreError, match="broken for good"):
            await FlowWorker(engine).run_forever(signals=False)


@pytest.mark.parametrize("name", ["claim", "claim_held"])
async def test_a_claim_that_a_cancelled_worker_waited_for_is_handed_back(store: FlowEventStore, name: str) -> None:
    counting: Any = CountingStore(store)
    claiming = asyncio.Event()

    async def claim(*args: Any, **named: Any) -> Any:
        claimed = await getattr(store, name)(*args, **named)
        claiming.set()
        await asyncio.sleep(0.05)  # the answer is on its way
        return claimed

    setattr(counting, name, claim)
    builds = RuntimeBuildCompatibility("b2", accept_unpinned=True)
    async with FlowEngine(chain(1), counting, builds=builds) as engine:
        await engine.submit("chain", run_id="r")
        if name == "claim_held":
            assert await store.set_hold("r", '{"builds":["b1"]}', expected_sequence=1)
        task = asyncio.create_task(FlowWorker(engine).run_forever(signals=False))
        await claiming.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        state = await store.lease("r")
        assert (state.epoch, state.live, state.last_sequence) == (1, False, 1)


async def test_a_cancelled_worker_ends_though_its_claim_fails(store: FlowEventStore) -> None:
    counting: Any = CountingStore(store)
    claiming = asyncio.Event()

    async def claim(*args: Any, **named: Any) -> Any:
        claiming.set()
        await asyncio.sleep(0.01)
        raise StoreUnavailable("away")

    counting.claim = claim
    async with FlowEngine(chain(1), counting) as engine:
        await engine.submit("chain", run_id="r")
        task = asyncio.create_task(FlowWorker(engine).run_forever(signals=False))
        await claiming.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("stops", [1, 2])
async def test_what_the_first_claim_brings_after_the_end_was_told_goes_back(store: FlowEventStore, stops: int) -> None:
    """Drives that are cut off before they began give their leases back, too."""
    counting: Any = CountingStore(store)

    async def claim(*args: Any, **named: Any) -> Any:
        claimed = await store.claim(*args, **named)
        for _ in range(stops):
            worker.stop()
        return claimed

    counting.claim = claim
    async with FlowEngine(chain(1), counting) as engine:
        for _ in range(4):
            await engine.submit("chain")
        worker = FlowWorker(engine, drain_timeout=NO_TIME if stops == 1 else timedelta(hours=1))
        await worker.run_forever(signals=False)
    assert not [run for run in (await store.runs()).runs if (await store.lease(run.run_id)).live]


async def test_a_lease_is_handed_back_though_its_drive_is_cut_off_meanwhile(store: FlowEventStore) -> None:
    """The engine was closed, so the drive hands its claim back, and the worker cuts off the drive that does so."""
    counting: Any = CountingStore(store)
    asked, gate = asyncio.Event(), asyncio.Event()

    async def renew(*args: Any, **named: Any) -> Any:
        asked.set()
        await gate.wait()
        return await store.renew(*args, **named)

    counting.renew = renew
    async with FlowEngine(chain(1), counting) as engine:
        await engine.submit("chain", run_id="r")
        (claimed,) = await store.claim(engine.owner, 1, ttl_ns=10**12)
        giving = asyncio.create_task(FlowWorker(engine)._hand_back(claimed))
        await asyncio.wait_for(asked.wait(), 60)
        giving.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await giving
        assert not (await store.lease("r")).live


def test_an_engine_of_another_loop_is_told_before_anything_is_claimed() -> None:
    store = MemoryEventStore()

    async def make() -> FlowEngine:
        engine = FlowEngine(chain(1), store)
        await engine.submit("chain", run_id="r")
        return engine

    async def work(engine: FlowEngine) -> None:
        queue = MemoryTaskQueue()
        await queue.enqueue(DriveRun("r"))
        with pytest.raises(EngineElsewhere):
            await FlowWorker(engine).run_until_idle()
        with pytest.raises(EngineElsewhere):
            await TaskWorker(engine, queue).run_forever()
        with pytest.raises(EngineElsewhere):
            await TaskWorker(engine, queue).run_until_idle()
        assert await queue.len() == 1
        assert (await store.lease("r")).epoch == 0

    asyncio.run(work(asyncio.run(make())))
