"""The index tables of every store in one form, read from where they stand: SQL tables, or the index in memory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from perdure.instant import due_key, parse_instant
from perdure.kernel import RunRow
from perdure.rebuild import IndexRebuilder, Unreadable
from perdure.stores import JsonlEventStore, MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.stores.index import MemoryIndex
from perdure.stores.rules import RANK
from perdure.testing.postgres import shared_server

Rows = list[tuple[Any, ...]]

_RUNS = (
    "run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, "
    "created_at, updated_at, ended_at, last_sequence"
)
_LEASES = "run_id, owner, epoch, parked_sequence, failures, not_before, hold, claim_at"


@dataclass(frozen=True)
class Tables:
    """The rows of each table, sorted. `leases` are the columns that no history tells (R3)."""

    runs: Rows
    wakeups: Rows
    hooks: Rows
    links: Rows
    leases: Rows = field(default_factory=list)
    sequences: Rows = field(default_factory=list)
    """Of hooks; kept in SQL only."""

    def derived(self) -> Tables:
        """What must equal a replay (invariant 7)."""
        return replace(self, leases=[])

    def shared(self) -> Tables:
        """What every store has."""
        return replace(self, sequences=[])


async def tables_of(store: FlowEventStore) -> Tables:
    """The tables of any of the four stores."""
    match store:
        case MemoryEventStore():
            return _of_index(store._rows)
        case JsonlEventStore():
            return _of_index(store._state.index)
        case SqliteEventStore():
            return _of_sqlite(Path(store._file.path))
        case PostgresEventStore():
            return await _of_postgres(shared_server().url, store._database.schema)
        case _:
            raise TypeError(f"{store!r} is none of the four stores")


# SQL -----------------------------------------------------------------------------------------------------------------


def _of_sqlite(path: Path) -> Tables:
    connection = sqlite3.connect(path)
    try:
        return _of_rows([connection.execute(query).fetchall() for query in _queries("")])
    finally:
        connection.close()


async def _of_postgres(url: str, schema: str) -> Tables:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        prefix = f"{sql.Identifier(schema).as_string(connection)}."
        return _of_rows([await (await connection.execute(query)).fetchall() for query in _queries(prefix)])


def _queries(prefix: str) -> list[str]:
    return [
        f"SELECT {_RUNS} FROM {prefix}flow_runs",
        f"SELECT run_id, kind, subject_id, due_key FROM {prefix}flow_wakeups",
        f"SELECT token_hash, run_id, hook_id, sequence FROM {prefix}flow_hooks",
        f"SELECT run_id, linked_run_id FROM {prefix}flow_links",
        f"SELECT {_LEASES} FROM {prefix}flow_runs",
        f"SELECT run_id, first_sequence, last_sequence, lines FROM {prefix}flow_commits ORDER BY run_id, first_sequence",
    ]


def _of_rows(found: Sequence[Sequence[tuple[Any, ...]]]) -> Tables:
    runs, wakeups, hooks, links, leases, commits = found
    _check_commits(runs, commits)
    return Tables(
        sorted((*row[:5], bool(row[5]), *row[6:9], *map(_instant, row[9:12]), row[12]) for row in runs),
        sorted(wakeups),
        sorted((bytes(token), run_id, hook_id) for token, run_id, hook_id, _ in hooks),
        sorted(tuple(row) for row in links),
        sorted(tuple(row) for row in leases),
        sorted(tuple(row) for _, *row in hooks),
    )


def _instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)


def _check_commits(runs: Sequence[tuple[Any, ...]], commits: Sequence[tuple[Any, ...]]) -> None:
    """One row per commit, without gap or overlap, up to the run's last sequence (R50)."""
    last: dict[str, int] = {}
    for run_id, first_sequence, last_sequence, lines in commits:
        assert first_sequence == last.get(run_id, 0) + 1, run_id
        assert bytes(lines).count(b"\n") == last_sequence - first_sequence + 1, run_id
        last[run_id] = last_sequence
    assert last == {row[0]: row[12] for row in runs}


# memory --------------------------------------------------------------------------------------------------------------


def _of_index(index: MemoryIndex) -> Tables:
    """Each list of the index says the same as what its runs say."""
    wakeups = [
        (run_id, RANK[kind], subject_id, due)
        for run_id, wakeups in index._wakeups_of.items()
        for (kind, subject_id), due in wakeups.items()
    ]
    assert index._due == sorted((due, run_id, rank, subject_id) for run_id, rank, subject_id, due in wakeups)
    hooks = [(token, run_id, id) for run_id, hooks in index._hooks_of.items() for id, token in hooks.items()]
    assert index._hooks == sorted((run_id, hook_id) for _, run_id, hook_id in hooks)
    assert index._owners == {
        token: sorted((run_id, hook_id) for other, run_id, hook_id in hooks if other == token) for token, _, _ in hooks
    }
    columns = index.leases._columns
    assert index.leases._order == sorted((row.claim_at, id) for id, row in columns.items() if row.claim_at is not None)
    assert index.leases._held == sorted(run_id for run_id, row in columns.items() if row.hold is not None)
    owned = [(row.owner, run_id) for run_id, row in columns.items() if row.owner is not None]
    assert sorted(owned) == sorted((owner, id) for owner, ids in index.leases._owned.items() for id in ids)
    assert index._run_ids == sorted(index._rows)
    assert index._open == sorted(run_id for run_id, row in index._rows.items() if not row.terminal)
    assert columns.keys() == index._rows.keys()
    return Tables(
        sorted(_run(run_id, row) for run_id, row in index._rows.items()),
        sorted((run_id, rank, subject_id, due_key(due)) for run_id, rank, subject_id, due in wakeups),
        sorted(hooks),
        sorted((run_id, linked) for run_id, links in index._links_of.items() for linked in links),
        sorted((run_id, *row) for run_id, row in columns.items()),
    )


def _run(run_id: str, row: RunRow) -> tuple[Any, ...]:
    return run_id, *(getattr(row, column) for column in _RUNS.split(", ")[1:])


# a replay ------------------------------------------------------------------------------------------------------------


async def replayed(store: FlowEventStore) -> Tables:
    """What a replay of the store's histories gives."""
    histories = [(run_id, await store.history(run_id)) for run_id in await store.run_ids()]
    tables = Tables([], [], [], [])
    for batch in IndexRebuilder("pure").rebuild(histories):
        assert not isinstance(batch, Unreadable), batch
        tables.runs.append(_run(batch.run_id, batch.row))
        tables.wakeups.extend((batch.run_id, RANK[w.kind], w.subject_id, w.due_key) for w in batch.upsert_wakeups)
        tables.hooks.extend((hook.token_hash, batch.run_id, hook.hook_id) for hook in batch.insert_hooks)
        tables.sequences.extend((batch.run_id, hook.hook_id, hook.sequence) for hook in batch.insert_hooks)
    for run_id, lines in histories:
        tables.links.extend((run_id, linked) for linked in _links(lines))
    return Tables(*(sorted(rows) for rows in astuple(tables)))


def _links(lines: bytes) -> set[str]:
    events = [json.loads(line)["event"] for line in lines.split(b"\n")[:-1]]
    found = {event["child"].get("flow_run_id") for event in events if event["type"] == "child_operation_linked"}
    return {run_id for run_id in found if run_id is not None}


async def compare_with_replay(store: FlowEventStore) -> None:
    """The index tables equal what a replay of the histories gives."""
    derived, expected = (await tables_of(store)).derived(), await replayed(store)
    assert derived == (expected if derived.sequences else expected.shared())
