"""Retention in SQLite: how runs stand, what deletes them, and the holds that keep them (R51, spec 7.7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from perdure.errors import RunConflict, RunNotFound
from perdure.instant import due_key, parse_instant
from perdure.retention import Digest, HistoryHold, Part, Standing, Tombstone, check_hold, in_parts, may_go
from perdure.stores.retaining import Retaining
from perdure.stores.rules import RUN_COLUMNS, check_limit, record_from

__all__ = ["SqliteRetention"]

T = TypeVar("T")
_VALUES: Final = 500
"""Values of one statement; old builds of SQLite take 999."""
_RECORDS: Final = f"SELECT {RUN_COLUMNS} FROM flow_runs WHERE run_id IN ({{}})"
_HELD: Final = "SELECT DISTINCT run_id FROM flow_history_holds WHERE run_id IN ({})"
NAMED: Final = """
SELECT l.run_id, l.linked_run_id FROM flow_links AS l
WHERE l.run_id IN ({}) AND NOT EXISTS (SELECT 1 FROM flow_tombstones AS t WHERE t.run_id = l.linked_run_id)"""
NAMING: Final = "SELECT l.linked_run_id, l.run_id FROM flow_links AS l WHERE l.linked_run_id IN ({})"
_TOMBSTONE: Final = "SELECT run_id, deleted_at, last_sequence, last_event_id, history_sha256 FROM flow_tombstones"
_LINES: Final = "SELECT lines FROM flow_commits WHERE run_id = ? ORDER BY first_sequence"
_TABLES: Final = (
    *("flow_commits", "flow_wakeups", "flow_hooks", "flow_links", "flow_history_holds"),
    *("flow_tasks", "flow_task_dead_letters", "flow_runs"),
)
"""What a run has rows in, by `run_id`."""
HOLDS: Final = """
SELECT run_id, hold_id, reason, created_at FROM flow_history_holds
WHERE (run_id, hold_id) > (?, ?) ORDER BY run_id, hold_id LIMIT ?"""
HOLDS_OF: Final = """
SELECT run_id, hold_id, reason, created_at FROM flow_history_holds
WHERE run_id = ? AND (run_id, hold_id) > (?, ?) ORDER BY run_id, hold_id LIMIT ?"""


class SqliteRetention(Retaining):
    """The retention of a store that can read and transact on an SQLite connection."""

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `query` on a connection that only reads."""
        raise NotImplementedError

    async def _transact(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Runs `work` in one transaction, with the store's clock."""
        raise NotImplementedError

    async def _standings(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        return await self._read(lambda connection: _standings(connection, run_ids))

    async def _delete(self, parts: Sequence[Part], cutoff: int) -> list[bool]:
        def work(connection: sqlite3.Connection, now: int) -> list[bool]:
            standings = _standings(connection, [run_id for part in parts for run_id in part.looked_at])
            gone = [may_go(part, standings, cutoff) for part in parts]
            for part, is_gone in zip(parts, gone, strict=True):
                for run_id in part.run_ids if is_gone else ():
                    _delete(connection, run_id, now)
            return gone

        return await self._transact(work)

    async def tombstone(self, run_id: str) -> Tombstone | None:
        """As `FlowEventStore.tombstone`."""
        row = await self._read(lambda db: db.execute(f"{_TOMBSTONE} WHERE run_id = ?", (run_id,)).fetchone())
        return None if row is None else Tombstone(row[0], parse_instant(row[1]), row[2], row[3], row[4].hex())

    async def hold_history(self, run_id: str, hold_id: str, reason: str) -> bool:
        """As `FlowEventStore.hold_history`."""
        check_hold(hold_id, reason)
        return await self._transact(lambda connection, now: _hold(connection, run_id, hold_id, reason, now))

    async def release_history(self, run_id: str, hold_id: str) -> bool:
        """As `FlowEventStore.release_history`."""
        statement = "DELETE FROM flow_history_holds WHERE run_id = ? AND hold_id = ?"
        return await self._transact(
            lambda connection, now: connection.execute(statement, (run_id, hold_id)).rowcount == 1
        )

    async def history_holds(
        self, run_id: str | None = None, *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[HistoryHold]:
        """As `FlowEventStore.history_holds`."""
        check_limit(limit)
        start = after or ("", "")
        query, values = (HOLDS, (*start, limit)) if run_id is None else (HOLDS_OF, (run_id, *start, limit))
        rows = await self._read(lambda connection: connection.execute(query, values).fetchall())
        return [HistoryHold(run, hold, reason, parse_instant(at)) for run, hold, reason, at in rows]


def _standings(connection: sqlite3.Connection, run_ids: Iterable[str]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for part in in_parts(run_ids, _VALUES):
        records = {row[0]: record_from(row) for row in _rows(connection, _RECORDS, part)}
        held = {row[0] for row in _rows(connection, _HELD, part)}
        linked: dict[str, set[str]] = {}
        for statement in (NAMED, NAMING):
            for run_id, other in _rows(connection, statement, part):
                linked.setdefault(run_id, set()).add(other)
        for run_id in part:
            found[run_id] = Standing(records.get(run_id), run_id in held, frozenset(linked.get(run_id, ())))
    return found


def _rows(connection: sqlite3.Connection, statement: str, values: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return connection.execute(statement.format(", ".join("?" * len(values))), values)


def _delete(connection: sqlite3.Connection, run_id: str, now: int) -> None:
    (last_sequence,) = connection.execute("SELECT last_sequence FROM flow_runs WHERE run_id = ?", (run_id,)).fetchone()
    digest = Digest(run_id, last_sequence)
    for (lines,) in connection.execute(_LINES, (run_id,)):
        digest.add(lines)
    left = digest.tombstone(now)
    connection.execute(
        "INSERT INTO flow_tombstones (run_id, deleted_at, last_sequence, last_event_id, history_sha256) "
        "VALUES (?, ?, ?, ?, ?)",
        (run_id, due_key(now), left.terminal_sequence, left.terminal_event_id, bytes.fromhex(left.history_sha256)),
    )
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))


def _hold(connection: sqlite3.Connection, run_id: str, hold_id: str, reason: str, now: int) -> bool:
    if connection.execute("SELECT 1 FROM flow_runs WHERE run_id = ?", (run_id,)).fetchone() is None:
        pruned = connection.execute("SELECT 1 FROM flow_tombstones WHERE run_id = ?", (run_id,)).fetchone()
        raise RunNotFound(run_id) if pruned is None else RunConflict(run_id, "pruned")
    there = connection.execute(
        "SELECT reason FROM flow_history_holds WHERE run_id = ? AND hold_id = ?", (run_id, hold_id)
    ).fetchone()
    if there is not None:
        if there[0] != reason:
            raise RunConflict(run_id, "history_hold")
        return False
    connection.execute("INSERT INTO flow_history_holds VALUES (?, ?, ?, ?)", (run_id, hold_id, reason, due_key(now)))
    return True
