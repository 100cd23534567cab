"""Where tasks go: a host's own queue, one of ours, or a router over several (spec 08 §8.2, 8.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from perdure.errors import InvalidWorkerConfiguration, RuntimeBuildRouteNotFound
from perdure.task_kinds import FlowTask

__all__ = ["FlowTaskDispatcher", "as_dispatcher"]


@runtime_checkable
class FlowTaskDispatcher(Protocol):
    """Takes tasks to where workers are. Extend it and write `dispatch`; the rest says that it takes unpinned work only,
    as every plain queue does.

    A delivery may come late, twice or never: the scheduler dispatches again what is still runnable."""

    async def dispatch(self, task: FlowTask) -> bool | None:
        """Sends a task. True: it was queued; False: the queue has one like it, which will do; None: not known, and the
        scheduler waits `redispatch_after` before it sends another one for the same run (R46). Raises `QueueBackpressure`
        and whatever the host's queue raises."""
        ...

    async def dispatch_for_runtime_build(self, build: str | None, task: FlowTask) -> bool | None:
        """Sends a task of a run pinned to `build`, None for one that is not pinned. Raises `RuntimeBuildRouteNotFound`."""
        self.ensure_runtime_build_route(build)
        return await self.dispatch(task)

    async def dispatch_many(self, build: str | None, tasks: Sequence[FlowTask]) -> list[bool | None]:
        """Sends the tasks of a tick that are for one build, in order."""
        return [await self.dispatch_for_runtime_build(build, task) for task in tasks]

    def ensure_runtime_build_route(self, build: str | None) -> None:
        """Raises `RuntimeBuildRouteNotFound` if tasks of this build would have nowhere to go. The scheduler asks for all
        builds of a tick before it sends the first task."""
        if build is not None:
            raise RuntimeBuildRouteNotFound(build)


class _Plain(FlowTaskDispatcher):
    """Somebody's object with nothing but `dispatch`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def dispatch(self, task: FlowTask) -> bool | None:
        answer: bool | None = await self._inner.dispatch(task)
        return answer


def as_dispatcher(given: object) -> FlowTaskDispatcher:
    """`given` itself, or wrapped if it only has `dispatch`. Raises `InvalidWorkerConfiguration` for anything else."""
    if isinstance(given, FlowTaskDispatcher):
        return given
    if callable(getattr(given, "dispatch", None)):
        return _Plain(given)
    raise InvalidWorkerConfiguration(
        f"a dispatcher has an async method dispatch(task); {type(given).__name__} has none. Give a queue, a router or a host's "
        "own FlowTaskDispatcher"
    )
