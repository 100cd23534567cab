"""Polling, sleeping, reminding, time limits, mailboxes."""

from __future__ import annotations

from datetime import UTC, datetime

from coroutine.natural.kit import DAY, HOUR, MINUTE, add, charge, fetch, natural, notify, poll, price, reserve
from perdure import AsyncContext


@natural("job")
async def polling(ctx: AsyncContext, job: str) -> int:
    for turn in range(1, 10):
        if await ctx.step(poll, job, turn) == "done":
            return turn
        await ctx.sleep(MINUTE * turn)
    return 0


@natural("job")
async def polling_while(ctx: AsyncContext, job: str) -> int:
    turn = 1
    while await ctx.step(poll, job, turn) != "done":
        await ctx.sleep(HOUR)
        turn += 1
    await ctx.step(notify, job, text="done")
    return turn


@natural("job", any_order=False)
async def polling_until_a_limit(ctx: AsyncContext, job: str) -> str:
    try:
        async with ctx.timeout(3 * HOUR):
            turn = 1
            while await ctx.step(poll, job, turn) != "done":
                await ctx.sleep(HOUR)
                turn += 1
    except TimeoutError:
        await ctx.step(notify, job, text="gave up")
        return "late"
    return "in time"


@natural("ann")
async def drip_mails(ctx: AsyncContext, who: str) -> int:
    mails = ["welcome", "tips", "offer"]
    for number, mail in enumerate(mails):
        await ctx.step(notify, who, text=mail)
        if number < len(mails) - 1:
            await ctx.sleep(DAY, id=f"before-{mails[number + 1]}")
    return len(mails)


@natural("ann")
async def at_a_date(ctx: AsyncContext, who: str) -> str:
    await ctx.sleep_until(datetime(2027, 1, 1, tzinfo=UTC), id="new-year")
    await ctx.step(notify, who, text="happy new year")
    await ctx.sleep_until("2027-06-01T00:00:00Z")
    return (await ctx.step(reserve, "summer")) + who


@natural("ann", any_order=False)
async def mailbox(ctx: AsyncContext, who: str) -> int:
    total, turn = 0, 0
    while True:
        turn += 1
        message = await ctx.hook(str, id=f"mail-{turn}", token=f"canary-mail-{turn}")
        if message == "stop":
            break
        total = await ctx.step(add, total)
    return total


@natural("ann", any_order=False)
async def race_of_hook_and_timer(ctx: AsyncContext, who: str) -> str:
    answer = ctx.hook(str, id="answer", token="canary-answer")
    first = await ctx.race(ctx.sleep(HOUR), answer)
    if first is answer:
        return answer.result()
    answer.dispose()
    await ctx.step(notify, who)
    return "silence"


@natural("ann", any_order=False)
async def slow_step_with_a_limit(ctx: AsyncContext, who: str) -> int:
    try:
        paid = await ctx.wait_for(ctx.step(charge, who), HOUR)
    except TimeoutError:
        await ctx.step(notify, who, text="still waiting")
        return 0
    return paid


@natural("ann", any_order=False)
async def timeout_around_a_group(ctx: AsyncContext, who: str) -> list[int]:
    try:
        async with ctx.timeout(HOUR):
            found = await ctx.gather(ctx.step(price, "a"), ctx.step(price, "bb"), ctx.step(price, "ccc"))
    except TimeoutError:
        return [await ctx.step(price, "default")]
    return list(found)


@natural("ann", any_order=False)
async def nested_limits(ctx: AsyncContext, who: str) -> str:
    told = []
    try:
        async with ctx.timeout(DAY):
            try:
                await ctx.wait_for(ctx.sleep(2 * HOUR, id="long"), HOUR)
                told.append("long")
            except TimeoutError:
                told.append("inner")
            await ctx.step(notify, who)
    except TimeoutError:
        told.append("outer")
    return " ".join(told)


@natural("ann")
async def cooling_off(ctx: AsyncContext, who: str) -> str:
    began = ctx.now()
    await ctx.sleep(DAY)
    waited = ctx.now() - began
    await ctx.step(notify, who, text="now" if waited >= DAY else "early")
    return "day" if waited >= DAY else "less"


@natural("ann")
async def paged(ctx: AsyncContext, who: str) -> list[int]:
    page: int | None = 1
    items: list[int] = []
    while page is not None:
        found = await ctx.step(fetch, page)
        items.extend(found["items"])
        page = found["next"]
    return items


@natural("ann", any_order=False)
async def subscription(ctx: AsyncContext, who: str) -> int:
    cancelled = ctx.hook(str, id="cancel", token="canary-cancel")
    months = 0
    while months < 3 and not cancelled.done():
        await ctx.step(charge.options(id=f"month-{months}"), who)
        months += 1
        await ctx.race(cancelled, ctx.sleep(30 * DAY, id=f"until-{months}"))
    cancelled.dispose()
    return months
