"""Threads for synchronous steps: daemons that are made when none is idle and that nobody ever waits for (R54).

Not `concurrent.futures`: its pools queue work behind a stuck step and join their threads when the interpreter exits,
and a step that hangs must do neither. How many run at once is bounded per run by the engine's `concurrency` (R26).

An event loop that must know which steps are under way on threads, such as one whose clock stands still meanwhile, has a method
`watch_step`: it is given each callable before a thread is, and gives what the thread runs in its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["StepThreads"]

_log = logging.getLogger("perdure")
_IDLE_SECONDS: Final = 30.0
_ABANDONED_WARNING: Final = 8


class StepThreads:
    """Runs callables on daemon threads; an idle thread is used again and ends after 30 s without work."""

    def __init__(self, name: str = "perdure-step") -> None:
        self._name = name
        self._lock = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._abandoned = 0
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Runs `work`, which must not raise, on some thread at once. Called on the event loop that waits for it."""
        watch_step = getattr(asyncio.get_running_loop(), "watch_step", None)
        if watch_step is not None:
            work = watch_step(work)
        with self._lock:
            self._work.append(work)
            if self._idle >= len(self._work):
                self._lock.notify()
                return
        threading.Thread(target=self._serve, name=self._name, daemon=True).start()

    def abandon(self) -> None:
        """Counts a thread whose result nobody wants any more, and warns when they pile up."""
        with self._lock:
            self._abandoned += 1
            count = self._abandoned
        if count == _ABANDONED_WARNING:
            _log.warning(
                "%d step threads were abandoned by this engine; give long steps a time limit they check", count
            )

    def close(self) -> None:
        """Lets idle threads end. Never joins: a stuck step must not keep the process from exiting."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                self._lock.wait_for(lambda: self._work or self._closed, timeout=_IDLE_SECONDS)
                self._idle -= 1
                if not self._work:
                    return
                work = self._work.popleft()
            work()
