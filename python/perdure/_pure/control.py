"""Host calls: the tables of spec 06 as amended by R22 to R24, R33 and R58."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from perdure._pure import json
from perdure._pure.command import LinkChild, Member, RecordProgress
from perdure._pure.draft import Draft, check_sizes, encode, make, moment, text_or_null
from perdure._pure.event import (
    Spec,
    is_blank,
    read_child,
    read_instant,
    read_optional,
    read_progress,
    read_spec,
    read_string,
    required,
)
from perdure._pure.json import Span, quote, shape
from perdure._pure.state import Hook, State, refuse
from perdure.errors import HookConflict, InvalidRunId, RunConflict, RunNotFound, RunTerminal
from perdure.instant import format_instant

__all__ = ["Control", "check_run_id", "control"]

_RUN_ID_LENGTH: Final = 200
_RUN_ID_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


@dataclass(frozen=True, slots=True)
class Control:
    """What a host call does."""

    drafts: list[bytes] = field(repr=False)
    drive: bool
    admit: bool


class _Call(NamedTuple):
    """A call being judged."""

    state: State
    now: int
    text: str
    fields: dict[str, Span]

    def string(self, name: str) -> str:
        return read_string(self.text, required(self.fields, name), name)

    def flag(self, name: str, default: bool) -> bool:
        span = self.fields.get(name)
        if span is None:
            return default
        word = self.text[span[0] : span[1]]
        if word not in ("true", "false"):
            raise shape(f"{name} is neither true nor false")
        return word == "true"

    @property
    def drive(self) -> bool:
        return self.flag("drive", True)

    @property
    def reason(self) -> str | None:
        reason: str | None = read_optional(self.text, self.fields, "reason", read_string)
        return reason

    def instant(self, name: str) -> int:
        return read_instant(self.text, required(self.fields, name), name)

    def payload(self, name: str) -> str:
        start, end = required(self.fields, name)
        return self.text[start:end]

    def subject(self, kind: str) -> str:
        """The id of a wait or hook; a blank one is refused before any row is looked at (R33)."""
        key = self.string(f"{kind}_id")
        if is_blank(key):
            raise refuse(self.state, "blank_id", kind, key)
        return key

    def check_exists(self) -> None:
        if self.state.spec is None:
            raise RunNotFound(self.state.run_id)

    def unknown(self, kind: str, key: str) -> Exception:
        if self.state.terminal:
            return RunTerminal(self.state.run_id)
        return refuse(self.state, "id_unknown", kind, key)


class _Answer(NamedTuple):
    """What a row says: events to append, and whether the call drives an open run."""

    drafts: Sequence[Draft] = ()
    drive: bool = False
    admit: bool | None = None  # None: as `drive`, or when something is appended


def control(state: State, call: bytes, now: int, max_event_bytes: int) -> Control:
    """Judges a host call. Raises `Serialization`, then the refusals of its table, then `PayloadTooLarge`."""
    text = json.read_part(call)
    fields = json.members(text, (0, len(text)), "the call")
    operation = _OPERATIONS.get(read_string(text, required(fields, "op"), "op"))
    if operation is None:
        raise shape("the op is unknown to this release")
    answer = operation(_Call(state, now, text, fields))
    check_sizes(answer.drafts, max_event_bytes)
    drive = answer.drive and not state.terminal
    admit = drive or bool(answer.drafts) if answer.admit is None else answer.admit
    return Control(encode(answer.drafts), drive, admit)


def check_run_id(run_id: str) -> None:
    """Raises `InvalidRunId` for an empty id or one outside `[A-Za-z0-9_-]+`."""
    if not run_id:
        raise InvalidRunId(run_id, "empty")
    if not _RUN_ID_CHARACTERS.issuperset(run_id):
        raise InvalidRunId(run_id, "characters")


# Starting and driving (spec 4.1, R17, R23) --------------------------------------------------------------------------


def _start(call: _Call) -> _Answer:
    spec = read_spec(call.text, required(call.fields, "spec"), "spec")
    payload, drive = call.payload("input"), call.drive
    spec.check()
    check_run_id(call.state.run_id)
    if call.state.spec is not None:
        _check_same_start(call.state, call.state.spec, spec, payload)
        return _Answer(_repair(call.state) if drive else (), drive, None)
    if len(call.state.run_id) > _RUN_ID_LENGTH:
        raise InvalidRunId(call.state.run_id, "length")
    created = make("run_created", spec=spec.to_json(), input=payload)
    return _Answer([created, make("run_started")] if drive else [created], drive, True)


def _check_same_start(state: State, stored: Spec, spec: Spec, payload: str) -> None:
    if not spec.matches(stored):
        raise RunConflict(state.run_id, "spec")
    if not json.equal(payload, state.input):
        raise RunConflict(state.run_id, "input")


def _repair(state: State) -> list[Draft]:
    """The start that a pending run still lacks."""
    return [make("run_started")] if state.status == "pending" else []


def _drive(call: _Call) -> _Answer:
    call.check_exists()
    return _Answer(_repair(call.state), True)


# Waits and hooks (spec 6.1, 6.3, R24) -------------------------------------------------------------------------------


def _resume_wait(call: _Call) -> _Answer:
    early, drive = call.flag("early", False), call.drive
    wait_id = call.subject("wait")
    call.check_exists()
    wait = call.state.waits.get(wait_id)
    if wait is None:
        raise call.unknown("wait", wait_id)
    if call.state.terminal:
        return _Answer()
    if not wait.is_open:
        return _Answer((), drive)
    if wait.resume_at > call.now and not early:
        raise refuse(call.state, "wait_not_due", "wait", wait_id, format_instant(wait.resume_at))
    return _Answer([make("wait_completed", wait_id=quote(wait_id))], drive)


def _resume_hook(call: _Call) -> _Answer:
    payload, drive = call.payload("payload"), call.drive
    hook = _hook(call)
    match hook.status:
        case "active":
            return _Answer([make("hook_received", hook_id=quote(hook.hook_id), payload=payload)], drive)
        case "received" if json.equal(hook.payload_text or "null", payload):
            return _Answer((), drive)
        case "received":
            raise HookConflict(call.state.run_id, hook.hook_id, "payload")
        case status:
            raise HookConflict(call.state.run_id, hook.hook_id, status)


def _dispose_hook(call: _Call) -> _Answer:
    drive = call.drive
    hook = _hook(call)
    match hook.status:
        case "active":
            return _Answer([make("hook_disposed", hook_id=quote(hook.hook_id))], drive)
        case "disposed":
            return _Answer((), drive)
        case status:
            raise HookConflict(call.state.run_id, hook.hook_id, status)


def _hook(call: _Call) -> Hook:
    """The hook of the call; one that is active on a run that ended can no longer be resolved."""
    hook_id = call.subject("hook")
    call.check_exists()
    hook = call.state.hooks.get(hook_id)
    if hook is None:
        raise call.unknown("hook", hook_id)
    if hook.is_open and call.state.terminal:
        raise RunTerminal(call.state.run_id)
    return hook


# Cancellation and ends (spec 6.4, 6.5) ------------------------------------------------------------------------------


def _request_cancellation(call: _Call) -> _Answer:
    reason, drive, state = call.reason, call.drive, call.state
    call.check_exists()
    if state.terminal:
        return _Answer()
    if state.request is not None:
        if state.request.reason != reason:
            raise RunConflict(state.run_id, "request")
        return _Answer((), drive)
    request = "{}" if reason is None else f'{{"reason":{quote(reason)}}}'
    return _Answer([make("run_cancellation_requested", request=request)], drive)


def _force_cancel(call: _Call) -> _Answer:
    return _end(call, make("run_cancelled", reason=text_or_null(call.reason)))


def _terminate_for_timeout(call: _Call) -> _Answer:
    deadline, reason = moment(call.instant("deadline")), text_or_null(call.reason)
    return _end(call, make("run_timed_out", deadline=deadline, reason=reason))


def _terminate_for_host_shutdown(call: _Call) -> _Answer:
    return _end(call, make("run_host_shutdown", reason=text_or_null(call.reason)))


def _end(call: _Call, draft: Draft) -> _Answer:
    call.check_exists()
    return _Answer([] if call.state.terminal else [draft], False, False)


# Facts (spec 6.6) ---------------------------------------------------------------------------------------------------


def _record_progress(call: _Call) -> _Answer:
    return _fact(call, RecordProgress(read_progress(call.text, required(call.fields, "progress"), "progress")))


def _link_child_operation(call: _Call) -> _Answer:
    return _fact(call, LinkChild(read_child(call.text, required(call.fields, "child"), "child")))


def _fact(call: _Call, member: Member) -> _Answer:
    member.check(call.state)
    call.check_exists()
    if call.state.terminal:
        raise RunTerminal(call.state.run_id)
    member.check_known(call.state)
    drafts = [member.draft(call.now)] if member.owed(call.state) else []
    return _Answer(drafts, False, False)


# Due work (spec 6.1, 6.2, R9) ---------------------------------------------------------------------------------------


def _resume_scheduled_run(call: _Call) -> _Answer:
    now = call.instant("now")
    call.check_exists()
    waits = _due_waits(call.state, now)
    return _Answer(waits, bool(waits or call.state.due_retries(now)), not call.state.terminal)


def _resume_due_waits(call: _Call) -> _Answer:
    now = call.instant("now")
    call.check_exists()
    waits = _due_waits(call.state, now)
    return _Answer(waits, bool(waits))


def _resume_due_retries(call: _Call) -> _Answer:
    now = call.instant("now")
    call.check_exists()
    return _Answer((), bool(call.state.due_retries(now)))


def _due_waits(state: State, now: int) -> list[Draft]:
    return [make("wait_completed", wait_id=quote(wait.wait_id)) for wait in state.due_waits(now)]


_OPERATIONS: Final[dict[str, Callable[[_Call], _Answer]]] = {
    "start": _start,
    "drive": _drive,
    "resume_wait": _resume_wait,
    "resume_hook": _resume_hook,
    "dispose_hook": _dispose_hook,
    "request_cancellation": _request_cancellation,
    "force_cancel": _force_cancel,
    "terminate_for_timeout": _terminate_for_timeout,
    "terminate_for_host_shutdown": _terminate_for_host_shutdown,
    "record_progress": _record_progress,
    "link_child_operation": _link_child_operation,
    "resume_scheduled_run": _resume_scheduled_run,
    "resume_due_waits": _resume_due_waits,
    "resume_due_retries": _resume_due_retries,
}
