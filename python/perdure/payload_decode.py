"""Payloads in: JSON bytes to Python values, plain or of an annotated type, never rounded (R29, R30).

msgspec decodes to the annotated type; pydantic models are validated by pydantic, from JSON. What a narrower type would
have rounded or left without a zone is found afterwards, and looked for only in bytes that could hold it.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterator
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec
import orjson
from msgspec import inspect

from perdure.errors import Serialization
from perdure.payload_rules import is_model, key_path, refusal
from perdure.payload_unions import Place, read, rewritten

__all__ = ["decode", "decode_as", "decoder", "reader"]

T = TypeVar("T")

_MAYBE_MINUS_ZERO: Final = re.compile(rb"-0(?![0-9.eE])")  # may also be text; a quick no is what it is for
_MINUS_ZERO: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-0(?![0-9.eE])')
_SAFE_REASONS: Final = (
    *("Expected `", "Object missing required field `", "Object contains unknown field `"),
    *("Invalid RFC3339", "Invalid UUID", "Invalid ISO8601", "Invalid base64", "Invalid decimal"),
)
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


@typing.overload
def decode_as(raw: bytes, kind: type[T]) -> T: ...
@typing.overload
def decode_as(raw: bytes, kind: Any) -> Any: ...
def decode_as(raw: bytes, kind: Any) -> Any:
    """The value of JSON bytes as `kind`, any annotation: JSON types, dataclasses, TypedDict, NamedTuple, str and int
    enums, `UUID`, `Decimal`, bytes, dates and times, msgspec structs, pydantic models, generics of these.

    Raises `Serialization("payload")` naming path and type, never the value, and `TypeError` for an annotation that JSON
    cannot be decoded to (see `decoder`).
    """
    if kind is Any or kind is object:
        return decode(raw)
    return _decode_with(decoder(kind), raw, kind)


def _decode_with(made: msgspec.json.Decoder[Any], raw: bytes, kind: Any) -> Any:
    """`decode_as` with the decoder of `kind` at hand."""
    try:
        value = made.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error, kind, raw) from None
    digits = raw.translate(_DIGITS)
    long = digits.find(_SIXTEEN) >= 0 or digits.find(_SEVENTH) >= 0  # `in` would take longer, see `encode`
    if long or (digits.find(_CLOCK) >= 0 and _ZONELESS.search(digits)):
        _check_exact(value, decode(raw), "$")
    return value


def reader(kind: Any) -> Callable[[bytes], Any]:
    """`decode_as` for one annotation, made once. Raises `TypeError` as `decoder`."""
    if kind is Any or kind is object:
        return decode
    made = decoder(kind)
    if _may_round(kind):
        return lambda raw: _decode_with(made, raw, kind)
    plain = made.decode

    def read_plain(raw: bytes) -> Any:
        try:
            return plain(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _unreadable(error, kind, raw) from None

    return read_plain


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of an annotation, made once. Raises `TypeError` for a type that JSON cannot be decoded to, such as a
    union whose members look alike in JSON."""
    try:
        hash(kind)
    except TypeError:  # Annotated[...] may carry metadata that has no hash; then the decoder is not kept
        return _make(kind)
    return _decoder(kind)


_UNIONS: Final = ("Type unions", "If a type union")


@lru_cache(maxsize=1024)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return _make(kind)


def _make(kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind, dec_hook=_custom)
    except TypeError as error:
        text = str(error)
    if text.startswith(_UNIONS):
        other = rewritten(kind)
        try:
            return msgspec.json.Decoder(other, dec_hook=_custom)
        except TypeError as error:
            text = str(error)
    reason, _, culprit = text.partition(" - type ")
    named = culprit.removesuffix(" is not supported").strip("`") or _type_name(kind)
    if reason.startswith(_UNIONS):
        raise TypeError(
            f"{named} is ambiguous: its members look alike in JSON ({reason}). Name one type, or make its members "
            'dataclasses, each with a field such as `kind: Literal["card"]`; in a field of a TypedDict, NamedTuple or '
            "msgspec.Struct they must be msgspec.Struct classes with tag=True"
        )
    raise TypeError(f"JSON cannot be decoded to {named}: {reason}")


# -- what a type would have rounded -------------------------------------------------------------------------------

_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_SIXTEEN: Final = b"0" * 16  # fewer digits fit any float
_SEVENTH: Final = b"." + b"0" * 7  # fewer digits after the second fit a datetime
_CLOCK: Final = b"00:00"  # a quick no to what follows
_ZONELESS: Final = re.compile(rb'0-00[Tt ]00:00[0:.]*"')
_EXACT: Final = (
    *(inspect.BoolType, inspect.BytesType, inspect.EnumType, inspect.IntType, inspect.LiteralType, inspect.NoneType),
    *(inspect.StrType, inspect.UUIDType, inspect.DataclassType, inspect.NamedTupleType, inspect.StructType),
    *(inspect.TypedDictType, inspect.DictType, inspect.ListType, inspect.TupleType, inspect.UnionType),
    *(inspect.VarTupleType, inspect.Field, inspect.Metadata),
)
"""Whose values no decoding rounds, if those inside do not."""
_INNER_TYPES: Final = ("fields", "type", "types", "item_type", "item_types", "key_type", "value_type")
_NANOSECONDS: Final = re.compile(r"\.[0-9]{6}[0-9]*[1-9]")


def _check_exact(value: object, stored: object, path: str) -> None:
    """Refuses what decoding to a narrower type has rounded: a long integer as float, nanoseconds as datetime (R29), and
    a datetime that came out without a zone (R32)."""
    if isinstance(value, float):
        if type(stored) is int and value != stored:
            raise refusal(path, "an integer would be rounded by the type float; annotate it int")
    elif isinstance(value, datetime | time | timedelta):
        if isinstance(value, datetime) and value.tzinfo is None:
            raise refusal(path, "a datetime without a time zone names no instant; annotate it str, or store its zone")
        if isinstance(stored, str) and _NANOSECONDS.search(stored):
            kind = type(value).__name__
            raise refusal(path, f"a time would be rounded to microseconds by the type {kind}; annotate it str")
    elif isinstance(value, set | frozenset):
        for index, inner in enumerate(cast("list[object]", stored)):
            if type(inner) is int and inner not in value:  # an int equals a float only if they are the same number
                raise refusal(f"{path}[{index}]", "an integer would be rounded by the type float; annotate it int")
        for member in value:
            if isinstance(member, datetime):
                _check_exact(member, None, path)
    elif isinstance(stored, dict):
        for key, member in _members(value, stored):
            _check_exact(member, stored[key], path + key_path(key))
    elif isinstance(stored, list) and isinstance(value, list | tuple):
        for index, (member, inner) in enumerate(zip(value, stored, strict=False)):
            _check_exact(member, inner, f"{path}[{index}]")


def _members(value: object, stored: dict[str, object]) -> Iterator[tuple[str, object]]:
    """(stored key, decoded member) of an object, whatever became of it."""
    if isinstance(value, dict):
        yield from zip(stored, value.values(), strict=False)
        return
    names = _renamed(cast(Any, type(value)))
    for key in stored:
        yield key, getattr(value, names.get(key, key), None)


@lru_cache(maxsize=1024)
def _renamed(kind: type) -> dict[str, str]:
    """Stored key → attribute, of classes that rename their fields."""
    if issubclass(kind, msgspec.Struct):
        return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    if is_model(kind):
        fields: dict[str, Any] = cast(Any, kind).model_fields
        return {field.alias: name for name, field in fields.items() if field.alias is not None}
    return {}


def _may_round(kind: Any) -> bool:
    """Whether there is anything for `_check_exact` in values of this annotation."""
    try:
        parts: list[Any] = [inspect.type_info(kind)]
    except (TypeError, NameError):
        return True
    seen: dict[int, object] = {}  # the parts, too: a number is one's own only while that lives
    while parts:
        part = parts.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            if not isinstance(part, _EXACT):
                return True
            for name in _INNER_TYPES:
                inner = getattr(part, name, ())
                parts += inner if isinstance(inner, tuple) else (inner,)
    return False


# -- classes of others --------------------------------------------------------------------------------------------


def _custom(kind: type, value: object) -> object:
    if issubclass(kind, Place):
        return read(kind, value, _inside)
    if not is_model(kind):
        return value  # msgspec then says that it expected `kind`
    try:
        return cast(Any, kind).model_validate_json(_json(value))
    except ValueError as error:
        problem = cast(Any, error).errors(include_input=False, include_url=False)[0]
        inner = "".join(f"[{part}]" if isinstance(part, int) else key_path(part) for part in problem["loc"])
        # As a ValueError, so that msgspec adds the way to this model; `_unreadable` puts the two together.
        raise ValueError(f"{_MISFIT}{kind.__name__} ({problem['type']}){_INNER}{inner}") from None


def _inside(kind: Any, value: object, way: str) -> object:
    """A part of a value that msgspec handed over, decoded to its own annotation."""
    try:
        return decoder(kind).decode(_json(value))
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        reason, _, inner = text.partition(_INNER)
        step = key_path(way) if way else ""
        raise ValueError(f"{reason}{_INNER}{step}{path.rstrip('`')[1:]}{inner}") from None


_MISFIT: Final = "does not fit "
_INNER: Final = "\x00"


def _json(value: object) -> bytes:
    """The JSON once more: pydantic reads dates, bytes and the like from JSON by other rules than from Python values."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return json.dumps(value).encode()


def _negative_zero(raw: bytes) -> bytes:
    """`-0` is a float (R29) and msgspec would make it the integer 0."""
    if not _MAYBE_MINUS_ZERO.search(raw):
        return raw
    return _MINUS_ZERO.sub(lambda found: b"-0.0" if found[0] == b"-0" else found[0], raw)


def _unreadable(error: Exception, kind: Any, raw: bytes = b"") -> Serialization:
    """A decoder's complaint without the value it may quote."""
    text, _, path = str(error).partition(" - at `")
    path = path.rstrip("`") or "$"
    if not isinstance(error, msgspec.ValidationError):
        return refusal(path, "not JSON that Python can hold exactly (malformed, a lone surrogate, or nested too deep)")
    if raw:
        path = _located(raw, kind, path, text)
    if text == "Number out of range":
        return refusal(path, "a number is beyond what a float can hold")
    text, _, inner = text.partition(_INNER)
    path += inner
    if text.startswith(_MISFIT):
        return refusal(path, text)
    reason = text if text.startswith(_SAFE_REASONS) else "the value does not fit"
    return refusal(path, f"{reason}, decoding {_type_name(kind)}")


_PIECE: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")
_MOST_TRIES: Final = 10_000


def _located(raw: bytes, kind: Any, path: str, text: str) -> str:
    """The path with its keys: msgspec writes `[...]` for any of a dict, so each is tried alone until one complains."""
    try:
        whole = decode(raw)
    except Serialization:
        return path
    found, at = "$", whole
    for piece in _PIECE.finditer(path):
        if piece[0] != "[...]":
            at = at.get(piece[1]) if isinstance(at, dict) else at[int(piece[2])] if isinstance(at, list) else None
            found += piece[0]
            continue
        if not isinstance(at, dict) or len(at) > _MOST_TRIES:
            return path
        rest = dict(at)
        for key, member in rest.items():
            at.clear()
            at[key] = member
            if _complaint(whole, kind) == text:
                break
        else:
            return path
        found, at = found + key_path(key), member
    return found


def _complaint(value: object, kind: Any) -> str | None:
    try:
        decoder(kind).decode(_json(value))
    except msgspec.ValidationError as error:
        return str(error).partition(" - at `")[0]
    return None


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else "JSON" if kind is None else str(kind)
