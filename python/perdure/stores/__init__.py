"""The stores that keep run histories, and the protocol by which others can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import StoreError
from perdure.stores.base import (
    ActiveHook,
    Append,
    Claimed,
    Committed,
    FlowEventStore,
    Lease,
    LeaseState,
    Outlook,
    RunFilter,
    RunPage,
    RunRecord,
    RunSummary,
    Wakeup,
)
from perdure.stores.jsonl import JsonlEventStore
from perdure.stores.memory import MemoryEventStore
from perdure.stores.sqlite import SqliteEventStore

if TYPE_CHECKING:
    from perdure.stores.postgres import PostgresEventStore as PostgresEventStore

__all__ = [
    "ActiveHook",
    "Append",
    "Claimed",
    "Committed",
    "FlowEventStore",
    "JsonlEventStore",
    "Lease",
    "LeaseState",
    "MemoryEventStore",
    "Outlook",
    "PostgresEventStore",
    "RunFilter",
    "RunPage",
    "RunRecord",
    "RunSummary",
    "SqliteEventStore",
    "Wakeup",
    "open_store",
]


def open_store(address: str) -> FlowEventStore:
    """The store at an address: `memory:`, a folder of JSONL files such as `jsonl:///runs`, a PostgreSQL
    URL such as `postgresql://app@db.example/flows`, or a SQLite path or URL such as `app.db` or `sqlite:///app.db`.

    Raises `StoreError` for a scheme this release has no store for, and what opening the store raises."""
    scheme, colon, _ = address.partition(":")
    if address == "memory":
        raise StoreError("'memory' names a file; write 'memory:' for a store in memory, or './memory' for that file")
    if address in ("memory:", "memory://"):
        return MemoryEventStore()
    if scheme == "jsonl" and colon:
        return JsonlEventStore(address)
    if scheme in ("postgresql", "postgres") and colon:
        store: FlowEventStore = __getattr__("PostgresEventStore")(address)
        return store
    if colon and scheme.isalnum() and len(scheme) > 1 and scheme != "sqlite":
        known = "'memory:', 'jsonl:folder', 'postgresql://…', a file path or 'sqlite:///path'"
        raise StoreError(f"no store for {scheme!r} addresses; use {known}")
    return SqliteEventStore(address)


def __getattr__(name: str) -> Any:
    """Loads the store of an extra when it is first named: importing perdure imports no database driver."""
    if name != "PostgresEventStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from perdure.stores.postgres import PostgresEventStore
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("psycopg"):
            raise StoreError("PostgreSQL needs psycopg; install 'perdure[postgres]'") from None
        raise
    return PostgresEventStore
