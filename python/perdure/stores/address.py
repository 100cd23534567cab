"""What kind of store an address names."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.errors import StoreError

__all__ = ["Address", "StoreKind", "parse_address"]

StoreKind = Literal["memory", "jsonl", "postgres", "sqlite"]
_SCHEMA: Final = "schema"


class Address(NamedTuple):
    """An address, and what it said beyond what the store's driver reads."""

    kind: StoreKind
    text: str
    schema: str | None = None


def parse_address(address: str) -> Address:
    """Takes `memory:`, a folder of JSONL files such as `jsonl:///runs`, a PostgreSQL URL such as
    `postgresql://app@db.example/flows?schema=tenant`, or an SQLite path or URL such as `app.db` or `sqlite:///app.db`.

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
    """Takes `schema=…` out of the URL's options, which libpq does not know."""
    try:
        url = urlsplit(address)
    except ValueError:
        return Address("postgres", address)  # the driver says what is wrong with it
    options = parse_qsl(url.query, keep_blank_values=True)
    schemas = [value for key, value in options if key == _SCHEMA]
    if not schemas:
        return Address("postgres", address)
    rest = urlencode([(key, value) for key, value in options if key != _SCHEMA])
    return Address("postgres", urlunsplit(url._replace(query=rest)), schemas[-1])
