"""Unions of objects, which msgspec does not decode: the member is found by its keys, or by fields of type `Literal`.

`rewritten` puts a class of ours in the place of each such union, and of each dataclass that has one in a field; msgspec
hands what stands there to `read`. A union is taken only if no value of one member could be read as another.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache, reduce
from itertools import permutations
from typing import Any, ClassVar, Final, Literal, TypeVar, Union

import msgspec

from perdure.payload_rules import is_model

__all__ = ["Place", "read", "rewritten"]

Decode = Callable[[Any, object, str], Any]
"""Decodes a value to an annotation; the text is the way to it, for complaints."""


_DICTS: Final = (dict, Mapping, MutableMapping)


class _AnyInstance(type):
    """msgspec asks whether what it was given is an instance of the annotation; what stands for a union cannot say."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Place(metaclass=_AnyInstance):
    """Base of the classes that stand for what msgspec cannot decode."""

    @classmethod
    def read(cls, value: object, decode: Decode) -> object:
        """The decoded value. Raises `ValueError` in msgspec's words."""
        raise NotImplementedError


class _Choice(Place):
    """A union with several objects among its members; `others` is what else it may be, None for nothing."""

    members: ClassVar[tuple[_Shape, ...]] = ()
    others: ClassVar[Any] = None

    @classmethod
    def read(cls, value: object, decode: Decode) -> object:
        if not isinstance(value, dict):
            if cls.others is None:
                raise ValueError(f"Expected `object`, got `{_json_type(value)}`")
            return decode(cls.others, value, "")
        fitting = [shape.kind for shape in cls.members if shape.fits(value)]
        if len(fitting) != 1:
            names = ", ".join(_name(shape.kind) for shape in cls.members)
            raise ValueError(f"does not fit {'exactly one' if fitting else 'any'} of {names}")
        return decode(fitting[0], value, "")


class _Mirror(Place):
    """A dataclass with such a union in a field."""

    kind: ClassVar[Any] = None

    @classmethod
    def read(cls, value: object, decode: Decode) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"Expected `object`, got `{_json_type(value)}`")
        hints, base = _field_hints(cls.kind), typing.get_origin(cls.kind) or cls.kind
        given: dict[str, Any] = {}
        for field in dataclasses.fields(base):
            if field.init and field.name in value:
                given[field.name] = decode(hints[field.name], value[field.name], field.name)
            elif field.init and _is_required(field):
                raise ValueError(f"Object missing required field `{field.name}`")
        made: object = base(**given)
        return made


def read(place: type[Place], value: object, decode: Decode) -> object:
    """What stands at this place."""
    return place.read(value, decode)


def rewritten(kind: Any) -> Any:
    """The annotation as msgspec can decode it. Raises `TypeError` for members that look alike."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _rewritten_union(arguments)
    if origin is typing.Annotated:
        return rewritten(arguments[0])
    if origin is not None and origin is not Literal and arguments and not _is_object(kind):
        return origin[tuple(argument if argument is ... else rewritten(argument) for argument in arguments)]
    if dataclasses.is_dataclass(origin or kind) and _has_union(kind, ()):
        return _mirror(kind)
    return kind


@lru_cache(maxsize=1024)
def _mirror(kind: Any) -> Any:
    for hint in _field_hints(kind).values():
        if not _mentions(hint, kind):
            rewritten(hint)  # what is ambiguous shows now, not when a value comes
    return _AnyInstance(_name(kind), (_Mirror,), {"kind": kind})


def _field_hints(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass's fields, with what a generic one is given in the place of its type variables."""
    base = typing.get_origin(kind) or kind
    hints = typing.get_type_hints(base, include_extras=True)
    given = dict(zip(getattr(base, "__parameters__", ()), typing.get_args(kind), strict=False))
    return {field.name: _filled(hints[field.name], given) for field in dataclasses.fields(base)}


def _filled(hint: Any, given: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return given.get(hint, Any)
    if given and typing.get_origin(hint) is not None and (parameters := getattr(hint, "__parameters__", ())):
        return hint[tuple(given.get(parameter, Any) for parameter in parameters)]
    return hint


def _mentions(hint: Any, kind: type) -> bool:
    return hint is kind or any(_mentions(argument, kind) for argument in typing.get_args(hint))


def _has_union(kind: Any, seen: tuple[Any, ...]) -> bool:
    """Whether a union of several objects is anywhere in the fields of this dataclass."""
    if typing.get_origin(kind) in (Union, types.UnionType) and sum(map(_is_object, typing.get_args(kind))) > 1:
        return True
    parts = list(typing.get_args(kind))
    if dataclasses.is_dataclass(typing.get_origin(kind) or kind) and kind not in seen:
        parts += _field_hints(kind).values()
    return any(_has_union(part, (*seen, kind)) for part in parts)


def _rewritten_union(members: tuple[Any, ...]) -> Any:
    objects = [member for member in members if _is_object(member)]
    others = tuple(rewritten(member) for member in members if not _is_object(member))
    if len(objects) < 2:
        return reduce(operator.or_, (rewritten(member) for member in members))
    if any((typing.get_origin(member) or member) in _DICTS for member in others):
        raise TypeError(f"{_names(members)} is ambiguous: any object is a dict")
    shapes = tuple(_shape(member) for member in objects)
    for one, other in permutations(shapes, 2):
        if other.takes_all_of(one):
            raise TypeError(
                f"{_names(members)} is ambiguous: {_name(one.kind)} has every key that {_name(other.kind)} needs. "
                'Give each a field of its own such as `kind: Literal["card"]`'
            )
    names = {"members": shapes, "others": reduce(operator.or_, others) if others else None}
    choice: Any = _AnyInstance("Choice", (_Choice,), names)
    return choice | None if type(None) in others else choice


# -- what an object looks like --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The keys that a value of this kind is stored with, those it must have, and what some of them are fixed to."""

    kind: Any
    keys: frozenset[str]
    required: frozenset[str]
    fixed: dict[str, tuple[Any, ...]]

    def fits(self, value: dict[str, object]) -> bool:
        return self.required <= value.keys() and all(
            value[key] in choices for key, choices in self.fixed.items() if key in value
        )

    def takes_all_of(self, other: _Shape) -> bool:
        """Whether a value of the other kind could be read as this one."""
        if not self.required <= other.keys:
            return False
        both = self.fixed.keys() & other.fixed.keys()
        return not any(set(self.fixed[key]).isdisjoint(other.fixed[key]) for key in both)


def _shape(kind: Any) -> _Shape:
    base = typing.get_origin(kind) or kind
    fixed = {key: typing.get_args(hint) for key, hint in _hints(base).items() if typing.get_origin(hint) is Literal}
    if dataclasses.is_dataclass(base):
        fields = dataclasses.fields(base)
        required = {field.name for field in fields if field.init and _is_required(field)}
        return _Shape(kind, frozenset(field.name for field in fields), frozenset(required), fixed)
    if is_model(base):
        named = {field.alias or name: (name, field) for name, field in base.model_fields.items()}
        fixed = {alias: fixed[name] for alias, (name, _) in named.items() if name in fixed}
        required = {alias for alias, (_, field) in named.items() if field.is_required()}
        return _Shape(kind, frozenset(named), frozenset(required), fixed)
    if issubclass(base, msgspec.Struct):
        members = msgspec.structs.fields(base)
        required = {member.encode_name for member in members if member.required}
        fixed = {member.encode_name: fixed[member.name] for member in members if member.name in fixed}
        keys = {member.encode_name for member in members}
        if (config := base.__struct_config__).tag is not None:
            fixed[str(config.tag_field)] = (config.tag,)
            required.add(str(config.tag_field))
        return _Shape(kind, frozenset(keys | required), frozenset(required), fixed)
    typed: Any = base  # a TypedDict
    return _Shape(kind, frozenset(typed.__required_keys__ | typed.__optional_keys__), typed.__required_keys__, fixed)


def _hints(base: Any) -> dict[str, Any]:
    return typing.get_type_hints(base)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_object(kind: Any) -> bool:
    base = typing.get_origin(kind) or kind
    if not isinstance(base, type):
        return False
    if issubclass(base, msgspec.Struct):
        return not base.__struct_config__.array_like
    return dataclasses.is_dataclass(base) or is_model(base) or typing.is_typeddict(base)


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _names(members: tuple[Any, ...]) -> str:
    return " | ".join("None" if member is type(None) else _name(member) for member in members)


_JSON_TYPES: Final[dict[type, str]] = {str: "str", int: "int", float: "float", bool: "bool", list: "array"}


def _json_type(value: object) -> str:
    return _JSON_TYPES.get(type(value), "null")
