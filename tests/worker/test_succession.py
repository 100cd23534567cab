"""Leases of workers: kept while the event loop stands still, ended at once when a process dies, lost by one that was paused
(R2, R45)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from scenarios.kit import Clock, story

from perdure import Flow, FlowEngine, FlowWorker, RuntimeCommand, StepContext, WorkflowContext
from perdure.leasing import Leasing
from perdure.stores import MemoryEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing.virtual_time import VirtualTimeLoop, run
from worker.child import child, logged
from worker.kit import CountingStore, gated, until, working

LONG = timedelta(seconds=200)
"""A lease that no stall of the machine outlives."""


# -- renewals ------------------------------------------------------------------------------------------------------------------


def blocking(begun: Event, end: Event) -> Flow:
    """An inline step that stops the event loop until it is told to end."""
    flow = Flow()

    @flow.step(inline=True)
    def block() -> None:
        assert not begun.is_set(), "it runs once"
        begun.set()
        assert end.wait(100), "nobody told it"

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", block)

    return flow


@contextmanager
def rival(store: FlowEventStore, begun: Event, renewed: Event, found: list[object]) -> Iterator[None]:
    """Another process, as far as leases go: a thread that tries to claim all the time once the step has begun, and tells when
    it has seen the lease go on three times."""
    over = Event()

    async def claim() -> None:
        begun.wait()
        own, ends = store.elsewhere(), set[int | None]()
        while not over.wait(0.03):
            found.extend(await (own or store).claim("rival", 9, ttl_ns=10**9))
            ends.add((await (own or store).lease("r")).claim_at)
            if len(ends) > 3:
                renewed.set()
        if own is not None:
            await own.close()

    thread = Thread(target=lambda: asyncio.run(claim()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_a_blocked_event_loop_loses_no_lease(store: FlowEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step blocks until three renewals have gone out; nobody else gets the run meanwhile. They go out as often as for a
    TTL of 900 ms, while the store grants more, so that a stall of the machine lets no lease expire."""
    begun, renewed, stolen = Event(), Event(), list[object]()
    monkeypatch.setattr(Leasing, "ttl_seconds", 0.9)
    async with FlowEngine(blocking(begun, renewed), store, lease_ttl=LONG) as engine:
        await engine.submit("flow", run_id="r")
        with rival(store, begun, renewed, stolen):
            await FlowWorker(engine).run_until_idle()
        assert stolen == []
        assert (await engine.snapshot("r")).status == "completed"
        assert (await store.lease("r")).epoch == 1


async def test_a_fault_in_one_renewal_costs_no_lease() -> None:
    store: Any = CountingStore(MemoryEventStore())
    store.failing["renew"] = [RuntimeError("a fault")]
    gate = asyncio.Event()
    async with FlowEngine(gated(lambda _: None, gate), store, lease_ttl=timedelta(milliseconds=600)) as engine:
        await engine.submit("gated", run_id="r")
        async with working(engine):
            await until(lambda: _renewed(store, 4))
            gate.set()


async def _renewed(store: Any, count: int) -> bool:
    return bool(store.calls["renew"] >= count)


async def test_one_statement_renews_all_runs() -> None:
    counting: Any = CountingStore(MemoryEventStore())
    flow = Flow()

    @flow.step
    async def step() -> None:
        await until(lambda: _renewed(counting, 2))

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", step)

    async with FlowEngine(flow, counting, lease_ttl=timedelta(milliseconds=600)) as engine:
        for _ in range(30):
            await engine.submit("flow")
        began = time.monotonic()
        await FlowWorker(engine, claim_batch=30).run_until_idle()
        thirds = (time.monotonic() - began) / 0.2
        assert 2 <= counting.calls["renew"] <= thirds, "however many runs there are"
        assert (await counting.summary()).completed_runs == 30


def test_commits_that_renew_save_the_renewals() -> None:
    """A run of short steps is mostly renewed by its own commits (counts of sql-sketch.md): of the eighteen renewals that three
    minutes of a single step take, few are left."""

    async def main(loop: VirtualTimeLoop) -> None:
        counting: Any = CountingStore(MemoryEventStore(loop.clock_ns))
        flow = Flow()

        @flow.step
        async def step() -> None:
            await asyncio.sleep(3)

        @flow.workflow("flow")
        def workflow(ctx: WorkflowContext) -> RuntimeCommand:
            done = [n for n in range(60) if ctx.step_completed(f"s{n}")]
            return ctx.complete() if len(done) == 60 else ctx.schedule_step(f"s{len(done)}", step)

        async with FlowEngine(flow, counting) as engine:
            assert (await engine.run("flow")).status == "completed"
        assert counting.calls["renew"] <= 4
        assert counting.calls["commit"] == 61

    run(main, Clock().ns)


# -- real processes --------------------------------------------------------------------------------------------------------------


def quick(ran: list[str], gate: asyncio.Event | None = None) -> Flow:
    """The same workflow; its step takes no time, or until the gate is opened."""
    flow = Flow()

    @flow.step
    async def slow(context: StepContext) -> str:
        ran.append(context.step_id)
        if gate is not None:
            await gate.wait()
        return "by the successor"

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.step_output("s")) if ctx.step_completed("s") else ctx.schedule_step("s", slow)

    return flow


@pytest.mark.parametrize("reaped", [True, False])
async def test_the_runs_of_a_killed_process_are_carried_on_at_once(
    shared: FlowEventStore, tmp_path: Path, reaped: bool
) -> None:
    """Its lease would have lived for an hour; an idle worker hears of the death from the system, also before somebody has
    asked for the dead one's status."""
    ran: list[str] = []
    async with FlowEngine(quick(ran), shared) as engine:
        await engine.submit("flow", run_id="r")
        with child(shared, tmp_path, "--lease-ttl", "3600") as process:
            async with working(engine):
                await asyncio.sleep(0.2)
                assert (ran, (await shared.lease("r")).epoch) == ([], 1)
                process.kill()
                if reaped:
                    process.wait()
                await until(lambda: _is_over(engine))
        assert ran == ["s"]
        assert (await engine.snapshot("r")).steps["s"].attempt == 1
        assert (await shared.lease("r")).epoch == 2


async def _has_begun(ran: list[str]) -> bool:
    return ran == ["s"]


async def _is_over(engine: FlowEngine) -> bool:
    return (await engine.snapshot("r")).terminal


async def test_a_paused_worker_is_succeeded_and_its_commit_refused(shared: FlowEventStore, tmp_path: Path) -> None:
    """SIGSTOP beyond the lease, then SIGCONT: the run is another's, and what the paused one brings is dropped. The successor
    is not done by then, or the paused one might hear of the end before its commit could be refused."""
    ran: list[str] = []
    gate = asyncio.Event()
    async with FlowEngine(quick(ran, gate), shared) as engine:
        await engine.submit("flow", run_id="r")
        with child(shared, tmp_path, "--lease-ttl", "1") as process:
            process.send_signal(signal.SIGSTOP)
            async with working(engine):
                await until(lambda: _has_begun(ran))
                (tmp_path / "go").touch()
                process.send_signal(signal.SIGCONT)
                await until(lambda: logged(tmp_path, "run r went to another worker"))
                gate.set()
                await until(lambda: _is_over(engine))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0
        assert (await engine.snapshot("r")).output == "by the successor"
        assert story(await engine.history("r")) == [
            *("run_created", "run_started", "step_created s", "step_started s 1", "step_completed s", "run_completed")
        ]
