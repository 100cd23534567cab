"""Every error perdure raises.

    FlowError
    ├── RunNotFound  RunTerminal  InvalidRunId  RunConflict
    ├── InvalidWorkflow  WorkflowNotRegistered  StepNotRegistered  WorkflowRaised
    ├── InvalidTransition  NonDeterministic  DuplicateId  WorkflowStuck  ForeignAwaitError
    ├── HookDisposed  WorkflowFailed  EndTimedOut
    ├── ReplayLimitExceeded  HistoryLimitExceeded  DriveLost
    ├── HookTokenNotFound  HookTokenConflict  HookConflict
    ├── InvalidRuntimeBuildId  RuntimeBuildUnavailable  RuntimeBuildRouteNotFound
    ├── InvalidWorkerConfiguration  QueueBackpressure  TaskLeaseLost  TaskSetAside
    ├── Serialization
    │   └── UnsupportedEventSchemaVersion  PayloadCodecFailed
    ├── PayloadTooLarge
    ├── StoreRefusal
    │   └── EventConflict  LeaseLost  LeaseHeld
    ├── StoreError
    │   └── StoreUnavailable  OutcomeUnknown
    ├── EngineClosed  CallFromLoopThread  CallFromOwnStep  EngineElsewhere
    └── StepError
        └── NonRetryable  RetryAfter  StepCancelled  StepFailed

Both kernels raise these very classes with equal fields; `args` holds the fields in order, so every error
pickles and two errors compare by `type` and `args`. The text is made here, from the fields, and nowhere else.
Tokens stay readable as attributes and never appear in a text or a repr.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from perdure.difference import first_difference
from perdure.transition_rules import RULES

# One name a line would be a tenth of this file.
# fmt: off
__all__ = [
    "CallFromLoopThread", "CallFromOwnStep", "DriveLost", "DuplicateId", "EndTimedOut", "EngineClosed", "EngineElsewhere",
    "EventConflict", "FlowError", "ForeignAwaitError", "HistoryLimitExceeded", "HookConflict", "HookDisposed",
    "HookTokenConflict", "HookTokenNotFound", "InvalidRunId", "InvalidRuntimeBuildId", "InvalidTransition",
    "InvalidWorkerConfiguration", "InvalidWorkflow", "LeaseHeld", "LeaseLost", "NonDeterministic", "NonRetryable",
    "OutcomeUnknown", "PayloadCodecFailed", "PayloadTooLarge", "QueueBackpressure", "ReplayLimitExceeded",
    "RetryAfter", "RunConflict", "RunNotFound", "RunTerminal", "RuntimeBuildRouteNotFound",
    "RuntimeBuildUnavailable", "Serialization", "StepCancelled", "StepError", "StepFailed", "StepNotRegistered",
    "StoreError", "StoreRefusal", "StoreUnavailable", "TaskLeaseLost", "TaskSetAside",
    "UnsupportedEventSchemaVersion", "WorkflowFailed", "WorkflowNotRegistered", "WorkflowRaised", "WorkflowStuck",
]
# fmt: on


class FlowError(Exception):
    """Base of all errors of this package. `code` is stable; `run_id` is set by the engine where a run is meant."""

    code: ClassVar[str] = "flow_error"
    run_id: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, {k: v for k, v in self.__dict__.items() if k == "run_id"})


class RunNotFound(FlowError):
    """No run with this id has an event in the store."""

    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id: str | None = run_id

    def __str__(self) -> str:
        return f"run {self.run_id!r} does not exist in this store"


class RunTerminal(FlowError):
    """The call needs an open run and this one has ended."""

    code = "run_terminal"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id: str | None = run_id

    def __str__(self) -> str:
        return f"run {self.run_id!r} has already ended"


class InvalidRunId(FlowError):
    """A run id outside `[A-Za-z0-9_-]+` (`reason` "empty" or "characters") or, for a new run, past 200 characters
    ("length")."""

    code = "invalid_run_id"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id: str | None = run_id
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"run id {(self.run_id or '')[:64]!r} is not valid ({self.reason}): "
            "use 1 to 200 ASCII letters, digits, '-' and '_'"
        )


class RunConflict(FlowError):
    """The run exists and differs from what the call says. `reason`: "spec", "input", "request", "pruned", "history_hold" or
    "case"."""

    code = "run_conflict"
    _TEXT: ClassVar[dict[str, str]] = {
        "spec": "was started with another workflow spec; use another run id",
        "input": "was started with another input; use another run id",
        "request": "already has a cancellation request with another reason",
        "pruned": "was pruned; its id cannot be used again",
        "history_hold": "already has a retention hold of that id with another reason; use another hold id",
        "case": "exists under another upper/lower case spelling",
    }

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id: str | None = run_id
        self.reason = reason

    def __str__(self) -> str:
        return f"run {self.run_id!r} {self._TEXT.get(self.reason, self.reason)}"


class InvalidWorkflow(FlowError):
    """A workflow spec with a blank part. `field`: "name", "version", "runtime.entrypoint" or "runtime.export_name"."""

    code = "invalid_workflow"

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field

    def __str__(self) -> str:
        return f"the workflow spec has a blank {self.field}; give it a name"


class WorkflowNotRegistered(FlowError):
    """This process has no workflow of that name and version. The run is left open."""

    code = "workflow_not_registered"

    def __init__(self, name: str, version: str, known: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(name, version, known)
        self.name, self.version, self.known = name, version, known

    def __str__(self) -> str:
        known = ", ".join(f"{n} {v}" for n, v in self.known) or "none"
        return f"workflow {self.name!r} version {self.version!r} is not registered here (registered: {known})"


class StepNotRegistered(FlowError):
    """This process has no step of that name. Raised before the step starts; the run is left open."""

    code = "step_not_registered"

    def __init__(self, step_name: str, step_id: str | None = None) -> None:
        super().__init__(step_name, step_id)
        self.step_name, self.step_id = step_name, step_id

    def __str__(self) -> str:
        return f"step {self.step_name!r} (id {self.step_id!r}) is not registered here; decorate it with @flow.step"


class WorkflowRaised(FlowError):
    """The workflow function raised. Nothing of this pass was written and the run stays open. The cause is chained."""

    code = "workflow_raised"

    def __init__(self, run_id: str, workflow: str, version: str, error: str, where: str | None = None) -> None:
        super().__init__(run_id, workflow, version, error, where)
        self.run_id: str | None = run_id
        self.workflow, self.version, self.error, self.where = workflow, version, error, where

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"workflow {self.workflow!r} version {self.version!r} of run {self.run_id!r} raised {self.error}{at}"


class InvalidTransition(FlowError):
    """An event, command or call that is malformed, illegal in this state, or makes no progress.

    `rule` is a key of `RULES`; `kind`, `id`, `sequence` and `value` say what it is about, each None where it does not
    apply.
    """

    code = "invalid_transition"

    def __init__(
        self,
        run_id: str,
        rule: str,
        kind: str | None = None,
        id: str | None = None,
        sequence: int | None = None,
        value: str | None = None,
    ) -> None:
        super().__init__(run_id, rule, kind, id, sequence, value)
        self.run_id: str | None = run_id
        self.rule, self.kind, self.id, self.sequence, self.value = rule, kind, id, sequence, value

    def __str__(self) -> str:
        text = RULES[self.rule].format(kind=self.kind, id=self.id, sequence=self.sequence, value=self.value)
        at = f", event {self.sequence}" if self.sequence is not None else ""
        return f"run {self.run_id!r}{at}: {text}"


class NonDeterministic(FlowError):
    """A known id came back with another definition: the workflow code changed under a run that is under way.

    `kind` is step, wait, hook, progress or child; `part` the field that differs (step_name, input, retry, resume_at,
    token, metadata, progress, child), or `place` where an async workflow did not ask for it by then: `now` then lists
    where its chains are (R37); of kind workflow `command` is what `strict_replay` finds different, `end` how a run ended that
    is replayed; `sequence` that of the event that
    recorded it; `recorded` and `now` both values as JSON text, whole (for tokens both are "<redacted>").
    """

    code = "non_deterministic"
    _SHOWN_BYTES: ClassVar[int] = 512
    _WAY_OUT: ClassVar[str] = (
        "Register the change as a new workflow version; in the command form changed work may have a new id instead."
    )
    _WAYS_OUT: ClassVar[dict[str, str]] = {
        "retry": "Register the change as a new workflow version, or ask for the step by its recorded policy: "
        "step.options(retry=...), in the command form retry=...."
    }

    def __init__(self, run_id: str, kind: str, id: str, part: str, sequence: int, recorded: str, now: str) -> None:
        super().__init__(run_id, kind, id, part, sequence, recorded, now)
        self.run_id: str | None = run_id
        self.kind, self.id, self.part, self.sequence = kind, id, part, sequence
        self.recorded, self.now = recorded, now

    @property
    def path(self) -> str:
        """JSON path of the first difference, such as `$.items[3].price`."""
        return first_difference(self.recorded, self.now)

    def __str__(self) -> str:
        if self.part == "place":
            return (
                f"run {self.run_id!r}: event {self.sequence} created {self.kind} {self.id!r}, and the code had not asked "
                f"for it by then\n  recorded: {_cut(self.recorded, self._SHOWN_BYTES)}\n"
                f"  now:      {_cut(self.now, self._SHOWN_BYTES)}\n"
                "  Register changed code as a new workflow version."
            )
        return (
            f"run {self.run_id!r}: {self.kind} {self.id!r} came back with another {self.part} "
            f"than event {self.sequence} recorded (first difference at {self.path})\n"
            f"  recorded: {_cut(self.recorded, self._SHOWN_BYTES)}\n"
            f"  now:      {_cut(self.now, self._SHOWN_BYTES)}\n"
            f"  {self._WAYS_OUT.get(self.part, self._WAY_OUT)}"
        )


def _cut(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + "…"


class DuplicateId(FlowError):
    """An id of this kind is used twice in one run of an async workflow. `first` and `second` are the places, as
    `file:line in function` (R35)."""

    code = "duplicate_id"

    def __init__(self, run_id: str, kind: str, id: str, first: str, second: str) -> None:
        super().__init__(run_id, kind, id, first, second)
        self.run_id: str | None = run_id
        self.kind, self.id, self.first, self.second = kind, id, first, second

    def __str__(self) -> str:
        text = f"run {self.run_id!r}: {self.kind} id {self.id!r} is used twice, "
        if self.first == self.second:
            return (
                f"both times at {self.first}; give each turn of the loop its own id, "
                f'such as id=f"{self.id}-{{item}}", or put the turn under `with ctx.scope(f"{{item}}"):`'
            ).join((text, ""))
        return f"{text}at {self.first} and at {self.second}"


class WorkflowStuck(FlowError):
    """An async workflow awaits something, and nothing is open that could ever resolve it. `awaits` are the awaits, each
    with its file and line (R38)."""

    code = "workflow_stuck"

    def __init__(self, run_id: str, awaits: tuple[str, ...]) -> None:
        super().__init__(run_id, awaits)
        self.run_id: str | None = run_id
        self.awaits = awaits

    def __str__(self) -> str:
        awaits = "; ".join(self.awaits) or "nothing"
        return f"run {self.run_id!r} is stuck: nothing is open that could carry it on, and it awaits {awaits}"


class ForeignAwaitError(FlowError):
    """Workflow code used an event loop, which a workflow does not have. `function` is what was used, `where` the line
    as `file:line in function`, `instead` what a workflow uses (R64)."""

    code = "foreign_await"

    def __init__(self, function: str, where: str, instead: str) -> None:
        super().__init__(function, where, instead)
        self.function, self.where, self.instead = function, where, instead

    def __str__(self) -> str:
        return f"{self.function} at {self.where} needs an event loop, and a workflow has none; {self.instead}"


class HookDisposed(FlowError):
    """The hook that is awaited was disposed, here or from outside."""

    code = "hook_disposed"

    def __init__(self, hook_id: str) -> None:
        super().__init__(hook_id)
        self.hook_id = hook_id

    def __str__(self) -> str:
        return f"hook {self.hook_id!r} was disposed"


class WorkflowFailed(FlowError):
    """Raised by an async workflow: the run ends as failed with this text. May be subclassed (R39)."""

    code = "workflow_failed"


class EndTimedOut(FlowError):
    """Raised by an async workflow: the run ends as timed out. `deadline` is an aware datetime, an `Instant` or RFC 3339
    text (R39)."""

    code = "end_timed_out"

    def __init__(self, deadline: object, reason: str | None = None) -> None:
        super().__init__(deadline, reason)
        self.deadline, self.reason = deadline, reason

    def __str__(self) -> str:
        return f"the run timed out at {self.deadline}" + (f": {self.reason}" if self.reason else "")


class ReplayLimitExceeded(FlowError):
    """The workflow answered itself `limit` times in a row, opening no work, or `limit` commits in a row met a conflict (R6)."""

    code = "replay_limit_exceeded"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the drive did not settle within {self.limit} passes: the workflow keeps recording facts "
            "without scheduling work, or other writers keep winning"
        )


class HistoryLimitExceeded(FlowError):
    """The run's history would pass `max_history_events` (R6). Outcomes, cancellation and ends are still written."""

    code = "history_limit_exceeded"

    def __init__(self, run_id: str, limit: int) -> None:
        super().__init__(run_id, limit)
        self.run_id: str | None = run_id
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} would have more than {self.limit} events; raise max_history_events or split the work"
        )


class DriveLost(FlowError):
    """The process that drove the run ended without giving it back: the last of `failures` failures in a row (R44)."""

    code = "drive_lost"

    def __init__(self, run_id: str, failures: int) -> None:
        super().__init__(run_id, failures)
        self.run_id: str | None = run_id
        self.failures = failures

    def __str__(self) -> str:
        return f"run {self.run_id!r}: {self.failures} drives failed in a row, and the last one's process ended without a word"


class HookTokenNotFound(FlowError):
    """No active hook of an open run has this token. The token is an attribute, never text."""

    code = "hook_token_not_found"

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.token = token

    def __str__(self) -> str:
        return "no active hook has this token; it may have been resolved already, or its run may have ended"


class HookTokenConflict(FlowError):
    """Another active hook already has this token. The token is an attribute, never text."""

    code = "hook_token_conflict"

    def __init__(self, token: str, existing_run_id: str, existing_hook_id: str) -> None:
        super().__init__(token, existing_run_id, existing_hook_id)
        self.token, self.existing_run_id, self.existing_hook_id = token, existing_run_id, existing_hook_id

    def __str__(self) -> str:
        return f"the token is held by active hook {self.existing_hook_id!r} of run {self.existing_run_id!r}; use a fresh one"


class HookConflict(FlowError):
    """The hook is already resolved otherwise. `reason`: "payload", "received", "disposed" or "cancelled"."""

    code = "hook_conflict"
    _TEXT: ClassVar[dict[str, str]] = {
        "payload": "was already received with another payload",
        "received": "was already received",
        "disposed": "was disposed",
        "cancelled": "was cancelled with its run",
    }

    def __init__(self, run_id: str, hook_id: str, reason: str) -> None:
        super().__init__(run_id, hook_id, reason)
        self.run_id: str | None = run_id
        self.hook_id, self.reason = hook_id, reason

    def __str__(self) -> str:
        return f"hook {self.hook_id!r} of run {self.run_id!r} {self._TEXT.get(self.reason, self.reason)}"


class InvalidRuntimeBuildId(FlowError):
    """A build id outside the grammar of spec 8.5."""

    code = "invalid_runtime_build_id"

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return (
            f"runtime build id {self.value[:140]!r} is not valid: 1 to 128 ASCII letters, digits and - _ . : + / @, "
            "beginning and ending with a letter or digit"
        )


class RuntimeBuildUnavailable(FlowError):
    """This engine may not drive the run: it is pinned to another build, or unpinned where builds are required (spec
    8.5)."""

    code = "runtime_build_unavailable"

    def __init__(self, run_id: str, required_build_id: str | None, current_build_id: str | None) -> None:
        super().__init__(run_id, required_build_id, current_build_id)
        self.run_id: str | None = run_id
        self.required_build_id, self.current_build_id = required_build_id, current_build_id

    def __str__(self) -> str:
        have = f"runs build {self.current_build_id!r}" if self.current_build_id else "has no build configured"
        if self.required_build_id is None:
            return f"run {self.run_id!r} is not pinned to a build and this engine {have}; give it accept_unpinned=True"
        need = f"needs build {self.required_build_id!r}"
        return f"run {self.run_id!r} {need} and this engine {have}; give it RuntimeBuildCompatibility with that build"


class RuntimeBuildRouteNotFound(FlowError):
    """No dispatcher takes tasks of this build, None for runs that are not pinned to one (spec 8.5). Nothing was
    enqueued."""

    code = "runtime_build_route_not_found"

    def __init__(self, required_build_id: str | None) -> None:
        super().__init__(required_build_id)
        self.required_build_id = required_build_id

    def __str__(self) -> str:
        what = f"build {self.required_build_id!r}" if self.required_build_id else "runs without a build"
        return f"no route for {what}; give the RuntimeBuildTaskRouter one, or end those runs"


class InvalidWorkerConfiguration(FlowError):
    """A scheduler, queue, router or worker was configured in a way that cannot work; nothing was done."""

    code = "invalid_worker_configuration"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class QueueBackpressure(FlowError):
    """The queue holds as many pending tasks as it may. The task was not enqueued; try again when workers caught up."""

    code = "queue_backpressure"

    def __init__(self, pending: int, capacity: int) -> None:
        super().__init__(pending, capacity)
        self.pending, self.capacity = pending, capacity

    def __str__(self) -> str:
        return (
            f"the queue is full: {self.pending} tasks are pending and {self.capacity} are allowed; add workers or wait"
        )


class TaskLeaseLost(FlowError):
    """Nobody holds this task lease: it is unknown, was replaced by a heartbeat, or the task was taken back (R45)."""

    code = "task_lease_lost"
    _SHOWN: ClassVar[int] = 80

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"task lease {self.lease_id[: self._SHOWN]!r} is not held any more; the task belongs to whoever leased it last"


class TaskSetAside(FlowError):
    """A task that no later try would do, as a foreign queue is told of it; our own queues keep it among the dead letters."""

    code = "task_set_aside"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the task is set aside: {self.reason}"


class Serialization(FlowError):
    """Bytes that cannot be read, or a value that cannot be stored.

    `rule`: "malformed" (not UTF-8, not JSON, nested too deep), "shape" (JSON of the wrong form), "foreign_run" (a
    line of another run) or "payload" (a value refused at the door). `line` counts from 1 inside the given bytes, None
    where there are no lines. `detail` is prose and the one field the two kernels may word differently.
    """

    code = "serialization"

    def __init__(self, rule: str, line: int | None = None, detail: str = "") -> None:
        super().__init__(rule, line, detail)
        self.rule, self.line, self.detail = rule, line, detail

    def __str__(self) -> str:
        at = f" (line {self.line})" if self.line is not None else ""
        return f"{self.rule}{at}: {self.detail}" if self.detail else f"{self.rule}{at}"


class UnsupportedEventSchemaVersion(Serialization):
    """An envelope whose `schema_version` is not 1."""

    code = "unsupported_event_schema_version"

    def __init__(self, version: int, supported: int, line: int | None = None) -> None:
        super().__init__(
            "version", line, f"event schema version {version} is not supported; this release reads {supported}"
        )
        self.args = (version, supported, line)
        self.version, self.supported = version, supported


class PayloadCodecFailed(Serialization):
    """A payload that the engine's codec could not encode or decode (R42). In a step it is the step's final failure; in a
    workflow or a call it leaves the run as it is. Neither the payload nor a key is in it.

    `operation` is encode or decode, `place` such as `input of step 'charge'`, `reason` the codec's own words or the name
    of what it raised.
    """

    code = "payload_codec_failed"

    def __init__(self, operation: str, place: str, reason: str) -> None:
        super().__init__("payload", None, f"the codec could not {operation} the {place}: {reason}")
        self.args = (operation, place, reason)
        self.operation, self.place, self.reason = operation, place, reason


class PayloadTooLarge(FlowError):
    """One event's JSON is over the engine's limit. Nothing was written."""

    code = "payload_too_large"

    def __init__(self, event_key: str, bytes: int, max_bytes: int) -> None:
        super().__init__(event_key, bytes, max_bytes)
        self.event_key, self.bytes, self.max_bytes = event_key, bytes, max_bytes

    def __str__(self) -> str:
        return (
            f"{self.event_key} would take {self.bytes} bytes and {self.max_bytes} are allowed; "
            "store large data elsewhere and keep a reference"
        )


class StoreRefusal(FlowError):
    """A batch that the store checked and did not write."""

    code = "store_refusal"

    def __init__(self, run_id: str, *fields: object) -> None:
        super().__init__(run_id, *fields)
        self.run_id: str | None = run_id


class EventConflict(StoreRefusal):
    """Another writer was first: the run's last sequence is not the expected one. Nothing was written."""

    code = "event_conflict"

    def __init__(self, run_id: str, expected_sequence: int, actual_sequence: int) -> None:
        super().__init__(run_id, expected_sequence, actual_sequence)
        self.expected_sequence, self.actual_sequence = expected_sequence, actual_sequence

    def __str__(self) -> str:
        return f"run {self.run_id!r} is at sequence {self.actual_sequence}, not {self.expected_sequence}"


class LeaseLost(StoreRefusal):
    """The run's lease was taken over; the commit of the former owner is refused (R2)."""

    code = "lease_lost"

    def __str__(self) -> str:
        return f"the lease of run {self.run_id!r} was taken over by another worker"


class LeaseHeld(StoreRefusal):
    """Another owner's lease of the run is live (R2)."""

    code = "lease_held"

    def __str__(self) -> str:
        return f"run {self.run_id!r} is being driven by another worker"


class StoreError(FlowError):
    """The store failed; the text names the store and what it was doing."""

    code = "store_error"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return self.detail


class StoreUnavailable(StoreError):
    """The store could not be reached or is busy; nothing of the call was written."""

    code = "store_unavailable"


class OutcomeUnknown(StoreError):
    """The store did not say whether the commit happened; the engine settles it by committing again (R48)."""

    code = "outcome_unknown"


class EngineClosed(FlowError):
    """The engine is closed, or is closing, and takes no more calls."""

    code = "engine_closed"

    def __str__(self) -> str:
        return "the engine is closed"


class CallFromLoopThread(FlowError):
    """A blocking call was made on the engine's own loop thread, where it could only wait for itself (R55)."""

    code = "call_from_loop_thread"

    def __str__(self) -> str:
        return "a blocking engine cannot be called from its own loop thread; inline and async steps use what they are given"


class CallFromOwnStep(FlowError):
    """A step made a call that drives its own run: it would wait for itself. Nothing was written."""

    code = "call_from_own_step"

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id: str | None = run_id

    def __str__(self) -> str:
        return f"a step of run {self.run_id!r} cannot wait for that run to be driven; pass drive=False, or call from outside"


class EngineElsewhere(FlowError):
    """The engine was made in another process, or first used on another event loop. `reason`: "fork" or "loop"."""

    code = "engine_elsewhere"
    _TEXT: ClassVar[dict[str, str]] = {
        "fork": "the engine was made before this process was forked; make one engine in each process, after the fork",
        "loop": "the engine belongs to the event loop it was first used on; make one for each loop, or use the blocking one",
    }

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self._TEXT.get(self.reason, self.reason)


class StepError(FlowError):
    """Base of what step code raises to say how its failure is meant, and of what a workflow sees of it."""

    code = "step_error"


class NonRetryable(StepError):
    """Raised by a step: this failure is final, whatever the retry policy says. Stored as `non-retryable step error:
    <message>`."""

    code = "non_retryable"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class RetryAfter(StepError):
    """Raised by a step: try again no sooner than `delay` from now; the longer of it and the policy's delay holds
    (R5)."""

    code = "retry_after"

    def __init__(self, delay: timedelta, message: str = "retry later") -> None:
        super().__init__(delay, message)
        self.delay, self.message = delay, message

    def __str__(self) -> str:
        return self.message


class StepCancelled(StepError):
    """Raised inside a step by `StepContext.cancelled.raise_if_set()`: the attempt's result is no longer wanted."""

    code = "step_cancelled"

    def __str__(self) -> str:
        return "this attempt was cancelled; its result is no longer wanted"


class StepFailed(StepError):
    """A step failed for good; carries the error text its history holds.

    `failure_type` is the recorded `module.qualname` of what the step raised, None where none was recorded;
    `non_retryable` says that it failed without regard to its policy (R39, R53).
    """

    code = "step_failed"

    def __init__(
        self,
        step_id: str,
        step_name: str,
        attempt: int,
        error: str,
        failure_type: str | None = None,
        non_retryable: bool = False,
    ) -> None:
        super().__init__(step_id, step_name, attempt, error, failure_type, non_retryable)
        self.step_id, self.step_name, self.attempt, self.error = step_id, step_name, attempt, error
        self.failure_type, self.non_retryable = failure_type, non_retryable

    def __str__(self) -> str:
        return f"step {self.step_id!r} ({self.step_name}) failed at attempt {self.attempt}: {self.error}"
