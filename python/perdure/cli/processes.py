"""The parent of worker processes: spawns them, ends the leases of those that die, starts them again, passes signals on."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from typing import Final

from perdure.errors import StoreError
from perdure.stores import open_store

__all__ = ["Processes"]

_log = logging.getLogger("perdure.processes")
_FAILED: Final = 1
_USAGE: Final = 2
_NOT_STARTED: Final = 126
_SIGNALLED: Final = 128
_FIRST_BACKOFF: Final = 0.5
_LAST_BACKOFF: Final = 30.0
_STEADY: Final = 30.0
"""Seconds after which a child counts as one that works, so that its death is followed by a new one at once."""
_LAST_WARNING: Final = 10.0
"""Seconds between the end of all patience and SIGKILL."""


class Processes:
    """Keeps `count` children alive until it is told to end. Never forks: a child is a new interpreter (R55). This process
    opens the store only to end the leases of a child that died (R2)."""

    def __init__(self, command: Sequence[str], count: int, store: str, drain_seconds: float) -> None:
        self._command = command
        self._count = count
        self._store = store
        self._drain_seconds = drain_seconds
        self._children: set[asyncio.subprocess.Process] = set()
        self._ending = asyncio.Event()
        self._signals: list[int] = []
        self._status = 0

    async def run(self) -> int:
        """Until a signal has ended all children, or each has ended well by itself. Gives the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(self._kill_in_the_end())
                keeping = [group.create_task(self._keep(number + 1)) for number in range(self._count)]
                await asyncio.wait(keeping)
                killing.cancel()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        return _SIGNALLED + self._signals[-1] if len(self._signals) > 1 else self._status

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        self._tell(number)
        self._ending.set()

    def _tell(self, number: int) -> None:
        for child in self._children:
            if child.returncode is None:
                child.send_signal(number)

    async def _kill_in_the_end(self) -> None:
        await self._ending.wait()
        await asyncio.sleep(self._drain_seconds + _LAST_WARNING)
        _log.error("children that do not end are killed")
        self._tell(signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        """One place among the children: whoever dies there is replaced, after a pause that grows while they die young."""
        loop = asyncio.get_running_loop()
        pause = _FIRST_BACKOFF
        while not self._ending.is_set():
            began = loop.time()
            status = await self._live()
            if self._ending.is_set() or status == 0:
                return
            if status == _USAGE:
                self._status = _USAGE
                self._on_usage()
                return
            pause = 0.0 if loop.time() - began > _STEADY else pause
            _log.warning("worker %d ended with status %d; another one starts in %g s", number, status, pause)
            await self._pause(pause)
            pause = min(_LAST_BACKOFF, max(_FIRST_BACKOFF, pause * 2))

    def _on_usage(self) -> None:
        """No child can begin with these arguments."""
        self._tell(signal.SIGTERM)
        self._ending.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return

    async def _live(self) -> int:
        """The life of one child; its exit status."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*self._command, "--parent", str(theirs.fileno())]
            try:
                # A group of its own: Ctrl-C on a terminal reaches this process only, which passes it on once.
                child = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()], process_group=0)
            except OSError as error:  # no memory or no program for a moment; the other children work on
                ours.close()
                _log.error("a worker cannot be started: %s", error)
                return _NOT_STARTED
        self._children.add(child)
        if self._signals:
            child.send_signal(self._signals[-1])  # it came while the child began
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            owner = (await reader.readline()).decode().strip()
            status = await child.wait()
        finally:
            writer.close()
        self._children.discard(child)
        if owner and status:
            await self._void(owner)
            return _FAILED if status == _USAGE else status  # it had begun to work: its arguments were right
        return status

    async def _void(self, owner: str) -> None:
        """It died without giving its leases back, and is reaped: others may take its runs at once (R2)."""
        try:
            store = open_store(self._store, migrate=False)
            try:
                count = await store.void(owner)
            finally:
                await store.close()
        except StoreError as error:
            _log.warning("the leases of a child that died could not be ended and will expire: %s", error.code)
        else:
            if count:
                _log.warning("%d runs of a child that died can be claimed again", count)
