"""Instants: the grammar, the shortest exact text, the index key and the range (R31, R32, spec 1.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from perdure.instant import MAX_NS, MIN_NS, Instant, due_key, format_instant, parse_instant

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00:01z", SECOND),
        ("1970-01-01t00:00:00.5+00:00", SECOND // 2),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
        ("2000-02-29T00:00:00-00:00", 951_782_400 * SECOND),
        ("0001-01-01T00:00:00Z", MIN_NS),
        ("0000-12-31T23:00:00-01:00", MIN_NS),
        ("9999-12-31T23:59:59.999999999Z", MAX_NS),
    ],
)
def test_parse(text: str, ns: int) -> None:
    assert parse_instant(text) == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:60Z",
        "2026-01-01T24:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-1-01T00:00:00Z",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00+0100",
        "2026-01-01T00:00:00+01:60",
        "2026-01-01T00:00:00 Z",
        " 2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z\n",
        "٢٠٢٦-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-00:01",
        "10000-01-01T00:00:00Z",
    ],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        parse_instant(text)


@pytest.mark.parametrize(
    ("nanos", "fraction"),
    [(0, ""), (120_000_000, ".120"), (1_000, ".000001"), (100, ".000000100"), (999_999_999, ".999999999")],
)
def test_format_has_the_shortest_exact_fraction(nanos: int, fraction: str) -> None:
    text = format_instant(nanos)
    assert text == f"1970-01-01T00:00:00{fraction}Z"
    assert parse_instant(text) == nanos


def test_text_order_of_due_keys_is_time_order() -> None:
    times = [MIN_NS, -1, 0, 1, 1_000, SECOND, MAX_NS]
    keys = [due_key(ns) for ns in times]
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {30}
    assert keys[0] == "0001-01-01T00:00:00.000000000Z"


@pytest.mark.parametrize("ns", [MIN_NS - 1, MAX_NS + 1])
def test_range_is_years_1_to_9999(ns: int) -> None:
    for make in (Instant, format_instant, due_key):
        with pytest.raises(ValueError, match="calendar"):
            make(ns)


def test_instants_compare_hash_and_print() -> None:
    early, late = Instant(1), Instant(2)
    assert early < late and early == Instant(1) and hash(early) == hash(Instant(1))
    assert str(Instant.parse("2026-01-01T01:00:00.5+01:00")) == "2026-01-01T00:00:00.500Z"


def test_datetimes() -> None:
    when = datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=1)))
    assert Instant.from_datetime(when).datetime() == when
    assert Instant(MAX_NS).datetime() == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert Instant(MIN_NS).datetime() == datetime(1, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="time zone"):
        Instant.from_datetime(datetime(2026, 1, 1))
