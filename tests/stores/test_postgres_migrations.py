"""Schema changes in PostgreSQL: applied once, refused when they differ, and verified for roles that may not make them
(scenario 64)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from perdure.errors import StoreError
from perdure.kernel import load
from perdure.stores.base import Lease
from perdure.stores.migrations import bundled
from perdure.stores.postgres import PostgresEventStore
from perdure.stores.postgres_database import PostgresDatabase
from perdure.testing._stories import SECOND, Story, created, hook, started
from perdure.testing.postgres import shared_server

PURE = load("pure")


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:63]


def database(name: str) -> str:
    """The address of another database of the server."""
    return f"{shared_server().url.rpartition('/')[0]}/{name}"


def connect(schema: str, *, verified: bool = False, address: str | None = None) -> None:
    async def go() -> None:
        make = PostgresEventStore.connect_verified if verified else PostgresEventStore.connect
        await (await make(address or shared_server().url, schema=schema)).close()

    asyncio.run(go())


def sql(schema: str, statement: str) -> list[tuple[object, ...]]:
    text = PostgresDatabase(shared_server().url, schema, None).sql(statement)
    with psycopg.connect(shared_server().url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def test_the_files_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in bundled("postgres")] == list(range(1, len(bundled("postgres")) + 1))


def test_connecting_twice_applies_nothing_twice(schema: str) -> None:
    connect(schema)
    ledger = "SELECT number, title, sha256, applied_at FROM @schema@.flow_migrations ORDER BY number"
    before = sql(schema, ledger)
    connect(schema)
    assert sql(schema, ledger) == before
    assert [row[2] for row in before] == [migration.sha256 for migration in bundled("postgres")]


def test_a_changed_migration_is_refused_by_name(schema: str) -> None:
    connect(schema)
    sql(schema, f"UPDATE @schema@.flow_migrations SET sha256 = '{'0' * 64}' WHERE number = 1")
    for verified in (False, True):
        with pytest.raises(StoreError, match=r"had migration 0001_first with checksum 000.*restore the file"):
            connect(schema, verified=verified)


def test_a_newer_migration_is_refused_by_name(schema: str) -> None:
    connect(schema)
    sql(schema, "INSERT INTO @schema@.flow_migrations VALUES (9000, 'later', 'x', 'y')")
    for verified in (False, True):
        with pytest.raises(StoreError, match="9000_later, which this release of perdure does not know"):
            connect(schema, verified=verified)


def test_a_schema_of_the_reference_engine_is_refused_untouched(schema: str) -> None:
    sql(schema, "CREATE SCHEMA @schema@; CREATE TABLE @schema@.a3s_orm_migrations (name text)")
    with pytest.raises(StoreError, match="a3s_orm_migrations"):
        connect(schema)
    assert sql(schema, "SELECT to_regclass('@schema@.flow_runs')") == [(None,)]


def test_a_migration_that_fails_leaves_nothing(schema: str) -> None:
    sql(schema, "CREATE SCHEMA @schema@; CREATE TABLE @schema@.flow_links (mine text)")
    with pytest.raises(StoreError, match=r'relation "flow_links" already exists \(SQLSTATE 42P07\)'):
        connect(schema)
    assert sql(schema, "SELECT to_regclass('@schema@.flow_runs'), to_regclass('@schema@.flow_migrations')") == [
        (None, None)
    ]


def test_many_openers_of_a_new_schema_make_it_once(schema: str) -> None:
    async def go() -> None:
        stores = [PostgresEventStore(shared_server().url, schema=schema) for _ in range(6)]
        await asyncio.gather(*(store.open() for store in stores))
        for store in stores:
            await store.close()

    asyncio.run(go())
    assert sql(schema, "SELECT count(*) FROM @schema@.flow_migrations") == [(len(bundled("postgres")),)]


@pytest.fixture
def role() -> Iterator[str]:
    """A role that may do nothing yet, and the address it logs in with."""
    sql("x", "CREATE ROLE perdure_app LOGIN")
    yield shared_server().url.replace("postgres@", "perdure_app@")
    sql("x", "DROP OWNED BY perdure_app; DROP ROLE perdure_app")


def test_a_role_without_rights_to_change_tables_verifies_and_works(schema: str, role: str) -> None:
    with pytest.raises(StoreError, match=r"lacks the migrations 0001_first, 0002_commit, .*; run 'perdure migrate'"):
        connect(schema, verified=True)
    with pytest.raises(StoreError, match="permission denied"):
        connect(schema, address=role)
    connect(schema)
    sql(
        schema,
        "GRANT USAGE ON SCHEMA @schema@ TO perdure_app;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA @schema@ TO perdure_app;"
        "REVOKE INSERT, UPDATE, DELETE ON @schema@.flow_migrations FROM perdure_app;"
        # A database whose owner lets nobody call what he did not grant.
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;"
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema@ TO perdure_app",
    )

    async def work() -> None:
        store = await PostgresEventStore.connect_verified(role, schema=schema)
        story, seen = Story(PURE, "r"), await store.changes()
        await story.write(store, created(), hook("h", "canary-role"))
        assert await store.wait_for_change(seen, 0) != seen
        assert [run.run_id for run in await store.claim("me", 1, ttl_ns=3600 * SECOND)] == ["r"]
        held = Lease("me", 3600 * SECOND, epoch=1)
        assert (await story.write(store, started(), lease=held)).epoch == 1
        await story.write(store, {"type": "run_failed", "error": "e"}, lease=held)
        assert (await store.history("r")).count(b"\n") == 4
        await store.close()

    asyncio.run(work())


def test_a_database_in_another_encoding_is_refused() -> None:
    sql("x", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match="is encoded in LATIN1; create it with ENCODING 'UTF8'"):
        connect("x", address=database("latin"))
    sql("x", "DROP DATABASE latin WITH (FORCE)")


def test_a_store_that_could_not_open_opens_later(schema: str) -> None:
    async def go() -> None:
        store = PostgresEventStore(database("later"), schema=schema)
        with pytest.raises(StoreError, match="does not exist"):
            await store.run_ids()
        await asyncio.to_thread(sql, "x", "CREATE DATABASE later")
        assert await store.run_ids() == []
        await store.close()
        await asyncio.to_thread(sql, "x", "DROP DATABASE later WITH (FORCE)")

    asyncio.run(go())
