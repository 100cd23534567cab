"""Fixed bugs about runtime builds: 30, 34, 35 (spec 08 §8.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scenarios.kit import TOKEN, World, stored

from perdure import (
    Flow,
    FlowEngine,
    RunConflict,
    RuntimeBuildCompatibility,
    RuntimeBuildUnavailable,
    RuntimeCommand,
    WorkflowContext,
    WorkflowProgress,
    WorkflowSpec,
)

UNPINNED = WorkflowSpec.python("flow", "1")
PINNED = replace(UNPINNED, runtime_build_id="v1")
OLD, NEW = RuntimeBuildCompatibility("v1"), RuntimeBuildCompatibility("v2")


def flow_of(calls: list[str]) -> Flow:
    flow = Flow()

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("workflow")
        if ctx.hook_received("h"):
            return ctx.complete()
        return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.wait_for("w", timedelta(hours=1))])

    return flow


Call = Callable[[FlowEngine], Any]
DRIVING: dict[str, Call] = {
    "start": lambda engine: engine.start(PINNED, run_id="r"),
    "drive": lambda engine: engine.drive("r"),
    "resume_wait": lambda engine: engine.resume_wait("r", "w", early=True),
    "resume_hook": lambda engine: engine.resume_hook("r", "h", 1),
    "by token": lambda engine: engine.resume_hook_by_token(TOKEN, 1),
    "dispose_hook": lambda engine: engine.dispose_hook("r", "h"),
    "request_cancellation": lambda engine: engine.request_cancellation("r"),
    "resume_scheduled_run": lambda engine: engine.resume_scheduled_run("r", "2026-01-02T00:00:00Z"),
    "resume_due_waits": lambda engine: engine.resume_due_waits("2026-01-02T00:00:00Z"),
}


@pytest.mark.parametrize("builds", [NEW, None], ids=["another", "none"])
@pytest.mark.parametrize("name", DRIVING)
async def test_bug_30_the_wrong_build_writes_nothing(
    world: World, name: str, builds: RuntimeBuildCompatibility | None
) -> None:
    """Wrong build → error before any write, in every call that drives."""
    calls: list[str] = []
    async with world.engine(flow_of(calls), builds=OLD) as engine:
        await engine.start(PINNED, run_id="r")
    before = await world.store.history("r")
    calls.clear()
    async with world.engine(flow_of(calls), builds=builds) as engine:
        with pytest.raises(RuntimeBuildUnavailable) as refused:
            await DRIVING[name](engine)
    current = None if builds is None else builds.current
    assert refused.value.args == ("r", "v1", current)
    assert await world.store.history("r") == before
    assert calls == []


async def test_bug_30_a_new_run_of_the_wrong_build(world: World) -> None:
    """A start makes no run; an unpinned run needs `accept_unpinned` where builds are configured."""
    async with world.engine(flow_of([]), builds=NEW) as engine:
        for workflow in (PINNED, UNPINNED):
            with pytest.raises(RuntimeBuildUnavailable):
                await engine.start(workflow, run_id="r")
        assert await engine.list_run_ids() == []
    accepting = RuntimeBuildCompatibility("v2", frozenset({"v1"}), accept_unpinned=True)
    async with world.engine(flow_of([]), builds=accepting) as engine:
        await engine.start(PINNED, run_id="pinned")
        await engine.dispose_hook("pinned", "h", drive=False)
        await engine.start(UNPINNED, run_id="unpinned")


async def test_bug_30_what_needs_no_build(world: World) -> None:
    """Force-cancel still works, and so do reading and facts from outside."""
    async with world.engine(flow_of([]), builds=OLD) as engine:
        await engine.start(PINNED, run_id="r")
    async with world.engine(flow_of([]), builds=NEW) as engine:
        assert (await engine.record_progress("r", WorkflowProgress("seen", 1))).status == "suspended"
        assert len(await engine.list_open_suspensions(world.clock.now)) == 2
        assert (await engine.force_cancel("r")).status == "cancelled"
        assert (await engine.request_cancellation("r")).status == "cancelled"
        assert (await engine.drive("r")).status == "cancelled"


async def test_bug_34_an_equal_start_of_a_run_that_ended(world: World) -> None:
    """Idempotent start of a terminal run by an engine with the wrong build → Ok."""
    async with world.engine(flow_of([]), builds=OLD) as engine:
        await engine.start(PINNED, run_id="r")
        await engine.resume_hook("r", "h", 1)
    before = await stored(world.store, "r")
    calls: list[str] = []
    async with world.engine(flow_of(calls), builds=NEW) as engine:
        assert await engine.start(PINNED, run_id="r") == "r"
    assert calls == []
    assert await stored(world.store, "r") == before


async def test_bug_35_the_conflict_is_told_first(world: World) -> None:
    """Start conflict reported before build admission: spec, then input, then build."""
    async with world.engine(flow_of([]), builds=OLD) as engine:
        await engine.start(PINNED, 1, run_id="r")
    async with world.engine(flow_of([]), builds=NEW) as engine:
        for workflow, value, reason in [
            (replace(PINNED, version="9"), 1, "spec"),
            (replace(PINNED, version="9"), 2, "spec"),
            (PINNED, 2, "input"),
        ]:
            with pytest.raises(RunConflict) as refused:
                await engine.start(workflow, value, run_id="r")
            assert refused.value.args == ("r", reason)
        with pytest.raises(RuntimeBuildUnavailable):
            await engine.start(PINNED, 1, run_id="r")
