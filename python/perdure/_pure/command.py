"""Commands: their JSON, and what one member of a command means to a run (spec 03, R16, R33, R34, R40)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from perdure._pure import json
from perdure._pure.draft import Draft, make, moment
from perdure._pure.event import (
    Child,
    Progress,
    is_blank,
    read_child,
    read_instant,
    read_optional,
    read_policy,
    read_progress,
    read_string,
    read_u64,
    required,
)
from perdure._pure.json import Span, quote, shape
from perdure._pure.project import policy_refusal
from perdure._pure.retry import DEFAULT_POLICY, Policy, add_ms
from perdure._pure.state import Fact, State, Step, refuse
from perdure.errors import NonDeterministic

__all__ = ["Command", "LinkChild", "Member", "NewHook", "RecordProgress", "decode_command"]

_ID_BYTES: Final = 512
_REDACTED: Final = "<redacted>"


class Member(ABC):
    """One thing a command names. `writes` is the type of the event that it owes while it is not done."""

    kind: ClassVar[str]
    writes: ClassVar[str]

    @property
    @abstractmethod
    def key(self) -> str:
        """The id it names."""

    def check(self, state: State) -> None:
        """R16.3: a blank id, the limits on new ids, values that are wrong in themselves."""
        if is_blank(self.key):
            raise refuse(state, "blank_id", self.kind, self.key)

    @abstractmethod
    def check_known(self, state: State) -> None:
        """R16.5: drift from what is recorded, or an entry that this cannot be done to."""

    @abstractmethod
    def resolved(self, state: State) -> bool:
        """R16.7: nothing is left to happen to it."""

    @abstractmethod
    def owed(self, state: State) -> bool:
        """Whether its event is still to be written."""

    def check_new(self, state: State, anchor: int) -> None:  # noqa: B027 - most members have neither
        """R16.8: policy and deadline of what is owed, judged at `anchor` (ns)."""

    @abstractmethod
    def draft(self, anchor: int) -> Draft:
        """Its event."""

    def check_limits(self, state: State) -> None:
        """R34: at most 512 bytes of UTF-8 and no control characters, for new ids."""
        if not self.owed(state):
            return
        size = len(self.key.encode())
        if size > _ID_BYTES:
            raise refuse(state, "id_too_long", self.kind, self.key, size)
        if _has_control(self.key):
            raise refuse(state, "id_control_character", self.kind, self.key)

    def check_same(self, state: State, part: str, sequence: int, recorded: str, now: str, *, same: bool) -> None:
        if not same:
            raise NonDeterministic(state.run_id, self.kind, self.key, part, sequence, recorded, now)


def _has_control(text: str) -> bool:
    return any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


@dataclass(frozen=True, slots=True)
class NewStep(Member):
    kind: ClassVar[str] = "step"
    writes: ClassVar[str] = "step_created"
    step_id: str
    step_name: str
    input: str = field(repr=False)
    policy: Policy

    @property
    def key(self) -> str:
        return self.step_id

    def check(self, state: State) -> None:
        Member.check(self, state)
        self.check_limits(state)
        if not self.owed(state):
            return
        size = len(self.step_name.encode())
        if size > _ID_BYTES:
            raise refuse(state, "name_too_long", "step", self.step_id, size)
        if _has_control(self.step_name):
            raise refuse(state, "name_control_character", "step", self.step_id)

    def check_known(self, state: State) -> None:
        step = state.steps.get(self.step_id)
        if step is None:
            return
        self._check_definition(state, step)
        if step.status == "cancelled":
            raise refuse(state, "already_cancelled", "step", self.step_id)

    def _check_definition(self, state: State, step: Step) -> None:
        at = step.created_sequence
        name, now = quote(step.step_name), quote(self.step_name)
        self.check_same(state, "step_name", at, name, now, same=step.step_name == self.step_name)
        self.check_same(state, "input", at, step.input_text, self.input, same=json.equal(step.input_text, self.input))
        self.check_same(
            state, "retry", at, step.policy.to_json(), self.policy.to_json(), same=step.policy == self.policy
        )

    def resolved(self, state: State) -> bool:
        step = state.steps.get(self.step_id)
        return step is not None and not step.is_open

    def owed(self, state: State) -> bool:
        return state.steps.get(self.step_id) is None

    def check_new(self, state: State, anchor: int) -> None:
        refusal = policy_refusal(state, self.step_id, self.policy, anchor, None)
        if refusal is not None:
            raise refusal

    def draft(self, anchor: int) -> Draft:
        step_id, name = quote(self.step_id), quote(self.step_name)
        return make(self.writes, step_id=step_id, step_name=name, input=self.input, retry=self.policy.to_json())


@dataclass(frozen=True, slots=True)
class NewWait(Member):
    """A wait until an instant, or (`resume_at` None) for `delay_ms` from when it is decided."""

    kind: ClassVar[str] = "wait"
    writes: ClassVar[str] = "wait_created"
    wait_id: str
    resume_at: int | None
    delay_ms: int = 0

    @property
    def key(self) -> str:
        return self.wait_id

    def check(self, state: State) -> None:
        Member.check(self, state)
        self.check_limits(state)

    def check_known(self, state: State) -> None:
        wait = state.waits.get(self.wait_id)
        if wait is None:
            return
        if self.resume_at is not None:
            recorded, now = moment(wait.resume_at), moment(self.resume_at)
            same = wait.resume_at == self.resume_at
            self.check_same(state, "resume_at", wait.created_sequence, recorded, now, same=same)
        if wait.status == "cancelled":
            raise refuse(state, "already_cancelled", "wait", self.wait_id)

    def resolved(self, state: State) -> bool:
        wait = state.waits.get(self.wait_id)
        return wait is not None and not wait.is_open

    def owed(self, state: State) -> bool:
        return state.waits.get(self.wait_id) is None

    def check_new(self, state: State, anchor: int) -> None:
        if self.resume_at is None and add_ms(anchor, self.delay_ms) is None:
            raise refuse(state, "delay_out_of_range", "wait", self.wait_id, self.delay_ms)

    def draft(self, anchor: int) -> Draft:
        resume_at = self.resume_at
        if resume_at is None:
            resume_at = add_ms(anchor, self.delay_ms)
        if resume_at is None:
            raise ValueError("draft() is called before check_new()")
        return make(self.writes, wait_id=quote(self.wait_id), resume_at=moment(resume_at))


@dataclass(frozen=True, slots=True)
class NewHook(Member):
    kind: ClassVar[str] = "hook"
    writes: ClassVar[str] = "hook_created"
    hook_id: str
    token: str
    metadata: str

    @property
    def key(self) -> str:
        return self.hook_id

    def check(self, state: State) -> None:
        Member.check(self, state)
        if is_blank(self.token):
            raise refuse(state, "blank_token", "hook", self.hook_id)
        self.check_limits(state)

    def check_known(self, state: State) -> None:
        hook = state.hooks.get(self.hook_id)
        if hook is None:
            return
        at, same = hook.created_sequence, hook.token == self.token
        self.check_same(state, "token", at, _REDACTED, _REDACTED, same=same)
        same = json.equal(hook.metadata_text, self.metadata)
        self.check_same(state, "metadata", at, hook.metadata_text, self.metadata, same=same)
        if hook.status == "cancelled":
            raise refuse(state, "already_cancelled", "hook", self.hook_id)

    def resolved(self, state: State) -> bool:
        hook = state.hooks.get(self.hook_id)
        return hook is not None and not hook.is_open

    def owed(self, state: State) -> bool:
        return state.hooks.get(self.hook_id) is None

    def draft(self, anchor: int) -> Draft:
        return make(self.writes, hook_id=quote(self.hook_id), token=quote(self.token), metadata=self.metadata)

    def __repr__(self) -> str:
        return f"NewHook(hook_id={self.hook_id!r}, token={_REDACTED})"


@dataclass(frozen=True, slots=True)
class RecordProgress(Member):
    kind: ClassVar[str] = "progress"
    writes: ClassVar[str] = "run_progress_recorded"
    progress: Progress

    @property
    def key(self) -> str:
        return self.progress.progress_id

    def check(self, state: State) -> None:
        Member.check(self, state)
        self.check_limits(state)
        fault = self.progress.fault()
        if fault is not None:
            raise refuse(state, "progress_invalid", "progress", self.key, fault)

    def check_known(self, state: State) -> None:
        known = state.progress.get(self.key)
        if known is not None:
            _check_fact(self, state, known, self.progress, same=known.value.same(self.progress))

    def resolved(self, state: State) -> bool:
        return not self.owed(state)

    def owed(self, state: State) -> bool:
        return state.progress.get(self.key) is None

    def draft(self, anchor: int) -> Draft:
        return make(self.writes, progress=self.progress.to_json())


@dataclass(frozen=True, slots=True)
class LinkChild(Member):
    kind: ClassVar[str] = "child"
    writes: ClassVar[str] = "child_operation_linked"
    child: Child

    @property
    def key(self) -> str:
        return self.child.reference_id

    def check(self, state: State) -> None:
        Member.check(self, state)
        self.check_limits(state)
        fault = self.child.fault()
        if fault is not None:
            raise refuse(state, "child_invalid", "child", self.key, fault)

    def check_known(self, state: State) -> None:
        known = state.children.get(self.key)
        if known is not None:
            _check_fact(self, state, known, self.child, same=known.value.same(self.child))

    def resolved(self, state: State) -> bool:
        return not self.owed(state)

    def owed(self, state: State) -> bool:
        return state.children.get(self.key) is None

    def draft(self, anchor: int) -> Draft:
        return make(self.writes, child=self.child.to_json())


def _check_fact(member: Member, state: State, known: Fact[Any], now: Progress | Child, *, same: bool) -> None:
    recorded: str = known.value.to_json()
    member.check_same(state, member.kind, known.created_sequence, recorded, now.to_json(), same=same)


@dataclass(frozen=True, slots=True)
class DisposeHook(Member):
    kind: ClassVar[str] = "hook"
    writes: ClassVar[str] = "hook_disposed"
    hook_id: str

    @property
    def key(self) -> str:
        return self.hook_id

    def check_known(self, state: State) -> None:
        hook = state.hooks.get(self.hook_id)
        status = hook.status if hook else "unknown"
        if status not in ("active", "disposed"):
            raise refuse(state, "cannot_dispose", "hook", self.hook_id, status)

    def resolved(self, state: State) -> bool:
        return not self.owed(state)

    def owed(self, state: State) -> bool:
        hook = state.hooks.get(self.hook_id)
        return hook is not None and hook.is_open

    def draft(self, anchor: int) -> Draft:
        return make(self.writes, hook_id=quote(self.hook_id))


@dataclass(frozen=True, slots=True)
class CloseWait(Member):
    kind: ClassVar[str] = "wait"
    writes: ClassVar[str] = "wait_completed"
    wait_id: str

    @property
    def key(self) -> str:
        return self.wait_id

    def check_known(self, state: State) -> None:
        wait = state.waits.get(self.wait_id)
        status = wait.status if wait else "unknown"
        if status not in ("waiting", "completed"):
            raise refuse(state, "cannot_close", "wait", self.wait_id, status)

    def resolved(self, state: State) -> bool:
        return not self.owed(state)

    def owed(self, state: State) -> bool:
        wait = state.waits.get(self.wait_id)
        return wait is not None and wait.is_open

    def draft(self, anchor: int) -> Draft:
        return make(self.writes, wait_id=quote(self.wait_id))


# Decoding -----------------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """A decoded command: members to open, or (`members` None) an end of the run with its fields."""

    type: str
    members: list[Member] | None
    concurrency: int | None
    fields: dict[str, Any]


_Fields = dict[str, Span]


def _step(text: str, fields: _Fields) -> Member:
    retry = read_policy(text, fields["retry"], "retry") if "retry" in fields else DEFAULT_POLICY
    step_id, name = _text(text, fields, "step_id"), _text(text, fields, "step_name")
    return NewStep(step_id, name, _payload(text, required(fields, "input")), retry)


def _wait_until(text: str, fields: _Fields) -> Member:
    return NewWait(_text(text, fields, "wait_id"), read_instant(text, required(fields, "resume_at"), "resume_at"))


def _wait_for(text: str, fields: _Fields) -> Member:
    return NewWait(_text(text, fields, "wait_id"), None, read_u64(text, required(fields, "delay_ms"), "delay_ms"))


def _hook(text: str, fields: _Fields) -> Member:
    metadata = _payload(text, fields["metadata"]) if "metadata" in fields else "null"
    return NewHook(_text(text, fields, "hook_id"), _text(text, fields, "token"), metadata)


def _progress(text: str, fields: _Fields) -> Member:
    return RecordProgress(read_progress(text, required(fields, "progress"), "progress"))


def _child(text: str, fields: _Fields) -> Member:
    return LinkChild(read_child(text, required(fields, "child"), "child"))


def _dispose(text: str, fields: _Fields) -> Member:
    return DisposeHook(_text(text, fields, "hook_id"))


def _close(text: str, fields: _Fields) -> Member:
    return CloseWait(_text(text, fields, "wait_id"))


def _text(text: str, fields: _Fields, name: str) -> str:
    return read_string(text, required(fields, name), name)


def _payload(text: str, span: Span) -> str:
    return text[span[0] : span[1]]


_MEMBERS: Final[dict[str, Callable[[str, _Fields], Member]]] = {
    "step": _step,
    "wait_until": _wait_until,
    "wait_for": _wait_for,
    "hook": _hook,
    "record_progress": _progress,
    "link_child_operation": _child,
    "dispose_hook": _dispose,
    "close_wait": _close,
}
_ONE_KIND: Final = {
    **{kind: read for kind, read in _MEMBERS.items() if kind not in ("step", "hook")},
    "schedule_step": _step,
    "create_hook": _hook,
}


def decode_command(command: bytes) -> Command:
    """R16.1. Raises `Serialization`."""
    text = json.read_part(command)
    fields = json.members(text, (0, len(text)), "the command")
    kind = _text(text, fields, "type")
    if kind in _ONE_KIND:
        return Command(kind, [_ONE_KIND[kind](text, fields)], None, {})
    if kind == "schedule_steps":
        spans = json.elements(text, required(fields, "steps"), "steps")
        members = [_step(text, json.members(text, span, "a step")) for span in spans]
        return Command(kind, members, _concurrency(text, fields), {})
    if kind == "schedule_all":
        spans = json.elements(text, required(fields, "members"), "members")
        return Command(kind, [_any_member(text, span) for span in spans], _concurrency(text, fields), {})
    return Command(kind, None, None, _end_fields(text, fields, kind))


def _any_member(text: str, span: Span) -> Member:
    fields = json.members(text, span, "a member")
    read = _MEMBERS.get(_text(text, fields, "type"))
    if read is None:
        raise shape("a member has an unknown type")
    return read(text, fields)


def _concurrency(text: str, fields: _Fields) -> int | None:
    limit: int | None = read_optional(text, fields, "concurrency", read_u64)
    if limit == 0:
        raise shape("concurrency must be at least 1")
    return limit


def _end_fields(text: str, fields: _Fields, kind: str) -> dict[str, Any]:
    match kind:
        case "complete":
            return {"output": _payload(text, required(fields, "output"))}
        case "fail":
            return {"error": _text(text, fields, "error")}
        case "cancel":
            return {}
        case "timeout":
            deadline = read_instant(text, required(fields, "deadline"), "deadline")
            return {"deadline": deadline, "reason": read_optional(text, fields, "reason", read_string)}
        case _:
            raise shape("the command type is unknown to this release")
