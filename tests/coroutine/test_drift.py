"""R37: replay walks the history, and says what changed with the line that waits."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import orjson
import pytest

from coroutine.world import World
from perdure import AsyncContext, Flow, NonDeterministic, RetryPolicy
from perdure.kernel import Kernel

HOUR = timedelta(hours=1)


def of(body: Any) -> tuple[Flow, Any]:
    flow = Flow(guard="off")

    @flow.step
    def work(item: Any = None, more: int = 0) -> Any:
        return item

    @flow.step
    def other(item: Any = None) -> Any:
        return item

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> Any:
        return await body(ctx, work, other)

    return flow, w


async def recorded(ctx: AsyncContext, work: Any, other: Any) -> None:
    hook = ctx.hook(str, id="h", token="canary-h", metadata={"a": 1})
    await ctx.step(work, {"x": 1, "y": 2})
    await ctx.sleep(HOUR)
    await ctx.sleep_until("2027-01-01T00:00:00Z", id="date")
    await ctx.gather(ctx.step(other, 1), hook)


def history(kernel: Kernel) -> World:
    flow, w = of(recorded)
    world = World(kernel, flow, w)
    world.done("work")
    world.fire("sleep")
    world.fire("date")
    assert world.opened() == ["hook h", "step work", "wait sleep", "wait date", "step other"]
    return world


def replayed(kernel: Kernel, log: bytes, body: Any) -> World:
    flow, w = of(body)
    return World(kernel, flow, w, log=log, ask=False)


def variant(**changed: Any) -> Any:
    async def body(ctx: AsyncContext, work: Any, other: Any) -> None:
        hook = ctx.hook(str, id="h", token=changed.get("token", "canary-h"), metadata=changed.get("metadata", {"a": 1}))
        await ctx.step(changed.get("step", work), changed.get("input", {"x": 1, "y": 2}))
        await ctx.sleep(changed.get("delay", HOUR))
        await ctx.sleep_until(changed.get("until", "2027-01-01T00:00:00Z"), id="date")
        await ctx.gather(ctx.step(other, 1), hook)

    return body


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"input": {"y": 2, "x": 1}},  # equal JSON in another order of keys
        {"delay": 2 * HOUR},  # a relative wait is compared by kind only
        {"until": "2027-01-01T01:00:00+01:00"},
    ],
)
def test_equal_definitions_are_no_drift(kernel: Kernel, same: dict[str, Any]) -> None:
    world = replayed(kernel, history(kernel).log, variant(**same))
    world.ask()
    assert world.status == "suspended"


@pytest.mark.parametrize(
    ("changed", "kind", "part"),
    [
        ({"input": {"x": 1, "y": 3}}, "step", "input"),
        ({"metadata": {"a": 2}}, "hook", "metadata"),
        ({"token": "canary-other"}, "hook", "token"),
        ({"until": "2027-01-02T00:00:00Z"}, "wait", "resume_at"),
    ],
)
def test_another_definition_names_the_part(kernel: Kernel, changed: dict[str, Any], kind: str, part: str) -> None:
    error = replayed(kernel, history(kernel).log, variant(**changed)).refuses(NonDeterministic)
    assert (error.kind, error.part, error.run_id) == (kind, part, "r")
    assert error.sequence > 2
    assert "canary" not in str(error)
    if part == "input":
        assert error.path == "$.y" and orjson.loads(error.recorded) == {"x": 1, "y": 2}


def test_another_policy_is_drift(kernel: Kernel) -> None:
    async def before(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.step(work.options(retry=RetryPolicy.fixed(2)), 1)

    async def after(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.step(work.options(retry=RetryPolicy.fixed(3)), 1)

    flow, w = of(before)
    error = replayed(kernel, World(kernel, flow, w).log, after).refuses(NonDeterministic)
    assert (error.kind, error.id, error.part) == ("step", "work", "retry")


def test_recorded_work_that_was_not_asked_for_names_what_is_awaited_where(kernel: Kernel) -> None:
    async def swapped(ctx: AsyncContext, work: Any, other: Any) -> None:
        ctx.hook(str, id="h", token="canary-h", metadata={"a": 1})

        async def beside() -> None:
            await ctx.sleep(HOUR, id="beside")

        ctx.start(beside())
        await ctx.step(other, 1)

    error = replayed(kernel, history(kernel).log, swapped).refuses(NonDeterministic)
    assert (error.kind, error.id, error.part) == ("step", "work", "place")
    first, second = orjson.loads(error.now)
    line = swapped.__code__.co_firstlineno
    assert first == f"step 'other' at {__file__}:{line + 7} in swapped"
    assert second == f"wait 'beside' at {__file__}:{line + 4} in beside"
    assert orjson.loads(error.recorded)["step_name"] == "work"
    assert first in str(error)


def test_code_that_returned_or_raised_earlier_says_so(kernel: Kernel) -> None:
    async def returns(ctx: AsyncContext, work: Any, other: Any) -> None:
        ctx.hook(str, id="h", token="canary-h", metadata={"a": 1})
        await ctx.step(work, {"x": 1, "y": 2})

    async def raises(ctx: AsyncContext, work: Any, other: Any) -> None:
        await returns(ctx, work, other)
        raise KeyError("new fault")

    error = replayed(kernel, history(kernel).log, returns).refuses(NonDeterministic)
    line = returns.__code__.co_firstlineno
    assert (error.id, orjson.loads(error.now)) == (
        "sleep",
        [f"returned, last await at {__file__}:{line + 2} in returns"],
    )
    error = replayed(kernel, history(kernel).log, raises).refuses(NonDeterministic)
    line = raises.__code__.co_firstlineno
    assert orjson.loads(error.now) == [f"raised KeyError at {__file__}:{line + 2} in raises"]
    assert isinstance(error.__cause__, KeyError)


def test_drift_cannot_be_caught(kernel: Kernel) -> None:
    async def catches(ctx: AsyncContext, work: Any, other: Any) -> None:
        ctx.hook(str, id="h", token="canary-h", metadata={"a": 1})
        for _ in range(3):
            with suppress(BaseException):
                await ctx.step(work, "another")

    assert replayed(kernel, history(kernel).log, catches).refuses(NonDeterministic).part == "input"


def test_an_added_optional_argument_is_no_drift(kernel: Kernel) -> None:
    async def before(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.step(other, "x")
        await ctx.step(work, "x")

    async def after(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.step(other, item="x")
        await ctx.step(work, item="x")

    flow, w = of(before)
    world = World(kernel, flow, w)
    world.done("other")
    again = replayed(kernel, world.log, after)
    again.ask()
    assert again.open() == ["step work"]


def test_requests_without_a_record_are_new_work(kernel: Kernel) -> None:
    async def more(ctx: AsyncContext, work: Any, other: Any) -> None:
        await recorded(ctx, work, other)
        await ctx.step(other, "new")

    world = replayed(kernel, history(kernel).log, more)
    world.ask()
    world.done("other", 1)
    world.receive("h", "x")
    assert world.open() == ["step other#2"]


def test_changing_what_runs_side_by_side_is_drift_where_the_order_changes(kernel: Kernel) -> None:
    async def in_row(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.step(work, 1)
        await ctx.step(other, 2)

    async def beside(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.gather(ctx.step(work, 1), ctx.step(other, 2))

    flow, w = of(beside)
    assert replayed(kernel, World(kernel, flow, w).log, in_row).refuses(NonDeterministic).id == "other"
    flow, w = of(in_row)
    world = World(kernel, flow, w)
    world.done("work")
    again = replayed(kernel, world.log, beside)
    again.ask()  # asked for earlier than it was recorded: by then it was asked for
    assert again.open() == ["step other"]


def test_a_progress_record_that_changed_is_drift(kernel: Kernel) -> None:
    from perdure import WorkflowProgress

    def recording(total: int) -> Any:
        async def body(ctx: AsyncContext, work: Any, other: Any) -> None:
            ctx.record_progress(WorkflowProgress("p", 1, total))
            await ctx.step(work)

        return body

    flow, w = of(recording(2))
    world = World(kernel, flow, w)
    error = replayed(kernel, world.log, recording(3)).refuses(NonDeterministic)
    assert (error.kind, error.id) == ("progress", "p")
    again = replayed(kernel, world.log, recording(2))
    again.ask()
    assert again.story == world.story


def test_strict_replay_tells_code_that_is_not_repeatable(kernel: Kernel) -> None:
    box: list[int] = []

    async def counts(ctx: AsyncContext, work: Any, other: Any) -> None:
        await ctx.step(work)
        box.append(1)
        await ctx.step(work, len(box))

    flow, w = of(counts)
    world = World(kernel, flow, w)
    with pytest.raises(NonDeterministic) as caught:
        world.done("work")
    assert (caught.value.kind, caught.value.part) == ("workflow", "command")
    assert caught.value.path == "$.members[0].input"
