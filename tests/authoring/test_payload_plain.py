"""Dataclasses written from their own dict, and types whose values no decoding rounds: the short ways give what the long
ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pytest

from perdure.errors import Serialization
from perdure.payload import decode_as, encode, reader


@dataclass
class Line:
    item: str
    amount: int
    price: Any = None


@dataclass
class Marked(Line):
    _mark: int = 0

    @cached_property
    def total(self) -> int:
        return self.amount * 2


@dataclass
class Overridden:
    item: str
    amount: int

    @property
    def shown(self) -> str:
        return "shown"


class Descending:
    """A data descriptor: the value that is read is not the one in the dict."""

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return -owner.__dict__["amount"] if owner is not None else 1

    def __set__(self, owner: Any, value: int) -> None:
        owner.__dict__["amount"] = value


@dataclass
class Described:
    amount: int = Descending()  # type: ignore[assignment]  # a descriptor stands for its values


@dataclass
class Read:
    item: str

    def __getattribute__(self, name: str) -> Any:
        return "read" if name == "item" else object.__getattribute__(self, name)


@dataclass
class Dicted:
    item: str
    __dict__ = {"item": "another"}


@dataclass(slots=True)
class Slotted:
    item: str
    amount: int


@dataclass
class BesideSlots(Slotted):
    price: int = 1


def test_what_a_dataclass_holds_beside_its_fields_is_not_written() -> None:
    line = Marked("a", 2, _mark=7)
    before = encode(line)
    assert line.total == 4
    line.__dict__["note"] = "x"
    assert before == encode(line) == b'{"item":"a","amount":2,"price":null,"_mark":7}'


def test_fields_are_written_in_their_order_whatever_that_of_the_dict() -> None:
    line = Line("a", 2)
    del line.item
    line.item = "b"
    assert [*vars(line)] == ["amount", "price", "item"]
    assert encode(line) == b'{"item":"b","amount":2,"price":null}' == encode([line])[1:-1]


def test_a_field_that_is_gone_is_refused() -> None:
    line = Line("a", 2)
    del line.item, line.amount
    with pytest.raises(Serialization):
        encode(line)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (Overridden("a", 1), b'{"item":"a","amount":1}'),
        (Described(3), b'{"amount":-3}'),
        (Read("a"), b'{"item":"read"}'),
        (Slotted("a", 1), b'{"item":"a","amount":1}'),
        (BesideSlots("a", 1), b'{"item":"a","amount":1,"price":1}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fields_are_written_as_they_are_read(value: object, raw: bytes) -> None:
    assert encode(value) == raw
    assert encode([value]) == b"[" + raw + b"]"


def test_a_dict_of_another_meaning_is_not_taken_for_the_fields() -> None:
    assert encode([Dicted("a")])[1:-1] == encode(Dicted("a")) == b'{"item":"a"}'


@pytest.mark.parametrize("value", [float("nan"), 2**64, "\ud800", {1: 2}, {2}, datetime(2026, 1, 1)])
def test_the_values_of_fields_obey_the_rules(value: object) -> None:
    if isinstance(value, set):
        assert encode(Line("a", 1, value)) == b'{"item":"a","amount":1,"price":[2]}'
        return
    with pytest.raises(Serialization, match=r"\$\.price"):
        encode(Line("a", 1, value))


@dataclass
class Node:
    """Holds itself, and a float only further down."""

    name: str
    children: list[Node] = field(default_factory=list)
    weights: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass
class Timed:
    at: datetime | None = None


def test_what_would_be_rounded_is_found_wherever_it_stands() -> None:
    long = b"12345678901234567"
    raw = b'{"name":"a","children":[{"name":"b","weights":{"w":[' + long + b"]}}]}"
    for read in (reader(Node), lambda raw: decode_as(raw, Node)):
        with pytest.raises(Serialization, match=r"children\[0\]\.weights\.w\[0\]: an integer would be rounded"):
            read(raw)
    with pytest.raises(Serialization, match="rounded to microseconds"):
        reader(Timed)(b'{"at":"2026-01-01T00:00:00.000000001Z"}')
    assert reader(Timed)(b'{"at":"2026-01-01T00:00:00Z"}') == Timed(datetime(2026, 1, 1, tzinfo=UTC))


def test_a_reader_of_exact_values_refuses_as_any_other() -> None:
    raw = b'{"name":"a","children":[{"name":12345678901234567}]}'
    with pytest.raises(Serialization) as refused:
        reader(Tree)(raw)
    with pytest.raises(Serialization) as other:
        decode_as(raw, Tree)
    assert str(refused.value) == str(other.value)
    assert reader(Tree)(b'{"name":"a","children":[{"name":"b"}]}') == Tree("a", [Tree("b")])
    assert reader(int)(b"12345678901234567") == 12345678901234567
    assert repr(reader(Any)(b"-0")) == "-0.0"
