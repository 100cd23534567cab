"""The stores that keep run histories, and the protocol by which others can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import StoreError
from perdure.stores.address import parse_address
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
    "RunFilter",
    "RunPage",
    "RunRecord",
    "RunSummary",
    "SqliteEventStore",
    "Wakeup",
    "open_store",
]


def open_store(address: str, *, migrate: bool = True) -> FlowEventStore:
    """The store at an address: `memory:`, a folder of JSONL files such as `jsonl:///runs`, a PostgreSQL
    URL such as `postgresql://app@db.example/flows?schema=tenant`, or a SQLite path or URL such as `app.db` or
    `sqlite:///app.db`. With `migrate` false a database that is missing or has another release's schema is refused, for
    programs that may not change tables.

    Raises `StoreError` for a scheme this release has no store for, and what opening the store raises."""
    parsed = parse_address(address)
    if parsed.kind == "memory":
        return MemoryEventStore()
    if parsed.kind == "jsonl":
        return JsonlEventStore(parsed.text)
    if parsed.kind == "postgres":
        given = {"schema": parsed.schema, "listen_address": parsed.listen_address}
        options = {name: value for name, value in given.items() if value is not None}
        store: FlowEventStore = __getattr__("PostgresEventStore")(parsed.text, migrate=migrate, **options)
        return store
    return SqliteEventStore(parsed.text, migrate=migrate)


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
