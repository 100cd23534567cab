"""A program: prunes a store in a process of its own that is killed at the n-th step, for every n there is, and looks each time
whether the next prune finishes the work. Prints how many kills there were.

    python -m retention.killed sqlite|jsonl|postgres <address of an empty store>
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from types import FrameType

from perdure.kernel import load
from perdure.retention import RunSelection
from perdure.stores import FlowEventStore, open_store
from perdure.testing._stories import START, Story, child, created, hook, started

GOING = ("kid", "lone", "parent", "z1", "z2")
LATER = START * 2


class Steps:
    """Kills the process at the step numbered `last`: a statement sent to a database, or a file opened, renamed or removed."""

    def __init__(self, kind: str, last: int) -> None:
        self._left = last
        if kind == "jsonl":
            sys.addaudithook(self._on_file)
        else:
            self._is_step = {"sqlite": self._is_sqlite, "postgres": self._is_postgres}[kind]
            threading.setprofile(self._on_call)
            sys.setprofile(self._on_call)

    def _on_file(self, event: str, arguments: object) -> None:
        if event in ("open", "os.rename", "os.remove") and ".json" in str(arguments):
            self._count()

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        if self._is_step(frame, event, argument):
            self._count()

    def _is_sqlite(self, frame: FrameType, event: str, argument: object) -> bool:
        return event == "c_call" and getattr(argument, "__name__", "") == "execute"

    def _is_postgres(self, frame: FrameType, event: str, argument: object) -> bool:
        return event == "call" and frame.f_code.co_name == "_ask"

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Round:
    """The runs of one kill, told from those of the others by the beginning of their ids."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number
        self.prefix = f"{number:04}-"

    def id(self, name: str) -> str:
        return self.prefix + name

    async def left(self, store: FlowEventStore) -> list[str]:
        return [run_id for run_id in await store.run_ids() if run_id.startswith(self.prefix)]

    async def fill(self, store: FlowEventStore) -> None:
        kernel, ended = load("rust"), {"type": "run_completed", "output": None}
        await Story(kernel, self.id("kid")).write(store, created(), hook("h", "canary-killed"), ended)
        await Story(kernel, self.id("parent")).write(store, created(), child("c", self.id("kid")), ended)
        for name in ("lone", "z1", "z2"):
            await Story(kernel, self.id(name)).write(store, created(), started(), ended)
        await Story(kernel, self.id("open")).write(store, created(), started())
        await store.hold_history(self.id("open"), "h", "why")

    async def prune(self, store: FlowEventStore) -> None:
        Steps(self.kind, self.number)
        await store.prune(LATER, RunSelection(prefix=self.prefix), batch=2)

    async def check(self, store: FlowEventStore) -> None:
        """What a killed prune left is whole, and the next prune does the rest."""
        left = await self.left(store)
        digests = {run_id: hashlib.sha256(await store.history(run_id)).hexdigest() for run_id in left}
        for name in GOING:
            run_id = self.id(name)
            assert (await store.tombstone(run_id) is None) == (run_id in left), run_id
        report = await store.prune(LATER, RunSelection(prefix=self.prefix))
        still_open = self.id("open")
        assert sorted(report.deleted.first) == sorted({*left} - {still_open})
        assert await self.left(store) == [still_open]
        for run_id in left:
            found = await store.tombstone(run_id)
            assert (found.history_sha256 if found else None) == (None if run_id == still_open else digests[run_id])
        assert len(await store.history_holds(still_open)) == 1


def apart(work: Callable[[FlowEventStore], Awaitable[None]], address: str) -> int:
    """Does work with the store in a process of its own; gives its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        asyncio.run(_on(work, address))
        status = 0
    except Exception:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


async def _on(work: Callable[[FlowEventStore], Awaitable[None]], address: str) -> None:
    store = open_store(address)
    await store.run_ids()
    await work(store)
    await store.close()


async def from_kill_to_kill(store: FlowEventStore, kind: str, number: int) -> None:
    """Looks what the kill before this one left, and is killed in turn."""
    if number > 1:
        await Round(kind, number - 1).check(store)
    this = Round(kind, number)
    await this.fill(store)
    await this.prune(store)


def main(kind: str, address: str) -> None:
    load("rust")
    if kind == "postgres":
        import_module("perdure.stores.postgres")  # once, not in every process
    number = 0
    while True:
        number += 1
        ended = apart(partial(from_kill_to_kill, kind=kind, number=number), address)
        if ended == 0:
            sys.stdout.write(f"{number - 1}\n")
            return
        assert ended == -signal.SIGKILL, f"after a kill at step {number - 1}"


if __name__ == "__main__":
    main(*sys.argv[1:])
