"""A PostgreSQL database and one schema of it: its address, its connections, its migrations, and what its errors mean to a
caller (spec 7.6, 7.7, R48, R50)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import clear_frames
from typing import Any, Final, Literal

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.conninfo import conninfo_to_dict

from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.instant import due_key
from perdure.stores.migrations import Announce, Migration, bundled, lacking, pending

__all__ = [
    "Connection",
    "PostgresDatabase",
    "Preparing",
    "hang_up",
    "is_contention",
    "is_lost",
    "is_no_longer_writable",
    "is_pooled",
    "lacks_what_was_prepared",
]

Connection = AsyncConnection[tuple[Any, ...]]

Preparing = int | Literal["auto"] | None
"""After how many executions a statement is prepared: psycopg's `prepare_threshold`, or its own default on connections that
are the server's own, and never behind a pooler."""

_OLDEST: Final = 140000
_IDENTIFIER_BYTES: Final = 63  # PostgreSQL cuts longer names silently, so that two schemas would become one
_CONTENTION: Final = ("40001", "40P01")
_USES_BEFORE_PREPARING: Final = 5
_LATER: Final = ("25006", "40", "53", "55P03", "57")
"""SQLSTATEs, or their beginnings, of what may go away by itself: a standby, contention, no room, a lock or its time-out, an
operator."""
_LEDGER: Final = """CREATE TABLE IF NOT EXISTS @schema@.flow_migrations (
    number bigint NOT NULL PRIMARY KEY,
    title text NOT NULL,
    sha256 text NOT NULL,
    applied_at text NOT NULL
)"""
_LOCK: Final = """SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('perdure'), pg_catalog.hashtext($1))"""
_LOOK: Final = """SELECT current_setting('server_encoding'), current_setting('server_version_num')::bigint,
    EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
    to_regclass($2) IS NOT NULL, to_regclass($3) IS NOT NULL"""


class PostgresDatabase:
    """One schema of one database. `address` is a `postgresql://` URL or libpq's `key=value` form.

    Raises `ValueError` for another address or a schema name that PostgreSQL cannot hold."""

    def __init__(
        self, address: str, schema: str, prepare_threshold: Preparing = "auto", listen_address: str | None = None
    ) -> None:
        given = _parsed(address, "the address")
        if listen_address is not None:
            _parsed(listen_address, "listen_address")
        if not _is_a_name(schema):
            raise ValueError(
                f"schema {schema!r} is no name for one: use 1 to {_IDENTIFIER_BYTES} bytes of text that do not begin with "
                "'pg_', which PostgreSQL keeps for itself"
            )
        self.address = address
        self.listen_address = listen_address
        self.schema = schema
        self.prepare_threshold = prepare_threshold
        self._options: dict[str, Any] = {
            "autocommit": True,
            # Until `prepare` has seen whether a pooler stands between.
            "prepare_threshold": None if prepare_threshold == "auto" else prepare_threshold,
            "cursor_factory": AsyncRawCursor,
            "application_name": given.get("application_name", "perdure"),
            "client_encoding": "UTF8",
        }
        self._name = f"{given.get('dbname', '')} at {given.get('host', 'the local server')}:{given.get('port', 5432)}"
        self._quoted = '"' + schema.replace('"', '""') + '"'

    def __str__(self) -> str:
        return f"PostgreSQL database {self._name}, schema {self.schema}"

    def sql(self, text: str) -> str:
        """A statement with the schema's quoted name in it."""
        return text.replace("@schema@", self._quoted)

    def script(self, text: str) -> str:
        """The text of a migration for this schema, which has advisory locks of its own."""
        digest = hashlib.sha256(self.schema.encode()).digest()
        return self.sql(text.replace("@tenant@", f"({int.from_bytes(digest[:4], signed=True)})"))

    # opening -------------------------------------------------------------------------------------------------

    async def connect(self, wait_seconds: float, **options: Any) -> Connection:
        """A new connection in autocommit mode. Raises `StoreUnavailable`, `StoreError`."""
        return await self._connect(self.address, wait_seconds, options)

    async def connect_to_listen(self, wait_seconds: float, **options: Any) -> Connection:
        """A new connection to where hints are to be heard. Raises as `connect`."""
        return await self._connect(self.listen_address or self.address, wait_seconds, options)

    async def _connect(self, address: str, wait_seconds: float, options: dict[str, Any]) -> Connection:
        try:
            async with asyncio.timeout(wait_seconds):
                try:
                    return await AsyncConnection.connect(address, **self._options | options)
                except asyncio.CancelledError as error:
                    # Its frames hold the half-made connection, on which the server would wait for as long as somebody holds
                    # the error.
                    clear_frames(error.__traceback__)
                    raise
        except TimeoutError:
            raise StoreUnavailable(f"{self} could not be connected to within {wait_seconds:g} s") from None
        except psycopg.Error as error:
            raise self.failure(error, "connecting") from None

    async def pending(self, wait_seconds: float) -> list[Migration]:
        """The migrations that the schema lacks; changes nothing. Raises as `prepare`."""
        async with await self.connect(wait_seconds, prepare_threshold=None) as connection:
            try:
                with _answering(connection, wait_seconds):
                    return await self._pending(connection, bundled("postgres"))
            except psycopg.Error as error:
                raise self.failure(error, "opening it") from None

    @property
    def prepares(self) -> bool:
        """Whether statements may stay prepared in a session."""
        return self._options["prepare_threshold"] is not None

    def prepare_nothing(self) -> None:
        """From now on no connection prepares statements."""
        self._options["prepare_threshold"] = None

    async def prepare(self, wait_seconds: float, *, migrate: bool, announce: Announce = lambda _: None) -> int:
        """Brings the schema to this release's state, or with `migrate` false refuses one that is in another. Gives the server's
        clock, ns.

        Raises `StoreError` for a database that is not ours to use, `StoreUnavailable` if it cannot be reached now."""
        # A migration is many statements in one text, which cannot be prepared.
        async with await self.connect(wait_seconds, prepare_threshold=None) as connection:
            try:
                known = bundled("postgres")
                with _answering(connection, wait_seconds):
                    due = await self._pending(connection, known)
                if due and not migrate:
                    raise lacking(str(self), due)
                if due:
                    await self._bring_up(connection, known, announce)
                with _answering(connection, wait_seconds):
                    if self.prepare_threshold == "auto" and not await is_pooled(connection):
                        self._options["prepare_threshold"] = _USES_BEFORE_PREPARING
                    ((now,),) = await (await connection.execute(self.sql("SELECT @schema@.flow_clock()"))).fetchall()
                return int(now)
            except psycopg.Error as error:
                raise self.failure(error, "opening it") from None

    async def _bring_up(self, connection: Connection, known: list[Migration], announce: Announce) -> None:
        async with connection.transaction():  # for as long as it takes
            await connection.execute(_LOCK, (self.schema,))
            # Another process may have applied them while this one waited for the lock.
            for migration in await self._pending(connection, known):
                announce(migration)
                await self._apply(connection, migration)

    async def _pending(self, connection: Connection, known: list[Migration]) -> list[Migration]:
        tables = [self.sql(f"@schema@.{table}") for table in ("flow_migrations", "a3s_orm_migrations")]
        (row,) = await (await connection.execute(_LOOK, (self.schema, *tables))).fetchall()
        encoding, version, has_schema, has_ledger, is_foreign = row
        if version < _OLDEST:
            raise StoreError(f"{self}: the server is too old for perdure; use PostgreSQL 14 or newer")
        if encoding != "UTF8":
            raise StoreError(f"{self} is encoded in {encoding}; create it with ENCODING 'UTF8'")
        if is_foreign:
            raise StoreError(
                f"{self} holds a3s_orm_migrations: it belongs to the reference engine, whose tables perdure does not use; "
                "export its histories as JSON lines and use another schema"
            )
        if not (has_schema and has_ledger):
            return known
        ledger = await connection.execute(self.sql("SELECT number, title, sha256 FROM @schema@.flow_migrations"))
        return pending(sorted(await ledger.fetchall()), str(self), known)

    async def _apply(self, connection: Connection, migration: Migration) -> None:
        if migration.number == 1:
            # CREATE SCHEMA IF NOT EXISTS wants the right to create even where there is nothing to do.
            found = await connection.execute("SELECT FROM pg_namespace WHERE nspname = $1", (self.schema,))
            if not await found.fetchall():
                await connection.execute(self.sql("CREATE SCHEMA @schema@"))
        await connection.execute(self.sql(_LEDGER))
        await connection.execute(self.script(migration.sql))
        row = (migration.number, migration.title, migration.sha256, due_key(time.time_ns()))
        await connection.execute(self.sql("INSERT INTO @schema@.flow_migrations VALUES ($1, $2, $3, $4)"), row)

    # errors --------------------------------------------------------------------------------------------------

    def failure(self, error: psycopg.Error, doing: str) -> StoreError:
        """The error to raise for `error`, where it is certain that nothing was written."""
        state = error.sqlstate or ""
        if is_lost(error) or state.startswith(_LATER):
            return StoreUnavailable(f"{self} failed while {doing}; nothing was written: {_told(error)}")
        if state.startswith("22") or not state:
            return StoreError(
                f"{self} cannot hold a value of this call ({_told(error)}); ids and names must be without U+0000 and lone "
                "surrogates"
            )
        return StoreError(f"{self} failed while {doing}: {_told(error)}")

    def unknown(self, what: str) -> OutcomeUnknown:
        """The error to raise where the server's answer is missing."""
        return OutcomeUnknown(
            f"{self} did not say whether it committed ({what}); commit the same batch again to learn it"
        )

    def exhausted(self, seconds: float) -> StoreUnavailable:
        """The error to raise where no connection came free or could be made."""
        return StoreUnavailable(
            f"{self} gave no connection within {seconds:g} s; nothing was written. Check that it runs, or raise pool_size"
        )


@contextmanager
def _answering(connection: Connection, seconds: float) -> Iterator[None]:
    """A block of questions that any server answers at once: one that does not is lost after `seconds`."""
    timer = asyncio.get_running_loop().call_later(seconds, hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()


def hang_up(connection: Connection) -> None:
    """Ends a connection under a call that waits for its answer; the call finds it lost."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def _is_a_name(schema: str) -> bool:
    try:
        size = len(schema.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return (
        0 < size <= _IDENTIFIER_BYTES
        and not schema.startswith("pg_")
        and "\0" not in schema
        and "$perdure$" not in schema
    )


def _parsed(address: str, what: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(address)
    except psycopg.ProgrammingError:
        # The driver quotes the address, which may hold a password.
        raise ValueError(f"{what} is no PostgreSQL URL; use postgresql://user@host:port/database") from None


def _told(error: psycopg.Error) -> str:
    """The error without what it may quote: a detail shows rows, and a data exception the value itself (R49)."""
    state = error.sqlstate
    if state is None:
        return str(error).partition("\n")[0] if isinstance(error, psycopg.OperationalError) else type(error).__name__
    if state.startswith("22"):
        return f"SQLSTATE {state}"
    return f"{error.diag.message_primary} (SQLSTATE {state})"


async def is_pooled(connection: Connection) -> bool:
    """Whether something stands between the connection and its server session, which may then change from one transaction to
    the next: a pooler gives a process id of its own."""
    ((process_id,),) = await (await connection.execute("SELECT pg_backend_pid()")).fetchall()
    return bool(process_id != connection.info.backend_pid)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection went away, so that the server may have done what it did not answer (R48). A server that is
    shut down may end a session after its commit, so its farewell says nothing either."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.sqlstate.startswith(("08", "57P"))


def is_no_longer_writable(error: psycopg.Error) -> bool:
    """Whether the session turned read-only, as those of a former primary do: another connection may lead to the new one."""
    return error.sqlstate == "25006"


def lacks_what_was_prepared(error: psycopg.Error) -> bool:
    """Whether a prepared statement was not where it was looked for: something pools sessions unnoticed. Nothing was run."""
    return error.sqlstate in ("26000", "42P05")


def is_contention(error: psycopg.Error) -> bool:
    """Whether the server undid the transaction because of others, so that it can be tried again as it is."""
    return error.sqlstate in _CONTENTION
