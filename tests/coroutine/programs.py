"""Workflows as a Python developer would write them, for tests that replay them in every way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure import AsyncContext, BranchCancelled, Flow, HookDisposed, StepFailed, WorkflowCancelled, WorkflowFailed

__all__ = ["PROGRAMS", "flow", "outcomes"]

flow = Flow(guard="off")
HOUR = timedelta(hours=1)


class OutOfStock(Exception):
    pass


@dataclass(frozen=True)
class Order:
    id: str
    items: list[str]


@flow.step
def reserve(item: str) -> str:
    return item


@flow.step
def charge(order: Order, cents: int = 100) -> int:
    return cents


@flow.step
def refund(receipt: int) -> int:
    return receipt


@flow.step
def flaky(item: str) -> str:
    return item


ORDER = {"id": "7", "items": ["a", "b", "c"]}


def outcomes(name: str, stored: Any) -> Any:
    """What the steps do: `flaky` fails, the others give what they were given."""
    if name == "flaky":
        raise ValueError("declined")
    if isinstance(stored, dict) and "$args" in stored:
        return 250
    return 100 if name == "charge" else stored


@flow.workflow("sequence")
async def sequence(ctx: AsyncContext, order: Order) -> list[Any]:
    found = [await ctx.step(reserve, item) for item in order.items]
    return [*found, await ctx.step(charge, order, cents=250)]


@flow.workflow("fan out")
async def fan_out(ctx: AsyncContext, order: Order) -> list[str]:
    async def handle(item: str) -> str:
        await ctx.sleep(HOUR)
        first = await ctx.step(reserve, item)
        return await ctx.step(reserve, first * 2)

    return list(await ctx.gather(*(handle(item) for item in order.items)))


@flow.workflow("saga", fails_on=(OutOfStock,))
async def saga(ctx: AsyncContext, order: Order) -> int:
    receipt = await ctx.step(charge, order)
    try:
        await ctx.step(reserve, order.items[0])
        await ctx.sleep(HOUR)
        raise OutOfStock("none left")
    except (OutOfStock, WorkflowCancelled):
        async with ctx.cleanup():
            await ctx.step(refund, receipt)
        raise


@flow.workflow("approval")
async def approval(ctx: AsyncContext, order: Order) -> str:
    hook = ctx.hook(str, id="approval", token="canary-approval", metadata={"order": order.id})
    reminder = ctx.timer(HOUR)
    first = await ctx.race(hook, reminder, ctx.sleep(24 * HOUR, id="patience"))
    if first is reminder:
        await ctx.step(reserve, "reminder")
        first = await ctx.race(hook, ctx.sleep(24 * HOUR, id="patience-2"))
    reminder.close()
    if first is not hook:
        hook.dispose()
        return "nobody answered"
    return f"answered {hook.result()}"


@flow.workflow("limited")
async def limited(ctx: AsyncContext, order: Order) -> str:
    async def work() -> str:
        try:
            await ctx.step(reserve, "slow")
            await ctx.sleep(HOUR)
            return "done"
        except BranchCancelled:
            async with ctx.cleanup():
                await ctx.step(refund, 1)
            raise

    try:
        return await ctx.wait_for(work(), HOUR)
    except TimeoutError:
        return "late"


@flow.workflow("failures")
async def failures(ctx: AsyncContext, order: Order) -> list[str]:
    told: list[str] = []
    for attempt in range(3):
        try:
            await ctx.step(flaky, f"try {attempt}")
        except StepFailed as error:
            told.append(error.error)
    found = await ctx.gather(*(ctx.step(flaky, item) for item in order.items), return_exceptions=True)
    return [*told, *(type(item).__name__ for item in found)]


@flow.workflow("failing")
async def failing(ctx: AsyncContext, order: Order) -> None:
    try:
        await ctx.gather(ctx.step(reserve, "x"), ctx.step(flaky, "y"), ctx.sleep(HOUR))
    except StepFailed as error:
        raise WorkflowFailed(f"gave up: {error.error}") from error


@flow.workflow("generator")
async def generator(ctx: AsyncContext, order: Order) -> list[str]:
    async def pages() -> AsyncIterator[str]:
        for item in order.items:
            yield await ctx.step(reserve, item)

    @asynccontextmanager
    async def reservation(item: str) -> AsyncIterator[str]:
        held = await ctx.step(reserve, item)
        try:
            yield held
        finally:
            async with ctx.cleanup():
                await ctx.step(refund, 1)

    async with reservation("held") as held:
        return [held, *[page async for page in pages()]]


@flow.workflow("beside")
async def beside(ctx: AsyncContext, order: Order) -> list[Any]:
    async def heartbeat() -> None:
        while True:
            await ctx.sleep(HOUR)
            await ctx.step(reserve, "beat")

    beating = ctx.start(heartbeat())
    handles = [ctx.start(reserve.options(id=f"item-{item}"), item) for item in order.items]
    seen = [handle.result() async for handle in ctx.as_completed(*handles)]
    await ctx.sleep(3 * HOUR)
    return [sorted(seen), beating.done()]


@flow.workflow("scoped")
async def scoped(ctx: AsyncContext, order: Order) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in order.items:
        with ctx.scope(item):
            found[item] = [await ctx.step(reserve, item), str(ctx.uuid())[:1] != ""]
    hook = ctx.hook(str, id="h", token="canary-h")
    try:
        found["hook"] = await ctx.wait_for(hook, HOUR)
    except (TimeoutError, HookDisposed) as error:
        found["hook"] = type(error).__name__
    return found


PROGRAMS = [sequence, fan_out, saga, approval, limited, failures, failing, generator, beside, scoped]
