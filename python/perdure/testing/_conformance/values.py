"""JSON that keeps the spelling of its numbers, and the equality of spec 1.7 and R29 over it.

Written for the runner alone: what it expects must not come from a kernel it judges.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Self

__all__ = ["Spelled", "dumps", "equal", "loads", "plain"]

_U64_MAX: Final = 2**64 - 1
_I64_MIN: Final = -(2**63)
_INT_DIGITS: Final = 4000  # Python refuses to convert more than 4,300
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Spelled(float):
    """A number that is no 64-bit integer, with its spelling."""

    lexeme: str

    def __new__(cls, lexeme: str) -> Self:
        number = super().__new__(cls, "nan" if len(lexeme) > _INT_DIGITS else lexeme)
        number.lexeme = lexeme
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]  # float's own would lose the spelling in a copy
        return (self.lexeme,)

    def whole(self) -> bool:
        """An integer spelling, `-0` aside, which is a float."""
        return self.lexeme != "-0" and not any(mark in self.lexeme for mark in ".eE")


def _integer(lexeme: str) -> int | Spelled:
    if lexeme == "-0" or len(lexeme) > _INT_DIGITS:
        return Spelled(lexeme)
    return int(lexeme)


def loads(text: str) -> Any:
    """Parses JSON; integers as int, every other number as `Spelled`. Raises `ValueError`."""
    return json.loads(text, parse_float=Spelled, parse_int=_integer, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Any) -> str:
    """Compact JSON text, keys in their order, numbers as they were spelled."""
    if isinstance(value, Spelled):
        return value.lexeme
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return _SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", text)
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(key)}:{dumps(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)


def plain(value: Any) -> Any:
    """The value as ordinary Python numbers, for a step to return."""
    if isinstance(value, Spelled):
        return float(value)
    if isinstance(value, dict):
        return {key: plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return value


def equal(left: Any, right: Any) -> bool:
    """Whether two values of `loads` are the same JSON (spec 1.7, R29)."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if _is_number(left) and _is_number(right):
        return _same_number(left, right)
    return type(left) is type(right) and bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_number(left: int | Spelled, right: int | Spelled) -> bool:
    if _exact(left) or _exact(right):
        return _lexeme(left) == _lexeme(right)
    return isinstance(left, Spelled) == isinstance(right, Spelled) and left == right


def _exact(number: int | Spelled) -> bool:
    """Equal to its own spelling only: an integer beyond 64 bits, a float beyond the largest."""
    if isinstance(number, Spelled):
        return number.whole() or number in (float("inf"), float("-inf"))
    return not _I64_MIN <= number <= _U64_MAX


def _lexeme(number: int | Spelled) -> str:
    return number.lexeme if isinstance(number, Spelled) else str(number)
