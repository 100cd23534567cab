"""Hints that there may be something to do: NOTIFY heard on a connection of its own, and what this process changed itself (R48).

A hint is never relied upon. Where none can be heard, as behind a pooler that gives each transaction another session, the
store is asked once a second instead."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from random import random
from typing import Final

import psycopg

from perdure.errors import StoreError
from perdure.stores.postgres_database import PostgresDatabase, is_pooled

__all__ = ["PostgresHints", "channel_of"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0
_OWN_SECONDS: Final = 0.05
"""Those who wait are woken this often, and no more, by what their own process commits: that is most of the time theirs."""
_LONGEST_BACKOFF_SECONDS: Final = 30.0
_KEEPALIVE: Final = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
"""A connection that only listens would else not notice for hours that its server is gone."""


def channel_of(schema: str) -> str:
    """The channel of a tenant. A hash, because a schema's name may be as long as a channel's at most."""
    return f"perdure_{hashlib.sha256(schema.encode()).hexdigest()[:32]}"


class PostgresHints:
    """Waits for changes of one store. It listens from the first wait on. `ask` is `FlowEventStore.changes`'s one statement."""

    def __init__(self, database: PostgresDatabase, ask: Callable[[], Awaitable[int]], wait_seconds: float) -> None:
        self._database = database
        self._ask = ask
        self._wait_seconds = wait_seconds
        self._count = 0  # of what was heard, and of own changes
        self._own = 0  # of own changes
        self._listening = False
        self._stirred = asyncio.Event()
        self._waiting = 0
        self._noted = (
            -1,
            -1,
            0,
            0.0,
        )  # the last number that was given out, both counts before it was asked for, and when
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def changes(self) -> int:
        """As `FlowEventStore.changes`."""
        count, own, at = self._count, self._own, asyncio.get_running_loop().time()
        number = await self._ask()
        self._noted = (number, count, own, at)
        return number

    def changed(self) -> None:
        """This process changed something."""
        self._own += 1
        self._stir()

    async def wait(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowEventStore.wait_for_change`."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="perdure hints")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            number, count, own, at = self._noted
            if number == seen:
                await self._stirring(count, own, at, deadline)
            if self._closed:
                raise StoreError(f"{self._database} is closed; open the store again to use it")
            number = await self.changes()
            if number != seen or loop.time() >= deadline:
                return number

    async def close(self) -> None:
        """Ends the listening, and the waiting."""
        self._closed = True
        self._stir()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _stirring(self, count: int, own: int, at: float, deadline: float) -> None:
        """Waits for a reason to ask again, after the question that was asked at `at`."""
        loop = asyncio.get_running_loop()
        while (now := loop.time()) < deadline and self._count == count and not self._closed:
            until = deadline
            if self._own != own:
                until = min(until, at + _OWN_SECONDS)
            if not self._listening:
                until = min(until, at + _POLL_SECONDS)
            if until <= now:
                return
            self._waiting += 1
            try:
                async with asyncio.timeout(until - now):
                    await self._stirred.wait()
            except TimeoutError:
                continue
            finally:
                self._waiting -= 1

    def _stir(self) -> None:
        # Everybody who waits now wakes, and looks for itself whether it was meant.
        if self._waiting:
            self._stirred.set()
            self._stirred = asyncio.Event()

    # listening -----------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listens for ever, through lost connections. Ends where nothing can be heard."""
        backoff = 0.5
        while True:
            try:
                if not await self._hear():
                    return
                backoff = 0.5
            except (psycopg.Error, StoreError) as error:
                _log.debug("%s: no hints for now: %s", self._database, type(error).__name__)
            finally:
                self._listening = False
                self._stir()
            await asyncio.sleep(backoff * (0.5 + random()))
            backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)

    async def _hear(self) -> bool:
        """Listens on one connection until it is lost; false if it is none that could hear anything."""
        async with await self._database.connect_to_listen(self._wait_seconds, **_KEEPALIVE) as connection:
            if await is_pooled(connection):
                return False
            await connection.execute(f"LISTEN {channel_of(self._database.schema)}".encode())
            self._listening = True
            self._heard()  # what came before is not told any more
            async for _ in connection.notifies():
                self._heard()
        return True

    def _heard(self) -> None:
        self._count += 1
        self._stir()
