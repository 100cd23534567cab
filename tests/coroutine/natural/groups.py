"""Side by side: gather, race, as_completed, windows, chains in the background."""

from __future__ import annotations

from typing import Any

from coroutine.natural.kit import DAY, HOUR, Line, add, charge, cut, natural, notify, price, reserve, ship
from perdure import AsyncContext, BranchCancelled, Handle

ITEMS = ["pen", "ink", "paper", "cap"]


@natural(ITEMS)
async def fan_out(ctx: AsyncContext, items: list[str]) -> int:
    prices = await ctx.gather(*(ctx.step(price, item) for item in items))
    return sum(prices)


@natural(ITEMS)
async def fan_out_of_helpers(ctx: AsyncContext, items: list[str]) -> list[str]:
    async def one(item: str) -> str:
        cents = await ctx.step(price, item)
        await ctx.sleep(HOUR)
        await ctx.step(charge, item, cents=cents)
        return await ctx.step(ship, Line(item, 2))

    return list(await ctx.gather(*(one(item) for item in items[:3])))


@natural("a b a")
async def map_reduce(ctx: AsyncContext, text: str) -> dict[str, int]:
    words = await ctx.step(cut, text)
    sizes = await ctx.gather(*[ctx.step(price, word) for word in words])
    total = 0
    for size in sizes:
        total = await ctx.step(add, total, size)
    return {"total": total}


@natural(ITEMS)
async def as_they_come(ctx: AsyncContext, items: list[str]) -> list[int]:
    handles = [ctx.start(price.options(id=f"price-{item}"), item) for item in items]
    seen: list[int] = []
    async for handle in ctx.as_completed(*handles):
        seen.append(handle.result())  # noqa: PERF401  # as a loop it is what most would write
    await ctx.step(notify, "all", text=str(len(seen)))
    return sorted(seen)


@natural(["a", "b", "c", "d", "e"])
async def batches(ctx: AsyncContext, items: list[str]) -> list[str]:
    done: list[str] = []
    for start in range(0, len(items), 2):
        done += await ctx.gather(*(ctx.step(reserve, item) for item in items[start : start + 2]))
        await ctx.sleep(HOUR)
    return done


@natural(["a", "b", "c", "d", "e"])
async def window(ctx: AsyncContext, items: list[str]) -> int:
    running: list[Handle[str]] = []
    count = 0
    for item in items:
        if len(running) == 2:
            await ctx.race(*running)
            running = [handle for handle in running if not handle.done()]
        running.append(ctx.start(reserve.options(id=f"item-{item}"), item))
        count += 1
    await ctx.gather(*running)
    return count


@natural("ann", any_order=False)
async def fastest(ctx: AsyncContext, who: str) -> str:
    async def ask(name: str) -> str:
        await ctx.step(price, name)
        return name

    winner = await ctx.race(ask("first"), ask("second"), ask("third"))
    return winner.result()


@natural("ann")
async def background_audit(ctx: AsyncContext, who: str) -> int:
    async def audit() -> None:
        for text in ("begun", "going on"):
            await ctx.step(notify, "audit", text=text)

    auditing = ctx.start(audit())
    paid = await ctx.step(charge, who)
    await auditing
    return paid


@natural("ann", any_order=False)
async def heartbeat(ctx: AsyncContext, who: str) -> str:
    async def beat() -> None:
        while True:
            await ctx.sleep(HOUR)
            await ctx.step(notify, who, text="still there")

    ctx.start(beat())
    await ctx.step(reserve, "big")
    await ctx.sleep(DAY, id="work")
    return "finished"


@natural(ITEMS)
async def nested_groups(ctx: AsyncContext, items: list[str]) -> list[list[str]]:
    async def pair(first: str, second: str) -> list[str]:
        return list(await ctx.gather(ctx.step(reserve, first), ctx.step(reserve, second)))

    return list(await ctx.gather(pair(*items[:2]), pair(*items[2:])))


@natural("ann")
async def started_then_awaited(ctx: AsyncContext, who: str) -> int:
    first = ctx.start(price, "one")
    second = ctx.start(price, "three")
    await ctx.step(notify, who)
    return await second - await first


@natural("ann", any_order=False)
async def hedged(ctx: AsyncContext, who: str) -> str:
    slow = ctx.start(reserve.options(id="primary"), "x")
    if await ctx.race(slow, ctx.sleep(HOUR)) is slow:
        return slow.result()
    backup = ctx.start(reserve.options(id="backup"), "x")
    return (await ctx.race(slow, backup)).result()


@natural("ann", any_order=False)
async def race_of_branches_with_cleanup(ctx: AsyncContext, who: str) -> str:
    async def offer(name: str) -> str:
        held = await ctx.step(reserve, name)
        try:
            await ctx.sleep(HOUR)
            return held
        except BranchCancelled:
            async with ctx.cleanup():
                await ctx.step(notify, name, text="not you")
            raise

    return (await ctx.race(offer("a"), offer("b"))).result()


@natural(["a", "bb"])
async def dict_of_results(ctx: AsyncContext, items: list[str]) -> dict[str, int]:
    async def keyed(item: str) -> tuple[str, int]:
        with ctx.scope(item):
            return item, await ctx.step(price, item)

    return dict(await ctx.gather(*map(keyed, items)))


@natural("ann", any_order=False)
async def first_by_history(ctx: AsyncContext, who: str) -> list[Any]:
    hook = ctx.hook(str, id="h", token="canary-first")
    timer = ctx.timer(HOUR, id="t")
    await ctx.race(hook, timer)
    found = ctx.first_resolved(("hook", "h"), ("wait", "t"))
    timer.close()
    hook.dispose()
    await ctx.step(notify, who, text=str(found))
    return list(found or ())
