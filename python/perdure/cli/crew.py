"""What one process of `perdure worker` does: it carries on runs, and does the tasks of queues, until it is told to end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import typer

from perdure.builds import RuntimeBuildCompatibility
from perdure.cli.shared import opened
from perdure.codec import PayloadCodec
from perdure.engine import FlowEngine
from perdure.errors import InvalidWorkerConfiguration
from perdure.flow import FlowRuntime
from perdure.queues import DurableTaskQueue, TaskWorker
from perdure.worker import FlowWorker
from perdure.worker.signals import signals_handled

__all__ = ["SIGNALLED", "Crew", "Settings", "leave_at_once"]

SIGNALLED: Final = 128
"""What a shell adds to the number of a signal."""
_LAST_SECONDS: Final = 3.0
_FAILED: Final = 1
_AT_ONCE_SECONDS: Final = 3.0


def leave_at_once(status: int) -> None:
    """Threads of steps, and whatever else user code began, are not waited for."""
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    store: str
    concurrency: int
    claim_batch: int
    builds: RuntimeBuildCompatibility | None
    codec: PayloadCodec | None
    queues: Collection[str]
    lease_ttl: timedelta
    drain_timeout: timedelta
    until_idle: bool


class Crew:
    """A worker of runs, and one of tasks for each queue, on one engine."""

    def __init__(self, runtime: FlowRuntime, settings: Settings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._signals: list[int] = []
        self._told = False
        self._status = _FAILED
        self._leaving: threading.Timer | None = None

    async def work(self, parent: int | None) -> int:
        """Until a signal, the end of the parent, or with `until_idle` the end of the work. Gives the exit status. What a step
        left behind, a thread or a task that does not end, may keep the event loop from ending; then the process ends a moment
        after its work, unless `ended` is called."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(opened(settings.store, make=True))
            engine = FlowEngine(
                self._runtime, store, builds=settings.builds, codec=settings.codec, lease_ttl=settings.lease_ttl
            )
            self._runs = FlowWorker(
                engine,
                concurrency=settings.concurrency,
                claim_batch=settings.claim_batch,
                drain_timeout=settings.drain_timeout,
            )
            try:
                queues = [DurableTaskQueue(store, name, codec=settings.codec) for name in settings.queues]
            except InvalidWorkerConfiguration as error:
                raise typer.BadParameter(str(error), param_hint="--queue") from None
            self._tasks = [TaskWorker(engine, queue, drain=settings.drain_timeout) for queue in queues]
            with signals_handled(self._on_signal):
                if parent is not None:
                    self._listen_to(parent, engine.owner)
                try:
                    await (self._work_until_idle() if settings.until_idle else self._work_on())
                    self._status = 0
                finally:
                    self._leave_soon()
            if len(self._signals) < 2:  # told twice: what resists is not waited for
                await engine.close()
        return self._exit_status()

    def _exit_status(self) -> int:
        return SIGNALLED + self._signals[-1] if len(self._signals) > 1 else self._status

    def _leave_soon(self) -> None:
        if self._told:
            self._leaving = threading.Timer(_LAST_SECONDS, lambda: leave_at_once(self._exit_status()))
            self._leaving.daemon = True
            self._leaving.start()

    def ended(self) -> None:
        """The event loop has ended."""
        if self._leaving is not None:
            self._leaving.cancel()

    async def _work_on(self) -> None:
        """Whichever of them cannot go on ends the others in order, and its error is raised."""
        working = [asyncio.create_task(worker.run_forever()) for worker in self._tasks]
        working.append(asyncio.create_task(self._runs.run_forever(signals=False)))
        done, going = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        if going and not self._signals:
            self._stop()
        while going and len(self._signals) < 2:
            more, going = await asyncio.wait(going, timeout=0.05)
            done |= more
        for worker in done:
            worker.result()

    async def _work_until_idle(self) -> None:
        for worker in self._tasks:
            await worker.run_until_idle()
        await self._runs.run_until_idle()

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        self._stop()
        if len(self._signals) > 1:  # a store that does not answer must not keep the process either
            asyncio.get_running_loop().call_later(_AT_ONCE_SECONDS, leave_at_once, SIGNALLED + number)

    def _stop(self) -> None:
        self._told = True
        self._runs.stop()
        for worker in self._tasks:
            worker.stop()

    def _listen_to(self, descriptor: int, owner: str) -> None:
        """Tells the parent who this is, so that it can end the leases of a child that died; and ends when the parent is
        gone."""
        connection = socket.socket(fileno=descriptor)
        connection.sendall(owner.encode() + b"\n")
        connection.setblocking(False)
        loop = asyncio.get_running_loop()

        def heard() -> None:
            if not connection.recv(1):
                loop.remove_reader(connection)
                connection.close()
                self._stop()

        loop.add_reader(connection, heard)
