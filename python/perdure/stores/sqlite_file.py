"""An SQLite database file: its address, its connections, and what its errors mean to a caller (spec 7.6, R48)."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.stores.folders import make_folder
from perdure.stores.migrations import Announce, Migration, bundled, lacking, ledger, migrate, pending
from perdure.stores.sqlite_turnstile import OwnTurn, Turnstile, holder_of

__all__ = ["SqliteFile", "Synchronous"]

Synchronous = Literal["FULL", "NORMAL"]
_JOURNAL_BYTES: Final = 64 * 1024 * 1024
_OLDEST: Final = (3, 37, 0)  # STRICT tables
_PAUSE_SECONDS: Final = 0.02
_CREATED: Final = re.compile(r"^CREATE (?:TABLE|INDEX|VIEW) (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_WRITE_LOCK: Final = 120
"""The byte of the shared memory file that a writer locks in write-ahead mode."""


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """One database, opened by path. `busy_seconds` is how long to wait for another process's lock."""

    path: str  # ":memory:" for a database of this process
    synchronous: Synchronous
    busy_seconds: float

    @classmethod
    def at(cls, address: str | os.PathLike[str], synchronous: Synchronous, busy_seconds: float) -> SqliteFile:
        """Takes a path, `sqlite:///path` (a fourth slash begins an absolute path), `sqlite://path`, `sqlite:path`, or
        `:memory:` in any of them. Raises `ValueError`."""
        path = os.fspath(address)
        for prefix in ("sqlite:///", "sqlite://", "sqlite:"):
            if path.startswith(prefix):
                path = path.removeprefix(prefix)
                if "?" in path:
                    raise ValueError(f"{address!r} has options after '?'; give them as arguments of the store")
                break
        if not path:
            raise ValueError("the address of an SQLite store is empty; give a file path or ':memory:'")
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous is {synchronous!r}; use 'FULL' or 'NORMAL'")
        return cls(path, synchronous, busy_seconds)

    def __str__(self) -> str:
        return "the SQLite database in memory" if self.in_memory else f"SQLite file {self.path}"

    @property
    def in_memory(self) -> bool:
        return self.path == ":memory:"

    def open_writer(
        self, *, migrate: bool = True, announce: Announce = lambda _: None
    ) -> tuple[sqlite3.Connection, Turnstile | OwnTurn]:
        """Makes the file and its folder where they are missing, migrates it if it must be, and returns a connection in
        autocommit mode that waits for nobody, with the turns at using it. With `migrate` false it neither makes nor changes
        anything.

        Raises `StoreError` for a database that is not ours to write, `StoreUnavailable` if it cannot be opened now."""
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old for perdure; use 3.37 or newer")
        if not migrate:
            self.check()
        if migrate and not self.in_memory:
            try:
                make_folder(Path(self.path).parent)  # of the file in it SQLite makes sure itself
            except OSError as error:
                raise StoreError(f"{self}: its folder cannot be made ({error.strerror}); choose another path") from None
        with ExitStack() as opened:
            try:
                connection = opened.enter_context(closing(self._connect()))
                self._refuse_foreign(connection)
                turns = opened.enter_context(closing(OwnTurn() if self.in_memory else Turnstile(self.path)))
                self._prepare(connection, turns, announce)
                connection.execute("PRAGMA busy_timeout = 0")  # the writer waits by itself, where it may
            except sqlite3.Error as error:
                raise self.failure(error, "opening it") from None
            opened.pop_all()
        return connection, turns

    def check(self) -> None:
        """Raises `StoreError` for a file that is missing or lacks a migration, and as `pending`."""
        if not self.in_memory and (due := self.pending()):
            if not Path(self.path).exists():
                raise StoreError(f"{self} does not exist; make it with 'perdure migrate'")
            raise lacking(str(self), due)

    def pending(self) -> list[Migration]:
        """The migrations that the file lacks; changes nothing. Raises `StoreError`, `StoreUnavailable`."""
        known = bundled("sqlite")
        if self.in_memory or not Path(self.path).exists():
            return known
        try:
            with closing(self._connect()) as connection:
                self._refuse_foreign(connection)
                return pending(ledger(connection), str(self), known)
        except sqlite3.Error as error:
            raise self.failure(error, "opening it") from None

    def _prepare(self, connection: sqlite3.Connection, turns: Turnstile | OwnTurn, announce: Announce) -> None:
        known = bundled("sqlite")
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal" and not pending(ledger(connection), str(self), known):
            return  # nothing to write, so nobody to wait for
        self.take(turns)
        try:
            self._use_wal(connection)
            migrate(connection, str(self), known, announce)
        finally:
            turns.release()

    def open_reader(self) -> sqlite3.Connection:
        """A connection that only reads. Raises what sqlite3 raises."""
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def open_checkpointer(self) -> sqlite3.Connection:
        """A connection that waits for nobody. Raises what sqlite3 raises."""
        connection = self._connect()
        connection.execute("PRAGMA busy_timeout = 0")
        return connection

    def take(self, turns: Turnstile | OwnTurn) -> None:
        """Waits for our turn. Raises `StoreUnavailable` naming who does not give way."""
        if not turns.take(self.busy_seconds):
            holders = turns.holders()
            stranger = holder_of(self._shared_memory, _WRITE_LOCK)
            if stranger is not None and stranger.partition(" holds ")[0] not in holders:
                holders = f"{holders}, waiting for a transaction: {stranger}"
            raise StoreUnavailable(
                f"{self} stayed locked for {self.busy_seconds:g} s: {holders}; nothing was written. "
                "If that process hangs, end it: its lock ends with it"
            )

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self.busy_seconds, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # off the commit path: `sqlite_checkpoint`
        return connection

    def _refuse_foreign(self, connection: sqlite3.Connection) -> None:
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'a3s_orm_migrations'").fetchone():
            raise StoreError(
                f"{self} holds a3s_orm_migrations: it belongs to the reference engine, whose tables perdure does not use; "
                "export its histories as JSON lines and open another file"
            )
        # An application may keep its own tables in this file, beside ours, unless they have our names.
        ours = {name for migration in bundled("sqlite") for name in _CREATED.findall(migration.sql)}
        taken = sorted(name for (name,) in connection.execute("SELECT name FROM sqlite_schema") if name in ours)
        # The ledger is read last: another process may have made it, with its tables, since the line above.
        if ledger(connection):
            return
        if taken:
            raise StoreError(
                f"{self} has {', '.join(taken)} of another program, whose names perdure uses for its own; open another file"
            )
        (encoding,) = connection.execute("PRAGMA encoding").fetchone()
        if encoding != "UTF-8":
            raise StoreError(f"{self} is encoded in {encoding}, whose order is not that of UTF-8; open another file")

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # Two processes that convert one file at once do not wait for each other: SQLite tells one of them at once.
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
        if mode != ("memory" if self.in_memory else "wal"):
            raise StoreError(
                f"{self} cannot use a write-ahead log (it is in {mode} mode); put it on a local file system"
            )

    def failure(self, error: sqlite3.Error, doing: str) -> StoreError:
        """The error to raise for `error`, where it is certain that nothing was written."""
        code = _primary_code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreUnavailable(
                f"{self} stayed locked for {self.busy_seconds:g} s while {doing}: {self._stranger()}; nothing was written. "
                "End that program, or raise busy_seconds"
            )
        if code == sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                f"{self} has no room left ({error}) while {doing}; nothing was written. Free disk space"
            )
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(
                f"{self} cannot be opened while {doing}; check that its folder exists and may be written"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreError(
                f"{self} is damaged or no SQLite database ({error}) while {doing}; restore it from a backup"
            )
        return StoreError(f"{self} failed while {doing}: {error}")

    def unfit(self) -> StoreError:
        """The error to raise for a value that no file can hold."""
        return StoreError(
            f"{self} cannot hold a value of this call; ids and names must be without lone surrogates, numbers within 64 bits"
        )

    def _stranger(self) -> str:
        """Who holds SQLite's own write lock."""
        return holder_of(self._shared_memory, _WRITE_LOCK) or holder_of(self.path) or "another program holds it"

    @property
    def _shared_memory(self) -> str:
        return f"{os.path.realpath(self.path)}-shm"

    def unknown(self, error: sqlite3.Error) -> OutcomeUnknown:
        """The error to raise where SQLite cannot say what is on disk."""
        return OutcomeUnknown(
            f"{self} met an input/output error ({error}) while committing, so what is on disk is unknown; "
            "this store object takes no more calls. Check the disk, then open the file again"
        )


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection's lock is in the way."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_certain(error: sqlite3.Error) -> bool:
    """Whether a failed COMMIT has certainly written nothing (R48)."""
    return is_busy(error) or _primary_code(error) == sqlite3.SQLITE_FULL


def is_input_output(error: sqlite3.Error) -> bool:
    """Whether the disk failed, after which SQLite's picture of the file may differ from the file."""
    return _primary_code(error) == sqlite3.SQLITE_IOERR
