"""Scenario 87: observers hear of what was committed, once and in order (spec 09 §9.5, R52), in both shells.

Queues that overflow, observers that raise or hang, and the audit log have tests of their own in `tests/observe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import orjson
import pytest

from perdure import Envelope, Flow, InvalidTransition, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext
from perdure.observe import MemoryObserver, labels_of, record_of
from perdure.stores.base import FlowEventStore
from scenarios.kit import TOKEN, Crash, WatchedStore, World, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

SECRET = "canary-payload"


def secretive() -> Flow:
    """Inputs, outputs, errors, metadata and payloads all hold the word that must not leave the process."""
    flow = Flow()

    @flow.step
    async def flaky(context: StepContext, value: str) -> str:
        if context.attempt == 1:
            raise ValueError(f"{SECRET} error")
        return f"{SECRET} output {value}"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", flaky, f"{SECRET} input", retry=RetryPolicy.fixed(2))
        if not ctx.hook_received("h"):
            return ctx.create_hook("h", TOKEN, {"note": f"{SECRET} metadata"})
        return ctx.complete(f"{SECRET} result")

    return flow


def told(observer: MemoryObserver) -> list[str]:
    return [f"{o.envelope.sequence} {o.envelope.type}" for o in observer.observations]


async def test_87_each_event_once_and_in_order(world: World, open_engine: OpenEngine) -> None:
    """Each committed event observed once, in order, with the run's spec, also those of batches and of host calls."""
    observer = MemoryObserver()
    async with open_engine(world, secretive(), observer=observer) as engine:
        await engine.start("flow", f"{SECRET} run input", run_id="r")
        await engine.resume_hook_by_token(TOKEN, f"{SECRET} payload")
        await engine.resume_hook("r", "h", f"{SECRET} payload")
        history = await engine.history("r")
    assert [o.envelope.event_id for o in observer.observations] == [e.event_id for e in history]
    assert {(o.spec.name, o.spec.version) for o in observer.observations} == {("flow", "1")}
    assert observer.observations[-1].status == "completed"


async def test_87_records_hold_no_payload_and_no_token(world: World, open_engine: OpenEngine) -> None:
    """Records contain no payload or token; labels take few values."""
    observer = MemoryObserver()
    async with open_engine(world, secretive(), observer=observer) as engine:
        await engine.start("flow", f"{SECRET} run input", run_id="r")
        await engine.resume_hook_by_token(TOKEN, f"{SECRET} payload")
    assert await told_is_stored(world, observer)
    records = [record_of(o) for o in observer.observations]
    text = orjson.dumps(records).decode()
    assert SECRET not in text
    assert TOKEN not in text
    assert SECRET not in repr(observer.observations)
    assert TOKEN not in repr(observer.observations)
    hook = next(r for r in records if r["key"] == "flow.hook.received")
    assert hook["subject"] == {"kind": "hook", "id": "h"}
    assert (hook["run_id"], hook["workflow"]) == ("r", {"name": "flow", "version": "1"})
    assert set(labels_of(observer.observations[0])) == {"event_key", "workflow_name", "workflow_version", "status"}


async def told_is_stored(world: World, observer: MemoryObserver) -> bool:
    history = Envelope.parse_lines(await world.store.history("r"))
    return told(observer) == [f"{e.sequence} {e.type}" for e in history]


async def test_87_failed_appends_are_not_observed(world: World, open_engine: OpenEngine) -> None:
    """A commit that never happened, and a refused call, are not observed; what is durable is, by whoever commits it."""
    observer, second = MemoryObserver(), MemoryObserver()
    lost = World(world.kernel, cast(FlowEventStore, WatchedStore(world.store).crash(before=2)), world.clock)
    async with open_engine(lost, secretive(), observer=observer, lease=False) as engine:
        with pytest.raises(Crash):
            await engine.start("flow", f"{SECRET} run input", run_id="r")
        with pytest.raises(InvalidTransition):
            await engine.resume_hook("r", "nothing", 1)
    assert told(observer) == ["1 run_created", "2 run_started", "3 step_created", "4 step_started"]
    async with open_engine(world, secretive(), observer=second, lease=False) as engine:
        await engine.drive("r")
    assert [*told(observer), *told(second)] == numbered(await stored(world.store, "r"))


def numbered(events: Sequence[str]) -> list[str]:
    return [f"{number} {event.split()[0]}" for number, event in enumerate(events, 1)]
