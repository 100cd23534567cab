"""Steps: the function a step is, how its stored input becomes its arguments, and what it is told (R41, R54)."""

from __future__ import annotations

import inspect
import threading
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, update_wrapper
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, cast

import msgspec

from perdure.errors import Serialization, StepCancelled
from perdure.payload import decode_as, decoder, refusal
from perdure.policy import RetryPolicy

__all__ = ["Binding", "CancelToken", "Mode", "Step", "StepContext", "StepPlan", "place", "underlying"]

P = ParamSpec("P")
R = TypeVar("R")

Mode = Literal["thread", "async", "inline"]
"""Where a step runs: on a thread of the engine's pool, on its event loop, or in place."""

ARGS_KEY: Final = "$args"
_ARGS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ABSENT: Final = inspect.Parameter.empty


class CancelToken:
    """Set when an attempt's result is no longer wanted: the run ended or is being cancelled (R20, R21). Thread-safe."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """For the engine."""
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Blocks until set, at most `timeout` (a timedelta, or seconds); whether it is set. Not for async steps."""
        return self._event.wait(timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)

    def raise_if_set(self) -> None:
        """Raises `StepCancelled` once set, for loops that would rather stop than test."""
        if self._event.is_set():
            raise StepCancelled


@dataclass(frozen=True, slots=True)
class StepContext:
    """What one attempt of a step is told about itself. A step gets it in every parameter annotated with it."""

    run_id: str
    step_id: str
    step_name: str
    attempt: int
    cancelled: CancelToken = field(default_factory=CancelToken, compare=False, repr=False)

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this step of this run: the key of a side effect (R54)."""
        run, step = self.run_id, self.step_id
        return f"flow.step.v1/{len(run.encode())}/{run}{len(step.encode())}:{step}"

    @property
    def attempt_key(self) -> str:
        """The same text whenever this attempt is delivered, another one for each retry (R54)."""
        return f"{self.idempotency_key}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How a step is run: where, with which time limit in ms, and its declared policy."""

    mode: Mode
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    kind: Any  # its annotation, resolved
    default: Any
    by_position: bool
    is_context: bool


class Step(Generic[P, R]):
    """A registered step. Calling it calls the function; `ctx.schedule_step(id, step, …)` schedules it."""

    def __init__(self, function: Callable[P, R], name: str, plan: StepPlan, names: Mapping[str, Any]) -> None:
        """`names` are the local names at the decorator, for annotations of classes that are no globals."""
        self.function, self.name, self.plan = function, name, plan
        update_wrapper(cast(Any, self), function, updated=())  # its own attributes must not replace ours
        try:
            self._binding: Binding | None = Binding(name, function, names)
        except NameError:  # an annotation that is defined further down: looked up again when the step is first used
            self._binding = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name!r} at {place(self.function)}>"

    @property
    def binding(self) -> Binding:
        """Its parameters. Raises `TypeError` for an annotation that names nothing or that JSON cannot become."""
        if self._binding is None:
            try:
                self._binding = Binding(self.name, self.function, {})
            except NameError as error:
                text = f"step {self.name!r} at {place(self.function)}: an annotation cannot be resolved: {error}"
                raise TypeError(text) from error
        return self._binding


class Binding:
    """The parameters of a step function, and the way from stored input to arguments (R41).

    Stored is the value of the first data parameter, null for none, or `{"$args": {name: value}}`. Parameters annotated
    `StepContext` are no data parameters. A null leaves out a first parameter that has a default.
    """

    def __init__(self, step_name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> None:
        kinds = typing.get_type_hints(underlying(function), localns=dict(names), include_extras=True)
        self._step_name = step_name
        self._parameters: list[_Parameter] = []
        self._others: Any = _ABSENT  # the annotation of **kwargs
        for parameter in inspect.signature(function).parameters.values():
            kind = kinds.get(parameter.name, Any)
            self._check(parameter.name, kind)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._others = kind
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                by_position = parameter.kind is parameter.POSITIONAL_ONLY
                found = _Parameter(parameter.name, kind, parameter.default, by_position, _is_context(kind))
                self._parameters.append(found)
        self._first = next((p for p in self._parameters if not p.is_context), None)

    def _check(self, name: str, kind: Any) -> None:
        if kind is Any or _is_context(kind):
            return
        try:
            decoder(kind)
        except TypeError as error:
            text = f"parameter {name!r} of step {self._step_name!r} has a type that JSON cannot become: {error}"
            raise TypeError(text) from error

    @property
    def takes_input(self) -> bool:
        """Whether a stored input has somewhere to go."""
        return self._first is not None or self._others is not _ABSENT

    def arguments(self, raw: bytes, context: StepContext) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by position and by name. Raises `Serialization("payload")` if the stored input does not fit."""
        given = self._given(raw)
        args: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.is_context:
                value: Any = context
            elif parameter.name in given:
                value = self._decode(parameter.name, given.pop(parameter.name), parameter.kind)
            elif parameter.default is not _ABSENT:
                value = parameter.default
            else:
                raise refusal("$", f"step {self._step_name!r} needs {parameter.name!r}, which the stored input lacks")
            if parameter.by_position:
                args.append(value)
            else:
                named[parameter.name] = value
        return args, named | self._rest(given)

    def _given(self, raw: bytes) -> dict[str, bytes]:
        """The stored input, cut into parameters."""
        if ARGS_KEY.encode() in raw and (several := _several(raw)) is not None:
            return several
        first = self._first
        if raw.strip() == b"null" and (first is None or first.default is not _ABSENT):
            return {}
        if first is None:
            raise refusal("$", f"step {self._step_name!r} takes no input, and the stored one is not null")
        return {first.name: raw}

    def _rest(self, given: dict[str, bytes]) -> dict[str, Any]:
        if given and self._others is _ABSENT:
            raise refusal("$", f"step {self._step_name!r} has no parameter {next(iter(given))!r}")
        return {name: self._decode(name, raw, self._others) for name, raw in given.items()}

    def _decode(self, name: str, raw: bytes, kind: Any) -> Any:
        try:
            return decode_as(raw, kind)
        except Serialization as error:
            detail = f"parameter {name!r} of step {self._step_name!r}: {error.detail}"
            raise Serialization("payload", detail=detail) from None


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


def _is_context(kind: Any) -> bool:
    return kind is StepContext or StepContext in typing.get_args(kind)


def place(function: Callable[..., Any]) -> str:
    """File and line of a function, for messages."""
    code = getattr(underlying(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)
