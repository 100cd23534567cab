"""What a newcomer gets wrong: each mistake is told at once, by a typed error, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    BlockingFlowEngine,
    CallFromLoopThread,
    CallFromOwnStep,
    EngineClosed,
    EngineElsewhere,
    Flow,
    FlowEngine,
    InvalidRunId,
    RetryPolicy,
    RuntimeCommand,
    StoreError,
    WorkflowContext,
    open_store,
)


def flow() -> Flow:
    made = Flow()

    @made.step(retry=RetryPolicy.none())
    def once(_: object) -> object:
        raise RuntimeError("no")

    @made.workflow("by name")
    def by_name(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("a", "once", 1)

    @made.workflow("exits")
    def exits(ctx: WorkflowContext) -> RuntimeCommand:
        raise SystemExit(7)

    return made


def test_a_workflow_that_exits() -> None:
    """R53's SystemExit reaches the caller from a workflow too, and the blocking engine goes on working."""
    with BlockingFlowEngine(flow()) as engine:
        with pytest.raises(SystemExit):
            engine.start("exits", run_id="r")
        assert engine.start("by name", run_id="s") == "s"


async def test_a_workflow_that_exits_in_asyncio() -> None:
    async with FlowEngine(flow()) as engine:
        with pytest.raises(SystemExit):
            await engine.start("exits", run_id="r")
        assert await engine.start("by name", run_id="s") == "s"


def test_a_step_by_name_has_its_declared_policy() -> None:
    """DESIGN §5: naming a step by text or by function is the same step."""
    with BlockingFlowEngine(flow()) as engine:
        engine.start("by name", run_id="r")
        assert [e.type for e in engine.history("r")][-2:] == ["step_failed", "run_retry_exhausted"]
        assert engine.snapshot("r").steps["a"].attempt == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_an_engine_in_a_forked_child() -> None:
    """A fork has none of the engine's threads: the child is told, and does not wait for ever."""
    with BlockingFlowEngine(flow()) as engine:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                engine.list_run_ids()
            except EngineElsewhere:
                code = 7
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


async def started(engine: FlowEngine) -> None:
    await engine.start("by name", run_id="r")


def test_an_engine_on_a_second_loop() -> None:
    engine = FlowEngine(flow())
    asyncio.run(started(engine))

    async def again() -> None:
        with pytest.raises(EngineElsewhere):
            await engine.snapshot("r")

    asyncio.run(again())


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ttl": timedelta(0)},
        {"lease_ttl": timedelta(seconds=-1)},
        {"poll_interval": timedelta(0)},
        {"store_patience": timedelta(seconds=-1)},
        {"concurrency": 0},
        {"max_failures": 0},
    ],
)
def test_senseless_settings(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        FlowEngine(flow(), **options)


@pytest.mark.parametrize("options", [{"cancel_grace": 5}, {"concurrency": "64"}])
def test_settings_of_another_type(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        FlowEngine(flow(), **options)


def test_a_runtime_that_is_none() -> None:
    with pytest.raises(TypeError, match="run_workflow"):
        FlowEngine(None)  # type: ignore[arg-type]


async def test_ids_and_tokens_of_another_type() -> None:
    wrong: Any = 5
    async with FlowEngine(flow()) as engine:
        with pytest.raises(TypeError, match="run id"):
            await engine.drive(wrong)
        with pytest.raises(TypeError, match="token"):
            await engine.resume_hook_by_token(wrong, 1)
        with pytest.raises(InvalidRunId):
            await engine.drive("\ud800")


async def test_a_closed_engine_is_not_entered() -> None:
    engine = FlowEngine(flow())
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.__aenter__()


def test_a_path_is_a_store(tmp_path: Path) -> None:
    with BlockingFlowEngine(flow(), tmp_path / "runs.db") as engine:
        assert engine.list_run_ids() == []
    assert (tmp_path / "runs.db").exists()


def test_memory_without_its_colon() -> None:
    with pytest.raises(StoreError, match="memory:"):
        open_store("memory")


def test_decorators_say_what_they_miss() -> None:
    made: Any = Flow()
    with pytest.raises(TypeError, match="with a name"):
        made.workflow(lambda ctx: ctx.complete())
    with pytest.raises(ValueError, match="blank"):
        made.workflow(" ")
    with pytest.raises(TypeError, match="version"):
        made.workflow("w", version=1)
    with pytest.raises(TypeError, match="RetryPolicy"):
        made.step(retry=3)(lambda: None)


async def test_first_resolved_of_an_unknown_kind() -> None:
    made = Flow()

    @made.workflow("w")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        with pytest.raises(ValueError, match="'task'"):
            ctx.first_resolved(("task", "a"))
        return ctx.complete()

    async with FlowEngine(made) as engine:
        assert (await engine.run("w")).status == "completed"


@pytest.mark.parametrize("form", ["thread", "inline"])
def test_a_step_that_drives_its_own_run(form: str) -> None:
    """It would wait for itself for ever; with drive=False the same call is fine (R23)."""
    made = Flow()
    told: list[str] = []

    @made.step(inline=form == "inline")
    def meddle(run_id: str) -> None:
        calls: list[Callable[[str], object]] = [engine.drive, engine.request_cancellation]
        for call in calls:
            try:
                call(run_id)
            except (CallFromOwnStep, CallFromLoopThread) as error:
                told.append(type(error).__name__)

    @made.workflow("w")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("a") else ctx.schedule_step("a", meddle, ctx.run_id)

    with BlockingFlowEngine(made) as engine:
        assert engine.run("w", run_id="r").status == "completed"
    assert told == [{"thread": "CallFromOwnStep", "inline": "CallFromLoopThread"}[form]] * 2


async def test_an_async_step_that_drives_its_own_run() -> None:
    made = Flow()

    @made.step
    async def meddle(run_id: str) -> str:
        with pytest.raises(CallFromOwnStep):
            await engine.drive(run_id)
        return (await engine.request_cancellation(run_id, drive=False)).status

    @made.workflow("w")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.cancel() if ctx.cancellation_request() else ctx.schedule_step("a", meddle, ctx.run_id)

    async with FlowEngine(made) as engine, asyncio.timeout(60):
        assert (await engine.run("w", run_id="r")).status == "cancelled"
