"""The connections of a PostgreSQL store: made when needed, kept when idle, bounded in number and in waiting.

Not psycopg-pool: that one connects in the background, so a caller learns after a time-out, and without the cause, what a
connection of its own would have told it at once."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg.pq import TransactionStatus

from perdure.stores.postgres_database import Connection, PostgresDatabase

__all__ = ["PostgresPool", "is_stale", "poll_of"]


class PostgresPool:
    """Lends up to `size` connections at a time; a caller waits for one up to `wait_seconds`, and as long for a new one."""

    def __init__(self, database: PostgresDatabase, size: int, wait_seconds: float) -> None:
        self._database = database
        self._wait_seconds = wait_seconds
        self._free = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """A connection that is not known to be dead. Raises `StoreUnavailable`."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise self._database.exhausted(self._wait_seconds) from None
        try:
            connection = await self._live()
            try:
                yield connection
            finally:
                await self._take_back(connection)
        finally:
            self._free.release()

    async def close(self) -> None:
        """Closes what is idle; what is lent is closed when it comes back."""
        self._closed = True
        await self.renew()

    async def renew(self) -> None:
        """Closes what is idle, so that the next ones to be lent are new."""
        while self._idle:
            await self._idle.pop().close()

    async def _live(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not is_stale(connection):
                return connection
            await connection.close()
        return await self._database.connect(self._wait_seconds)

    async def _take_back(self, connection: Connection) -> None:
        if self._closed or connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            await connection.close()
        else:
            self._idle.append(connection)


def poll_of(connection: Connection) -> select.poll:
    """What `is_stale` looks through."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return poll


def is_stale(connection: Connection, poll: select.poll | None = None) -> bool:
    """Whether an idle connection has gone. Seen before anything is sent, it is certain that nothing was done."""
    if connection.closed:
        return True
    poll = poll or poll_of(connection)
    # A server may announce a changed setting; its farewell is followed by the end, which the second look finds.
    for _ in range(2):
        if not poll.poll(0):
            return False
        try:
            connection.pgconn.consume_input()
        except psycopg.Error:
            return True
    return bool(poll.poll(0))
