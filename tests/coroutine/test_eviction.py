"""R63: a live coroutine is a cache; eviction closes, and a warm run holds nothing that nobody will read."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from coroutine.world import World
from perdure import AsyncContext, Flow, WorkflowRaised
from perdure.coroutine import closing
from perdure.kernel import Kernel

HOUR = timedelta(hours=1)


@pytest.fixture
def flow() -> Flow:
    flow = Flow(guard="off")

    @flow.step
    def work(item: str = "") -> str:
        return item

    return flow


def work_of(flow: Flow) -> Any:
    return flow.find_step("work")


def test_eviction_runs_local_clean_up_innermost_first_and_awaits_nothing(kernel: Kernel, flow: Flow) -> None:
    seen: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def leaf(name: str) -> None:
            try:
                await ctx.sleep(HOUR)
            finally:
                seen.append(name)
                await ctx.step(work_of(flow).options(id="undo"))
                seen.append("never")

        try:
            with ctx.scope("open"):
                await ctx.gather(leaf("a"), leaf("b"))
        finally:
            seen.append("main")
            ctx.hook(str, id="late", token="canary-late")
            ctx.timer(HOUR)
            ctx.start(leaf("ignored"))
            ctx.start(work_of(flow))
            with ctx.scope("s"):
                ctx.log.warning("said by nobody")

    world = World(kernel, flow, w, strict=False)
    before = world.log
    world.drop()
    assert seen == ["a", "b", "main"]
    assert world.log == before
    world.ask()
    assert world.opened() == ["wait open/1.1/sleep", "wait open/1.2/sleep"]


def test_code_that_swallows_being_closed_is_suspended_kept_and_logged(
    kernel: Kernel, flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [0]

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        while True:
            turns[0] += 1
            with contextlib.suppress(BaseException):
                await ctx.sleep(HOUR)

    world = World(kernel, flow, w, strict=False)
    kept = len(closing.SURVIVORS)
    turns[0] = 0
    with caplog.at_level(logging.WARNING, "perdure"):
        world.drop()
    assert 1_000 < turns[0] < 2_000
    assert len(closing.SURVIVORS) == kept + 1
    assert __file__ in caplog.text and "run r" in caplog.text


def test_code_that_needs_a_few_tries_ends(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        for _ in range(5):
            with contextlib.suppress(BaseException):
                await ctx.sleep(HOUR)

    world = World(kernel, flow, w, strict=False)
    kept = len(closing.SURVIVORS)
    world.drop()
    assert len(closing.SURVIVORS) == kept


def test_live_async_generators_are_closed_likewise(kernel: Kernel, flow: Flow) -> None:
    seen: list[str] = []

    async def numbers(ctx: AsyncContext) -> AsyncIterator[int]:
        try:
            for number in range(3):
                await ctx.sleep(HOUR)
                yield number
        finally:
            seen.append("generator")

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> int:
        total = 0
        async for number in numbers(ctx):
            total += number
            await ctx.step(work_of(flow))
        return total

    world = World(kernel, flow, w, strict=False)
    world.drop()  # while the generator itself awaits
    assert seen == ["generator"]
    world.fire("sleep")
    world.drop()  # while its consumer does
    assert seen == ["generator"] * 2
    world.done("work", "")
    world.play(lambda name, item: "")
    assert world.output == 3


def test_a_dropped_generator_whose_clean_up_awaits_is_an_error_that_names_aclosing(kernel: Kernel, flow: Flow) -> None:
    async def numbers(ctx: AsyncContext) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await ctx.step(work_of(flow))

    @flow.workflow("broken")
    async def broken(ctx: AsyncContext) -> None:
        async for _ in numbers(ctx):
            break
        await ctx.sleep(HOUR)

    @flow.workflow("right")
    async def right(ctx: AsyncContext) -> None:
        async with contextlib.aclosing(numbers(ctx)) as stream:  # type: ignore[type-var]  # it is a generator
            async for _ in stream:
                break

    with pytest.raises(WorkflowRaised, match="aclosing") as caught:
        World(kernel, flow, broken)
    assert "in test_a_dropped" in str(caught.value) and "numbers" in str(caught.value)
    world = World(kernel, flow, right)
    assert world.open() == ["step work"]
    world.done("work", "")
    assert world.status == "completed"


def test_a_dropped_generator_without_awaits_is_fine(kernel: Kernel, flow: Flow) -> None:
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append("closed")

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async for _ in numbers():
            break
        seen.append("after")

    assert World(kernel, flow, w, strict=False).status == "completed"
    assert seen == ["closed", "after"]


def test_dropping_at_every_event_changes_nothing(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> Any:
        async def branch(item: str) -> str:
            await ctx.sleep(HOUR)
            return await ctx.step(work_of(flow), item)

        pair = await ctx.gather(branch("a"), branch("b"))
        return [
            *pair,
            await ctx.step(work_of(flow), str(ctx.random().random())),
            str(ctx.uuid()),
            ctx.now().isoformat(),
        ]

    plain, dropped = World(kernel, flow, w), World(kernel, flow, w)
    for world in (plain, dropped):
        while not world.run.terminal:
            kind, _, subject = world.open()[0].partition(" ")
            if world is dropped:
                world.drop()
            if kind == "wait":
                world.fire(subject)
            else:
                step = world.run.step(subject)
                assert step is not None
                world.done(subject, step.input.decode())
    assert plain.log == dropped.log


def test_a_pass_that_was_not_accepted_is_dropped_before_the_next(kernel: Kernel, flow: Flow) -> None:
    """R4: fed staged events that were never committed, the coroutine is replayed."""
    seen: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        seen.append(await ctx.step(work_of(flow)))
        return await ctx.step(work_of(flow).options(id="next"))

    world = World(kernel, flow, w, strict=False)
    started = world.run.stage([b'{"type":"step_started","step_id":"work","attempt":1}'], world.clock)
    staged = started.stage([b'{"type":"step_completed","step_id":"work","output":"refused"}'], world.clock)
    world.kept.ask(world.spec, staged)
    world.done("work", "committed")
    assert seen == ["refused", "committed"]
    assert world.open() == ["step next"]


class _Big:
    """Something a collector can be asked about."""


def test_a_warm_run_holds_no_value_that_was_awaited_and_let_go(kernel: Kernel, flow: Flow) -> None:
    made: list[weakref.ref[_Big]] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def branch() -> _Big:
            await ctx.sleep(HOUR)
            big = _Big()
            made.append(weakref.ref(big))
            return big

        await ctx.gather(branch(), branch())
        handle = ctx.start(branch())
        await handle
        del handle
        first = await ctx.race(branch(), ctx.sleep(2 * HOUR))
        del first
        await ctx.sleep(HOUR)

    world = World(kernel, flow, w, strict=False)
    for wait in ("1.1/sleep", "1.2/sleep", "2.1/sleep", "3.1/sleep"):
        world.fire(wait)
    gc.collect()
    assert len(made) == 4
    assert [ref() for ref in made] == [None] * 4


def test_nothing_of_a_closed_pass_is_left(kernel: Kernel, flow: Flow) -> None:
    refs: list[weakref.ref[Any]] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        refs.append(weakref.ref(ctx._replay))
        await ctx.gather(ctx.sleep(HOUR), ctx.step(work_of(flow)))

    world = World(kernel, flow, w, strict=False)
    world.drop()
    gc.collect()
    assert refs[0]() is None
