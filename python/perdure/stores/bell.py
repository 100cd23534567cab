"""Waiting for a change of a store: a bell that its own process rings, and a look now and then at what others did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

__all__ = ["Bell"]

_LONGEST_SECONDS: Final = 60.0


class Bell:
    """Wakes those who wait, on any event loop, when it is rung, by any thread. Ringing it with nobody there costs a look."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def ring(self) -> None:
        """Wakes everybody who waits. What they wait for has been counted before."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, rung in waiting:
            try:
                loop.call_soon_threadsafe(_wake, rung)
            except RuntimeError:
                # The loop was closed while somebody waited there: nobody is left to wake.
                continue

    async def wait(
        self,
        changes: Callable[[], Awaitable[int]],
        seen: int,
        timeout_seconds: float,
        look_seconds: float = _LONGEST_SECONDS,
    ) -> int:
        """As `FlowEventStore.wait_for_change`. Asks `changes` at once, when the bell rings, and every `look_seconds`, for
        what no bell is rung for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            with self._listening(loop) as rung:
                # Looked at after listening: what came before this moment is counted, what comes later rings.
                now = await changes()
                left = deadline - loop.time()
                if now != seen or left <= 0:
                    return now
                await asyncio.wait([rung], timeout=min(left, look_seconds))

    @contextmanager
    def _listening(self, loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Future[None]]:
        entry = (loop, loop.create_future())
        with self._lock:
            self._waiting.append(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)


def _wake(rung: asyncio.Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
