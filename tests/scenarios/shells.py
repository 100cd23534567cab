"""Both shells under one name: a scenario written once runs through the asyncio engine and through the blocking one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from perdure import Flow, FlowEngine
from scenarios.kit import Threaded, World

__all__ = ["SHELLS", "OpenEngine", "in_asyncio", "in_threads"]

OpenEngine = Callable[..., AbstractAsyncContextManager[FlowEngine]]
"""`open_engine(world, flow, **options)`: an engine of one shell, closed at the end of the block."""


@asynccontextmanager
async def in_asyncio(world: World, flow: Flow, **options: Any) -> AsyncIterator[FlowEngine]:
    """The asyncio shell."""
    async with world.engine(flow, **options) as engine:
        yield engine


@asynccontextmanager
async def in_threads(world: World, flow: Flow, **options: Any) -> AsyncIterator[FlowEngine]:
    """The blocking shell."""
    async with Threaded(world.blocking(flow, **options)) as engine:
        yield cast(FlowEngine, engine)


SHELLS = [in_asyncio, in_threads]
