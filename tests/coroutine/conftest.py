"""Tests of the async form: most drive one run by hand on both kernels; `async def` ones run the engine."""

from __future__ import annotations

import pytest
from scenarios.kit import run_async


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)
