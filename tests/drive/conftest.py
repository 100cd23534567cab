"""Drive tests run on both kernels; those about stores also on every store there is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.kit import Clock, World, open_store, run_async

from perdure.kernel import KernelName


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["rust", "pure"])
def kernel_name(request: pytest.FixtureRequest) -> KernelName:
    name: KernelName = request.param
    return name


@pytest.fixture
def world(kernel_name: KernelName, tmp_path: Path, clock: Clock) -> World:
    """A kernel with a memory store."""
    return World(kernel_name, open_store("memory", tmp_path, clock), clock)


@pytest.fixture(params=["memory", "sqlite"])
def stored_world(
    request: pytest.FixtureRequest, kernel_name: KernelName, tmp_path: Path, clock: Clock
) -> Iterator[World]:
    """A kernel with a store of each kind."""
    store = open_store(request.param, tmp_path, clock)
    yield World(kernel_name, store, clock)
    asyncio.run(store.close())
