"""The stores that keep run histories, and the protocol by which others can be written."""

from __future__ import annotations

from perdure.stores.base import (
    ActiveHook,
    Committed,
    FlowEventStore,
    RunFilter,
    RunPage,
    RunRecord,
    RunSummary,
    Wakeup,
)
from perdure.stores.memory import MemoryEventStore
from perdure.stores.sqlite import SqliteEventStore

__all__ = [
    "ActiveHook",
    "Committed",
    "FlowEventStore",
    "MemoryEventStore",
    "RunFilter",
    "RunPage",
    "RunRecord",
    "RunSummary",
    "SqliteEventStore",
    "Wakeup",
]
