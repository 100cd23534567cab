"""Observers: told of every committed event, in order, beside the drive and never in its way (R52, spec 09 §9.5)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from perdure.envelope import Envelope
from perdure.kernel import Batch, Run
from perdure.spec import WorkflowSpec

__all__ = ["Failures", "Observation", "Observer", "ObserverQueue"]

_log = logging.getLogger("perdure")
_LIMIT: Final = 10_000
_CLOSE_SECONDS: Final = 5.0
_CANCEL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Observation:
    """One committed event, with the run's spec. `status` is the run's after the commit that holds it.

    The repr shows neither payloads nor tokens; `envelope.event` has both.
    """

    envelope: Envelope
    spec: WorkflowSpec
    status: str


class Observer(Protocol):
    """Called once for each committed event, one at a time and in the order of each run, also for events of one batch.

    A plain function runs on a thread of its own, so it may block; an `async def` is awaited on the engine's loop, where
    it must not. What it raises is logged once and otherwise ignored. A crash between a commit and its observation loses
    the observation (spec 09 §9.5).
    """

    def observe(self, observation: Observation) -> Awaitable[None] | None: ...


class Failures:
    """What one observer raised: counted, and the first one logged. Never its text, which may hold a payload (R60)."""

    def __init__(self, observer: Observer) -> None:
        self._name = type(observer).__qualname__
        self.count = 0

    def note(self, error: BaseException, observation: Observation) -> None:
        """Counts an error, and says where the first one comes from."""
        self.count += 1
        if self.count == 1:
            places = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
            envelope = observation.envelope
            _log.error(
                "observer %s raised %s at %s, told of %s (run %s, sequence %d); the run is not affected, and later "
                "errors of this observer are not logged",
                self._name,
                type(error).__qualname__,
                places[-1] if places else "an unknown place",
                envelope.key,
                envelope.run_id,
                envelope.sequence,
            )

    @contextmanager
    def caught(self, observation: Observation) -> Iterator[None]:
        """Notes what is raised inside, `sys.exit` included: an observer ends neither the process nor its neighbours."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an observer may raise anything
            self.note(error, observation)


class ObserverQueue:
    """A bounded queue before one observer, emptied by a daemon thread. Full, it drops the newest: `dropped` counts them,
    the first is logged when it happens, their number at the end."""

    def __init__(self, observer: Observer, limit: int = _LIMIT) -> None:
        self._observer = observer
        self._limit = limit
        self._failures = Failures(observer)
        self._state = threading.Condition()
        self._waiting: deque[tuple[bytes, bytes, str]] = deque()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awaiting: asyncio.Task[None] | None = None
        self._closing = False
        self._cut_off = False
        self.dropped = 0

    def put(self, run: Run, batch: Batch) -> None:
        """Hands over the events of a committed batch, on the engine's loop. Never waits and parses nothing."""
        # A run knows its spec once it has folded its first batch, and its drive does that right after this call.
        asyncio.get_running_loop().call_soon(self._take, run, batch)

    def _take(self, run: Run, batch: Batch) -> None:
        lines = batch.lines.split(b"\n")[:-1]
        spec, status = run.spec, batch.row.status
        with self._state:
            room = 0 if self._closing else max(0, self._limit - len(self._waiting))
            lost = max(0, len(lines) - room)
            first_loss = lost > 0 and self.dropped == 0
            self.dropped += lost
            self._waiting.extend((line, spec, status) for line in lines[:room])
            self._state.notify()
        if first_loss:
            _log.warning("the observer is too slow: events are dropped while %d wait for it", self._limit)
        if self._thread is None and not self._closing:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._serve, name="perdure-observer", daemon=True)
            self._thread.start()

    async def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Lets the observer see what waits, for at most `seconds`; then it is told nothing more. Idempotent."""
        await asyncio.sleep(0)  # what was put before this call is taken
        with self._state:
            again, self._closing = self._closing, True
            self._state.notify()
        if again or self._thread is None:
            return
        # A loop under virtual time stands still for its executor, but would jump over a timer of its own.
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, seconds)
        if self._thread.is_alive():
            await self._abandon(seconds)
        if self.dropped:
            _log.warning("the observer missed %d events in all", self.dropped)

    async def _abandon(self, seconds: float) -> None:
        with self._state:
            self._cut_off = True
            left = len(self._waiting)
            self._waiting.clear()
            self.dropped += left
        _log.warning("the observer was not done after %g s and is cut off, with %d events unseen", seconds, left)
        if self._awaiting is not None:
            self._awaiting.cancel()
            await asyncio.wait([self._awaiting], timeout=_CANCEL_SECONDS)

    # -- on the observer's thread ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            line, spec, status = item
            self._tell(Observation(Envelope.parse(line), WorkflowSpec.from_json(spec), status))

    def _tell(self, observation: Observation) -> None:
        try:
            result = self._observer.observe(observation)
            if result is not None:
                self._wait_for(result)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the next event is still told
            if not self._cut_off:
                self._failures.note(error, observation)

    def _next(self) -> tuple[bytes, bytes, str] | None:
        with self._state:
            self._state.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _wait_for(self, result: Awaitable[None]) -> None:
        if self._loop is None:
            return
        work = self._on_loop(result)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop was closed without its engine
            work.close()
            _discard(result)
            raise
        future.result()

    async def _on_loop(self, result: Awaitable[None]) -> None:
        if self._cut_off:
            _discard(result)
            return
        self._awaiting = asyncio.current_task()
        try:
            await result
        except SystemExit as error:  # leaving a task it would end the loop; as a cause it is noted like the others
            raise RuntimeError from error
        finally:
            self._awaiting = None


def _discard(result: Awaitable[None]) -> None:
    if inspect.iscoroutine(result):
        result.close()
