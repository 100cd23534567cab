"""Each scenario runs on both kernels and on every store there is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.kit import Clock, World, open_store, run_async


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)


@pytest.fixture
def clock() -> Clock:
    return Clock()


WORLDS = ["rust-memory", "rust-sqlite", "pure-memory", "pure-sqlite"]


def _world(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[World]:
    kernel, kind, *shell = request.param.split("-")
    store = open_store(kind, tmp_path, clock)
    yield World(kernel, store, clock, blocking_shell=bool(shell))
    if kind != "postgres":
        asyncio.run(store.close())


world = pytest.fixture(params=WORLDS, name="world")(_world)
"""Tests that choose their shell themselves."""

asyncio_world = pytest.fixture(params=WORLDS, name="asyncio_world")(_world)
"""For what only the asyncio shell can do, in a module whose other tests run in both."""

world_in_both_shells = pytest.fixture(params=[w + shell for shell in ("", "-blocking") for w in WORLDS], name="world")(
    _world
)
"""Imported by modules whose tests say nothing of a shell: there it is their `world`."""

ON_EVERY_STORE = [f"{kernel}-{kind}" for kernel in ("rust", "pure") for kind in ("jsonl", "postgres")]

world_on_every_store = pytest.fixture(
    params=[*(w + shell for shell in ("", "-blocking") for w in WORLDS), *ON_EVERY_STORE], name="world"
)(_world)
"""Imported by the module about stores: both shells, and the other stores under the asyncio one."""
