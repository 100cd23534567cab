"""A drive that is cancelled before its first line still ends as one: it gives back what it holds and stands in nobody's way."""

from __future__ import annotations

import asyncio

import pytest

from perdure import (
    Flow,
    FlowEngine,
    MemoryEventStore,
    NonDeterministic,
    RunFilter,
    RuntimeCommand,
    WorkflowContext,
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
        async with asyncio.timeout(10):
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
