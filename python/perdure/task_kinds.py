"""The tasks a queue carries: values with their JSON form, told apart by `type` (spec 08 §8.2).

Payloads and tokens are in the JSON, since a queue has to carry them, and in no repr (R49, R60).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

import msgspec

from perdure.errors import Serialization
from perdure.instant import Instant, parse_instant
from perdure.payload import decode, encode
from perdure.values import read_shape
from perdure.wire import Moment, instant_text, moment_ns, object_json, text_json

__all__ = [
    "TASK_TYPES",
    "DisposeHook",
    "DisposeHookByToken",
    "DriveRun",
    "FlowTask",
    "ResumeDueRetries",
    "ResumeDueWaits",
    "ResumeHook",
    "ResumeHookByToken",
    "ResumeScheduledRun",
    "ResumeWait",
]

_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class FlowTask:
    """One unit of work for a worker. Delivering a task twice, late or never does no harm: `handle` is idempotent, and the
    scheduler finds what is left."""

    type: ClassVar[str] = ""
    drives: ClassVar[bool] = False
    """Whether it only drives one run: a built-in queue holds at most one such task per run (R46)."""

    @property
    def target(self) -> str | None:
        """The run the task is for; None for tasks by token and for scans over all runs."""
        return getattr(self, "run_id", None)

    def to_json(self) -> bytes:
        """The task as a queue stores it. Raises `Serialization("payload")` for a field that cannot be stored."""
        parts = [(item.name, _field_json(item.name, getattr(self, item.name))) for item in fields(self)]
        return object_json([("type", text_json("type", self.type)), *parts])

    @classmethod
    def from_json(cls, raw: bytes) -> FlowTask:
        """The task of its JSON, unknown keys left out. Raises `Serialization` without the bytes, for an unknown type
        too."""
        kind = read_shape(raw, _Tag, "a task").type
        if kind not in TASK_TYPES:
            raise Serialization("shape", detail=f"{kind[:_SHOWN]!r} is no type of task this release knows")
        shape = read_shape(raw, _SHAPES[kind], f"a {kind} task")
        return TASK_TYPES[kind](
            **{name: _field_value(name, value) for name, value in msgspec.structs.asdict(shape).items()}
        )


@dataclass(frozen=True, slots=True)
class DriveRun(FlowTask):
    """Carries a run on."""

    run_id: str
    type: ClassVar[str] = "drive_run"
    drives: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ResumeScheduledRun(FlowTask):
    """Completes the waits of a run that are due at `now`, or by the time it is handled, and carries the run on."""

    run_id: str
    now: Moment
    type: ClassVar[str] = "resume_scheduled_run"
    drives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _take_instant(self)


@dataclass(frozen=True, slots=True)
class ResumeWait(FlowTask):
    """Completes a wait that is due."""

    run_id: str
    wait_id: str
    type: ClassVar[str] = "resume_wait"


@dataclass(frozen=True, slots=True)
class ResumeHook(FlowTask):
    """Delivers a payload to a hook."""

    run_id: str
    hook_id: str
    payload: Any = field(repr=False)
    type: ClassVar[str] = "resume_hook"


@dataclass(frozen=True, slots=True)
class ResumeHookByToken(FlowTask):
    """Delivers a payload to the active hook with this token."""

    token: str = field(repr=False)
    payload: Any = field(repr=False)
    type: ClassVar[str] = "resume_hook_by_token"


@dataclass(frozen=True, slots=True)
class DisposeHook(FlowTask):
    """Closes a hook nobody will answer."""

    run_id: str
    hook_id: str
    type: ClassVar[str] = "dispose_hook"


@dataclass(frozen=True, slots=True)
class DisposeHookByToken(FlowTask):
    """Closes the active hook with this token."""

    token: str = field(repr=False)
    type: ClassVar[str] = "dispose_hook_by_token"


@dataclass(frozen=True, slots=True)
class ResumeDueWaits(FlowTask):
    """A scan of older schedulers: completes every wait that is due."""

    now: Moment
    type: ClassVar[str] = "resume_due_waits"

    def __post_init__(self) -> None:
        _take_instant(self)


@dataclass(frozen=True, slots=True)
class ResumeDueRetries(FlowTask):
    """A scan of older schedulers: starts every delayed retry that is due."""

    now: Moment
    type: ClassVar[str] = "resume_due_retries"

    def __post_init__(self) -> None:
        _take_instant(self)


def _take_instant(task: ResumeScheduledRun | ResumeDueWaits | ResumeDueRetries) -> None:
    object.__setattr__(task, "now", Instant(moment_ns("now", task.now)))


TASK_TYPES: Final[dict[str, type[FlowTask]]] = {
    kind.type: kind
    for kind in (
        *(DriveRun, ResumeWait, ResumeHook, ResumeHookByToken, DisposeHook, DisposeHookByToken),
        *(ResumeScheduledRun, ResumeDueWaits, ResumeDueRetries),
    )
}
"""Every kind by its `type`."""


class _Tag(msgspec.Struct):
    type: str


_SHAPES: Final[dict[str, type[msgspec.Struct]]] = {
    name: msgspec.defstruct(
        kind.__name__, [(item.name, msgspec.Raw if item.name == "payload" else str) for item in fields(kind)]
    )
    for name, kind in TASK_TYPES.items()
}


def _field_json(name: str, value: object) -> bytes:
    if name == "payload":
        return encode(value)
    return text_json(name, instant_text(name, value) if isinstance(value, Instant) else value)


def _field_value(name: str, value: Any) -> object:
    if name == "payload":
        return decode(bytes(value))
    return Instant(_instant(value)) if name == "now" else value


def _instant(text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError:
        raise Serialization("shape", detail="not a task: `$.now` is no RFC 3339 time") from None
