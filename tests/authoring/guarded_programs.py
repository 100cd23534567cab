# ruff: noqa: A001, ASYNC100, BLE001, C416, DTZ003, DTZ005, DTZ011, E722, E731, PLC3002, PLW0108, PTH118, PTH123, T201
# What stands here is what nobody should write.
# mypy: ignore-errors
"""Workflows for the guard's lint. Each `# !code` says what is to be found on its line; on the others, nothing is."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from time import time as now
from typing import Any

import httpx

from perdure.flow import Flow

steps = Flow()
client = httpx.Client
shared_random = random.Random(3)


@steps.step
def charge(order: object) -> object:
    return time.time()


def helper() -> float:
    return time.time()  # !clock


def allowed_helper() -> float:  # perdure: allow
    return time.time()


def calls_a_helper(ctx: Any) -> Any:
    return helper(), charge


async def awaited_helper(ctx: Any) -> None:
    await ctx.step(charge, 1)


# -- one workflow for each rule; the marks say what is to be found where ----------------------------------------------


def clocks(ctx: Any) -> None:
    time.time()  # !clock
    now()  # !clock
    datetime.now()  # !clock
    dt.datetime.utcnow()  # !clock
    dt.date.today()  # !clock
    time.sleep(1)  # !blocking
    dt.datetime.fromisoformat("2026-01-01").timestamp()
    dt.timedelta(1)
    time.strptime("1", "%d")


def drawn(ctx: Any) -> Any:
    random.random()  # !random
    random.choice([1])  # !random
    shared_random.random()  # !random
    random.Random()  # !random
    uuid.uuid4()  # !random
    uuid.uuid5(uuid.NAMESPACE_DNS, "x")
    os.urandom(3)  # !random
    seeded: random.Random = random.Random(ctx.run_id)
    return seeded.random() + ctx.random().random()


def environment(ctx: Any) -> Any:
    from os import environ

    os.environ["A"]  # !environment
    environ.get("A")  # !environment
    os.getenv("A")  # !environment
    with open("x"):  # !file
        pass
    return os.path.join("a", "b")


def network(ctx: Any) -> Any:
    import requests

    httpx.get("x")  # !network
    client()  # !network
    requests.post("x")  # !network
    socket.socket()  # !network
    try:
        return ctx.input
    except httpx.HTTPError:
        return None


def sets(ctx: Any) -> Any:
    names = {"b", "a"}
    others: set[str] = ctx.input
    for _name in names:  # !set-order
        pass
    [n for n in others]  # !set-order
    list(names | others)  # !set-order
    ",".join({n for n in names})  # !set-order
    print(*frozenset([1]))  # !set-order
    for _name in sorted(names):
        pass
    names.add("c")
    {n for n in names}
    return "a" in names, len(names), any(n for n in names), sorted(n for n in others), min(names)


def mixed_names(ctx: Any) -> Any:
    names: Any = {"a"}
    names = ["a"]
    for _name in names:
        pass


def identities(ctx: Any) -> Any:
    hash("x")  # !identity
    id(ctx)  # !identity
    return [id for id in ctx.input] and (lambda id: id)(1)


def handlers(ctx: Any) -> Any:
    try:
        return ctx.input
    except:  # !bare-except
        pass
    try:
        return ctx.input
    except BaseException:  # !bare-except
        return None
    try:
        return ctx.input
    except:
        ctx.log.info("x")
        raise


async def unawaited(ctx: Any) -> Any:
    ctx.step(charge, 1)  # !await
    ctx.sleep(1)  # !await
    ctx.gather()  # !await
    awaited_helper(ctx)  # !await
    ctx.start(charge, 1)
    ctx.timer(1)
    handle = ctx.step(charge, 1)
    await awaited_helper(ctx)
    charge(2)  # !step-call
    return await ctx.gather(handle, ctx.step(charge, 2))


async def loops(ctx: Any) -> Any:
    await asyncio.sleep(1)  # !event-loop
    async with asyncio.timeout(1):  # !event-loop
        pass
    with suppress(ValueError):
        await ctx.sleep(1)


def nested(ctx: Any) -> Any:
    def inner() -> Any:
        return time.time()  # !clock

    async def deeper(time: Any) -> Any:
        return time.time()

    lazily = lambda: time.time_ns()  # !clock
    time_of: Callable[[], float] = time.time  # !clock
    return inner(), deeper, lazily, time_of, [time.time() for _ in range(3)]  # !clock


def allowed(ctx: Any) -> Any:
    time.time()  # perdure: allow
    allowed_helper()
    return datetime.now(
        None,
    )  # perdure: allow - the comment may stand on any line of the call


def shadowed(ctx: Any, time: Any) -> Any:
    random = ctx.random()
    open = ctx.open
    return time.time(), random.choice([1]), open("x")


ALL = [
    *(clocks, drawn, environment, network, sets, mixed_names, identities, handlers, unawaited, loops, nested),
    *(allowed, shadowed),
]
