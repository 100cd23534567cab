"""Procrastinate as the queue of perdure (extra `[procrastinate]`).

    task = register(app, engine)                                  # in the worker, on the loop of its engine
    scheduler = FlowScheduler(engine, ProcrastinateDispatcher(task))

A job may run twice, late or never: the run's lease lets one worker drive at a time, committed work is not done again, and the
scheduler defers another job for a run that is still runnable after `redispatch_after`. So a job whose worker died needs no
attention, unless it was to deliver an event: Procrastinate lists those as stalled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from procrastinate import App, JobContext
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.tasks import Task

from perdure.codec import PayloadCodec
from perdure.contrib._tries import MAX_ATTEMPTS, Tries, read, write
from perdure.dispatcher import FlowTaskDispatcher
from perdure.engine import FlowEngine
from perdure.task_kinds import FlowTask
from perdure.tasks import handle

__all__ = ["ProcrastinateDispatcher", "register"]

EngineSource = FlowEngine | Callable[[], FlowEngine | Awaitable[FlowEngine]]


class ProcrastinateDispatcher(FlowTaskDispatcher):
    """Defers jobs of the task that `register` gave; `options` are those of its `configure`, such as `queue` or `priority`.
    Of the tasks that only drive a run one at a time waits in the queue. `codec` is the
    engine's, if it has one, here and in `register`: payloads are then in no job in plain text. Raises what Procrastinate raises.

    For builds that run side by side, give each a queue and a dispatcher, and those to a `RuntimeBuildTaskRouter`."""

    def __init__(self, task: Task[Any, Any, Any], *, codec: PayloadCodec | None = None, **options: Any) -> None:
        self._task = task
        self._codec = codec
        self._options = options

    async def dispatch(self, task: FlowTask) -> bool | None:
        """As `FlowTaskDispatcher.dispatch`: False for a run that has a job waiting."""
        text = write(task, self._codec)
        return None if await _defer(self._task, task, text, Tries(), **self._options) else False


async def _defer(job: Task[Any, Any, Any], task: FlowTask, text: str, tries: Tries, **options: Any) -> bool:
    if task.drives:
        options["queueing_lock"] = f"perdure {job.name} {options.get('queue', job.queue)} {task.target}"
    deferrer = job.configure(**options)
    try:
        # As text: jsonb would put payloads in another form, and takes no U+0000.
        await deferrer.defer_async(task=text, attempts=tries.attempts, nacks=tries.nacks)
    except AlreadyEnqueued:
        return False
    return True


def register(
    app: App,
    engine: EngineSource,
    *,
    name: str = "perdure.task",
    queue: str = "perdure",
    max_attempts: int = MAX_ATTEMPTS,
    codec: PayloadCodec | None = None,
) -> Task[Any, Any, Any]:
    """Registers the task that does perdure's tasks, and gives it. `engine` is an engine, or a function, async or not, that
    gives it when a job needs it; it is the caller's to close.

    A task that has to come back is deferred again with a growing delay, and after `max_attempts` counted ones its job fails
    with `TaskSetAside`, as does one that is refused for good: look for failed jobs as Procrastinate shows them."""

    async def perdure_task(context: JobContext, task: str, attempts: int = 0, nacks: int = 0) -> None:
        of_message, used = read(task, codec), await _engine_of(engine)
        again = Tries(attempts, nacks).after(await handle(used, of_message), max_attempts, used.store.clock())
        if again is not None:
            seconds, tries = again
            later = {"schedule_in": {"milliseconds": round(seconds * 1000)}, "queue": context.job.queue}
            await _defer(registered, of_message, task, tries, **later)

    registered = app.task(name=name, queue=queue, pass_context=True)(perdure_task)
    return registered


async def _engine_of(source: EngineSource) -> FlowEngine:
    if isinstance(source, FlowEngine):
        return source
    made = source()
    return await made if isawaitable(made) else made
