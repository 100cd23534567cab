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
from importlib import import_module
from types import FrameType

from perdure.kernel import load
from perdure.retention import RunSelection
from perdure.stores import FlowEventStore, open_store
from perdure.testing._stories import START, Story, child, created, hook, started

GOING = ("kid", "lone", "parent")
LATER = START * 2
CHECKPOINTER = "perdure-sqlite-checkpointer"


class Steps:
    """Kills the process at a step: a statement sent to a database, or a file opened, renamed or removed. Threads that are
    there before are not seen."""

    def __init__(self, kind: str) -> None:
        self.left: int | None = None
        """How many more steps the process lives; None is for ever."""
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
        if event != "c_call" or getattr(argument, "__name__", "") != "execute":
            return False
        return threading.current_thread().name != CHECKPOINTER  # whose statements come at any time between the others

    def _is_postgres(self, frame: FrameType, event: str, argument: object) -> bool:
        return event == "call" and frame.f_code.co_name == "_ask"

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Round:
    """The runs of one kill, told from those of the others by the beginning of their ids."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefix = f"{number:04}-"

    def id(self, name: str) -> str:
        return self.prefix + name

    async def left(self, store: FlowEventStore) -> list[str]:
        return [run_id for run_id in await store.run_ids() if run_id.startswith(self.prefix)]

    async def fill(self, store: FlowEventStore) -> None:
        kernel, ended = load("rust"), {"type": "run_completed", "output": None}
        await Story(kernel, self.id("kid")).write(store, created(), hook("h", "canary-killed"), ended)
        await Story(kernel, self.id("parent")).write(store, created(), child("c", self.id("kid")), ended)
        await Story(kernel, self.id("lone")).write(store, created(), started(), ended)
        await Story(kernel, self.id("open")).write(store, created(), started())
        await store.hold_history(self.id("open"), "h", "why")

    async def prune(self, store: FlowEventStore, steps: Steps) -> None:
        steps.left = self.number
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


def apart(kind: str, address: str, number: int) -> int:
    """A life in a process of its own; gives its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        steps = Steps(kind)
        asyncio.run(from_kill_to_kill(open_store(address), steps, number))
        status = 0
    except Exception:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


async def from_kill_to_kill(store: FlowEventStore, steps: Steps, number: int) -> None:
    """Looks what the kill before this one left, and is killed in turn."""
    if number > 1:
        await Round(number - 1).check(store)
    this = Round(number)
    await this.fill(store)
    await this.prune(store, steps)
    steps.left = None
    await store.close()


def main(kind: str, address: str) -> None:
    load("rust")
    if kind == "postgres":
        import_module("perdure.stores.postgres")  # once, not in every process
    number = 0
    while True:
        number += 1
        ended = apart(kind, address, number)
        if ended == 0:
            sys.stdout.write(f"{number - 1}\n")
            return
        assert ended == -signal.SIGKILL, f"after a kill at step {number - 1}"


if __name__ == "__main__":
    main(*sys.argv[1:])
