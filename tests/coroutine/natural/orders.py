"""Sagas, approvals and what is undone."""

from __future__ import annotations

from coroutine.natural.kit import (
    DAY,
    HOUR,
    Decision,
    Line,
    OutOfStock,
    add,
    charge,
    natural,
    notify,
    price,
    provider,
    refund,
    release,
    reserve,
    ship,
)
from perdure import AsyncContext, HookDisposed, StepFailed, WorkflowCancelled, WorkflowFailed

ITEMS = ["pen", "ink", "paper"]


@natural("ann")
async def buy(ctx: AsyncContext, who: str) -> int:
    paid = await ctx.step(charge, who, cents=250)
    await ctx.step(notify, who, text=f"paid {paid}")
    return paid


@natural(ITEMS)
async def saga_with_a_stack(ctx: AsyncContext, items: list[str]) -> list[str]:
    undo: list[str] = []
    try:
        for item in items:
            held = await ctx.step(reserve, item)
            undo.append(held)
        await ctx.step(charge, "ann")
        await ctx.sleep(HOUR)
        return undo
    except (StepFailed, WorkflowCancelled):
        async with ctx.cleanup():
            for held in reversed(undo):
                await ctx.step(release, held)
        raise


@natural(ITEMS, fails_on=(OutOfStock,))
async def saga_that_fails(ctx: AsyncContext, items: list[str]) -> None:
    receipt = await ctx.step(charge, "ann", cents=300)
    try:
        held = await ctx.gather(*(ctx.step(reserve, item) for item in items))
        if len(held) == 3:
            raise OutOfStock("paper is out")
        await ctx.step(ship, Line(held[0]))
    except (OutOfStock, StepFailed, WorkflowCancelled):
        async with ctx.cleanup():
            await ctx.step(refund, receipt)
            await ctx.step(notify, "ann", text="refunded")
        raise


@natural("ann")
async def saga_by_finally(ctx: AsyncContext, who: str) -> str:
    held = await ctx.step(reserve, "seat")
    kept = False
    try:
        await ctx.step(charge, who)
        kept = True
    finally:
        if not kept:
            async with ctx.cleanup():
                await ctx.step(release, held)
    return held


@natural({"approver": "ann"}, any_order=False)
async def approval_with_reminder(ctx: AsyncContext) -> str:
    who = ctx.input["approver"]
    decision = ctx.hook(Decision, id="decision", token="canary-decision", metadata={"who": who})
    reminder = ctx.timer(HOUR)
    while True:
        first = await ctx.race(decision, reminder)
        if first is decision:
            break
        await ctx.step(notify, who, text="please decide")
        reminder = ctx.timer(HOUR)
    reminder.close()
    return decision.result().by


@natural("ann", any_order=False)
async def approval_that_expires(ctx: AsyncContext, who: str) -> str:
    decision = ctx.hook(Decision, id="decision", token="canary-decision-2")
    try:
        made = await ctx.wait_for(decision, DAY)
    except TimeoutError:
        decision.dispose()
        await ctx.step(notify, who, text="too late")
        return "expired"
    return "approved" if made.approved else "refused"


@natural(["ann", "bob", "cyd"], any_order=False)
async def two_of_three(ctx: AsyncContext, people: list[str]) -> list[str]:
    hooks = [ctx.hook(str, id=f"vote-{who}", token=f"canary-vote-{who}") for who in people]
    votes: list[str] = []
    async for vote in ctx.as_completed(*hooks):
        votes.append(vote.result())
        if len(votes) == 2:
            break
    for hook in hooks:
        hook.dispose()
    await ctx.step(notify, "all", text=f"{len(votes)} votes")
    return votes


@natural("ann")
async def order_with_helpers(ctx: AsyncContext, who: str) -> int:
    async def total(items: list[str]) -> int:
        amount = 0
        for item in items:
            amount = await ctx.step(add, amount, await ctx.step(price, item))
        return amount

    async def pay(amount: int) -> int:
        return await ctx.step(charge, who, cents=amount)

    return await pay(await total(ITEMS))


@natural([{"sku": "pen", "count": 2}, {"sku": "ink"}])
async def ship_lines(ctx: AsyncContext, lines: list[Line]) -> list[str]:
    shipped = []
    for number, line in enumerate(lines):
        with ctx.scope(f"line-{number}"):
            await ctx.step(reserve, line.sku)
            shipped.append(await ctx.step(ship, line))
    return shipped


@natural("ann")
async def partial_failure(ctx: AsyncContext, who: str) -> str:
    try:
        await ctx.step(provider, "first")
    except StepFailed as error:
        await ctx.step(notify, who, text=error.error)
        raise WorkflowFailed(f"no provider for {who}") from error
    return "never"


@natural("ann", any_order=False)
async def order_that_can_be_changed(ctx: AsyncContext, who: str) -> list[str]:
    changes: list[str] = []
    closing = ctx.timer(DAY)
    for turn in range(1, 4):
        change = ctx.hook(str, id=f"mail-{turn}", token=f"canary-change-{turn}")
        if await ctx.race(change, closing) is closing:
            change.dispose()
            break
        changes.append(await change)
    closing.close()
    await ctx.step(charge, who, cents=100 * len(changes))
    return changes


@natural("ann")
async def compensation_in_parallel(ctx: AsyncContext, who: str) -> str:
    held = await ctx.gather(ctx.step(reserve, "a"), ctx.step(reserve, "b"))
    try:
        await ctx.step(charge, who)
        await ctx.sleep(HOUR, id="grace")
    except (StepFailed, WorkflowCancelled):
        async with ctx.cleanup():
            await ctx.gather(*(ctx.step(release, one) for one in held))
        raise
    return "kept"


@natural("ann", any_order=False)
async def hook_given_up(ctx: AsyncContext, who: str) -> str:
    hook = ctx.hook(str, id="optional", token="canary-optional")
    await ctx.step(charge, who)
    hook.dispose()
    try:
        return await hook
    except HookDisposed:
        return "nobody asked"
