"""Scenarios 23 to 27: a known id that comes back with another definition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    ChildOperationReference,
    Flow,
    HookMetadata,
    InvalidTransition,
    NonDeterministic,
    RetryPolicy,
    RuntimeCommand,
    WorkflowContext,
    WorkflowProgress,
)
from scenarios.kit import TOKEN, World, stored
from scenarios.worlds import world_in_both_shells  # noqa: F401 - is this module's `world`

Ask = Callable[[WorkflowContext], RuntimeCommand]
MINUTE = timedelta(seconds=60)


def changing(*answers: Ask) -> Flow:
    """A workflow that answers by the first function, then the next, and by the last for ever: its code changed meanwhile."""
    left = list(answers)
    flow = Flow()

    @flow.step
    async def work(value: Any = None) -> None:
        raise ValueError("not now")

    @flow.step
    async def other(value: Any = None) -> None:
        raise AssertionError("never declared")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return (left.pop(0) if len(left) > 1 else left[0])(ctx)

    return flow


async def drift(world: World, flow: Flow) -> NonDeterministic:
    """Starts the run, drives it again, and gives the refusal, having seen that nothing was written and the run is open."""
    async with world.engine(flow) as engine:
        assert (await engine.run("flow", run_id="r")).status == "suspended"
        before = await world.store.history("r")
        with pytest.raises(NonDeterministic) as refused:
            await engine.drive("r")
        assert await world.store.history("r") == before
        assert (await engine.snapshot("r")).status == "suspended"
    assert refused.value.run_id == "r"
    return refused.value


def step(name: str = "work", value: Any = None, attempts: int = 3) -> Ask:
    return lambda ctx: ctx.schedule_step("a", name, value, retry=RetryPolicy.fixed(attempts, MINUTE))


@pytest.mark.parametrize(
    ("now", "part", "texts", "path"),
    [
        (step(value={"n": [1, 3]}), "input", ('{"n":[1,2]}', '{"n":[1,3]}'), "$.n[1]"),
        (step("other", {"n": [1, 2]}), "step_name", ('"work"', '"other"'), "$"),
        (
            step(value={"n": [1, 2]}, attempts=4),
            "retry",
            ('{"max_attempts":3,"delay_ms":60000}', '{"max_attempts":4,"delay_ms":60000}'),
            "$.max_attempts",
        ),
        (step("other", {"n": 0}), "step_name", ('"work"', '"other"'), "$"),
        (step(value={"n": 0}, attempts=4), "input", ('{"n":[1,2]}', '{"n":0}'), "$.n"),
    ],
)
async def test_23_step_changed(world: World, now: Ask, part: str, texts: tuple[str, str], path: str) -> None:
    """Input, name or policy changed on replay is `NonDeterministic`; of several the name is told first, then the input."""
    error = await drift(world, changing(step(value={"n": [1, 2]}), now))
    assert (error.kind, error.id, error.part, error.sequence) == ("step", "a", part, 3)
    assert (error.recorded, error.now, error.path) == (*texts, path)
    assert "recorded:" in str(error)
    assert "now:" in str(error)


async def test_24_wait_deadline_changed(world: World) -> None:
    """Another deadline of a known wait is drift; the same instant written otherwise is not."""
    first: Ask = lambda ctx: ctx.wait_until("w", "2030-01-01T00:00:00Z")  # noqa: E731 - a list of answers reads better
    same: Ask = lambda ctx: ctx.wait_until("w", "2030-01-01T01:00:00+01:00")  # noqa: E731
    other: Ask = lambda ctx: ctx.wait_until("w", "2030-01-01T00:00:00.000000001Z")  # noqa: E731
    flow = changing(first, same, other)
    async with world.engine(flow) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.drive("r")).last_sequence == 3
        with pytest.raises(NonDeterministic) as refused:
            await engine.drive("r")
    error = refused.value
    assert (error.kind, error.id, error.part, error.sequence) == ("wait", "w", "resume_at", 3)
    assert error.recorded == '"2030-01-01T00:00:00Z"'
    assert error.now == '"2030-01-01T00:00:00.000000001Z"'


async def test_24_relative_waits_are_exempt(world: World) -> None:
    """`wait_for` on a known id checks only that it is a wait (R40)."""
    flow = changing(lambda ctx: ctx.wait_for("w", MINUTE), lambda ctx: ctx.wait_for("w", 2 * MINUTE))
    async with world.engine(flow) as engine:
        await engine.start("flow", run_id="r")
        snapshot = await engine.drive("r")
        assert snapshot.waits["w"].resume_at == world.clock.after(seconds=60)
        assert snapshot.last_sequence == 3


async def test_24_hook_metadata_changed(world: World) -> None:
    """Other metadata of a known hook is drift."""
    error = await drift(
        world,
        changing(
            lambda ctx: ctx.create_hook("h", TOKEN, HookMetadata.human_approval("order-1")),
            lambda ctx: ctx.create_hook("h", TOKEN, HookMetadata.human_approval("order-2")),
        ),
    )
    assert (error.kind, error.id, error.part, error.sequence, error.path) == ("hook", "h", "metadata", 3, "$.subject")


async def test_24_hook_token_changed(world: World) -> None:
    """Another token of a known hook is drift, and neither token is told."""
    second = f"{TOKEN}-2"
    error = await drift(
        world, changing(lambda ctx: ctx.create_hook("h", TOKEN), lambda ctx: ctx.create_hook("h", second))
    )
    assert (error.kind, error.id, error.part, error.sequence) == ("hook", "h", "token", 3)
    assert (error.recorded, error.now) == ("<redacted>", "<redacted>")
    assert TOKEN not in str(error) + repr(error) + str(error.args)


PROGRESS = [WorkflowProgress("p", 1, total=4), WorkflowProgress("p", 2, total=4)]
CHILDREN = [ChildOperationReference("p", "ci", "job-1"), ChildOperationReference("p", "ci", "job-2")]


def fact(kind: str, which: int) -> Ask:
    if kind == "progress":
        return lambda ctx: ctx.record_progress(PROGRESS[which])
    return lambda ctx: ctx.link_child_operation(CHILDREN[which])


@pytest.mark.parametrize("kind", ["progress", "child"])
async def test_25_fact_changed_or_repeated(world: World, kind: str) -> None:
    """Progress or a child link changed is drift; an equal one again is `InvalidTransition`."""
    event = "run_progress_recorded p" if kind == "progress" else "child_operation_linked p"
    async with world.engine(changing(fact(kind, 0), fact(kind, 1), fact(kind, 0))) as engine:
        with pytest.raises(NonDeterministic) as drifted:
            await engine.start("flow", run_id="r")
        assert await stored(world.store, "r") == ["run_created", "run_started", event]
        with pytest.raises(InvalidTransition) as repeated:
            await engine.drive("r")
        assert await stored(world.store, "r") == ["run_created", "run_started", event]
    error = drifted.value
    assert (error.run_id, error.kind, error.id, error.part, error.sequence) == ("r", kind, "p", kind, 3)
    assert error.path == ("$.completed" if kind == "progress" else "$.operation_id")
    assert repeated.value.args == ("r", "nothing_new", None, None, None, None)


async def test_26_drift_after_a_payload(world: World) -> None:
    """Drift found after a hook payload was committed: the error, the payload durable, and the same error at redelivery."""
    flow = changing(
        lambda ctx: ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.wait_until("w", "2030-01-01T00:00:00Z")]),
        lambda ctx: ctx.wait_until("w", "2031-01-01T00:00:00Z"),
    )
    async with world.engine(flow) as engine:
        await engine.start("flow", run_id="r")
        for _ in range(2):
            with pytest.raises(NonDeterministic) as refused:
                await engine.resume_hook("r", "h", {"ok": True})
            assert (refused.value.kind, refused.value.id, refused.value.part) == ("wait", "w", "resume_at")
            assert (await stored(world.store, "r"))[4:] == ["hook_received h"]
        assert (await engine.snapshot("r")).hook_payload("h") == {"ok": True}


async def test_27_json_equality(world: World) -> None:
    """Another key order is no drift; `1` against `1.0` is."""
    flow = changing(step(value={"a": 1, "b": 2}), step(value={"b": 2, "a": 1}), step(value={"a": 1.0, "b": 2}))
    async with world.engine(flow) as engine:
        started = await engine.run("flow", run_id="r")
        assert (await engine.drive("r")) == started
        with pytest.raises(NonDeterministic) as refused:
            await engine.drive("r")
    assert (refused.value.part, refused.value.path) == ("input", "$.a")
