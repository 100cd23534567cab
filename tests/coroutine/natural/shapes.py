"""Shapes of the language: generators, context managers, comprehensions, recursion, state machines, classes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

from coroutine.natural.kit import HOUR, Line, add, charge, fetch, natural, notify, price, release, reserve, ship
from perdure import AsyncContext, StepFailed

TREE = {"name": "root", "parts": [{"name": "left", "parts": [{"name": "leaf"}]}, {"name": "right"}]}


@natural(["a", "bb", "ccc"])
async def comprehensions(ctx: AsyncContext, items: list[str]) -> dict[str, int]:
    held = [await ctx.step(reserve, item) for item in items if item != "bb"]
    return {item: await ctx.step(price, item) for item in held}


@natural("ann")
async def pages_by_generator(ctx: AsyncContext, who: str) -> list[int]:
    async def pages() -> AsyncIterator[list[int]]:
        page: int | None = 1
        while page is not None:
            found = await ctx.step(fetch, page)
            yield found["items"]
            page = found["next"]

    return [item async for items in pages() for item in items]


@natural("ann")
async def first_page_only(ctx: AsyncContext, who: str) -> int:
    async def pages() -> AsyncIterator[int]:
        for page in range(1, 5):
            found = await ctx.step(fetch, page)
            yield found["items"][0]

    async with aclosing(pages()) as opened:  # type: ignore[type-var]  # an async generator by its return type
        async for item in opened:
            if item >= 20:
                await ctx.step(notify, who, text=str(item))
                return item
    return 0


@natural("ann")
async def reservation_by_context_manager(ctx: AsyncContext, who: str) -> str:
    @asynccontextmanager
    async def reserved(item: str) -> AsyncIterator[str]:
        held = await ctx.step(reserve, item)
        try:
            yield held
        finally:
            async with ctx.cleanup():
                await ctx.step(release, held)

    async with reserved("a") as one, reserved("b") as two:
        await ctx.step(charge, who)
        return one + two


@natural(["a", "b"])
async def exit_stack(ctx: AsyncContext, items: list[str]) -> list[str]:
    async def undo(held: str) -> None:
        async with ctx.cleanup():
            await ctx.step(release, held)

    async with AsyncExitStack() as stack:
        held = []
        for item in items:
            held.append(await ctx.step(reserve, item))
            stack.push_async_callback(undo, held[-1])
        await ctx.sleep(HOUR)
    return held


@natural(TREE)
async def recursion(ctx: AsyncContext, tree: dict[str, Any]) -> int:
    async def weigh(node: dict[str, Any]) -> int:
        own = await ctx.step(price, node["name"])
        return own + sum([await weigh(part) for part in node.get("parts", [])])

    return await weigh(tree)


@natural(TREE)
async def recursion_side_by_side(ctx: AsyncContext, tree: dict[str, Any]) -> int:
    async def weigh(node: dict[str, Any]) -> int:
        parts = await ctx.gather(*(weigh(part) for part in node.get("parts", [])))
        return sum(parts) + await ctx.step(price, node["name"])

    return await weigh(tree)


@natural("ann", any_order=False)
async def state_machine(ctx: AsyncContext, who: str) -> list[str]:
    state, path, turn = "new", ["new"], 0
    while state != "closed":
        turn += 1
        event = await ctx.hook(str, id=f"event-{turn}", token=f"canary-event-{turn}")
        match state, event:
            case "new", "pay":
                await ctx.step(charge, who)
                state = "paid"
            case "paid", "ship":
                await ctx.step(ship, Line("pen"))
                state = "shipped"
            case _:
                state = "closed"
        path.append(state)
    return path


@natural("ann")
async def table_of_handlers(ctx: AsyncContext, who: str) -> str:
    async def new() -> str:
        await ctx.step(reserve, who)
        return "held"

    async def held() -> str:
        await ctx.step(charge, who)
        return "end"

    handlers: dict[str, Callable[[], Awaitable[str]]] = {"new": new, "held": held}
    state = "new"
    while state != "end":
        state = await handlers[state]()
        await ctx.step(notify, who, text=state)
    return state


@natural("ann")
async def object_with_state(ctx: AsyncContext, who: str) -> int:
    class Cart:
        def __init__(self) -> None:
            self.total = 0

        async def put(self, item: str) -> None:
            self.total = await ctx.step(add, self.total, await ctx.step(price, item))

    cart = Cart()
    await cart.put("pen")
    await cart.put("paper")
    return cart.total


@natural("ann")
async def drawn_by_lot(ctx: AsyncContext, who: str) -> bool:
    winner = ctx.random().choice(["a", "b", "c"])
    ticket = ctx.uuid()
    await ctx.step(notify, winner, text=str(ticket))
    again = ctx.random().randint(1, 6)
    await ctx.step(add, again)
    return ticket != ctx.uuid()


@natural("ann")
async def with_suppress(ctx: AsyncContext, who: str) -> str:
    with suppress(StepFailed):
        await ctx.step(notify, who, text="may fail")
    return await ctx.step(reserve, "x")


@natural("ann")
async def a_helper_that_retries(ctx: AsyncContext, who: str) -> int:
    async def persistent(item: str, times: int) -> int:
        for turn in range(times):
            try:
                return await ctx.step(price.options(id=f"{item}-{turn}"), item)
            except StepFailed:
                await ctx.sleep(HOUR * 2**turn, id=f"{item}-pause-{turn}")
        return -1

    first = await persistent("a", 3)
    return first + await persistent("bb", 2)


@natural("ann")
async def walrus_and_else(ctx: AsyncContext, who: str) -> str:
    for item in ("a", "b"):
        if (cents := await ctx.step(price, item)) > 50:
            await ctx.step(charge, who, cents=cents)
            break
    else:
        await ctx.step(notify, who, text="all cheap")
    return "end"
