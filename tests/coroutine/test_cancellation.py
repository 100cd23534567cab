"""R39: how an async workflow ends, cancellation, shielded clean-up, and a fault that compensates nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coroutine.world import World
from perdure import (
    AsyncContext,
    BranchCancelled,
    EndTimedOut,
    Flow,
    FlowError,
    RetryPolicy,
    Serialization,
    StepFailed,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowRaised,
)
from perdure.kernel import Kernel

HOUR = timedelta(hours=1)


class OutOfStock(Exception):
    pass


class Refused(WorkflowFailed):
    pass


@pytest.fixture
def flow() -> Flow:
    flow = Flow(guard="off")

    @flow.step
    def work(item: str = "") -> str:
        return item

    return flow


def work_of(flow: Flow) -> Any:
    return flow.find_step("work")


def ending(flow: Flow, name: str, error: BaseException | None, **options: Any) -> Any:
    @flow.workflow(name, **options)
    async def w(ctx: AsyncContext) -> str:
        await ctx.step(work_of(flow))
        if error is not None:
            raise error
        return "out"

    return w


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (None, "completed", None),
        (WorkflowFailed("no stock"), "failed", "no stock"),
        (Refused("refused"), "failed", "refused"),
        (OutOfStock("nothing left"), "failed", "nothing left"),
        (EndTimedOut(datetime(2026, 1, 2, tzinfo=UTC), "too late"), "failed", "too late"),
        (EndTimedOut("2026-01-02T00:00:00Z"), "failed", "run timed out at 2026-01-02T00:00:00Z"),
    ],
)
def test_ends(kernel: Kernel, flow: Flow, error: Exception | None, status: str, text: str | None) -> None:
    world = World(kernel, flow, ending(flow, "w", error, fails_on=(OutOfStock,)))
    world.done("work", "")
    assert (world.status, world.error) == (status, text)


@pytest.mark.parametrize(
    "error",
    [ValueError("a fault"), WorkflowCancelled(), BranchCancelled(), TimeoutError("late"), asyncio.CancelledError()],
)
def test_anything_else_leaves_the_run_open(kernel: Kernel, flow: Flow, error: BaseException) -> None:
    world = World(kernel, flow, ending(flow, "w", error, fails_on=(OutOfStock,)))
    with pytest.raises(WorkflowRaised) as caught:
        world.done("work", "")
    assert caught.value.__cause__ is not None and type(caught.value.__cause__) is type(error)
    assert caught.value.where is not None and __file__ in caught.value.where
    assert not world.run.terminal


def test_an_escaping_step_failed_fails_the_run_with_its_stored_text(kernel: Kernel, flow: Flow) -> None:
    world = World(kernel, flow, ending(flow, "w", None))
    world.fail("work", "runtime error: card declined")
    assert (world.status, world.error) == ("failed", "runtime error: card declined")
    assert world.story[-1] == "run_failed"


def test_a_step_failed_says_what_is_known_and_is_fresh_each_time(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        handle = ctx.start(work_of(flow))
        errors: list[StepFailed] = []
        for _ in range(2):
            try:
                await handle
            except StepFailed as error:
                errors.append(error)
        assert errors[0] is not errors[1] and errors[0].args == errors[1].args
        one = errors[0]
        return [one.step_id, one.step_name, one.attempt, one.error, one.failure_type, one.non_retryable]

    world = World(kernel, flow, w)
    world.fail("work", "non-retryable step error: no", final=True, kind="shop.Declined")
    assert world.output == ["work", "work", 1, "non-retryable step error: no", "shop.Declined", True]
    world = World(kernel, flow, w)
    world.fail("work", "runtime error: no")
    assert world.output == ["work", "work", 3, "runtime error: no", None, False]


def test_exhaustion_returns_to_the_workflow_unless_the_policy_says_otherwise(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        fatal = work_of(flow).options(retry=RetryPolicy.none().fail_run_on_failure())
        try:
            await ctx.step(work_of(flow))
        except StepFailed:
            await ctx.step(fatal)
        return ""

    world = World(kernel, flow, w)
    world.fail("work")
    step = world.run.step("work#2")
    assert step is not None and b"continue" not in step.retry
    assert b"continue_workflow" in (world.run.step("work") or step).retry


def test_what_cannot_be_stored_says_so_itself(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> Any:
        return object()

    with pytest.raises(Serialization, match="cannot be stored"):
        World(kernel, flow, w)


# -- the request -------------------------------------------------------------------------------------------------------


def test_a_return_while_cancelling_is_a_cancel_and_the_value_is_dropped(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        try:
            await ctx.step(work_of(flow))
        except WorkflowCancelled as error:
            return f"cancelled for {error.reason}"
        return "out"

    world = World(kernel, flow, w)
    world.request("a reason")
    assert (world.status, world.output, world.error) == ("cancelled", None, "a reason")
    world = World(kernel, flow, w)
    with world.together():
        world.done("work", "")
        world.request()
    assert world.status == "cancelled"


def test_the_request_is_raised_once_in_every_chain_innermost_first(kernel: Kernel, flow: Flow) -> None:
    seen: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def leaf(name: str) -> None:
            for turn in range(2):
                try:
                    await ctx.sleep(HOUR)
                except WorkflowCancelled:
                    seen.append(f"{name} {turn}")

        async def branch() -> None:
            try:
                await ctx.gather(leaf("leaf a"), leaf("leaf b"))
            except WorkflowCancelled:
                seen.append("branch")
                raise

        started = ctx.start(leaf("started"))
        try:
            await ctx.race(branch(), ctx.step(work_of(flow)))
        except WorkflowCancelled:
            seen.append("main")
            assert not started.done()
            raise

    world = World(kernel, flow, w, strict=False)
    world.request()
    assert seen == ["leaf a 0", "leaf b 0", "started 0"]
    world.fire("2.1/1.1/sleep#2")
    assert seen[3:] == []
    world.fire("2.1/1.2/sleep#2")
    assert seen[3:] == ["branch", "main"]
    assert world.status == "cancelling"  # no BranchCancelled after WorkflowCancelled: what still runs is waited for
    world.fire("1.1/sleep#2")
    assert world.status == "cancelled"


def test_awaiting_what_the_request_cancelled_raises_at_once_each_time(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        handle = ctx.start(work_of(flow))
        hook = ctx.hook(str, id="h", token="canary-h")
        raised = 0
        for item in (handle, handle, hook, hook):
            try:
                await item
            except WorkflowCancelled:
                raised += 1
        await ctx.step(work_of(flow).options(id=f"raised {raised}"))

    world = World(kernel, flow, w)
    world.request()
    assert world.open() == ["step raised 4"]


def test_what_was_asked_for_and_never_recorded_counts_as_cancelled(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        try:
            await ctx.step(work_of(flow).options(id="lost"))
        except WorkflowCancelled:
            async with ctx.cleanup():
                await ctx.step(work_of(flow).options(id="undo"))
            raise

    world = World(kernel, flow, w, ask=False)
    world.start()
    world.decide()  # asked for "lost"; the commit is refused because a request came first
    world.request()
    assert world.opened() == ["step undo"]
    world.done("undo", "")
    assert world.status == "cancelled"


def test_a_request_before_the_start_is_raised_at_the_first_await(kernel: Kernel, flow: Flow) -> None:
    seen: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def branch() -> None:
            seen.append("branch ran")

        seen.append("began")
        ctx.hook(str, id="h", token="canary-h")
        try:
            await ctx.gather(branch(), ctx.step(work_of(flow)))
        except WorkflowCancelled:
            seen.append("cancelled")
            raise

    world = World(kernel, flow, w, ask=False, strict=False)
    world.request()
    assert seen == ["began", "cancelled"]
    assert (world.status, world.opened()) == ("cancelled", [])


# -- clean-up ----------------------------------------------------------------------------------------------------------


def test_cleanup_keeps_the_request_off_and_asks_anew_for_what_it_took(kernel: Kernel, flow: Flow) -> None:
    seen: list[str] = []

    @flow.workflow("w", fails_on=(OutOfStock,))
    async def w(ctx: AsyncContext) -> None:
        try:
            raise OutOfStock("none")
        except OutOfStock:
            async with ctx.cleanup():
                seen.append(await ctx.step(work_of(flow), "refund"))
                await ctx.gather(inner(ctx), ctx.sleep(HOUR))
                seen.append("cleaned")
            seen.append("never")

    async def inner(ctx: AsyncContext) -> None:
        async with ctx.cleanup():
            seen.append(await ctx.step(work_of(flow), "inner"))
        seen.append("still shielded")

    world = World(kernel, flow, w, strict=False)
    world.request()
    assert world.open() == ["step work~cancel"]
    world.done("work~cancel", "refunded")
    assert world.open() == ["wait sleep", "step 1.1/work"]
    world.done("1.1/work", "inner")
    world.fire("sleep")
    assert seen == ["refunded", "inner", "still shielded", "cleaned"]
    assert world.status == "cancelled"


def test_a_request_inside_nested_chains_of_a_cleanup_reaches_none_of_them(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def part(item: str) -> str:
            return await ctx.step(work_of(flow), item)

        async with ctx.cleanup():
            await ctx.gather(part("a"), part("b"))
        raise AssertionError("not reached")

    world = World(kernel, flow, w)
    world.request()
    assert world.open() == ["step 1.1/work~cancel", "step 1.2/work~cancel"]
    world.done("1.1/work~cancel", "")
    world.done("1.2/work~cancel", "")
    assert world.status == "cancelled"


def test_a_bare_finally_has_neither_property(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        try:
            await ctx.step(work_of(flow).options(id="first"))
        finally:
            await ctx.step(work_of(flow).options(id="undo"))

    world = World(kernel, flow, w)
    world.done("first", "")
    world.request()
    assert (world.status, world.open()) == ("cancelled", [])


@pytest.mark.parametrize("helper", [False, True])
def test_a_fault_compensates_nothing(kernel: Kernel, flow: Flow, helper: bool) -> None:
    broken = True

    async def undo(ctx: AsyncContext) -> None:
        async with ctx.cleanup():
            await ctx.step(work_of(flow).options(id="undo"))

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        try:
            await ctx.step(work_of(flow).options(id="first"))
            if broken:
                raise KeyError("a fault")
            return "fixed"
        except BaseException:
            try:
                if helper:
                    await undo(ctx)
                else:
                    async with ctx.cleanup():
                        await ctx.step(work_of(flow).options(id="undo"))
            except BaseException:  # noqa: BLE001 - what the test is about
                await ctx.step(work_of(flow).options(id="worse"))
            raise

    world = World(kernel, flow, w)
    with pytest.raises(WorkflowRaised, match="KeyError"):
        world.done("first", "")
    assert world.opened() == ["step first"]
    broken = False
    world.ask()
    assert world.output == "fixed"


@pytest.mark.parametrize("error", [StepFailed("s", "s", 1, "x"), OutOfStock(), TimeoutError(), WorkflowFailed("x")])
def test_what_is_no_fault_compensates(kernel: Kernel, flow: Flow, error: Exception) -> None:
    @flow.workflow("w", fails_on=(OutOfStock, TimeoutError))
    async def w(ctx: AsyncContext) -> None:
        try:
            raise error
        finally:
            async with ctx.cleanup():
                await ctx.step(work_of(flow))

    assert World(kernel, flow, w).open() == ["step work"]


@pytest.mark.parametrize("race", [False, True])
def test_a_fault_of_one_branch_compensates_nothing_in_another(kernel: Kernel, flow: Flow, race: bool) -> None:
    broken = True

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        async def bad() -> str:
            await ctx.step(work_of(flow).options(id="first"))
            if broken:
                raise KeyError("a fault")
            return "fixed"

        async def good() -> None:
            try:
                await ctx.sleep(HOUR)
            except BranchCancelled:
                async with ctx.cleanup():
                    await ctx.step(work_of(flow).options(id="undo"))
                raise

        if race:
            first = await ctx.race(bad(), good())
            return str(first.result())
        return (await ctx.gather(bad(), good()))[0]

    world = World(kernel, flow, w)
    with pytest.raises(WorkflowRaised, match="KeyError"):
        world.done("first", "")
    assert "step undo" not in world.opened()
    broken = False
    world.ask()
    if race:
        assert world.open()[-1] == "step undo"  # it lost to a branch that returned
        world.done("undo", "")
    else:
        world.fire("1.2/sleep")
    assert world.output == "fixed"


def test_an_exception_of_whoever_drives_is_not_the_workflow_s(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async with ctx.cleanup():
            await ctx.step(work_of(flow))

    try:
        raise ValueError("outside")
    except ValueError:
        assert World(kernel, flow, w).open() == ["step work"]


# -- open chains at the end --------------------------------------------------------------------------------------------


def test_open_chains_are_ended_and_waited_for_before_the_run_ends(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        async def beside() -> None:
            try:
                await ctx.sleep(HOUR)
            except BranchCancelled:
                async with ctx.cleanup():
                    await ctx.step(work_of(flow).options(id="undo"))
                raise

        ctx.start(beside())
        await ctx.step(work_of(flow))
        return "out"

    world = World(kernel, flow, w)
    world.done("work", "")
    assert world.open() == ["wait 1.1/sleep", "step undo"]
    world.done("undo", "")
    assert world.output == "out"


def test_facts_of_the_last_pass_are_recorded(kernel: Kernel, flow: Flow) -> None:
    from perdure import WorkflowProgress

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        ctx.record_progress(WorkflowProgress("half", 1, 2))
        await ctx.step(work_of(flow))
        ctx.record_progress(WorkflowProgress("all", 2, 2))
        return "out"

    world = World(kernel, flow, w)
    world.done("work", "")
    assert world.output == "out"
    assert world.run.progress("half") is not None and world.run.progress("all") is not None


def test_signals_are_no_exceptions_and_the_rest_are_flow_errors() -> None:
    assert not issubclass(WorkflowCancelled, Exception) and not issubclass(BranchCancelled, Exception)
    assert all(issubclass(kind, FlowError) for kind in (StepFailed, WorkflowFailed, EndTimedOut))
