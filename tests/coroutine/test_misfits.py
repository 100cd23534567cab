"""JSON of the wrong shape: refused at the door where the workflow is known, else raised where it is awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from coroutine.world import World
from perdure import (
    AsyncContext,
    Flow,
    FlowEngine,
    RunConflict,
    RunNotFound,
    RuntimeBuildCompatibility,
    RuntimeBuildUnavailable,
    Serialization,
    WorkflowRaised,
    WorkflowSpec,
)
from perdure.kernel import Kernel
from perdure.stores import MemoryEventStore
from perdure.tasks import Ack, DeadLetter, Nack, ResumeHook, handle

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
            assert len(begun) == (1 if warm else 4), "a coroutine that is kept is only looked at"


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


async def test_who_judges_an_answer_keeps_no_decision_of_it() -> None:
    """What code asks for on the way is committed by whoever drives, with tokens of its own."""
    flow, store = Flow(), MemoryEventStore()

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> int:
        async def first() -> int:
            await ctx.hook(int, id="a")
            return await ctx.hook(int, id="c")

        other = ctx.start(first())
        return await ctx.hook(int, id="b") + await other

    async with FlowEngine(flow, store) as gate, FlowEngine(flow, store) as worker:
        await worker.start(w, run_id="r")
        await gate.resume_hook("r", "a", 1, drive=False)
        await gate.resume_hook("r", "b", 2, drive=False)
        await worker.drive("r")
        assert (await gate.drive("r")).status == "suspended"
        with pytest.raises(Serialization):
            await gate.resume_hook("r", "c", "three")
        assert (await gate.resume_hook("r", "c", 3)).output == 5


async def test_lines_of_a_log_are_not_said_by_who_only_judges(caplog: pytest.LogCaptureFixture) -> None:
    flow, store = Flow(), MemoryEventStore()

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        for hook_id, hook in [(hook_id, ctx.hook(int, id=hook_id)) for hook_id in ("a", "b", "c")]:
            await hook
            ctx.log.info("got %s", hook_id)

    with caplog.at_level("INFO", "perdure.workflow"):
        async with FlowEngine(flow, store) as gate, FlowEngine(flow, store) as worker:
            await worker.start(w, run_id="r")
            for hook_id in ("a", "b", "c"):
                await gate.resume_hook("r", hook_id, 1, drive=False)
                await worker.drive("r")
    lines = [record.getMessage() for record in caplog.records if record.name == "perdure.workflow"]
    assert lines == ["got a", "got b", "got c"]


async def test_code_of_another_build_judges_nothing() -> None:
    """Its types are no matter of the run's: it is refused as ever."""

    def pinned(kind: Any) -> Flow:
        flow = Flow()

        async def w(ctx: AsyncContext, amount: Any) -> Any:
            return await ctx.hook(kind, id="h")

        w.__annotations__["amount"] = kind
        flow.workflow("w")(w)
        return flow

    store = MemoryEventStore()
    one, two = RuntimeBuildCompatibility("one"), RuntimeBuildCompatibility("two")
    async with (
        FlowEngine(pinned(int), store, builds=one) as first,
        FlowEngine(pinned(str), store, builds=two) as second,
    ):
        await first.start("w", 1, run_id="r")
        outcome = await handle(second, ResumeHook("r", "h", 5))
        assert outcome.disposition == Nack("runtime_build_unavailable", counted=False)
        with pytest.raises(RuntimeBuildUnavailable):
            await second.resume_hook("r", "h", 5)
        with pytest.raises(RuntimeBuildUnavailable):
            await second.start(WorkflowSpec.python("w", "1", "one"), 1, run_id="other")
        assert (await first.resume_hook("r", "h", 5)).output == 5


async def test_a_start_that_was_made_before_is_judged_by_what_is_recorded() -> None:
    def typed(kind: Any) -> Flow:
        flow = Flow()

        async def w(ctx: AsyncContext, amount: Any) -> None: ...

        w.__annotations__["amount"] = kind
        flow.workflow("w")(w)
        return flow

    store = MemoryEventStore()
    async with FlowEngine(typed(int), store) as before, FlowEngine(typed(str), store) as after:
        await before.start("w", 1, run_id="r")
        assert await after.start("w", 1, run_id="r") == "r"
        with pytest.raises(RunConflict):
            await after.start("w", 2, run_id="r")


class Odd(pydantic.BaseModel):
    amount: int

    @pydantic.field_validator("amount")
    @classmethod
    def never(cls, value: int) -> int:
        raise RuntimeError("a bug in the validator")


async def test_what_a_validator_raises_is_for_a_drive_to_tell() -> None:
    flow = Flow()

    @flow.workflow("w")
    async def w(ctx: AsyncContext, odd: Odd | None = None) -> None:
        await ctx.hook(Odd, id="h")

    async with FlowEngine(flow) as engine:
        await engine.submit("w", {"amount": 1}, run_id="input")
        with pytest.raises(WorkflowRaised, match="a bug in the validator"):
            await engine.drive("input")
        await engine.start("w", run_id="r")
        outcome = await handle(engine, ResumeHook("r", "h", {"amount": 1}))
        assert (type(outcome.error), outcome.disposition) == (WorkflowRaised, Ack())


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
