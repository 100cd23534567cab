"""`RuntimeBuildTaskRouter`: tasks of pinned runs go to the workers of their build (spec 08 §8.5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.builds import check_build_id
from perdure.dispatcher import FlowTaskDispatcher, as_dispatcher
from perdure.errors import InvalidTransition, InvalidWorkerConfiguration, RuntimeBuildRouteNotFound
from perdure.task_kinds import FlowTask

if TYPE_CHECKING:
    from perdure.engine import FlowEngine

__all__ = ["RuntimeBuildTaskRouter"]


class RuntimeBuildTaskRouter(FlowTaskDispatcher):
    """A dispatcher made of one dispatcher per build, as a mapping or as pairs, and one for unpinned runs, if there are any.

    When the last open run of a build has ended (`engine.run_summary_by_build`), its route may go. Raises
    `InvalidWorkerConfiguration` for a build with two routes, `InvalidRuntimeBuildId`."""

    def __init__(
        self,
        routes: Mapping[str, object] | Iterable[tuple[str, object]] = (),
        unpinned: object | None = None,
    ) -> None:
        self._routes: dict[str | None, FlowTaskDispatcher] = {}
        for build, dispatcher in routes.items() if isinstance(routes, Mapping) else routes:
            if build in self._routes:
                raise InvalidWorkerConfiguration(f"build {build!r} has two routes; give it one")
            self._routes[check_build_id(build)] = as_dispatcher(dispatcher)
        if unpinned is not None:
            self._routes[None] = as_dispatcher(unpinned)

    @property
    def builds(self) -> list[str]:
        """The builds with a route, sorted."""
        return sorted(build for build in self._routes if build is not None)

    async def dispatch(self, task: FlowTask) -> bool | None:
        """Sends a task by the unpinned route. Raises `RuntimeBuildRouteNotFound`."""
        return await self._route(None).dispatch(task)

    async def dispatch_for_runtime_build(self, build: str | None, task: FlowTask) -> bool | None:
        """Sends a task by the route of a build, None for the unpinned one. Raises `RuntimeBuildRouteNotFound`."""
        return await self._route(build).dispatch(task)

    async def dispatch_many(self, build: str | None, tasks: Sequence[FlowTask]) -> list[bool | None]:
        """As `FlowTaskDispatcher.dispatch_many`."""
        return await self._route(build).dispatch_many(None, tasks)

    async def dispatch_for_run(self, engine: FlowEngine, run_id: str, task: FlowTask) -> bool | None:
        """Sends a task by the route of the build that the run is pinned to, read from its history. The task must name exactly
        this run: tasks by token and scans cannot be routed so, `InvalidTransition`. Raises `RunNotFound`,
        `RuntimeBuildRouteNotFound`."""
        if task.target != run_id:
            raise InvalidTransition(run_id, "task_target", task.type, task.target)
        return await self.dispatch_for_runtime_build(await engine.runtime_build_id(run_id), task)

    def ensure_runtime_build_route(self, build: str | None) -> None:
        """As `FlowTaskDispatcher.ensure_runtime_build_route`."""
        self._route(build)

    def _route(self, build: str | None) -> FlowTaskDispatcher:
        route = self._routes.get(build)
        if route is None:
            raise RuntimeBuildRouteNotFound(build)
        return route
