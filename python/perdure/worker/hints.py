"""Waiting for something to happen in a store, or in the worker itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from perdure.errors import StoreError
from perdure.stores.base import FlowEventStore

__all__ = ["Hints"]

_log = logging.getLogger("perdure")
_LONG: Final = 3600.0


class Hints:
    """Listens to a store for changes. One listener stays from one wait to the next, so that no change is missed between."""

    def __init__(self, store: FlowEventStore) -> None:
        self._store = store
        self._seen = -1
        self._listener: asyncio.Task[int] | None = None

    async def begin(self) -> None:
        """What was changed before this is no news. Raises `StoreError`."""
        self._seen = await self._store.changes()

    async def wait(self, stirred: asyncio.Event, seconds: float, *, listen: bool) -> None:
        """Until `stirred` is set, `seconds` have passed, or with `listen` the store has changed since it was last heard."""
        stirring: asyncio.Future[Any] = asyncio.ensure_future(stirred.wait())
        waiting: set[asyncio.Future[Any]] = {stirring}
        if listen:
            self._listener = self._listener or asyncio.create_task(self._store.wait_for_change(self._seen, _LONG))
            waiting.add(self._listener)
        try:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stirring.cancel()
        if self._listener in done:
            self._heard(self._listener)

    def _heard(self, listener: asyncio.Task[int]) -> None:
        self._listener = None
        try:
            self._seen = listener.result()
        except StoreError as error:  # the next look meets it too, and deals with it
            _log.debug("the worker does not hear of changes: %s", error.code)

    async def close(self) -> None:
        """Stops listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
