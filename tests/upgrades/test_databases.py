"""A database of each earlier schema opens with the present release: nothing of it is lost, and its runs go on."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from itertools import count
from pathlib import Path

import psycopg
import pytest

from perdure import FlowEngine
from perdure.cli.app import run
from perdure.errors import FlowError, StoreError
from perdure.exchange import Stored, import_histories
from perdure.instant import MAX_NS, parse_instant
from perdure.stores import FlowEventStore, MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.migrations import bundled
from perdure.testing.postgres import shared_server
from upgrades.program import BUILDS, ENDS, START, Clock, carry_on, make_flow
from upgrades.record_databases import DATABASES, GONE, HELD, HOLD, LEASED, histories, sql_of

FILES = sorted(DATABASES.glob("*/*.sql"))
NUMBERS = count(1)


class Old:
    """One recorded database, loaded anew."""

    def __init__(self, file: Path, folder: Path, clock: Clock) -> None:
        self.dialect, self.number, self.clock = file.parent.name, int(file.stem), clock
        if self.dialect == "sqlite":
            self.place = str(folder / "old.db")
            connection = sqlite3.connect(self.place)
            connection.executescript(file.read_text("utf-8"))
            connection.close()
            self.address = self.place
        else:
            self.place = f"old {next(NUMBERS)}"
            self.address = f"{shared_server().url}?schema={self.place.replace(' ', '%20')}"
            with psycopg.connect(shared_server().url) as server:
                server.execute(sql_of(self.place, file.read_text("utf-8")))

    def open(self, *, migrate: bool = True) -> FlowEventStore:
        if self.dialect == "sqlite":
            return SqliteEventStore(self.place, self.clock, migrate=migrate)
        return PostgresEventStore(shared_server().url, self.clock, schema=self.place, migrate=migrate)

    @property
    def pending(self) -> list[str]:
        return [migration.name for migration in bundled(self.dialect)[self.number :]]


@pytest.fixture(params=FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    return Old(request.param, tmp_path, Clock(parse_instant(START)))


def test_both_databases_have_recorded_their_first_schemas() -> None:
    assert {(file.parent.name, int(file.stem)) for file in FILES} >= {
        *(("sqlite", number) for number in (1, 2, 3)),
        *(("postgres", number) for number in (1, 2, 3)),
    }


def test_a_database_of_then_is_migrated(old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    if not old.pending:
        return  # recorded by the present release
    assert run(["migrate", "--store", old.address, "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [f"pending {name}" for name in old.pending]

    async def refused() -> None:
        store = old.open(migrate=False)
        try:
            await store.run_ids()
        finally:
            await store.close()

    with pytest.raises(StoreError, match=f"lacks the migrations {', '.join(old.pending)}; run 'perdure migrate'"):
        asyncio.run(refused())
    assert run(["migrate", "--store", old.address]) == 0
    assert run(["migrate", "--store", old.address, "--check"]) == 0
    asyncio.run(refused())


def test_nothing_of_a_database_of_then_is_lost(old: Old) -> None:
    async def go() -> None:
        store, again = old.open(), MemoryEventStore(old.clock)
        recorded = histories()
        await import_histories(again, [Stored(*history) for history in recorded.items()])
        assert {run_id: await store.history(run_id) for run_id in await store.run_ids()} == recorded
        rows = (await store.runs(limit=1000)).runs
        assert [replace(row, hold=None) for row in rows] == list((await again.runs(limit=1000)).runs)
        assert await store.summary() == await again.summary()
        assert await store.list_due_wakeups(MAX_NS) == await again.list_due_wakeups(MAX_NS)
        assert await store.next_scheduled_wakeup() == await again.next_scheduled_wakeup()
        assert await store.list_active_hooks() == await again.list_active_hooks()
        assert await store.tombstone(GONE) is not None
        assert [hold.run_id for hold in await store.history_holds()] == (["parade"] if old.number >= 3 else [])
        await _compare_leases(old, store)
        await store.close()

    asyncio.run(go())


async def _compare_leases(old: Old, store: FlowEventStore) -> None:
    if (old.dialect, old.number) == ("sqlite", 1):  # it had no leases; all open runs can be claimed once
        claimed = await store.claim("me", 100, ttl_ns=1)
        terminal = {row.run_id for row in (await store.runs(limit=1000)).runs if row.terminal}
        assert {run.run_id for run in claimed} == {*ENDS} - terminal
        return
    assert (await store.lease(LEASED)).owner == "a process of then"
    assert (await store.lease(HELD)).hold == HOLD
    parked = await store.lease("waiting")
    assert parked.parked_sequence == parked.last_sequence
    assert not {LEASED, HELD, "waiting"} & {run.run_id for run in await store.claim("me", 100, ttl_ns=1)}


def test_the_runs_of_a_database_of_then_go_on(old: Old) -> None:
    async def go() -> dict[str, str]:
        store = old.open()
        old.clock.ns += 3600 * 10**9  # the lease of then has run out
        async with FlowEngine(make_flow(), store, builds=BUILDS, record_tracebacks=False) as engine:
            found: dict[str, str] = {}
            for run_id in histories():
                try:
                    found[run_id] = await carry_on(engine, run_id, old.clock)
                except FlowError as error:
                    found[run_id] = str(error)
        await store.close()
        return found

    assert asyncio.run(go()) == {run_id: ENDS[run_id] for run_id in histories()}
