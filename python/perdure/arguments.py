"""A function's parameters, the arguments of one call as the JSON that is stored, and back (R41).

Stored is the value of the first data parameter if only that is given, null if nothing is, else
`{"$args": {name: value}}` without the defaults that were not given; so a parameter added with a default is no drift.
Parameters that the engine fills, such as those annotated `StepContext`, are no data parameters.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, cast

import msgspec
import orjson

from perdure.errors import Serialization
from perdure.payload import decode_as, decoder, encode, refusal

__all__ = ["Binding", "place", "store_untyped", "underlying", "workflow_binding"]

ARGS_KEY: Final = "$args"
ARGS_KEY_BYTES: Final = ARGS_KEY.encode()
_ODD: Final = "**"
"""Beside the names: arguments of `**kwargs` that are called like another parameter, in an object of their own."""
_ARGS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ABSENT: Final = inspect.Parameter.empty


class Binding:
    """The data parameters of one function. `what` names it in messages, such as `step 'charge'`."""

    def __init__(
        self,
        what: str,
        function: Callable[..., Any],
        names: Mapping[str, Any],
        filled: Callable[[int, Any], bool] = lambda index, kind: False,
    ) -> None:
        """`names` are local names that annotations may use; `filled(index, annotation)` says which parameters the engine
        fills. Raises `NameError` for an annotation that cannot be resolved, `TypeError` for one JSON cannot become."""
        kinds = typing.get_type_hints(underlying(function), localns=dict(names), include_extras=True)
        self._what = what
        self._returns = kinds.get("return", Any)
        self._kinds: dict[str, Any] = {}
        self._filled: set[str] = set()
        self._signature = inspect.signature(function)
        self._others: inspect.Parameter | None = None  # **kwargs
        for index, parameter in enumerate(self._signature.parameters.values()):
            kind = kinds.get(parameter.name, Any)
            if filled(index, kind):
                self._filled.add(parameter.name)
                continue
            self._check(parameter.name, kind)
            self._kinds[parameter.name] = kind
            if parameter.kind is parameter.VAR_KEYWORD:
                self._others = parameter
        given = [p for p in self._signature.parameters.values() if p.name not in self._filled]
        self._data = self._signature.replace(parameters=given)
        self._first = next((p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)), None)
        self._one_suffices = _alone(given)

    def _check(self, name: str, kind: Any) -> None:
        if kind is Any:
            return
        try:
            decoder(kind)
        except TypeError as error:
            raise TypeError(f"parameter {name!r} of {self._what} has a type that JSON cannot become: {error}") from None

    @property
    def takes_input(self) -> bool:
        """Whether a stored input has somewhere to go."""
        return bool(self._kinds)

    @property
    def returns(self) -> Any:
        """What a call gives, awaited if it is to be awaited: an annotation for `decode_as`; Any where there is none."""
        kind = self._returns
        if typing.get_origin(kind) in (Awaitable, Coroutine):
            kind = typing.get_args(kind)[-1]
        return Any if kind in (typing.NoReturn, typing.Never) else kind

    # -- out -----------------------------------------------------------------------------------------------------

    def store(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """The arguments of one call as JSON. Raises `TypeError` as Python's own call would, and
        `Serialization("payload")` naming parameter and path for a value that JSON cannot hold exactly."""
        if self._one_suffices and len(args) == 1 and not named:  # by far the most calls: without a signature's bind
            try:
                raw = encode(args[0])
            except Serialization as error:
                raise self._refused(self._one_suffices, error) from None
            if raw != b"null" and raw.find(ARGS_KEY_BYTES) < 0:  # `in` would take longer, see `encode`
                return raw
        try:
            given = self._data.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{self._what}: {error}") from None
        if not given:
            return b"null"
        first = self._first
        if first is not None and list(given) == [first.name]:
            raw = self._encode(first.name, given[first.name])
            if not self._reads_otherwise(raw, first):
                return raw
            return _args_json({first.name: raw})
        return _args_json(self._several(given))

    def _several(self, given: Mapping[str, Any]) -> dict[str, bytes]:
        stored: dict[str, bytes] = {}
        for name, value in given.items():
            if self._others is None or name != self._others.name:
                stored[name] = self._encode(name, value)
                continue
            odd = {key: member for key, member in value.items() if key in self._signature.parameters or key == _ODD}
            if both := self._filled.intersection(odd):
                raise TypeError(f"{self._what}: {min(both)!r} is filled by the engine and cannot be given")
            stored.update((key, self._encode(key, member)) for key, member in value.items() if key not in odd)
            if odd:
                stored[_ODD] = self._encode(name, odd)
        return stored

    def _encode(self, name: str, value: Any) -> bytes:
        try:
            return encode(value)
        except Serialization as error:
            raise self._refused(name, error) from None

    @staticmethod
    def _reads_otherwise(raw: bytes, first: inspect.Parameter) -> bool:
        """Whether this value, stored as it is, would be read as something else: as several arguments, or as none."""
        if raw == b"null":
            return first.default is not _ABSENT and first.default is not None
        return ARGS_KEY_BYTES in raw and _several(raw) is not None

    # -- in ------------------------------------------------------------------------------------------------------

    def arguments(self, raw: bytes, context: object) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by position and by name, `context` for what the engine fills. Raises `Serialization("payload")` if
        the stored input does not fit."""
        given = self._given(raw)
        values: dict[str, Any] = {}
        for parameter in self._signature.parameters.values():
            name = parameter.name
            if name in self._filled:
                values[name] = context
            elif parameter.kind is parameter.VAR_KEYWORD:
                continue
            elif name in given:
                kind = self._kinds[name]
                several = parameter.kind is parameter.VAR_POSITIONAL
                values[name] = self._decode(name, given.pop(name), cast(Any, list)[kind] if several else kind)
            elif parameter.default is not _ABSENT:
                values[name] = parameter.default
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                raise refusal("$", f"{self._what} needs {name!r}, which the stored input lacks; .input(...) makes one")
        if rest := self._rest(given):
            values["" if self._others is None else self._others.name] = rest
        bound = inspect.BoundArguments(self._signature, values)
        return list(bound.args), bound.kwargs

    def _given(self, raw: bytes) -> dict[str, bytes]:
        """The stored input, cut into parameters."""
        if ARGS_KEY_BYTES in raw and (several := _several(raw)) is not None:
            return several
        first = self._first
        if raw.strip() == b"null" and (first is None or first.default is not _ABSENT):
            return {}
        if first is None:
            raise refusal("$", f"{self._what} takes no input, and the stored one is not null")
        return {first.name: raw}

    def _rest(self, given: dict[str, bytes]) -> dict[str, Any]:
        if not given:
            return {}
        if self._others is None:
            raise refusal("$", f"{self._what} has no parameter {next(iter(given))!r}")
        kind = self._kinds[self._others.name]
        odd = self._decode(_ODD, given.pop(_ODD), cast(Any, dict)[str, kind]) if _ODD in given else {}
        return {name: self._decode(name, raw, kind) for name, raw in given.items()} | odd

    def _decode(self, name: str, raw: bytes, kind: Any) -> Any:
        try:
            return decode_as(raw, kind)
        except Serialization as error:
            raise self._refused(name, error) from None

    def _refused(self, name: str, error: Serialization) -> Serialization:
        return Serialization("payload", detail=f"parameter {name!r} of {self._what}: {error.detail}")


def _alone(given: list[inspect.Parameter]) -> str | None:
    """The name of the first parameter, if a call may give it alone and by position."""
    if not given or given[0].kind not in (given[0].POSITIONAL_ONLY, given[0].POSITIONAL_OR_KEYWORD):
        return None
    needed = [p for p in given[1:] if p.default is _ABSENT and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return None if needed else given[0].name


def workflow_binding(name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> Binding:
    """The parameters of an async workflow: the first is its context, the others are its input. Raises as `Binding`."""
    return Binding(f"workflow {name!r}", function, names, lambda index, kind: index == 0)


def _args_json(stored: Mapping[str, bytes]) -> bytes:
    return orjson.dumps({ARGS_KEY: {name: orjson.Fragment(raw) for name, raw in stored.items()}})


def _several(raw: bytes) -> dict[str, bytes] | None:
    """The arguments of `{"$args": {…}}`; None for any other value."""
    try:
        outer = _ARGS.decode(raw)
        if list(outer) != [ARGS_KEY]:
            return None
        return {name: bytes(value) for name, value in _ARGS.decode(outer[ARGS_KEY]).items()}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def underlying(function: Callable[..., Any]) -> Any:
    """The function behind decorators and partials, of another callable object its call: what has the annotations."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def place(function: Callable[..., Any]) -> str:
    """File and line of a function, for messages."""
    code = getattr(underlying(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def store_untyped(args: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
    """The arguments of a step known by name only. Raises `TypeError` for several without names."""
    if len(args) > 1 or (args and named):
        raise TypeError("a step known only by name takes one argument, or several by keyword")
    if args:
        raw = encode(args[0])
        if ARGS_KEY_BYTES in raw and _several(raw) is not None:
            raise TypeError(f"a step known only by name cannot be given an object whose one key is {ARGS_KEY!r}")
        return raw
    return _args_json({name: encode(value) for name, value in named.items()}) if named else b"null"
