"""Schema changes: applied once, refused when they differ, and nothing written where it is not ours (scenario 64)."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.errors import StoreError
from perdure.stores import SqliteEventStore
from perdure.stores.migrations import Migration, bundled, migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def open_and_close(path: Path) -> None:
    asyncio.run(SqliteEventStore(path).close())


def sql(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def ledger(path: Path) -> list[tuple[object, ...]]:
    return sql(path, "SELECT number, title, sha256, applied_at FROM flow_migrations")


def schema(path: Path) -> list[tuple[object, ...]]:
    return sql(path, "SELECT type, name, sql FROM sqlite_schema ORDER BY name")


def test_the_files_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in bundled("sqlite")] == list(range(1, len(bundled("sqlite")) + 1))


def test_opening_twice_applies_nothing_twice(path: Path) -> None:
    open_and_close(path)
    before = ledger(path), schema(path)
    open_and_close(path)
    assert (ledger(path), schema(path)) == before
    assert len(before[0]) == len(bundled("sqlite"))


def test_every_table_is_strict(path: Path) -> None:
    open_and_close(path)
    tables = [sql for kind, name, sql in schema(path) if kind == "table" and str(name).startswith("flow_")]
    assert len(tables) >= 8
    assert all("STRICT" in str(sql) for sql in tables)


def test_a_changed_migration_is_refused_by_name(path: Path) -> None:
    open_and_close(path)
    sql(path, f"UPDATE flow_migrations SET sha256 = '{'0' * 64}' WHERE number = 1")
    with pytest.raises(StoreError, match=r"runs\.db had migration 0001_first with checksum 000.*restore the file"):
        SqliteEventStore(path)


def test_a_newer_migration_is_refused_by_name(path: Path) -> None:
    open_and_close(path)
    sql(path, "INSERT INTO flow_migrations VALUES (9000, 'later', 'x', 'y')")
    with pytest.raises(StoreError, match="9000_later, which this release of perdure does not know"):
        SqliteEventStore(path)


def test_a_database_of_the_reference_engine_is_refused_untouched(path: Path) -> None:
    sql(path, "CREATE TABLE a3s_orm_migrations (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="a3s_orm_migrations"):
        SqliteEventStore(path)
    assert path.read_bytes() == before


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"certainly not a database, but long enough to be read as one" * 20)
    with pytest.raises(StoreError, match="no SQLite database"):
        SqliteEventStore(path)


def test_the_next_migration_is_applied_alone_and_a_failing_one_leaves_nothing(path: Path) -> None:
    first = Migration(1, "first", "CREATE TABLE a (x TEXT); INSERT INTO a VALUES ('one; two');", "11")
    second = Migration(2, "second", "CREATE TABLE b (x TEXT);\n-- the end;\n", "22")
    broken = replace(second, number=3, title="broken", sql="CREATE TABLE c (x TEXT); INSERT INTO nowhere VALUES (1);")
    connection = sqlite3.connect(path, isolation_level=None)
    assert migrate(connection, "db", [first]) == [first]
    assert migrate(connection, "db", [first, second]) == [second]
    assert migrate(connection, "db", [first, second]) == []
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, "db", [first, second, broken])
    assert not connection.in_transaction
    assert connection.execute("SELECT * FROM a").fetchall() == [("one; two",)]
    assert connection.execute("SELECT name FROM sqlite_schema WHERE name = 'c'").fetchall() == []
    assert [row[0] for row in connection.execute("SELECT number FROM flow_migrations")] == [1, 2]
    connection.close()


def test_runs_of_the_first_schema_can_be_claimed(path: Path) -> None:
    first, second = bundled("sqlite")[:2]
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, "db", [first])
    row = "INSERT INTO flow_runs VALUES (?, 'demo', '1', NULL, 's', ?, 0, 0, 0, 't', 't', NULL, 1"
    columns = ", NULL, 0, -1, 0, NULL, NULL, ?)"
    connection.execute(row + columns, ("open", 0, None))
    connection.execute(row + columns, ("ended", 1, 0))
    assert migrate(connection, "db", [first, second]) == [second]
    found = connection.execute("SELECT run_id, claim_at FROM flow_runs ORDER BY run_id").fetchall()
    assert found == [("ended", None), ("open", 0)]
    connection.close()


def test_many_openers_of_a_new_file_make_it_once(path: Path) -> None:
    with ThreadPoolExecutor(6) as executor:
        list(executor.map(lambda _: open_and_close(path), range(12)))
    assert len(ledger(path)) == len(bundled("sqlite"))
