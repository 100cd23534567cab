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
IN_BOTH_SHELLS = {"test_core", "test_retries", "test_batches", "test_determinism", "test_stores"}
"""Modules whose tests say nothing of a shell, so that each runs in both; the others choose it themselves."""

NOT_BLOCKING = {"test_30_a_fast_sibling_is_durable"}
"""It cancels the caller's task. A blocking call is cut off by Ctrl-C, which tests/drive/test_processes.py does for real."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        both = metafunc.module.__name__.rpartition(".")[2] in IN_BOTH_SHELLS
        both = both and metafunc.function.__name__ not in NOT_BLOCKING
        shells = ["", "-blocking"] if both else [""]
        metafunc.parametrize("world", [world + shell for shell in shells for world in WORLDS], indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[World]:
    kernel, kind, *shell = request.param.split("-")
    store = open_store(kind, tmp_path, clock)
    yield World(kernel, store, clock, blocking_shell=bool(shell))
    asyncio.run(store.close())
