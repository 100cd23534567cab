"""A queue shared by processes: workers are killed at any point, and every run ends once (R44, R45, W18-W20)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from random import Random

import pytest
from contrib.world import Workers, until
from scenarios.kit import stored

from dispatch.kit import Place
from dispatch.shop import flow, noted
from perdure import DurableTaskQueue, FlowEngine, FlowScheduler, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing.postgres import shared_server

RUNS = 24
KILLS = 5


async def test_workers_are_killed_and_every_run_ends_once(sql: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if sql.kind == "sqlite":
        address = f"sqlite:///{sql.folder / 'runs.db'}"
        store: FlowEventStore = SqliteEventStore(address)
    else:
        address = f"{shared_server().url}?schema=killed"
        store = PostgresEventStore(shared_server().url, schema="killed")
    sql.opened.append(store)  # on the real clock, which its workers share
    monkeypatch.setenv("SHOP_LEDGER", str(sql.folder / "ledger"))
    random, run_ids = Random(7), [f"r{number}" for number in range(RUNS)]
    with Workers(["-m", "dispatch.working", address], {}, sql.folder / "log") as workers:
        async with FlowEngine(flow, store) as engine:
            for run_id in run_ids:
                await engine.submit("walk", run_id=run_id)
            queue = DurableTaskQueue(store, lease_ttl=timedelta(seconds=1))
            scheduler = FlowScheduler(engine, queue)
            running = asyncio.create_task(scheduler.run_forever())
            for _ in range(2):
                workers.start()

            async def some_done() -> bool:
                return (sql.folder / "ledger").exists()

            await until(some_done)
            for _ in range(KILLS):
                await asyncio.sleep(random.random() / 2)
                workers.kill()
                workers.start()

            async def all_done() -> bool:
                return (await engine.run_summary()).completed_runs == RUNS

            await until(all_done)
            scheduler.stop()
            await running
        begun, last = Counter(noted(sql.folder)), [f"s{number}" for number in range(3)]
        for run_id in run_ids:
            told = await stored(store, run_id)
            for name in last:
                assert told.count(f"step_completed {name}") == 1
                assert 1 <= begun[f"{run_id}/{name}"] <= 1 + KILLS
            assert told[-1] == "run_completed"

        async def empty() -> bool:
            return (await queue.len(), await queue.inflight_len()) == (0, 0)

        await until(empty)
        assert await queue.dead_letter_len() == 0
    assert sum(begun.values()) >= 3 * RUNS
