"""Schema changes out of band: which a database lacks, and making them, without opening a store for use (spec 7.7)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from perdure.stores.address import Address, parse_address
from perdure.stores.migrations import Announce, Migration
from perdure.stores.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from perdure.stores.postgres_database import PostgresDatabase

__all__ = ["apply_migrations", "pending_migrations"]

_WAIT_SECONDS: Final = 10.0
_DEFAULT_SCHEMA: Final = "perdure"


async def pending_migrations(address: str) -> list[Migration]:
    """The migrations that the database at `address` lacks, all of them if it is not there; changes nothing. A store without a
    schema lacks none.

    Raises `StoreError` for a database whose migrations this release does not know or has in another form, and
    `StoreUnavailable`."""
    parsed = parse_address(address)
    if parsed.kind == "sqlite":
        return await asyncio.to_thread(_sqlite(parsed).pending)
    if parsed.kind == "postgres":
        return await _postgres(parsed).pending(_WAIT_SECONDS)
    return []


async def apply_migrations(address: str, announce: Announce = lambda _: None) -> list[Migration]:
    """Makes the database at `address` where it is missing and brings it to this release's state, all of it or nothing. Tells
    `announce` of each migration before it is applied, and returns those that were. Raises as `pending_migrations`."""
    parsed = parse_address(address)
    applied: list[Migration] = []

    def heard(migration: Migration) -> None:
        applied.append(migration)
        announce(migration)

    if parsed.kind == "sqlite":
        await asyncio.to_thread(_apply_to_sqlite, parsed, heard)
    elif parsed.kind == "postgres":
        await _postgres(parsed).prepare(_WAIT_SECONDS, migrate=True, announce=heard)
    return applied


def _sqlite(parsed: Address) -> SqliteFile:
    return SqliteFile.at(parsed.text, "FULL", _WAIT_SECONDS)


def _postgres(parsed: Address) -> PostgresDatabase:
    import perdure.stores

    _ = perdure.stores.PostgresEventStore  # says what to install where the driver is missing
    from perdure.stores.postgres_database import PostgresDatabase

    return PostgresDatabase(parsed.text, parsed.schema or _DEFAULT_SCHEMA, None)


def _apply_to_sqlite(parsed: Address, announce: Announce) -> None:
    connection, turns = _sqlite(parsed).open_writer(announce=announce)
    connection.close()
    turns.close()
