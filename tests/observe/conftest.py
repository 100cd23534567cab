"""Observer tests run on both kernels, and on every store where a store has a part in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.kit import Clock, World, open_store, run_async

from perdure.observing import ObserverQueue


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that closes lets its observer see what waits, for longer than any stall of the machine."""
    monkeypatch.setattr(ObserverQueue.close, "__defaults__", (60.0,))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["rust-memory", "rust-sqlite", "pure-memory", "pure-sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[World]:
    kernel, kind = request.param.split("-")
    store = open_store(kind, tmp_path, clock)
    yield World(kernel, store, clock)
    asyncio.run(store.close())
