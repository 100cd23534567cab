"""Calls that are cancelled in the middle of a commit: whatever became of it, nobody is kept from going on (R2, R22)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from scenarios.kit import TOKEN, Clock, WatchedStore, World, one_workflow, open_store, stored

from crash.test_owners import one_step
from perdure import FlowEngine, RuntimeCommand, WorkflowContext
from perdure.kernel import KernelName
from perdure.stores import MemoryEventStore

CALLS: dict[str, tuple[int, Callable[[FlowEngine], Awaitable[object]]]] = {
    "start": (1, lambda engine: engine.start("flow", run_id="r")),
    "resume_hook": (1, lambda engine: engine.resume_hook("r", "h", 1)),
    "its drive": (2, lambda engine: engine.resume_hook("r", "h", 1)),
    "resume_wait": (1, lambda engine: engine.resume_wait("r", "w", early=True)),
    "request_cancellation": (1, lambda engine: engine.request_cancellation("r", "stop")),
    "drive": (1, lambda engine: engine.drive("r")),
}


def ask(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.cancellation_request():
        return ctx.cancel()
    if ctx.hook_received("h") or ctx.wait_completed("w") or ctx.progress("enough"):
        return ctx.complete()
    return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.wait_for("w", timedelta(hours=1))])


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_in_its_commit(kernel_name: KernelName, name: str, written: bool) -> None:
    """The commit is seen to its end behind the caller's back, and the lease it may have claimed is given back with it."""
    number, call = CALLS[name]
    clock = Clock()
    world = World(kernel_name, MemoryEventStore(clock), clock)
    committing, go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        committing.set()
        await go.wait()

    async with world.engine(one_workflow(ask)) as other:
        if name == "drive":
            await other.submit("flow", run_id="r")
        elif name != "start":
            await other.start("flow", run_id="r")
        store = WatchedStore(world.store)
        (store.after if written else store.before)[number] = hold
        engine = world.engine(one_workflow(ask), store)
        calling = asyncio.ensure_future(call(engine))
        await committing.wait()
        calling.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait([calling])
        assert calling.cancelled()
        await engine.close()
        assert not (await world.store.lease("r")).live
        if name in ("start", "drive"):
            assert (await other.drive("r")).status == "suspended"
        else:
            assert (await other.drive("r")).terminal
    assert len(set(await stored(world.store, "r"))) == len(await stored(world.store, "r"))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_closed_in_the_middle_of_a_step(kernel_name: KernelName, kind: str, tmp_path: Path) -> None:
    """A drain gives the lease back as its last act, so the next engine redelivers at once."""
    clock = Clock()
    world = World(kernel_name, open_store(kind, tmp_path, clock), clock)
    calls: list[str] = []
    for _ in range(20):
        engine = world.engine(one_step(3600, calls))
        before = len(calls)
        driving = asyncio.ensure_future(engine.start("flow", run_id="r"))
        while len(calls) == before:  # noqa: ASYNC110 - a step of any engine; there is nothing else to wait for
            await asyncio.sleep(0)
        await engine.close()
        await asyncio.wait([driving])
        assert not (await world.store.lease("r")).live
    assert calls == ["a 1"] * 20
    await world.store.close()
