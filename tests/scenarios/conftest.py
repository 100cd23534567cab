"""Each scenario runs on both kernels, in memory and on SQLite; those about stores on all four (`worlds.py`)."""

from __future__ import annotations

import pytest

from scenarios.kit import Clock, run_async
from scenarios.worlds import WORLDS, make_world


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)


@pytest.fixture
def clock() -> Clock:
    return Clock()


world = pytest.fixture(params=WORLDS, name="world")(make_world)
"""Tests that choose their shell themselves."""

asyncio_world = pytest.fixture(params=WORLDS, name="asyncio_world")(make_world)
"""For what only the asyncio shell can do, in a module whose other tests run in both."""
