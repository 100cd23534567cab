"""How a PostgreSQL store asks its server: which connection, how long, what is asked again, and what a lost answer means
(R48)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar, cast

import psycopg

from perdure.errors import FlowError, StoreError
from perdure.stores.postgres_database import (
    Connection,
    PostgresDatabase,
    hang_up,
    is_contention,
    is_lost,
    is_no_longer_writable,
    lacks_what_was_prepared,
)
from perdure.stores.postgres_pool import PostgresPool
from perdure.stores.postgres_wire import PostgresWire, Statement

__all__ = ["Ask", "Each", "PostgresAsking", "Row"]

Row = tuple[Any, ...]
Ask = Callable[..., Awaitable[list[Row]]]
"""Runs one statement, whose parameters follow it, and gives its rows."""
Each = Callable[..., AsyncIterator[Row]]
"""As `Ask`, one row after the other."""
T = TypeVar("T")

_TRIES: Final = 5


class _Unanswered(psycopg.OperationalError):
    """The server did not answer in time."""


class PostgresAsking:
    """The connections of one store, opened by the first call. `opened` is told the server's clock, ns, and `changed` whenever
    something may have been changed."""

    def __init__(
        self,
        database: PostgresDatabase,
        pool_size: int,
        wait_seconds: float,
        answer_seconds: float,
        migrate: bool,
        opened: Callable[[int], None],
        changed: Callable[[], None],
    ) -> None:
        self._database = database
        self._pool_size = pool_size
        self._wait_seconds = wait_seconds
        self._answer_seconds = answer_seconds
        self._migrate = migrate
        self._on_open = opened
        self._on_change = changed
        self._pool: PostgresPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._kept: PostgresWire | None = None
        self._keeping = AsyncExitStack()  # what gives it back
        self._ending: set[asyncio.Task[None]] = set()  # connections that did not answer
        self._closed = False
        self._process = os.getpid()

    async def open(self) -> PostgresPool:
        """Connects, and migrates if it must. Raises `StoreUnavailable`, `StoreError`."""
        self.check()
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._on_open(await self._database.prepare(self._wait_seconds, migrate=self._migrate))
                    self._loop = asyncio.get_running_loop()
                    self._pool = PostgresPool(self._database, self._pool_size, self._wait_seconds)
        return self._pool

    def check(self) -> None:
        """Raises `StoreError` where the store must not be used: it is closed, or its connections are those of another process
        or loop."""
        if self._closed:
            raise StoreError(f"{self._database} is closed; open the store again to use it")
        if self.is_forked():
            raise StoreError(
                f"{self._database} was connected to before this process was forked; make a store in each, after the fork"
            )
        if self._loop not in (None, asyncio.get_running_loop()):
            raise StoreError(f"{self._database} is used from a second event loop; make a store for each")

    def is_forked(self) -> bool:
        """Whether this process is a fork of the one whose connections these are: it must not even close them."""
        return os.getpid() != self._process

    async def close(self) -> None:
        """Gives the connections back; later calls are refused."""
        self._closed = True
        async with self._opening:
            pool, self._pool = self._pool, None
            if pool is not None:
                await self._keeping.aclose()
                await pool.close()
        if self._ending:
            await asyncio.wait(self._ending)

    # asking --------------------------------------------------------------------------------------------------

    async def rows(self, statement: str, *values: object) -> list[Row]:
        """Asks what may be asked twice, again on another connection if the first was lost. Raises `StoreUnavailable`,
        `StoreError`."""
        return await self._tried(
            PostgresPool.lend, lambda connection: self._ask(connection, statement, values), "reading", repeatable=True
        )

    async def change(self, statement: str, *values: object) -> list[Row]:
        """Runs one statement that must not run twice. Raises `StoreUnavailable` or `StoreError` with nothing written, or
        `OutcomeUnknown`."""
        return await self._changed(PostgresPool.lend, lambda connection: self._ask(connection, statement, values))

    async def change_on_kept(self, statement: Statement, values: Sequence[bytes | None]) -> list[bytes | None]:
        """As `change`, for the row of one statement on a connection that is kept for such calls, of which there is one at a
        time."""
        kept = self._kept
        if kept is not None and not kept.is_stale():
            # Most commits pass here.
            try:
                return await self._ask_kept(kept, statement, values)
            except psycopg.Error as error:
                if is_lost(error):
                    await kept.connection.close()
                    raise self._database.unknown("the connection was lost") from None
                # Nothing was written: once more, with all that is done about errors.
            finally:
                self._on_change()
        return await self._changed(
            self._keep, lambda _: self._ask_kept(cast(PostgresWire, self._kept), statement, values)
        )

    async def transact(self, work: Callable[[Ask, Each], Awaitable[T]]) -> T:
        """Runs `work` in one transaction, again after contention, so `work` keeps nothing from one try to the next. Raises as
        `change`."""

        async def transaction(connection: Connection) -> T:
            async def ask(statement: str, *values: object) -> list[Row]:
                return await self._ask(connection, statement, values)

            # The driver's own block would wait for ever for a server that does not answer.
            await ask("BEGIN ISOLATION LEVEL READ COMMITTED")
            try:
                given = await work(ask, partial(self._each, connection))
            except FlowError:
                with suppress(psycopg.Error):  # nothing was written; a connection in whatever state is not kept
                    await ask("ROLLBACK")
                raise
            await ask("COMMIT")
            return given

        return await self._changed(PostgresPool.lend, transaction)

    async def _changed(
        self,
        lent: Callable[[PostgresPool], AbstractAsyncContextManager[Connection]],
        work: Callable[[Connection], Awaitable[T]],
    ) -> T:
        try:
            return await self._tried(lent, work, "writing", repeatable=False)
        finally:
            self._on_change()  # it may have happened, whatever was answered

    async def _tried(
        self,
        lent: Callable[[PostgresPool], AbstractAsyncContextManager[Connection]],
        work: Callable[[Connection], Awaitable[T]],
        doing: str,
        *,
        repeatable: bool,
    ) -> T:
        pool, tries = await self.open(), 0
        while True:
            tries += 1
            async with lent(pool) as connection:
                try:
                    return await work(connection)
                except psycopg.Error as error:
                    lost = is_lost(error)
                    if lost and not repeatable:
                        await connection.close()
                        raise self._database.unknown("the connection was lost") from None
                    again = is_contention(error) or (lost and not isinstance(error, _Unanswered))
                    if await self._is_replaced(pool, connection, error):
                        again = again or tries == 1
                    if tries == _TRIES or not again:
                        raise self._database.failure(error, doing) from None

    async def _is_replaced(self, pool: PostgresPool, connection: Connection, error: psycopg.Error) -> bool:
        """Drops connections that are of no more use; whether new ones may do what these could not, with nothing written."""
        if lacks_what_was_prepared(error):
            self._database.prepare_nothing()
        elif not is_no_longer_writable(error):
            if is_lost(error):
                await connection.close()
            return False
        await connection.close()
        await pool.renew()
        return True

    async def _ask(self, connection: Connection, statement: str, values: tuple[object, ...]) -> list[Row]:
        async def work() -> list[Row]:
            cursor = await connection.execute(self._database.sql(statement), values, binary=True)
            return await cursor.fetchall() if cursor.description else []

        return await self._in_time(connection, work())

    async def _each(self, connection: Connection, statement: str, *values: object) -> AsyncIterator[Row]:
        """As `_ask`, row by row, for what may be more than the memory holds."""
        async with connection.cursor() as cursor:
            rows = cursor.stream(self._database.sql(statement), values, binary=True)
            while (row := await self._in_time(connection, anext(rows, None))) is not None:
                yield row

    async def _ask_kept(
        self, kept: PostgresWire, statement: Statement, values: Sequence[bytes | None]
    ) -> list[bytes | None]:
        return await self._in_time(kept.connection, kept.ask(statement, values))

    async def _in_time(self, connection: Connection, work: Awaitable[T]) -> T:
        """Raises what psycopg raises, with a server that does not answer in time among what is lost."""
        loop = asyncio.get_running_loop()
        # A time-out would cancel the call, and the driver then tries for seconds to reach the server that does not answer.
        timer = loop.call_later(self._answer_seconds, self._give_up, connection)
        try:
            return await work
        except psycopg.OperationalError:
            if loop.time() < timer.when():
                raise
            raise _Unanswered(f"no answer in {self._answer_seconds:g} s") from None
        finally:
            timer.cancel()

    def _give_up(self, connection: Connection) -> None:
        task = asyncio.create_task(_hang_up(connection, self._wait_seconds))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @asynccontextmanager
    async def _keep(self, pool: PostgresPool) -> AsyncIterator[Connection]:
        if self._kept is None or self._kept.is_stale():
            await self._keeping.aclose()
            connection = await self._keeping.enter_async_context(pool.lend())
            self._kept = PostgresWire(connection, self._database.sql, prepares=self._database.prepares)
            self._keeping.callback(self._kept.end)
        yield self._kept.connection


async def _hang_up(connection: Connection, wait_seconds: float) -> None:
    """Ends a connection under a call that waits for its answer, and asks the server to end the statement, for which nobody
    waits any more."""
    cancelling = asyncio.create_task(connection.cancel_safe(timeout=wait_seconds))
    await asyncio.sleep(0)  # it notes whom to ask before the connection has gone
    hang_up(connection)
    with suppress(psycopg.Error, OSError):
        await cancelling
