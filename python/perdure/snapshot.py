"""Snapshots as users read them: a frozen view of a run at a sequence, over the kernel's JSON (spec 02 §2.7, R28)."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec

from perdure.codec import Coding, PayloadKind, PayloadPlace
from perdure.instant import Instant
from perdure.payload import decode, decode_as
from perdure.policy import RetryPolicy
from perdure.spec import WorkflowSpec
from perdure.values import CancellationRequest, ChildOperationReference, WorkflowProgress, read_shape

__all__ = ["HookSnapshot", "StepSnapshot", "WaitSnapshot", "WorkflowRunSnapshot"]

T = TypeVar("T")

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


class _Step(msgspec.Struct):
    step_id: str
    step_name: str
    status: str
    input: msgspec.Raw
    retry: msgspec.Raw
    output: msgspec.Raw
    error: str | None
    attempt: int
    retry_after: str | None


class _Wait(msgspec.Struct):
    wait_id: str
    status: str
    resume_at: str


class _Hook(msgspec.Struct):
    hook_id: str
    token: str
    status: str
    metadata: msgspec.Raw
    payload: msgspec.Raw


class _Snapshot(msgspec.Struct):
    run_id: str
    spec: msgspec.Raw
    input: msgspec.Raw
    status: str
    steps: dict[str, _Step]
    waits: dict[str, _Wait]
    hooks: dict[str, _Hook]
    cancellation: msgspec.Raw
    progress: list[msgspec.Raw]
    child_operations: dict[str, msgspec.Raw]
    output: msgspec.Raw
    error: str | None
    terminal_outcome: msgspec.Raw
    last_sequence: int
    resolutions: list[tuple[str, str, int]]
    failures: dict[str, msgspec.Raw]


def _value(raw: msgspec.Raw) -> Any:
    return decode(bytes(raw))


class _Plain:
    """The payloads of one run's snapshot as JSON, through the engine's codec if it has one (R42)."""

    __slots__ = ("_coding", "_run_id")

    def __init__(self, run_id: str = "", coding: Coding | None = None) -> None:
        self._run_id, self._coding = run_id, coding

    def __call__(self, raw: msgspec.Raw, kind: PayloadKind, subject: str = "", *, there: bool = True) -> bytes:
        """`there`: whether the payload exists; the null of one that does not is nothing a codec made."""
        stored = bytes(raw)
        if self._coding is None or not there:
            return stored
        return self._coding.decode(stored, PayloadPlace(self._run_id, kind, subject))


_AS_STORED: Final = _Plain()


class StepSnapshot:
    """One step (spec 02 §2.3). Payloads are decoded when asked for and stay out of the repr."""

    __slots__ = ("_plain", "_step")

    def __init__(self, step: _Step, plain: _Plain = _AS_STORED) -> None:
        self._step, self._plain = step, plain

    @property
    def step_id(self) -> str:
        return self._step.step_id

    @property
    def step_name(self) -> str:
        return self._step.step_name

    @property
    def status(self) -> str:
        """pending, running, completed, failed or cancelled."""
        return self._step.status

    @property
    def input(self) -> Any:
        return decode(self._plain(self._step.input, "step_input", self.step_id))

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy.from_json(bytes(self._step.retry))

    @property
    def output(self) -> Any:
        """The output; None also while there is none, see `status`."""
        return decode(self.output_json)

    @property
    def output_json(self) -> bytes:
        """The output's JSON."""
        return self._plain(self._step.output, "step_output", self.step_id, there=self.status == "completed")

    @property
    def error(self) -> str | None:
        return self._step.error

    @property
    def attempt(self) -> int:
        return self._step.attempt

    @property
    def retry_after(self) -> Instant | None:
        """When the next attempt is due, while a delayed retry is open."""
        return None if self._step.retry_after is None else Instant.parse(self._step.retry_after)

    def __repr__(self) -> str:
        return f"<StepSnapshot {self.step_id!r} {self.step_name!r}: {self.status}, attempt {self.attempt}>"


class WaitSnapshot:
    """One wait (spec 02 §2.4)."""

    __slots__ = ("_wait",)

    def __init__(self, wait: _Wait) -> None:
        self._wait = wait

    @property
    def wait_id(self) -> str:
        return self._wait.wait_id

    @property
    def status(self) -> str:
        """waiting, completed or cancelled."""
        return self._wait.status

    @property
    def resume_at(self) -> Instant:
        return Instant.parse(self._wait.resume_at)

    def __repr__(self) -> str:
        return f"<WaitSnapshot {self.wait_id!r}: {self.status}, due {self._wait.resume_at}>"


class HookSnapshot:
    """One hook (spec 02 §2.5). The repr shows neither token, metadata nor payload."""

    __slots__ = ("_hook", "_plain")

    def __init__(self, hook: _Hook, plain: _Plain = _AS_STORED) -> None:
        self._hook, self._plain = hook, plain

    @property
    def hook_id(self) -> str:
        return self._hook.hook_id

    @property
    def token(self) -> str:
        """The secret that resolves the hook; keep it out of logs."""
        return self._hook.token

    @property
    def status(self) -> str:
        """active, received, disposed or cancelled."""
        return self._hook.status

    @property
    def metadata(self) -> Any:
        return decode(self._plain(self._hook.metadata, "hook_metadata", self.hook_id))

    @property
    def payload(self) -> Any:
        """The payload; None also while there is none, see `status`."""
        return decode(self.payload_json)

    @property
    def payload_json(self) -> bytes:
        """The payload's JSON."""
        return self._plain(self._hook.payload, "hook_payload", self.hook_id, there=self.status == "received")

    def __repr__(self) -> str:
        return f"<HookSnapshot {self.hook_id!r}: {self.status}>"


class WorkflowRunSnapshot:
    """A run as it stood at `last_sequence`. Read-only; parsed when first asked, payloads only when asked for.

    Two snapshots are equal if their bytes are. The repr shows neither payloads nor tokens. One that an engine with a
    codec gave reads payloads through it; pickled, it leaves the codec behind, as that holds keys.
    """

    def __init__(self, json: bytes, coding: Coding | None = None) -> None:
        self._json = json
        self._coding = coding

    @property
    def json(self) -> bytes:
        """The snapshot as the kernel wrote it (R28), payloads as they are stored."""
        return self._json

    @cached_property
    def _plain(self) -> _Plain:
        return _Plain(self.run_id, self._coding)

    @property
    def _output_json(self) -> bytes:
        return self._plain(self._top.output, "run_output", there=self.status == "completed")

    @cached_property
    def _top(self) -> _Snapshot:
        return read_shape(self._json, _Snapshot, "a snapshot")

    @property
    def run_id(self) -> str:
        return self._top.run_id

    @property
    def spec(self) -> WorkflowSpec:
        return WorkflowSpec.from_json(bytes(self._top.spec))

    @property
    def status(self) -> str:
        """pending, running, suspended, cancelling, completed, failed or cancelled."""
        return self._top.status

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.status in TERMINAL

    @property
    def input(self) -> Any:
        return decode(self._plain(self._top.input, "run_input"))

    @property
    def output(self) -> Any:
        """The output; None also while there is none, see `status`."""
        return decode(self._output_json)

    @property
    def error(self) -> str | None:
        return self._top.error

    @cached_property
    def steps(self) -> dict[str, StepSnapshot]:
        return {key: StepSnapshot(step, self._plain) for key, step in self._top.steps.items()}

    @cached_property
    def waits(self) -> dict[str, WaitSnapshot]:
        return {key: WaitSnapshot(wait) for key, wait in self._top.waits.items()}

    @cached_property
    def hooks(self) -> dict[str, HookSnapshot]:
        return {key: HookSnapshot(hook, self._plain) for key, hook in self._top.hooks.items()}

    @property
    def cancellation(self) -> CancellationRequest | None:
        raw = bytes(self._top.cancellation)
        return None if raw == b"null" else CancellationRequest.recorded(raw)

    @property
    def progress(self) -> list[WorkflowProgress]:
        """In the order they were recorded."""
        return [WorkflowProgress.from_json(bytes(raw)) for raw in self._top.progress]

    @property
    def child_operations(self) -> dict[str, ChildOperationReference]:
        return {key: ChildOperationReference.from_json(bytes(raw)) for key, raw in self._top.child_operations.items()}

    @property
    def terminal_outcome(self) -> dict[str, Any] | None:
        """How the run ended, as the object of spec 06 §6.8."""
        outcome: dict[str, Any] | None = _value(self._top.terminal_outcome)
        if outcome is not None and outcome["type"] == "completed":
            outcome["output"] = self.output
        return outcome

    @property
    def last_sequence(self) -> int:
        return self._top.last_sequence

    @property
    def resolutions(self) -> list[tuple[str, str, int]]:
        """(kind, id, sequence) of everything resolved, by sequence."""
        return list(self._top.resolutions)

    @property
    def failures(self) -> dict[str, dict[str, Any]]:
        """The newest recorded failure detail of each step that has one: type, message, traceback (R53)."""
        return {key: _value(raw) for key, raw in self._top.failures.items()}

    def input_as(self, kind: type[T]) -> T:
        """The input as `kind`. Raises `Serialization("payload")`."""
        return decode_as(self._plain(self._top.input, "run_input"), kind)

    def output_as(self, kind: type[T]) -> T | None:
        """The output as `kind`, None while the run is not completed. Raises `Serialization("payload")`."""
        return decode_as(self._output_json, kind) if self.status == "completed" else None

    def step_output(self, step_id: str) -> Any:
        """The output of a step, None while it is not completed."""
        step = self.steps.get(step_id)
        return step.output if step is not None and step.status == "completed" else None

    def step_output_as(self, step_id: str, kind: type[T]) -> T | None:
        """The output of a step as `kind`, None while it is not completed. Raises `Serialization("payload")`."""
        step = self.steps.get(step_id)
        return decode_as(step.output_json, kind) if step is not None and step.status == "completed" else None

    def hook_payload(self, hook_id: str) -> Any:
        """The payload of a hook, None while it is not received."""
        hook = self.hooks.get(hook_id)
        return hook.payload if hook is not None and hook.status == "received" else None

    def hook_payload_as(self, hook_id: str, kind: type[T]) -> T | None:
        """The payload of a hook as `kind`, None while it is not received. Raises `Serialization("payload")`."""
        hook = self.hooks.get(hook_id)
        return decode_as(hook.payload_json, kind) if hook is not None and hook.status == "received" else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowRunSnapshot) and self._json == other._json

    def __hash__(self) -> int:
        return hash(self._json)

    def __reduce__(self) -> tuple[type[WorkflowRunSnapshot], tuple[bytes]]:
        return WorkflowRunSnapshot, (self._json,)

    def __repr__(self) -> str:
        return f"<WorkflowRunSnapshot {self.run_id!r}: {self.status} at {self.last_sequence}>"
