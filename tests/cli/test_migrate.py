"""`perdure migrate` on SQLite and PostgreSQL, and stores that may not migrate."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from perdure.cli.app import run
from perdure.errors import StoreError
from perdure.stores import SqliteEventStore, open_store
from perdure.stores.migrations import bundled
from perdure.testing.postgres import shared_server

NUMBERS = count(1)


class Database:
    """One database without a schema yet."""

    def __init__(self, dialect: str, address: str, schema: str | None = None) -> None:
        self.dialect, self.address, self._schema = dialect, address, schema
        self.names = [migration.name for migration in bundled(dialect)]

    def sql(self, statement: str) -> None:
        if self._schema is None:
            connection = sqlite3.connect(self.address)
            connection.execute(statement)
            connection.commit()
            connection.close()
        else:
            with psycopg.connect(shared_server().url, autocommit=True) as server:
                server.execute(f'SET search_path TO "{self._schema}"'.encode())
                server.execute(statement.encode())


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        yield Database("sqlite", str(tmp_path / "app.db"))
    else:
        schema = f"migrate {next(NUMBERS)}"
        yield Database("postgres", f"{shared_server().url}?schema={schema.replace(' ', '%20')}", schema)


def test_check_lists_what_is_pending_and_changes_nothing(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(["migrate", "--store", database.address, "--check"]) == 1
        assert capsys.readouterr().out.splitlines() == [f"pending {name}" for name in database.names]
    assert run(["migrate", "--store", database.address, "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"pending": database.names}


def test_migrate_applies_all_once_and_check_is_content(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORE", database.address)
    assert run(["migrate"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [f"applied {name}" for name in database.names]
    assert told.err.splitlines() == [f"perdure: applying {name}" for name in database.names]
    assert run(["migrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"applied": []}
    assert run(["migrate", "--check"]) == 0


@pytest.mark.parametrize("option", [[], ["--check"]])
def test_changed_and_unknown_migrations_are_refused_by_name(
    database: Database, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["migrate", "--store", database.address]) == 0
    database.sql("INSERT INTO flow_migrations VALUES (9000, 'later', 'x', 'y')")
    capsys.readouterr()
    assert run(["migrate", "--store", database.address, *option]) == 1
    assert "9000_later, which this release of perdure does not know" in capsys.readouterr().err
    database.sql("DELETE FROM flow_migrations WHERE number = 9000")
    database.sql("UPDATE flow_migrations SET sha256 = 'x' WHERE number = 2")
    assert run(["migrate", "--store", database.address, *option]) == 1
    assert database.names[1] in capsys.readouterr().err


def test_a_store_that_may_not_migrate_names_the_command(database: Database) -> None:
    async def use() -> None:
        store = open_store(database.address, migrate=False)
        try:
            await store.run_ids()
        finally:
            await store.close()

    with pytest.raises(StoreError, match="perdure migrate"):
        asyncio.run(use())
    assert run(["migrate", "--store", database.address]) == 0
    asyncio.run(use())
    database.sql("DELETE FROM flow_migrations WHERE number = 3")
    with pytest.raises(StoreError, match="lacks the migrations 0003_history_holds; run 'perdure migrate'"):
        asyncio.run(use())


def test_a_file_that_may_not_be_migrated_is_not_even_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist; make it with 'perdure migrate'"):
        SqliteEventStore(tmp_path / "deep" / "app.db", migrate=False)
    assert not list(tmp_path.iterdir())


def test_each_tenant_has_a_schema_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    url = shared_server().url
    assert run(["migrate", "--store", f"{url}?schema=tenant%201"]) == 0
    assert run(["migrate", "--store", f"{url}?schema=tenant%202", "--check"]) == 1
    assert run(["migrate", "--store", f"{url}?schema=tenant%201&connect_timeout=5", "--check"]) == 0


@pytest.mark.parametrize("address", ["sqlite:", "postgresql://h:x:y/"])
def test_an_address_that_is_none_is_wrong_usage(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--store", address]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_of_logs_has_no_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["migrate", "--store", f"jsonl:{tmp_path}"]) == 0
    assert capsys.readouterr().out == "nothing was pending\n"
