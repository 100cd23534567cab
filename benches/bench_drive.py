"""The whole drive in memory: a run of 100 inline steps in the command form, on each kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pytest

from benches.conftest import KERNELS, Measure

if TYPE_CHECKING:
    from perdure import Flow, RuntimeCommand, WorkflowContext, WorkflowRunSnapshot

STEPS = 100


@pytest.fixture(scope="module")
def flow() -> Flow:
    from perdure import Flow

    flow = Flow()

    @flow.step(inline=True)
    def add_one(number: int) -> int:
        return number + 1

    @flow.workflow("bench.chain", version="1")
    def chain(ctx: WorkflowContext) -> RuntimeCommand:
        number = 0
        for index in range(STEPS):
            if not ctx.step_completed(f"add-{index}"):
                return ctx.schedule_step(f"add-{index}", add_one, number)
            number = ctx.step_output(f"add-{index}")
        return ctx.complete(number)

    return flow


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("engine", KERNELS)
def bench_inline_steps(flow: Flow, loop: asyncio.Runner, measure: Measure, engine: Literal["rust", "pure"]) -> None:
    from perdure import FlowEngine
    from perdure.stores import MemoryEventStore

    async def run() -> WorkflowRunSnapshot:
        async with FlowEngine(flow, MemoryEventStore(), kernel=engine) as shell:
            return await shell.run("bench.chain")

    answer = loop.run(run())
    assert (answer.status, answer.output) == ("completed", STEPS)
    assert answer.last_sequence == 3 + 3 * STEPS
    measure(f"run of {STEPS} inline steps, memory store", engine, lambda: loop.run(run()))
