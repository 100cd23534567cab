"""Celery as the queue of perdure (extra `[celery]`).

    tasks = register(app, lambda: BlockingFlowEngine(flow, "postgresql://…"))    # where the worker imports it
    scheduler = FlowScheduler(engine, CeleryDispatcher(tasks))                   # in a process of its own

Celery may deliver a task twice, late or never: the run's lease lets one worker drive at a time, committed work is not done
again, and the scheduler sends another task for a run that is still runnable after `redispatch_after`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from celery import Celery, signals  # type: ignore[import-untyped]  # Celery ships no types

from perdure.blocking import BlockingFlowEngine
from perdure.codec import PayloadCodec
from perdure.contrib._tries import MAX_ATTEMPTS, Tries, read, write
from perdure.dispatcher import FlowTaskDispatcher
from perdure.task_kinds import FlowTask
from perdure.tasks import handle

__all__ = ["CeleryDispatcher", "register"]

_HIDDEN: Final = {"argsrepr": "(…)", "kwargsrepr": "{…}"}
"""What monitors show of a message: it may hold a token."""


class CeleryDispatcher(FlowTaskDispatcher):
    """Sends tasks as messages of the Celery task that `register` gave; `options` are those of Celery's `apply_async`, such as
    `queue`. Sending is done in a thread, since Celery blocks. `codec` is the engine's, if it has one, here and in `register`:
    payloads are then in no message in plain text. Raises what Celery raises.

    For builds that run side by side, give each a queue and a dispatcher, and those to a `RuntimeBuildTaskRouter`."""

    def __init__(self, task: Any, *, codec: PayloadCodec | None = None, **options: Any) -> None:
        self._task = task
        self._codec = codec
        self._options = _HIDDEN | options

    async def dispatch(self, task: FlowTask) -> None:
        """As `FlowTaskDispatcher.dispatch`; Celery does not say what it has already."""
        await asyncio.to_thread(self._task.apply_async, (write(task, self._codec),), **self._options)


def register(
    app: Celery,
    engine: Callable[[], BlockingFlowEngine],
    *,
    name: str = "perdure.task",
    max_attempts: int = MAX_ATTEMPTS,
    codec: PayloadCodec | None = None,
    **options: Any,
) -> Any:
    """Registers the Celery task that does perdure's tasks, and gives it. `engine` makes the engine of a worker process when
    the first task comes, so after Celery has forked; it is closed when the process ends. `options` are those of `app.task`.

    A message is acknowledged when its task is done, and delivered again if its worker dies. A task that has to come back is
    sent again with a growing delay, and after `max_attempts` counted ones it fails with `TaskSetAside`, as does one that is
    refused for good: look for failed tasks as Celery shows them."""
    engines = _Engines(engine)
    settings = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": True, "max_retries": None} | options

    def perdure_task(self: Any, text: str, attempts: int = 0, nacks: int = 0) -> None:
        task, of_process = read(text, codec), engines.get()
        outcome = of_process.perform(lambda inner: handle(inner, task))
        again = Tries(attempts, nacks).after(outcome, max_attempts, of_process.store.clock())
        if again is not None:
            seconds, tries = again
            raise self.retry((text, tries.attempts, tries.nacks), countdown=seconds, **_HIDDEN)

    return app.task(perdure_task, name=name, bind=True, **settings)


class _Engines:
    """The engine of this process, made when it is first asked for: one made before a fork would have no loop after it."""

    def __init__(self, make: Callable[[], BlockingFlowEngine]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: tuple[int, BlockingFlowEngine] | None = None
        signals.worker_process_shutdown.connect(self._close, weak=False)
        signals.worker_shutdown.connect(self._close, weak=False)

    def get(self) -> BlockingFlowEngine:
        """The engine. Raises what making it raises."""
        with self._lock:  # a pool of threads shares it
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), self._make()
            return self._made[1]

    def _close(self, **_: object) -> None:
        made, self._made = self._made, None
        if made is not None and made[0] == os.getpid():
            made[1].close()
