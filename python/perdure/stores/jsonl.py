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

from perdure.errors import FlowError, RunNotFound, StoreError
from perdure.kernel import KernelName
from perdure.rebuild import IndexRebuilder
from perdure.retention import HistoryHold, Tombstone
from perdure.stores.base import Append, Committed
from perdure.stores.group import GroupCommitter
from perdure.stores.index import MemoryIndex
from perdure.stores.indexed import IndexedStore
from perdure.stores.jsonl_folder import JsonlFolder
from perdure.stores.jsonl_lines import events
from perdure.stores.jsonl_retention import (
    PRUNED,
    bury,
    forget,
    keep_history_holds,
    load_history_holds,
    read_tombstone,
)
from perdure.stores.jsonl_state import JsonlState, loaded
from perdure.stores.jsonl_writer import JsonlWriter
from perdure.stores.rules import lines_after

__all__ = ["JsonlEventStore"]

T = TypeVar("T")
_READERS: Final = 2


class JsonlEventStore(IndexedStore):
    """Histories as files `<run_id>.jsonl` of one folder; the index is in memory.

    `address`: a folder, `jsonl:///folder` (a fourth slash begins an absolute path), `jsonl://folder` or
    `jsonl:folder`; it is made where it is missing. `clock` gives ns since
    1970-01-01T00:00:00Z (R45). `kernel` reads the histories to build the index, before the constructor returns.

    One process owns the folder at a time: while one does, the constructor raises `StoreUnavailable` naming it. It raises
    `StoreError` for a folder that cannot be used. A run whose file is damaged is logged, and every call about it raises
    `StoreError` naming file and line; the other runs are there. Of leases nothing is kept: after opening, every open run
    can be claimed once, unless it is held. Run ids that differ only in upper and lower case exclude each other (R34). A
    commit is written on the event loop while the disk takes less than 0.3 ms for one, and by a thread otherwise.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        clock: Callable[[], int] = time.time_ns,
        *,
        kernel: KernelName = "rust",
    ) -> None:
        super().__init__(clock)
        self._process = os.getpid()
        self._folder = JsonlFolder(address)
        self._state = self._open(IndexRebuilder(kernel))
        self._writer = JsonlWriter(self._folder, self._state, clock)
        self._writing = ThreadPoolExecutor(1, "perdure-jsonl-writer")
        self._group = GroupCommitter(self._writer.write, self._writing, str(self._folder), self._writer)
        self._reading = ThreadPoolExecutor(_READERS, "perdure-jsonl-reader")
        self._closing: Future[None] | None = None

    def _open(self, rebuilder: IndexRebuilder) -> JsonlState:
        self._folder.open()
        try:
            if buried := set(self._folder.runs_with(".tombstone.json")):
                for suffix in PRUNED:  # where a prune was cut short
                    self._folder.remove(buried.intersection(self._folder.runs_with(suffix)), suffix)
            state = loaded(self._folder, rebuilder)
            load_history_holds(self._folder, state)
            return state
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
        self._check_process()
        return await self._group.commit(appends)

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """As `FlowEventStore.history`."""
        with self._index(run_id) as index:
            last_sequence = index.state(run_id).last_sequence
            if last_sequence == 0:
                raise RunNotFound(run_id)
            if after >= last_sequence:
                return b""
            log = self._state.logs[run_id]
            (first_sequence, start), end = log.place_of(after + 1), log.end
        file = self._folder.file(run_id, ".jsonl")
        try:
            data = await asyncio.get_running_loop().run_in_executor(self._reading, _read, file, start, end)
        except StoreError:
            with self._index(run_id) as index:
                if index.pruned(run_id):  # meanwhile
                    raise RunNotFound(run_id) from None
            raise
        return lines_after(events(data), first_sequence, after)

    async def tombstone(self, run_id: str) -> Tombstone | None:
        """As `FlowEventStore.tombstone`. Raises `StoreError` for a tombstone that cannot be read."""
        with self._index() as index:
            if not index.pruned(run_id):
                return None
        return read_tombstone(self._folder, run_id)

    async def run_ids(self) -> list[str]:
        """As `FlowEventStore.run_ids`; those whose file is damaged are among them."""
        with self._index() as index:
            return sorted([*index.run_ids(), *self._state.damaged])

    async def close(self) -> None:
        """As `FlowEventStore.close`; the folder is given up. Later calls raise `StoreError`."""
        if os.getpid() != self._process:
            return  # the folder is the parent's
        if self._closing is None:
            self._group.close()
            # Behind what is queued: there is one writing thread and it works in order.
            self._closing = self._writing.submit(self._give_up)
            self._writing.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _give_up(self) -> None:
        with self._state.lock:
            durable = self._state.failed is None
            self._state.failed = StoreError(f"{self._folder} is closed; open the store again to use it")
        self._reading.shutdown(wait=True)
        self._folder.close(durable=durable)

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # no thread of the store came along, and the folder is still the parent's
            raise StoreError(
                f"{self._folder} was opened by process {self._process}, of which this one is a fork; a JSONL store has one "
                "owner: open it after the fork, in one of them, or use an SQLite store for several processes"
            )

    @contextmanager
    def _index(self, run_id: str | None = None) -> Iterator[MemoryIndex]:
        self._check_process()
        with self._state.lock:
            self._state.check(run_id)
            yield self._state.index

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowEventStore.wait_for_change`."""
        return await self._group.bell.wait(self.changes, seen, timeout_seconds)

    async def _alone(self, work: Callable[[], T]) -> T:
        self._check_process()
        return await self._group.between_groups(work)

    def _bury(self, run_ids: Sequence[str], deleted_at: int) -> None:
        bury(self._folder, self._state, run_ids, deleted_at)

    def _forget(self, run_ids: Sequence[str]) -> None:
        forget(self._folder, self._state, run_ids)

    def _keep_history_holds(self, run_id: str, holds: Collection[HistoryHold]) -> None:
        keep_history_holds(self._folder, run_id, holds)

    def _keep_hold(self, run_id: str, hold: str) -> None:
        self._writer.keep_hold(run_id, hold)

    def _drop_hold(self, run_id: str) -> None:
        self._writer.drop_hold(run_id)


def _read(file: Path, start: int, end: int) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            data = opened.read(end - start)
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}); restore it, and open the store again") from None
    if start + len(data) != end:
        raise StoreError(
            f"{file} has {start + len(data)} bytes where {end} were written; restore it, and open the store again"
        )
    return data
