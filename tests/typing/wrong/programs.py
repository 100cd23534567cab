# ruff: noqa: B018, F841, RUF059
"""Programs that must not pass: every line that ends in `# refused` is refused by mypy and by pyright, and no other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from perdure import (
    AsyncContext,
    EncryptedPayloads,
    Flow,
    FlowEngine,
    PayloadPlace,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
)

flow = Flow()
loud = Flow(guard="loud")  # refused


@dataclass
class Approval:
    approved: bool


@flow.step
def load(name: str) -> int:
    return len(name)


@flow.step
async def fetch(page: int, *, deep: bool = False) -> list[str]:
    return [str(page)]


@flow.step
def charge(amount: int, *, note: str = "") -> str:
    return str(amount)


@flow.step
def refund(amount: int, step: StepContext) -> str:
    return str(amount)


async def part(ctx: AsyncContext) -> str:
    return "x"


@flow.workflow("arguments")
async def arguments(ctx: AsyncContext, order: int) -> int:
    await ctx.step(load, 5)  # refused
    await ctx.step(load)  # refused
    await ctx.step(load, "a", "b")  # refused
    await ctx.step(load, nme="a")  # refused
    await ctx.step(fetch, 1, deep="yes")  # refused
    await ctx.step(fetch, 1, True)  # refused
    await ctx.step(charge, "1")  # refused
    await ctx.step(charge)  # refused
    wrong: int = await ctx.step(refund, 1)  # refused
    await ctx.step(load("a"))  # refused
    await ctx.step("load", "a")  # refused
    ctx.start(fetch, "1")  # refused
    load.options(retry=3)  # refused
    load.options(timeout=5)  # refused
    return order


@flow.workflow("results")
async def results(ctx: AsyncContext, order: int) -> int:
    text: str = await ctx.step(load, text_of(order))  # refused
    pages: list[int] = await ctx.step(fetch, 1)  # refused
    number, name, more = await ctx.gather(ctx.step(load, "a"), part(ctx))  # refused
    one, two = await ctx.gather(ctx.step(load, "a"), part(ctx))
    one.upper()  # refused
    two.bit_length()  # refused
    approval = ctx.hook(Approval)
    (await approval).aproved  # refused
    approval.result().reason  # refused
    found: str = await ctx.wait_for(ctx.step(load, "a"), timedelta(1))  # refused
    first = await ctx.race(approval, ctx.timer(timedelta(1)))
    first.payload()  # refused
    return "text"  # refused


def text_of(number: int) -> str:
    return str(number)


@flow.workflow("awaits")
async def awaits(ctx: AsyncContext) -> None:
    ctx.sleep(timedelta(1))  # refused
    ctx.sleep_until("2026-01-01T00:00:00Z")  # refused
    ctx.gather(ctx.step(load, "a"))  # refused
    ctx.race(ctx.step(load, "a"))  # refused
    part(ctx)  # refused
    await ctx.sleep(5)  # refused
    await ctx.race(ctx.hook(Approval), 5)  # refused
    await ctx.wait_for(part(ctx), 5)  # refused
    await results(ctx, "one")  # refused
    async with ctx.timeout(5):  # refused
        pass
    with ctx.timeout(timedelta(1)):  # refused
        pass
    ctx.hook(Approval, tokn="x")  # refused
    ctx.now().total_seconds()  # refused


@flow.workflow("returns")  # refused
def returns(ctx: WorkflowContext) -> int:
    return 5


@flow.workflow("command")
def command(ctx: WorkflowContext) -> RuntimeCommand:
    ctx.schedule_step("x", 5)  # refused
    ctx.schedule_step("x", load, retry=3)  # refused
    ctx.wait_for("w", 5)  # refused
    ctx.schedule_all([ctx.complete()])  # refused
    amount: int = ctx.step_output("x", as_=int)  # refused
    RetryPolicy.fixed("3", timedelta(1))  # refused
    return ctx.input_as(int)  # refused


class Half:
    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        return payload


FlowEngine(flow, codec=Half())  # refused
EncryptedPayloads({"k": "text"})  # refused
