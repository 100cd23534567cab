"""R65: time limits inside a workflow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from coroutine.world import World
from perdure import AsyncContext, BranchCancelled, Flow, WorkflowRaised
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


def test_a_block_that_takes_longer_raises_the_builtin_timeout_error(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        try:
            async with ctx.timeout(HOUR):
                await ctx.step(work_of(flow))
        except TimeoutError as error:
            return str(error)
        return "in time"

    world = World(kernel, flow, w)
    assert world.opened() == ["wait timeout", "step work"]
    world.fire("timeout")
    assert world.output == "timed out after 1:00:00"


def test_a_timer_left_over_is_closed_and_its_id_numbered(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> Any:
        first = await ctx.wait_for(ctx.step(work_of(flow)), HOUR)
        second = await ctx.wait_for(ctx.step(work_of(flow)), HOUR)
        return first + second

    world = World(kernel, flow, w)
    world.done("work", "a")
    assert world.opened() == ["wait timeout", "step work", "wait timeout#2", "step work#2"]
    assert world.open() == ["wait timeout#2", "step work#2"]
    world.done("work#2", "b")
    assert world.output == "ab"


def test_wait_for_gives_the_branch_of_a_coroutine_its_signal(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        seen: list[str] = []

        async def slow() -> None:
            try:
                await ctx.gather(leaf(), ctx.step(work_of(flow)))
            except BranchCancelled:
                seen.append("slow")
                raise

        async def leaf() -> None:
            try:
                await ctx.sleep(2 * HOUR)
            except BranchCancelled:
                seen.append("leaf")
                raise

        try:
            await ctx.wait_for(slow(), HOUR)
        except TimeoutError:
            seen.append("out")
        return seen

    world = World(kernel, flow, w)
    world.fire("timeout")
    assert world.output == ["leaf", "slow", "out"]


def test_an_outer_limit_passes_through_an_inner_one(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        seen: list[str] = []
        try:
            async with ctx.timeout(HOUR):
                try:
                    async with ctx.timeout(2 * HOUR):
                        await ctx.step(work_of(flow))
                except TimeoutError:
                    seen.append("inner")
        except TimeoutError:
            seen.append("outer")
        return seen

    world = World(kernel, flow, w)
    world.fire("timeout")
    assert world.output == ["outer"]
    world = World(kernel, flow, w)
    world.fire("timeout#2")
    assert world.output == ["inner"]


def test_an_outer_limit_waits_for_a_cleanup_and_an_inner_one_fires_in_it(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        seen: list[str] = []
        try:
            async with ctx.timeout(HOUR):
                async with ctx.cleanup():
                    try:
                        async with ctx.timeout(3 * HOUR):
                            await ctx.step(work_of(flow))
                    except TimeoutError:
                        seen.append("inner")
                    seen.append("cleaned")
                seen.append("never")
        except TimeoutError:
            seen.append("outer")
        return seen

    world = World(kernel, flow, w)
    world.fire("timeout")
    assert world.status == "suspended"
    world.fire("timeout#2")
    assert world.output == ["inner", "cleaned", "outer"]


def test_a_limit_inside_a_cleanup_survives_the_request(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async with ctx.cleanup():
            try:
                async with ctx.timeout(HOUR):
                    await ctx.step(work_of(flow))
            except TimeoutError:
                await ctx.step(work_of(flow).options(id="late"))

    world = World(kernel, flow, w)
    world.request()
    assert world.open() == ["wait timeout~cancel", "step work~cancel"]
    world.fire("timeout~cancel")
    assert world.open()[-1] == "step late"
    world.done("late", "")
    assert world.status == "cancelled"


def test_a_resolution_before_the_limit_wins_even_in_one_pass(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        try:
            return await ctx.wait_for(ctx.step(work_of(flow)), HOUR)
        except TimeoutError:
            return "late"

    world = World(kernel, flow, w)
    with world.together():
        world.done("work", "in time")
        world.fire("timeout")
    assert world.output == "in time"
    world = World(kernel, flow, w)
    with world.together():
        world.fire("timeout")
        world.done("work", "in time")
    assert world.output == "late"


def test_the_steps_of_a_gather_do_not_hold_up_a_limit(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        try:
            async with ctx.timeout(HOUR):
                await ctx.gather(ctx.step(work_of(flow)), ctx.step(work_of(flow)))
        except TimeoutError:
            return "late"
        return "in time"

    world = World(kernel, flow, w)
    world.fire("timeout")
    assert world.output == "late"


def test_an_escaping_timeout_leaves_the_run_open_unless_listed(kernel: Kernel, flow: Flow) -> None:
    async def body(ctx: AsyncContext) -> None:
        async with ctx.timeout(HOUR):
            await ctx.step(work_of(flow))

    plain = flow.workflow("plain")(body)
    listed = flow.workflow("listed", fails_on=(TimeoutError,))(body)
    world = World(kernel, flow, plain)
    with pytest.raises(WorkflowRaised, match="TimeoutError"):
        world.fire("timeout")
    world = World(kernel, flow, listed)
    world.fire("timeout")
    assert (world.status, world.error) == ("failed", "timed out after 1:00:00")


def test_a_delay_is_a_timedelta_and_not_negative(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        with pytest.raises(ValueError, match="delay is a timedelta"):
            ctx.timeout(5)  # type: ignore[arg-type]  # what the test is about
        with pytest.raises(ValueError, match="must be at least 0 ms"):
            ctx.timer(timedelta(seconds=-1))
        return "told"

    assert World(kernel, flow, w).output == "told"
