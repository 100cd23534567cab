"""Steps and what an async workflow gets of them: the types as both checkers infer them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from perdure import AsyncContext, Flow, RetryPolicy, StepContext

flow = Flow()
NOBODY = StepContext("", "", "", 0)


class User(TypedDict):
    name: str


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    order: int


@flow.step
def load(name: str) -> User:
    return {"name": name}


@flow.step(retry=RetryPolicy.fixed(4, timedelta(seconds=5)), timeout=timedelta(minutes=1))
async def fetch(page: int, *, deep: bool = False) -> list[Order]:
    return [Order(page)]


@flow.step
def charge(order: Order, note: str = "", told: StepContext = NOBODY) -> Receipt:
    return Receipt(order.id)


@flow.step
def refund(receipt: Receipt, step: StepContext) -> None: ...


@flow.step
def transfer(source: str, target: str, step: StepContext) -> int:
    return 1


@flow.step
def leading(step: StepContext, order: Order, note: str = "") -> Receipt:
    return Receipt(order.id)


@flow.step
def count(*, step: StepContext) -> int:
    return step.attempt


@flow.step
def anything(value: Any, step_of: Any) -> Any:
    return value


@flow.step(name="settle-again")
async def settle(receipt: Receipt, step: StepContext) -> Receipt:
    return receipt


remote = flow.ref("remote.score", returns=float)
untyped = flow.ref("remote.other")


@flow.workflow("steps")
async def steps(ctx: AsyncContext, order: Order) -> Receipt:
    assert_type(await ctx.step(load, "anna"), User)
    assert_type(await ctx.step(fetch, 1, deep=True), list[Order])
    assert_type(await ctx.step(fetch.options(id="again", timeout=timedelta(seconds=1)), 2), list[Order])
    receipt = await ctx.step(charge, order, note="fast")
    assert_type(receipt, Receipt)
    await ctx.step(refund, receipt)
    assert_type(await ctx.step(transfer, "a", "b"), int)
    assert_type(await ctx.step(settle, receipt), Receipt)
    assert_type(await ctx.step(count), int)
    assert_type(await ctx.step(leading, order, note="x"), Receipt)
    assert_type(await ctx.step(anything, order, step_of=3), Any)
    assert_type(await ctx.step(remote, order, limit=3), float)
    assert_type(await ctx.step(untyped), Any)
    beside = ctx.start(fetch, 3)
    if beside.done():
        assert_type(beside.result(), list[Order])
    assert_type(await beside, list[Order])
    return receipt


async def helper(ctx: AsyncContext, order: Order) -> Receipt:
    return await steps(ctx, order)


def called(order: Order) -> None:
    assert_type(load("anna"), User)
    assert_type(flow.steps, Mapping[str, Any])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure] - the registry holds steps of any type
