"""`Flow`: the registry of steps and workflows, and the runtime that the engine asks (spec 09 §9.2, R41, R56, R57)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from perdure.commands import RuntimeCommand
from perdure.context import WorkflowContext
from perdure.envelope import Envelope
from perdure.errors import StepNotRegistered, WorkflowNotRegistered
from perdure.guard import Guard, GuardMode
from perdure.policy import RetryPolicy
from perdure.spec import WorkflowSpec
from perdure.step import Mode, Step, StepContext, StepPlan, StepRef, place, underlying
from perdure.wire import whole_ms

if TYPE_CHECKING:
    from perdure.coroutine.context import AsyncContext
    from perdure.coroutine.replay import Replay
    from perdure.coroutine.workflow import AsyncWorkflow
    from perdure.kernel import Reads

__all__ = [
    "Flow",
    "FlowRuntime",
    "SpecSource",
    "StepInvocation",
    "StepPlan",
    "StepPlanner",
    "Workflow",
    "WorkflowInvocation",
    "WorkflowOpener",
]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

WorkflowFunction = Callable[[WorkflowContext], RuntimeCommand]


@dataclass(frozen=True, slots=True)
class WorkflowInvocation:
    """One ask: the workflow of `spec` answers with a command for what `reads` shows."""

    run_id: str
    spec: WorkflowSpec
    reads: Reads = field(repr=False)
    history: Callable[[], list[Envelope]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StepInvocation:
    """One attempt of one step. `input` is the stored JSON."""

    run_id: str
    step_id: str
    step_name: str
    input: bytes = field(repr=False)
    attempt: int
    context: StepContext


class FlowRuntime(Protocol):
    """What the engine needs of its host: code for workflows and steps. `Flow` is one; hosts may bring their own."""

    def run_workflow(self, invocation: WorkflowInvocation) -> RuntimeCommand:
        """The next command. Raises `WorkflowNotRegistered`; any exception leaves the run open."""
        ...

    def run_step(self, invocation: StepInvocation) -> object:
        """The output of one attempt, or an awaitable of it. Called on a thread, on the loop or in place, as planned."""
        ...


class StepPlanner(Protocol):
    """What a runtime may offer beside: how each step is run."""

    def plan_step(self, step_name: str) -> StepPlan:
        """How this step is run. Raises `StepNotRegistered`, before anything is recorded (R57)."""
        ...


class WorkflowOpener(Protocol):
    """What a runtime may offer beside: async workflows as something that can be kept between asks."""

    def open_workflow(
        self, spec: WorkflowSpec, run_id: str, same: Callable[[bytes, bytes], bool], tokens: dict[str, str]
    ) -> Replay | None:
        """A new replay of this run's coroutine, None for a workflow of the command form. Raises
        `WorkflowNotRegistered`."""
        ...


class SpecSource(Protocol):
    """What a runtime may offer beside: specs of workflows given by function or name."""

    def spec_of(self, workflow: Any) -> WorkflowSpec:
        """The spec to start. Raises `WorkflowNotRegistered`."""
        ...


@dataclass(frozen=True, slots=True)
class Workflow:
    """A registered workflow in the command form. Calling it calls the function."""

    name: str
    version: str
    function: WorkflowFunction

    def __call__(self, ctx: WorkflowContext) -> RuntimeCommand:
        return self.function(ctx)

    def spec(self, build: str | None = None) -> WorkflowSpec:
        """The spec of its runs (R57)."""
        return WorkflowSpec.python(self.name, self.version, build)


class _Context0(Protocol[R_co]):
    def __call__(self, *, step: StepContext) -> R_co: ...


class _Context1(Protocol[R_co]):
    def __call__(self, a: Any, /, *, step: StepContext) -> R_co: ...


class _Context2(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, /, *, step: StepContext) -> R_co: ...


class _Context3(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, c: Any, /, *, step: StepContext) -> R_co: ...


class _Context4(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, step: StepContext) -> R_co: ...


_Leading = Callable[Concatenate[StepContext, ...], R]


class Flow:
    """Steps by name and workflows by name and version. One per application; register at import time."""

    def __init__(self, *, guard: GuardMode = "warn") -> None:
        """`guard`: "warn" lints each workflow when it is registered (`GuardWarning` with file and line), "raise" also makes
        the calls themselves raise `GuardViolation` while a workflow runs, "off" does neither."""
        self._guard = Guard(guard)
        self._steps: dict[str, Step[..., Any]] = {}
        self._workflows: dict[tuple[str, str], Workflow | AsyncWorkflow[..., Any]] = {}

    # -- registration --------------------------------------------------------------------------------------------

    # What calls a step leaves its `StepContext` out, which no signature can be typed to say. Of a step that takes one as its
    # first parameter, or as `step` behind up to four others, type checkers know the result only.
    @overload
    def step(self, function: _Leading[R], /) -> Step[..., R]: ...
    @overload
    def step(self, function: _Context0[R], /) -> Step[..., R]: ...
    @overload
    def step(self, function: _Context1[R], /) -> Step[..., R]: ...
    @overload
    def step(self, function: _Context2[R], /) -> Step[..., R]: ...
    @overload
    def step(self, function: _Context3[R], /) -> Step[..., R]: ...
    @overload
    def step(self, function: _Context4[R], /) -> Step[..., R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        inline: bool = False,
    ) -> _StepDecorator: ...
    def step(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        inline: bool = False,
    ) -> Any:
        """Registers a step under `name`, by default the function's.

        A plain function runs on a thread, an `async def` on the engine's loop, `inline=True` in place: for work of
        microseconds only. `retry` is its policy where the command names none, `timeout` the limit of one attempt.
        Raises `ValueError` for a second step of that name, for something without a name, or for an inline step that is
        async or has a timeout (R54).
        """

        def register(function: Callable[..., Any]) -> Step[..., Any]:
            called = name or getattr(function, "__name__", None)
            if called is None:
                raise ValueError(f"{function!r} has no name of its own; give the step one by name=")
            return self._add_step(function, called, retry, timeout, inline)

        return register if function is None else register(function)

    @overload
    def ref(self, name: str) -> Step[..., Any]: ...
    @overload
    def ref(self, name: str, *, returns: type[R]) -> Step[..., R]: ...
    @overload
    def ref(self, name: str, *, returns: Any) -> Step[..., Any]: ...
    def ref(self, name: str, *, returns: Any = Any) -> Step[..., Any]:
        """A step of another process, known by its name; its output is decoded to `returns` (R41)."""
        return StepRef(name, returns)

    def workflow(
        self, name: str, *, version: str = "1", fails_on: tuple[type[BaseException], ...] = ()
    ) -> _WorkflowDecorator:
        """Registers a workflow: an `async def` of an `AsyncContext`, or in the command form a pure function of a
        `WorkflowContext` that returns one command.

        An exception listed in `fails_on` ends an async run as failed, with its text; one that is neither listed nor
        ours leaves the run open for the repaired code (R39). Raises `ValueError` for a second workflow of that name and
        version.
        """

        given: dict[str, Any] = {"name": name, "version": version}
        for what, text in given.items():
            if not isinstance(text, str):
                hint = ' (write @flow.workflow("name"), with a name)' if callable(text) else ""
                raise TypeError(f"the {what} of a workflow is a text, not {type(text).__name__}{hint}")
            if not text.strip():
                raise ValueError(f"the {what} of a workflow is blank")

        is_async_only = _checked_fails_on(name, fails_on)

        def register(function: Callable[..., Any]) -> Any:
            is_async = inspect.iscoroutinefunction(underlying(function))
            if inspect.isasyncgenfunction(underlying(function)):
                raise TypeError(f"workflow {name!r} at {place(function)} yields; an async workflow returns its output")
            if is_async_only and not is_async:
                raise TypeError(
                    f"workflow {name!r} at {place(function)} is no async def, so fails_on means nothing to it"
                )
            if not _takes_context(function):
                raise TypeError(
                    f"workflow {name!r} at {place(function)} has no parameter for its context; give it one, the first"
                )
            known = self._workflows.get((name, version))
            if known is not None:
                raise ValueError(
                    f"workflow {name!r} version {version!r} is registered twice: "
                    f"at {place(known.function)} and at {place(function)}"
                )
            self._guard.register(function)
            workflow = self._new_workflow(name, version, function, fails_on if is_async else None)
            self._workflows[name, version] = workflow
            return workflow

        return register

    @staticmethod
    def _new_workflow(
        name: str, version: str, function: Callable[..., Any], fails_on: tuple[type[BaseException], ...] | None
    ) -> Workflow | AsyncWorkflow[..., Any]:
        if fails_on is None:
            return Workflow(name, version, function)
        from perdure.coroutine.workflow import AsyncWorkflow  # the command form does without asyncio

        return AsyncWorkflow(name, version, function, fails_on, _caller_names())

    def _add_step(
        self,
        function: Callable[..., Any],
        name: str,
        retry: RetryPolicy | None,
        timeout: timedelta | None,
        inline: bool,
    ) -> Step[..., Any]:
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise TypeError(
                f"the retry of step {name!r} is a RetryPolicy such as RetryPolicy.fixed(3, delay), not {type(retry).__name__}"
            )
        known = self._steps.get(name)
        if known is not None:
            both = f"at {place(known.function)} and at {place(function)}"
            raise ValueError(f"step {name!r} is registered twice: {both}; give one of them another name=")
        is_async = inspect.iscoroutinefunction(underlying(function))
        if inline and (is_async or timeout is not None):
            reason = "is an async def" if is_async else "has a timeout"
            raise ValueError(f"step {name!r} at {place(function)} {reason} and so cannot run inline (R54)")
        mode: Mode = "inline" if inline else "async" if is_async else "thread"
        limit = None if timeout is None else whole_ms("timeout", timeout, 1)
        step = Step(function, name, StepPlan(mode, limit, retry), _caller_names())
        self._steps[name] = step
        return step

    # -- look-up -------------------------------------------------------------------------------------------------

    @property
    def workflows(self) -> Mapping[tuple[str, str], Workflow | AsyncWorkflow[..., Any]]:
        """All registered workflows by name and version."""
        return dict(self._workflows)

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """All registered steps by name."""
        return dict(self._steps)

    def find_workflow(self, name: str, version: str) -> Workflow | AsyncWorkflow[..., Any]:
        """The workflow of this name and version. Raises `WorkflowNotRegistered`."""
        found = self._workflows.get((name, version))
        if found is None:
            raise WorkflowNotRegistered(name, version, tuple(sorted(self._workflows)))
        return found

    def find_step(self, name: str) -> Step[..., Any]:
        """The step of this name. Raises `StepNotRegistered`."""
        found = self._steps.get(name)
        if found is None:
            raise StepNotRegistered(name)
        return found

    def spec_of(
        self, workflow: WorkflowSpec | Workflow | AsyncWorkflow[..., Any] | Callable[..., Any] | str
    ) -> WorkflowSpec:
        """The spec to start: of a spec, a workflow, its function, or a name that has one version here.

        Raises `WorkflowNotRegistered`, or `ValueError` for a name with several versions.
        """
        if isinstance(workflow, WorkflowSpec):
            return workflow
        if callable(spec := getattr(workflow, "spec", None)):
            return cast(WorkflowSpec, spec())
        if isinstance(workflow, str):
            return self._only(workflow, [w for w in self._workflows.values() if w.name == workflow])
        name = getattr(workflow, "__qualname__", repr(workflow))
        return self._only(name, [w for w in self._workflows.values() if w.function is workflow])

    def _only(self, name: str, found: list[Workflow | AsyncWorkflow[..., Any]]) -> WorkflowSpec:
        if not found:
            raise WorkflowNotRegistered(name, "any", tuple(sorted(self._workflows)))
        if len(found) > 1:
            versions = ", ".join(f"{w.name} {w.version}" for w in found)
            raise ValueError(f"{name!r} means several workflows ({versions}); start WorkflowSpec.python(name, version)")
        return found[0].spec()

    # -- the runtime ---------------------------------------------------------------------------------------------

    def watching(self) -> AbstractContextManager[None]:
        """What each pass runs in; with `guard="raise"` it refuses what a replay would not repeat."""
        return self._guard.watching()

    def run_workflow(self, invocation: WorkflowInvocation) -> RuntimeCommand:
        """Asks the workflow for its next command. Raises `WorkflowNotRegistered`, or what the function raises."""
        workflow = self.find_workflow(invocation.spec.name, invocation.spec.version)
        if isinstance(workflow, Workflow):
            return workflow.function(WorkflowContext(invocation.reads, invocation.history, self._steps.get))
        return workflow.ask_once(invocation.run_id, invocation.reads)

    def open_workflow(
        self, spec: WorkflowSpec, run_id: str, same: Callable[[bytes, bytes], bool], tokens: dict[str, str]
    ) -> Replay | None:
        """A new replay of an async workflow's coroutine for the engine to keep; None for the command form. Raises
        `WorkflowNotRegistered`."""
        workflow = self.find_workflow(spec.name, spec.version)
        return None if isinstance(workflow, Workflow) else workflow.open(run_id, same, tokens)

    def check_input(self, spec: WorkflowSpec, raw: bytes) -> None:
        """Raises `Serialization("payload")` if the input does not fit the parameters of an async workflow registered here."""
        workflow = self._workflows.get((spec.name, spec.version))
        if workflow is not None and not isinstance(workflow, Workflow):
            workflow.check_input(raw)

    def plan_step(self, step_name: str) -> StepPlan:
        """How this step is run. Raises `StepNotRegistered`, or `TypeError` if an annotation of it names nothing."""
        step = self.find_step(step_name)
        _ = step.binding  # an annotation that cannot be read must show before the attempt is recorded
        return step.plan

    def run_step(self, invocation: StepInvocation) -> Any | Awaitable[Any]:
        """Calls the step with its stored input, which may give an awaitable.

        Raises `StepNotRegistered`, `Serialization("payload")` for an input that does not fit, or what the step raises.
        """
        step = self.find_step(invocation.step_name)
        args, named = step.binding.arguments(invocation.input, invocation.context)
        return step.function(*args, **named)


class _StepDecorator(Protocol):
    """As the overloads of `Flow.step`."""

    @overload
    def __call__(self, function: _Leading[R], /) -> Step[..., R]: ...
    @overload
    def __call__(self, function: _Context0[R], /) -> Step[..., R]: ...
    @overload
    def __call__(self, function: _Context1[R], /) -> Step[..., R]: ...
    @overload
    def __call__(self, function: _Context2[R], /) -> Step[..., R]: ...
    @overload
    def __call__(self, function: _Context3[R], /) -> Step[..., R]: ...
    @overload
    def __call__(self, function: _Context4[R], /) -> Step[..., R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Any, /) -> Any: ...


class _WorkflowDecorator(Protocol):
    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, function: WorkflowFunction, /) -> Workflow: ...
    def __call__(self, function: Any, /) -> Any: ...


def _takes_context(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function that does not tell, a call will
        return True
    return any(parameter.kind <= parameter.VAR_POSITIONAL for parameter in signature.parameters.values())


def _checked_fails_on(name: str, fails_on: object) -> bool:
    """Whether exceptions are listed. Raises `TypeError` for something else than a tuple of exception classes."""
    if not isinstance(fails_on, tuple) or any(
        not isinstance(kind, type) or not issubclass(kind, BaseException) for kind in fails_on
    ):
        raise TypeError(
            f"fails_on of workflow {name!r} is a tuple of exception classes, such as fails_on=(OutOfStock,)"
        )
    return bool(fails_on)


def _caller_names() -> Mapping[str, Any]:
    """The local names at the decorator, so that annotations of a step may name classes of an enclosing function."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
