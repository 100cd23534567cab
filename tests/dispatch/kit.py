"""What dispatch tests share: a place with a store, its clock and its queues, and flows to send tasks for."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from scenarios.kit import Clock

from perdure import (
    DurableTaskQueue,
    Flow,
    FlowEngine,
    FlowTask,
    MemoryEventStore,
    MemoryTaskQueue,
    PostgresEventStore,
    RetryPolicy,
    RuntimeCommand,
    SqliteEventStore,
    WorkflowContext,
)
from perdure.stores.base import FlowEventStore
from perdure.testing.postgres import shared_server

__all__ = ["HOUR", "STORES", "Place", "Queue", "Recorder", "raised", "story_flow"]

E = TypeVar("E", bound=Exception)
Queue = MemoryTaskQueue | DurableTaskQueue

HOUR = timedelta(hours=1)
STORES = ("memory", "sqlite", "postgres")
_NUMBERS = count(1)


@dataclass
class Place:
    """One store of a kind, opened as often as a test likes, and the queues beside it. Closed by the fixture."""

    kind: str
    folder: Path
    clock: Clock
    schema: str = field(default_factory=lambda: f"dispatch {next(_NUMBERS)}")
    opened: list[FlowEventStore] = field(default_factory=list)
    _queues: dict[str, MemoryTaskQueue] = field(default_factory=dict)

    def open(self) -> FlowEventStore:
        """A store object over this place's medium."""
        if self.kind == "memory":
            store: FlowEventStore = self.opened[0] if self.opened else MemoryEventStore(self.clock)
        elif self.kind == "sqlite":
            store = SqliteEventStore(self.folder / "runs.db", self.clock, "NORMAL")
        else:
            store = PostgresEventStore(shared_server().url, self.clock, schema=self.schema)
        self.opened.append(store)
        return store

    @property
    def store(self) -> FlowEventStore:
        return self.opened[0] if self.opened else self.open()

    def engine(self, flow: Flow, store: FlowEventStore | None = None, **options: Any) -> FlowEngine:
        """An engine on this place's store; only the store outlives it."""
        return FlowEngine(flow, store or self.store, **{"record_tracebacks": False} | options)

    def queue(self, name: str = "default", store: FlowEventStore | None = None, **options: Any) -> Queue:
        """A queue beside the store; of one name it is the same queue each time."""
        if self.kind != "memory":
            return DurableTaskQueue(store or self.store, name, **options)
        if name not in self._queues:
            self._queues[name] = MemoryTaskQueue(name, clock=self.clock, **options)
        return self._queues[name]

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


def story_flow(calls: list[str] | None = None) -> Flow:
    """Workflow `flow`: waits an hour twice, with a hook and a step that fails once; ends when the hook and both are done."""
    flow, seen = Flow(), calls if calls is not None else []

    @flow.step(retry=RetryPolicy.fixed(3, HOUR))
    def flaky(number: int) -> int:
        seen.append("flaky")
        if seen.count("flaky") == 1:
            raise ValueError("once")
        return number

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        seen.append("asked")
        wants = ctx.input or {}
        members = [ctx.wait_for(f"w{n}", HOUR) for n in range(wants.get("waits", 0))]
        if wants.get("hook"):
            members.append(ctx.create_hook("h", f"canary-{ctx.run_id}"))
        if wants.get("step"):
            members.append(ctx.step("s", flaky, 7))
        waits = all(ctx.wait_completed(f"w{n}") for n in range(wants.get("waits", 0)))
        hook = not wants.get("hook") or ctx.hook_payload("h") is not None or ctx.hook_disposed("h")
        step = not wants.get("step") or ctx.step_completed("s")
        if waits and hook and step:
            return ctx.complete(ctx.hook_payload("h"))
        return ctx.schedule_all(members)

    return flow


class Recorder:
    """A host's own queue that cannot say what it has."""

    def __init__(self) -> None:
        self.tasks: list[FlowTask] = []

    async def dispatch(self, task: FlowTask) -> None:
        self.tasks.append(task)


async def raised(kind: type[E], call: Awaitable[object]) -> E:
    """The error of this kind that `call` raises."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
