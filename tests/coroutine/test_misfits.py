"""JSON of the wrong shape: refused at the door where the workflow is known, else raised where it is awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from coroutine.world import World
from perdure import AsyncContext, Flow, FlowEngine, RunNotFound, Serialization
from perdure.kernel import Kernel
from perdure.stores import MemoryEventStore
from perdure.tasks import Ack, DeadLetter, ResumeHook, handle

TOKEN = "canary-approval"


@dataclass
class Approval:
    approved: bool


def flow_of(begun: list[str] | None = None) -> Flow:
    flow = Flow()

    @flow.step
    async def pack(express: bool) -> str:
        return "express" if express else "slow"

    @flow.workflow("order")
    async def order(ctx: AsyncContext, amount: int, express: bool = False) -> str:
        if begun is not None:
            begun.append("begun")
        how = await ctx.step(pack, express)
        approval = await ctx.hook(Approval, id="approval", token=TOKEN)
        return f"{amount} {how} {approval.approved}"

    @flow.workflow("lenient")
    async def lenient(ctx: AsyncContext) -> str:
        try:
            approval = await ctx.hook(Approval, id="approval", token=TOKEN)
        except Serialization as error:
            return str(error)
        return f"{approval.approved}"

    return flow


WRONG: dict[str, Callable[[FlowEngine], Any]] = {
    "by id": lambda engine: engine.resume_hook("r", "approval", {"approved": "perhaps"}),
    "by id, for a worker": lambda engine: engine.resume_hook("r", "approval", {"approved": "perhaps"}, drive=False),
    "by token": lambda engine: engine.resume_hook_by_token(TOKEN, {"approved": "perhaps"}),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("warm", [True, False])
async def test_an_answer_of_another_type_is_refused_and_a_right_one_follows(name: str, warm: bool) -> None:
    """Before it, nothing is written: a payload, once delivered, could never be taken back."""
    store, begun = MemoryEventStore(), list[str]()
    async with FlowEngine(flow_of(begun), store) as first:
        await first.start("order", 5, run_id="r")
        async with FlowEngine(flow_of(begun), store) as second:
            engine = first if warm else second
            before = await store.history("r")
            with pytest.raises(Serialization) as refused:
                await WRONG[name](engine)
            assert str(refused.value) == (
                "payload: the payload of hook 'approval': $.approved: Expected `bool`, got `str`, decoding Approval"
            )
            assert refused.value.run_id == "r"
            assert await store.history("r") == before
            assert (await engine.resume_hook("r", "approval", {"approved": True})).output == "5 slow True"
            assert len(begun) == (1 if warm else 2), "what judged the payload is what goes on"


async def test_a_task_with_an_answer_of_another_type_is_set_aside() -> None:
    async with FlowEngine(flow_of()) as engine:
        await engine.start("order", 5, run_id="r")
        outcome = await handle(engine, ResumeHook("r", "approval", {"approved": "perhaps"}))
        assert isinstance(outcome.disposition, DeadLetter)
        assert outcome.disposition.reason.endswith("$.approved: Expected `bool`, got `str`, decoding Approval")
        outcome = await handle(engine, ResumeHook("r", "approval", {"approved": False}))
        assert (outcome.disposition, outcome.resumed_hook) == (Ack(), ("r", "approval"))


async def test_a_host_that_does_not_know_the_workflow_delivers_what_it_is_given() -> None:
    """Then the workflow meets it, and may catch it. Delivered again it changes nothing."""
    store = MemoryEventStore()
    async with FlowEngine(Flow(), store) as gate, FlowEngine(flow_of(), store) as engine:
        await engine.start("lenient", run_id="r")
        for host in (gate, engine):
            await host.resume_hook("r", "approval", {"approved": "perhaps"}, drive=False)
        assert "Expected `bool`, got `str`" in str((await engine.drive("r")).output)


async def test_a_workflow_that_fails_on_the_way_is_no_matter_of_the_answer() -> None:
    """What it raises is for a drive to tell: the answer is delivered, and the repaired code goes on with it."""
    store, repaired = MemoryEventStore(), list[bool]()
    flow = Flow()

    @flow.workflow("flawed")
    async def flawed(ctx: AsyncContext) -> bool:
        hook = ctx.hook(Approval, id="approval", token=TOKEN)
        await ctx.hook(bool, id="first", token="canary-first")
        if not repaired:
            raise KeyError("bug")
        return (await hook).approved

    async with FlowEngine(flow, store) as engine:
        await engine.start(flawed, run_id="r")
        await engine.resume_hook("r", "first", True, drive=False)
        await engine.resume_hook("r", "approval", {"approved": True}, drive=False)
        repaired.append(True)
        assert (await engine.drive("r")).output is True


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("five", "parameter 'amount' of workflow 'order': $: Expected `int`, got `str`"),
        (None, "parameter 'amount' of workflow 'order': $: Expected `int`, got `null`"),
        ({"$args": {"amount": 5, "expres": True}}, "workflow 'order' has no parameter 'expres'"),
    ],
)
async def test_an_input_of_another_type_starts_nothing(given: object, text: str) -> None:
    async with FlowEngine(flow_of()) as engine:
        for start in (engine.start, engine.submit):
            with pytest.raises(Serialization) as refused:
                await start("order", given, run_id="r")
            assert text in str(refused.value)
        with pytest.raises(RunNotFound):
            await engine.snapshot("r")


async def test_an_input_of_several_arguments() -> None:
    flow = flow_of()
    order: Any = flow.find_workflow("order", "1")
    assert order.input(5) == 5
    assert order.input(5, express=True) == {"$args": {"amount": 5, "express": True}}
    with pytest.raises(TypeError, match="workflow 'order': got an unexpected keyword argument 'expres'"):
        order.input(5, expres=True)
    async with FlowEngine(flow) as engine:
        await engine.start(order, order.input(5, express=True), run_id="r")
        assert (await engine.resume_hook("r", "approval", {"approved": True})).output == "5 express True"


def test_gather_gives_a_payload_that_does_not_fit_as_a_value(kernel: Kernel) -> None:
    flow = Flow()
    seen: list[tuple[Any, ...]] = []

    @flow.step
    def work() -> str:
        return ""

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        hook = ctx.hook(int, id="h", token="canary-h")
        seen.append(await ctx.gather(ctx.step(work), hook, ctx.step(work), return_exceptions=True))

    world = World(kernel, flow, w)
    world.done("work", 1)
    world.done("work#2", "fits")
    world.receive("h", "one")
    assert world.status == "completed"
    first, second, third = seen[-1]
    assert isinstance(first, Serialization) and "the output of step 'work'" in str(first)
    assert isinstance(second, Serialization) and "the payload of hook 'h'" in str(second)
    assert third == "fits"
