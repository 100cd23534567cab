"""Forward-only schema changes: files named `NNNN_title.sql`, applied once, in order, and held to their checksum (R50).

The ledger table `flow_migrations` says which ones a database has had. A database whose ledger differs from the files of
this release, be it by a changed file or by a newer one, is refused rather than guessed at.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from perdure.errors import StoreError
from perdure.instant import due_key

__all__ = ["Announce", "Migration", "bundled", "lacking", "ledger", "migrate", "pending"]

Announce = Callable[["Migration"], None]
"""Told of each migration before it is applied."""

_LEDGER = """CREATE TABLE IF NOT EXISTS flow_migrations (
    number INTEGER NOT NULL PRIMARY KEY,
    title TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    applied_at TEXT NOT NULL
) STRICT"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One schema change. `sha256` is the hex digest of the file."""

    number: int
    title: str
    sql: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.number:04d}_{self.title}"


def bundled(dialect: str) -> list[Migration]:
    """The migrations of this release for `dialect` (a folder beside this file), in order."""
    found: list[Migration] = []
    for file in files(__package__).joinpath(dialect).iterdir():
        if file.name.endswith(".sql"):
            number, _, title = file.name.removesuffix(".sql").partition("_")
            data = file.read_bytes()
            found.append(Migration(int(number), title, data.decode(), hashlib.sha256(data).hexdigest()))
    return sorted(found, key=lambda migration: migration.number)


def migrate(
    connection: sqlite3.Connection,
    database: str,
    known: Sequence[Migration],
    announce: Announce = lambda _: None,
) -> list[Migration]:
    """Brings the database to the state of `known` in one transaction and says what it applied; nothing, the second time.

    `connection` is in autocommit mode and in no transaction; `database` names it in errors. Raises `StoreError` for a ledger
    that differs from `known`, and what sqlite3 raises.
    """
    if not pending(ledger(connection), database, known):
        return []
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_LEDGER)
        # Another process may have applied them while this one waited for the lock.
        due = pending(ledger(connection), database, known)
        for migration in due:
            announce(migration)
            for statement in _statements(migration.sql):
                connection.execute(statement)
            row = (migration.number, migration.title, migration.sha256, due_key(time.time_ns()))
            connection.execute("INSERT INTO flow_migrations VALUES (?, ?, ?, ?)", row)
        connection.execute("COMMIT")
    except BaseException:
        # Whatever ended it, a half-applied migration must not stay open on this connection.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return due


def lacking(database: str, due: Sequence[Migration]) -> StoreError:
    """The error for a database that must be migrated first, by somebody else."""
    names = ", ".join(migration.name for migration in due)
    return StoreError(
        f"{database} lacks the migrations {names}; run 'perdure migrate' with a role that may change tables"
    )


def pending(ledger: Iterable[tuple[int, str, str]], database: str, known: Sequence[Migration]) -> list[Migration]:
    """The migrations of `known` that are not in `ledger`, rows of (number, title, sha256). Raises `StoreError` for a ledger
    that differs from `known`."""
    by_number = {migration.number: migration for migration in known}
    applied: set[int] = set()
    for number, title, sha256 in ledger:
        migration = by_number.get(number)
        if migration is None:
            raise StoreError(
                f"{database} had migration {number:04d}_{title}, which this release of perdure does not know: "
                "a newer release wrote this database, so open it with that release or a later one"
            )
        if (migration.title, migration.sha256) != (title, sha256):
            raise StoreError(
                f"{database} had migration {number:04d}_{title} with checksum {sha256[:12]}…, and this release of perdure has "
                f"{migration.name} with {migration.sha256[:12]}…: the file was changed after it was applied; "
                "reinstall the release that made this database, or restore the file"
            )
        applied.add(number)
    return [migration for migration in known if migration.number not in applied]


def ledger(connection: sqlite3.Connection) -> list[tuple[int, str, str]]:
    """What the database has had: rows of (number, title, sha256), in order."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'flow_migrations'").fetchone() is None:
        return []
    return connection.execute("SELECT number, title, sha256 FROM flow_migrations ORDER BY number").fetchall()


def _statements(script: str) -> Iterator[str]:
    # `executescript` would commit the open transaction first, so the script is cut here.
    statement = ""
    for part in script.split(";")[:-1]:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
