"""Hooks, timers, races and groups of an async workflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import assert_type
from uuid import UUID

from perdure import AsyncContext, Flow, HookMetadata

flow = Flow()


@dataclass
class Approval:
    approved: bool


@flow.step
def load(name: str) -> int:
    return len(name)


@flow.step
async def reserve(items: list[str]) -> str:
    return ",".join(items)


async def both(ctx: AsyncContext, name: str) -> tuple[int, str]:
    number, text = await ctx.gather(ctx.step(load, name), ctx.step(reserve, [name]))
    assert_type(number, int)
    assert_type(text, str)
    return number, text


@flow.workflow("groups")
async def groups(ctx: AsyncContext, name: str, patience: timedelta = timedelta(hours=1)) -> str:
    approval = ctx.hook(Approval, id="approval", metadata=HookMetadata.human_approval(name))
    assert_type(approval.token, str)
    first = await ctx.race(approval, ctx.sleep(patience, id="patience"))
    if first is approval:
        assert_type(approval.result(), Approval)
    assert_type(await approval, Approval)
    approval.dispose()

    assert_type(await ctx.gather(ctx.step(load, "a")), tuple[int])
    assert_type(await ctx.gather(ctx.step(load, "a"), both(ctx, "b")), tuple[int, tuple[int, str]])
    assert_type(await ctx.gather(*[ctx.step(load, part) for part in name]), tuple[int, ...])
    assert_type(
        await ctx.gather(*[ctx.step(load, part) for part in name], return_exceptions=True),
        tuple[int | BaseException, ...],
    )
    winner = await ctx.race(*[ctx.start(load, part) for part in name])
    assert_type(winner.result(), int)
    async for done in ctx.as_completed(*[ctx.start(load, part) for part in name]):
        assert_type(await done, int)

    chain = ctx.start(both(ctx, name))
    assert_type(await chain, tuple[int, str])
    assert_type(await ctx.wait_for(ctx.step(load, name), timedelta(seconds=3)), int)
    assert_type(await ctx.wait_for(both(ctx, name), timedelta(seconds=3)), tuple[int, str])
    async with ctx.timeout(timedelta(minutes=1)), ctx.cleanup():
        await ctx.sleep_until(datetime(2026, 1, 1, tzinfo=UTC))
    with ctx.scope("order-7"):
        timer = ctx.timer(timedelta(seconds=1))
        timer.close()
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random(), Random)
    assert_type(ctx.uuid(), UUID)
    return name
