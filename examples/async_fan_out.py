"""Work side by side in the async form: pages are fetched by branches of their own, the first answer of two mirrors wins, and
a block has a time limit.

    python examples/async_fan_out.py [FILE]
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from perdure import AsyncContext, Flow, FlowEngine, RetryPolicy, StepFailed

flow = Flow()


@flow.step(retry=RetryPolicy.none())
async def fetch(page: str) -> str:
    if page == "missing":
        raise LookupError("404 Not Found")
    await asyncio.sleep(0.01 * len(page))
    return page.upper()


@flow.step
def summarise(pages: list[str]) -> str:
    return ", ".join(pages)


async def one_page(ctx: AsyncContext, page: str) -> str:
    """A branch: its steps get ids of their own, whichever branch is faster."""
    try:
        return await ctx.step(fetch, page)
    except StepFailed as error:
        return f"({error.error})"


@flow.workflow("fan-out", version="1")
async def fan_out(ctx: AsyncContext, pages: list[str]) -> dict[str, str]:
    found = await ctx.gather(*(one_page(ctx, page) for page in pages))

    slow = ctx.start(fetch.options(id="mirror-slow"), "a mirror that is far away")
    fast = ctx.start(fetch.options(id="mirror-fast"), "near")
    winner = await ctx.race(slow, fast)

    try:
        async with ctx.timeout(timedelta(milliseconds=50)):
            await ctx.sleep(timedelta(hours=1))
        patience = "slept"
    except TimeoutError:
        patience = "gave up"

    in_order = [handle.result() async for handle in ctx.as_completed(fast, slow)]
    return {
        "pages": await ctx.step(summarise, list(found)),
        "mirror": winner.result(),
        "mirrors in order": await ctx.step(summarise, in_order),
        "patience": patience,
    }


async def main(store: str | None) -> None:
    async with FlowEngine(flow, store) as engine:
        run_id = await engine.start(fan_out, ["one", "two", "missing"], run_id="fan-out")
        while not (snapshot := await engine.snapshot(run_id)).terminal:
            await asyncio.sleep(0.02)
            await engine.resume_due_waits(datetime.now(UTC))  # a worker does this by itself
        for name, value in snapshot.output.items():
            print(f"{name}: {value}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))  # a SQLite file, or memory
