"""The process that drives the runs: it polls, until there are workers that do it better."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.demo.ledger import Attempt
from perdure.demo.orders import flow, ledger
from perdure.engine import FlowEngine
from perdure.kernel import KernelName
from perdure.stores import RunFilter

__all__ = ["work"]

_POLL_SECONDS = 0.05


def work(db: Path, effects: Path, kernel: KernelName, process: str, hold: Attempt | None) -> None:
    """Carries on every open run of the store until all have ended. Raises the first error of a drive."""
    logging.getLogger("perdure").setLevel(logging.ERROR)  # the demo tells of its failures itself
    ledger.open(effects, process, hold)
    asyncio.run(_carry_on(str(db), kernel))


async def _carry_on(db: str, kernel: KernelName) -> None:
    parent = os.getppid()
    async with FlowEngine(flow, db, kernel=kernel) as engine:
        poller = _Poller(engine)
        # A process whose director is gone stops too: the demo leaves nothing behind.
        while await poller.look() and os.getppid() == parent:  # noqa: ASYNC110 - other processes cannot set an Event
            await asyncio.sleep(_POLL_SECONDS)


class _Poller:
    """Drives each open run at the start, whenever its history has grown, and once a second; and wakes what is due.

    A drive that adds nothing proves that the workflow has seen everything, so what another process appends while a drive
    ends is never missed. Once a second is for a run that its former process still seems to hold.
    """

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._seen: dict[str, tuple[int, int]] = {}
        self._drives: dict[str, asyncio.Task[object]] = {}

    async def look(self) -> bool:
        """One round; False once no run is open."""
        for run_id in [run_id for run_id, drive in self._drives.items() if drive.done()]:
            self._drives.pop(run_id).result()
        runs = (await self._engine.runs(RunFilter(terminal=False))).runs
        second = int(time.monotonic())
        for run in runs:
            if self._seen.get(run.run_id) != (run.last_sequence, second) and run.run_id not in self._drives:
                self._seen[run.run_id] = (run.last_sequence, second)
                self._begin(run.run_id, self._engine.drive(run.run_id))
        now = datetime.now(UTC)
        wakeup = await self._engine.next_wakeup(now)
        if wakeup is not None and wakeup["due"] and wakeup["run_id"] not in self._drives:
            self._begin(wakeup["run_id"], self._engine.resume_scheduled_run(wakeup["run_id"], now))
        return bool(runs or self._drives)

    def _begin(self, run_id: str, drive: Coroutine[Any, Any, object]) -> None:
        self._drives[run_id] = asyncio.create_task(drive)
