"""Async tests run on a loop of their own."""

from __future__ import annotations

import asyncio
import inspect

import pytest

_PATIENCE_SECONDS = 200


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test; one that hangs fails by name."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def test() -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await pyfuncitem.obj(**arguments)

    asyncio.run(test())
    return True
