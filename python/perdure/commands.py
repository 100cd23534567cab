"""Commands: what a workflow asks for next, as frozen values (spec 03 §3.1, R16, R26, R40).

Each holds its payloads as JSON bytes, encoded once when it was built; `to_json` is what crosses to the kernel, which
judges it. Build them with `WorkflowContext`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final

from perdure.errors import Serialization
from perdure.wire import Part, object_json, text_json

__all__ = [
    "Cancel",
    "CloseWait",
    "Complete",
    "CreateHook",
    "DisposeHook",
    "Fail",
    "LinkChildOperation",
    "Member",
    "RawCommand",
    "RecordProgress",
    "RuntimeCommand",
    "ScheduleAll",
    "ScheduleStep",
    "ScheduleSteps",
    "Timeout",
    "WaitFor",
    "WaitUntil",
]

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RuntimeCommand:
    """Base of all commands."""

    TYPE: ClassVar[str] = ""

    def parts(self) -> list[Part]:
        """The fields beside `type`, as JSON, in wire order."""
        return []

    def to_json(self) -> bytes:
        """The command as the kernel reads it: one JSON object."""
        return object_json([("type", b'"%s"' % self.TYPE.encode()), *self.parts()])

    @property
    def timeouts(self) -> Mapping[str, int]:
        """Time limits named with this command, step id → ms. They are not on the wire (R54)."""
        return _NONE


@dataclass(frozen=True, slots=True)
class RawCommand(RuntimeCommand):
    """A command a host has as JSON already. It is passed on as it is and judged by the kernel."""

    json: bytes

    def to_json(self) -> bytes:
        return self.json


@dataclass(frozen=True, slots=True)
class Complete(RuntimeCommand):
    """End the run with `output`."""

    TYPE: ClassVar[str] = "complete"
    output: bytes = field(repr=False)

    def parts(self) -> list[Part]:
        return [("output", self.output)]


@dataclass(frozen=True, slots=True)
class Fail(RuntimeCommand):
    """End the run as failed with this text."""

    TYPE: ClassVar[str] = "fail"
    error: str

    def parts(self) -> list[Part]:
        return [("error", text_json("error", self.error))]


@dataclass(frozen=True, slots=True)
class Cancel(RuntimeCommand):
    """End the run as cancelled; only after a cancellation request, whose reason it takes."""

    TYPE: ClassVar[str] = "cancel"


@dataclass(frozen=True, slots=True)
class Timeout(RuntimeCommand):
    """End the run as timed out. `deadline` is RFC 3339 in UTC."""

    TYPE: ClassVar[str] = "timeout"
    deadline: str
    reason: str | None = None

    def parts(self) -> list[Part]:
        reason = [] if self.reason is None else [("reason", text_json("reason", self.reason))]
        return [("deadline", text_json("deadline", self.deadline)), *reason]


@dataclass(frozen=True, slots=True)
class Member(RuntimeCommand):
    """Base of the commands that `schedule_all` can hold; its members have shorter type names (R16)."""

    MEMBER: ClassVar[str] = ""

    def member_json(self) -> bytes:
        """The command as a member of `schedule_all`."""
        return object_json([("type", b'"%s"' % (self.MEMBER or self.TYPE).encode()), *self.parts()])


@dataclass(frozen=True, slots=True)
class RecordProgress(Member):
    """Record a progress entry once."""

    TYPE: ClassVar[str] = "record_progress"
    progress: bytes = field(repr=False)

    def parts(self) -> list[Part]:
        return [("progress", self.progress)]


@dataclass(frozen=True, slots=True)
class LinkChildOperation(Member):
    """Record a reference to work outside this run once."""

    TYPE: ClassVar[str] = "link_child_operation"
    child: bytes = field(repr=False)

    def parts(self) -> list[Part]:
        return [("child", self.child)]


@dataclass(frozen=True, slots=True)
class ScheduleStep(Member):
    """Open a step, or name one that is open. Without `retry` the default policy, without `timeout_ms` its own limit."""

    TYPE: ClassVar[str] = "schedule_step"
    MEMBER: ClassVar[str] = "step"
    step_id: str
    step_name: str
    input: bytes = field(repr=False, default=b"null")
    retry: bytes | None = None
    timeout_ms: int | None = None

    def parts(self) -> list[Part]:
        retry = [] if self.retry is None else [("retry", self.retry)]
        names = [("step_id", text_json("step_id", self.step_id)), ("step_name", text_json("step_name", self.step_name))]
        return [*names, ("input", self.input), *retry]

    @property
    def timeouts(self) -> Mapping[str, int]:
        return _NONE if self.timeout_ms is None else {self.step_id: self.timeout_ms}


@dataclass(frozen=True, slots=True)
class ScheduleSteps(RuntimeCommand):
    """Open several steps in one append, at most `concurrency` of the run's attempts at a time (R26)."""

    TYPE: ClassVar[str] = "schedule_steps"
    steps: tuple[ScheduleStep, ...]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        _require_members(self.TYPE, self.steps, ScheduleStep)

    def parts(self) -> list[Part]:
        steps = b",".join(object_json(step.parts()) for step in self.steps)
        return [("steps", b"[%s]" % steps), *_concurrency(self.concurrency)]

    @property
    def timeouts(self) -> Mapping[str, int]:
        return _all_timeouts(self.steps)


@dataclass(frozen=True, slots=True)
class ScheduleAll(RuntimeCommand):
    """Open any mix of steps, waits and hooks, and record facts, in one append (R16)."""

    TYPE: ClassVar[str] = "schedule_all"
    members: tuple[Member, ...]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        _require_members(self.TYPE, self.members, Member)

    def parts(self) -> list[Part]:
        members = b",".join(member.member_json() for member in self.members)
        return [("members", b"[%s]" % members), *_concurrency(self.concurrency)]

    @property
    def timeouts(self) -> Mapping[str, int]:
        return _all_timeouts(self.members)


@dataclass(frozen=True, slots=True)
class WaitUntil(Member):
    """Open a wait that is due at `resume_at`, RFC 3339 in UTC."""

    TYPE: ClassVar[str] = "wait_until"
    wait_id: str
    resume_at: str

    def parts(self) -> list[Part]:
        return [("wait_id", text_json("wait_id", self.wait_id)), ("resume_at", text_json("resume_at", self.resume_at))]


@dataclass(frozen=True, slots=True)
class WaitFor(Member):
    """Open a wait that is due `delay_ms` after it is decided (R40)."""

    TYPE: ClassVar[str] = "wait_for"
    wait_id: str
    delay_ms: int

    def parts(self) -> list[Part]:
        return [("wait_id", text_json("wait_id", self.wait_id)), ("delay_ms", b"%d" % self.delay_ms)]


@dataclass(frozen=True, slots=True)
class CreateHook(Member):
    """Open a hook that is resolved from outside by id or by token. The repr shows neither token nor metadata."""

    TYPE: ClassVar[str] = "create_hook"
    MEMBER: ClassVar[str] = "hook"
    hook_id: str
    token: str = field(repr=False)
    metadata: bytes = field(repr=False, default=b"null")

    def parts(self) -> list[Part]:
        names = [("hook_id", text_json("hook_id", self.hook_id)), ("token", text_json("token", self.token))]
        return [*names, ("metadata", self.metadata)]


@dataclass(frozen=True, slots=True)
class DisposeHook(Member):
    """Resolve an active hook as no longer wanted."""

    TYPE: ClassVar[str] = "dispose_hook"
    hook_id: str

    def parts(self) -> list[Part]:
        return [("hook_id", text_json("hook_id", self.hook_id))]


@dataclass(frozen=True, slots=True)
class CloseWait(Member):
    """Complete a wait now, before its time (R40)."""

    TYPE: ClassVar[str] = "close_wait"
    wait_id: str

    def parts(self) -> list[Part]:
        return [("wait_id", text_json("wait_id", self.wait_id))]


def _concurrency(limit: int | None) -> list[Part]:
    return [] if limit is None else [("concurrency", b"%d" % limit)]


def _all_timeouts(members: Iterable[RuntimeCommand]) -> Mapping[str, int]:
    return {step_id: ms for member in members for step_id, ms in member.timeouts.items()}


def _require_members(command: str, members: Iterable[object], kind: type[Member]) -> None:
    for index, member in enumerate(members):
        if not isinstance(member, kind):
            raise Serialization(
                "shape", detail=f"member {index} of {command} is {type(member).__name__}, which it cannot hold"
            )
