"""Every type a payload may have goes out and comes back equal, of its own class (issue "Payloads", R29, R32)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Serialization
from perdure.flow import Flow
from perdure.payload import decode, decode_as, decoder, encode

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    ANNA = "anna"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    at: datetime | None = None


class Address(TypedDict):
    street: str
    code: NotRequired[int]


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    raw: bytes = b""
    colour: Colour | None = None


@dataclass
class Order:
    id: UUID
    placed: datetime
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Point] = field(default_factory=dict)
    patience: timedelta = timedelta(0)
    closes: time | None = None
    tags: frozenset[str] = frozenset()
    address: Address | None = None


@dataclass
class Box(Generic[T]):
    value: T
    others: list[T] = field(default_factory=list)


class Pair(TypedDict, Generic[T]):
    left: T
    right: T


class Cell(NamedTuple, Generic[T]):
    value: T


class Cat(msgspec.Struct, tag=True, frozen=True):
    lives: int


class Dog(msgspec.Struct, tag=True, rename="camel", frozen=True):
    good_boy: bool
    born: date | None = None


class Short(msgspec.Struct, array_like=True, tag="s", frozen=True):
    a: int
    b: str = ""


class Sparse(msgspec.Struct, omit_defaults=True):
    a: int = 0
    b: list[int] = []
    c: int | msgspec.UnsetType = msgspec.UNSET


class Customer(pydantic.BaseModel):
    name: str
    born: date | None = None
    since: datetime | None = None
    patience: timedelta = timedelta(0)
    limit: Decimal = Decimal(0)
    marks: set[int] = set()
    colour: Colour = Colour.RED
    pet: Annotated[Meow | Woof, pydantic.Field(discriminator="kind")] | None = None


class Meow(pydantic.BaseModel):
    kind: Literal["meow"] = "meow"
    loud: bool = False


class Woof(pydantic.BaseModel):
    kind: Literal["woof"] = "woof"


class Page(pydantic.BaseModel, Generic[T]):
    model_config = pydantic.ConfigDict(strict=True)
    items: tuple[T, ...]
    next_page: int = pydantic.Field(default=0, alias="nextPage")


Customer.model_rebuild()


@dataclass
class Card:
    number: str
    until: date | None = None


@dataclass
class Cash:
    amount: Decimal


@dataclass
class Voucher:
    code: str
    kind: Literal["voucher"] = "voucher"


@dataclass
class Gift:
    code: str
    kind: Literal["gift"] = "gift"


class Transfer(TypedDict):
    iban: str


@dataclass
class Payment:
    by: Card | Cash | Transfer | None
    parts: list[Card | Cash] = field(default_factory=list)
    before: Payment | None = None


PLACES = [ZoneInfo("Europe/Berlin"), ZoneInfo("America/St_Johns"), ZoneInfo("Africa/Monrovia")]
minutes = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
datetimes = st.datetimes(datetime(2, 1, 1), datetime(9999, 12, 30), timezones=minutes)
times = st.times() | st.times(timezones=minutes)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=8)
ints = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)

lines = st.builds(Line, texts, decimals, st.binary(max_size=9), st.none() | st.sampled_from(Colour))
points = st.builds(Point, ints, st.none() | datetimes)
addresses: st.SearchStrategy[Any] = st.fixed_dictionaries({"street": texts}, optional={"code": ints})
orders = st.builds(
    Order,
    st.uuids(),
    datetimes,
    st.lists(lines, max_size=2),
    st.dictionaries(texts, points, max_size=2),
    st.timedeltas(),
    st.none() | times,
    st.frozensets(texts, max_size=3),
    st.none() | addresses,
)
customers = st.builds(
    Customer,
    name=texts,
    born=st.none() | st.dates(),
    since=st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=minutes),
    patience=st.timedeltas(timedelta(-1000), timedelta(1000)),
    limit=decimals,
    marks=st.sets(ints, max_size=3),
    colour=st.sampled_from(Colour),
    pet=st.none() | st.builds(Meow, loud=st.booleans()) | st.builds(Woof),
)
dogs = st.builds(Dog, st.booleans(), st.none() | st.dates())

cards = st.builds(Card, texts, st.none() | st.dates())
cashes = st.builds(Cash, decimals)
transfers: st.SearchStrategy[Any] = st.fixed_dictionaries({"iban": texts})
payments = st.recursive(
    st.builds(Payment, st.none() | cards | cashes | transfers, st.lists(cards | cashes, max_size=2)),
    lambda inner: st.builds(Payment, cards, st.just([]), inner),
    max_leaves=2,
)

CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (None, st.none()),
    (bool, st.booleans()),
    (int, ints),
    (float, floats),
    (str, texts),
    (bytes, st.binary(max_size=20)),
    (bytearray, st.binary(max_size=20).map(bytearray)),
    (UUID, st.uuids()),
    (Decimal, decimals),
    (date, st.dates()),
    (time, times),
    (datetime, datetimes),
    (timedelta, st.timedeltas()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Word, st.sampled_from(Word)),
    (Rights, st.sampled_from([Rights.READ, Rights.WRITE, Rights.READ | Rights.WRITE])),
    (Literal["a", 1] | None, st.sampled_from(["a", 1, None])),
    (Point, points),
    (Address, addresses),
    (Line, lines),
    (Order, orders),
    (Box[int], st.builds(Box, ints, st.lists(ints, max_size=2))),
    (Box[Line], st.builds(Box, lines, st.lists(lines, max_size=2))),
    (Pair[Colour], st.fixed_dictionaries({"left": st.sampled_from(Colour), "right": st.sampled_from(Colour)})),
    (Cell[Decimal], st.builds(Cell, decimals)),
    (Cat | Dog, st.builds(Cat, ints) | dogs),
    (list[Cat | Dog | None], st.lists(st.builds(Cat, ints) | dogs | st.none(), max_size=3)),
    (Short, st.builds(Short, ints, texts)),
    (Sparse, st.builds(Sparse, a=ints, b=st.lists(ints, max_size=2))),
    (Customer, customers),
    (Customer | None, st.none() | customers),
    (list[Customer], st.lists(customers, max_size=2)),
    (Box[Customer], st.builds(Box, customers, st.lists(customers, max_size=1))),
    (Page[int], st.builds(Page[int], items=st.lists(ints, max_size=3).map(tuple), nextPage=ints)),
    (Page[Meow], st.builds(Page[Meow], items=st.lists(st.builds(Meow), max_size=2).map(tuple))),
    (list[datetime], st.lists(datetimes, max_size=3)),
    (dict[str, Line], st.dictionaries(texts, lines, max_size=2)),
    (tuple[int, str, datetime], st.tuples(ints, texts, datetimes)),
    (tuple[Decimal, ...], st.lists(decimals, max_size=3).map(tuple)),
    (set[UUID], st.sets(st.uuids(), max_size=3)),
    (frozenset[Point], st.frozensets(points, max_size=3)),
    (int | str, ints | texts),
    (Line | list[int] | None, st.none() | lines | st.lists(ints, max_size=2)),
    (UUID | int | None, st.uuids() | ints | st.none()),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 9)),
    (Card | Cash, cards | cashes),
    (Card | Cash | str | int | None, cards | cashes | texts | ints | st.none()),
    (list[Card | Cash], st.lists(cards | cashes, max_size=3)),
    (dict[str, Card | Transfer | None], st.dictionaries(texts, cards | transfers | st.none(), max_size=3)),
    (tuple[Card | Cash, ...], st.lists(cards | cashes, max_size=2).map(tuple)),
    (Voucher | Gift, st.builds(Voucher, texts) | st.builds(Gift, texts)),
    (Meow | Woof, st.builds(Meow, loud=st.booleans()) | st.builds(Woof)),
    (Customer | Card, customers | cards),
    (Payment, payments),
    (Box[Payment], st.builds(Box, payments)),
    (Payment | Customer, payments | customers),
    (Cat | Dog | Card, st.builds(Cat, ints) | dogs | cards),
]


@pytest.mark.parametrize(
    ("kind", "drawn"), CASES, ids=lambda case: str(case) if not isinstance(case, st.SearchStrategy) else ""
)
def test_what_goes_out_comes_back(kind: Any, drawn: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=20)
    @given(drawn)
    def comes_back(value: Any) -> None:
        raw = encode(value)
        found = decode_as(raw, kind)
        assert found == value
        assert type(found) is type(value)
        assert encode(found) == raw

    comes_back()


# -- the stored form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (b"\x00\xff", b'"AP8="'),
        (bytearray(b"a"), b'"YQ=="'),
        (memoryview(b"a"), b'"YQ=="'),
        (time(1, 2, 3), b'"01:02:03"'),
        (timedelta(days=1, microseconds=1), b'"P1DT0.000001S"'),
        ({3, 20, 1}, b"[1,20,3]"),
        (frozenset({"b", "a"}), b'["a","b"]'),
        (Dog(True), b'{"type":"Dog","goodBoy":true,"born":null}'),
        (Short(1), b'["s",1,""]'),
        (Sparse(), b"{}"),
        (Sparse(b=[1], c=3), b'{"b":[1],"c":3}'),
        (Page[int](items=(1,), nextPage=2), b'{"items":[1],"nextPage":2}'),
    ],
)
def test_the_stored_form(value: object, raw: bytes) -> None:
    assert encode(value) == raw


def fresh(code: str, seed: str = "0") -> str:
    """What a new interpreter prints."""
    env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, text=True).stdout


def test_a_set_is_stored_alike_in_every_process() -> None:
    code = "from perdure.payload import encode; print(encode({'a','b','c','d','e',frozenset({'x','y'})}))"
    assert len({fresh(code, seed) for seed in ("1", "2")}) == 1


@given(st.datetimes(datetime(2, 1, 1), datetime(9999, 12, 30), timezones=st.sampled_from(PLACES)))
def test_a_zone_becomes_its_offset_and_the_instant_stays(value: datetime) -> None:
    assert decode_as(encode(value), datetime).astimezone(UTC) == value.astimezone(UTC)


# -- what is refused ------------------------------------------------------------------------------------------------


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class Blob(pydantic.BaseModel):
    data: bytes


NAIVE = datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ({"at": [NAIVE]}, "$.at[0]: a datetime without a time zone names no instant"),
        (Point(1, NAIVE), "$[1]: a datetime without a time zone"),
        ([Customer(name="x", since=NAIVE)], "$[0].since: a datetime without a time zone"),
        ({"s": Secret(password=pydantic.SecretStr("canary"))}, "$.s.password: a SecretStr would be stored masked"),
        ({"b": Blob(data=b"\xff")}, "$.b: a Blob could not be turned into JSON: UnicodeDecodeError"),
        ({"c": Cat(2**70)}, "$.c.lives: an integer beyond 64 bits"),
        (Page[float](items=(float("nan"),)), "$.items[0]: NaN"),
        (Page[int](items=(2**70,)), "$.items[0]: an integer beyond 64 bits"),
        ({"s": {UUID(int=1), str(UUID(int=1))}}, "$.s: two members of a set have the same JSON"),
        ({"s": {float("nan")}}, "$.s[0]: NaN"),
        ({"t": time(12, tzinfo=ZoneInfo("Europe/Berlin"))}, "$.t: the zone of a time must be a fixed offset"),
        (time(12, tzinfo=timezone(timedelta(seconds=1))), "$: the zone of a time must be a fixed offset"),
        ({"o": Line("a", Decimal("NaN"))}, "$.o.price: a Decimal that is no finite number"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_path_and_reason(value: object, detail: str) -> None:
    with pytest.raises(Serialization) as caught:
        encode(value)
    assert caught.value.detail.startswith(detail)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "kind", "detail"),
    [
        (b'{"items":[1,"canary"]}', Page[int], "$.items[1]: does not fit Page[int] (int_type)"),
        (b'[{"name":1}]', list[Customer], "$[0].name: does not fit Customer (string_type)"),
        (b'{"sku":"a","price":"canary"}', Line, "$.price: "),
        (b'{"id":1}', Order, "$.id: "),
        (b'"2026-01-01T00:00:00"', datetime, "$: a datetime without a time zone"),
        (b'{"a":["2026-01-01T10:20:30.5"]}', dict[str, list[datetime]], "$.a[0]: a datetime without a time zone"),
        (b'[1,"2026-01-01 00:00:00"]', Point, "$[1]: a datetime without a time zone"),
        (b'{"name":"x","since":"2026-01-01T00:00:00"}', Customer, "$.since: a datetime without a time zone"),
        (b'["2026-01-01T00:00:00"]', set[datetime], "$: a datetime without a time zone"),
        (b'[9007199254740993]', set[float], "$[0]: an integer would be rounded"),
        (b'{"value":9007199254740993,"others":[]}', Box[float], "$.value: an integer would be rounded"),
        (b'{"a":{"x":[1]},"b":{"y":[1,"canary"]}}', dict[str, dict[str, list[int]]], "$.b.y[1]: Expected `int`, got `str`"),
        (b'{"a b":{"name":1}}', dict[str, Customer], '$["a b"].name: does not fit Customer'),
        (b'{"value":{"a":1,"b":1.5},"others":[]}', Box[dict[str, int]], "$.value.b: Expected `int`, got `float`"),
        (b'"P1X"', timedelta, "$: "),
        (b'"!"', bytes, "$: Invalid base64"),
        (b'"green"', Colour, "$: the value does not fit, decoding Colour"),
        (b'{"type":"Bird"}', Cat | Dog, "$.type: the value does not fit"),
        (b'{"by":{"number":7}}', Payment, "$.by.number: Expected `str`, got `int`"),
        (b'{"by":null,"parts":[{"amount":"1"},{"amount":"canary"}]}', Payment, "$.parts[1].amount: "),
        (b'{"by":{}}', Payment, "$.by: does not fit any of Card, Cash, Transfer"),
        (b'{"parts":[]}', Payment, "$: Object missing required field `by`"),
        (b'{"a":{"number":"1","amount":"1"}}', dict[str, Card | Cash], "$.a: does not fit exactly one of Card, Cash"),
        (b'[[{"number":"1","until":"canary"}]]', list[list[Card | Cash]], "$[0][0].until: "),
        (b'7', Card | Cash, "$: Expected `object`, got `int`"),
        (b'{"kind":"other","code":"x"}', Voucher | Gift, "$: does not fit any of Voucher, Gift"),
        (b'{"by":{"number":"1"},"before":{"by":null,"before":{"by":5}}}', Payment, "$.before.before.by: "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_path_and_type(raw: bytes, kind: Any, detail: str) -> None:
    with pytest.raises(Serialization) as caught:
        decode_as(raw, kind)
    assert caught.value.detail.startswith(detail)
    assert "canary" not in str(caught.value)


@dataclass
class Person:
    number: str
    name: str


@dataclass
class Holder:
    who: list[Card | Person]


class Plain(pydantic.BaseModel):
    name: str


class Mixed(Enum):
    A = 1.5


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            Card | Person,
            r"Card \| Person is ambiguous: Person has every key that Card needs\. Give each a field .*Literal",
        ),
        (Card | Mapping[str, int] | Cash, "is ambiguous: any object is a dict"),
        (Cat | Dog | Sparse | Card, "has every key that Sparse needs"),
        (Card | dict[str, int] | Cash, "is ambiguous: any object is a dict"),
        (Holder, r"Card \| Person is ambiguous"),
        (bytes | str, r"bytes \| str is ambiguous"),
        (datetime | str | None, "is ambiguous"),
        (Box[Card | Person], "is ambiguous"),
        (list[Customer | Plain], "is ambiguous"),
        (Mixed, "JSON cannot be decoded to .*Mixed.*: Enums must contain either all str or all int values"),
    ],
)
def test_an_annotation_that_json_cannot_decide_is_refused(kind: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        decoder(kind)


def test_a_step_with_an_ambiguous_parameter_is_refused_at_registration() -> None:
    def pay(by: Card | Person) -> None: ...

    with pytest.raises(TypeError, match=r"parameter 'by' of step 'pay' has a type .*ambiguous.*Literal"):
        Flow().step(pay)


def test_pydantic_is_loaded_only_by_those_who_use_it() -> None:
    code = "import sys, perdure; perdure.Flow, perdure.FlowEngine; print('pydantic' in sys.modules)"
    assert fresh(code).strip() == "False"


def test_bytes_within_any_json_come_back_as_text() -> None:
    assert decode(encode({"a": b"x"})) == {"a": "eA=="}
