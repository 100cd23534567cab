"""R35: what opens when, how it is called, what is said of what was never awaited."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pytest

from coroutine.world import World
from perdure import AsyncContext, DuplicateId, Flow, WorkflowStuck
from perdure.kernel import Kernel

flow = Flow(guard="off")
HOUR = timedelta(hours=1)


@flow.step
def charge(amount: int) -> int:
    return amount


@flow.step
def ship(item: str = "book") -> str:
    return item


@flow.workflow("opening")
async def opening(ctx: AsyncContext) -> None:
    later = ctx.step(charge, 1)
    nap = ctx.sleep(HOUR)
    group = ctx.gather(ctx.step(ship))
    ctx.timer(HOUR)
    ctx.hook(int, token="canary-opening")
    started = ctx.start(charge, 2)
    await group
    await nap
    await later
    await started


def test_what_is_called_opens_and_what_is_awaited_opens_then(kernel: Kernel) -> None:
    world = World(kernel, flow, opening)
    assert world.opened() == ["wait timer", "hook hook", "step charge", "step ship"]
    world.done("ship", "book")
    assert world.opened()[4:] == ["wait sleep"]
    world.fire("sleep")
    assert world.opened()[5:] == ["step charge#2"]
    world.done("charge#2", 1)
    world.done("charge", 2)
    assert world.status == "completed"


@flow.workflow("names")
async def names(ctx: AsyncContext) -> list[str]:
    async def branch(item: str) -> str:
        await ctx.step(ship, item)
        inner = await ctx.gather(leaf(item), ctx.step(ship, item))
        await ctx.step(ship, item)
        return inner[0]

    async def leaf(item: str) -> str:
        await ctx.sleep(HOUR)
        return await ctx.step(ship, item)

    await ctx.step(ship, "a")
    first = await ctx.gather(branch("b"), branch("c"))
    with ctx.scope("order-7"):
        await ctx.step(ship, "d")
        await ctx.step(ship.options(id="own"), "e")
        await ctx.gather(leaf("f"))
    alone = ctx.start(leaf("g"))
    await ctx.step(ship, "h")
    await alone
    return list(first)


NAMES = [
    "step ship",
    "step 1.1/ship",
    "step 1.2/ship",
    "step 1.1/ship#2",
    "wait 1.1/1.1/sleep",
    "step 1.2/ship#2",
    "wait 1.2/1.1/sleep",
    "step 1.1/1.1/ship",
    "step 1.2/1.1/ship",
    "step 1.1/ship#3",
    "step 1.2/ship#3",
    "step order-7/ship",
    "step order-7/own",
    "wait order-7/2.1/sleep",
    "step order-7/2.1/ship",
    "step ship#2",
    "wait 3.1/sleep",
    "step 3.1/ship",
]


def test_ids_come_from_name_and_place_and_not_from_arrival(kernel: Kernel) -> None:
    from random import Random

    plain = World(kernel, flow, names)
    plain.play(lambda name, item: item)
    assert sorted(plain.opened()) == sorted(NAMES)
    assert (plain.status, plain.output) == ("completed", ["b", "c"])
    for seed in range(10):
        world = World(kernel, flow, names)
        world.play(lambda name, item: item, Random(seed))
        assert sorted(world.opened()) == sorted(NAMES)


@flow.workflow("twice")
async def twice(ctx: AsyncContext, caught: bool) -> None:
    await ctx.step(charge.options(id="pay"), 1)
    try:
        await ctx.step(charge.options(id="pay"), 1)
    except Exception:
        if not caught:
            raise
        await ctx.step(ship)


@flow.workflow("loop")
async def loop(ctx: AsyncContext) -> None:
    for item in range(3):
        ctx.hook(int, id="answer", token=f"canary-{item}")


@pytest.mark.parametrize("caught", [False, True])
def test_an_id_used_twice_names_both_places_even_if_caught(kernel: Kernel, caught: bool) -> None:
    world = World(kernel, flow, twice, caught)
    world._waiting = True
    world.done("pay", 1)
    error = world.refuses(DuplicateId)
    assert (error.kind, error.id) == ("step", "pay")
    assert error.first != error.second and __file__ in error.first and "in twice" in error.second
    assert error.first in str(error) and error.second in str(error)


def test_an_id_used_twice_at_one_place_shows_how_a_loop_gets_its_own(kernel: Kernel) -> None:
    with pytest.raises(DuplicateId) as caught:
        World(kernel, flow, loop)
    assert caught.value.first == caught.value.second
    assert 'id=f"answer-{item}"' in str(caught.value)


def test_a_kind_has_its_own_ids(kernel: Kernel) -> None:
    mixed = Flow(guard="off")

    @mixed.workflow("mixed")
    async def kinds(ctx: AsyncContext) -> None:
        ctx.hook(int, id="x", token="canary-x")
        ctx.timer(HOUR, id="x")
        await ctx.step(charge.options(id="x"), 1)

    mixed._steps.update(flow._steps)
    assert World(kernel, mixed, kinds).opened() == ["hook x", "wait x", "step x"]


@flow.workflow("careless")
async def careless(ctx: AsyncContext) -> str:
    ctx.step(charge, 1)
    ctx.sleep(HOUR)  # type: ignore[unused-coroutine]  # what the test is about
    ctx.gather(ctx.step(ship))  # type: ignore[unused-coroutine]
    bad = ctx.start(charge.options(id="bad"), 1)
    good = ctx.start(charge.options(id="good"), 1)
    await ctx.step(charge.options(id="end"), 1)
    del bad, good
    return "done"


def told(world: World, act: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    assert all(item.filename == __file__ for item in caught)
    return [f"{item.lineno - careless.function.__code__.co_firstlineno}: {item.message}" for item in caught]


def test_what_was_never_awaited_is_told_with_its_line_when_the_workflow_returns(kernel: Kernel) -> None:
    world = World(kernel, flow, careless)
    assert told(world, lambda: world.done("good", 1)) == []
    assert told(world, lambda: world.fail("bad")) == []
    lines = told(world, lambda: world.done("end", 1))
    assert world.output == "done"
    assert [line.split(" ")[:2] for line in lines] == [
        ["2:", "ctx.step(…)"],
        ["3:", "ctx.sleep(…)"],
        ["4:", "ctx.gather(…)"],
        ["4:", "ctx.step(…)"],
        ["5:", "step"],
    ] or [line.split(" ")[:2] for line in lines] == [
        ["2:", "ctx.step(…)"],
        ["3:", "ctx.sleep(…)"],
        ["4:", "ctx.step(…)"],
        ["4:", "ctx.gather(…)"],
        ["5:", "step"],
    ]
    assert "failed and was never awaited" in lines[-1]


def test_a_token_is_drawn_once_and_recorded(kernel: Kernel) -> None:
    one = Flow(guard="off")

    @one.step
    def mail(text: str) -> None: ...

    @one.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        hook = ctx.hook(str)
        await ctx.step(mail, hook.token)
        return await hook

    world = World(kernel, one, w)
    record = world.run.hook("hook")
    assert record is not None and len(record.token) == 43
    world.drop()
    world.done("mail")
    world.receive("hook", "yes")
    assert world.output == "yes"
    assert "token" not in repr(record.token[:0]) and record.token not in repr(world.kept)


def test_awaiting_twice_gives_the_value_twice_and_no_shared_state(kernel: Kernel) -> None:
    one = Flow(guard="off")

    @one.step
    def items() -> list[int]:
        return []

    @one.workflow("w")
    async def w(ctx: AsyncContext) -> list[int]:
        call = ctx.step(items)
        first = await call
        first.append(9)
        return [*(await call), *call.result(), int(call.done())]

    world = World(kernel, one, w)
    world.done("items", [1])
    assert world.output == [1, 1, 1]


def test_result_before_its_time_is_an_error_of_the_code(kernel: Kernel) -> None:
    one = Flow(guard="off")

    @one.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        with pytest.raises(RuntimeError, match="not resolved yet"):
            ctx.hook(int, id="h", token="canary-h").result()

    assert World(kernel, one, w).status == "completed"


def test_waiting_for_nothing_is_stuck_and_names_every_await(kernel: Kernel) -> None:
    one = Flow(guard="off")

    @one.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        async def inner() -> None:
            await box[0]

        box: list[Any] = []
        box.append(ctx.start(inner()))
        await ctx.gather(box[0])

    with pytest.raises(WorkflowStuck) as caught:
        World(kernel, one, w)
    assert len(caught.value.awaits) == 2
    assert all(__file__ in line for line in caught.value.awaits)
