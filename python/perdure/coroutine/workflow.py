"""`AsyncWorkflow`: a registered `async def` workflow (R39, R41)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from perdure import kernel as kernels
from perdure.arguments import Binding, place, workflow_binding
from perdure.commands import RuntimeCommand
from perdure.coroutine.context import AsyncContext
from perdure.coroutine.replay import Replay
from perdure.kernel import Reads
from perdure.payload import decode
from perdure.spec import WorkflowSpec

__all__ = ["AsyncWorkflow"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class AsyncWorkflow(Generic[P, R]):
    """A registered workflow in the async form. Calling it calls the function, so that one workflow can await another's
    code as part of its own."""

    name: str
    version: str
    function: Callable[Concatenate[AsyncContext, P], Coroutine[Any, Any, R]]
    fails_on: tuple[type[BaseException], ...] = ()
    _names: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _binding: Binding | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self._binding = workflow_binding(self.name, self.function, self._names)
        except NameError:  # an annotation that is defined further down: looked up again when a run begins
            self._binding = None

    def __call__(self, ctx: AsyncContext, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.function(ctx, *args, **kwargs)

    def spec(self, build: str | None = None) -> WorkflowSpec:
        """The spec of its runs (R57)."""
        return WorkflowSpec.python(self.name, self.version, build)

    @property
    def binding(self) -> Binding:
        """Its parameters behind the context. Raises `TypeError` for an annotation that names nothing or that JSON cannot
        become."""
        if self._binding is None:
            try:
                self._binding = workflow_binding(self.name, self.function, self._names)
            except NameError as error:
                where = place(self.function)
                raise TypeError(
                    f"workflow {self.name!r} at {where}: an annotation cannot be resolved: {error}"
                ) from error
        return self._binding

    def input(self, *args: P.args, **kwargs: P.kwargs) -> object:
        """The run's input that calls the function with these arguments behind the context, as a value of JSON:
        `engine.start(order, order.input(17, express=True))`. Raises `TypeError` as the call would, and
        `Serialization("payload")`."""
        return decode(self.binding.store(args, kwargs))

    def check_input(self, raw_input: bytes) -> None:
        """Raises `Serialization("payload")` if the stored input does not fit the parameters."""
        if self.binding.takes_input:
            self.binding.arguments(raw_input, None)

    def begin(self, ctx: AsyncContext, raw_input: bytes) -> Coroutine[Any, Any, R]:
        """The coroutine of one run. Raises `Serialization("payload")` if the input does not fit the parameters."""
        call: Any = self.function
        if not self.binding.takes_input:  # it reads ctx.input, if anything
            return call(ctx)  # type: ignore[no-any-return]  # the annotation is the function's
        args, named = self.binding.arguments(raw_input, ctx)
        return call(*args, **named)  # type: ignore[no-any-return]

    def open(self, run_id: str, same: Callable[[bytes, bytes], bool], tokens: dict[str, str]) -> Replay:
        """A new replay of one run."""
        return Replay(self, run_id, same, tokens)

    def ask_once(self, run_id: str, reads: Reads) -> RuntimeCommand:
        """The next command by a replay from the start, for hosts that keep none."""
        pure = type(reads).__module__.startswith("perdure._pure")
        replay = self.open(run_id, kernels.load("pure" if pure else "rust").json_equal, {})
        try:
            command = replay.ask(reads)
            replay.confirm()
            return command
        finally:
            replay.close()
