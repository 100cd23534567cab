"""Payloads: Python values to JSON bytes and back, exactly or not at all.

What JSON cannot hold without loss is refused here, before anything is written, with the rule and the JSON path
(`$.items[3].price`) and never the value (spec/README "Payloads are exact", R27, R30). Accepted are the JSON types,
tuples, dataclasses, enums (by value), `UUID`, `Decimal`, `date`, aware `datetime` and pydantic models; keys keep their
order.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec
import orjson

from perdure.errors import Serialization

__all__ = ["decode", "decode_as", "decoder", "encode", "key_path", "refusal"]

T = TypeVar("T")

MAX_DEPTH: Final = 100
"""Levels of arrays and objects a new payload may nest (R30)."""
MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**64 - 1

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encode(value: object) -> bytes:
    """The JSON bytes of a value, keys in insertion order. Raises `Serialization("payload")` with rule and path."""
    try:
        raw = orjson.dumps(value, default=_convert, option=_OPTIONS)
    except orjson.JSONEncodeError:
        _check(value)
        raise refusal("$", f"type {_name(value)} cannot be stored as JSON") from None
    # NaN and infinities come out as null and the depth limit is ours: only then a look at every value is needed.
    if b"null" in raw or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check(value)
    return raw


def refusal(path: str, reason: str) -> Serialization:
    """The typed error of a payload refused at the door."""
    return Serialization("payload", detail=f"{path}: {reason}")


def key_path(key: object) -> str:
    """One object key as a piece of a JSON path."""
    text = str(key)
    return f".{text}" if _PLAIN_KEY.fullmatch(text) else f"[{msgspec.json.encode(_whole(text)).decode()}]"


def _whole(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _name(value: object) -> str:
    return type(value).__name__


# -- out ----------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """A refusal on its way up; each level prepends its piece of the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pieces: list[str] = []
        self.parents: list[int] = []


def _convert(value: object) -> object:
    """What orjson does not write by itself, one level turned into what it does. Also the hook of orjson."""
    convert = _CONVERSIONS.get(type(value))
    if convert is not None:
        return convert(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for base, convert in _BASES:
        if isinstance(value, base):
            return convert(value)
    if _is_model(type(value)):
        return cast(Any, value).model_dump(by_alias=True)
    raise _Refused(_HINTS.get(type(value), f"type {_name(value)} cannot be stored as JSON"))


def _decimal(value: Any) -> str:
    if not value.is_finite():
        raise _Refused("a Decimal that is no finite number cannot be stored")
    return Decimal.__str__(value)


def _instant(value: Any) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise _Refused("a datetime without a time zone names no instant; use datetime.now(UTC) or give a tzinfo")
    if offset % timedelta(minutes=1):
        value = value.astimezone(UTC)  # RFC 3339 offsets have no seconds
    return cast(str, value.isoformat())


_CONVERSIONS: Final[dict[type, Callable[[Any], object]]] = {
    Decimal: _decimal,
    datetime: _instant,
    date: date.isoformat,
    UUID: str,
}
_BASES: Final[tuple[tuple[type, Callable[[Any], object]], ...]] = (
    (str, str.__str__),
    (int, int.__index__),
    (float, float.__float__),
    (dict, dict),
    (tuple, list),
    (list, list),
    (datetime, _instant),
    (date, date.isoformat),
    (Decimal, _decimal),
    (UUID, UUID.__str__),
)
_HINTS: Final[dict[type, str]] = {
    bytes: "bytes cannot be stored as JSON; encode them as text (base64) or keep a reference",
    set: "a set has no order and cannot be stored; use a sorted list",
    frozenset: "a frozenset has no order and cannot be stored; use a sorted list",
    complex: "a complex number cannot be stored as JSON; store its two parts",
    timedelta: "a timedelta cannot be stored as JSON; store its seconds or milliseconds as a number",
}


def _is_model(kind: type) -> bool:
    """Whether this is a pydantic model class; pydantic is never imported for the question."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def _check(value: object) -> None:
    """Looks at every value; raises the typed refusal of the first one that JSON cannot hold exactly."""
    try:
        _walk(value, 0)
    except _Refused as refused:
        path = "$" + "".join(reversed(refused.pieces))
        reason = refused.reason
        if len(set(refused.parents)) < len(refused.parents):
            path, reason = "$", "the value contains itself"
        raise refusal(path, reason) from None


def _walk(value: object, depth: int) -> None:
    kind = type(value)
    if kind is str:
        if not cast(str, value).isascii() and _SURROGATE.search(cast(str, value)):
            raise _Refused("a lone surrogate is no character and cannot be stored as UTF-8")
    elif kind is int:
        if not MIN_INT <= cast(int, value) <= MAX_INT:
            raise _Refused("an integer beyond 64 bits cannot be stored exactly; store it as a string")
    elif kind is float:
        if not math.isfinite(cast(float, value)):
            raise _Refused("NaN and infinities cannot be stored as JSON; use None or a string")
    elif kind is dict:
        _walk_object(cast("dict[object, object]", value), depth + 1)
    elif kind is list or kind is tuple:
        _walk_array(cast("list[object]", value), depth + 1)
    elif kind is not bool and value is not None:
        _walk_converted(value, depth)


def _walk_object(value: dict[object, object], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
    for key, member in value.items():
        if type(key) is not str:
            raise _Refused(f"keys must be str, and one is {_name(key)}")
        if not key.isascii() and _SURROGATE.search(key):
            raise _Refused("a key holds a lone surrogate, which cannot be stored as UTF-8")
        try:
            _walk(member, depth)
        except _Refused as refused:
            _trace(refused, key_path(key), value)
            raise


def _walk_array(value: list[object], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
    for index, member in enumerate(value):
        try:
            _walk(member, depth)
        except _Refused as refused:
            _trace(refused, f"[{index}]", value)
            raise


def _walk_converted(value: object, depth: int) -> None:
    if depth > 2 * MAX_DEPTH:
        raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
    try:
        converted = _convert(value)
    except _Refused:
        raise
    except Exception as error:  # a user's property, serialiser or tzinfo may raise anything
        raise _Refused(f"a {_name(value)} could not be turned into JSON: {_name(error)}") from error
    # An enum whose value is an enum, and the like, add no level of their own: the counter still ends such chains.
    try:
        _walk(converted, depth + (0 if isinstance(converted, dict | list) else 1))
    except _Refused as refused:
        refused.parents.append(id(value))
        raise


def _trace(refused: _Refused, piece: str, parent: object) -> None:
    refused.pieces.append(piece)
    refused.parents.append(id(parent))


# -- in -----------------------------------------------------------------------------------------------------------

_MAYBE_MINUS_ZERO: Final = re.compile(rb"-0(?![0-9.eE])")  # may also be text; a quick no is what it is for
_MINUS_ZERO: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-0(?![0-9.eE])')
_SAFE_REASONS: Final = ("Expected `", "Object missing required field `", "Invalid RFC3339", "Invalid UUID")
"""Beginnings of msgspec's complaints that name types and fields only; others may quote the value."""
_ANY: Final = msgspec.json.Decoder(object)


def decode(raw: bytes) -> Any:
    """The value of JSON bytes, unrounded: integers of any size are exact, the last of equal keys wins (R29, R30).

    Raises `Serialization("payload")` for what Python cannot hold (`1e400`, a lone surrogate escape) or is not JSON.
    """
    try:
        return _ANY.decode(_negative_zero(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error, None) from None


def decode_as(raw: bytes, kind: type[T]) -> T:
    """The value of JSON bytes as `kind`: anything msgspec converts, or pydantic models where pydantic is installed.

    Raises `Serialization("payload")` naming path and type, never the value.
    """
    if kind is Any or kind is object:
        return cast(T, decode(raw))
    try:
        value = decoder(kind).decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error, kind) from None
    digits = raw.translate(_DIGITS)
    if _SIXTEEN in digits or _SEVENTH in digits:
        _check_exact(value, decode(raw), "$")
    return cast(T, value)


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type, made once. Raises `TypeError` for a type no JSON can be decoded to."""
    try:
        hash(kind)
    except TypeError:  # Annotated[...] may carry metadata that has no hash; then the decoder is not kept
        return msgspec.json.Decoder(kind, dec_hook=_custom)
    return _decoder(kind)


@lru_cache(maxsize=1024)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_custom)


_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_SIXTEEN: Final = b"0" * 16  # fewer digits fit any float
_SEVENTH: Final = b"." + b"0" * 7  # fewer digits after the second fit a datetime
_NANOSECONDS: Final = re.compile(r"\.[0-9]{6}[0-9]*[1-9]")


def _check_exact(value: object, stored: object, path: str) -> None:
    """Refuses what decoding to a narrower type has rounded: a long integer as float, nanoseconds as datetime (R29)."""
    if isinstance(value, float):
        if type(stored) is int and value != stored:
            raise refusal(path, "an integer would be rounded by the type float; annotate it int")
    elif isinstance(value, datetime):
        if isinstance(stored, str) and _NANOSECONDS.search(stored):
            raise refusal(path, "a time would be rounded to microseconds by the type datetime; annotate it str")
    elif isinstance(stored, dict):
        members = value.values() if isinstance(value, dict) else (getattr(value, key, None) for key in stored)
        for (key, inner), member in zip(stored.items(), members, strict=False):
            _check_exact(member, inner, path + key_path(key))
    elif isinstance(stored, list) and isinstance(value, list | tuple):
        for index, (member, inner) in enumerate(zip(value, stored, strict=False)):
            _check_exact(member, inner, f"{path}[{index}]")


def _custom(kind: type, value: object) -> object:
    if not _is_model(kind):
        return value  # msgspec then says that it expected `kind`
    try:
        return cast(Any, kind).model_validate(value)
    except ValueError as error:
        problem = cast(Any, error).errors(include_input=False, include_url=False)[0]
        path = "$" + "".join(f"[{part}]" if isinstance(part, int) else key_path(part) for part in problem["loc"])
        raise refusal(path, f"does not fit {kind.__name__} ({problem['type']})") from None


def _negative_zero(raw: bytes) -> bytes:
    """`-0` is a float (R29) and msgspec would make it the integer 0."""
    if not _MAYBE_MINUS_ZERO.search(raw):
        return raw
    return _MINUS_ZERO.sub(lambda found: b"-0.0" if found[0] == b"-0" else found[0], raw)


def _unreadable(error: Exception, kind: Any) -> Serialization:
    """A decoder's complaint without the value it may quote."""
    text, _, path = str(error).partition(" - at `")
    path = path.rstrip("`") or "$"
    if not isinstance(error, msgspec.ValidationError):
        return refusal(path, "not JSON that Python can hold exactly (malformed, a lone surrogate, or nested too deep)")
    if text == "Number out of range":
        return refusal(path, "a number is beyond what a float can hold")
    reason = text if text.startswith(_SAFE_REASONS) else "the value does not fit"
    return refusal(path, f"{reason}, decoding {_type_name(kind)}")


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else "JSON" if kind is None else str(kind)
