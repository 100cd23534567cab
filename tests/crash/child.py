"""What a process of scenario 60 does: it carries the runs on over a durable store and may kill itself at a commit.

`python -m crash.child` is their nursery: it has imported everything and forks one process for each line it reads, so a test
can afford hundreds of them. Nothing but the store, the ledger of side effects and the count of commits passes from one process
to the next.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.kit import Clock

from crash.program import carry_on, everything
from perdure import FlowEngine
from perdure.errors import FlowError
from perdure.kernel import KernelName, load
from perdure.stores import JsonlEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import Append, Committed, FlowEventStore, RunFilter

__all__ = ["Life", "live", "open_files", "serve"]


@dataclass(frozen=True)
class Life:
    """What a process is told: where its files are, and before or after which commit, counted over all processes, it dies."""

    folder: Path
    kernel: KernelName
    kill_at: int = 0
    side: str = "before"
    store: str = "sqlite"
    """"sqlite", "jsonl", or the URL of a PostgreSQL server, where each folder has a schema of its name."""

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def commits(self) -> Path:
        """One byte for each commit that was begun."""
        return self.folder / "commits"


class MortalStore:
    """Counts the commits in a file and dies right before or right after one of them."""

    def __init__(self, inner: FlowEventStore, life: Life) -> None:
        self._inner = inner
        self._life = life

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        with self._life.commits.open("ab", buffering=0) as count:
            count.write(b".")
            number = count.tell()
        if (number, self._life.side) == (self._life.kill_at, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        answers = await self._inner.commit(appends)
        if (number, self._life.side) == (self._life.kill_at, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def opened(life: Life, clock: Clock) -> FlowEventStore:
    """The store of a life, without waiting for a disk."""
    if life.store == "sqlite":
        return SqliteEventStore(life.folder / "runs.db", clock, "NORMAL")
    if life.store == "jsonl":
        return JsonlEventStore(life.folder / "runs", clock, kernel=life.kernel)
    return PostgresEventStore(life.store, clock, schema=f"{life.folder.parent.name}/{life.folder.name}")


async def open_files(life: Life) -> tuple[FlowEventStore, Clock]:
    """The store, and a clock that shows the latest instant anything in it was written."""
    clock = Clock()
    store = opened(life, clock)
    page = await store.runs(RunFilter())
    clock.ns = max([clock.ns, *(row.updated_at for row in page.runs)])
    return store, clock


def live(life: Life, until_approval: bool) -> None:
    """The body of the process."""

    def effect(line: str) -> None:
        with life.ledger.open("a") as ledger:
            ledger.write(line + "\n")

    async def work() -> None:
        store, clock = await open_files(life)
        mortal: Any = MortalStore(store, life)
        flow = everything(effect)
        async with FlowEngine(flow, mortal, kernel=life.kernel) as engine:
            await carry_on(engine, clock, until_approval=until_approval)
        await store.close()

    asyncio.run(work())


def serve() -> None:
    """The nursery: `[folder, kernel, kill_at, side, store, until_approval]` in, the wait status of that process out."""
    for kernel in ("rust", "pure"):
        load(kernel)
    for line in sys.stdin:
        folder, kernel, kill_at, side, store, until_approval = json.loads(line)
        child = os.fork()
        if not child:
            code = 1
            try:
                live(Life(Path(folder), kernel, kill_at, side, store), until_approval)
                code = 0
            except BaseException:  # noqa: BLE001 - the fork must end here, whatever it raised
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
