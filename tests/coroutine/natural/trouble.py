"""Failures, fall-backs, cancellation, clean-up, failures as values."""

from __future__ import annotations

from datetime import UTC, datetime

from coroutine.natural.kit import (
    DAY,
    HOUR,
    OutOfStock,
    charge,
    natural,
    notify,
    price,
    provider,
    refund,
    release,
    remote,
    reserve,
)
from perdure import AsyncContext, EndTimedOut, RetryPolicy, StepFailed, WorkflowCancelled, WorkflowProgress


@natural(["first", "second", "third"])
async def fallback_providers(ctx: AsyncContext, names: list[str]) -> str:
    for name in names:
        try:
            return await ctx.step(provider.options(id=f"ask-{name}"), name)
        except StepFailed as error:
            await ctx.step(notify, name, text=error.error)
    return "nobody"


@natural(["first", "third", "second"])
async def failures_as_values(ctx: AsyncContext, names: list[str]) -> list[str]:
    found = await ctx.gather(*(ctx.step(provider, name) for name in names), return_exceptions=True)
    failed = [error for error in found if isinstance(error, StepFailed)]
    for error in failed:
        await ctx.step(notify, "ops", text=f"{error.step_id} failed")
    return [item for item in found if isinstance(item, str)]


@natural("ann", fails_on=(ExceptionGroup,))
async def failures_as_a_group(ctx: AsyncContext, who: str) -> str:
    found = await ctx.gather(ctx.step(provider, "first"), ctx.step(price, "x"), return_exceptions=True)
    told = 0
    errors = [error for error in found if isinstance(error, Exception)]
    try:
        if errors:
            raise ExceptionGroup("some failed", errors)
    except* StepFailed as group:
        told = len(group.exceptions)
    return await ctx.step(reserve, f"{told} failed")


@natural("ann")
async def first_failure_ends_the_group(ctx: AsyncContext, who: str) -> str:
    async def good() -> None:
        await ctx.step(price, "a")
        await ctx.sleep(HOUR)

    try:
        await ctx.gather(good(), ctx.step(provider, "first"))
    except StepFailed as error:
        await ctx.step(notify, who, text=error.step_name)
        return "failed"
    return "well"


@natural("ann")
async def cancelled_with_compensation(ctx: AsyncContext, who: str) -> int:
    paid = await ctx.step(charge, who)
    try:
        await ctx.sleep(DAY)
        await ctx.step(notify, who, text="day is over")
    except WorkflowCancelled:
        async with ctx.cleanup():
            back = await ctx.step(refund, paid)
            await ctx.sleep(HOUR, id="settle")
            await ctx.step(notify, who, text=f"refunded {back}")
        raise
    return paid


@natural("ann")
async def cancelled_but_tidy(ctx: AsyncContext, who: str) -> str:
    try:
        held = await ctx.step(reserve, "room")
        await ctx.sleep(HOUR)
    except WorkflowCancelled:
        request = ctx.cancellation_request()
        reason = request.reason if request is not None else None
        async with ctx.cleanup():
            await ctx.step(notify, who, text=reason or "no reason")
        return "dropped"
    return held


@natural("ann")
async def shielded_from_the_start(ctx: AsyncContext, who: str) -> int:
    async with ctx.cleanup():
        paid = await ctx.step(charge, who)
        await ctx.sleep(HOUR)
        await ctx.step(notify, who, text="paid")
    return paid


@natural("ann")
async def clean_up_of_a_group(ctx: AsyncContext, who: str) -> str:
    async def branch(item: str) -> str:
        held = await ctx.step(reserve, item)
        try:
            await ctx.sleep(HOUR)
        finally:
            async with ctx.cleanup():
                await ctx.step(release, held)
        return held

    return "".join(await ctx.gather(branch("a"), branch("b")))


@natural("ann", fails_on=(OutOfStock,))
async def domain_error(ctx: AsyncContext, who: str) -> None:
    cents = await ctx.step(price, who)
    if cents < 100:
        await ctx.step(notify, who, text="none left")
        raise OutOfStock(f"{who} gets nothing")
    await ctx.step(charge, who)


@natural("ann")
async def business_deadline(ctx: AsyncContext, who: str) -> None:
    await ctx.step(charge, who)
    await ctx.sleep(DAY)
    await ctx.step(notify, who)
    raise EndTimedOut(datetime(2027, 1, 1, tzinfo=UTC), "nobody came")


@natural("ann")
async def own_policy(ctx: AsyncContext, who: str) -> str:
    try:
        return await ctx.step(remote.options(retry=RetryPolicy.fixed(3), timeout=HOUR), "first")
    except StepFailed as error:
        return f"{error.attempt} attempts"


@natural("ann")
async def with_progress(ctx: AsyncContext, who: str) -> int:
    for number in range(2):
        ctx.record_progress(WorkflowProgress(f"part-{number}", number, 2))
        await ctx.step(price, f"part {number}")
        ctx.log.info("part %d is done", number)
    return 2


@natural("ann")
async def error_kept_for_later(ctx: AsyncContext, who: str) -> str:
    failure: StepFailed | None = None
    try:
        await ctx.step(provider, "second")
    except StepFailed as error:
        failure = error
    await ctx.step(release, "x")
    return "well" if failure is None else failure.error
