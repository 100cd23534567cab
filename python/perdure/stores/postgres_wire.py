"""One statement after the other on a connection, by the driver's lower half: for the commits of steps, which are most of what a
store does and all that its speed hangs on.

The upper half makes a cursor, looks up how to send and read each value and waits twice, which takes longer than the server
takes for a commit. Here values are sent as they were packed, and what comes back are bytes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from perdure.stores.postgres_database import Connection

__all__ = ["PostgresWire", "Statement"]

_BINARY: Final = 1


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that answers with one row. `types` are PostgreSQL's numbers of those of its parameters."""

    name: str
    sql: str
    types: tuple[int, ...]


class PostgresWire:
    """`prepares`: whether statements stay prepared in the session, from their second use on. One call at a time, and nobody
    else uses the connection meanwhile."""

    def __init__(self, connection: Connection, *, prepares: bool) -> None:
        self.connection = connection
        self._prepares = prepares
        # Should a pooler go unnoticed, a session that has not prepared the statement must not know one by its name.
        self._id = uuid.uuid4().hex
        self._used: set[Statement] = set()
        self._prepared: set[Statement] = set()

    async def ask(self, statement: Statement, sql: str, values: Sequence[bytes | None]) -> list[bytes | None]:
        """The row that `statement` answers with; `sql` is its text for this schema. Raises `psycopg.Error`."""
        pgconn, formats, name = self.connection.pgconn, [_BINARY] * len(values), f"{statement.name}_{self._id}".encode()
        if self._prepares and statement in self._used and statement not in self._prepared:
            await self._exchange(lambda: pgconn.send_prepare(name, sql.encode(), statement.types))
            self._prepared.add(statement)
        self._used.add(statement)
        if statement in self._prepared:
            result = await self._exchange(lambda: pgconn.send_query_prepared(name, values, formats, _BINARY))
        else:
            result = await self._exchange(
                lambda: pgconn.send_query_params(sql.encode(), values, statement.types, formats, _BINARY)
            )
        return [result.get_value(0, column) for column in range(result.nfields)]

    async def _exchange(self, send: Callable[[], None]) -> pq.abc.PGresult:
        """Sends, and waits for the one result. A caller who is cancelled meanwhile leaves a connection that is closed."""
        pgconn, loop = self.connection.pgconn, asyncio.get_running_loop()
        answered: asyncio.Future[pq.abc.PGresult | None] = loop.create_future()
        watch = _Watch(loop, pgconn, answered)
        try:
            send()
            if pgconn.flush():  # more than the system takes at once
                watch.write()
            result = await answered
        except asyncio.CancelledError:
            watch.end()
            pgconn.finish()
            raise
        finally:
            watch.end()
        return _checked(pgconn, result)


class _Watch:
    """Waits for a connection to be readable, and writable where that is wanted, until it has answered or is lost.

    The driver closes the socket of a connection that is lost, and its number may be another one's a moment later: so the
    watch ends in the very call that finds it lost."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pgconn: pq.abc.PGconn,
        answered: asyncio.Future[pq.abc.PGresult | None],
    ) -> None:
        self._loop = loop
        self._pgconn = pgconn
        self._answered = answered
        self._last: pq.abc.PGresult | None = None
        self._socket: int | None = pgconn.socket
        self._writes = False
        loop.add_reader(pgconn.socket, self._guarded, self._read)

    def write(self) -> None:
        """Sends the rest when there is room."""
        self._writes = True
        self._loop.add_writer(self._pgconn.socket, self._guarded, self._flush)

    def end(self) -> None:
        """Watches no more."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            if self._writes:
                self._loop.remove_writer(self._socket)
            self._socket = None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except psycopg.Error as error:
            self.end()
            if not self._answered.done():
                self._answered.set_exception(error)
        else:
            if self._answered.done() or self._pgconn.status != pq.ConnStatus.OK:
                self.end()

    def _read(self) -> None:
        self._pgconn.consume_input()
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                if not self._answered.done():
                    self._answered.set_result(self._last)
                break
            self._last = result

    def _flush(self) -> None:
        if not self._pgconn.flush() and self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._writes = False


def _checked(pgconn: pq.abc.PGconn, result: pq.abc.PGresult | None) -> pq.abc.PGresult:
    if result is not None and result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        return result
    if result is None or (pgconn.status != pq.ConnStatus.OK and not result.error_field(pq.DiagnosticField.SQLSTATE)):
        raise psycopg.OperationalError("the connection is lost")
    raise error_from_result(result)
