"""What a case runs in: a store, the engine under test, other clients of the store, and the accidents that are ordered."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, cast

from perdure.blocking import BlockingFlowEngine
from perdure.builds import RuntimeBuildCompatibility
from perdure.effects import CommitMode
from perdure.engine import FlowEngine
from perdure.errors import EventConflict, FlowError, RunNotFound
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Batch, Kernel, KernelName, load
from perdure.stores import JsonlEventStore, MemoryEventStore, SqliteEventStore
from perdure.stores.base import Append, Committed, FlowEventStore
from perdure.testing._conformance.blocking import AwaitedEngine, CrashingStore
from perdure.testing._conformance.program import AsyncProgram, PlainProgram
from perdure.testing._conformance.values import dumps
from perdure.testing.virtual_time import Phase, VirtualTimeLoop

__all__ = ["BESIDE", "Crashed", "Race", "Setup", "Shell", "World", "opened"]

Shell = Literal["asyncio", "blocking", "blocking-inline"]
"""Which engine, and in the blocking one whether steps run in threads or in place."""

BESIDE: Final = ContextVar("BESIDE", default=False)
"""Set in a call of another client, which runs beside the drive that waits, and in all that it calls."""
_NEVER: Final = timedelta(days=36_500)
_MEMORY_DISK: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Setup:
    """Which kernel, which store, which way to commit and which shell."""

    kernel: KernelName
    store: str
    commit: CommitMode = "staged"
    shell: Shell = "asyncio"

    def load(self) -> Kernel:
        """The kernel."""
        return load(self.kernel)

    def __str__(self) -> str:
        commit = [f"commit={self.commit}"] if self.commit != "staged" else []
        return " ".join([self.kernel, self.store, *commit, *([self.shell] if self.shell != "asyncio" else [])])


class Crashed(Exception):
    """The engine ended at a commit (R18)."""


@dataclass(frozen=True, slots=True)
class Race:
    """Calls of another client, to be made just before a commit whose last sequence is at least `sequence`."""

    sequence: int
    calls: tuple[dict[str, Any], ...]


@asynccontextmanager
async def opened(store: str, loop: VirtualTimeLoop) -> AsyncIterator[FlowEventStore]:
    """An empty store on the loop's clock."""
    if store == "memory":
        yield MemoryEventStore(loop.clock_ns)
        return
    # What is judged here is behaviour, so the file may lie in memory; durability has tests of its own.
    with TemporaryDirectory(
        prefix="perdure-conformance-", dir=_MEMORY_DISK if _MEMORY_DISK.is_dir() else None
    ) as folder:
        opened_store: FlowEventStore
        if store == "jsonl":
            opened_store = JsonlEventStore(folder, loop.clock_ns, kernel="pure")  # which has nothing to read here
        else:
            opened_store = SqliteEventStore(Path(folder) / "runs.db", loop.clock_ns, "NORMAL")
        try:
            yield opened_store
        finally:
            await opened_store.close()


class World:
    """The surroundings of one case. `race` makes the calls of a race, `engine` is the engine under test as it is now."""

    def __init__(self, row: dict[str, Any], setup: Setup, store: FlowEventStore, loop: VirtualTimeLoop) -> None:
        self.row, self.setup, self.loop = row, setup, loop
        self.run_id: str = row["run_id"]
        self.kernel: Kernel = setup.load()
        self.inner = store
        self.store = self._client(ordered=False)
        self.program = self._new_program()
        self.builds: dict[str, Any] | None = row.get("builds")
        self.crash_from: int | None = None
        self.crashed: asyncio.Future[None] = loop.create_future()
        self.races: list[Race] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._random = random.Random(0)
        self._raw = asyncio.Lock()
        self._engine: FlowEngine | None = None
        self._other: FlowEngine | None = None

    @property
    def engine(self) -> FlowEngine:
        """The engine under test; a fresh one after a crash or new builds."""
        if self._engine is None:
            self._engine = self._new_engine(self._client(ordered=True))
        return self._engine

    @property
    def other_client(self) -> FlowEngine:
        """An engine of another process on the same store; nothing ordered happens to its commits."""
        if self._other is None:
            self._other = self._new_engine(self.store)
        return self._other

    def _client(self, *, ordered: bool) -> FlowEventStore:
        return cast("FlowEventStore", ClientStore(self.inner, self, ordered=ordered))

    def _new_program(self) -> AsyncProgram | PlainProgram:
        rules, outcomes = self.row["program"], self.row["steps"]
        if self.setup.shell == "asyncio":
            return AsyncProgram(rules, outcomes, self.loop)
        return PlainProgram(rules, outcomes, "thread" if self.setup.shell == "blocking" else "inline")

    def _new_engine(self, store: FlowEventStore) -> FlowEngine:
        if self.setup.shell == "asyncio":
            return FlowEngine(self.program, store, **self._options())
        crashing = CrashingStore(self.inner, self._crashes)
        engine = BlockingFlowEngine(self.program, cast("FlowEventStore", crashing), **self._options())
        return cast("FlowEngine", AwaitedEngine(engine, lambda: self._crash() if crashing.ended else None))

    def _options(self) -> dict[str, Any]:
        row, builds = self.row, self.builds
        admission = builds and RuntimeBuildCompatibility(
            builds["current"], frozenset(builds.get("also", ())), accept_unpinned=bool(builds.get("unpinned"))
        )
        return {
            "kernel": self.setup.kernel,
            "max_replay_iterations": row.get("limit", 1024),
            "concurrency": row.get("concurrency", 64),
            "max_event_bytes": row.get("max_event_bytes", DEFAULT_MAX_EVENT_BYTES),
            "commit": self.setup.commit,
            "record_tracebacks": False,
            "lease": False,
            "builds": admission or None,
            "clock": self.loop.clock_ns,
            "poll_interval": _NEVER,  # what others append is told to the engine at that very instant
        }

    async def close(self) -> None:
        """Closes the engines."""
        for engine in (self._engine, self._other):
            if engine is not None:
                await engine.close()
        self._engine = self._other = None

    async def set_builds(self, builds: dict[str, Any] | None) -> None:
        """Goes on with an engine of these builds. Raises `InvalidRuntimeBuildId`."""
        await self.close()
        self.builds = builds
        self._engine = self._new_engine(self._client(ordered=True))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Lets work of another client run beside the call that is under way."""
        self.tasks.append(asyncio.create_task(work))

    async def end_engine(self) -> None:
        """What a killed process leaves: nothing. Its tasks end without another word to the store."""
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tasks.clear()
        self.crashed = self.loop.create_future()
        await self.close()

    async def append(self, run_id: str, event: Any) -> int:
        """Puts one event into the store by hand; gives its sequence."""
        async with self._raw:
            while True:
                batch = await self.batch(run_id, [(dumps(event), self.loop.clock_ns())])
                (answer,) = await self.store.commit([Append(batch)])
                if isinstance(answer, Committed):
                    return answer.last_sequence
                if not isinstance(answer, EventConflict):
                    raise answer

    async def batch(self, run_id: str, events: Sequence[tuple[str, int]]) -> Batch:
        """Events, each with its own timestamp, on top of what the store has of the run."""
        try:
            run = self.kernel.project(run_id, await self.store.history(run_id), DEFAULT_MAX_EVENT_BYTES)
        except RunNotFound:
            run = self.kernel.new(run_id, DEFAULT_MAX_EVENT_BYTES)
        view = run.stage([], self.loop.clock_ns())
        for event, clock in events:
            view = view.stage([event.encode("utf-8", "surrogatepass")], clock)
        return view.append(self._random.randbytes(16 * len(events)))

    def _crashes(self, batches: Sequence[Batch]) -> bool:
        return self.crash_from is not None and any(batch.last_sequence >= self.crash_from for batch in batches)

    def _crash(self) -> None:
        if not self.crashed.done():
            self.crashed.set_result(None)

    async def before_commit(self, batches: Sequence[Batch]) -> None:
        """Lets happen what was ordered for this commit of the engine under test."""
        if self._crashes(batches):
            self._crash()
            await self.loop.create_future()
        for batch in batches:
            if self.races and batch.run_id == self.run_id and batch.last_sequence >= self.races[0].sequence:
                await self.race(self.races.pop(0))

    async def after_commit(self) -> None:
        """Before the drive learns that another client appended, the other calls and ends of attempts of that instant
        happen too, so that it takes all of them together, whatever the store's threads do."""
        if BESIDE.get():
            for _ in range(2):  # first they come about, then whatever they set going has run
                await self.loop.sleep_until_ns(self.loop.clock_ns(), Phase.STEPS)

    async def race(self, race: Race) -> None:
        """Makes the calls of a race; set by whoever can make calls."""
        raise NotImplementedError


class ClientStore:
    """The store as one client sees it: the clock stands still while it works, and ordered accidents happen at commits.

    Everything but `commit` and `close` is the inner store's own."""

    def __init__(self, inner: FlowEventStore, world: World, *, ordered: bool) -> None:
        self.inner, self._world, self._ordered = inner, world, ordered

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        """As `FlowEventStore.commit`."""
        if self._ordered:
            await self._world.before_commit([append.batch for append in appends])
        with self._world.loop.outside_work():
            answers = await self.inner.commit(appends)
        if self._ordered:
            await self._world.after_commit()
        return answers

    async def close(self) -> None:
        """The store outlives its clients."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            with self._world.loop.outside_work():
                return await method(*arguments, **named)

        return call
