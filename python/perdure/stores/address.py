"""What kind of store an address names."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.errors import StoreError

__all__ = ["Address", "StoreKind", "parse_address"]

StoreKind = Literal["memory", "jsonl", "postgres", "sqlite"]
_OURS: Final = ("schema", "listen_address")


class Address(NamedTuple):
    """An address, and what it said beyond what the store's driver reads."""

    kind: StoreKind
    text: str
    schema: str | None = None
    listen_address: str | None = None


def parse_address(address: str) -> Address:
    """Takes `memory:`, a folder of JSONL files such as `jsonl:///runs`, a PostgreSQL URL such as
    `postgresql://app@db.example/flows?schema=tenant`, or an SQLite path or URL such as `app.db` or `sqlite:///app.db`. Beside
    `schema` a PostgreSQL URL may have a `listen_address`.

    Raises `StoreError` for a scheme that no store has."""
    scheme, colon, _ = address.partition(":")
    if address == "memory":
        raise StoreError("'memory' names a file; write 'memory:' for a store in memory, or './memory' for that file")
    if address in ("memory:", "memory://"):
        return Address("memory", address)
    if scheme == "jsonl" and colon:
        return Address("jsonl", address)
    if scheme in ("postgresql", "postgres") and colon:
        return _postgres(address)
    if colon and scheme.isalnum() and len(scheme) > 1 and scheme != "sqlite":
        known = "'memory:', 'jsonl:folder', 'postgresql://…', a file path or 'sqlite:///path'"
        raise StoreError(f"no store for {scheme!r} addresses; use {known}")
    return Address("sqlite", address)


def _postgres(address: str) -> Address:
    """Takes out of the URL's options what libpq does not know: `schema=…`, and `listen_address=…`, another URL."""
    try:
        url = urlsplit(address)
    except ValueError:
        return Address("postgres", address)  # the driver says what is wrong with it
    options = parse_qsl(url.query, keep_blank_values=True)
    ours = {key: value for key, value in options if key in _OURS}
    if not ours:
        return Address("postgres", address)
    rest = urlencode([(key, value) for key, value in options if key not in _OURS])
    return Address("postgres", urlunsplit(url._replace(query=rest)), **ours)
