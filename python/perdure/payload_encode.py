"""Payloads out: Python values to JSON bytes, exactly or not at all (spec/README "Payloads are exact", R27, R30).

orjson writes what it knows; `_convert` turns the rest, one level at a time, into what it knows. Only when something
may be wrong does `_check` look at every value, to name the path and the rule.
"""

from __future__ import annotations

import dataclasses
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import GetSetDescriptorType
from typing import Any, Final, cast
from uuid import UUID

import msgspec
import orjson

from perdure.errors import Serialization
from perdure.payload_rules import MAX_DEPTH, MAX_INT, MIN_INT, SURROGATE, is_model, key_path, refusal

__all__ = ["encode"]

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_MINUTE: Final = timedelta(minutes=1)
_NAIVE: Final = "a datetime without a time zone names no instant; use datetime.now(UTC) or give a tzinfo"


def encode(value: Any) -> bytes:
    """The JSON bytes of a value, keys in insertion order. Raises `Serialization("payload")` with rule and path."""
    kind: Any = type(value)
    fields = _plain_fields(kind)
    written = value
    if fields is not None and (*(attributes := value.__dict__),) == fields:
        written = attributes
    try:
        raw = orjson.dumps(written, default=_convert, option=_OPTIONS)
    except orjson.JSONEncodeError:
        _check(value)
        raise refusal("$", f"type {_name(value)} cannot be stored as JSON") from None
    # NaN and infinities come out as null and the depth limit is ours: only then a look at every value is needed.
    # (`find`, as `in` first tries to take the text for a number, which takes longer than the search.)
    if raw.find(b"null") >= 0 or (len(raw) > 2 * MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH):
        _check(value)
    return raw


def _name(value: object) -> str:
    return type(value).__name__


class _Refused(Exception):
    """A refusal on its way up; each level prepends its piece of the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pieces: list[str] = []
        self.parents: list[int] = []


# -- one level at a time ------------------------------------------------------------------------------------------


def _convert(value: object) -> object:
    """What orjson does not write by itself, one level turned into what it does. Also the hook of orjson."""
    kind: Any = type(value)
    convert = _CONVERSIONS.get(kind) or _of_dataclass(kind)
    if convert is not None:
        return convert(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return _struct(value)
    for base, convert in _BASES:
        if isinstance(value, base):
            return convert(value)
    if is_model(type(value)):
        return _model(cast(Any, value))
    if hasattr(type(value), "__await__"):
        raise _Refused(f"a {_name(value)} that was never awaited cannot be stored; put await before it")
    raise _Refused(_HINTS.get(type(value), f"type {_name(value)} cannot be stored as JSON"))


@lru_cache(maxsize=1024)
def _of_dataclass(kind: type) -> Callable[[Any], object] | None:
    """What turns a dataclass into a dict of its fields, made once for each; None for anything else."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, Enum | msgspec.Struct):
        return None
    names = tuple(field.name for field in dataclasses.fields(kind))
    if len(names) < 2:
        return lambda value: {name: getattr(value, name) for name in names}
    values_of = attrgetter(*names)
    return lambda value: dict(zip(names, values_of(value), strict=False))


@lru_cache(maxsize=1024)
def _plain_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass that reads each of them from its `__dict__` and nowhere else, which then is what to write
    if it holds them in this order and nothing beside; None for any other class."""
    reading: Any = kind.__getattribute__
    if _of_dataclass(kind) is None or not kind.__dictoffset__ or reading is not object.__getattribute__:
        return None
    names = tuple(field.name for field in dataclasses.fields(cast(Any, kind)))
    inherited = [(name, found) for base in kind.__mro__ for name, found in vars(base).items()]
    if any(name == "__dict__" and not isinstance(found, GetSetDescriptorType) for name, found in inherited):
        return None
    return None if any(name in names and hasattr(type(found), "__set__") for name, found in inherited) else names


def _decimal(value: Any) -> str:
    if not value.is_finite():
        raise _Refused("a Decimal that is no finite number cannot be stored")
    return Decimal.__str__(value)


def _instant(value: Any) -> str:
    offset = value.utcoffset()
    if offset is None:
        raise _Refused(_NAIVE)
    if offset % _MINUTE:
        value = value.astimezone(UTC)  # RFC 3339 offsets have no seconds
    return cast(str, value.isoformat())


def _time_of_day(value: time) -> str:
    offset = value.utcoffset()
    if value.tzinfo is not None and (offset is None or offset % _MINUTE):
        raise _Refused("the zone of a time must be a fixed offset in whole minutes; store a datetime or a naive time")
    return value.isoformat()


def _duration(value: timedelta) -> str:
    return cast(str, msgspec.to_builtins(timedelta(value.days, value.seconds, value.microseconds)))


def _base64(value: bytes | bytearray | memoryview) -> str:
    return b64encode(value).decode("ascii")


def _in_order(value: set[object] | frozenset[object]) -> list[object]:
    """A set has no order, so that of its members' JSON is taken: equal sets give equal bytes in every process."""
    try:
        encoded = {encode(member): member for member in value}
    except Serialization:
        return list(value)  # whoever writes or checks the list meets the same member and names it
    if len(encoded) < len(value):
        raise _Refused("two members of a set have the same JSON")
    return [encoded[key] for key in sorted(encoded)]


def _struct(value: msgspec.Struct) -> object:
    """The fields as msgspec itself names and tags them; defaults are left out where the class asks for it."""
    config = value.__struct_config__
    fields = [(field, getattr(value, field.name)) for field in msgspec.structs.fields(value)]
    if config.array_like:
        return [*([] if config.tag is None else [config.tag]), *(member for _, member in fields)]
    found: dict[str, object] = {} if config.tag is None else {cast(str, config.tag_field): config.tag}
    for field, member in fields:
        if member is not msgspec.UNSET and not (config.omit_defaults and _is_default(field, member)):
            found[field.encode_name] = member
    return found


def _is_default(field: msgspec.structs.FieldInfo, member: object) -> bool:
    if field.default is not msgspec.NODEFAULT:
        return type(member) is type(field.default) and bool(member == field.default)
    factory = field.default_factory
    return factory in (list, dict, set) and type(member) is factory and not member


def _model(model: Any) -> object:
    """A pydantic model by its own JSON rules and aliases, its sets in our order. What those rules would lose without a
    word is refused here."""
    value = model.model_dump(by_alias=True, round_trip=True)
    return _dumped(value, model.model_dump(mode="json", by_alias=True, round_trip=True))


def _dumped(value: object, json: object) -> object:
    """`json` is what pydantic made of `value`; the two are walked side by side."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise _Refused(_NAIVE)
    elif hasattr(value, "get_secret_value"):
        raise _Refused(f"a {_name(value)} would be stored masked; keep secrets elsewhere and store a reference")
    elif isinstance(value, dict) and isinstance(json, dict):
        pairs = zip(json.items(), value.values(), strict=False)
        return {key: _within(key_path(key), member, inner) for (key, inner), member in pairs}
    elif isinstance(value, list | tuple | set | frozenset) and isinstance(json, list):
        pairs = zip(value, json, strict=False)
        members = [_within(f"[{index}]", member, inner) for index, (member, inner) in enumerate(pairs)]
        return sorted(members, key=encode) if isinstance(value, set | frozenset) else members
    return json


def _within(piece: str, value: object, json: object) -> object:
    try:
        return _dumped(value, json)
    except _Refused as refused:
        refused.pieces.append(piece)
        raise


_CONVERSIONS: Final[dict[type, Callable[[Any], object]]] = {
    Decimal: _decimal,
    datetime: _instant,
    date: date.isoformat,
    time: _time_of_day,
    timedelta: _duration,
    UUID: str,
    bytes: _base64,
    bytearray: _base64,
    memoryview: _base64,
    set: _in_order,
    frozenset: _in_order,
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
    (time, _time_of_day),
    (timedelta, _duration),
    (Decimal, _decimal),
    (UUID, UUID.__str__),
    (bytes, _base64),
    (bytearray, _base64),
    (set, _in_order),
    (frozenset, _in_order),
)
_HINTS: Final[dict[type, str]] = {
    complex: "a complex number cannot be stored as JSON; store its two parts",
}


# -- every value --------------------------------------------------------------------------------------------------


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
        if not cast(str, value).isascii() and SURROGATE.search(cast(str, value)):
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
        if not key.isascii() and SURROGATE.search(key):
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
