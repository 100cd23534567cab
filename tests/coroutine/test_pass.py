"""R38: one pass; what is read is bounded by what was delivered."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from coroutine.world import World
from perdure import (
    AsyncContext,
    CancellationRequest,
    ChildOperationReference,
    Flow,
    WorkflowCancelled,
    WorkflowProgress,
    WorkflowStuck,
)
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


def test_resolutions_are_delivered_one_at_a_time_and_reads_are_bounded(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        seen: list[Any] = []
        one, two = ctx.start(work_of(flow).options(id="one")), ctx.start(work_of(flow).options(id="two"))
        refs = (("step", "one"), ("step", "two"))
        seen.append(ctx.first_resolved(*refs))
        await two
        seen.append([one.done(), two.done(), ctx.first_resolved(refs[0]), ctx.first_resolved(*refs)])
        seen.append(ctx.cancellation_request() is None)
        await one
        seen.append(one.done())
        return seen

    world = World(kernel, flow, w)
    with world.together():
        world.done("two", "")
        world.done("one", "")
    assert world.output == [None, [False, True, None, ["step", "two"]], True, True]


def test_the_command_lists_what_is_new_in_the_order_asked_then_closings(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        hook, timer = ctx.hook(str, id="h", token="canary-h"), ctx.timer(HOUR)
        ctx.record_progress(WorkflowProgress("p", 1, 2))
        ctx.link_child_operation(ChildOperationReference("c", "job", "7"))
        await ctx.step(work_of(flow))
        timer.close()
        hook.dispose()
        await ctx.gather(ctx.step(work_of(flow)), ctx.sleep(HOUR))

    world = World(kernel, flow, w)
    members = world.commands[0]["members"]
    assert [m["type"] for m in members] == ["hook", "wait_for", "record_progress", "link_child_operation", "step"]
    assert world.commands[-1]["type"] == "create_hook"  # nothing is new, so the oldest open item
    count = len(world.commands)
    world.done("work", "")
    members = world.commands[count]["members"]
    assert [m["type"] for m in members] == ["step", "wait_for", "close_wait", "dispose_hook"]


def test_nothing_open_is_stuck(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        timer = ctx.timer(HOUR)
        await timer

        async def waits_for(box: list[Any]) -> None:
            await box[0]

        box: list[Any] = []
        box.append(ctx.start(waits_for(box)))
        await box[0]

    world = World(kernel, flow, w)
    with pytest.raises(WorkflowStuck) as caught:
        world.fire("timer")
    assert len(caught.value.awaits) == 2 and "waits_for" in str(caught.value)


def test_now_is_the_largest_timestamp_up_to_the_last_delivery(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[datetime]:
        moments = [ctx.now()]
        one, two = ctx.start(work_of(flow)), ctx.start(work_of(flow))
        await one
        moments.append(ctx.now())
        await two
        moments.append(ctx.now())
        return moments

    world = World(kernel, flow, w)
    with world.together():
        world.tick(10)
        world.done("work", "")
        world.tick(-5)  # a clock that went back
        world.done("work#2", "")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    later = start + timedelta(seconds=10)
    assert world.output == [at.isoformat() for at in (start, later, later)]


def test_random_and_uuid_are_found_again_and_differ_by_chain_and_call(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> list[Any]:
        async def branch() -> list[Any]:
            await ctx.sleep(HOUR)
            return [ctx.random().random(), str(ctx.uuid())]

        own = [ctx.random().random(), ctx.random().random(), str(ctx.uuid()), str(ctx.uuid())]
        branches = await ctx.gather(branch(), branch())
        return [*own, *branches[0], *branches[1]]

    world = World(kernel, flow, w)
    world.fire("1.2/sleep")
    world.fire("1.1/sleep")
    assert len({str(item) for item in world.output}) == 8
    assert world.output[:4] == [
        0.5,
        0.5,
        "",
        "",
    ] or all(isinstance(item, float | str) for item in world.output)
    again = World(kernel, flow, w)
    again.fire("1.1/sleep")
    again.fire("1.2/sleep")
    assert again.output == world.output


def test_log_speaks_once_when_live_and_committed(kernel: Kernel, flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    lives: list[bool] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        ctx.log.info("begins with %s", 1)
        lives.append(ctx.live)
        await ctx.step(work_of(flow))
        ctx.log.warning("after")
        lives.append(ctx.live)
        await ctx.step(work_of(flow))

    with caplog.at_level(logging.INFO, "perdure.workflow"):
        world = World(kernel, flow, w, strict=False)
        assert [record.getMessage() for record in caplog.records] == ["begins with 1"]
        world.drop()
        world.done("work", "")
        assert [record.getMessage() for record in caplog.records] == ["begins with 1", "after"]
        assert lives == [True, False, True]
        record: Any = caplog.records[1]
        assert (record.run_id, record.workflow, record.levelname) == ("r", "w", "WARNING")
        assert (record.pathname, record.funcName) == (__file__, "w")
        caplog.clear()
        world.drop()
        world.kept.ask(world.spec, world.run.stage([], world.clock))
        assert caplog.records == []


def test_the_request_can_be_read_once_it_was_delivered(kernel: Kernel, flow: Flow) -> None:
    found: list[CancellationRequest | None] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        found.append(ctx.cancellation_request())
        try:
            await ctx.step(work_of(flow))
        except WorkflowCancelled:
            found.append(ctx.cancellation_request())
            raise

    world = World(kernel, flow, w, strict=False)
    world.request("enough")
    first, second = found
    assert first is None and second is not None and second.reason == "enough"


def test_inputs_come_by_their_types_or_as_they_are(kernel: Kernel, flow: Flow) -> None:
    @flow.workflow("typed")
    async def typed(ctx: AsyncContext, when: datetime, more: int = 7) -> list[Any]:
        assert isinstance(when, datetime)
        return [ctx.input, more, ctx.run_id]

    @flow.workflow("bare")
    async def bare(ctx: AsyncContext) -> Any:
        return ctx.input

    at = "2026-01-01T00:00:00Z"
    assert World(kernel, flow, typed, at).output == [at, 7, "r"]
    several = {"$args": {"when": at, "more": 1}}
    assert World(kernel, flow, typed, several).output == [several, 1, "r"]
    assert World(kernel, flow, bare, {"x": 1}).output == {"x": 1}


def test_a_command_of_a_known_step_keeps_its_arguments_small(kernel: Kernel, flow: Flow) -> None:
    """Arguments are stored by R41: one value as it is, none as null, several by name."""

    @flow.step
    def several(a: int = 1, b: int = 2) -> int:
        return a + b

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        await ctx.gather(ctx.step(several), ctx.step(several, 5), ctx.step(several, 5, b=6), ctx.step(several, b=6))
        far = flow.ref("far", returns=int)
        await ctx.gather(ctx.step(far, 1), ctx.step(far), ctx.step(far, x=1))
        with pytest.raises(TypeError, match="known only by name"):
            await ctx.step(far, 1, 2)

    world = World(kernel, flow, w)
    inputs = [member["input"] for member in world.commands[0]["members"]]
    assert inputs == [None, 5, {"$args": {"a": 5, "b": 6}}, {"$args": {"b": 6}}]
    world.play(lambda name, item: 1)
    far = [c["members"] for c in world.commands if c.get("members", [{}])[0].get("step_name") == "far"]
    assert [member["input"] for member in far[0]] == [1, None, {"$args": {"x": 1}}]
    assert orjson.loads(world.run.output or b"0") is None


def test_nothing_of_a_workflow_works_outside_its_pass(kernel: Kernel, flow: Flow) -> None:
    kept: list[Any] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        kept.extend((ctx, ctx.hook(str, id="h", token="canary-h")))
        await kept[1]

    world = World(kernel, flow, w, strict=False)
    assert world.status == "suspended"
    with pytest.raises(RuntimeError, match="only while its code runs"):
        kept[0].timer(HOUR)
    with pytest.raises(RuntimeError, match="only while its code runs"):
        kept[1].__await__().send(None)
