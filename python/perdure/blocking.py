"""`BlockingFlowEngine`: the same engine for code without an event loop. A facade on one private loop thread (R55)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from perdure.attempts import STEP_OF
from perdure.builds import RuntimeBuildCompatibility
from perdure.engine import FlowEngine
from perdure.errors import CallFromLoopThread, EngineClosed, EngineElsewhere
from perdure.flow import FlowRuntime
from perdure.observing import Observer
from perdure.stores.base import FlowEventStore

__all__ = ["BlockingFlowEngine"]

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[FlowEngine, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingFlowEngine, P], T]:
    """The blocking form of an engine method: same arguments, same result, same errors."""

    @wraps(method)
    def call(self: BlockingFlowEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method(self._engine, *args, **kwargs))

    return call


class BlockingFlowEngine:
    """`FlowEngine` for synchronous code; every method blocks until its result is there. Safe to call from many threads.

    Synchronous steps run in threads, `inline=True` steps and async steps on the engine's loop thread. The constructor
    takes what `FlowEngine` takes. Use it as a context manager, or call `close()`.
    """

    def __init__(
        self, runtime: FlowRuntime, store: FlowEventStore | str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-loop", daemon=True)
        self._thread.start()
        try:
            self._engine = self._call(_make(runtime, store, options))
        except BaseException:
            self._stop()
            raise

    start = _blocking(FlowEngine.start)
    start_with_id = _blocking(FlowEngine.start_with_id)
    submit = _blocking(FlowEngine.submit)
    run = _blocking(FlowEngine.run)
    drive = _blocking(FlowEngine.drive)
    wait_until_ended = _blocking(FlowEngine.wait_until_ended)
    drive_claimed = _blocking(FlowEngine.drive_claimed)
    release_hold = _blocking(FlowEngine.release_hold)
    resume_wait = _blocking(FlowEngine.resume_wait)
    resume_due_waits = _blocking(FlowEngine.resume_due_waits)
    resume_due_retries = _blocking(FlowEngine.resume_due_retries)
    resume_scheduled_run = _blocking(FlowEngine.resume_scheduled_run)
    resume_hook = _blocking(FlowEngine.resume_hook)
    dispose_hook = _blocking(FlowEngine.dispose_hook)
    resume_hook_by_token = _blocking(FlowEngine.resume_hook_by_token)
    dispose_hook_by_token = _blocking(FlowEngine.dispose_hook_by_token)
    request_cancellation = _blocking(FlowEngine.request_cancellation)
    force_cancel = _blocking(FlowEngine.force_cancel)
    cancel = force_cancel
    terminate_for_timeout = _blocking(FlowEngine.terminate_for_timeout)
    terminate_for_host_shutdown = _blocking(FlowEngine.terminate_for_host_shutdown)
    record_progress = _blocking(FlowEngine.record_progress)
    link_child_operation = _blocking(FlowEngine.link_child_operation)
    runtime_build_id = _blocking(FlowEngine.runtime_build_id)
    snapshot = _blocking(FlowEngine.snapshot)
    history = _blocking(FlowEngine.history)
    runs = _blocking(FlowEngine.runs)
    run_summary = _blocking(FlowEngine.run_summary)
    run_summary_by_build = _blocking(FlowEngine.run_summary_by_build)
    list_run_ids = _blocking(FlowEngine.list_run_ids)
    list_snapshots = _blocking(FlowEngine.list_snapshots)
    list_due_wakeups = _blocking(FlowEngine.list_due_wakeups)
    list_due_waits = _blocking(FlowEngine.list_due_waits)
    list_due_retries = _blocking(FlowEngine.list_due_retries)
    list_open_suspensions = _blocking(FlowEngine.list_open_suspensions)
    list_active_hooks = _blocking(FlowEngine.list_active_hooks)
    next_wakeup = _blocking(FlowEngine.next_wakeup)

    def perform(self, work: Callable[[FlowEngine], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on the engine's loop, with the asyncio engine it stands for, and gives its result."""
        return self._call(work(self._engine))

    @property
    def store(self) -> FlowEventStore:
        """The engine's store."""
        return self._engine.store

    @property
    def owner(self) -> str:
        """The engine's identity as a holder of leases (R2)."""
        return self._engine.owner

    @property
    def observer(self) -> Observer | None:
        """The observer this engine was given."""
        return self._engine.observer

    @property
    def runtime_build_compatibility(self) -> RuntimeBuildCompatibility | None:
        """The builds this engine was given (spec 08 §8.5)."""
        return self._engine.runtime_build_compatibility

    def supports_runtime_build(self, build: str | None = None) -> bool:
        """Whether this engine may drive runs pinned to `build`, None for runs that are not pinned."""
        return self._engine.supports_runtime_build(build)

    @property
    def observations_dropped(self) -> int:
        """Events the observer was not told of (R52)."""
        return self._engine.observations_dropped

    def close(self) -> None:
        """Cancels the drives under way, closes what the engine owns and ends the loop thread. Idempotent."""
        if not self._loop.is_closed():
            self._call(self._engine.close())
            self._stop()

    def __enter__(self) -> Self:
        if self._loop.is_closed():
            raise EngineClosed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._process:  # a fork has no loop thread: nobody would ever answer
            work.close()
            raise EngineElsewhere("fork")
        if self._loop.is_closed():
            work.close()
            raise EngineClosed
        if threading.current_thread() is self._thread:
            work.close()
            raise CallFromLoopThread
        future = asyncio.run_coroutine_threadsafe(_guarded(work, STEP_OF.get()), self._loop)
        try:
            result = future.result()
        except BaseException:  # Ctrl-C while waiting: the call must not go on behind the caller's back
            future.cancel()
            raise
        if isinstance(result, _Exit):
            raise result.error
        return result

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Exit:
    """KeyboardInterrupt or SystemExit of a step, as a value: raised in a task they would end the loop thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _guarded(work: Coroutine[Any, Any, T], step_of: str | None) -> T | _Exit:
    STEP_OF.set(step_of)  # a call of a step's thread stays one on the loop
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        return _Exit(error)


async def _make(
    runtime: FlowRuntime, store: FlowEventStore | str | os.PathLike[str] | None, options: dict[str, Any]
) -> FlowEngine:
    return FlowEngine(runtime, store, **options)
