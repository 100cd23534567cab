"""What tests of workers share: flows, a store that counts and may fail, and waiting for what must come."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from perdure import Flow, FlowEngine, FlowWorker, RuntimeCommand, StepContext, WorkflowContext
from perdure.stores.base import FlowEventStore

__all__ = ["CountingStore", "chain", "gated", "until", "working"]


def chain(steps: int = 3, ran: Callable[[StepContext], None] = lambda context: None, version: str = "1") -> Flow:
    """A workflow `chain` of so many quick steps, one after the other."""
    flow = Flow()

    @flow.step
    async def quick(context: StepContext) -> str:
        ran(context)
        return context.step_id

    @flow.workflow("chain", version=version)
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        for number in range(steps):
            if not ctx.step_completed(f"s{number}"):
                return ctx.schedule_step(f"s{number}", quick)
        return ctx.complete(steps)

    return flow


def gated(begun: Callable[[str], None], gate: asyncio.Event) -> Flow:
    """A workflow `gated` of two steps; each tells that it began and then waits for the gate."""
    flow = Flow()

    @flow.step
    async def step(context: StepContext) -> str:
        begun(context.step_id)
        await gate.wait()
        return context.step_id

    @flow.workflow("gated")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        for step_id in ("first", "second"):
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, step)
        return ctx.complete("through")

    return flow


class CountingStore:
    """Counts the calls it is asked for by name. What `failing` holds under a name is raised, one after the other."""

    def __init__(self, inner: FlowEventStore) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.failing: dict[str, list[Exception]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in ("clock", "close", "elsewhere", "wait_for_change") or not asyncio.iscoroutinefunction(found):
            return found

        async def counted(*args: Any, **named: Any) -> Any:
            self.calls[name] += 1
            if self.failing.get(name):
                raise self.failing[name].pop(0)
            return await found(*args, **named)

        return counted


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Waits until it holds; the test's own patience bounds that."""
    while not await holds():  # noqa: ASYNC110 - what is waited for happens in other processes
        await asyncio.sleep(0.01)


@asynccontextmanager
async def working(engine: FlowEngine, **options: Any) -> AsyncIterator[FlowWorker]:
    """A worker at work, drained at the end of the block. It would sleep for an hour if nobody told it of anything."""
    worker = FlowWorker(engine, **({"poll": timedelta(hours=1)} | options))
    task = asyncio.create_task(worker.run_forever(signals=False))
    try:
        yield worker
    finally:
        await worker.drain()
        await task
