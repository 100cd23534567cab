"""Observers: told of every committed event, in order, beside the drive and never in its way (R52)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, Protocol

from perdure.envelope import Envelope
from perdure.kernel import Batch, Run
from perdure.spec import WorkflowSpec

__all__ = ["Observation", "Observer", "ObserverQueue"]

_log = logging.getLogger("perdure")
_CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One committed event. `status` is the run's after the commit that holds it."""

    envelope: Envelope
    spec: WorkflowSpec
    status: str


class Observer(Protocol):
    """Called once for each committed event, also of batches; may be a coroutine function. What it raises is logged
    once."""

    def observe(self, observation: Observation) -> Awaitable[None] | None: ...


class ObserverQueue:
    """A bounded queue before one observer. Full, it drops the newest with a counter and one log line."""

    def __init__(self, observer: Observer, limit: int = 10_000) -> None:
        self._observer = observer
        self._limit = limit
        self._waiting: deque[tuple[Envelope, WorkflowSpec, str]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._complained = False
        self.dropped = 0

    def put(self, run: Run, batch: Batch) -> None:
        """Hands over the events of a committed batch; never waits."""
        spec, status = WorkflowSpec.from_json(run.spec), batch.row.status
        for envelope in Envelope.parse_lines(batch.lines):
            if len(self._waiting) >= self._limit:
                if not self.dropped:
                    _log.warning("the observer is too slow: events are dropped (limit %d)", self._limit)
                self.dropped += 1
            else:
                self._waiting.append((envelope, spec, status))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve(), name="perdure observer")

    async def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Lets the observer finish what waits, for at most `seconds`."""
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=seconds)
            if not done:
                self._task.cancel()
                _log.warning("the observer was cut off with %d events left", len(self._waiting))

    async def _serve(self) -> None:
        while self._waiting:
            envelope, spec, status = self._waiting.popleft()
            try:
                result = self._observer.observe(Observation(envelope, spec, status))
                if result is not None:
                    await result
            except Exception:  # noqa: BLE001 - an observer must not touch a run, whatever it raises
                if not self._complained:
                    self._complained = True
                    _log.exception("an observer raised; its later errors are not logged")
