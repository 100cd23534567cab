"""Dispatch runs on the memory store and on both SQL stores."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
from scenarios.kit import Clock

from dispatch.kit import STORES, Place

_PATIENCE_SECONDS = 150
"""For a busy machine, and for the first test of a process, which starts the server in its time."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test on a loop of its own and closes its stores there; a test that hangs fails by name."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def test() -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await pyfuncitem.obj(**arguments)
        finally:
            for value in arguments.values():
                if isinstance(value, Place):
                    await value.close()

    asyncio.run(test())
    return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Place:
    return Place(request.param, tmp_path, clock)


@pytest.fixture
def memory(tmp_path: Path, clock: Clock) -> Place:
    """For what no store has a say in."""
    return Place("memory", tmp_path, clock)


@pytest.fixture(params=STORES[1:])
def sql(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Place:
    """The stores that processes share."""
    return Place(request.param, tmp_path, clock)
