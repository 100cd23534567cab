"""The JSONL store: a folder with one file per run, one event per line, as the reference engine writes them (spec 7.3)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from perdure.errors import FlowError, LeaseLost, RunNotFound, StoreError
from perdure.kernel import KernelName
from perdure.rebuild import IndexRebuilder
from perdure.stores import leases
from perdure.stores.base import (
    ActiveHook,
    Append,
    Claimed,
    Committed,
    LeaseState,
    RunFilter,
    RunPage,
    RunSummary,
    Wakeup,
)
from perdure.stores.group import GroupCommitter
from perdure.stores.index import MemoryIndex
from perdure.stores.jsonl_folder import JsonlFolder
from perdure.stores.jsonl_lines import events
from perdure.stores.jsonl_state import JsonlState, loaded
from perdure.stores.jsonl_writer import JsonlWriter
from perdure.stores.leases import Wanted
from perdure.stores.rules import ALL_RUNS, check_limit, lines_after

__all__ = ["JsonlEventStore"]

T = TypeVar("T")
_READERS: Final = 2


class JsonlEventStore:
    """Histories as files `<run_id>.jsonl` of one folder; the index is in memory.

    `address`: a folder, `jsonl:///folder` (a fourth slash begins an absolute path), `jsonl://folder` or
    `jsonl:folder`; it is made where it is missing. `clock` gives ns since
    1970-01-01T00:00:00Z (R45). `kernel` reads the histories to build the index, before the constructor returns.

    One process owns the folder at a time: while one does, the constructor raises `StoreUnavailable` naming it. It raises
    `StoreError` for a folder that cannot be used. A run whose file is damaged is logged, and every call about it raises
    `StoreError` naming file and line; the other runs are there. Of leases nothing is kept: after opening, every open run
    can be claimed once, unless it is held. Run ids that differ only in upper and lower case exclude each other (R34).
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        clock: Callable[[], int] = time.time_ns,
        *,
        kernel: KernelName = "rust",
    ) -> None:
        self._clock = clock
        self._folder = JsonlFolder(address)
        self._state = self._open(IndexRebuilder(kernel))
        self._writer = JsonlWriter(self._folder, self._state, clock)
        self._writing = ThreadPoolExecutor(1, "perdure-jsonl-writer")
        self._group = GroupCommitter(self._writer.write, self._writing, str(self._folder))
        self._reading = ThreadPoolExecutor(_READERS, "perdure-jsonl-reader")
        self._closing: Future[None] | None = None

    def _open(self, rebuilder: IndexRebuilder) -> JsonlState:
        self._folder.open()
        try:
            return loaded(self._folder, rebuilder)
        except OSError as error:
            self._folder.close(durable=False)
            raise StoreError(f"{self._folder} cannot be read ({error}); see who may read there") from None
        except BaseException:
            self._folder.close(durable=False)
            raise

    def __repr__(self) -> str:
        return f"<JsonlEventStore: {self._folder}>"

    async def commit(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        """As `FlowEventStore.commit`; also `RunConflict("case")` for a new run whose file exists under another case."""
        return await self._group.commit(appends)

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """As `FlowEventStore.history`."""
        with self._index(run_id) as index:
            last_sequence = index.state(run_id).last_sequence
            if last_sequence == 0:
                raise RunNotFound(run_id)
            if after >= last_sequence:
                return b""
            end = self._state.logs[run_id].end
        file = self._folder.file(run_id, ".jsonl")
        data = await asyncio.get_running_loop().run_in_executor(self._reading, _read, file, end)
        return lines_after(events(data), 1, after)

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        """As `FlowEventStore.list_due_wakeups`."""
        check_limit(limit)
        with self._index() as index:
            return index.due(now, limit)

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """As `FlowEventStore.next_scheduled_wakeup`."""
        with self._index() as index:
            return index.next_wakeup()

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """As `FlowEventStore.find_active_hooks`."""
        with self._index() as index:
            return index.find_hooks(token_hash)

    async def list_active_hooks(self) -> list[ActiveHook]:
        """As `FlowEventStore.list_active_hooks`."""
        with self._index() as index:
            return index.hooks()

    async def runs(self, filter: RunFilter = ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
        """As `FlowEventStore.runs`. A run whose file is damaged has no row."""
        check_limit(limit)
        with self._index() as index:
            return index.runs(filter, after, limit)

    async def run_ids(self) -> list[str]:
        """As `FlowEventStore.run_ids`; those whose file is damaged are among them."""
        with self._index() as index:
            return sorted([*index.run_ids(), *self._state.damaged])

    async def summary(self) -> RunSummary:
        """As `FlowEventStore.summary`."""
        with self._index() as index:
            return index.summary()

    async def claim(
        self,
        owner: str,
        k: int,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds)
        return await self._between_groups(lambda: self._writer.claim(owner, k, wanted, ttl_ns))

    async def claim_held(
        self,
        owner: str,
        k: int,
        *,
        build: str,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim_held`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds)
        return await self._between_groups(lambda: self._writer.claim_held(owner, k, build, wanted, ttl_ns))

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
    ) -> int | None:
        """As `FlowEventStore.next_claim`."""
        with self._index() as index:
            return index.next_claim(Wanted(workflows, builds))

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """As `FlowEventStore.renew`."""
        return await self._between_groups(lambda: self._writer.renew(owner, pairs, ttl_ns))

    async def lease(self, run_id: str) -> LeaseState:
        """As `FlowEventStore.lease`."""
        with self._index(run_id) as index:
            if not index.exists(run_id):
                raise RunNotFound(run_id)
            state = index.state(run_id)
        return leases.state_of(state.lease, state.last_sequence, self._clock())

    async def last_sequences(self, run_ids: Collection[str]) -> dict[str, int]:
        """As `FlowEventStore.last_sequences`."""
        with self._index() as index:
            return {run_id: index.state(run_id).last_sequence for run_id in run_ids if index.exists(run_id)}

    async def void(self, owner: str) -> int:
        """As `FlowEventStore.void`."""
        return await self._between_groups(lambda: self._writer.void(owner))

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        """As `FlowEventStore.set_hold`."""
        return await self._between_groups(lambda: self._writer.set_hold(run_id, hold, expected_sequence))

    async def release_hold(self, run_id: str) -> bool:
        """As `FlowEventStore.release_hold`."""
        return await self._between_groups(lambda: self._writer.release_hold(run_id))

    async def changes(self) -> int:
        """As `FlowEventStore.changes`. Nobody else writes."""
        with self._index():
            return self._state.changes

    async def close(self) -> None:
        """As `FlowEventStore.close`; the folder is given up. Later calls raise `StoreError`."""
        if self._closing is None:
            self._group.close()
            # Behind what is queued: there is one writing thread and it works in order.
            self._closing = self._writing.submit(self._give_up)
            self._writing.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def clock(self) -> int:
        """As `FlowEventStore.clock`."""
        return self._clock()

    def _give_up(self) -> None:
        with self._state.lock:
            durable = self._state.failed is None
            self._state.failed = StoreError(f"{self._folder} is closed; open the store again to use it")
        self._reading.shutdown(wait=True)
        self._folder.close(durable=durable)

    @contextmanager
    def _index(self, run_id: str | None = None) -> Iterator[MemoryIndex]:
        """The index, while nobody changes it. Raises what stands in the way of an answer, or of one about this run."""
        with self._state.lock:
            self._state.check(run_id)
            yield self._state.index

    async def _between_groups(self, work: Callable[[], T]) -> T:
        def checked() -> T:
            self._state.check()
            return work()

        return await self._group.between_groups(checked)


def _read(file: Path, end: int) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(end)
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}); restore it, and open the store again") from None
    if len(data) != end:
        raise StoreError(f"{file} has {len(data)} bytes where {end} were written; restore it, and open the store again")
    return data
