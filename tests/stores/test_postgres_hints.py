"""LISTEN and NOTIFY as hints (R48): who is told, of what, and that nothing depends on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import psycopg
import pytest
from stores.pgbouncer import pooled_by_transaction

from perdure.errors import StoreError
from perdure.kernel import load
from perdure.stores import open_store
from perdure.stores.base import Append, Lease
from perdure.stores.postgres import PostgresEventStore
from perdure.stores.postgres_hints import channel_of
from perdure.testing._stories import SECOND, START, Story, created, hook, started, wait
from perdure.testing.postgres import shared_server

PURE = load("pure")
ME = Lease("me", 30 * SECOND)
STEP = {
    "type": "step_created",
    "step_id": "s",
    "step_name": "s",
    "input": None,
    "retry": {"max_attempts": 1, "delay_ms": 0},
}
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN ' || %s"


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:63]


async def operator(statement: str, *values: object) -> list[tuple[object, ...]]:
    """Runs a statement as somebody beside the store would."""
    async with await psycopg.AsyncConnection.connect(shared_server().url, autocommit=True) as connection:
        return await (await connection.execute(statement, values)).fetchall()


async def listener_of(schema: str) -> object:
    """The process id of the session that listens for a tenant, once there is one."""
    while True:
        for (pid,) in await operator(LISTENERS, channel_of(schema)):
            return pid
        await asyncio.sleep(0.01)


async def only_a_hint_wakes(store: PostgresEventStore) -> None:
    """Until a wait for a change of the store has asked for the last time before a hint: it is heard that it listens, and the
    question that this led to has been answered."""
    hints = store._hints
    while not (hints._listening and hints._waiting and hints._noted[1] == hints._count):  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


@asynccontextmanager
async def stores(schema: str, count: int = 2) -> AsyncIterator[list[PostgresEventStore]]:
    opened = [await PostgresEventStore.connect(shared_server().url, schema=schema) for _ in range(count)]
    yield opened
    for store in opened:
        await store.close()


class Ear:
    """Hears what a tenant's channel is told, up to a mark."""

    def __init__(self, connection: psycopg.AsyncConnection, channel: str) -> None:
        self._connection = connection
        self._channel = channel

    @classmethod
    @asynccontextmanager
    async def at(cls, schema: str) -> AsyncIterator[Ear]:
        async with await psycopg.AsyncConnection.connect(shared_server().url, autocommit=True) as connection:
            await connection.execute(f"LISTEN {channel_of(schema)}".encode())
            yield cls(connection, channel_of(schema))

    async def heard(self) -> list[str]:
        await operator("SELECT pg_notify(%s, 'mark')", self._channel)
        payloads: list[str] = []
        async for notice in self._connection.notifies():
            if notice.payload == "mark":
                break
            payloads.append(notice.payload)
        return payloads


# who is told -------------------------------------------------------------------------------------------------


def test_a_hint_is_given_for_a_new_run_and_a_foreign_append_once_a_group_and_for_nothing_else(schema: str) -> None:
    async def test() -> None:
        async with stores(schema, 1) as (store,), Ear.at(schema) as ear:
            new = [Append(Story(PURE, run_id).batch(created(), hook("h", f"canary-{run_id}"))) for run_id in "abc"]
            await store.commit(new)
            assert await ear.heard() == [""]  # three runs, one hint, and nothing of them in it

            leased = Story(PURE, "leased")
            await leased.write(store, created(), started(), lease=replace(ME, claim="firm"))
            assert await ear.heard() == [""]
            own = replace(ME, epoch=1)
            await leased.write(store, STEP, lease=own)
            await leased.write(store, wait("w", START), lease=own)
            await leased.write(store, lease=replace(own, after="park"))
            await store.claim("me", 1, ttl_ns=SECOND)
            await store.commit(new)  # refused: they exist
            assert await ear.heard() == []

            await leased.write(store, wait("by somebody else", START))
            assert await ear.heard() == [""]

    asyncio.run(test())


def test_a_call_that_meets_a_live_lease_hints_at_its_append(schema: str) -> None:
    async def test() -> None:
        async with stores(schema, 1) as (store,), Ear.at(schema) as ear:
            story = Story(PURE, "r")
            await story.write(store, created(), lease=replace(ME, claim="firm"))
            assert await ear.heard() == [""]
            await story.write(store, wait("w", START), lease=Lease("other", SECOND, claim="if_free"))
            assert await ear.heard() == [""]

    asyncio.run(test())


def test_tenants_do_not_hear_each_other(schema: str) -> None:
    async def test() -> None:
        async with stores(schema, 1) as (store,), Ear.at("another tenant") as other, Ear.at(schema) as ear:
            await Story(PURE, "r").write(store, created())
            assert await other.heard() == []
            assert await ear.heard() == [""]

    asyncio.run(test())


@pytest.mark.parametrize("schema", ["x" * 63, "Ä 'quoted\" – %s", "UPPER", "upper"])
def test_every_schema_has_a_channel_of_its_own(schema: str) -> None:
    assert len(channel_of(schema)) < 63
    assert channel_of(schema).isidentifier()
    assert channel_of(schema) != channel_of(schema.swapcase())


# who waits ---------------------------------------------------------------------------------------------------


def test_another_process_is_woken_without_asking(schema: str) -> None:
    async def test() -> None:
        async with stores(schema) as (here, there):
            seen = await here.changes()
            waiting = asyncio.create_task(here.wait_for_change(seen, 3600))
            await only_a_hint_wakes(here)
            await Story(PURE, "r").write(there, created())
            now = await asyncio.wait_for(waiting, 60)
            assert now != seen
            # What others do to their own runs wakes nobody: it would be told when the time is up.
            quiet = asyncio.create_task(here.wait_for_change(now, 3600))
            await there.claim("other", 1, ttl_ns=SECOND)
            for _ in range(3):
                await operator("SELECT 1")
            assert not quiet.done()
            quiet.cancel()
            assert await here.wait_for_change(now, 0) != now

    asyncio.run(test())


def test_a_change_before_the_first_wait_is_not_missed(schema: str) -> None:
    async def test() -> None:
        async with stores(schema) as (here, there):
            seen = await here.changes()
            await Story(PURE, "r").write(there, created())
            assert await asyncio.wait_for(here.wait_for_change(seen, 3600), 60) != seen

    asyncio.run(test())


async def is_told_of(here: PostgresEventStore, change: Callable[[], Awaitable[object]]) -> None:
    seen = await here.changes()
    waiting = asyncio.create_task(here.wait_for_change(seen, 3600))
    await asyncio.sleep(0)
    await change()
    assert await asyncio.wait_for(waiting, 60) != seen


def test_a_listener_that_is_cut_off_listens_again_and_says_nothing(
    schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with stores(schema) as (here, there):
            story = Story(PURE, "r")
            await is_told_of(here, lambda: story.write(there, created()))
            for number in range(2):
                pid = await listener_of(schema)
                await operator("SELECT pg_terminate_backend(%s, 60000)", pid)
                # Nobody listens now, and it is noticed all the same.
                await is_told_of(here, lambda number=number: story.write(there, wait(f"w{number}", START)))  # type: ignore[misc]  # a default binds the number
                assert await listener_of(schema) != pid

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    assert [record for record in caplog.records if record.name.startswith("perdure")] == []


def test_behind_pgbouncer_the_store_asks_or_listens_at_a_direct_address(
    schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(pooled: str) -> None:
        async with stores(schema, 1) as (there,):
            here = await PostgresEventStore.connect(pooled, schema=schema)
            story = Story(PURE, "r")
            await is_told_of(here, lambda: story.write(there, created()))
            assert await operator(LISTENERS, channel_of(schema)) == []
            await here.close()

            listening = open_store(f"{pooled}?{urlencode({'schema': schema, 'listen_address': shared_server().url})}")
            waiting = asyncio.create_task(listening.wait_for_change(await listening.changes(), 3600))
            await listener_of(schema)
            await story.write(there, wait("w", START))
            await asyncio.wait_for(waiting, 60)
            await listening.close()

    with pooled_by_transaction(tmp_path) as pooled, caplog.at_level(logging.INFO):
        asyncio.run(test(pooled))
    assert [record for record in caplog.records if record.name.startswith("perdure")] == []


def test_a_listen_address_that_is_none_is_refused_without_its_password() -> None:
    with pytest.raises(ValueError, match="listen_address is no PostgreSQL URL") as found:
        PostgresEventStore("postgresql://db", listen_address="postgresql://app:canary-secret@db:port=/x?y")
    assert "secret" not in str(found.value)


def test_a_listener_that_finds_nobody_leaves_the_store_as_it_is(schema: str) -> None:
    async def test() -> None:
        nobody = "postgresql://postgres@127.0.0.1:1/postgres"
        here = await PostgresEventStore.connect(shared_server().url, schema=schema, listen_address=nobody)
        async with stores(schema, 1) as (there,):
            await is_told_of(here, lambda: Story(PURE, "r").write(there, created()))
        await here.close()

    asyncio.run(test())


def test_who_waits_hears_that_the_store_is_closed(schema: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema)
        seen = await store.changes()
        waiting = asyncio.create_task(store.wait_for_change(seen, 600))
        await listener_of(schema)
        await store.close()
        with pytest.raises(StoreError, match="is closed"):
            await asyncio.wait_for(waiting, 60)

    asyncio.run(test())
