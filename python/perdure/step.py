"""Steps: the function a step is, how its stored input becomes its arguments, and what it is told (R41, R54)."""

from __future__ import annotations

import threading
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Generic, Literal, ParamSpec, TypeVar, cast

from perdure.arguments import Binding, place, underlying
from perdure.errors import StepCancelled
from perdure.policy import RetryPolicy

__all__ = ["Binding", "CancelToken", "Mode", "Step", "StepContext", "StepPlan", "place", "underlying"]

P = ParamSpec("P")
R = TypeVar("R")

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


class Step(Generic[P, R]):
    """A registered step. Calling it calls the function; `ctx.schedule_step(id, step, …)` schedules it."""

    def __init__(self, function: Callable[P, R], name: str, plan: StepPlan, names: Mapping[str, Any]) -> None:
        """`names` are the local names at the decorator, for annotations of classes that are no globals."""
        self.function, self.name, self.plan = function, name, plan
        update_wrapper(cast(Any, self), function, updated=())  # its own attributes must not replace ours
        try:
            self._binding: Binding | None = _bind(name, function, names)
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
                self._binding = _bind(self.name, self.function, {})
            except NameError as error:
                text = f"step {self.name!r} at {place(self.function)}: an annotation cannot be resolved: {error}"
                raise TypeError(text) from error
        return self._binding


def _is_context(kind: Any) -> bool:
    return kind is StepContext or StepContext in typing.get_args(kind)


def _bind(name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> Binding:
    return Binding(f"step {name!r}", function, names, lambda index, kind: _is_context(kind))
