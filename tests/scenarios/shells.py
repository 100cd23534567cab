"""Both shells under one name: a scenario written once runs through the asyncio engine and through the blocking one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from perdure import BlockingFlowEngine, Flow, FlowEngine
from scenarios.kit import World

__all__ = ["SHELLS", "OpenEngine", "in_asyncio", "in_threads"]

OpenEngine = Callable[..., AbstractAsyncContextManager[FlowEngine]]
"""`open_engine(world, flow, **options)`: an engine of one shell, closed at the end of the block."""


@asynccontextmanager
async def in_asyncio(world: World, flow: Flow, **options: Any) -> AsyncIterator[FlowEngine]:
    """The asyncio shell."""
    async with world.engine(flow, **options) as engine:
        yield engine


class _Threaded:
    """Each method of the blocking engine as a coroutine that waits for it in a thread, so it can be written like the other."""

    def __init__(self, engine: BlockingFlowEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: asyncio.to_thread(found, *args, **kwargs)


@asynccontextmanager
async def in_threads(world: World, flow: Flow, **options: Any) -> AsyncIterator[FlowEngine]:
    """The blocking shell."""
    engine = world.blocking(flow, **options)
    try:
        yield cast(FlowEngine, _Threaded(engine))
    finally:
        await asyncio.to_thread(engine.close)


SHELLS = [in_asyncio, in_threads]
