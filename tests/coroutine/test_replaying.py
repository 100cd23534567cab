"""Recorded runs replayed by changed code: what a deployment would meet, without a step run or an event written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import (
    AsyncContext,
    Flow,
    FlowEngine,
    NonDeterministic,
    PayloadPlace,
    Replayed,
    RetryPolicy,
    RuntimeCommand,
    Serialization,
    StepNotRegistered,
    WorkflowContext,
    WorkflowNotRegistered,
    WorkflowRaised,
    replay_history,
)
from perdure.kernel import KernelName
from perdure.stores import MemoryEventStore

RAN: list[str] = []


def shop(
    *,
    first: str = "reserve",
    output: str = "done",
    price: int = 5,
    version: str = "1",
    with_ship: bool = True,
    bug: bool = False,
) -> Flow:
    """An order in the async form, and the parts of it that a change may touch."""
    flow = Flow()

    @flow.step
    async def reserve(item: str) -> str:
        RAN.append("reserve")
        return item

    @flow.step
    async def check(item: str) -> str:
        return item

    async def ship(price: int) -> None:
        RAN.append("ship")

    if with_ship:
        flow.step(ship)

    @flow.workflow("order", version=version)
    async def order(ctx: AsyncContext, item: str) -> str:
        await ctx.step(reserve if first == "reserve" else check, item)
        await ctx.hook(bool, id="paid", token="canary-paid")
        if bug:
            raise KeyError("item")
        await ctx.step(flow.ref("ship"), price)
        await ctx.hook(bool, id="arrived", token="canary-arrived")
        return output

    return flow


def commands(*, price: int = 5, output: str = "done", retry: RetryPolicy | None = None) -> Flow:
    """The same in the command form."""
    flow = Flow()

    @flow.step
    def ship(price: int) -> None:
        RAN.append("ship")

    @flow.workflow("order", version="1")
    def order(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.hook_received("paid"):
            return ctx.create_hook("paid", token="canary-paid")
        if not ctx.step_completed("ship"):
            return ctx.schedule_step("ship", ship, price, retry=retry)
        if not ctx.hook_received("arrived"):
            return ctx.create_hook("arrived", token="canary-arrived")
        return ctx.complete(output)

    return flow


async def recorded(flow: Flow, *answers: str, codec: Any = None) -> bytes:
    """The history of an order after these hooks were answered."""
    store = MemoryEventStore()
    async with FlowEngine(flow, store, codec=codec) as engine:
        await engine.start("order", "tea", run_id="r")
        for hook_id in answers:
            await engine.resume_hook("r", hook_id, True)
    RAN.clear()
    return await store.history("r")


async def answered(flow: Flow) -> bytes:
    """The history of an order whose worker has not seen yet that it is paid."""
    store = MemoryEventStore()
    async with FlowEngine(flow, store) as engine:
        await engine.start("order", "tea", run_id="r")
        await engine.resume_hook("r", "paid", True, drive=False)
    return await store.history("r")


def until(history: bytes, event: str) -> bytes:
    """The history up to the last event of this type, as a process leaves it that is killed then."""
    lines = history.split(b"\n")[:-1]
    (*_, last) = [number for number, line in enumerate(lines) if f'"type":"{event}"'.encode() in line]
    return b"".join(line + b"\n" for line in lines[: last + 1])


both = pytest.mark.parametrize("kernel", ["rust", "pure"])
forms = pytest.mark.parametrize("form", [shop, commands])


@both
@forms
async def test_code_that_fits(kernel: KernelName, form: Callable[..., Flow]) -> None:
    """Open and ended runs alike, and no step is run."""
    for answers in ((), ("paid",), ("paid", "arrived")):
        history = await recorded(form(), *answers)
        events, ended = history.count(b"\n"), len(answers) == 2
        assert replay_history(form(), history, kernel=kernel) == Replayed("r", "order", "1", events - ended, ended)
    assert RAN == []


@both
@forms
async def test_changed_work(kernel: KernelName, form: Callable[..., Flow]) -> None:
    """The command form does not ask again for what it has, so there only open work can differ."""
    whole = await recorded(form(), "paid", "arrived")
    for history in (until(whole, "step_started"), *([whole] if form is shop else [])):
        with pytest.raises(NonDeterministic) as drift:
            replay_history(form(price=6), history, kernel=kernel)
        assert (drift.value.kind, drift.value.id, drift.value.part) == ("step", "ship", "input")
        assert (drift.value.recorded, drift.value.now) == ("5", "6")


async def test_work_that_is_asked_for_in_another_place() -> None:
    with pytest.raises(NonDeterministic) as drift:
        replay_history(shop(first="check"), await recorded(shop(), "paid"))
    assert (drift.value.id, drift.value.part) == ("reserve", "place")


async def test_a_policy_that_changed() -> None:
    with pytest.raises(NonDeterministic, match=r"another retry than .*(\n.*)+step\.options\(retry=\.\.\.\)"):
        replay_history(commands(retry=RetryPolicy(9)), until(await recorded(commands(), "paid"), "step_started"))


@both
@forms
async def test_another_end(kernel: KernelName, form: Callable[..., Flow]) -> None:
    """A run that is open does not show it."""
    changed = form(output="delivered")
    replay_history(changed, await recorded(form(), "paid"), kernel=kernel)
    with pytest.raises(NonDeterministic) as drift:
        replay_history(changed, await recorded(form(), "paid", "arrived"), kernel=kernel)
    assert (drift.value.kind, drift.value.id, drift.value.part) == ("workflow", "order", "end")
    assert drift.value.path == "$.output"
    assert "workflow 'order' came back with another end than event 13 recorded" in str(drift.value) or form is commands


@both
async def test_a_run_that_would_go_on(kernel: KernelName) -> None:
    """Where one more thing is asked for before the end."""
    flow = Flow()

    @flow.workflow("order")
    async def order(ctx: AsyncContext, item: str) -> str:
        return item

    longer = Flow()

    @longer.workflow("order")
    async def longer_order(ctx: AsyncContext, item: str) -> str:
        await ctx.hook(bool, id="paid", token="canary-paid")
        return item

    with pytest.raises(NonDeterministic) as drift:
        replay_history(longer, await recorded(flow), kernel=kernel)
    assert (drift.value.part, drift.value.now) == ("end", '"goes on"')
    with pytest.raises(NonDeterministic) as drift:
        replay_history(flow, await recorded(longer), kernel=kernel)
    assert (drift.value.id, drift.value.part) == ("paid", "place")


async def test_code_that_is_missing_or_raises() -> None:
    history = await recorded(shop())
    with pytest.raises(WorkflowNotRegistered):
        replay_history(shop(version="2"), history)
    with pytest.raises(WorkflowRaised, match="KeyError"):
        replay_history(shop(bug=True), await answered(shop()))


@both
async def test_a_step_that_is_missing_is_missed_where_it_would_be_run(kernel: KernelName) -> None:
    history = await answered(shop())
    assert replay_history(shop(), history, kernel=kernel).events == 7
    with pytest.raises(StepNotRegistered) as missing:
        replay_history(shop(with_ship=False), history, kernel=kernel)
    assert missing.value.step_name == "ship"


@both
@pytest.mark.parametrize(
    "end", ["force_cancel", "terminate_for_host_shutdown", "request_cancellation", "nothing begun"]
)
async def test_an_end_from_outside_says_nothing_of_the_code(kernel: KernelName, end: str) -> None:
    store = MemoryEventStore()
    async with FlowEngine(shop(), store) as engine:
        if end == "nothing begun":
            await engine.submit("order", "tea", run_id="r")
            await engine.force_cancel("r", "changed my mind")
        else:
            await engine.start("order", "tea", run_id="r")
            await getattr(engine, end)("r", "over")
        assert (await engine.snapshot("r")).terminal
    assert replay_history(shop(), await store.history("r"), kernel=kernel).ended


@both
async def test_a_failure_that_ended_the_run(kernel: KernelName) -> None:
    """In the command form a step that failed for good ends the run, and the workflow is not asked about it."""

    def failing(step_id: str = "s") -> Flow:
        flow = Flow()

        @flow.step(retry=RetryPolicy.none())
        def work() -> None:
            raise ValueError("no")

        @flow.workflow("order", version="1")
        def order(ctx: WorkflowContext) -> RuntimeCommand:
            return ctx.complete() if ctx.step_completed(step_id) else ctx.schedule_step("s", work)

        return flow

    history = await recorded(failing())
    replayed = replay_history(failing(), history, kernel=kernel)
    assert replayed.ended and replayed.events < history.count(b"\n") - 1


class Reversed:
    """A codec whose stored form no comparison of bytes would do with."""

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        return b'"' + payload.hex().encode() + b'"'

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        return bytes.fromhex(stored.decode().strip('"'))


async def test_payloads_in_a_codec() -> None:
    codec = Reversed()
    history = await recorded(shop(), "paid", "arrived", codec=codec)
    assert replay_history(shop(), history, codec=codec).ended
    with pytest.raises(NonDeterministic) as drift:
        replay_history(shop(output="delivered"), history, codec=codec)
    assert drift.value.recorded == '{"type":"run_completed","output":"done"}'


@pytest.mark.parametrize("history", [b"", b"\n", b"no history\n"])
def test_lines_that_are_no_history(history: bytes) -> None:
    with pytest.raises(Serialization):
        replay_history(shop(), history)
