"""Waiting for the end of a run, whoever drives it, and no longer than a caller can."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure import AsyncContext, BlockingFlowEngine, Flow, FlowEngine, RunNotFound
from perdure.stores import MemoryEventStore


def flow() -> Flow:
    found = Flow()

    @found.workflow("ask")
    async def ask(ctx: AsyncContext) -> int:
        return await ctx.hook(int, id="answer")

    return found


async def test_a_run_that_another_engine_ends_is_waited_for() -> None:
    store = MemoryEventStore()
    async with FlowEngine(flow(), store) as engine, FlowEngine(flow(), store) as other:
        await other.start("ask", run_id="r")
        waiting = asyncio.create_task(engine.wait_until_ended("r"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await other.resume_hook("r", "answer", 5)
        assert (await waiting).output == 5
        assert (await engine.wait_until_ended("r", timedelta())).output == 5


async def test_who_cannot_wait_longer_gets_the_run_as_it_is() -> None:
    async with FlowEngine(flow()) as engine:
        await engine.start("ask", run_id="r")
        assert (await engine.wait_until_ended("r", timedelta(milliseconds=30))).status == "suspended"
        assert (await engine.wait_until_ended("r", timedelta())).status == "suspended"
        with pytest.raises(RunNotFound):
            await engine.wait_until_ended("gone", timedelta(seconds=1))
        with pytest.raises(TypeError, match="within must be a timedelta, not int"):
            await engine.wait_until_ended("r", cast(Any, 5))


def test_a_caller_without_an_event_loop() -> None:
    with BlockingFlowEngine(flow()) as engine:
        engine.start("ask", run_id="r")
        assert engine.wait_until_ended("r", within=timedelta(milliseconds=30)).status == "suspended"
        engine.resume_hook("r", "answer", 5, drive=False)
        engine.drive("r")
        assert engine.wait_until_ended("r").output == 5
