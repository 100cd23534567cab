"""Tests of workers run on every kind of store that several processes can share, and on memory."""

from __future__ import annotations

import asyncio
import inspect
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from perdure.stores import JsonlEventStore, MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing.postgres import shared_server

SCHEMAS = count(1)


PATIENCE_SECONDS = 150


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test on an event loop of its own, and closes its store there: connections belong to a loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }

    async def test() -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await pyfuncitem.obj(**arguments)
        finally:
            stores: list[FlowEventStore] = [
                arguments[name] for name in ("store", "shared", "sqlite") if name in arguments
            ]
            for store in stores:
                await store.close()

    asyncio.run(test())
    return True


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FlowEventStore:
    """A store of each kind, on the true clock."""
    if request.param == "memory":
        return MemoryEventStore()
    if request.param == "jsonl":
        return JsonlEventStore(tmp_path / "runs")
    return made(request.param, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> FlowEventStore:
    """A store of each kind that several processes can have open."""
    return made(request.param, tmp_path)


def made(kind: str, folder: Path) -> FlowEventStore:
    if kind == "sqlite":
        return SqliteEventStore(folder / "runs.db", synchronous="NORMAL")
    return PostgresEventStore(shared_server().url, schema=f"worker {next(SCHEMAS)}")


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteEventStore:
    return SqliteEventStore(tmp_path / "runs.db", synchronous="NORMAL")


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told to end at once gives its leases back in whatever time the machine takes for it."""
    monkeypatch.setattr("perdure.worker.flow_worker._LAST_ACT", 200.0)


@pytest.fixture
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a worker cannot drive is passed over for longer than any test takes."""
    monkeypatch.setattr("perdure.worker.shunned._FIRST_SECONDS", 200.0)
