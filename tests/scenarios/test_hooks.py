"""Scenarios 40 to 45: hooks by id and by token, their redelivery, and their tokens (spec 06 §6.3), in both shells."""

from __future__ import annotations

import asyncio
import threading

import pytest

from perdure import (
    Flow,
    HookCallbackRoute,
    HookConflict,
    HookMetadata,
    HookTokenConflict,
    HookTokenNotFound,
    InvalidTransition,
    RunNotFound,
    RunTerminal,
    RuntimeCommand,
    WorkflowContext,
)
from scenarios.kit import TOKEN, World, one_workflow, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

OPENED = ["run_created", "run_started", "hook_created h"]


def approval(ctx: WorkflowContext) -> RuntimeCommand:
    """Ends with the payload, or without one if the hook was disposed."""
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    if ctx.hook_disposed("h"):
        return ctx.complete("nobody answered")
    return ctx.create_hook("h", TOKEN, HookMetadata.human_approval("refund"))


def two_hooks(ctx: WorkflowContext) -> RuntimeCommand:
    """Goes on only when both hooks have a payload, so the run stays open after the first."""
    if ctx.hook_received("h") and ctx.hook_received("other"):
        return ctx.complete([ctx.hook_payload("h"), ctx.hook_payload("other")])
    return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.create_hook("other", f"{TOKEN}-other")])


async def test_40_active_hooks_are_listed_with_their_metadata(world: World, open_engine: OpenEngine) -> None:
    """Hook created active, listed with metadata; force-cancelled run's hook not listed although its snapshot says
    active."""
    metadata = HookMetadata(
        kind="deploy", subject="web", callback=HookCallbackRoute("/hooks/{token}"), labels={"env": "prod"}
    )

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.run_id == "b":
            return approval(ctx)
        return ctx.create_hook("h", f"{TOKEN}-a", metadata)

    async with open_engine(world, one_workflow(ask)) as engine:
        for run_id in "ab":
            snapshot = await engine.run("flow", run_id=run_id)
            assert (snapshot.status, snapshot.hooks["h"].status) == ("suspended", "active")
        listed = await engine.list_active_hooks()
        assert [(item["run_id"], item["hook"]["hook_id"], item["hook"]["status"]) for item in listed] == [
            ("a", "h", "active"),
            ("b", "h", "active"),
        ]
        assert listed[0]["hook"]["token"] == f"{TOKEN}-a"
        assert listed[0]["hook"]["metadata"] == {
            "kind": "deploy",
            "subject": "web",
            "callback": {"method": "POST", "path": "/hooks/{token}"},
            "labels": {"env": "prod"},
        }
        assert listed[1]["hook"]["metadata"] == {"kind": "human_approval", "subject": "refund"}
        assert (await engine.force_cancel("a")).hooks["h"].status == "active"
        assert [item["run_id"] for item in await engine.list_active_hooks()] == ["b"]
        assert (await engine.run_summary()).active_hooks == 1


async def test_41_resume_and_dispose_by_token(world: World, open_engine: OpenEngine) -> None:
    """By-token resume and dispose; unknown token; late callback → `HookTokenNotFound`."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.hook_received("h") or ctx.hook_disposed("h"):
            return ctx.complete(ctx.hook_payload("h"))
        return ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}")

    async with open_engine(world, one_workflow(ask)) as engine:
        for run_id in ("told", "dropped"):
            await engine.start("flow", run_id=run_id)
        assert await engine.resume_hook_by_token(f"{TOKEN}-told", {"by": "ada"}) == ("told", "h")
        assert await engine.dispose_hook_by_token(f"{TOKEN}-dropped") == ("dropped", "h")
        assert (await engine.snapshot("told")).output == {"by": "ada"}
        assert (await engine.snapshot("dropped")).output is None
        for token in (f"{TOKEN}-told", f"{TOKEN}-dropped", f"{TOKEN}-never"):
            for call in (engine.resume_hook_by_token(token, {"by": "ada"}), engine.dispose_hook_by_token(token)):
                with pytest.raises(HookTokenNotFound) as refused:
                    await call
                assert refused.value.token == token
                assert TOKEN not in f"{refused.value} {refused.value!r}"
        with pytest.raises(InvalidTransition) as blank:
            await engine.resume_hook_by_token("\u2003 ", None)
        assert blank.value.rule == "blank_token"
    assert await stored(world.store, "told") == [*OPENED, "hook_received h", "run_completed"]
    assert await stored(world.store, "dropped") == [*OPENED, "hook_disposed h", "run_completed"]


async def test_42_a_token_belongs_to_one_run(world: World, open_engine: OpenEngine) -> None:
    """Duplicate token in two runs → conflict naming the owner; succeeds after the owner finishes."""
    async with open_engine(world, one_workflow(approval)) as engine:
        await engine.start("flow", run_id="owner")
        with pytest.raises(HookTokenConflict) as refused:
            await engine.start("flow", run_id="second")
        error = refused.value
        assert (error.existing_run_id, error.existing_hook_id, error.run_id) == ("owner", "h", "second")
        assert error.token == TOKEN
        assert TOKEN not in f"{error} {error!r}"
        assert await stored(world.store, "second") == OPENED[:2]
        await engine.resume_hook("owner", "h", 1)
        assert (await engine.drive("second")).hooks["h"].status == "active"


async def test_42_inside_one_run(world: World, open_engine: OpenEngine) -> None:
    """The same token twice in one run conflicts too; an equal hook already recorded is replay, not conflict."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.create_hook("again", TOKEN)])

    async with open_engine(world, one_workflow(ask)) as engine:
        with pytest.raises(HookTokenConflict) as refused:
            await engine.start("flow", run_id="r")
        assert (refused.value.existing_run_id, refused.value.existing_hook_id) == ("r", "h")
        assert await stored(world.store, "r") == OPENED[:2]
    async with open_engine(world, one_workflow(approval)) as engine:
        assert (await engine.drive("r")).status == "suspended"
        assert (await engine.drive("r")).status == "suspended"
    assert await stored(world.store, "r") == OPENED


class Meeting:
    """A store whose reads meet: each of the first `parties` searches for a token waits until all have searched."""

    def __init__(self, inner: object, parties: int) -> None:
        self._inner = inner
        self._left = parties
        self._all = asyncio.Event()

    async def find_active_hooks(self, token_hash: bytes) -> list[object]:
        found: list[object] = await self._inner.find_active_hooks(token_hash)  # type: ignore[attr-defined]  # any store
        self._left -= 1
        if self._left <= 0:
            self._all.set()
        await self._all.wait()
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


async def race(open_engine: OpenEngine, world: World, token_payloads: list[object]) -> list[object]:
    """Resumes by token that have all found the hook before the first of them appends, with what came of each."""
    meeting = World(world.kernel, Meeting(world.store, len(token_payloads)), world.clock)  # type: ignore[arg-type]  # as any store
    async with open_engine(meeting, one_workflow(two_hooks)) as engine:
        await engine.start("flow", run_id="r")
        calls = [engine.resume_hook_by_token(TOKEN, payload) for payload in token_payloads]
        return await asyncio.gather(*calls, return_exceptions=True)


async def test_43_racing_resumes_with_one_payload(world: World, open_engine: OpenEngine) -> None:
    """Racing token resumes with equal payload → both Ok, one event."""
    assert await race(open_engine, world, [{"n": 1}, {"n": 1}]) == [("r", "h"), ("r", "h")]
    events = await stored(world.store, "r")
    assert [event for event in events if event.startswith("hook_received")] == ["hook_received h"]


async def test_44_racing_resumes_with_two_payloads(world: World, open_engine: OpenEngine) -> None:
    """Racing different payloads by id → one Ok, one `HookConflict`."""
    async with open_engine(world, one_workflow(two_hooks)) as engine:
        await engine.start("flow", run_id="r")
        answers = await asyncio.gather(
            *(engine.resume_hook("r", "h", payload) for payload in ("yes", "no")), return_exceptions=True
        )
        (conflict,) = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(conflict, HookConflict)
        assert conflict.args == ("r", "h", "payload")
        winner = "yes" if answers[1] is conflict else "no"
        assert (await engine.snapshot("r")).hook_payload("h") == winner
    assert (await stored(world.store, "r")).count("hook_received h") == 1


async def test_43_and_44_over_two_engines(world: World, open_engine: OpenEngine) -> None:
    """The same races where each call has an engine, and so a lease, of its own."""
    payloads: list[tuple[object, object]] = [({"n": 1}, {"n": 1}), ("yes", "no")]
    for number, pair in enumerate(payloads):
        run_id = f"r{number}"

        def ask(ctx: WorkflowContext) -> RuntimeCommand:
            if ctx.hook_received("h"):
                return ctx.complete(ctx.hook_payload("h"))
            return ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}")

        flow = one_workflow(ask)
        async with open_engine(world, flow) as first, open_engine(world, flow) as second:
            await first.start("flow", run_id=run_id)
            calls = [engine.resume_hook(run_id, "h", one) for engine, one in zip((first, second), pair, strict=True)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            conflicts = [answer for answer in answers if isinstance(answer, HookConflict)]
            assert len(conflicts) == number
            won = pair[1] if answers[0] in conflicts else pair[0]
            assert (await second.drive(run_id)).output == won
        assert (await stored(world.store, run_id)).count("hook_received h") == 1


async def test_45_redelivery_after_the_end(world: World, open_engine: OpenEngine) -> None:
    """Received hook, run terminal, equal redelivery → Ok; drift → `HookConflict`."""
    async with open_engine(world, one_workflow(approval)) as engine:
        await engine.start("flow", run_id="r")
        await engine.resume_hook("r", "h", {"a": 1, "b": [2]})
        ended = await world.store.history("r")
        assert (await engine.resume_hook("r", "h", {"b": [2], "a": 1})).status == "completed"
        for payload in ({"a": 1}, {"a": 1.0, "b": [2]}, None):
            with pytest.raises(HookConflict) as refused:
                await engine.resume_hook("r", "h", payload)
            assert refused.value.args == ("r", "h", "payload")
        assert await world.store.history("r") == ended


async def test_45_rows_of_the_hook_calls(world: World, open_engine: OpenEngine) -> None:
    """Each remaining row of resume and dispose, with the error it names; nothing is appended by any of them."""
    async with open_engine(world, one_workflow(two_hooks)) as engine:
        with pytest.raises(RunNotFound):
            await engine.resume_hook("nobody", "h", 1)
        await engine.start("flow", run_id="r")
        for call in (engine.resume_hook("r", "x", 1), engine.dispose_hook("r", "x")):
            with pytest.raises(InvalidTransition) as unknown:
                await call
            assert (unknown.value.rule, unknown.value.id) == ("id_unknown", "x")
        await engine.resume_hook("r", "h", 1)
        before = await world.store.history("r")
        await engine.resume_hook("r", "h", 1)
        await refuses(engine.dispose_hook("r", "h"), "received")
        assert await world.store.history("r") == before
        await engine.force_cancel("r")
        for hook_id, call in (("other", engine.resume_hook("r", "other", 1)), ("x", engine.dispose_hook("r", "x"))):
            with pytest.raises(RunTerminal):
                await call
            assert hook_id not in [item["hook"]["hook_id"] for item in await engine.list_active_hooks()]


async def test_45_disposed_and_cancelled(world: World, open_engine: OpenEngine) -> None:
    """`disposed`: a second disposal is Ok, a payload is a conflict; `cancelled`: both are conflicts."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.cancellation_request() is None:
            return two_hooks(ctx)
        return ctx.create_hook("last", f"{TOKEN}-last")

    async with open_engine(world, one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        await engine.dispose_hook("r", "h")
        before = await world.store.history("r")
        assert (await engine.dispose_hook("r", "h")).hooks["h"].status == "disposed"
        await refuses(engine.resume_hook("r", "h", 1), "disposed")
        assert await world.store.history("r") == before
        assert (await engine.request_cancellation("r")).status == "cancelling"
        await refuses(engine.resume_hook("r", "other", 1), "cancelled")
        await refuses(engine.dispose_hook("r", "other"), "cancelled")


async def refuses(call: object, reason: str) -> None:
    with pytest.raises(HookConflict) as refused:
        await call  # type: ignore[misc]  # a coroutine of either shell
    assert refused.value.reason == reason


async def test_45_a_hook_is_seen_beside_an_open_timer_and_a_busy_step(world: World, open_engine: OpenEngine) -> None:
    """A payload reaches the workflow at once, although a step runs (R22); the step's own outcome is kept (W4)."""
    gate, entered = threading.Event(), threading.Event()
    flow = Flow()

    @flow.step
    def slow() -> str:
        entered.set()
        gate.wait(20)
        return "slow"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.hook_received("h") and not ctx.step_completed("s"):
            gate.set()
        if ctx.step_completed("s") and ctx.hook_received("h"):
            return ctx.complete([ctx.step_output("s"), ctx.hook_payload("h")])
        return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.step("s", slow)])

    async with open_engine(world, flow) as engine:
        driving = asyncio.ensure_future(engine.run("flow", run_id="r"))
        await asyncio.to_thread(entered.wait, 20)
        assert await engine.resume_hook_by_token(TOKEN, 7) == ("r", "h")
        assert (await driving).output == ["slow", 7]
    assert (await stored(world.store, "r"))[2:] == [
        "hook_created h",
        "step_created s",
        "step_started s 1",
        "hook_received h",
        "step_completed s",
        "run_completed",
    ]
