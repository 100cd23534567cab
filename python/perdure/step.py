"""Steps: the function a step is, how its stored input becomes its arguments, and what it is told (R41, R54)."""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from perdure.arguments import Binding, place, store_untyped, underlying
from perdure.errors import StepCancelled, StepNotRegistered
from perdure.payload import decode, reader
from perdure.policy import RetryPolicy
from perdure.wire import whole_ms

__all__ = ["Binding", "CancelToken", "Mode", "Step", "StepContext", "StepPlan", "StepRef", "place", "underlying"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Mode = Literal["thread", "async", "inline"]
"""Where a step runs: on a thread of the engine's pool, on its event loop, or in place."""


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
    """What one attempt of a step is told about itself. A step gets it in every parameter annotated with it. Type checkers know
    that its callers leave it out if it is the first parameter, or is called `step` and stands behind up to four others; the
    step's other arguments they do not check then."""

    run_id: str
    step_id: str
    step_name: str
    attempt: int
    cancelled: CancelToken = field(default_factory=CancelToken, compare=False, repr=False)
    """Set once nobody wants the result any more; a step on a thread hears of a cancellation only by looking (R20, R21)."""

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


class Step(Generic[P, R_co]):
    """A registered step. Calling it calls the function; `ctx.schedule_step(id, step, …)` schedules it."""

    def __init__(self, function: Callable[P, R_co], name: str, plan: StepPlan, names: Mapping[str, Any]) -> None:
        """`names` are the local names at the decorator, for annotations of classes that are no globals."""
        self.function, self.name, self.plan = function, name, plan
        self.given_id: str | None = None
        self.limit_ms: int | None = None  # by `options`, where `plan` holds the declared one
        update_wrapper(cast(Any, self), function, updated=())  # its own attributes must not replace ours
        try:
            self._binding: Binding | None = _bind(name, function, names)
        except NameError:  # an annotation that is defined further down: looked up again when the step is first used
            self._binding = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Step {self.name!r} at {place(self.function)}>"

    def options(
        self, *, id: str | None = None, retry: RetryPolicy | None = None, timeout: timedelta | None = None
    ) -> Step[P, R_co]:
        """The same step to be called with an id, retry policy or time limit of this call's own (R41, R54). Raises
        `ValueError` for a time limit of an inline step."""
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(f"the retry of step {self.name!r} is a RetryPolicy, not {type(retry).__name__}")
        if timeout is not None and self.plan.mode == "inline":
            raise ValueError(f"step {self.name!r} runs inline and cannot have a timeout (R54)")
        other = copy(self)
        other.__dict__.pop("async_retry", None)
        other.given_id = self.given_id if id is None else id
        other.limit_ms = self.limit_ms if timeout is None else whole_ms("timeout", timeout, 1)
        if retry is not None:
            other.plan = replace(self.plan, retry=retry)
        return other

    def input(self, *args: P.args, **kwargs: P.kwargs) -> object:
        """The input that calls the step with these arguments, as a value of JSON, for the command form:
        `ctx.schedule_step("ship", ship, ship.input(order, express=True))`. Raises `TypeError` as the call would, and
        `Serialization("payload")`."""
        return decode(self.store(args, kwargs))

    @cached_property
    def store(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bytes]:
        """The arguments of one call as they are stored; see `Binding.store`."""
        return self.binding.store

    @cached_property
    def decode(self) -> Callable[[bytes], Any]:
        """Reads a stored output as the type it is annotated to return. Raises `Serialization("payload")`."""
        return reader(self.binding.returns)

    @cached_property
    def async_retry(self) -> bytes:
        """Its policy as an async workflow stores it: a failure goes to the workflow unless the policy says otherwise
        (R11)."""
        policy = self.plan.retry
        if policy is None:
            return _DEFAULT_RETRY
        return (policy if policy.on_exhausted is not None else policy.continue_workflow_on_failure()).to_json()

    @property
    def binding(self) -> Binding:
        """Its parameters. Raises `TypeError` for an annotation that names nothing or that JSON cannot become."""
        if self._binding is None:
            try:
                self._binding = _bind(self.name, self.function, {})
            except NameError as error:
                text = f"step {self.name!r} at {place(self.function)}: an annotation cannot be resolved: {error}"
                raise TypeError(text) from error
        return self._binding


class StepRef(Step[..., R_co]):
    """A step known only by its name: its function is in another process (R41)."""

    def __init__(self, name: str, returns: Any) -> None:
        super().__init__(_elsewhere, name, StepPlan("thread"), {})
        self._binding = _NameOnly(name, returns)

    def __repr__(self) -> str:
        return f"<Step {self.name!r}, known by name>"


class _NameOnly(Binding):
    """Arguments for parameters that are not known: one by position, or any by name."""

    def __init__(self, name: str, returns: Any) -> None:
        super().__init__(f"step {name!r}", _elsewhere, {})
        self._returns = returns

    def store(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        return store_untyped(args, named)


def _elsewhere(*args: Any, **named: Any) -> Any:
    raise StepNotRegistered("of another process")


_DEFAULT_RETRY = RetryPolicy(on_exhausted="continue_workflow").to_json()


def _is_context(kind: Any) -> bool:
    return kind is StepContext or StepContext in typing.get_args(kind)


def _bind(name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> Binding:
    return Binding(f"step {name!r}", function, names, lambda index, kind: _is_context(kind))
