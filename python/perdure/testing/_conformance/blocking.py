"""The blocking engine in a case: called from a loop with virtual time, whose clock thus moves between its calls only."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

from perdure.blocking import BlockingFlowEngine
from perdure.errors import EngineClosed, FlowError
from perdure.kernel import Batch
from perdure.stores.base import Append, Committed, FlowEventStore

__all__ = ["AwaitedEngine", "CrashingStore"]


class AwaitedEngine:
    """A `BlockingFlowEngine` with the asyncio engine's methods. Each blocks the loop it is awaited on until its result is
    there, so nothing else happens on that loop meanwhile, and no time passes. `called` is told after each call."""

    def __init__(self, engine: BlockingFlowEngine, called: Callable[[], None]) -> None:
        self._engine, self._called = engine, called

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            try:
                return method(*arguments, **named)
            except concurrent.futures.CancelledError:  # the engine ended inside the call itself
                raise EngineClosed from None
            finally:
                self._called()

        return call


class CrashingStore:
    """The store as an engine sees it that ends at a commit (R18): whoever asks for that one or a later one is cancelled.

    Everything but `commit` and `close` is the inner store's own."""

    def __init__(self, inner: FlowEventStore, crashes: Callable[[Sequence[Batch]], bool]) -> None:
        self.inner, self._crashes = inner, crashes
        self.ended = False

    async def commit(self, appends: Sequence[Append]) -> Sequence[Committed | FlowError]:
        """As `FlowEventStore.commit`."""
        self.ended = self.ended or self._crashes([append.batch for append in appends])
        if self.ended:
            raise asyncio.CancelledError
        return await self.inner.commit(appends)

    async def close(self) -> None:
        """The store outlives its clients."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
