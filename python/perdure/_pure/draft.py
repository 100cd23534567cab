"""Drafts: event JSON as the kernels write it, and the limit on its size (spec 1.1, 1.2, R27)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure._pure.event import EVENT_KEYS
from perdure._pure.json import quote
from perdure.errors import PayloadTooLarge
from perdure.instant import format_instant

__all__ = ["Draft", "check_sizes", "encode", "make", "moment", "text_or_null"]


class Draft(NamedTuple):
    """One event without envelope."""

    type: str
    text: str


def make(kind: str, **fields: str | None) -> Draft:
    """The event with these fields, each given as JSON text, in the order given; None leaves a field out."""
    parts = [f'"type":"{kind}"']
    parts += [f'"{name}":{text}' for name, text in fields.items() if text is not None]
    return Draft(kind, "{" + ",".join(parts) + "}")


def text_or_null(value: str | None) -> str:
    return "null" if value is None else quote(value)


def moment(ns: int) -> str:
    return f'"{format_instant(ns)}"'


def check_sizes(drafts: Iterable[Draft], max_event_bytes: int) -> None:
    """Raises `PayloadTooLarge` for the first draft over the limit."""
    for kind, text in drafts:
        size = len(text.encode())
        if size > max_event_bytes:
            raise PayloadTooLarge(EVENT_KEYS[kind], size, max_event_bytes)


def encode(drafts: Iterable[Draft]) -> list[bytes]:
    return [text.encode() for _, text in drafts]
