"""Scenarios 54 to 59: the engine ends at one chosen commit, all of which is lost (R18), in both shells.

Each is judged three ways where they differ: staged, under `commit="each"`, and as a prefix that was left behind. Scenario 60
kills real processes: `tests/crash`. Engines here drive without leases, because one that only seems to die inside a living
process would keep its lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure import Envelope, Flow, RetryPolicy, RunNotFound, RuntimeCommand, StepContext, WorkflowContext
from perdure.errors import FlowError
from perdure.stores.base import Append, Committed, FlowEventStore
from scenarios.kit import TOKEN, Crash, World, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

STARTED = ["run_created", "run_started", "step_created a", "step_started a 1"]
COMPLETED = [*STARTED, "step_completed a", "run_completed"]


class LosingStore:
    """Loses the first commit that holds an event of this type, and whoever made it."""

    def __init__(self, inner: FlowEventStore, event: str) -> None:
        self._inner = inner
        self._mark = f'{{"type":"{event}"'.encode()
        self.lost = b""

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        lines = b"".join(append.batch.lines for append in appends)
        if not self.lost and self._mark in lines:
            self.lost = lines
            raise Crash
        return await self._inner.commit(appends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def losing(world: World, event: str) -> World:
    """The same world with a commit to lose."""
    return World(world.kernel, cast(FlowEventStore, LosingStore(world.store, event)), world.clock)


def one_step(calls: list[str], policy: RetryPolicy | None = None, failures: int = 0) -> Flow:
    """One step `a`, whose first `failures` attempts fail; a failure it was told of ends the run well."""
    flow = Flow()

    @flow.step
    async def work(context: StepContext) -> str:
        calls.append(f"step {context.attempt}")
        if context.attempt <= failures:
            raise ValueError(f"attempt {context.attempt}")
        return "done"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("workflow")
        if ctx.step_completed("a"):
            return ctx.complete(ctx.step_output("a"))
        return ctx.schedule_step("a", work, retry=policy)

    return flow


async def crash(world: World, open_engine: OpenEngine, flow: Flow, event: str, mode: str) -> list[str]:
    """Starts the run with an engine that ends at its commit of that event; gives what is stored."""
    async with open_engine(losing(world, event), flow, lease=False, commit=mode) as engine:
        with pytest.raises(Crash):
            await engine.start("flow", run_id="r")
    return await stored(world.store, "r") if await world.store.run_ids() else []


@pytest.mark.parametrize("mode", ["staged", "each"])
async def test_54_lost_run_started(world: World, open_engine: OpenEngine, mode: str) -> None:
    """Lost `run_started` → second start repairs. Staged, a lost first commit leaves the run unknown and the second start
    creates it (§H)."""
    calls: list[str] = []
    left = await crash(world, open_engine, one_step(calls), "run_started", mode)
    assert left == ([] if mode == "staged" else ["run_created"])
    assert calls == (["workflow"] if mode == "staged" else [])
    async with open_engine(world, one_step(calls), lease=False) as engine:
        if mode == "staged":
            with pytest.raises(RunNotFound):
                await engine.drive("r")
        assert await engine.start("flow", run_id="r") == "r"
        assert (await engine.snapshot("r")).output == "done"
    assert await stored(world.store, "r") == COMPLETED
    assert calls.count("step 1") == 1


async def test_54_the_prefix_is_repaired(world: World, open_engine: OpenEngine) -> None:
    """The prefix `[run_created]` is repaired by an equal start (§H)."""
    calls: list[str] = []
    async with open_engine(world, one_step(calls), lease=False) as engine:
        await engine.submit("flow", run_id="r")
        assert await stored(world.store, "r") == ["run_created"]
        await engine.start("flow", run_id="r")
    assert await stored(world.store, "r") == COMPLETED


@pytest.mark.parametrize("mode", ["staged", "each"])
async def test_55_lost_step_completed(world: World, open_engine: OpenEngine, mode: str) -> None:
    """Lost `step_completed` → step re-run, same attempt, two invocations."""
    calls: list[str] = []
    assert await crash(world, open_engine, one_step(calls), "step_completed", mode) == STARTED
    async with open_engine(world, one_step(calls), lease=False, commit=mode) as engine:
        assert (await engine.drive("r")).steps["a"].attempt == 1
    assert await stored(world.store, "r") == COMPLETED
    assert [call for call in calls if call != "workflow"] == ["step 1", "step 1"]


@pytest.mark.parametrize("mode", ["staged", "each"])
@pytest.mark.parametrize("delay", [timedelta(0), timedelta(hours=1)])
async def test_56_lost_step_retrying(world: World, open_engine: OpenEngine, mode: str, delay: timedelta) -> None:
    """Lost `step_retrying` → step re-run, same attempt; the budget is untouched, with and without a delay."""
    calls: list[str] = []
    flow = one_step(calls, RetryPolicy.fixed(2, delay), failures=1)
    assert await crash(world, open_engine, flow, "step_retrying", mode) == STARTED
    async with open_engine(world, flow, lease=False, commit=mode) as engine:
        await engine.drive("r")
        if delay:
            await engine.resume_due_retries(world.clock.after(hours=1))
        assert (await engine.snapshot("r")).output == "done"
    assert [call for call in calls if call != "workflow"] == ["step 1", "step 1", "step 2"]
    assert (await stored(world.store, "r"))[4:] == [
        "step_retrying a 1",
        "step_started a 2",
        "step_completed a",
        "run_completed",
    ]


async def test_57_lost_run_retry_exhausted(world: World, open_engine: OpenEngine) -> None:
    """Lost `run_retry_exhausted` → reconstructed, with no call of workflow or step (literally under `commit="each"`)."""
    calls: list[str] = []
    flow = one_step(calls, RetryPolicy.none(), failures=9)
    left = await crash(world, open_engine, flow, "run_retry_exhausted", "each")
    assert left == [*STARTED, "step_failed a 1"]
    calls.clear()
    async with open_engine(world, flow, lease=False) as engine:
        snapshot = await engine.drive("r")
    assert calls == []
    assert snapshot.terminal_outcome == {
        "type": "retry_exhausted",
        "step_id": "a",
        "attempt": 1,
        "error": "runtime error: attempt 1",
    }
    assert await stored(world.store, "r") == [*left, "run_retry_exhausted a 1"]


async def test_57_staged(world: World, open_engine: OpenEngine) -> None:
    """Staged, `[step_failed, run_retry_exhausted]` is lost together: the step runs again as the same attempt (§H)."""
    calls: list[str] = []
    flow = one_step(calls, RetryPolicy.none(), failures=9)
    assert await crash(world, open_engine, flow, "run_retry_exhausted", "staged") == STARTED
    async with open_engine(world, flow, lease=False) as engine:
        assert (await engine.drive("r")).status == "failed"
    assert await stored(world.store, "r") == [*STARTED, "step_failed a 1", "run_retry_exhausted a 1"]
    assert calls.count("step 1") == 2


async def test_57_as_a_prefix(world: World, open_engine: OpenEngine) -> None:
    """The history up to `step_failed`, left by whomever, is closed with no call at all."""
    calls: list[str] = []
    flow = one_step(calls, RetryPolicy.none(), failures=9)
    async with open_engine(world, flow, lease=False) as engine:
        await engine.start("flow", run_id="whole")
        await plant_prefix(world, "step_failed")
        calls.clear()
        assert (await engine.drive("r")).status == "failed"
    assert calls == []


@pytest.mark.parametrize("mode", ["staged", "each"])
async def test_58_lost_run_completed(world: World, open_engine: OpenEngine, mode: str) -> None:
    """Lost `run_completed` → workflow called once more, completes. Staged, `[step_completed, run_completed]` is lost
    together and the step runs again (§H)."""
    calls: list[str] = []
    left = await crash(world, open_engine, one_step(calls), "run_completed", mode)
    assert left == (STARTED if mode == "staged" else [*STARTED, "step_completed a"])
    calls.clear()
    async with open_engine(world, one_step(calls), lease=False, commit=mode) as engine:
        assert (await engine.drive("r")).output == "done"
    assert calls == (["workflow", "step 1", "workflow"] if mode == "staged" else ["workflow"])
    assert await stored(world.store, "r") == COMPLETED


async def test_58_as_a_prefix(world: World, open_engine: OpenEngine) -> None:
    """The history up to `step_completed`: the workflow is called once more and completes."""
    calls: list[str] = []
    async with open_engine(world, one_step(calls), lease=False) as engine:
        await engine.start("flow", run_id="whole")
        await plant_prefix(world, "step_completed")
        calls.clear()
        assert (await engine.drive("r")).output == "done"
    assert calls == ["workflow"]


async def plant_prefix(world: World, last: str) -> None:
    """Run `r` with the events of run `whole` up to and with the one of this type."""
    history = Envelope.parse_lines(await world.store.history("whole"))
    cut = next(number for number, envelope in enumerate(history, 1) if envelope.type == last)
    await world.plant("r", history[:cut])


@pytest.mark.parametrize("mode", ["staged", "each"])
@pytest.mark.parametrize("kind", ["wait", "hook"])
async def test_59_lost_drive_after_a_resolution(world: World, open_engine: OpenEngine, mode: str, kind: str) -> None:
    """Lost drive after `wait_completed` / `hook_received` → redelivery completes the run with one resolution event."""
    flow = Flow()

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.wait_completed("x") or ctx.hook_received("x"):
            return ctx.complete("over")
        return ctx.wait_until("x", "2020-01-01T00:00:00Z") if kind == "wait" else ctx.create_hook("x", TOKEN)

    async with open_engine(losing(world, "run_completed"), flow, lease=False, commit=mode) as engine:
        await engine.start("flow", run_id="r")
        with pytest.raises(Crash):
            await (engine.resume_wait("r", "x") if kind == "wait" else engine.resume_hook("r", "x", 1))
    resolution = "wait_completed x" if kind == "wait" else "hook_received x"
    assert (await stored(world.store, "r"))[-1] == resolution
    async with open_engine(world, flow, lease=False, commit=mode) as engine:
        again = engine.resume_wait("r", "x") if kind == "wait" else engine.resume_hook("r", "x", 1)
        assert (await again).output == "over"
    events = await stored(world.store, "r")
    assert events[-2:] == [resolution, "run_completed"]
    assert events.count(resolution) == 1


async def test_59_a_lost_resolution(world: World, open_engine: OpenEngine) -> None:
    """The resolution itself lost: nothing is stored, and the redelivery is the first one."""
    flow = Flow()

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.hook_payload("h")) if ctx.hook_received("h") else ctx.create_hook("h", TOKEN)

    async with open_engine(losing(world, "hook_received"), flow, lease=False) as engine:
        await engine.start("flow", run_id="r")
        with pytest.raises(Crash):
            await engine.resume_hook_by_token(TOKEN, 5)
    async with open_engine(world, flow, lease=False) as engine:
        assert await engine.resume_hook_by_token(TOKEN, 5) == ("r", "h")
        assert (await engine.snapshot("r")).output == 5
