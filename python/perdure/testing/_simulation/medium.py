"""The store under the simulation, as one thing at which every request takes effect at one instant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final, Literal, TypeVar

from perdure.errors import RunNotFound
from perdure.stores import MemoryEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore, LeaseState

__all__ = ["Medium", "StoreName", "opened"]

T = TypeVar("T")
StoreName = Literal["memory", "sqlite"]
_MEMORY_DISK: Final = Path("/dev/shm")


class Medium:
    """A store whose calls are made to their end, one at a time, while the simulated world stands still."""

    def __init__(
        self, store: FlowEventStore, clock: Callable[[], int], run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self.store = store
        self.clock = clock
        self._run = run
        self.calls = 0

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The answer of one call of the store."""
        answer: T = self._run(call)
        return answer

    def lease(self, run_id: str) -> LeaseState | None:
        """The lease columns of a run; None for an unknown one."""
        try:
            return self.run(self.store.lease(run_id))
        except RunNotFound:
            return None


@contextmanager
def opened(name: StoreName, clock: Callable[[], int]) -> Iterator[Medium]:
    """An empty store on the given clock."""
    if name == "memory":
        yield Medium(MemoryEventStore(clock), clock, _run_at_once)
        return
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="perdure-simulation-store", daemon=True)
    thread.start()

    def run(call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    with TemporaryDirectory(
        prefix="perdure-simulation-", dir=_MEMORY_DISK if _MEMORY_DISK.is_dir() else None
    ) as folder:
        store = SqliteEventStore(Path(folder) / "runs.db", clock, "NORMAL")
        try:
            yield Medium(store, clock, run)
        finally:
            run(store.close())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _run_at_once(call: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits: the memory store's."""
    try:
        call.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    raise RuntimeError("the memory store waited for something")
