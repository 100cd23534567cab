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
from perdure.stores.postgres_pool import is_stale, poll_of

__all__ = ["PostgresWire", "Statement"]

_BINARY: Final = 1


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that answers with one row. `types` are PostgreSQL's numbers of those of its parameters."""

    name: str
    sql: str
    types: tuple[int, ...]


class PostgresWire:
    """`rendered` gives a statement's text for the schema; `prepares`: whether statements stay prepared in the session, from
    their second use on. One call at a time, and nobody else uses or closes the connection before `end`.

    The loop watches the connection from one call to the next, or each would have it begin and end that anew. The driver
    closes the socket of a connection that is lost, and its number may be another one's a moment later: so the watch ends in
    the very call that finds it lost, and after every error."""

    def __init__(self, connection: Connection, rendered: Callable[[str], str], *, prepares: bool) -> None:
        self.connection = connection
        self._pgconn = connection.pgconn
        self._rendered = rendered
        self._prepares = prepares
        # Should a pooler go unnoticed, a session that has not prepared the statement must not know one by its name.
        self._id = uuid.uuid4().hex
        self._used: set[str] = set()
        self._prepared: dict[str, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self._poll = poll_of(connection)
        self._socket: int | None = None  # that the loop watches
        self._writes = False
        self._answered: asyncio.Future[pq.abc.PGresult | None] | None = None
        self._last: pq.abc.PGresult | None = None

    def is_stale(self) -> bool:
        """Whether the connection has gone, between two calls."""
        found = is_stale(self.connection, self._poll)
        if found:
            self.end()
        return found

    async def ask(self, statement: Statement, values: Sequence[bytes | None]) -> list[bytes | None]:
        """The row that `statement` answers with. Raises `psycopg.Error`."""
        pgconn, formats, name = self._pgconn, [_BINARY] * len(values), self._prepared.get(statement.name)
        if name is None:
            sql = self._rendered(statement.sql).encode()
            if self._prepares and statement.name in self._used:
                name = f"{statement.name}_{self._id}".encode()
                await self._exchange(pgconn.send_prepare, name, sql, statement.types)
                self._prepared[statement.name] = name
        if name is None:
            self._used.add(statement.name)
            result = await self._exchange(pgconn.send_query_params, sql, values, statement.types, formats, _BINARY)
        else:
            result = await self._exchange(pgconn.send_query_prepared, name, values, formats, _BINARY)
        return [result.get_value(0, column) for column in range(result.nfields)]

    def end(self) -> None:
        """Watches no more. Idempotent."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            if self._writes:
                self._loop.remove_writer(self._socket)
            self._socket, self._writes = None, False

    async def _exchange(self, send: Callable[..., None], *values: object) -> pq.abc.PGresult:
        """Sends, and waits for the one result. A caller who is cancelled meanwhile leaves a connection that is closed."""
        self._answered, self._last = self._loop.create_future(), None
        try:
            if self._socket is None:
                self._socket = self._pgconn.socket
                self._loop.add_reader(self._socket, self._guarded, self._read)
            send(*values)
            if self._pgconn.flush():  # more than the system takes at once
                self._writes = True
                self._loop.add_writer(self._socket, self._guarded, self._flush)
            return _checked(self._pgconn, await self._answered)
        except psycopg.Error:
            self.end()
            raise
        except BaseException:
            self.end()
            self._pgconn.finish()
            raise

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except psycopg.Error as error:
            self.end()
            if self._answered is not None and not self._answered.done():
                self._answered.set_exception(error)
        else:
            if self._pgconn.status != pq.ConnStatus.OK:
                self.end()

    def _read(self) -> None:
        self._pgconn.consume_input()
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                if self._answered is not None and not self._answered.done():
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
