"""Instants of time: integers of nanoseconds since 1970-01-01T00:00:00Z, years 0001 to 9999 (rulings R31, R32).

`datetime` stops at microseconds, so the engine's times are plain ints; `Instant` is what users read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

__all__ = ["MAX_NS", "MIN_NS", "Instant", "due_key", "format_instant", "parse_instant"]

SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose: its arithmetic is plain UTC
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS: Final = 146_097

MIN_NS: Final = (1 - _EPOCH_DAY) * 86_400 * SECOND
"""0001-01-01T00:00:00Z."""
MAX_NS: Final = (date(9999, 12, 31).toordinal() + 1 - _EPOCH_DAY) * 86_400 * SECOND - 1
"""9999-12-31T23:59:59.999999999Z."""

_GRAMMAR: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]"
    r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)


@dataclass(frozen=True, order=True, slots=True)
class Instant:
    """A point in time with nanoseconds; compares with other instants, `str` is RFC 3339 in UTC (spec 1.5).

    `ns` counts nanoseconds since 1970-01-01T00:00:00Z. Raises `ValueError` outside years 0001 to 9999.
    """

    ns: int

    def __post_init__(self) -> None:
        _check(self.ns)

    @classmethod
    def parse(cls, text: str) -> Instant:
        """The instant of an RFC 3339 text. Raises `ValueError`."""
        return cls(parse_instant(text))

    @classmethod
    def from_datetime(cls, when: datetime) -> Instant:
        """The instant of an aware datetime. Raises `ValueError` for a naive one: it names no point in time (R32)."""
        offset = when.utcoffset()
        if offset is None:
            raise ValueError(
                f"{when!r} has no time zone, so it names no instant; use datetime.now(UTC) or give a tzinfo"
            )
        since = when.replace(tzinfo=None) - _EPOCH - offset
        return cls(((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000)

    def datetime(self) -> datetime:
        """The aware UTC datetime, cut to whole microseconds."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.ns // 1_000)

    def __str__(self) -> str:
        return format_instant(self.ns)


def parse_instant(text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 text; fraction digits past nine are cut (R31).

    Raises `ValueError` for another form, an impossible date, or a result outside years 0001 to 9999.
    """
    found = _GRAMMAR.fullmatch(text)
    if found is None:
        raise ValueError("not an RFC 3339 instant (YYYY-MM-DDTHH:MM:SS, optional fraction, then Z or ±HH:MM)")
    year, month, day, hour, minute, second, fraction, sign, offset_hour, offset_minute = found.groups()
    total = (_ordinal(int(year), int(month), int(day)) - _EPOCH_DAY) * 86_400
    total += int(hour) * 3_600 + int(minute) * 60 + int(second)
    if sign is not None:
        offset = int(offset_hour) * 3_600 + int(offset_minute) * 60
        total += offset if sign == "-" else -offset
    ns = total * SECOND
    if fraction is not None:
        ns += int(fraction[:9].ljust(9, "0"))
    return _check(ns)


def format_instant(ns: int) -> str:
    """RFC 3339 in UTC with `Z` and the shortest exact fraction: 0, 3, 6 or 9 digits (spec 1.5). Raises `ValueError`."""
    seconds, nanos = divmod(_check(ns), SECOND)
    whole = _seconds_text(seconds)
    if nanos == 0:
        return whole + "Z"
    if nanos % 1_000_000 == 0:
        return f"{whole}.{nanos // 1_000_000:03d}Z"
    if nanos % 1_000 == 0:
        return f"{whole}.{nanos // 1_000:06d}Z"
    return f"{whole}.{nanos:09d}Z"


def due_key(ns: int) -> str:
    """The 30-character index text of spec 7.5: nine fraction digits and `Z`, so that text order is time order."""
    seconds, nanos = divmod(_check(ns), SECOND)
    return f"{_seconds_text(seconds)}.{nanos:09d}Z"


@lru_cache(maxsize=256)  # a commit names the same few seconds several times
def _seconds_text(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()


def _ordinal(year: int, month: int, day: int) -> int:
    # Year 0000 may still convert into 0001 by its offset, and `date` begins at year 1: count it 400 years later.
    if year == 0:
        return date(400, month, day).toordinal() - _DAYS_OF_400_YEARS
    return date(year, month, day).toordinal()


def _check(ns: int) -> int:
    if not MIN_NS <= ns <= MAX_NS:
        raise ValueError(f"{ns} ns lies outside the calendar (years 0001 to 9999)")
    return ns
