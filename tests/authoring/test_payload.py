"""Payloads are exact: what cannot be stored is refused with its path, what is stored comes back (R27, R29, R30)."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, NamedTuple, TypedDict, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Serialization
from perdure.payload import decode, decode_as, encode


def refused(value: object) -> str:
    with pytest.raises(Serialization) as caught:
        encode(value)
    assert caught.value.rule == "payload"
    assert caught.value.line is None
    return caught.value.detail


def unreadable(raw: bytes) -> str:
    with pytest.raises(Serialization) as caught:
        decode(raw)
    assert caught.value.rule == "payload"
    return caught.value.detail


def nested(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


class Pair(NamedTuple):
    x: int
    y: int


# -- what goes in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, b"null"),
        (True, b"true"),
        (0, b"0"),
        (2**64 - 1, b"18446744073709551615"),
        (-(2**63), b"-9223372036854775808"),
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
        ("é\n\x00", '"é\\n\\u0000"'.encode()),
        ((1, "a"), b'[1,"a"]'),
        ({"b": 1, "a": [None]}, b'{"b":1,"a":[null]}'),
        (OrderedDict(z=1, a=2), b'{"z":1,"a":2}'),
        (Pair(1, 2), b"[1,2]"),
        (Decimal("1.10"), b'"1.10"'),
        (date(2026, 1, 2), b'"2026-01-02"'),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), b'"2026-01-02T03:04:05.000006+00:00"'),
        (UUID(int=7), b'"00000000-0000-0000-0000-000000000007"'),
    ],
)
def test_what_json_holds_exactly_is_written(value: object, raw: bytes) -> None:
    assert encode(value) == raw


class Colour(Enum):
    RED = "red"


class Odd(Enum):
    RATE = Decimal("0.10")
    BAD = math.nan


class Level(IntEnum):
    HIGH = 3


class Name(StrEnum):
    ANNA = "anna"


class Text(str):
    def __str__(self) -> str:
        return "something else"


@dataclass
class Line:
    sku: str
    price: Decimal
    parent: Line | None = None


def test_dataclasses_enums_and_subclasses_are_written_by_value() -> None:
    line = Line("a", Decimal("2.50"), Line("b", Decimal(1)))
    assert encode([line, Colour.RED, Odd.RATE, Level.HIGH, Name.ANNA, Text("x")]) == (
        b'[{"sku":"a","price":"2.50","parent":{"sku":"b","price":"1","parent":null}},"red","0.10",3,"anna","x"]'
    )


def test_an_offset_with_seconds_is_written_in_utc() -> None:
    odd = timezone(timedelta(hours=1, seconds=30))
    assert encode(datetime(2026, 1, 1, 1, 0, 30, tzinfo=odd)) == b'"2026-01-01T00:00:00+00:00"'


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$: NaN"),
        ({"items": [1, 2, 3, {"price": math.inf}]}, "$.items[3].price: NaN and infinities"),
        ([None, -math.inf], "$[1]: NaN"),
        ({"n": 2**64}, "$.n: an integer beyond 64 bits"),
        ({"n": -(2**63) - 1}, "$.n: an integer beyond 64 bits"),
        ({"a": "x\ud800"}, "$.a: a lone surrogate"),
        ({"a": {"\udc00": 1}}, "$.a: a key holds a lone surrogate"),
        ({1: 1}, "$: keys must be str, and one is int"),
        ({"a": {None: 1}}, "$.a: keys must be str, and one is NoneType"),
        ({"a": [{Level.HIGH: 1}]}, "$.a[0]: keys must be str, and one is Level"),
        ({Name.ANNA: 1}, "$: keys must be str, and one is Name"),
        ({"a b": {"é": 1j}}, '$["a b"]["é"]: a complex number'),
        ({"o": object()}, "$.o: type object cannot be stored"),
        ({"t": datetime(2026, 1, 1)}, "$.t: a datetime without a time zone"),
        ({"d": Decimal("NaN")}, "$.d: a Decimal that is no finite number"),
        ({"d": Decimal("-Infinity")}, "$.d: a Decimal that is no finite number"),
        ([Odd.BAD], "$[0]: NaN"),
        (Line("\ud800", Decimal(1)), "$.sku: a lone surrogate"),
        (Line("a", Decimal(1), Line("b", Decimal("sNaN"))), "$.parent.price: a Decimal"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: object, path: str) -> None:
    assert refused(value).startswith(path)


def test_a_refusal_never_shows_the_value() -> None:
    class Canary:
        def __repr__(self) -> str:
            return "canary-7781"

    for value in (2**70 + 7781, "canary-7781\ud800", Canary(), {("canary-7781",): 1}):
        detail = refused({"a": value})
        assert "7781" not in detail


def test_nesting_is_allowed_to_100_levels() -> None:
    assert encode(nested(100)) == b"[" * 100 + b"0" + b"]" * 100
    assert refused(nested(101)).endswith("[0]: nested deeper than 100 levels")
    assert "nested deeper" in refused(nested(5000))
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"k": deep}
    assert "$.k.k" in refused(deep)


def test_many_shallow_containers_are_no_deep_nesting() -> None:
    assert decode(encode([{"a": []}] * 500)) == [{"a": []}] * 500


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = [1]
    loop.append({"a": loop})
    assert refused(loop) == "$: the value contains itself"
    line = Line("a", Decimal(1))
    line.parent = line
    assert refused(line) == "$: the value contains itself"


def test_an_equal_value_twice_is_no_loop() -> None:
    shared = {"a": [1]}
    assert encode([shared, shared, None]) == b'[{"a":[1]},{"a":[1]},null]'


def test_a_value_whose_own_code_raises_is_refused() -> None:
    @dataclass
    class Broken:
        a: int

        def __getattribute__(self, name: str) -> object:
            if name == "a":
                raise RuntimeError("canary")
            return object.__getattribute__(self, name)

    assert refused([Broken(1)]) == "$[0]: a Broken could not be turned into JSON: RuntimeError"


# -- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"18446744073709551616", 2**64),
        (b"-123456789012345678901234567890", -123456789012345678901234567890),
        (b"1" * 4000, int("1" * 4000)),
        (b'{"a":1,"\\u0061":2}', {"a": 2}),
        (b"0.1", 0.1),
        (b"1e-400", 0.0),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b' {"a" : 1}\r\n', {"a": 1}),
        (b'["-0", "a -0,", "\\"-0"]', ["-0", "a -0,", '"-0']),
    ],
)
def test_decoding_never_rounds(raw: bytes, value: object) -> None:
    found = decode(raw)
    assert found == value
    assert type(found) is type(value)


def test_minus_zero_is_a_float() -> None:
    found = decode(b'{"a":-0,"b":[-0,"-0"],"c":-0.0}')
    assert [str(v) for v in (found["a"], found["b"][0], found["c"])] == ["-0.0"] * 3
    assert found["b"][1] == "-0"
    assert str(decode(b"-0")) == "-0.0"


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"nul", b"NaN", b"Infinity", b"01", b"1.", b"-", b"[1,]", b"1 2", b'"a\x01"', b'"\\x"', b"\xff"),
        *(b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\\ud800"', b'{"a":"\\udc00x"}', b"\xef\xbb\xbf1"),
        *(b"1e400", b'{"a":[-1e999]}', b"1" * 5000, b"[" * 20_000 + b"]" * 20_000, '"a"'.encode("utf-16")),
    ],
)
def test_what_python_cannot_hold_is_a_typed_error(raw: bytes) -> None:
    assert unreadable(raw).startswith("$")


def test_a_number_beyond_float_is_named_with_its_place() -> None:
    assert unreadable(b'{"a":[1e400]}') == "$[...][0]: a number is beyond what a float can hold"


class Order(TypedDict):
    id: int
    tags: list[str]


@dataclass
class Item:
    price: Decimal
    at: datetime
    ref: UUID
    colour: Colour = Colour.RED
    weight: float = 0.0


def test_typed_decoding() -> None:
    item = Item(Decimal("1.10"), datetime(2026, 1, 2, tzinfo=UTC), UUID(int=1), Colour.RED, 2.5)
    assert decode_as(encode(item), Item) == item
    assert decode_as(b'{"id":1,"tags":["a"]}', Order) == {"id": 1, "tags": ["a"]}
    assert decode_as(b"[1,2]", tuple[int, int]) == (1, 2)
    assert decode_as(b"18446744073709551616", int) == 2**64
    assert decode_as(b"0.1", Decimal) == Decimal("0.1")
    assert str(decode_as(b"-0", object)) == "-0.0"
    assert decode_as(b"1", cast(Any, Annotated[int, ["metadata that has no hash"]])) == 1


@pytest.mark.parametrize(
    ("raw", "kind", "detail"),
    [
        (b'{"id":"7781"}', Order, "$.id: Expected `int`, got `str`, decoding Order"),
        (b'{"id":1}', Order, "$: Object missing required field `tags`, decoding Order"),
        (b'["red","canary-7781"]', list[Colour], "$[1]: the value does not fit, decoding list["),
        (b'{"id":1e999,"tags":[]}', Order, "$.id: a number is beyond"),
        (b"{", Order, "$: not JSON"),
        (b'"canary"', int, "$: Expected `int`, got `str`, decoding int"),
    ],
)
def test_a_typed_refusal_names_path_and_type_and_no_value(raw: bytes, kind: Any, detail: str) -> None:
    with pytest.raises(Serialization) as caught:
        decode_as(raw, kind)
    assert caught.value.detail.startswith(detail)
    assert "7781" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("raw", "kind", "path"),
    [
        (b"9007199254740993", float, "$"),
        (b'[{"price":"1","at":"2026-01-01T00:00:00Z","ref":"' + str(UUID(int=1)).encode() + b'","weight":'
         b"18446744073709551617}]", list[Item], "$[0].weight"),
        (b'{"a":[1,9007199254740993]}', dict[str, list[float]], "$.a[1]"),
        (b'["2026-01-01T00:00:00.123456789Z"]', list[datetime], "$[0]"),
        (b'{"a":"12:00:00.1234567"}', dict[str, time], "$.a"),
        (b'"PT0.1234567S"', timedelta, "$"),
    ],
)  # fmt: skip
def test_a_type_that_would_round_is_refused(raw: bytes, kind: Any, path: str) -> None:
    with pytest.raises(Serialization) as caught:
        decode_as(raw, kind)
    assert caught.value.detail.startswith(f"{path}: ")
    assert "would be rounded" in caught.value.detail


def test_a_type_that_rounds_nothing_is_taken() -> None:
    assert decode_as(b"9007199254740992", float) == 2.0**53
    assert decode_as(b'"2026-01-01T00:00:00.123456000Z"', datetime).microsecond == 123456
    assert decode_as(b'{"1":2.123456789}', dict[int, float]) == {1: 2.123456789}


class Plain:
    """A class of no kind that JSON knows."""


def test_a_class_that_is_no_data_does_not_decode() -> None:
    with pytest.raises(Serialization, match="Expected `Plain`, got `dict`"):
        decode_as(b"{}", Plain)


# -- both ways ------------------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4), max_leaves=12
)
broken = st.sampled_from([math.nan, math.inf, 2**64, -(2**63) - 1, "\ud800", 1j, {1: 2}, {None: 2}, object()])


def typed(value: object) -> object:
    """A form in which 1, 1.0 and True, 0.0 and -0.0 differ."""
    if isinstance(value, dict):
        return {key: typed(member) for key, member in value.items()}
    return [typed(v) for v in value] if isinstance(value, list) else (type(value), repr(value))


@given(values)
def test_what_goes_in_comes_out(value: object) -> None:
    raw = encode(value)
    assert typed(decode(raw)) == typed(value)
    assert typed(json.loads(raw)) == typed(value)
    if isinstance(value, dict):
        assert list(decode(raw)) == list(value)


@given(values, broken, st.data())
def test_one_bad_value_anywhere_is_found(value: object, bad: object, data: st.DataObject) -> None:
    path = "$"
    wrapped = bad
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            wrapped, path = [value, wrapped], path.replace("$", "$[1]", 1)
        else:
            wrapped, path = {"a": value, "k": wrapped}, path.replace("$", "$.k", 1)
    assert refused(wrapped).startswith(f"{path}: ")


@given(st.binary(max_size=30))
def test_any_bytes_decode_or_raise_the_typed_error(raw: bytes) -> None:
    try:
        value = decode(raw)
    except Serialization:
        return
    assert value == json.loads(raw)


@given(st.text(alphabet='-0.eE1, []"\\', max_size=12))
def test_numbers_decode_as_the_plain_reader_reads_them(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        unreadable(text.encode())
        return
    if "Infinity" not in str(json.dumps(expected)):
        assert decode(text.encode()) == expected
