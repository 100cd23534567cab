"""Scenarios 61, 66 and 97: what a single store promises to the engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    EventConflict,
    Flow,
    InvalidTransition,
    PayloadTooLarge,
    RetryPolicy,
    RunNotFound,
    RuntimeCommand,
    WorkflowContext,
    WorkflowSpec,
)
from perdure.instant import Instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Run, load
from perdure.stores.base import Append, Committed
from scenarios.conftest import world_in_both_shells  # noqa: F401 - is this module's `world`
from scenarios.kit import TOKEN, World, one_workflow, stored

START = b'{"op":"start","spec":%b,"input":null,"drive":false}' % WorkflowSpec.python("flow", "1").to_json()
STARTED = b'{"type":"run_started"}'
ENTROPY = bytes(16)


async def pending_run(world: World) -> Run:
    """A run whose only event is `run_created`."""
    run = load(world.kernel).new("r", DEFAULT_MAX_EVENT_BYTES)
    batch = run.stage(run.control(START, world.clock()).drafts, world.clock()).append(ENTROPY)
    assert await world.store.commit([Append(batch)]) == [Committed(1)]
    run.accept(batch)
    return run


async def test_61_stale_append(world: World) -> None:
    """An append at a stale sequence is `EventConflict` expected 1, actual 2, and writes nothing."""
    run = await pending_run(world)
    winner, loser = (run.stage([STARTED], world.clock()).append(bytes([n]) * 16) for n in (1, 2))
    assert await world.store.commit([Append(winner)]) == [Committed(2)]
    before = await world.store.history("r")
    (refusal,) = await world.store.commit([Append(loser)])
    assert isinstance(refusal, EventConflict)
    assert refusal.args == ("r", 1, 2)
    assert await world.store.history("r") == before


async def test_61_two_writers(world: World) -> None:
    """Of two concurrent appends at one sequence exactly one wins."""
    run = await pending_run(world)
    batches = [run.stage([STARTED], world.clock()).append(bytes([n]) * 16) for n in (1, 2)]
    answers = [
        answer for (answer,) in await asyncio.gather(*(world.store.commit([Append(batch)]) for batch in batches))
    ]
    assert sorted(type(answer).__name__ for answer in answers) == ["Committed", "EventConflict"]
    winner = next(batch for batch, answer in zip(batches, answers, strict=True) if isinstance(answer, Committed))
    assert await world.store.history("r", 1) == winner.lines


async def test_66_due_to_the_nanosecond(world: World) -> None:
    """A wait is due at exactly `now`, and not one nanosecond before."""
    due = Instant(world.clock.after(seconds=5).ns + 1)
    before = Instant(due.ns - 1)

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_until("w", due)

    async with world.engine(one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        assert await engine.list_due_waits(before) == []
        assert await engine.list_due_waits(due) == [("r", "w")]
        assert await engine.resume_due_waits(before) == []
        assert await engine.resume_scheduled_run("r", before) == []
        world.clock.ns = before.ns
        with pytest.raises(InvalidTransition) as refused:
            await engine.resume_wait("r", "w")
        assert refused.value.args == ("r", "wait_not_due", "wait", "w", None, str(due))
        wakeup = await engine.next_wakeup(before)
        assert wakeup is not None
        assert (wakeup["kind"], wakeup["run_id"], wakeup["wait"]["wait_id"], wakeup["due"]) == ("wait", "r", "w", False)
        assert await engine.resume_due_waits(due) == [("r", "w")]
        assert (await engine.snapshot("r")).status == "completed"
        assert await engine.next_wakeup(due) is None


async def test_66_a_retry_due_to_the_nanosecond(world: World) -> None:
    """A delayed retry likewise."""
    flow = Flow()
    attempts: list[int] = []

    @flow.step
    async def work() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        policy = RetryPolicy.fixed(2, timedelta(seconds=5))
        return ctx.complete() if ctx.step_completed("a") else ctx.schedule_step("a", work, retry=policy)

    async with world.engine(flow) as engine:
        await engine.start("flow", run_id="r")
        due = world.clock.after(seconds=5)
        before = Instant(due.ns - 1)
        assert await engine.list_due_retries(before) == []
        assert await engine.resume_due_retries(before) == []
        assert await engine.resume_scheduled_run("r", before) == []
        world.clock.ns = before.ns
        await engine.drive("r")
        assert len(attempts) == 1
        world.clock.ns = due.ns
        assert (await engine.drive("r")).status == "completed"


def sized(flow: Flow) -> None:
    """Adds workflows that write a large input, step input or output, or hook payload."""

    @flow.step
    async def make(size: int) -> str:
        return "x" * size

    @flow.step
    async def take(text: str) -> int:
        return len(text)

    @flow.workflow("large input", version="1")
    def large_input(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete()

    @flow.workflow("large step input", version="1")
    def large_step_input(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("s", take, "x" * ctx.input)

    @flow.workflow("large step output", version="1")
    def large_step_output(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", make, ctx.input)

    @flow.workflow("large payload", version="1")
    def large_payload(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.hook_received("h") else ctx.create_hook("h", TOKEN)

    @flow.workflow("large output", version="1")
    def large_output(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete("x" * ctx.input)


@pytest.fixture
def flow() -> Flow:
    flow = Flow()
    sized(flow)
    return flow


async def too_large(call: Any) -> PayloadTooLarge:
    with pytest.raises(PayloadTooLarge) as refused:
        await call
    return refused.value


async def test_97_an_event_over_1_mib(world: World, flow: Flow) -> None:
    """An event over 1 MiB is `PayloadTooLarge` and nothing is stored; one of exactly the limit is stored."""
    async with world.engine(flow) as engine:
        error = await too_large(engine.start("large input", "x" * 2**20, run_id="r"))
        assert (error.event_key, error.max_bytes, error.run_id) == ("flow.run.created", 2**20, "r")
        assert await engine.list_run_ids() == []
        with pytest.raises(RunNotFound):
            await engine.history("r")
        fits = 2**20 - (error.bytes - error.max_bytes)
        error = await too_large(engine.start("large input", "x" * (fits + 1), run_id="r"))
        assert error.bytes == 2**20 + 1
        assert (await engine.run("large input", "x" * fits, run_id="r")).status == "completed"


async def test_97_commands_over_the_limit(world: World, flow: Flow) -> None:
    """A workflow's own large event is refused by the builder or the decision; the run stays open."""
    async with world.engine(flow, max_event_bytes=1000) as engine:
        error = await too_large(engine.start("large step input", 1000, run_id="input"))
        assert (error.event_key, error.max_bytes) == ("flow.step.created", 1000)
        error = await too_large(engine.start("large output", 1000, run_id="output"))
        assert (error.event_key, error.max_bytes) == ("flow.run.completed", 1000)
        for run_id in ("input", "output"):
            assert await stored(world.store, run_id) == ["run_created", "run_started"]
            assert (await engine.snapshot(run_id)).status == "running"


async def test_97_host_calls_over_the_limit(world: World, flow: Flow) -> None:
    """A large hook payload is refused, nothing is stored, and a smaller one may follow."""
    async with world.engine(flow, max_event_bytes=1000) as engine:
        await engine.start("large payload", run_id="r")
        before = await stored(world.store, "r")
        error = await too_large(engine.resume_hook("r", "h", "x" * 1000))
        assert (error.event_key, error.run_id) == ("flow.hook.received", "r")
        assert await stored(world.store, "r") == before
        assert (await engine.resume_hook("r", "h", "x")).status == "completed"


async def test_97_step_outputs_over_the_limit(world: World, flow: Flow) -> None:
    """A step output over the limit is a final failure of the step (R15)."""
    async with world.engine(flow, max_event_bytes=1000) as engine:
        snapshot = await engine.run("large step output", 1000, run_id="r")
        assert (await stored(world.store, "r"))[-2:] == ["step_non_retryable s 1", "run_failed"]
    assert snapshot.status == "failed"
    assert snapshot.error == "serialization error: flow.step.completed would take 1051 bytes and 1000 are allowed"
