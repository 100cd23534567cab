"""Fixed bugs about hooks, their tokens, and links: 11, 13 to 16, 29, 42."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from scenarios.kit import TOKEN, World, one_workflow, stored

from perdure import (
    ChildOperationReference,
    FlowEngine,
    FlowError,
    HookConflict,
    HookTokenConflict,
    HookTokenNotFound,
    NonDeterministic,
    RunNotFound,
    RuntimeCommand,
    WorkflowContext,
)

OPENED = ["run_created", "run_started", "hook_created h"]


def one_hook(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.hook_received("h") or ctx.hook_disposed("h"):
        return ctx.complete(ctx.hook_payload("h"))
    if ctx.cancellation_request():
        return ctx.wait_for("clean-up", timedelta(hours=1))
    return ctx.create_hook("h", TOKEN)


async def test_bug_11_a_link_to_an_unknown_run(world: World) -> None:
    """Link to an unknown `flow_run_id` → `RunNotFound`, nothing appended; by command and by host call."""
    child = ChildOperationReference("c", "run", "op", flow_run_id="nobody")
    async with world.engine(one_workflow(lambda ctx: ctx.link_child_operation(child))) as engine:
        with pytest.raises(RunNotFound) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.run_id == "nobody"
        with pytest.raises(RunNotFound):
            await engine.link_child_operation("r", child)
        assert await stored(world.store, "r") == OPENED[:2]
        await engine.link_child_operation("r", ChildOperationReference("self", "run", "op", flow_run_id="r"))
    assert (await stored(world.store, "r"))[2:] == ["child_operation_linked self"]


async def test_bug_13_no_text_shows_a_token(world: World) -> None:
    """Token text absent from text and repr of every hook error and drift message."""
    token = [TOKEN]
    errors: list[FlowError] = []

    async def collect(call: Awaitable[object], kind: type[FlowError]) -> None:
        with pytest.raises(kind) as refused:
            await call
        errors.append(refused.value)

    async with world.engine(one_workflow(lambda ctx: ctx.create_hook("h", token[0]))) as engine:
        await engine.start("flow", run_id="r")
        await collect(engine.start("flow", run_id="second"), HookTokenConflict)
        await collect(engine.resume_hook_by_token(f"{TOKEN}-unknown", 1), HookTokenNotFound)
        token[0] = f"{TOKEN}-changed"
        await collect(engine.drive("r"), NonDeterministic)
        await engine.dispose_hook("r", "h", drive=False)
        await collect(engine.resume_hook("r", "h", 1), HookConflict)
        shown = [
            repr(await engine.snapshot("r")),
            repr((await engine.snapshot("r")).hooks),
            repr(await engine.history("r")),
        ]
    for text in [*map(str, errors), *map(repr, errors), *shown]:
        assert TOKEN not in text
    assert isinstance(errors[0], HookTokenConflict)
    assert errors[0].token == TOKEN


async def test_bug_14_two_engines_race_for_one_token(world: World) -> None:
    """Two engines race to create hooks with one token → exactly one `HookTokenConflict`."""
    async with world.engine(one_workflow(one_hook)) as first, world.engine(one_workflow(one_hook)) as second:
        answers = await asyncio.gather(
            first.start("flow", run_id="a"), second.start("flow", run_id="b"), return_exceptions=True
        )
        (conflict,) = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(conflict, HookTokenConflict)
        owner = "b" if answers[0] is conflict else "a"
        assert (conflict.existing_run_id, conflict.existing_hook_id) == (owner, "h")
        assert [item["run_id"] for item in await first.list_active_hooks()] == [owner]


async def test_bug_15_a_token_of_several_kib(world: World) -> None:
    """A token of several KiB works, here too."""
    token = TOKEN + "x" * 8192

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.hook_payload("h")) if ctx.hook_received("h") else ctx.create_hook("h", token)

    async with world.engine(one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        assert await engine.resume_hook_by_token(token, 1) == ("r", "h")
        assert (await engine.snapshot("r")).output == 1


FREEING: list[Callable[[FlowEngine], Awaitable[object]]] = [
    lambda engine: engine.resume_hook("a", "h", 1, drive=False),
    lambda engine: engine.dispose_hook("a", "h", drive=False),
    lambda engine: engine.request_cancellation("a"),
    lambda engine: engine.force_cancel("a"),
    lambda engine: engine.resume_hook("a", "h", 1),
]


@pytest.mark.parametrize("free", FREEING, ids=["receive", "dispose", "cancel", "forced end", "end"])
async def test_bug_16_a_token_is_free_again(world: World, free: Callable[[FlowEngine], Awaitable[object]]) -> None:
    """Token reusable after receive, dispose, cancel, and after run end."""
    async with world.engine(one_workflow(one_hook)) as engine:
        await engine.start("flow", run_id="a")
        with pytest.raises(HookTokenConflict):
            await engine.start("flow", run_id="b")
        await free(engine)
        assert (await engine.drive("b")).hooks["h"].status == "active"
        assert await engine.resume_hook_by_token(TOKEN, 2) == ("b", "h")


async def test_bug_29_redelivery_of_a_payload(world: World) -> None:
    """Same hook payload twice → Ok, one event; another payload → `HookConflict`; dispose after receive → `HookConflict`."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        hooks = [ctx.create_hook(h, f"{TOKEN}-{h}") for h in ("h", "open")]
        return ctx.complete() if ctx.hook_received("open") else ctx.schedule_all(hooks)

    async with world.engine(one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        await engine.resume_hook("r", "h", {"n": [1, None]})
        before = await world.store.history("r")
        await engine.resume_hook("r", "h", {"n": [1, None]})
        for call, reason in [
            (engine.resume_hook("r", "h", {"n": [1]}), "payload"),
            (engine.dispose_hook("r", "h"), "received"),
        ]:
            with pytest.raises(HookConflict) as refused:
                await call
            assert refused.value.args == ("r", "h", reason)
        assert await world.store.history("r") == before


async def test_bug_42_a_hook_next_to_an_open_timer(world: World) -> None:
    """Resolving a hook next to an open timer → workflow replayed once, timer kept."""
    asked: list[bool] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        asked.append(ctx.hook_received("h"))
        return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.wait_for("w", timedelta(hours=1))])

    async with world.engine(one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        snapshot = await engine.resume_hook("r", "h", 1)
    assert asked == [False, True]
    assert (snapshot.status, snapshot.waits["w"].status) == ("suspended", "waiting")
