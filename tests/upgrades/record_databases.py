"""Records databases as SQL text into `tests/data/databases/<dialect>/<number>.sql`: the schema after so many migrations, with
the recorded histories of this release in it, some runs leased, parked or held.

    python -m upgrades.record_databases sqlite|postgres [NUMBER]        (from the folder `tests`; default: the newest)

A file that is there is not written again.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from psycopg.sql import Literal

from perdure import FlowEngine
from perdure.exchange import Stored, import_histories
from perdure.instant import due_key, parse_instant
from perdure.retention import RunSelection
from perdure.stores import FlowEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.migrations import Migration, bundled, migrate
from perdure.stores.postgres_database import PostgresDatabase
from perdure.testing.postgres import shared_server
from upgrades.program import BUILDS, START, Clock, make_flow
from upgrades.record_histories import RECORDED, version

DATABASES = RECORDED.parent / "databases"
TTL_NS = 30 * 10**9
HOLD = '{"code":"nondeterministic","builds":["build-0"]}'
GONE, LEASED, HELD = "gone", "async-asking", "asking"
TABLES = ("flow_runs", "flow_commits", "flow_wakeups", "flow_hooks", "flow_links", "flow_tombstones")
HOLDS = "flow_history_holds"
"""There from migration 3 on."""
LEASE = ("owner", "epoch", "parked_sequence", "failures", "not_before", "hold", "claim_at")
"""Columns of flow_runs that the first migration of SQLite has and nothing wrote yet."""


def histories() -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in sorted((RECORDED / version()).glob("*.jsonl"))}


async def fill(store: FlowEventStore, clock: Clock) -> None:
    """The recorded runs; one parked by a drive, one leased, one held, one kept from being pruned, and one that was pruned."""
    recorded = histories()
    gone = recorded["failed"].replace(b'"run_id":"failed"', f'"run_id":"{GONE}"'.encode())
    report = await import_histories(store, [Stored(*history) for history in (recorded | {GONE: gone}).items()])
    assert report.refused == []
    assert (await store.prune(clock.ns + 1, RunSelection(run_ids=(GONE,)))).deleted.count == 1
    await store.hold_history("parade", "audit", "case 7")
    async with FlowEngine(make_flow(), store, builds=BUILDS, record_tracebacks=False) as engine:
        await engine.drive("waiting")
    sequences = await store.last_sequences([HELD])
    assert await store.set_hold(HELD, HOLD, expected_sequence=sequences[HELD])
    assert [claimed.run_id for claimed in await store.claim("a process of then", 1, ttl_ns=TTL_NS)] == [LEASED]


def rows_of(fetch: Any, table: str, known: set[str], without: Sequence[str]) -> Iterator[tuple[list[str], list[Any]]]:
    """The rows of a table as (columns, values), ordered, those columns only that the older schema has."""
    names, rows = fetch(table)
    kept = [n for n, name in enumerate(names) if name in known and name not in without]
    for row in sorted(rows, key=repr):
        yield [names[n] for n in kept], [row[n] for n in kept]


# SQLite --------------------------------------------------------------------------------------------------------


def record_sqlite(known: list[Migration]) -> str:
    with TemporaryDirectory() as folder:
        asyncio.run(_fill_sqlite(Path(folder) / "full.db"))
        full = sqlite3.connect(Path(folder) / "full.db")
        then = sqlite3.connect(":memory:", isolation_level=None)
        migrate(then, "the recording", known)
        then.execute("UPDATE flow_migrations SET applied_at = ?", (due_key(parse_instant(START)),))

        def fetch(table: str) -> tuple[list[str], list[Any]]:
            cursor = full.execute(f"SELECT * FROM {table}")
            return [column[0] for column in cursor.description], cursor.fetchall()

        for table in (*TABLES, HOLDS) if len(known) >= 3 else TABLES:
            known_columns = {row[1] for row in then.execute(f"PRAGMA table_info({table})")}
            for columns, values in rows_of(fetch, table, known_columns, LEASE if len(known) == 1 else ()):
                marks = ", ".join("?" * len(values))
                then.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", values)
        text = "\n".join(then.iterdump()) + "\n"
        full.close()
        then.close()
        return text


async def _fill_sqlite(path: Path) -> None:
    clock = Clock(parse_instant(START))
    store = SqliteEventStore(path, clock)
    await fill(store, clock)
    await store.close()


# PostgreSQL ----------------------------------------------------------------------------------------------------


def record_postgres(known: list[Migration]) -> str:
    asyncio.run(_fill_postgres())
    text = ["CREATE SCHEMA @schema@;"]
    text.append(
        "CREATE TABLE @schema@.flow_migrations (number bigint NOT NULL PRIMARY KEY, title text NOT NULL, "
        "sha256 text NOT NULL, applied_at text NOT NULL);"
    )
    with psycopg.connect(shared_server().url, autocommit=True) as server:
        for migration in known:
            text.append(migration.sql.strip())
            row = (migration.number, migration.title, migration.sha256, due_key(parse_instant(START)))
            text.append(_insert(server, "flow_migrations", [], list(row)))

        def fetch(table: str) -> tuple[list[str], list[Any]]:
            cursor = server.execute(f'SELECT * FROM "recording".{table}'.encode())
            return [column.name for column in cursor.description or ()], cursor.fetchall()

        for table in (*TABLES, HOLDS) if len(known) >= 3 else TABLES:
            # No migration so far has changed a column of these.
            for columns, values in rows_of(fetch, table, set(fetch(table)[0]), ()):
                text.append(_insert(server, table, columns, values))
    return "\n".join(text) + "\n"


def _insert(server: psycopg.Connection[Any], table: str, columns: list[str], values: list[Any]) -> str:
    shown = ", ".join(Literal(value).as_string(server) for value in values)
    named = f" ({', '.join(columns)})" if columns else ""
    return f"INSERT INTO @schema@.{table}{named} VALUES ({shown});"


async def _fill_postgres() -> None:
    clock = Clock(parse_instant(START))
    store = PostgresEventStore(shared_server().url, clock, schema="recording")
    await fill(store, clock)
    await store.close()


def sql_of(schema: str, text: str) -> bytes:
    """A recorded text for a schema of that name."""
    return PostgresDatabase(shared_server().url, schema, None).script(text).encode()


def main(dialect: str, number: str | None = None) -> int:
    known = bundled(dialect)[: None if number is None else int(number)]
    file = DATABASES / dialect / f"{len(known):04}.sql"
    if file.exists():
        sys.stderr.write(f"{file} is there; what was recorded is not written again\n")
        return 1
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((record_sqlite if dialect == "sqlite" else record_postgres)(known), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
