"""Bounded memory and bounded histories (R6, W1): the cache of projections, `max_history_events`."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from perdure import Flow, HistoryLimitExceeded, RuntimeCommand, WorkflowContext
from scenarios.kit import TOKEN, WatchedStore, World, one_workflow, stored
from scenarios.shells import SHELLS, OpenEngine


def runaway() -> Flow:
    """Real steps without an end."""
    flow = Flow()

    @flow.step(inline=True)
    def work() -> None:
        pass

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.cancellation_request():
            return ctx.cancel()
        return ctx.schedule_step(next(f"s{n}" for n in itertools.count() if not ctx.step_completed(f"s{n}")), work)

    return flow


@pytest.mark.parametrize("open_engine", SHELLS)
async def test_a_runaway_loop_of_steps_is_bounded(world: World, open_engine: OpenEngine) -> None:
    """`HistoryLimitExceeded` before the append; the last outcome is kept, and the run can still be ended."""
    async with open_engine(world, runaway(), max_history_events=20) as engine:
        with pytest.raises(HistoryLimitExceeded) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.args == ("r", 20)
        events = await stored(world.store, "r")
        assert len(events) <= 21
        assert events[-1].startswith("step_completed")
        with pytest.raises(HistoryLimitExceeded):
            await engine.drive("r")
        assert await stored(world.store, "r") == events
        assert (await engine.request_cancellation("r")).status == "cancelled"


@pytest.mark.parametrize("open_engine", SHELLS)
@pytest.mark.parametrize("cache_bytes", [0, 1, 10_000_000])
async def test_the_size_of_the_cache_changes_nothing(world: World, open_engine: OpenEngine, cache_bytes: int) -> None:
    """Evicted projections are read anew; runs of several engines see each other's events whatever they keep."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        for hook_id in ("one", "two"):
            if not ctx.hook_received(hook_id):
                return ctx.create_hook(hook_id, f"{TOKEN}-{ctx.run_id}-{hook_id}")
        if not ctx.wait_completed("w"):
            return ctx.wait_for("w", timedelta(hours=1))
        return ctx.complete([ctx.hook_payload("one"), ctx.hook_payload("two")])

    flow = one_workflow(ask)
    async with open_engine(world, flow, cache_bytes=cache_bytes) as engine, open_engine(world, flow) as other:
        for run_id in "abc":
            await engine.start("flow", "x" * 1000, run_id=run_id)
        for run_id in "cab":
            await engine.resume_hook(run_id, "one", 1)
        for run_id in "bca":
            await other.resume_hook_by_token(f"{TOKEN}-{run_id}-two", 2)
        assert len(await engine.resume_due_waits(world.clock.after(hours=1))) == 3
        assert [(s.status, s.output) for s in await engine.list_snapshots()] == [("completed", [1, 2])] * 3


class CountingStore(WatchedStore):
    """Counts the bytes of history read."""

    read = 0

    async def history(self, run_id: str, after: int = 0) -> bytes:
        lines = await self.inner.history(run_id, after)
        self.read += len(lines)
        return lines


async def test_a_kept_projection_is_extended_by_the_tail(world: World) -> None:
    """W1: calls on a run that the engine knows read what is new; with no room they read the whole again."""
    read = {}
    for cache_bytes in (10_000_000, 0):
        store = CountingStore(world.store)
        run_id = f"r{cache_bytes}"
        flow = one_workflow(lambda ctx: ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}"))
        async with world.engine(flow, store, cache_bytes=cache_bytes) as engine:
            await engine.start("flow", "x" * 10_000, run_id=run_id)
            store.read = 0
            for _ in range(5):
                await engine.snapshot(run_id)
            read[cache_bytes] = store.read
    assert read[10_000_000] == 0
    assert read[0] > 50_000
