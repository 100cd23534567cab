"""Small writers that commands and model values share: one JSON object from fields that are JSON already."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import orjson

from perdure.instant import Instant, format_instant, parse_instant
from perdure.payload import refusal

__all__ = ["Moment", "Part", "ceil_ms", "instant_text", "moment_ns", "object_json", "text_json", "whole_ms"]

Part = tuple[str, bytes]
"""One field: its name and its value as JSON."""

Moment = datetime | str | Instant
"""A point in time as users give it: an aware datetime, an RFC 3339 text, or an `Instant` (R32)."""

_MILLISECOND: Final = timedelta(milliseconds=1)


def object_json(parts: Iterable[Part]) -> bytes:
    """The fields as one JSON object, in their order."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in parts) + b"}"


def text_json(name: str, value: object) -> bytes:
    """A string field. Raises `Serialization("payload")` for another type or a lone surrogate."""
    if not isinstance(value, str):
        raise refusal(name, f"must be str, and is {type(value).__name__}")
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise refusal(name, "a lone surrogate is no character and cannot be stored as UTF-8") from None


def moment_ns(name: str, when: Moment) -> int:
    """Nanoseconds since the epoch. Raises `Serialization("payload")` for a naive datetime or another text (R32)."""
    try:
        if isinstance(when, Instant):
            return when.ns
        if isinstance(when, datetime):
            return Instant.from_datetime(when).ns
        if isinstance(when, str):
            return parse_instant(when)
    except ValueError as error:
        raise refusal(name, str(error)) from None
    raise refusal(name, f"must be an aware datetime, an RFC 3339 text or an Instant, and is {type(when).__name__}")


def instant_text(name: str, when: Moment) -> str:
    """The canonical text of a point in time (spec 01 §1.5)."""
    return format_instant(moment_ns(name, when))


def ceil_ms(duration: timedelta) -> int:
    """Milliseconds, rounded up, of any timedelta."""
    whole, rest = divmod(duration, _MILLISECOND)
    return whole + bool(rest)


def whole_ms(name: str, duration: timedelta, least: int) -> int:
    """Milliseconds, rounded up so that nothing is due early. Raises `ValueError` below `least` ms."""
    if not isinstance(duration, timedelta):
        raise ValueError(f"{name} is a timedelta, not {type(duration).__name__}")
    value = ceil_ms(duration)
    if value < least or duration < timedelta(0):
        raise ValueError(f"{name} must be at least {least} ms, and is {duration}")
    return value
