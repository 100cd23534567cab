"""Handles: what `ctx.step`, `ctx.start`, `ctx.timer`, `ctx.hook` give, and how their values are read (R35, R36, R39).

A handle of recorded work holds no value: it is read from the run each time, so a warm run keeps nothing that nobody
will read (R63) and no await sees what another one changed.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from perdure.commands import CloseWait, CreateHook, DisposeHook, Member, ScheduleStep, WaitFor, WaitUntil
from perdure.coroutine.chain import WAITING, Chain, Signal, Waiter
from perdure.coroutine.places import Place, place_of, tell
from perdure.coroutine.scope import SCOPE
from perdure.coroutine.signals import WorkflowCancelled
from perdure.errors import HookDisposed, Serialization, StepFailed
from perdure.instant import format_instant
from perdure.payload import decode_as
from perdure.step import Step

if TYPE_CHECKING:
    from perdure import kernel
    from perdure.coroutine.replay import Replay

__all__ = ["ChainHandle", "Handle", "HookHandle", "StepHandle", "WaitHandle", "WorkHandle"]

T = TypeVar("T")


class Handle(Generic[T]):
    """Something that resolves once. Awaiting it gives its value or raises its failure, as often as it is awaited."""

    __slots__ = ("__weakref__", "_replay", "_waiters", "order", "place", "seen", "started")

    def __init__(self, replay: Replay, place: Place) -> None:
        self._replay = replay
        self.place = place
        self._waiters: dict[Waiter, None] | None = None
        self.order = 0  # rises with the history; 0 while it is unresolved
        self.seen = False  # awaited, or read by `result()` or by a group
        self.started = False  # by `ctx.start`

    def done(self) -> bool:
        """Whether it is resolved: `await` and `result()` will not block."""
        return self.order > 0

    def result(self) -> T:
        """The value, or raises the failure. Raises `RuntimeError` while it is unresolved."""
        if not self.done():
            raise RuntimeError(f"{self.describe()} is not resolved yet; await it, or test done() first")
        self.seen = True
        return self.take()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._awaited(place_of(sys._getframe(1)))

    def _awaited(self, place: Place) -> Generator[Any, Any, T]:
        replay = self._replay
        if replay.over:
            yield from replay.refuse()
        try:
            chain = replay.enter(place)
        except BaseException:
            replay.idle.pop(self, None)  # it was awaited, and a signal that was due came first
            raise
        self.open(chain)
        self.seen = True
        return (yield from self.wait(chain))

    def wait(self, chain: Chain) -> Generator[Any, Any, T]:
        """Blocks the chain until this resolves."""
        while not self.order:
            self.watch(chain)
            chain.waiting = self
            yield WAITING
            if self._replay.over:
                raise GeneratorExit
            if chain.pending is not None:
                chain.raise_pending()
        return self.take()

    # -- for the driver ------------------------------------------------------------------------------------------

    def open(self, chain: Chain) -> None:
        """Asks for the work if that was not done before."""

    def forget(self) -> None:
        """It will never be awaited."""

    def describe(self) -> str:
        raise NotImplementedError

    def failure(self) -> BaseException | None:
        """Why there is no value, a fresh instance each time; None if there is one."""
        raise NotImplementedError

    def value(self) -> T:
        raise NotImplementedError

    def take(self) -> T:
        error = self.failure()
        if error is not None:
            raise error
        return self.value()

    def interrupt(self, chain: Chain, signal: Signal) -> bool:
        self.unwatch(chain)
        return False

    def watch(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None

    def unwatch(self, waiter: Waiter) -> None:
        if self._waiters is not None:
            self._waiters.pop(waiter, None)

    def mark(self) -> None:
        """Resolved now, after everything that was resolved before."""
        self.order = self._replay.next_order()

    def wake_all(self) -> None:
        """Wakes those who wait, in the order in which they began to."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter.wake(self)


class ChainHandle(Handle[T]):
    """A coroutine that runs beside, by `ctx.start(coroutine)` or as the member of a group."""

    __slots__ = ("_error", "_trace", "_value", "chain")

    def __init__(self, replay: Replay, place: Place) -> None:
        super().__init__(replay, place)
        self.chain: Chain | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def end(self, value: T | None, error: BaseException | None) -> None:
        self._value, self._error, self.chain = value, error, None
        self._trace = None if error is None else error.__traceback__
        self.mark()
        if error is not None and self.started and not self.seen:
            self._replay.unread(self)
        self.wake_all()

    def describe(self) -> str:
        return f"the coroutine started at {tell(self.place)}"

    def failure(self) -> BaseException | None:
        error = self._error
        return None if error is None else error.with_traceback(self._trace)  # else each await would lengthen it

    def value(self) -> T:
        return cast(T, self._value)


class WorkHandle(Handle[T]):
    """A step, a wait or a hook. `ended` is the event that resolved it, or "request" if the cancellation request did."""

    __slots__ = ("ended", "given_id", "id", "name", "opened", "scope", "shielded")

    kind = ""

    def __init__(self, replay: Replay, place: Place, name: str, given_id: str | None) -> None:
        super().__init__(replay, place)
        self.name = name
        self.given_id = given_id
        self.scope = SCOPE.get()
        self.id = ""
        self.opened = self.shielded = False
        self.ended: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.id

    def describe(self) -> str:
        return f"{self.kind} {self.id or self.given_id or self.name!r}"

    def open(self, chain: Chain) -> None:
        if not self.opened:
            self.opened = True
            self._replay.opened(self, chain)

    def failure(self) -> BaseException | None:
        if self.ended == "request":
            return WorkflowCancelled(self._replay.reason)
        return None

    def resolve(self, event: str) -> None:
        self.ended = event
        self.mark()
        if self.started and not self.seen and event != "step_completed":
            self._replay.unread(self)
        self.wake_all()

    # -- what the driver asks for --------------------------------------------------------------------------------

    def member(self) -> Member:
        """The request that opens it; of something recorded, one that agrees with the record."""
        raise NotImplementedError

    def recorded(self) -> None:
        """Its creation was seen: compares the definitions, and lets go of what only the request needed."""

    def closing(self) -> Member | None:
        """The request that closes it before its time."""
        return None


class StepHandle(WorkHandle[T]):
    """A step. `await` gives its output as the type the step is annotated to return, or raises `StepFailed`."""

    __slots__ = ("input", "step")

    kind = called = "step"

    def __init__(self, replay: Replay, place: Place, step: Step[..., Any], stored: bytes) -> None:
        self._replay = replay  # not by way of the two above: most handles are steps, and each call costs
        self.place = place
        self._waiters = None
        self.order = 0
        self.seen = self.started = self.opened = self.shielded = False
        self.name = step.name
        self.given_id = step.given_id
        self.scope = SCOPE.get()
        self.id = ""
        self.ended = None
        self.step = step
        self.input: bytes | None = stored  # until it is compared

    def __await__(self) -> Generator[Any, Any, T]:
        output = self._replay.passed(self)
        if output is None:
            return (yield from self._awaited(place_of(sys._getframe(1))))
        try:
            value: T = self.step.decode(output)
            return value
        except Serialization as error:
            raise self._misfit(error) from None

    def member(self) -> Member:
        step = self.step
        if self.input is None:
            record = self._replay.reads.step(self.id)
            if record is not None:
                return ScheduleStep(self.id, record.step_name, record.input, record.retry, step.limit_ms)
        return ScheduleStep(self.id, step.name, self.input or b"null", step.async_retry, step.limit_ms)

    @property
    def limit_ms(self) -> int | None:
        return self.step.limit_ms

    def recorded(self) -> None:
        record = self._replay.reads.step(self.id)
        if record is not None:
            self.compare(record)

    def compare(self, record: kernel.Step) -> None:
        step = self.step
        stored = self.input or b"null"
        if record.step_name != step.name:
            self._replay.drifted(self, "step_name", _text(record.step_name), _text(step.name))
        if record.input != stored and not self._replay.same(record.input, stored):
            self._replay.drifted(self, "input", record.input, stored)
        if record.retry != step.async_retry and not self._replay.same(record.retry, step.async_retry):
            self._replay.drifted(self, "retry", record.retry, step.async_retry)
        if not self.shielded:  # what is shielded may have to be asked for again
            self.input = None

    def failure(self) -> BaseException | None:
        if self.ended == "step_completed":
            return None
        if self.ended == "request":
            return super().failure()
        record = self._replay.reads.step(self.id)
        if record is None:
            return None
        kind = None if record.failure is None else _failure_type(record.failure)
        final = self.ended == "step_non_retryable"
        return StepFailed(self.id, record.step_name, record.attempt, record.error or "", kind, final)

    def value(self) -> T:
        record = self._replay.reads.step(self.id)
        raw = None if record is None else record.output
        return self._decoded(raw or b"null")

    def _decoded(self, output: bytes) -> T:
        try:
            value: T = self.step.decode(output)
            return value
        except Serialization as error:
            raise self._misfit(error) from None

    def _misfit(self, error: Serialization) -> Serialization:
        return _misfit(f"the output of step {self.id!r}", error)


class WaitHandle(WorkHandle[None]):
    """A sleep or a timer. `delay_ms` for a relative one, else `resume_at` in ns."""

    __slots__ = ("_closed", "_delay_ms", "_resume_at", "closes_when_lost")

    kind, called = "wait", "sleep"

    def __init__(
        self, replay: Replay, place: Place, name: str, given_id: str | None, delay_ms: int | None, resume_at: int = 0
    ) -> None:
        super().__init__(replay, place, name, given_id)
        self._delay_ms, self._resume_at = delay_ms, resume_at
        self._closed = False
        self.closes_when_lost = False

    def close(self) -> None:
        """Ends the timer before its time; awaiting it then returns at once. Closing twice is the same as once."""
        if not self._replay.over:
            self.shut()

    def shut(self) -> None:
        """The same, for the driver."""
        if not self._closed and self.ended is None:
            self._closed = self.opened = True  # one that was not opened before never will be
            self._replay.idle.pop(self, None)
            self._replay.closes(self)
            if not self.order:
                self.mark()
            self.wake_all()

    def member(self) -> Member:
        if self._delay_ms is not None:
            return WaitFor(self.id, self._delay_ms)
        return WaitUntil(self.id, format_instant(self._resume_at))

    def recorded(self) -> None:
        record = self._replay.reads.wait(self.id)
        if record is not None and self._delay_ms is None and record.resume_at != self._resume_at:
            recorded, now = format_instant(record.resume_at), format_instant(self._resume_at)
            self._replay.drifted(self, "resume_at", _text(recorded), _text(now))

    def closing(self) -> Member | None:
        return CloseWait(self.id)

    def resolve(self, event: str) -> None:
        if self._closed:
            self.ended = event
        else:
            super().resolve(event)

    def value(self) -> None:
        return None


class HookHandle(WorkHandle[T]):
    """A hook. `await` gives the payload that was delivered from outside, or raises `HookDisposed`. `token` is the secret
    by which it can be resolved; the repr hides it."""

    __slots__ = ("_disposed", "_explicit", "_metadata", "_type", "token")

    kind = called = "hook"

    def __init__(
        self, replay: Replay, place: Place, kind: Any, given_id: str | None, token: str | None, metadata: bytes
    ) -> None:
        super().__init__(replay, place, "hook", given_id)
        self._type = kind
        self._explicit = token
        self.token = token or ""
        self._metadata = metadata
        self._disposed = False

    def __repr__(self) -> str:
        return f"<hook {self.id!r}>"

    def open(self, chain: Chain) -> None:
        super().open(chain)
        if self._explicit is None and self.id:
            self.token = self._replay.token(self.id)

    def dispose(self) -> None:
        """Closes a hook that nobody needs to answer any more. Awaiting it then gives the payload if that was delivered
        before, else raises `HookDisposed`. Disposing twice is the same as once."""
        if not self._disposed and self.ended is None and not self._replay.over:
            self._disposed = True
            self._replay.closes(self)
            if not self.order:
                self.mark()
            self.wake_all()

    def member(self) -> Member:
        return CreateHook(self.id, self.token, self._metadata)

    def recorded(self) -> None:
        record = self._replay.reads.hook(self.id)
        if record is None:
            return
        if record.token != self.token:
            self._replay.drifted(self, "token", b'"<redacted>"', b'"<redacted>"')
        if record.metadata != self._metadata and not self._replay.same(record.metadata, self._metadata):
            self._replay.drifted(self, "metadata", record.metadata, self._metadata)

    def closing(self) -> Member | None:
        return DisposeHook(self.id)

    def resolve(self, event: str) -> None:
        if self._disposed:
            self.ended = event
        else:
            super().resolve(event)

    def failure(self) -> BaseException | None:
        if self.ended == "hook_received":
            return None
        return super().failure() or HookDisposed(self.id)

    def value(self) -> T:
        record = self._replay.reads.hook(self.id)
        raw = None if record is None else record.payload
        return self._read(raw or b"null")

    def check(self, payload: bytes) -> None:
        """Raises `Serialization("payload")` if this could not be awaited."""
        self._read(payload)

    def _read(self, raw: bytes) -> T:
        try:
            return cast(T, decode_as(raw, self._type))
        except Serialization as error:
            raise _misfit(f"the payload of hook {self.id!r}", error) from None


def _text(text: str) -> bytes:
    return msgspec.json.encode(text)


def _misfit(what: str, error: Serialization) -> Serialization:
    """The same error, which says of what it is."""
    return Serialization(error.rule, detail=f"{what}: {error.detail}")


def _failure_type(raw: bytes) -> str | None:
    """The recorded class of a failure; a history may hold any object there."""
    try:
        kind = msgspec.json.decode(raw).get("type")
    except (msgspec.MsgspecError, AttributeError, UnicodeDecodeError):
        return None
    return kind if isinstance(kind, str) else None
