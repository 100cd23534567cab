"""`AsyncContext`: what an `async def` workflow is given (R35, R36, R38, R39, R41, R65)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Coroutine
from datetime import datetime, timedelta
from random import Random
from sys import _getframe
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from uuid import UUID

from perdure.commands import LinkChildOperation, RecordProgress
from perdure.coroutine.groups import AsCompleted, Gather, Race
from perdure.coroutine.handles import Handle, HookHandle, StepHandle, WaitHandle, WorkHandle
from perdure.coroutine.places import place_of
from perdure.coroutine.scope import Scope
from perdure.coroutine.scopes import Cleanup, Limited, Timeout
from perdure.instant import Instant
from perdure.model import HookMetadata
from perdure.payload import decode, encode
from perdure.step import Step
from perdure.values import CancellationRequest, ChildOperationReference, WorkflowProgress
from perdure.wire import Moment, moment_ns, whole_ms

if TYPE_CHECKING:
    from perdure.coroutine.replay import Replay

__all__ = ["AsyncContext"]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
H = TypeVar("H", bound=WorkHandle[Any])


class AsyncContext:
    """The one way by which an async workflow touches the world.

    `step`, `sleep`, `sleep_until`, `gather`, `race` and `wait_for` are to be awaited and open their work then; `start`,
    `timer` and `hook` open when called. Equal histories give equal answers: what the code asks for is compared with
    what is recorded, and a difference is `NonDeterministic` (R37). Mistakes of arguments are `TypeError` or
    `ValueError`, values that JSON cannot hold exactly `Serialization("payload")`, both at the line that made them.
    """

    __slots__ = ("_replay", "log")

    def __init__(self, replay: Replay, log: logging.LoggerAdapter[Any]) -> None:
        self._replay = replay
        self.log = log
        """A logger that is silent during replay and speaks once the pass is committed."""

    # -- the run ---------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._replay.run_id

    @property
    def input(self) -> Any:
        """The run's input as plain JSON values; parameters of the workflow function get it by their types."""
        return None if self._replay.dead else decode(self._replay.reads.input)

    @property
    def live(self) -> bool:
        """Whether this code runs for the first time, rather than being replayed."""
        return self._replay.live

    def cancellation_request(self) -> CancellationRequest | None:
        """The cancellation request, if it has come by now."""
        return self._replay.request()

    def first_resolved(self, *refs: tuple[str, str]) -> tuple[str, str] | None:
        """Of these (kind, id), kind step, wait or hook, the one that was resolved first; None while none is."""
        return self._replay.first_resolved(refs)

    def record_progress(self, progress: WorkflowProgress) -> None:
        """Records a progress entry with this pass, once."""
        self._replay.fact("progress", progress.progress_id, progress.to_json(), RecordProgress(progress.to_json()))

    def link_child_operation(self, child: ChildOperationReference) -> None:
        """Records work outside this run with this pass, once."""
        self._replay.fact("child", child.reference_id, child.to_json(), LinkChildOperation(child.to_json()))

    # -- time and chance -------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The largest timestamp of the history as far as this code has seen it; never goes back (R38)."""
        return Instant(self._replay.latest).datetime()

    def random(self) -> Random:
        """A source of random numbers that a replay finds again; each call gives another one."""
        if self._replay.absent():
            return Random(0)
        chain = self._replay.current_chain()
        chain.randoms += 1
        return Random(self._digest(b"perdure.random.v1", chain.path, chain.randoms - 1))

    def uuid(self) -> UUID:
        """A UUID that a replay finds again; each call gives another one."""
        if self._replay.absent():
            return UUID(int=0)
        chain = self._replay.current_chain()
        chain.uuids += 1
        return UUID(bytes=self._digest(b"perdure.uuid.v1", chain.path, chain.uuids - 1)[:16], version=4)

    def _digest(self, domain: bytes, path: str, index: int) -> bytes:
        """SHA-256 of run, chain and call, prefixed by lengths as in spec 05 §5.3."""
        run_id, chain = self.run_id.encode(), path.encode()
        parts = (domain, len(run_id).to_bytes(8), run_id, len(chain).to_bytes(8), chain, index.to_bytes(4))
        return hashlib.sha256(b"".join(parts)).digest()

    # -- work ------------------------------------------------------------------------------------------------------

    @overload
    def step(self, step: Step[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]: ...
    @overload
    def step(self, step: Step[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]: ...
    def step(self, step: Any, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """`await ctx.step(charge, order)` runs a step and gives its output; raises `StepFailed` if it failed for good.

        All arguments are the step's; its id, retry policy and time limit come from `step.options(…)` (R41).
        """
        if not isinstance(step, Step):
            hint = "; write ctx.step(charge, order), without calling it" if hasattr(step, "__await__") else ""
            hint = f"; a step known by name is flow.ref({step!r})" if isinstance(step, str) else hint
            raise TypeError(f"ctx.step takes a step decorated with @flow.step, not {type(step).__name__}{hint}")
        frame = _getframe(1)
        replay = self._replay
        handle: StepHandle[Any] = StepHandle(replay, (frame.f_code, frame.f_lasti), step, step.store(args, kwargs))
        replay.idle[handle] = None
        return handle

    @overload
    def start(self, work: Step[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]: ...
    @overload
    def start(self, work: Step[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]: ...
    @overload
    def start(self, work: Coroutine[Any, Any, T], /) -> Handle[T]: ...
    def start(self, work: Any, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Opens a step, or runs a coroutine beside this one; gives its handle, to be awaited later or raced."""
        replay = self._replay
        place = place_of(_getframe(1))
        if isinstance(work, Step):
            handle: StepHandle[Any] = StepHandle(replay, place, work, work.binding.store(args, kwargs))
            handle.started = True
            return self._open(handle)
        if args or kwargs or not hasattr(work, "cr_frame"):
            raise TypeError("start takes a step with its arguments, or a coroutine such as work(ctx)")
        return replay.start(work, place)

    def timer(self, delay: timedelta, *, id: str | None = None) -> WaitHandle:
        """Opens a timer that is due `delay` after it is first asked for; it need not be awaited."""
        return self._open(WaitHandle(self._replay, _caller(), "timer", id, whole_ms("delay", delay, 0)))

    @overload
    def hook(
        self, type: type[T], *, id: str | None = None, token: str | None = None, metadata: HookMetadata | Any = None
    ) -> HookHandle[T]: ...
    @overload
    def hook(
        self, type: Any = ..., *, id: str | None = None, token: str | None = None, metadata: HookMetadata | Any = None
    ) -> HookHandle[Any]: ...
    def hook(
        self, type: Any = Any, *, id: str | None = None, token: str | None = None, metadata: HookMetadata | Any = None
    ) -> HookHandle[Any]:
        """Opens a hook that is resolved from outside, by id or by its secret token, with a payload of this type.

        The token defaults to 32 random bytes, drawn when the hook is first asked for; `hook.token` tells it. The
        metadata is stored in clear.
        """
        raw = metadata.to_json() if isinstance(metadata, HookMetadata) else encode(metadata)
        return self._open(HookHandle(self._replay, _caller(), type, id, token, raw))

    def _open(self, handle: H) -> H:
        if not self._replay.absent():
            handle.open(self._replay.current_chain())
        return handle

    if TYPE_CHECKING:
        # Declared as coroutines, so that type checkers tell of a missing `await`; what is given are our own awaitables,
        # which know their line.
        async def sleep(self, delay: timedelta, *, id: str | None = None) -> None:
            """Sleeps for `delay` from when it is first asked for (R40)."""

        async def sleep_until(self, when: Moment, *, id: str | None = None) -> None:
            """Sleeps until a point in time, the same one on every replay: an aware datetime, RFC 3339 text or
            `Instant`."""

        @overload
        async def gather(self) -> tuple[()]: ...
        @overload
        async def gather(self, a: Awaitable[A], /) -> tuple[A]: ...
        @overload
        async def gather(self, a: Awaitable[A], b: Awaitable[B], /) -> tuple[A, B]: ...
        @overload
        async def gather(self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> tuple[A, B, C]: ...
        @overload
        async def gather(
            self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /
        ) -> tuple[A, B, C, D]: ...
        @overload
        async def gather(
            self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], e: Awaitable[E], /
        ) -> tuple[A, B, C, D, E]: ...
        @overload
        async def gather(self, *awaitables: Awaitable[T]) -> tuple[T, ...]: ...
        @overload
        async def gather(self, *awaitables: Awaitable[T], return_exceptions: bool) -> tuple[T | BaseException, ...]: ...
        async def gather(self, *awaitables: Any, return_exceptions: bool = False) -> Any:
            """All of them side by side; gives their values in the order of the arguments.

            At the first failure unfinished coroutines get `BranchCancelled`, and when all its work has ended the
            failure is raised. Steps given to the call are waited for. One that such a coroutine awaits is not: it goes on as
            nobody's step, so compensate for what it may do. `return_exceptions=True` waits for all and gives failures as values.
            """

        @overload
        async def race(self, a: Awaitable[A], /) -> Handle[A]: ...
        @overload
        async def race(self, a: Awaitable[A], b: Awaitable[B], /) -> Handle[A] | Handle[B]: ...
        @overload
        async def race(
            self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /
        ) -> Handle[A] | Handle[B] | Handle[C]: ...
        @overload
        async def race(self, *members: Awaitable[T]) -> Handle[T]: ...
        async def race(self, *members: Any) -> Any:
            """The handle of the first to resolve; `first is approval`, then `approval.result()`, which raises its
            failure. Steps and hooks that lost go on; coroutines that lost get `BranchCancelled`; a sleep given to the
            call is closed. Raises `ValueError` for no member."""

        async def wait_for(self, awaitable: Awaitable[T], delay: timedelta) -> T:
            """The value of the awaitable; raises `TimeoutError` if it takes longer than `delay` (R65)."""
            ...

    else:

        def sleep(self, delay: Any, *, id: str | None = None) -> Any:
            """Sleeps for `delay` from when it is first asked for (R40)."""
            return self._sleep(WaitHandle(self._replay, _caller(), "sleep", id, whole_ms("delay", delay, 0)))

        def sleep_until(self, when: Any, *, id: str | None = None) -> Any:
            """Sleeps until a point in time: an aware datetime, RFC 3339 text or `Instant`."""
            return self._sleep(WaitHandle(self._replay, _caller(), "sleep", id, None, moment_ns("when", when)))

        def gather(self, *awaitables: Any, return_exceptions: bool = False) -> Any:
            """All of them side by side; gives their values in the order of the arguments."""
            return Gather(self._replay, awaitables, _caller(), return_exceptions)

        def race(self, *members: Any) -> Any:
            """The handle of the first to resolve."""
            return Race(self._replay, members, _caller())

        def wait_for(self, awaitable: Any, delay: timedelta) -> Any:
            """The value of the awaitable; raises `TimeoutError` if it takes longer than `delay` (R65)."""
            return Limited(self._replay, awaitable, delay, _caller())

        def _sleep(self, handle: WaitHandle) -> WaitHandle:
            handle.closes_when_lost = True
            self._replay.idle[handle] = None
            return handle

    def as_completed(self, *handles: Handle[T]) -> AsCompleted[T]:
        """`async for h in ctx.as_completed(a, b):` gives the handles as they resolve."""
        given: tuple[Any, ...] = handles
        for handle in given:
            if not isinstance(handle, Handle) or not getattr(handle, "opened", True):
                raise TypeError("as_completed takes handles, such as ctx.start(step, …) or ctx.hook(…) give")
        return AsCompleted(self._replay, handles, _caller())

    # -- blocks ----------------------------------------------------------------------------------------------------

    def timeout(self, delay: timedelta) -> Timeout:
        """`async with ctx.timeout(delay):` raises `TimeoutError` if the block takes longer (R65)."""
        return Timeout(self._replay, delay, _caller())

    def cleanup(self) -> Cleanup:
        """`async with ctx.cleanup():` for what must still happen: cancellation waits until the block ends, and work that
        the request cancelled is asked for anew. A step of the block that runs when the request comes is cancelled by it like any
        other, and runs again beside itself as the step `<id>~cancel`, with another `idempotency_key`: what must not happen twice
        needs a key of yours, such as the order's id. A fault of the code compensates nothing: entered while one is raised, the
        block ends the pass, the run stays open, and the fixed code goes on (R39)."""
        return Cleanup(self._replay)

    def scope(self, name: str) -> Scope:
        """`with ctx.scope("order-7"):` puts `order-7/` before the ids asked for inside (R35)."""
        return Scope(name)


def _caller() -> Any:
    return place_of(_getframe(2))
