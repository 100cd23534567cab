"""About sixty workflows as a Python developer would write them, in `NATURAL`."""

from __future__ import annotations

from coroutine.natural import groups, orders, shapes, trouble, waiting
from coroutine.natural.kit import NATURAL, Natural, flow

__all__ = ["NATURAL", "Natural", "flow", "groups", "orders", "shapes", "trouble", "waiting"]
