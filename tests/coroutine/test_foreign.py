"""R64: what needs an event loop is refused with its line and what to use instead."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest
import trio
import trio.lowlevel

from coroutine.world import World
from perdure import AsyncContext, Flow, FlowEngine, ForeignAwaitError
from perdure.kernel import Kernel

Body = Callable[[AsyncContext], Awaitable[Any]]


async def _nothing() -> None: ...


async def sleep(ctx: AsyncContext) -> None:
    await asyncio.sleep(1)  # here


async def sleep_zero(ctx: AsyncContext) -> None:
    await asyncio.sleep(0)  # here


async def gather(ctx: AsyncContext) -> None:
    coroutine = _nothing()
    try:
        await asyncio.gather(coroutine)  # here
    finally:
        coroutine.close()


async def wait(ctx: AsyncContext) -> None:
    coroutine = _nothing()
    try:
        await asyncio.wait([asyncio.ensure_future(coroutine)])  # here
    finally:
        coroutine.close()


async def to_thread(ctx: AsyncContext) -> None:
    await asyncio.to_thread(print)  # here


async def create_task(ctx: AsyncContext) -> None:
    coroutine = _nothing()
    try:
        asyncio.create_task(coroutine)  # noqa: RUF006  # here
    finally:
        coroutine.close()


async def task_group(ctx: AsyncContext) -> None:
    async with asyncio.TaskGroup():  # here
        pass


async def timeout(ctx: AsyncContext) -> None:
    async with asyncio.timeout(1):  # noqa: ASYNC100 - it is refused  # here
        pass


async def wait_for(ctx: AsyncContext) -> None:
    await asyncio.wait_for(ctx.sleep, 1)  # type: ignore[arg-type]  # here


async def queue(ctx: AsyncContext) -> None:
    await asyncio.Queue[int]().get()  # here


async def event(ctx: AsyncContext) -> None:
    await asyncio.Event().wait()  # here


async def open_connection(ctx: AsyncContext) -> None:
    await asyncio.open_connection("localhost", 1)  # here


async def running_loop(ctx: AsyncContext) -> None:
    asyncio.get_running_loop().time()  # here


async def web(ctx: AsyncContext) -> None:
    async with httpx.AsyncClient() as client:
        await client.get("http://localhost:1/")  # here


async def anyio_sleep(ctx: AsyncContext) -> None:
    await anyio.sleep(1)  # here


async def anyio_group(ctx: AsyncContext) -> None:
    async with anyio.create_task_group():  # here
        pass


async def trio_sleep(ctx: AsyncContext) -> None:
    await trio.sleep(1)  # here


async def trio_nursery(ctx: AsyncContext) -> None:
    async with trio.open_nursery():  # here
        pass


async def anyio_limit(ctx: AsyncContext) -> None:
    with anyio.fail_after(1):  # noqa: ASYNC100 - it is to be refused # here
        pass


async def trio_limit(ctx: AsyncContext) -> None:
    with trio.fail_after(1):  # noqa: ASYNC100 - it is to be refused # here
        pass


async def a_loop_of_its_own(ctx: AsyncContext) -> None:
    coroutine = _nothing()
    try:
        asyncio.run(coroutine)  # here
    finally:
        coroutine.close()


async def a_loop_by_hand(ctx: AsyncContext) -> None:
    coroutine = _nothing()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(coroutine)  # here
    finally:
        loop.close()
        coroutine.close()


async def a_trio_of_its_own(ctx: AsyncContext) -> None:
    trio.run(_nothing)  # here


class _Odd:
    def __await__(self) -> Any:
        yield "something"


async def odd(ctx: AsyncContext) -> None:
    await _Odd()


async def nested(ctx: AsyncContext) -> None:
    async def helper() -> None:
        await asyncio.sleep(1)

    await ctx.gather(helper())


CASES: list[tuple[Body, str, str]] = [
    (sleep, "asyncio.sleep", "ctx.sleep"),
    (sleep_zero, "asyncio.sleep", "ctx.sleep"),
    (gather, "asyncio.gather", "ctx.gather"),
    (wait, "asyncio.", "ctx."),
    (to_thread, "asyncio.to_thread", "ctx.step"),
    (create_task, "asyncio.create_task", "ctx.start"),
    (task_group, "asyncio.TaskGroup", "ctx.gather"),
    (timeout, "asyncio.", "ctx.timeout"),
    (wait_for, "asyncio.wait_for", "ctx.wait_for"),
    (queue, "asyncio.Queue.get", "ctx.hook"),
    (event, "asyncio.Event.wait", "ctx.step"),
    (open_connection, "asyncio.open_connection", "ctx.step"),
    (web, "httpx.AsyncClient.get", "ctx.step"),
    (anyio_sleep, "anyio.sleep", "ctx.sleep"),
    (anyio_group, "anyio.create_task_group", "ctx.gather"),
    (trio_sleep, "trio.sleep", "ctx.sleep"),
    (trio_nursery, "trio.", "ctx.gather"),
    (anyio_limit, "anyio.fail_after", "ctx.timeout"),
    (trio_limit, "trio.fail_after", "ctx.timeout"),
    (a_loop_of_its_own, "asyncio.run", "ctx.step"),
    (a_loop_by_hand, "asyncio.", "ctx.step"),
    (a_trio_of_its_own, "trio.run", "ctx.step"),
]


def world_of(kernel: Kernel, body: Body) -> World:
    flow = Flow(guard="off")

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        await body(ctx)

    return World(kernel, flow, w, ask=False)


@pytest.mark.parametrize(("body", "function", "instead"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_foreign_await_names_the_line_the_function_and_what_to_use(
    kernel: Kernel, body: Body, function: str, instead: str
) -> None:
    error = world_of(kernel, body).refuses(ForeignAwaitError)
    code: Any = body
    lines = _marked(code)
    assert error.where == f"{__file__}:{lines} in {code.__name__}"
    assert error.function.startswith(function)
    assert instead in error.instead
    assert error.run_id == "r"


def _marked(function: Any) -> int:
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if "# here" in line)


def test_a_foreign_object_that_reaches_the_driver_is_named_by_its_type(kernel: Kernel) -> None:
    error = world_of(kernel, odd).refuses(ForeignAwaitError)
    assert error.function == "an awaitable (str)" and error.where.endswith("in __await__")


def test_a_foreign_await_in_a_branch_names_the_helper(kernel: Kernel) -> None:
    error = world_of(kernel, nested).refuses(ForeignAwaitError)
    assert error.where.endswith("in helper") and __file__ in error.where


@pytest.mark.parametrize("body", [sleep, sleep_zero, trio_sleep])
def test_it_cannot_be_caught(kernel: Kernel, body: Body) -> None:
    async def catches(ctx: AsyncContext) -> None:
        with suppress(BaseException):
            await body(ctx)
        await ctx.sleep_until("2027-01-01T00:00:00Z")

    world = world_of(kernel, catches)
    world.refuses(ForeignAwaitError)
    assert world.opened() == []


def test_the_loop_and_the_hooks_are_restored_after_a_pass(kernel: Kernel) -> None:
    async def main() -> None:
        loop, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
        for body in (sleep, _sleeps):
            world = world_of(kernel, body)
            with suppress(ForeignAwaitError):
                world.ask()
            assert asyncio.get_running_loop() is loop
            assert sys.get_asyncgen_hooks() == hooks
        await asyncio.sleep(0)

    asyncio.run(main())
    assert asyncio._get_running_loop() is None


async def _sleeps(ctx: AsyncContext) -> None:
    await ctx.sleep_until("2027-01-01T00:00:00Z")


def test_trio_s_own_run_goes_on_after_a_pass(kernel: Kernel) -> None:
    async def main() -> None:
        with pytest.raises(ForeignAwaitError):
            world_of(kernel, trio_sleep).ask()
        await trio.lowlevel.checkpoint()

    trio.run(main)


def test_logging_as_usual_is_no_foreign_await(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    """From Python 3.12 on a log record asks asyncio for the task's name."""

    async def logs(ctx: AsyncContext) -> None:
        logging.getLogger("mine").warning("said")

    world = world_of(kernel, logs)
    world.ask()
    assert world.status == "completed"
    assert "said" in caplog.messages


async def test_steps_may_await_what_they_like() -> None:
    flow = Flow(guard="off")

    @flow.step
    async def waits() -> str:
        await asyncio.sleep(0)
        return "waited"

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        return await ctx.step(waits)

    async with FlowEngine(flow) as engine:
        assert (await engine.run(w)).output == "waited"
