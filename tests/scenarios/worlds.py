"""Worlds for modules that choose among them: imported there, one is the module's `world`.

They are not in `conftest.py`: of several fixtures of one name there, one would take the place of the others everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.kit import Clock, World, open_store

__all__ = ["WORLDS", "make_world", "world_in_both_shells", "world_on_every_store"]

WORLDS = ["rust-memory", "rust-sqlite", "pure-memory", "pure-sqlite"]
IN_BOTH_SHELLS = [world + shell for shell in ("", "-blocking") for world in WORLDS]
OTHER_STORES = [f"{kernel}-{kind}" for kernel in ("rust", "pure") for kind in ("jsonl", "postgres")]


def make_world(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[World]:
    """The body of these fixtures; a parameter is `kernel-store` or `kernel-store-blocking`."""
    kernel, kind, *shell = request.param.split("-")
    store = open_store(kind, tmp_path, clock)
    yield World(kernel, store, clock, blocking_shell=bool(shell))
    if kind != "postgres":  # that one is closed by the loop of its test
        asyncio.run(store.close())


world_in_both_shells = pytest.fixture(params=IN_BOTH_SHELLS, name="world")(make_world)
"""For tests that say nothing of a shell."""

world_on_every_store = pytest.fixture(params=[*IN_BOTH_SHELLS, *OTHER_STORES], name="world")(make_world)
"""For tests about stores: both shells, and the other stores under the asyncio one."""
