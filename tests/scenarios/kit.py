"""What scenario and drive tests share: a clock the test moves, a world of kernel and store, and histories told in short."""

from __future__ import annotations

import asyncio
import inspect
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, cast

import pytest

from perdure.blocking import BlockingFlowEngine
from perdure.commands import RuntimeCommand
from perdure.context import WorkflowContext
from perdure.engine import FlowEngine
from perdure.errors import FlowError
from perdure.flow import Flow, FlowRuntime
from perdure.instant import Instant, parse_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, KernelName, Reads, View, load
from perdure.model import Envelope
from perdure.stores import JsonlEventStore, MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import Append, Committed, FlowEventStore
from perdure.testing.postgres import shared_server

__all__ = [
    "TOKEN",
    "Clock",
    "Crash",
    "WatchedStore",
    "World",
    "hurry",
    "one_workflow",
    "open_store",
    "raising",
    "run_async",
    "settled",
    "stored",
    "story",
]

TOKEN = "canary-approval"
"""Hook tokens of tests begin with this word, so that one search of the whole output finds a leak (R49)."""

_MICROSECOND = timedelta(microseconds=1)
_PATIENCE_SECONDS = 120


class Clock:
    """Nanoseconds since 1970; stands still until a test moves it."""

    def __init__(self, start: str = "2026-01-01T00:00:00Z") -> None:
        self.ns = parse_instant(start)

    def __call__(self) -> int:
        return self.ns

    def advance(self, **parts: float) -> None:
        """Moves by a `timedelta(**parts)`."""
        self.ns = self.after(**parts).ns

    @property
    def now(self) -> Instant:
        return Instant(self.ns)

    def after(self, **parts: float) -> Instant:
        """The instant `timedelta(**parts)` from now."""
        return Instant(self.ns + timedelta(**parts) // _MICROSECOND * 1000)


@dataclass
class World:
    """One kernel, one store and the clock of both."""

    kernel: KernelName
    store: FlowEventStore
    clock: Clock
    blocking_shell: bool = False

    def engine(
        self, runtime: FlowRuntime, store: FlowEventStore | WatchedStore | None = None, **options: Any
    ) -> FlowEngine:
        """A new engine on this world's store, or on one that wraps it. Nothing but the store outlives it."""
        options = {"kernel": self.kernel, "record_tracebacks": False} | options
        chosen = cast(FlowEventStore, store or self.store)
        if self.blocking_shell:
            return cast(FlowEngine, Threaded(BlockingFlowEngine(runtime, chosen, **options)))
        return FlowEngine(runtime, chosen, **options)

    def blocking(self, runtime: FlowRuntime, **options: Any) -> BlockingFlowEngine:
        """The same for code without an event loop."""
        return BlockingFlowEngine(runtime, self.store, **{"kernel": self.kernel, "record_tracebacks": False} | options)

    async def plant(self, run_id: str, history: Sequence[Envelope]) -> None:
        """Stores these events, as they are, as the history of a new run."""
        view: Reads = load(self.kernel).new(run_id, DEFAULT_MAX_EVENT_BYTES)
        for envelope in history:
            view = view.stage([envelope.raw], envelope.timestamp.ns)
        batch = cast(View, view).append(os.urandom(16 * len(history)))
        assert [type(answer) for answer in await self.store.commit([Append(batch)])] == [Committed]


class Threaded:
    """Each method of the blocking engine as a coroutine that waits for it in a thread, so it can be written like the other."""

    def __init__(self, engine: BlockingFlowEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: asyncio.to_thread(found, *args, **kwargs)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._engine.close)


def open_store(kind: str, folder: Path, clock: Clock) -> FlowEventStore:
    """A new store of the kind; SQLite without waiting for the disk, which no test here is about. PostgreSQL's belongs to the
    event loop that first uses it."""
    if kind == "memory":
        return MemoryEventStore(clock)
    if kind == "jsonl":
        return JsonlEventStore(folder / "runs", clock, kernel="pure")
    if kind == "postgres":
        return PostgresEventStore(shared_server().url, clock, schema=f"scenario {folder.name} {uuid.uuid4().hex[:8]}")
    return SqliteEventStore(folder / "runs.db", clock, "NORMAL")


def run_async(item: pytest.Function) -> bool | None:
    """Runs an `async def` test on an event loop of its own; a test that hangs fails by name."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    arguments = {name: item.funcargs[name] for name in inspect.signature(item.obj).parameters}

    async def test() -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            try:
                await item.obj(**arguments)
            finally:
                for world in arguments.values():
                    if isinstance(world, World) and isinstance(world.store, PostgresEventStore):
                        await world.store.close()  # no other loop can

    asyncio.run(test())
    return True


def hurry(seconds: float) -> None:
    """Sets the clock of the running event loop ahead: what was to happen within that time happens in the loop's next turn.

    So a test says itself when a time limit is over, and the limit can be far longer than a slow machine stands still."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]  # this loop's own, gone with it


async def settled() -> None:
    """Lets everything happen that can: on a memory store nothing waits for a thread or a disk."""
    for _ in range(50):
        await asyncio.sleep(0)


def story(history: Sequence[Envelope]) -> list[str]:
    """Each event as `type`, then what it is about, then its attempt: `step_started pay 1`."""
    return [" ".join(_words(envelope)) for envelope in history]


def _words(envelope: Envelope) -> list[str]:
    event = envelope.event
    subject = [envelope.subject[1]] if envelope.subject else [event["step_id"]] if "step_id" in event else []
    attempt = event.get("attempt")
    return [envelope.type, *subject, *([] if attempt is None else [str(attempt)])]


async def stored(store: FlowEventStore, run_id: str) -> list[str]:
    """The story of what the store holds."""
    return story(Envelope.parse_lines(await store.history(run_id)))


def one_workflow(ask: Callable[[WorkflowContext], RuntimeCommand]) -> Flow:
    """A flow with a single workflow, called `flow`."""
    flow = Flow()
    flow.workflow("flow", version="1")(ask)
    return flow


class Crash(Exception):
    """The engine ends here, as if its process had died; what was not committed is lost."""


class WatchedStore:
    """A store that counts the commits it is asked for, from 1, and calls back before and after chosen ones.

    A callback that raises is what the engine gets for an answer: in `before` nothing was written, in `after` all was.
    """

    def __init__(self, inner: FlowEventStore) -> None:
        self.inner = inner
        self.commits = 0
        self.before: dict[int, Callable[[], Awaitable[None]]] = {}
        self.after: dict[int, Callable[[], Awaitable[None]]] = {}

    def crash(self, *, before: int | None = None, after: int | None = None) -> WatchedStore:
        """The engine ends at that commit."""
        for calls, number in ((self.before, before), (self.after, after)):
            if number is not None:
                calls[number] = raising(Crash())
        return self

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        self.commits += 1
        number = self.commits
        if number in self.before:
            await self.before[number]()
        answers = await self.inner.commit(appends)
        if number in self.after:
            await self.after[number]()
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    """A callback that raises this error."""

    async def call() -> None:
        raise error

    return call
