"""Procrastinate: duplicated, delayed and lost deliveries are harmless."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from procrastinate import App
from scenarios.kit import stored

from contrib.procrastinate_worker import open_app
from contrib.shop import ANSWER, LEASE, calls, flow
from contrib.world import Workers, until
from perdure import DriveRun, Flow, FlowEngine, FlowScheduler, ResumeHook, ResumeHookByToken, ResumeWait
from perdure.contrib.procrastinate import ProcrastinateDispatcher, register
from perdure.stores.base import FlowEventStore
from perdure.stores.postgres import PostgresEventStore
from perdure.testing.postgres import shared_server

RUNS = [f"order-{n}" for n in range(4)]
_NUMBERS = count(1)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    schema = f"procrastinate_{next(_NUMBERS)}"
    with psycopg.connect(shared_server().url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    found = {"SHOP_DATABASE": shared_server().url, "SHOP_SCHEMA": schema, "SHOP_LEDGER": str(tmp_path / "ledger")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@asynccontextmanager
async def opened(environment: dict[str, str]) -> AsyncIterator[tuple[App, FlowEventStore]]:
    """The application with its tables, and the store of the runs."""
    app = open_app()
    store = PostgresEventStore(environment["SHOP_DATABASE"], schema=f"{environment['SHOP_SCHEMA']} runs")
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        try:
            yield app, store
        finally:
            await store.close()


async def jobs(app: App, *columns: str) -> list[Any]:
    """Columns of all jobs, oldest first."""
    rows = await app.connector.execute_query_all_async("SELECT * FROM procrastinate_jobs ORDER BY id")
    return [row[columns[0]] if len(columns) == 1 else tuple(row[column] for column in columns) for row in rows]


async def test_deliveries_twice_late_and_never(environment: dict[str, str], tmp_path: Path) -> None:
    """A worker is killed in the middle of a step, with the jobs it had; every run ends once."""
    with Workers(["-m", "contrib.procrastinate_worker"], environment, tmp_path / "log") as workers:
        async with opened(environment) as (app, store), FlowEngine(flow, store, lease_ttl=LEASE) as engine:
            dispatcher = ProcrastinateDispatcher(register(app, engine, name="shop.flow"))
            await engine.submit("order", {"seconds": 60}, run_id="slow")
            workers.start()
            for run_id in RUNS:
                await engine.submit("order", run_id=run_id)
            scheduler = FlowScheduler(engine, dispatcher, redispatch_after=timedelta(seconds=2))
            running = asyncio.create_task(scheduler.run_forever())

            async def slow_begun() -> bool:
                return calls("slow") == 1

            await until(slow_begun)
            workers.kill()
            await engine.force_cancel("slow")
            workers.start()

            async def all_ask() -> bool:
                return (await engine.run_summary()).active_hooks == len(RUNS)

            await until(all_ask)
            for run_id in RUNS:
                for _ in range(2):
                    await dispatcher.dispatch(ResumeHook(run_id, "answer", ANSWER))
                await dispatcher.dispatch(DriveRun(run_id))

            async def all_done() -> bool:
                return (await engine.run_summary()).completed_runs == len(RUNS)

            await until(all_done)
            scheduler.stop()
            await running
            for run_id in RUNS:
                told = await stored(engine.store, run_id)
                assert told.count("hook_received answer") == told.count("wait_completed pause") == 1
                assert told.count("step_completed reserve") == 1
                assert (await engine.snapshot(run_id)).output == ANSWER
            workers.kill()
    assert "canary" not in (tmp_path / "log").read_text()


async def test_a_run_has_one_job_waiting(environment: dict[str, str]) -> None:
    async with opened(environment) as (app, store), FlowEngine(flow, store) as engine:
        dispatcher = ProcrastinateDispatcher(register(app, engine), queue="v1")
        assert await dispatcher.dispatch(DriveRun("r")) is None
        assert await dispatcher.dispatch(DriveRun("r")) is False
        assert await dispatcher.dispatch(DriveRun("s")) is None
        for _ in range(2):
            assert await dispatcher.dispatch(ResumeWait("r", "w")) is None
        assert await jobs(app, "queue_name") == ["v1"] * 4


async def test_a_job_comes_back_later_or_fails(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that only another worker can do is deferred again, with its tries; one refused for good fails, as its job shows.
    The delay, drawn between 0 and 1 s, is an hour here, or the same worker might have the job again before it ends."""
    monkeypatch.setattr("perdure.contrib._tries.backoff_ns", lambda nacks, random: 3600 * 10**9)
    async with opened(environment) as (app, store):
        async with FlowEngine(flow, store) as engine:
            await engine.submit("order", run_id="r")
        async with FlowEngine(Flow(), store) as stranger:
            dispatcher = ProcrastinateDispatcher(register(app, lambda: stranger))
            await dispatcher.dispatch(DriveRun("r"))
            await dispatcher.dispatch(ResumeHookByToken("canary-nobody", {"secret": 1}))
            await app.run_worker_async(wait=False, install_signal_handlers=False)
        (done, failed, again) = await jobs(app, "status", "args", "scheduled_at")
        assert (done[0], failed[0], again[0]) == ("succeeded", "failed", "todo")
        assert again[1] == {"task": DriveRun("r").to_json().decode(), "attempts": 0, "nacks": 1}
        assert again[2] is not None
        assert (await store.lease("r")).failures == 0
