"""R36: chains, gather, race, as_completed, disposal and closing."""

from __future__ import annotations

import gc
import warnings
from contextvars import ContextVar
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from coroutine.world import World
from perdure import AsyncContext, BranchCancelled, Flow, HookDisposed, StepFailed, WorkflowRaised
from perdure.kernel import Kernel

HOUR = timedelta(hours=1)


@pytest.fixture
def flow() -> Flow:
    flow = Flow(guard="off")

    @flow.step
    def work(item: str) -> str:
        return item

    return flow


def step_of(flow: Flow) -> Any:
    return flow.find_step("work")


def test_gather_gives_values_in_the_order_of_its_arguments(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        async def branch(item: str) -> str:
            return await ctx.step(work, item)

        hook = ctx.hook(str, id="h", token="canary-h")
        return list(await ctx.gather(branch("a"), ctx.step(work, "b"), hook, ctx.sleep(HOUR), branch("c")))

    for seed in range(5):
        world = World(kernel, flow, w)
        world.play(lambda name, item: item, Random(seed), payload="p")
        assert world.output == ["a", "b", "p", None, "c"]


def test_gather_of_nothing_and_race_of_nothing(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        empty = await ctx.gather()
        with pytest.raises(ValueError, match="at least one member"):
            await ctx.race()
        return list(empty)

    assert World(kernel, flow, w).output == []


def test_chains_start_in_argument_order_and_wake_in_the_order_they_began_to_wait(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        seen: list[str] = []
        hook = ctx.hook(str, id="h", token="canary-h")

        async def branch(name: str) -> None:
            seen.append(f"{name} begins")
            await hook
            seen.append(f"{name} wakes")

        await ctx.gather(branch("a"), branch("b"), branch("c"))
        return seen

    world = World(kernel, flow, w)
    world.receive("h", "x")
    assert world.output == ["a begins", "b begins", "c begins", "a wakes", "b wakes", "c wakes"]


def test_each_chain_has_its_own_context_variables(kernel: Kernel, flow: Flow) -> None:
    name: ContextVar[str] = ContextVar("name", default="main")

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        name.set("parent")

        async def branch(own: str) -> str:
            before = name.get()
            name.set(own)
            await ctx.sleep(HOUR)
            return f"{before} {name.get()}"

        found = await ctx.gather(branch("a"), branch("b"))
        return [*found, name.get()]

    world = World(kernel, flow, w)
    world.play(lambda name, item: item)
    assert world.output == ["parent a", "parent b", "parent"]
    assert name.get() == "main"


def test_gather_ends_when_all_its_work_has_ended_and_raises_the_first_failure(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        async def branch() -> None:
            try:
                await ctx.sleep(HOUR)
            except BranchCancelled:
                async with ctx.cleanup():
                    await ctx.step(work.options(id="undo"), "x")
                raise

        hook = ctx.hook(str, id="h", token="canary-h")
        try:
            await ctx.gather(ctx.step(work, "a"), ctx.step(work, "b"), branch(), hook)
        except StepFailed as error:
            return f"{error.step_id}: {error.error}"
        return "no failure"

    world = World(kernel, flow, w)
    world.fail("work#2", "runtime error: second")
    assert world.status == "suspended"
    assert world.open() == ["hook h", "step work", "wait 1.3/sleep", "step undo"]
    world.fail("work", "runtime error: first in arguments, later in history")
    assert world.status == "suspended"
    world.done("undo", "")
    assert world.output == "work#2: runtime error: second"


def test_return_exceptions_waits_for_all_and_cancels_none(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        async def broken() -> None:
            raise ValueError("a fault")

        found = await ctx.gather(ctx.step(work, "a"), ctx.step(work, "b"), broken(), return_exceptions=True)
        return [str(item) for item in found]

    world = World(kernel, flow, w)
    world.fail("work")
    world.done("work#2", "two")
    assert world.output[1:] == ["two", "a fault"] and "failed" in world.output[0]


def test_race_gives_the_first_handle_and_the_rest_runs_on(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        async def branch() -> str:
            try:
                return await ctx.step(work, "branch")
            except BranchCancelled:
                await ctx.step(work.options(id="told"), "x")
                raise

        approval = ctx.hook(str, id="approval", token="canary-a")
        timer = ctx.timer(HOUR)
        nap = ctx.sleep(HOUR, id="nap")
        slow = ctx.step(work, "slow")
        first = await ctx.race(approval, slow, timer, nap, branch())
        await ctx.sleep(HOUR)
        timer.close()
        timer.close()
        return [first is approval, approval.result(), await slow]

    world = World(kernel, flow, w)
    world.receive("approval", "yes")
    assert world.commands[-2]["members"][-1] == {"type": "close_wait", "wait_id": "nap"}
    assert world.open() == ["wait timer", "step work", "step 1.5/work", "step told"]
    world.done("told", "")
    world.done("work", "late")
    world.fire("sleep")
    assert world.output == [True, "yes", "late"]


def test_the_failure_of_a_winner_is_raised_by_result(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        first = await ctx.race(ctx.step(work, "a"), ctx.sleep(HOUR))
        with pytest.raises(StepFailed):
            first.result()
        return "seen"

    world = World(kernel, flow, w)
    world.fail("work")
    assert world.output == "seen"


def test_a_race_already_won_starts_no_chain(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        ran: list[str] = []

        async def branch() -> None:
            ran.append("branch")

        one, two = ctx.start(work, "a"), ctx.start(work, "b")
        await ctx.gather(one, two)
        first = await ctx.race(branch(), ctx.sleep(HOUR), one, two)
        return [*ran, "two" if first is two else "one"]

    world = World(kernel, flow, w)
    world.done("work#2", "b")
    world.done("work", "a")
    assert world.output == ["two"]
    assert not any("sleep" in line for line in world.story)


def test_a_chain_gets_one_branch_cancelled_only(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        told: list[str] = []

        async def stubborn() -> None:
            for turn in range(2):
                try:
                    await ctx.sleep(HOUR)
                    told.append(f"slept {turn}")
                except BranchCancelled:
                    told.append(f"told {turn}")

        async def both() -> None:
            await ctx.gather(stubborn(), ctx.step(work, "inner"))

        with pytest.raises(StepFailed):
            await ctx.gather(both(), ctx.step(work, "outer"))
        return told

    world = World(kernel, flow, w)
    world.fail("1.1/work")
    assert world.status == "suspended"
    world.fail("work")
    world.fire("1.1/1.1/sleep#2")
    assert world.output == ["told 0", "slept 1"]


def test_later_failures_are_noted_and_a_fault_replaces_the_reason(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    def build(name: str, raises: type[Exception] | None) -> Any:
        @flow.workflow(name)
        async def w(ctx: AsyncContext) -> list[str]:
            async def branch() -> None:
                try:
                    await ctx.sleep(HOUR)
                except BranchCancelled:
                    if raises is not None:
                        raise raises("in clean-up") from None
                    await ctx.step(work.options(id="undo"), "x")

            try:
                await ctx.gather(ctx.step(work, "a"), branch())
            except StepFailed as error:
                return list(getattr(error, "__notes__", []))
            return []

        return w

    world = World(kernel, flow, build("noted", None), strict=False)
    world.fail("work")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.fail("undo")
    assert len(world.output) == 1 and "then failed" in world.output[0]
    assert [str(item.message) for item in caught] == world.output
    world = World(kernel, flow, build("fault", KeyError))
    with pytest.raises(WorkflowRaised, match="KeyError"):
        world.fail("work")


def test_as_completed_gives_handles_in_history_order(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        handles = [ctx.start(work.options(id=name), name) for name in "abc"]
        with pytest.raises(TypeError, match="takes handles"):
            ctx.as_completed(ctx.step(work, "x"))
        return [handle.result() async for handle in ctx.as_completed(*handles)]

    for seed in range(6):
        world = World(kernel, flow, w, strict=False)
        world.play(lambda name, item: item, Random(seed))
        done = [line.split()[1] for line in world.story if line.startswith("step_completed")]
        assert world.output == done


def test_dispose_and_close_are_sent_once_for_what_is_recorded_and_open(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        said: list[str] = []
        gone, kept = ctx.hook(str, id="gone", token="canary-g"), ctx.hook(str, id="kept", token="canary-k")
        brief = ctx.hook(str, id="brief", token="canary-b")
        short = ctx.timer(HOUR, id="short")
        brief.dispose()
        short.close()
        long = ctx.timer(HOUR, id="long")
        await ctx.step(work, "a")
        said.append(await kept)
        for _ in range(2):
            kept.dispose()
            gone.dispose()
            long.close()
        await long
        said.append(await kept)
        try:
            await gone
        except HookDisposed as error:
            said.append(error.hook_id)
        await ctx.step(work, "b")
        return said

    world = World(kernel, flow, w)
    assert world.opened() == ["hook gone", "hook kept", "wait long", "step work"]
    world.receive("kept", "payload")
    world.done("work", "a")
    assert world.story[-3:] == ["step_created work#2", "hook_disposed gone", "wait_completed long"]
    world.done("work#2", "b")
    assert world.output == ["payload", "payload", "gone"]


def test_a_hook_disposed_from_outside_is_a_failure_of_its_await(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w", fails_on=(HookDisposed,))
    async def w(ctx: AsyncContext) -> None:
        await ctx.hook(str, id="h", token="canary-h")

    world = World(kernel, flow, w)
    world.dispose("h")
    assert (world.status, world.error) == ("failed", "hook 'h' was disposed")


def test_waiters_of_a_hook_that_is_disposed_here_wake(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        hook = ctx.hook(str, id="h", token="canary-h")

        async def waits() -> str:
            try:
                return await hook
            except HookDisposed:
                return "disposed"

        async def ends() -> None:
            await ctx.sleep(HOUR)
            hook.dispose()

        return (await ctx.gather(waits(), ends()))[0]

    world = World(kernel, flow, w)
    world.fire("1.2/sleep")
    assert world.output == "disposed"


def test_recorded_resolutions_that_nobody_asks_for_are_no_drift(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        ctx.start(work.options(id="beside"), "x")
        return await ctx.step(work, "a")

    world = World(kernel, flow, w)
    world.done("beside", "never read")
    world.drop()
    world.done("work", "out")
    assert world.output == "out"


def test_long_lived_handles_keep_no_waiters_of_finished_groups(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)
    kept: list[Any] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        hook = ctx.hook(str, id="h", token="canary-h")
        kept.append(hook)
        for turn in range(5):
            await ctx.race(hook, ctx.step(work, str(turn)))
            async for _ in ctx.as_completed(hook, ctx.start(work.options(id=f"beside-{turn}"), "x")):
                break
        await hook

    world = World(kernel, flow, w, strict=False)
    for turn in range(5):
        world.done(world.open()[-1].split()[1], "x")
        world.done(f"beside-{turn}", "x")
    gc.collect()
    assert len(kept[0]._waiters) == 1


def test_start_runs_a_coroutine_beside_and_a_group_takes_its_handle(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        async def branch(item: str) -> str:
            return await ctx.step(work, item)

        one = ctx.start(branch("one"))
        two = ctx.start(branch("two"))
        three = await ctx.step(work, "three")
        first = await ctx.race(one, two)
        with pytest.raises(BranchCancelled):
            two.result()
        return [three, first is one, first.result(), two.done()]

    world = World(kernel, flow, w)
    assert world.opened() == ["step work", "step 1.1/work", "step 2.1/work"]
    world.done("work", "three")
    world.done("1.1/work", "one")
    assert world.output == ["three", True, "one", True]


def test_what_no_group_can_take_is_refused_where_it_is_given(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        with pytest.raises(TypeError, match="a group takes awaitables, and one is int"):
            await ctx.gather(1)  # type: ignore[call-overload]  # what the test is about
        with pytest.raises(TypeError, match="start takes a step"):
            ctx.start(1)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="without calling it"):
            await ctx.step(ctx.step(work, "x"))  # type: ignore[call-overload]
        return "told"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert World(kernel, flow, w).output == "told"


def test_groups_inside_groups(kernel: Kernel, flow: Flow) -> None:
    work = step_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> Any:
        inner = ctx.gather(ctx.step(work, "a"), ctx.step(work, "b"))
        first = await ctx.race(inner, ctx.sleep(HOUR))
        return list(first.result())

    world = World(kernel, flow, w)
    assert world.opened() == ["wait sleep", "step 1.1/work", "step 1.1/work#2"]
    world.done("1.1/work#2", "b")
    world.done("1.1/work", "a")
    assert world.output == ["a", "b"]
