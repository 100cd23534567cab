"""Crash tests run on both kernels."""

from __future__ import annotations

import pytest
from scenarios.kit import run_async

from perdure.kernel import KernelName


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)


@pytest.fixture(params=["rust", "pure"])
def kernel_name(request: pytest.FixtureRequest) -> KernelName:
    name: KernelName = request.param
    return name
