"""Lessons run where scenarios do: on both kernels and on every store there is."""

from __future__ import annotations

from scenarios.conftest import clock, pytest_pyfunc_call, world

__all__ = ["clock", "pytest_pyfunc_call", "world"]
