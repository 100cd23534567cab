"""What a worker claims, when it looks, and what it leaves to others (R2, R3, R9, R43, R44, spec 08 §8.4–8.5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from scenarios.kit import Clock, one_workflow, story

from perdure import (
    AsyncContext,
    Flow,
    FlowEngine,
    FlowWorker,
    NonRetryable,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    WorkflowContext,
    WorkflowSpec,
)
from perdure.stores import MemoryEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing.virtual_time import VirtualTimeLoop, run
from perdure.worker.shunned import ShunnedRuns
from worker.kit import CountingStore, chain, until, working


async def ended(store: FlowEventStore) -> int:
    return (await store.summary()).terminal_runs


async def test_runs_are_carried_to_their_end(store: FlowEventStore) -> None:
    ran: list[str] = []
    async with FlowEngine(chain(3, lambda context: ran.append(context.run_id)), store) as engine:
        run_ids = [await engine.submit("chain") for _ in range(40)]
        await FlowWorker(engine, concurrency=16, claim_batch=8).run_until_idle()
        assert sorted(ran) == sorted(run_ids * 3)
        assert await ended(store) == 40
    assert (await store.outlook()).owners == ()


async def test_the_limit_of_runs_driven_at_once_is_kept(store: FlowEventStore) -> None:
    live, most, together = 0, 0, asyncio.Barrier(3)
    flow = Flow()

    @flow.step
    async def step() -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await together.wait()
        live -= 1

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", step)

    counting: Any = CountingStore(store)
    async with FlowEngine(flow, counting) as engine:
        for _ in range(12):
            await engine.submit("flow")
        await FlowWorker(engine, concurrency=3, claim_batch=2).run_until_idle()
    assert (most, await ended(store)) == (3, 12)
    assert counting.calls["claim"] >= 6, "two at a time"


async def test_up_to_a_batch_is_claimed_in_one_transaction(store: FlowEventStore) -> None:
    counting: Any = CountingStore(store)
    async with FlowEngine(chain(1), counting) as engine:
        for _ in range(16):
            await engine.submit("chain")
        await FlowWorker(engine, claim_batch=16).run_until_idle()
    assert counting.calls["claim"] == 1
    assert await ended(store) == 16


async def test_a_worker_sleeps_until_the_next_wakeup_and_hears_of_what_is_submitted(store: FlowEventStore) -> None:
    """R3: without a poll, by the time of the next claim and by hints alone; the wait is completed at the claim's clock (R9)."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_for("w", timedelta(milliseconds=150))

    async with FlowEngine(one_workflow(ask), store) as engine, working(engine):
        await engine.submit("flow", run_id="timed")
        await until(lambda: _is(engine, "timed", "completed"))
        assert story(await engine.history("timed")) == [
            *("run_created", "run_started", "wait_created w", "wait_completed w", "run_completed")
        ]


async def _is(engine: FlowEngine, run_id: str, status: str) -> bool:
    return (await engine.snapshot(run_id)).status == status


async def test_a_run_of_another_process_is_heard_of(sqlite: SqliteEventStore) -> None:
    """By SQLite's count of what others commit."""
    other = SqliteEventStore(sqlite._file.path)
    async with FlowEngine(chain(1), sqlite) as engine, FlowEngine(chain(1), other) as client, working(engine):
        await asyncio.sleep(0.1)
        await client.submit("chain", run_id="r")
        await until(lambda: _is(client, "r", "completed"))
    await other.close()


async def test_unknown_workflows_and_versions_are_left_not_failed(store: FlowEventStore) -> None:
    """R44: nothing else is claimed."""
    async with FlowEngine(chain(1, version="2"), store) as engine:
        await engine.submit("chain", run_id="known")
        for run_id, spec in (("version", ("chain", "1")), ("name", ("other", "2"))):
            await engine.submit(WorkflowSpec.python(*spec), run_id=run_id)
        await FlowWorker(engine).run_until_idle()
        assert await _is(engine, "known", "completed")
        for run_id in ("version", "name"):
            state = await store.lease(run_id)
            assert (state.epoch, state.failures, state.last_sequence, state.claim_at) == (0, 0, 1, 0)


BUILDS = (None, "b1", "b2", "b3")
ADMITTED = [
    (None, [None]),
    (RuntimeBuildCompatibility("b1"), ["b1"]),
    (RuntimeBuildCompatibility("b1", ["b2"]), ["b1", "b2"]),
    (RuntimeBuildCompatibility("b1", ["b2"], accept_unpinned=True), [None, "b1", "b2"]),
]


@pytest.mark.parametrize(("builds", "admitted"), ADMITTED)
async def test_84_a_worker_claims_what_its_builds_admit(
    store: FlowEventStore, builds: RuntimeBuildCompatibility | None, admitted: list[str | None]
) -> None:
    """Each cell of 8.5: a run of another build is not touched, neither claimed nor failed."""
    async with FlowEngine(chain(1), store, builds=RuntimeBuildCompatibility("b1", ["b2", "b3"], True)) as client:
        for build in BUILDS:
            await client.submit(WorkflowSpec.python("chain", "1", build), run_id=str(build))
    async with FlowEngine(chain(1), store, builds=builds) as engine:
        await FlowWorker(engine).run_until_idle()
    told = {run.run_id: run.status for run in (await store.runs()).runs}
    assert told == {str(build): "completed" if build in admitted else "pending" for build in BUILDS}
    assert [(await store.lease(str(build))).epoch for build in BUILDS] == [int(build in admitted) for build in BUILDS]


@pytest.mark.usefixtures("long_memory")
async def test_a_missing_step_is_left_to_a_worker_that_has_it(store: FlowEventStore) -> None:
    """R44: released unparked, not counted, and passed over by this worker; nobody spins on it."""
    old = Flow()
    old.workflow("chain")(chain(1).find_workflow("chain", "1").function)
    counting: Any = CountingStore(store)
    async with FlowEngine(old, counting) as engine, working(engine):
        await engine.submit("chain", run_id="r")
        await until(lambda: _left_alone(store, "r"))
        await asyncio.sleep(0.3)
        state = await store.lease("r")
        assert (state.epoch, state.failures, state.hold, state.claim_at, state.parked_sequence) == (1, 0, None, 0, -1)
        assert counting.calls["claim"] == 1
        async with FlowEngine(chain(1), store) as other:
            await FlowWorker(other).run_until_idle()
        assert await _is(engine, "r", "completed")


async def _left_alone(store: FlowEventStore, run_id: str) -> bool:
    state = await store.lease(run_id)
    return state.epoch == 1 and state.owner is None


def test_the_time_a_run_is_passed_over_grows_until_it_is_driven() -> None:
    shunned = ShunnedRuns()
    assert [shunned.shun("r", 0.0) for _ in range(12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert (shunned.at(299.0), shunned.at(300.0), shunned.next_end(5.0), shunned.next_end(300.0)) == (
        *(["r"], [], 300.0, None),
    )
    shunned.forget("r")
    assert shunned.shun("r", 400.0) == 1
    for number in range(10_000):
        shunned.shun(f"r{number}", 0.0)
    assert "r" not in shunned.at(0.5), "the oldest of too many is forgotten"


async def test_76_a_failed_drive_is_counted_and_backs_off_and_another_worker_succeeds(store: FlowEventStore) -> None:
    """R44: the run is released with a failure and a time before which nobody takes it; then it is as any other. That time is
    drawn and may be over at once, so the first worker is stopped before it could claim the run again."""
    broken = True
    workers: list[FlowWorker] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if broken:
            workers[0].stop()
            raise RuntimeError("a bug")
        return ctx.complete("repaired")

    async with FlowEngine(one_workflow(ask), store) as first:
        await first.submit("flow", run_id="r")
        workers.append(FlowWorker(first))
        await workers[0].run_until_idle()
        state = await store.lease("r")
        assert (state.failures, state.owner, state.hold) == (1, None, None)
        assert state.not_before == (state.claim_at or 0) * 1000
    broken = False
    async with FlowEngine(one_workflow(ask), store) as second, working(second):
        await until(lambda: _is(second, "r", "completed"))
        assert (await store.lease("r")).failures == 0


async def test_75_what_is_not_due_or_has_ended_is_not_claimed(store: FlowEventStore) -> None:
    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_for("w", timedelta(hours=1))

    async with FlowEngine(one_workflow(ask), store) as engine:
        await engine.start("flow", run_id="waiting")
        await engine.start("flow", run_id="over")
        await engine.force_cancel("over")
        before = [(await store.lease(run_id)) for run_id in ("waiting", "over")]
        await FlowWorker(engine).run_until_idle()
        assert [(await store.lease(run_id)) for run_id in ("waiting", "over")] == before


async def test_a_held_run_is_tried_once_by_a_worker_of_another_build(store: FlowEventStore) -> None:
    """R43: looked for at the start; a worker without a build, or of a build that caused the hold, leaves it."""
    builds = {name: RuntimeBuildCompatibility(name, ["b1"], accept_unpinned=True) for name in ("b1", "b2")}
    async with FlowEngine(chain(1), store, builds=builds["b1"]) as engine:
        await engine.submit("chain", run_id="r")
        await store.set_hold("r", '{"code":"nondeterministic","builds":["b1"]}', expected_sequence=1)
        await FlowWorker(engine).run_until_idle()
        assert (await store.lease("r")).epoch == 0
    async with FlowEngine(chain(1), store) as engine:
        await FlowWorker(engine).run_until_idle()
        assert (await store.lease("r")).epoch == 0
    async with FlowEngine(chain(1), store, builds=builds["b2"]) as engine:
        await FlowWorker(engine).run_until_idle()
        assert await _is(engine, "r", "completed")
        assert (await store.lease("r")).hold is None


@pytest.mark.usefixtures("long_memory")
async def test_a_step_that_exits_ends_no_worker(store: FlowEventStore) -> None:
    """R53 records nothing for it; the worker goes on with other runs and leaves this one alone for a while."""
    flow = chain(1)

    @flow.step
    async def leave() -> None:
        raise SystemExit(3)

    @flow.workflow("leaver")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", leave)

    async with FlowEngine(flow, store) as engine, working(engine):
        await engine.submit("leaver", run_id="leaver")
        await until(lambda: _left_alone(store, "leaver"))
        await engine.submit("chain", run_id="r")
        await until(lambda: _is(engine, "r", "completed"))
        assert (await store.lease("leaver")).epoch == 1


async def test_a_run_that_fails_for_good_is_no_failure_of_the_worker(store: FlowEventStore) -> None:
    flow = Flow()

    @flow.step
    async def refuse() -> None:
        raise NonRetryable("never")

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("s", refuse)

    async with FlowEngine(flow, store) as engine:
        await engine.submit("flow", run_id="r")
        await FlowWorker(engine).run_until_idle()
        assert (await engine.snapshot("r")).status == "failed"


async def test_a_worker_shares_its_engine_with_direct_calls(store: FlowEventStore) -> None:
    async with FlowEngine(chain(2), store) as engine, working(engine):
        snapshots = await asyncio.gather(*(engine.run("chain") for _ in range(10)))
        assert {snapshot.status for snapshot in snapshots} == {"completed"}


async def test_senseless_settings_are_refused() -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        *((ValueError, {"concurrency": 0}), (ValueError, {"claim_batch": 0}), (ValueError, {"poll": timedelta()})),
        *((ValueError, {"drain_timeout": timedelta(-1)}), (TypeError, {"concurrency": 1.5}), (TypeError, {"poll": 30})),
    ]
    async with FlowEngine(chain(), "memory:") as engine:
        for kind, options in wrong:
            with pytest.raises(kind, match=next(iter(options))):
                FlowWorker(engine, **options)
        async with working(engine) as worker:
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="runs already"):
                await worker.run_until_idle()
    async with FlowEngine(chain(), "memory:", lease=False) as engine:
        with pytest.raises(ValueError, match="lease"):
            FlowWorker(engine)


async def test_a_run_that_is_given_back_during_a_look_is_not_left_behind(store: FlowEventStore) -> None:
    """The look leaves out what is driven. A worker that works until it is idle looks again when such a drive has ended."""
    asked, flow, failures = asyncio.Event(), Flow(), [RuntimeError("once")]
    counting: Any = CountingStore(store)

    @flow.step
    async def step() -> None:
        await asked.wait()

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", step)
        if failures:
            raise failures.pop()
        return ctx.complete()

    async def outlook(*args: Any, besides: Any = (), **named: Any) -> Any:
        seen = await store.outlook(*args, besides=besides, **named)
        if "r" in besides:  # the answer is on its way while the drive ends
            asked.set()
            while failures or (await store.lease("r")).owner is not None:  # noqa: ASYNC110 - the store says when
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
        return seen

    counting.outlook = outlook
    async with FlowEngine(flow, counting, random=AtOnce()) as engine:
        await engine.submit("flow", run_id="r")
        await FlowWorker(engine).run_until_idle()
        assert (await engine.snapshot("r")).status == "completed"


class AtOnce(Random):
    """Draws no back-off."""

    def random(self) -> float:
        return 0.0


def test_a_timer_that_somebody_else_parks_is_met_without_a_hint() -> None:
    """A commit that parks a run tells no other process. A worker that saw it leased does not sleep until that lease would end."""

    async def main(loop: VirtualTimeLoop) -> None:
        store, gate = MemoryEventStore(loop.clock_ns), asyncio.Event()
        deaf: Any = CountingStore(store)
        flow = Flow()

        @flow.step
        async def step() -> None:
            await gate.wait()

        @flow.workflow("flow")
        async def workflow(ctx: AsyncContext) -> None:
            await ctx.step(step)
            await ctx.sleep(timedelta(seconds=1))

        async def hear_nothing(seen: int, timeout_seconds: float) -> int:
            await asyncio.sleep(timeout_seconds)
            return seen

        deaf.wait_for_change = hear_nothing
        async with FlowEngine(flow, store) as direct, FlowEngine(flow, deaf) as engine:
            driving = asyncio.create_task(direct.start("flow", run_id="r"))
            await asyncio.sleep(0.1)
            async with working(engine):
                await asyncio.sleep(1)
                gate.set()
                await driving
                assert (await direct.snapshot("r")).status == "suspended"
                await asyncio.sleep(7)
                assert (await direct.snapshot("r")).status == "completed"

    run(main, Clock().ns)
