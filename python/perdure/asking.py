"""The workflow side of a drive: turns a `FlowRuntime` into the pure `Program` that the drive asks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

from perdure.attempts import plan_of
from perdure.codec import Coding, check_plain
from perdure.commands import RuntimeCommand
from perdure.effects import Asked, HistoryNeeded
from perdure.errors import FlowError, Serialization, StepNotRegistered, WorkflowNotRegistered, WorkflowRaised
from perdure.flow import FlowRuntime, WorkflowInvocation
from perdure.keeping import KeptCoroutine
from perdure.kernel import Reads
from perdure.model import Envelope, WorkflowSpec
from perdure.outcome import brief, where_raised

__all__ = ["RuntimeProgram", "check_input", "spec_of"]


class RuntimeProgram:
    """Asks one run's workflow and looks up its steps."""

    def __init__(
        self,
        runtime: FlowRuntime,
        run_id: str,
        coding: Coding | None = None,
        same: Callable[[bytes, bytes], bool] = operator.eq,
        strict: bool = False,
    ) -> None:
        """`same` says whether two JSON texts are equal; `strict` replays async workflows from the start each time and
        holds the kept coroutine to it (R63)."""
        self._coding = coding
        self._kept = KeptCoroutine(runtime, run_id, same, strict)
        self._runtime = runtime
        self._watching: Callable[[], AbstractContextManager[None]] = getattr(runtime, "watching", nullcontext)
        self._run_id = run_id
        self._spec = WorkflowSpec.from_json(b"{}")
        self._raw_spec = b""

    def ask(self, reads: Reads, history: Callable[[], bytes]) -> Asked:
        """One call of the workflow function. Raises `WorkflowRaised` for what user code raised, our own errors as
        they are."""
        if (raw := reads.spec) != self._raw_spec:  # a run's spec never changes; it is read once per drive
            self._spec, self._raw_spec = WorkflowSpec.from_json(raw), raw
            if self._coding is None:
                check_plain(self._run_id, reads.input)
        spec = self._spec
        plain = reads if self._coding is None else self._coding.reads(reads)
        invocation = WorkflowInvocation(self._run_id, spec, plain, lambda: self._envelopes(history()))
        try:
            with self._watching():
                command: object = self._kept.ask(spec, plain)
                if command is None:
                    command = self._runtime.run_workflow(invocation)  # whatever a host returns
            if not isinstance(command, RuntimeCommand):
                given = type(command).__name__
                raise TypeError(f"it returned {given}; return a command such as ctx.complete(...)")
            text = command.to_json()
            limits = {**self._kept.limits, **command.timeouts}
            return Asked(text if self._coding is None else self._coding.command(text, reads), limits)
        except FlowError as error:
            error.run_id = error.run_id or self._run_id
            raise
        except (KeyboardInterrupt, SystemExit, HistoryNeeded):
            raise
        except BaseException as error:  # also a CancelledError: it is not this task that was cancelled
            raise self._raised(error) from error

    def accepted(self) -> None:
        """The pass that was asked last counts."""
        self._kept.accepted()

    def check_payload(self, reads: Reads, hook_id: str, payload: bytes) -> None:
        """Raises `Serialization("payload")` if the async workflow, replayed up to here, asks for this hook with a type that the
        JSON does not fit. Whatever else goes wrong is left for a drive to tell."""
        try:
            if self._coding is None:
                check_plain(self._run_id, reads.input)
            plain = reads if self._coding is None else self._coding.reads(reads)
            with self._watching():
                check = self._kept.hook_check(WorkflowSpec.from_json(reads.spec), plain, hook_id)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - of workflow code
            return
        if check is not None:
            _only_misfits(partial(check, payload))

    @property
    def kept_bytes(self) -> int:
        """About how much a coroutine that is kept takes."""
        return self._kept.size

    def close(self) -> None:
        """Ends a coroutine that is kept (R63)."""
        self._kept.close()

    def _envelopes(self, lines: bytes) -> list[Envelope]:
        found = Envelope.parse_lines(lines)
        return found if self._coding is None else [self._coding.envelope(envelope) for envelope in found]

    def _raised(self, error: BaseException) -> WorkflowRaised:
        spec = self._spec
        return WorkflowRaised(self._run_id, spec.name, spec.version, brief(error), where_raised(error))

    def timeout_ms(self, step_name: str, step_id: str) -> int | None:
        """The declared time limit of a step. Raises `StepNotRegistered`."""
        try:
            return plan_of(self._runtime, step_name).timeout_ms
        except StepNotRegistered as error:
            raise StepNotRegistered(error.step_name, step_id) from None
        except FlowError:
            raise
        except Exception as error:  # a step that cannot be planned must not cost the outcomes staged beside it (R1)
            raise self._raised(error) from error


def spec_of(runtime: FlowRuntime, workflow: str | WorkflowSpec | Callable[..., Any]) -> WorkflowSpec:
    """The spec that `start` means by a name, a function or a spec. Raises `WorkflowNotRegistered`."""
    if isinstance(workflow, WorkflowSpec):
        return workflow
    look_up = getattr(runtime, "spec_of", None)
    if look_up is None:
        raise WorkflowNotRegistered(str(workflow), "?")
    return cast(WorkflowSpec, look_up(workflow))


def check_input(runtime: FlowRuntime, spec: WorkflowSpec, raw: bytes) -> None:
    """Raises `Serialization("payload")` if this runtime knows the workflow's parameters and the input does not fit them."""
    check = getattr(runtime, "check_input", None)
    if check is not None:
        _only_misfits(partial(check, spec, raw))


def _only_misfits(check: Callable[[], None]) -> None:
    """What a type's own code raises is left for a drive to tell."""
    try:
        check()
    except Serialization:
        raise
    except Exception:  # noqa: BLE001 - of a validator
        return
