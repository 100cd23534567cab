"""Scenarios 61, 64 to 66, 68 and 97: what a single store promises to the engine. 62 and 63 are those of JSONL files
(`stores/test_jsonl_engine.py`), 60 is in `crash/`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from stores.tables import compare_with_replay
from stores.traces import Trace, Traced

from perdure import (
    EventConflict,
    Flow,
    FlowEngine,
    InvalidTransition,
    PayloadTooLarge,
    RetryPolicy,
    RunNotFound,
    RuntimeCommand,
    StepContext,
    StoreError,
    WorkflowContext,
    WorkflowSpec,
)
from perdure.instant import Instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Run, load
from perdure.model import Envelope
from perdure.stores import MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import Append, Committed, FlowEventStore
from perdure.testing._store_suite import StoreClock
from perdure.testing.postgres import shared_server
from scenarios.kit import TOKEN, Clock, World, one_workflow, stored
from scenarios.worlds import world_on_every_store  # noqa: F401 - is this module's `world`

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


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_64_reopened(kind: str, tmp_path: Path) -> None:
    """SQL reopen gives equal history; migration twice is a no-op; a changed checksum is refused."""
    clock, schema, file = Clock(), f"scenario 64 {kind}", tmp_path / "runs.db"

    def opened() -> FlowEventStore:
        if kind == "sqlite":
            return SqliteEventStore(file, clock, "NORMAL")
        return PostgresEventStore(shared_server().url, clock, schema=schema)

    def ledger(statement: str) -> list[Any]:
        if kind == "sqlite":
            with closing(sqlite3.connect(file, isolation_level=None)) as lite:
                return lite.execute(statement.format("flow_migrations")).fetchall()
        with psycopg.connect(shared_server().url, autocommit=True) as connection:
            cursor = connection.execute(statement.format(f'"{schema}".flow_migrations'))
            return cursor.fetchall() if cursor.description else []

    def waits(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_for("w", timedelta(days=1))

    async def seen(start: bool = False) -> tuple[bytes, bytes, object]:
        store = opened()
        async with FlowEngine(one_workflow(waits), store) as engine:
            if start:
                await engine.start("flow", {"é": 1.0}, run_id="r")
            found = await store.history("r"), (await engine.snapshot("r")).json, await store.runs()
        await store.close()
        return found

    before = asyncio.run(seen(start=True))
    applied = ledger("SELECT * FROM {} ORDER BY 1")
    assert asyncio.run(seen()) == before
    assert ledger("SELECT * FROM {} ORDER BY 1") == applied
    ledger("UPDATE {} SET sha256 = 'changed' WHERE number = 1")
    with pytest.raises(StoreError, match="changed"):
        asyncio.run(seen())


async def test_65_indexes_on_random_histories(world: World) -> None:
    """Indexed due, next and hook queries equal those of a store in memory, and the index tables a replay, on randomly
    generated histories."""
    clock = StoreClock()
    world.clock.ns = clock.ns
    trace = Trace([Traced("memory", MemoryEventStore(clock)), Traced("this", world.store)], clock, world.kernel, 65)
    for _ in range(60):
        await trace.run(1)
        world.clock.ns = clock.ns
    await trace.compare(trace.everything())
    await compare_with_replay(world.store)


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


async def test_68_a_reference_history_with_a_running_step(world: World) -> None:
    """A v0.13.1 history with a running step resumes: one redelivery, attempt stays 1, completes."""
    spec = {
        "name": "flow",
        "version": "1",
        "runtime": {"kind": "rust_embedded", "entrypoint": "flow", "export_name": "main"},
    }
    step = {"step_id": "a", "step_name": "work", "input": "x", "retry": {"max_attempts": 3, "delay_ms": 0}}
    events: list[dict[str, object]] = [
        {"type": "run_created", "spec": spec, "input": None},
        {"type": "run_started"},
        {"type": "step_created", **step},
        {"type": "step_started", "step_id": "a", "attempt": 1},
    ]
    lines = [
        {
            "run_id": "r",
            "sequence": number,
            "event_id": f"0d8b7b29-50a7-4c15-8ad4-84f7a4e1110{number}",
            "timestamp": f"2025-11-29T20:31:42.53634796{number}Z",
            "event": event,
        }
        for number, event in enumerate(events, 1)
    ]
    await world.plant("r", Envelope.parse_lines("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    calls: list[tuple[str, int]] = []
    flow = Flow()

    @flow.step
    async def work(context: StepContext, name: str) -> str:
        calls.append((name, context.attempt))
        return "done"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", work, "x")

    async with world.engine(flow) as engine:
        snapshot = await engine.drive("r")
        assert (snapshot.status, snapshot.output, snapshot.steps["a"].attempt) == ("completed", "done", 1)
    assert calls == [("x", 1)]
    assert await stored(world.store, "r") == [
        "run_created",
        "run_started",
        "step_created a",
        "step_started a 1",
        "step_completed a",
        "run_completed",
    ]


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
