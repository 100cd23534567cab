"""The SQLite store: one file, write-ahead log, one writing thread with group commit, reads beside it (DESIGN §7, R50)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final, TypeVar

from perdure.errors import FlowError, LeaseLost, OutcomeUnknown, RunNotFound, StoreError
from perdure.instant import MAX_NS, MIN_NS, due_key, parse_instant
from perdure.stores import leases, sqlite_claims
from perdure.stores.base import (
    ActiveHook,
    Append,
    Claimed,
    Committed,
    LeaseState,
    Outlook,
    RunFilter,
    RunnablePage,
    RunPage,
    RunSummary,
    Wakeup,
)
from perdure.stores.group import GroupCommitter
from perdure.stores.leases import Wanted
from perdure.stores.rules import (
    ALL_RUNS,
    KINDS,
    RUN_COLUMNS,
    Tally,
    check_limit,
    lines_after,
    page_of,
    record_from,
    summary_of,
)
from perdure.stores.runnable import SQLITE_LATER, SQLITE_ROWS, START, bound, runnable_page, summaries_of
from perdure.stores.sqlite_checkpoint import Checkpointer
from perdure.stores.sqlite_file import SqliteFile, Synchronous
from perdure.stores.sqlite_retention import SqliteRetention
from perdure.stores.sqlite_writer import SqliteWriter
from perdure.stores.task_rows import TaskRows

__all__ = ["SqliteEventStore"]

T = TypeVar("T")
_READERS: Final = 2
_LOOK_SECONDS: Final = 0.05

HISTORY: Final = """
SELECT first_sequence, lines FROM flow_commits
WHERE run_id = ? AND first_sequence >= (
    SELECT max(first_sequence) FROM flow_commits WHERE run_id = ? AND first_sequence <= max(?, 0) + 1)
ORDER BY first_sequence"""
_WAKEUP: Final = """
SELECT w.run_id, w.kind, w.subject_id, w.due_key, r.build
FROM flow_wakeups AS w JOIN flow_runs AS r ON r.run_id = w.run_id"""
DUE: Final = f"{_WAKEUP} WHERE w.due_key <= ? ORDER BY w.due_key, w.run_id, w.kind, w.subject_id LIMIT ?"
NEXT: Final = f"{_WAKEUP} ORDER BY w.due_key, w.run_id, w.kind, w.subject_id LIMIT 1"
TOKEN: Final = "SELECT run_id, hook_id FROM flow_hooks WHERE token_hash = ? ORDER BY run_id, hook_id"
_RUNS: Final = f"SELECT {RUN_COLUMNS} FROM flow_runs"
HOOKS: Final = "SELECT run_id, hook_id FROM flow_hooks ORDER BY run_id, hook_id"
RUN_IDS: Final = "SELECT run_id FROM flow_runs ORDER BY run_id"
LAST_SEQUENCES: Final = """
SELECT run_id, last_sequence FROM flow_runs WHERE run_id IN (SELECT value FROM json_each(?))"""
"""Takes the ids as one JSON value: SQLite binds 32,766 values at most, unless built for more."""
SUMMARY: Final = """
SELECT status, terminal, count(*), sum(open_waits), sum(active_hooks), sum(pending_retries)
FROM flow_runs GROUP BY status, terminal"""
BUILDS: Final = """
SELECT build, status, terminal, count(*), sum(open_waits), sum(active_hooks), sum(pending_retries)
FROM flow_runs GROUP BY build, status, terminal"""


class SqliteEventStore(SqliteRetention):
    """Histories and index in one SQLite file.

    `address`: a path, `sqlite:///path` (relative; four slashes begin an absolute one), `sqlite://path`,
    `sqlite:path`, or `:memory:` for a database of this process; folder and file are made where they are missing.
    `clock` gives ns since 1970-01-01T00:00:00Z (R45). With `synchronous` "FULL" an acknowledged commit survives power
    loss, with "NORMAL" it survives the end of the process only. `busy_seconds` bounds the wait for another program's
    lock, or for the turn of another process.

    Several processes, and several stores of one process, may write one file: they take turns, by locks in files beside it.
    It may hold an application's own tables as well, unless they have our names; it is put into write-ahead mode. A commit is
    written on the event loop while commits take less than 0.3 ms, and by a thread otherwise.

    The file is opened, and migrated if it must be, before the constructor returns. That raises `StoreUnavailable` if it
    cannot be opened now and `StoreError` if it is not ours to open: a database of the reference engine, or one that a newer
    release wrote. With `migrate` false a file that is missing or lacks migrations is refused as it is.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        clock: Callable[[], int] = time.time_ns,
        synchronous: Synchronous = "FULL",
        *,
        busy_seconds: float = 10.0,
        migrate: bool = True,
    ) -> None:
        self._file = SqliteFile.at(address, synchronous, busy_seconds)
        self._clock = clock
        self._process = os.getpid()
        connection, self._turns = self._file.open_writer(migrate=migrate)
        self._writer = SqliteWriter(self._file, connection, clock, self._turns)
        self._writing = ThreadPoolExecutor(1, "perdure-sqlite-writer")
        self._group = GroupCommitter(self._write, self._writing, str(self._file), self._writer)
        self._connections = [connection]
        self._reading = ThreadPoolExecutor(1 if self._file.in_memory else _READERS, "perdure-sqlite-reader")
        self._idle: deque[sqlite3.Connection] = deque()
        self._watcher: sqlite3.Connection | None = None
        self._watching = Lock()
        self._checkpointer = None if self._file.in_memory else Checkpointer(self._file)
        if self._checkpointer is None:
            # The tables exist on this one connection only, so reads take turns with the writer.
            self._idle.append(connection)
        else:
            self._checkpointer.start()
            weakref.finalize(self, self._checkpointer.stop)  # of a store that nobody closes
        self._closing: Future[None] | None = None

    def __repr__(self) -> str:
        return f"<SqliteEventStore: {self._file}>"

    async def commit(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        """As `FlowEventStore.commit`."""
        self._check_process()
        return await self._group.commit(appends)

    async def history(self, run_id: str, after: int = 0) -> bytes:
        """As `FlowEventStore.history`."""
        rows = await self._read(lambda connection: connection.execute(HISTORY, (run_id, run_id, after)).fetchall())
        if not rows:
            raise RunNotFound(run_id)
        first_sequence, lines = rows[0]
        return lines_after(lines, first_sequence, after) + b"".join(lines for _, lines in rows[1:])

    async def list_due_wakeups(self, now: int, limit: int | None = None) -> list[Wakeup]:
        """As `FlowEventStore.list_due_wakeups`."""
        check_limit(limit)
        values = (due_key(min(max(now, MIN_NS), MAX_NS)), -1 if limit is None else limit)
        rows = await self._read(lambda connection: connection.execute(DUE, values).fetchall())
        return [_wakeup(row) for row in sorted(rows, key=lambda row: (row[1], row[0], row[2]))]

    async def next_scheduled_wakeup(self) -> Wakeup | None:
        """As `FlowEventStore.next_scheduled_wakeup`."""
        row = await self._read(lambda connection: connection.execute(NEXT).fetchone())
        return None if row is None else _wakeup(row)

    async def find_active_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """As `FlowEventStore.find_active_hooks`."""
        rows = await self._read(lambda connection: connection.execute(TOKEN, (token_hash,)).fetchall())
        return [ActiveHook(*row) for row in rows]

    async def list_active_hooks(self) -> list[ActiveHook]:
        """As `FlowEventStore.list_active_hooks`."""
        rows = await self._read(lambda connection: connection.execute(HOOKS).fetchall())
        return [ActiveHook(*row) for row in rows]

    async def runs(self, filter: RunFilter = ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
        """As `FlowEventStore.runs`."""
        check_limit(limit)
        query, values = listing(filter, after, limit)
        rows = await self._read(lambda connection: connection.execute(query, values).fetchall())
        return page_of([record_from(row) for row in rows], limit)

    async def run_ids(self) -> list[str]:
        """As `FlowEventStore.run_ids`."""
        return [run_id for (run_id,) in await self._read(lambda connection: connection.execute(RUN_IDS).fetchall())]

    async def summary(self) -> RunSummary:
        """As `FlowEventStore.summary`."""
        rows = await self._read(lambda connection: connection.execute(SUMMARY).fetchall())
        return summary_of(Tally(*row) for row in rows)

    async def summary_by_build(self) -> dict[str | None, RunSummary]:
        """As `FlowEventStore.summary_by_build`."""
        return summaries_of(await self._read(lambda connection: connection.execute(BUILDS).fetchall()))

    async def runnable(self, now: int, *, after: tuple[int, str] | None = None, limit: int = 1000) -> RunnablePage:
        """As `FlowEventStore.runnable`."""
        check_limit(limit)
        key = due_key(min(max(now, MIN_NS), MAX_NS))
        values = (key, key, bound(now), *(after or START), limit)
        rows = await self._read(lambda connection: connection.execute(SQLITE_ROWS, values).fetchall())
        later = None
        if len(rows) < limit:
            later = await self._read(lambda connection: connection.execute(SQLITE_LATER, (now // 1000,)).fetchone())
        return runnable_page(rows, now, self._clock(), limit, later[0] if later else None)

    async def claim(
        self,
        owner: str,
        k: int,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds, besides)
        if not await self._read(lambda db: sqlite_claims.has_claim(db, wanted, self._clock())):
            return []  # an idle poll takes no lock (R48)
        return await self._transact(lambda db, now: sqlite_claims.claim(db, owner, k, wanted, ttl_ns, now))

    async def claim_held(
        self,
        owner: str,
        k: int,
        *,
        build: str,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
        ttl_ns: int,
    ) -> list[Claimed]:
        """As `FlowEventStore.claim_held`."""
        check_limit(k, "k")
        wanted = Wanted(workflows, builds, besides)
        if not await self._read(lambda db: sqlite_claims.claimable_held(db, 1, build, wanted, self._clock())):
            return []
        return await self._transact(lambda db, now: sqlite_claims.claim_held(db, owner, k, build, wanted, ttl_ns, now))

    async def next_claim(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> int | None:
        """As `FlowEventStore.next_claim`."""
        query, values = sqlite_claims.next_query(Wanted(workflows, builds, besides))
        row = await self._read(lambda connection: connection.execute(query, values).fetchone())
        return None if row is None else row[0]

    async def outlook(
        self,
        *,
        workflows: Collection[tuple[str, str]] | None = None,
        builds: Collection[str | None] | None = None,
        besides: Collection[str] = (),
    ) -> Outlook:
        """As `FlowEventStore.outlook`."""
        query, values = sqlite_claims.outlook_query(Wanted(workflows, builds, besides))
        rows = await self._read(lambda connection: connection.execute(query, values).fetchall())
        return Outlook(self._clock(), *sqlite_claims.outlook_of(rows))

    async def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """As `FlowEventStore.renew`."""
        if not pairs:
            return []
        return await self._transact(lambda db, now: sqlite_claims.renew(db, owner, pairs, ttl_ns, now))

    async def lease(self, run_id: str) -> LeaseState:
        """As `FlowEventStore.lease`."""
        state = await self._read(lambda connection: sqlite_claims.known_state(connection, run_id))
        return leases.state_of(state.lease, state.last_sequence, self._clock())

    async def last_sequences(self, run_ids: Collection[str]) -> dict[str, int]:
        """As `FlowEventStore.last_sequences`."""
        return dict(
            await self._read(lambda db: db.execute(LAST_SEQUENCES, (sqlite_claims.one_value(run_ids),)).fetchall())
        )

    async def void(self, owner: str) -> int:
        """As `FlowEventStore.void`."""
        if not await self._read(lambda db: sqlite_claims.owned(db, owner)):
            return 0
        return await self._transact(lambda db, now: sqlite_claims.void(db, owner))

    async def set_hold(self, run_id: str, hold: str, *, expected_sequence: int) -> bool:
        """As `FlowEventStore.set_hold`."""
        return await self._transact(lambda db, now: sqlite_claims.set_hold(db, run_id, hold, expected_sequence, now))

    async def release_hold(self, run_id: str) -> bool:
        """As `FlowEventStore.release_hold`."""
        return await self._transact(lambda db, now: sqlite_claims.release_hold(db, run_id))

    async def changes(self) -> int:
        """As `FlowEventStore.changes`."""
        return await self._on_reader(self._data_version) + self._writer.commits

    async def wait_for_change(self, seen: int, timeout_seconds: float) -> int:
        """As `FlowEventStore.wait_for_change`; what other processes commit is looked for every 50 ms."""
        return await self._group.bell.wait(self.changes, seen, timeout_seconds, _LOOK_SECONDS)

    async def close(self) -> None:
        """As `FlowEventStore.close`. Later calls raise `StoreError`."""
        if os.getpid() != self._process:
            return  # no thread of the store came along that could; what is open is the parent's
        if self._closing is None:
            self._group.close()
            # Behind what is queued: there is one writing thread and it works in order.
            self._closing = self._writing.submit(self._close_connections)
            self._writing.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def elsewhere(self) -> None:
        """As `FlowEventStore.elsewhere`: its threads answer any loop."""

    def task_rows(self) -> TaskRows:
        """The task queues in this file, which `DurableTaskQueue` reads and writes."""
        from perdure.stores.sqlite_queue import SqliteTaskRows

        return SqliteTaskRows(self._read, self._transact, self._clock)

    def clock(self) -> int:
        """As `FlowEventStore.clock`."""
        return self._clock()

    def _close_connections(self) -> None:
        self._reading.shutdown(wait=True)
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._turns.close()
        for connection in self._connections:
            connection.close()

    def _write(self, appends: Sequence[Append]) -> list[Committed | FlowError]:
        answers = self._writer.write(appends)
        if self._checkpointer is not None:
            self._checkpointer.wrote()
        return answers

    async def _transact(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        self._check_process()
        return await self._group.between_groups(lambda: self._writer.transact(work))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await self._on_reader(lambda: self._with_reader(query))

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # no thread of the store came along, and its locks are the parent's
            raise StoreError(
                f"{self._file} was opened before this process was forked; open it in each process, after the fork"
            )

    async def _on_reader(self, read: Callable[[], T]) -> T:
        self._check_process()
        if self._closing is not None:
            raise StoreError(f"{self._file} is closed; open the store again to use it")
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._reading_failures, read)

    def _reading_failures(self, read: Callable[[], T]) -> T:
        poison = self._writer.poison
        if poison is not None:
            raise OutcomeUnknown(poison.detail)
        try:
            return read()
        except sqlite3.Error as error:
            raise self._file.failure(error, "reading") from None
        except (UnicodeEncodeError, OverflowError):
            raise self._file.unfit() from None

    def _with_reader(self, query: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._reader()
        try:
            if not self._file.in_memory:
                return query(connection)
            self._file.take(self._turns)
            try:
                return query(connection)
            finally:
                self._turns.release()
        finally:
            self._idle.append(connection)

    def _data_version(self) -> int:
        """SQLite's count of what other connections, ours and those of others, have committed. It can be compared on one
        connection only, so one is kept for it. Nobody else has a database in memory."""
        if self._file.in_memory:
            return 0
        with self._watching:
            if self._watcher is None:
                self._watcher = self._file.open_reader()
                self._connections.append(self._watcher)
            (version,) = self._watcher.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _reader(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            connection = self._file.open_reader()
            self._connections.append(connection)
            return connection


def listing(filter: RunFilter, after: str | None, limit: int) -> tuple[str, list[object]]:
    """The query of one page of runs, with one row more to see whether another page follows."""
    terms: list[str] = []
    values: list[object] = []
    if filter.status is not None:
        terms.append(f"status IN ({', '.join('?' * len(filter.status))})")
        values += filter.status
    for column in ("name", "version", "build"):
        value = getattr(filter, column)
        if value is not None:
            terms.append(f"{column} = ?")
            values.append(value)
    if filter.terminal is not None:
        terms.append(f"terminal = {int(filter.terminal)}")  # no parameter, or the index of open runs would not be seen
    if filter.held is not None:
        terms.append(f"hold IS {'NOT NULL' if filter.held else 'NULL'}")
    if after is not None:
        terms.append("run_id > ?")
        values.append(after)
    where = f"WHERE {' AND '.join(terms)} " if terms else ""
    return f"{_RUNS} {where}ORDER BY run_id LIMIT ?", [*values, limit + 1]


def _wakeup(row: tuple[str, int, str, str, str | None]) -> Wakeup:
    run_id, kind, subject_id, due, build = row
    return Wakeup(run_id, KINDS[kind], subject_id, parse_instant(due), build)
