"""R35, R36, R39, R63, R65 where they meet: signals that meet signals, clean-up under a fault, iterators that are shared."""

from __future__ import annotations

import threading
import warnings
from datetime import timedelta
from traceback import walk_tb
from typing import Any

import pytest

from coroutine.world import World
from perdure import (
    AsyncContext,
    BranchCancelled,
    Flow,
    FlowError,
    Serialization,
    StepFailed,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowRaised,
)
from perdure.kernel import Kernel

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def flow() -> Flow:
    flow = Flow(guard="off")

    @flow.step
    def work(item: str = "") -> str:
        return item

    @flow.step
    def undo(item: str = "") -> str:
        return item

    return flow


def steps_of(flow: Flow) -> tuple[Any, Any]:
    return flow.find_step("work"), flow.find_step("undo")


def test_a_fault_compensates_nothing_however_deep_the_branch_is(kernel: Kernel, flow: Flow) -> None:
    work, undo = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def leaf() -> None:
            try:
                await ctx.step(work.options(id="leaf"))
            except BaseException:
                async with ctx.cleanup():
                    await ctx.step(undo)
                raise

        async def inner() -> None:
            await ctx.gather(leaf(), ctx.sleep(HOUR))

        async def faulty() -> None:
            await ctx.step(work.options(id="faulty"))
            raise KeyError("a fault")

        await ctx.gather(inner(), faulty())

    world = World(kernel, flow, w)
    with pytest.raises(WorkflowRaised, match="a fault"):
        world.done("faulty", "")
    assert world.open() == ["wait 1.1/sleep", "step leaf"]


@pytest.mark.parametrize("started", [False, True])
def test_a_fault_compensates_nothing_by_way_of_branches(kernel: Kernel, flow: Flow, started: bool) -> None:
    work, undo = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def compensate() -> None:
            async with ctx.cleanup():
                await ctx.step(undo)

        async def outer() -> None:
            await ctx.gather(compensate())

        try:
            await ctx.step(work)
            raise KeyError("a fault")
        except KeyError:
            await (ctx.start(outer()) if started else ctx.gather(outer(), ctx.sleep(HOUR)))

    world = World(kernel, flow, w)
    with pytest.raises(WorkflowRaised, match="a fault"):
        world.done("work", "")
    assert world.opened() == ["step work"]


def test_branches_begun_before_a_fault_or_after_it_was_dealt_with_compensate(kernel: Kernel, flow: Flow) -> None:
    _, undo = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        async def compensate() -> str:
            async with ctx.cleanup():
                return await ctx.step(undo)

        try:
            raise KeyError("dealt with")
        except KeyError:
            pass
        return (await ctx.gather(compensate()))[0]

    def drive() -> World:
        try:
            raise ValueError("of whoever drives")
        except ValueError:
            return World(kernel, flow, w)

    world = drive()
    world.done("1.1/undo", "u")
    assert world.output == "u"


@pytest.mark.parametrize("group", [False, True])
def test_each_of_two_time_limits_is_told_of_its_own(kernel: Kernel, flow: Flow, group: bool) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        told = []

        async def clean_up() -> None:
            async with ctx.cleanup():
                await ctx.step(work.options(id="work"))

        try:
            async with ctx.timeout(2 * SECOND):
                try:
                    async with ctx.timeout(SECOND):
                        await (ctx.gather(clean_up()) if group else clean_up())
                except TimeoutError:
                    told.append("inner")
                await ctx.sleep(HOUR)
        except TimeoutError:
            told.append("outer")
        return told

    world = World(kernel, flow, w)
    world.fire("timeout#2")
    world.fire("timeout")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.done("work", "")
    assert not caught  # the sleep was awaited, if only to be told of the limit
    assert world.output == ["inner", "outer"]


def test_a_clean_up_keeps_off_what_was_not_raised_before_it(kernel: Kernel, flow: Flow) -> None:
    """The gather fails first; the limit that runs out before all its work has ended is due at the next await."""
    work, undo = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[str]:
        told = []
        try:
            async with ctx.timeout(SECOND):
                try:
                    await ctx.gather(ctx.step(work.options(id="a")), ctx.step(work.options(id="b")))
                except StepFailed as error:
                    told.append(type(error).__name__)
                    async with ctx.cleanup():
                        told.append(await ctx.step(undo))
                    told.append("not reached")
        except TimeoutError:
            told.append("late")
        return told

    world = World(kernel, flow, w)
    world.fail("a")
    world.fire("timeout")
    world.done("b", "")
    world.done("undo", "undone")
    assert world.output == ["StepFailed", "undone", "late"]


def test_a_request_before_the_start_waits_for_a_clean_up(kernel: Kernel, flow: Flow) -> None:
    _, undo = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async with ctx.cleanup():
            await ctx.step(undo)

    world = World(kernel, flow, w, ask=False)
    world.request()
    world.done("undo", "")
    assert world.status == "cancelled"


def test_no_branch_is_cancelled_after_the_request(kernel: Kernel, flow: Flow) -> None:
    work, undo = steps_of(flow)
    told: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        told.clear()

        async def inside() -> None:
            for number in (1, 2):
                try:
                    await ctx.gather(ctx.step(work.options(id=f"k{number}")))
                except (BranchCancelled, WorkflowCancelled) as signal:
                    told.append(type(signal).__name__)
                    if number == 2:
                        raise

        async def beside() -> None:
            async with ctx.cleanup():
                ctx.start(inside())
                await ctx.step(undo.options(id="undo"))

        ctx.start(beside())
        await ctx.step(work.options(id="work"))

    world = World(kernel, flow, w)
    world.done("work", "")
    world.request()
    world.done("undo~cancel", "")
    assert told == ["WorkflowCancelled"]
    world.done("k2", "")
    assert world.status == "cancelled" and told == ["WorkflowCancelled"]


def test_what_is_started_after_the_workflow_returned_is_ended_too(kernel: Kernel, flow: Flow) -> None:
    work, undo = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        async def for_ever() -> None:
            await ctx.hook(str, id="never", token="canary-never")

        async def beside() -> None:
            try:
                await ctx.sleep(HOUR)
            finally:
                async with ctx.cleanup():
                    await ctx.start(undo.options(id="undo"))
                    ctx.start(for_ever())
                    await ctx.step(undo.options(id="undo more"))

        ctx.start(beside())
        return await ctx.step(work)

    world = World(kernel, flow, w)
    world.done("work", "w")
    world.done("undo", "")
    world.done("undo more", "")
    assert world.output == "w"


def test_two_branches_share_an_iterator(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        handles = ctx.as_completed(*(ctx.start(work.options(id=name)) for name in "abc"))
        found: list[Any] = []

        async def take(who: int) -> None:
            async for handle in handles:
                output = handle.result()
                found.append([who, output])

        await ctx.gather(take(1), take(2), take(3), take(4))
        return found

    world = World(kernel, flow, w)
    for name in "cab":
        world.done(name, name)
    assert world.output == [[1, "c"], [2, "a"], [3, "b"]]


def test_calls_of_a_pass_that_is_dropped_do_nothing(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)
    ended: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        hook = ctx.hook(str, id="h", token="canary-h")
        try:
            await ctx.step(work)
        finally:
            ctx.random().random()
            ctx.uuid()
            ctx.first_resolved(("hook", "h"))
            _ = ctx.input, ctx.now(), ctx.live, ctx.cancellation_request()
            ctx.timer(SECOND)
            ctx.start(work)
            hook.dispose()
            ctx.log.info("not said")
            ended.append("all of it")

    world = World(kernel, flow, w, strict=False)
    world.drop()
    assert ended == ["all of it"]
    assert world.opened() == ["hook h", "step work"]


def test_a_context_of_another_run_or_thread_is_told_so(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)
    kept: list[AsyncContext] = []
    refused: list[RuntimeError] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext, first: bool) -> None:
        kept.append(ctx)
        await kept[0].step(work)

    @flow.workflow("threaded")
    async def threaded(ctx: AsyncContext) -> None:
        def elsewhere() -> None:
            try:
                ctx.timer(SECOND)
            except RuntimeError as error:
                refused.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    first = World(kernel, flow, w, True, strict=False)
    with pytest.raises(WorkflowRaised, match="only while its code runs"):
        World(kernel, flow, w, False, strict=False)
    first.drop()
    with pytest.raises(WorkflowRaised, match="only while its code runs"):
        World(kernel, flow, w, False, strict=False)
    with pytest.raises(RuntimeError, match="only while its code runs"):
        kept[0].uuid()
    World(kernel, flow, threaded, strict=False)
    assert len(refused) == 1


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot be told")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WorkflowFailed("\ud83d\ude00 \ud800"), "\N{GRINNING FACE} \ufffd"),
        (WorkflowFailed("  "), "WorkflowFailed"),
        (Mute(), "Mute"),
    ],
)
def test_a_text_that_cannot_be_stored_still_ends_the_run(
    kernel: Kernel, flow: Flow, error: Exception, text: str
) -> None:
    @flow.workflow("w", fails_on=(Mute,))
    async def w(ctx: AsyncContext) -> None:
        raise error

    world = World(kernel, flow, w)
    assert (world.status, world.error) == ("failed", text)


def test_a_fault_that_cannot_be_told_is_named_by_its_class(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        raise Mute

    with pytest.raises(WorkflowRaised, match="raised Mute at"):
        World(kernel, flow, w)


def test_what_does_not_fit_its_type_names_the_step_or_hook(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        with pytest.raises(Serialization, match=r"the output of step 'work': \$: Expected `str`"):
            await ctx.step(work)
        with pytest.raises(Serialization, match=r"the payload of hook 'h': \$: Expected `int`"):
            await ctx.hook(int, id="h", token="canary-h")

    world = World(kernel, flow, w)
    world.done("work", 1)
    world.receive("h", "one")
    assert world.status == "completed"
    assert [each.status for each in world.prefixes()][-1] == "completed"


def test_an_id_is_text(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        with pytest.raises(TypeError, match="the id of a step is text, not int"):
            await ctx.step(work.options(id=5))
        with pytest.raises(TypeError, match="the id of a sleep is text, not int"):
            await ctx.sleep(HOUR, id=5)  # type: ignore[arg-type]  # what the test is about

    assert World(kernel, flow, w).status == "completed"


@pytest.mark.parametrize("listed", [Serialization, FlowError, Exception])
def test_a_listed_refusal_fails_the_run(kernel: Kernel, flow: Flow, listed: type[Exception]) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w", fails_on=(listed,))
    async def w(ctx: AsyncContext) -> None:
        await ctx.step(work)

    world = World(kernel, flow, w)
    world.done("work", 1)
    assert world.status == "failed" and "the output of step 'work'" in str(world.error)


class Expected(Exception):
    pass


@pytest.mark.parametrize("listed", [False, True])
def test_the_request_overrides_the_failure_that_ended_a_group_but_no_fault(
    kernel: Kernel, flow: Flow, listed: bool
) -> None:
    work, undo = steps_of(flow)

    @flow.workflow("w", fails_on=(Expected,) if listed else ())
    async def w(ctx: AsyncContext) -> None:
        async def fails() -> None:
            await ctx.step(work)
            raise Expected

        async def goes_on() -> None:
            try:
                await ctx.sleep(HOUR)
            except BranchCancelled:
                await ctx.step(undo.options(id="undo"))

        await ctx.gather(fails(), goes_on())

    world = World(kernel, flow, w)
    world.done("1.1/work", "")
    if listed:
        world.request()
        assert world.status == "cancelled"
    else:
        with pytest.raises(WorkflowRaised, match="Expected"):
            world.request()


def test_a_sleep_that_was_closed_before_it_was_opened_never_is(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        sleep: Any = ctx.sleep(HOUR)
        sleep.close()
        await sleep

    assert World(kernel, flow, w).opened() == []


@pytest.mark.parametrize("end", ["limit", "request", "drop", "done"])
def test_groups_inside_groups_take_no_stack(kernel: Kernel, flow: Flow, end: str) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w", fails_on=(TimeoutError,))
    async def w(ctx: AsyncContext) -> str:
        async def nested(depth: int) -> str:
            if depth:
                return (await ctx.gather(nested(depth - 1)))[0]
            return await ctx.step(work.options(id="leaf"))

        return await ctx.wait_for(nested(1_500), SECOND)

    world = World(kernel, flow, w, strict=False)
    if end == "drop":
        world.drop()
    match end:
        case "limit":
            world.fire("timeout")
        case "request":
            world.request()
        case _:
            world.done("leaf", "found")
    assert world.status == {"limit": "failed", "request": "cancelled"}.get(end, "completed")


def test_a_coroutine_given_to_a_group_twice_is_run_once(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        async def branch() -> str:
            return await ctx.step(work)

        given = branch()
        return list(await ctx.gather(given, ctx.step(work), given))

    world = World(kernel, flow, w)
    assert world.opened() == ["step work", "step 1.1/work"]
    world.done("work", "b")
    world.done("1.1/work", "a")
    assert world.output == ["a", "b", "a"]


def test_a_coroutine_that_is_collected_inside_a_scope_tells_nobody(kernel: Kernel, flow: Flow) -> None:
    """As at the end of a program that closed no engine."""
    work, _ = steps_of(flow)
    kept: list[Any] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        kept.append(ctx._replay)
        with ctx.scope("s"):
            await ctx.step(work)

    World(kernel, flow, w, strict=False).kept._replay = None
    chain = kept[0].main
    kept[0].over = kept[0].dead = True
    chain.coroutine.close()  # in this context, which is not the chain's
    assert chain.coroutine.cr_frame is None


def test_a_coroutine_that_is_run_already_is_refused(kernel: Kernel, flow: Flow) -> None:
    work, _ = steps_of(flow)

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        async def branch() -> str:
            return await ctx.step(work)

        given = branch()
        first, second = ctx.start(given), ctx.start(given)
        with pytest.raises(RuntimeError, match="the coroutine started at .* is run already"):
            await second
        return [await first]

    world = World(kernel, flow, w)
    world.done("1.1/work", "a")
    assert world.output == ["a"]


def test_a_failure_awaited_often_keeps_nothing_of_the_awaits(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[int]:
        async def branch() -> None:
            raise Expected

        handle = ctx.start(branch())
        lengths = []
        for _ in range(3):
            try:
                await handle
            except Expected as error:
                lengths.append(len(list(walk_tb(error.__traceback__))))
        return lengths

    lengths = World(kernel, flow, w).output
    assert len(set(lengths)) == 1
