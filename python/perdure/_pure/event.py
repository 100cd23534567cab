"""Events: the catalogue, their decoding, and the envelope line (spec 01, R28, R30, R61)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from perdure._pure import json
from perdure._pure.json import Span, shape
from perdure._pure.retry import DEFAULT_POLICY, Policy
from perdure.errors import InvalidWorkflow, Serialization, UnsupportedEventSchemaVersion
from perdure.instant import parse_instant

__all__ = [
    "EVENT_KEYS",
    "INVISIBLE",
    "Child",
    "Event",
    "Line",
    "Progress",
    "Spec",
    "decode_event",
    "decode_line",
    "is_blank",
    "read_child",
    "read_failure",
    "read_instant",
    "read_optional",
    "read_policy",
    "read_progress",
    "read_spec",
    "read_string",
    "read_u64",
    "required",
]

_U32_MAX: Final = 2**32 - 1
_U64_MAX: Final = 2**64 - 1
_SCHEMA_VERSION: Final = 1
_UNSIGNED: Final = re.compile(r"0|[1-9][0-9]*")
_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_EVENT_ID: Final = re.compile(_UUID)
_match_written: Final = re.compile(
    rf'\{{"run_id":"([^"\\]*)","sequence":([0-9]+),"event_id":"{_UUID}","timestamp":("[^"\\]*"),"event":(?=\{{)'
).match
_BUILD_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-_.:+/@]{0,126}[A-Za-z0-9])?")
_WHITE_SPACE: Final = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""The code points with the Unicode property White_Space (R33); `str.strip()` alone would take U+001C to U+001F too."""


def is_blank(text: str) -> bool:
    """Empty, or nothing but white space (R33)."""
    return not text.strip(_WHITE_SPACE)


class Spec(NamedTuple):
    """A workflow spec with the fields that count (R28); markers and signal names stay raw."""

    name: str
    version: str
    kind: str
    entrypoint: str
    export_name: str
    build_id: str | None
    patch_markers: str | None
    signal_names: str | None

    def check(self) -> None:
        """Raises `InvalidWorkflow` for the first blank part (spec 1.4)."""
        for field, value in (
            ("name", self.name),
            ("version", self.version),
            ("runtime.entrypoint", self.entrypoint),
            ("runtime.export_name", self.export_name),
        ):
            if is_blank(value):
                raise InvalidWorkflow(field)

    def to_json(self) -> str:
        quote = json.quote
        runtime = f'{{"kind":{quote(self.kind)},"entrypoint":{quote(self.entrypoint)},"export_name":{quote(self.export_name)}}}'
        parts = [f'"name":{quote(self.name)},"version":{quote(self.version)},"runtime":{runtime}']
        if self.build_id is not None:
            parts.append(f'"runtime_build_id":{quote(self.build_id)}')
        if self.patch_markers is not None:
            parts.append(f'"patch_markers":{self.patch_markers}')
        if self.signal_names is not None:
            parts.append(f'"signal_names":{self.signal_names}')
        return "{" + ",".join(parts) + "}"

    def matches(self, stored: Spec) -> bool:
        """Equality for an idempotent start; a given spec without a build equals any stored build (R57)."""
        return (
            self[:5] == stored[:5]
            and self.build_id in (None, stored.build_id)
            and same_optional(self.patch_markers, stored.patch_markers)
            and same_optional(self.signal_names, stored.signal_names)
        )


class Progress(NamedTuple):
    """A workflow progress record (spec 1.4)."""

    progress_id: str
    completed: int
    total: int | None
    message: str | None
    details: str | None

    def fault(self) -> str | None:
        """The field whose value breaks the rules beside the id, if one does."""
        if self.total == 0:
            return "total"
        return "completed" if self.total is not None and self.completed > self.total else None

    def same(self, other: Progress) -> bool:
        return self[:4] == other[:4] and same_optional(self.details, other.details)

    def to_json(self) -> str:
        parts = [f'"progress_id":{json.quote(self.progress_id)},"completed":{self.completed}']
        if self.total is not None:
            parts.append(f'"total":{self.total}')
        if self.message is not None:
            parts.append(f'"message":{json.quote(self.message)}')
        if self.details is not None:
            parts.append(f'"details":{self.details}')
        return "{" + ",".join(parts) + "}"


class Child(NamedTuple):
    """A reference to an operation outside this run (spec 1.4)."""

    reference_id: str
    kind: str
    operation_id: str
    flow_run_id: str | None
    metadata: str | None

    def fault(self) -> str | None:
        """The first blank field beside the reference id, if there is one."""
        for field in ("kind", "operation_id", "flow_run_id"):
            value = getattr(self, field)
            if value is not None and is_blank(value):
                return field
        return None

    def same(self, other: Child) -> bool:
        return self[:4] == other[:4] and same_optional(self.metadata, other.metadata)

    def to_json(self) -> str:
        parts = [
            f'"reference_id":{json.quote(self.reference_id)}',
            f'"kind":{json.quote(self.kind)}',
            f'"operation_id":{json.quote(self.operation_id)}',
        ]
        if self.flow_run_id is not None:
            parts.append(f'"flow_run_id":{json.quote(self.flow_run_id)}')
        if self.metadata is not None:
            parts.append(f'"metadata":{self.metadata}')
        return "{" + ",".join(parts) + "}"


def same_optional(left: str | None, right: str | None) -> bool:
    """JSON equality where both may be absent."""
    return left is right if left is None or right is None else json.equal(left, right)


# Readers of one value: (checked text, span, name of the field) → value, or `Serialization` "shape". -------------------

Reader = Callable[[str, Span, str], Any]


def read_string(text: str, span: Span, what: str) -> str:
    return json.string(text, span, what)


def read_payload(text: str, span: Span, what: str) -> str:
    return text[span[0] : span[1]]


def read_u64(text: str, span: Span, what: str) -> int:
    return _unsigned(text, span, what, _U64_MAX)


def read_u32(text: str, span: Span, what: str) -> int:
    return _unsigned(text, span, what, _U32_MAX)


def _unsigned(text: str, span: Span, what: str, most: int) -> int:
    # Twenty digits hold every u64, and a longer lexeme need not be read to know that it is too large.
    lexeme = text[span[0] : span[1]]
    if _UNSIGNED.fullmatch(lexeme) and len(lexeme) <= 20 and int(lexeme) <= most:
        return int(lexeme)
    raise shape(f"{what} is not an unsigned integer up to {most}")


def read_instant(text: str, span: Span, what: str) -> int:
    try:
        return parse_instant(json.string(text, span, what))
    except ValueError as error:
        raise shape(f"{what}: {error}") from None


def read_failure(text: str, span: Span, what: str) -> str:
    json.members(text, span, what)
    return text[span[0] : span[1]]


def read_spec(text: str, span: Span, what: str) -> Spec:
    fields = json.members(text, span, what)
    runtime = json.members(text, required(fields, "runtime"), "runtime")
    kind = read_string(text, required(runtime, "kind"), "kind")
    if kind not in ("native_ts", "rust_embedded"):
        raise shape("kind is neither native_ts nor rust_embedded")
    build = read_optional(text, fields, "runtime_build_id", read_string)
    if build is not None and not _BUILD_ID.fullmatch(build):
        raise shape("runtime_build_id breaks the grammar of build ids")
    return Spec(
        read_string(text, required(fields, "name"), "name"),
        read_string(text, required(fields, "version"), "version"),
        kind,
        read_string(text, required(runtime, "entrypoint"), "entrypoint"),
        read_string(text, required(runtime, "export_name"), "export_name"),
        build,
        read_optional(text, fields, "patch_markers", read_payload),
        read_optional(text, fields, "signal_names", read_payload),
    )


def read_policy(text: str, span: Span, what: str) -> Policy:
    fields = json.members(text, span, what)
    return Policy(
        read_u32(text, required(fields, "max_attempts"), "max_attempts"),
        read_u64(text, required(fields, "delay_ms"), "delay_ms"),
        _choice(text, fields, "backoff", ("fixed", "exponential")),
        read_u64(text, fields["max_delay_ms"], "max_delay_ms") if "max_delay_ms" in fields else 0,
        _choice(text, fields, "on_exhausted", ("fail_run", "continue_workflow")),
    )


def _choice(text: str, fields: dict[str, Span], name: str, choices: tuple[str, ...]) -> str:
    """A word out of `choices`; the first is the default where the field is absent, and null is refused (R61)."""
    if name not in fields:
        return choices[0]
    word = read_string(text, fields[name], name)
    if word not in choices:
        raise shape(f"{name} is none of {', '.join(choices)}")
    return word


def read_progress(text: str, span: Span, what: str) -> Progress:
    fields = json.members(text, span, what)
    return Progress(
        read_string(text, required(fields, "progress_id"), "progress_id"),
        read_u64(text, required(fields, "completed"), "completed"),
        read_optional(text, fields, "total", read_u64),
        read_optional(text, fields, "message", read_string),
        read_optional(text, fields, "details", read_payload),
    )


def read_child(text: str, span: Span, what: str) -> Child:
    fields = json.members(text, span, what)
    return Child(
        read_string(text, required(fields, "reference_id"), "reference_id"),
        read_string(text, required(fields, "kind"), "kind"),
        read_string(text, required(fields, "operation_id"), "operation_id"),
        read_optional(text, fields, "flow_run_id", read_string),
        read_optional(text, fields, "metadata", read_payload),
    )


def read_request(text: str, span: Span, what: str) -> str | None:
    """The reason of a cancellation request."""
    reason: str | None = read_optional(text, json.members(text, span, what), "reason", read_string)
    return reason


def required(fields: dict[str, Span], name: str) -> Span:
    """The span of a field that must be there."""
    try:
        return fields[name]
    except KeyError:
        raise shape(f"{name} is missing") from None


def read_optional(text: str, fields: dict[str, Span], name: str, read: Reader) -> Any:
    """A field that may be absent; null reads as absent (R61)."""
    span = fields.get(name)
    if span is None or text.startswith("null", span[0]):
        return None
    return read(text, span, name)


# The catalogue ------------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    name: str
    read: Reader
    optional: bool = False


_STEP: Final = Field("step_id", read_string)
_WAIT: Final = Field("wait_id", read_string)
_HOOK: Final = Field("hook_id", read_string)
_ATTEMPT: Final = Field("attempt", read_u32)
_ERROR: Final = Field("error", read_string)
_REASON: Final = Field("reason", read_string, optional=True)
_FAILURE: Final = Field("failure", read_failure, optional=True)

_CATALOGUE: Final[dict[str, tuple[str, tuple[Field, ...]]]] = {
    "run_created": ("flow.run.created", (Field("spec", read_spec), Field("input", read_payload))),
    "run_started": ("flow.run.started", ()),
    "run_completed": ("flow.run.completed", (Field("output", read_payload),)),
    "run_failed": ("flow.run.failed", (_ERROR,)),
    "run_cancellation_requested": ("flow.run.cancellation.requested", (Field("request", read_request),)),
    "run_cancelled": ("flow.run.cancelled", (_REASON,)),
    "run_timed_out": ("flow.run.timed_out", (Field("deadline", read_instant), _REASON)),
    "run_retry_exhausted": ("flow.run.retry_exhausted", (_STEP, _ATTEMPT, _ERROR)),
    "run_host_shutdown": ("flow.run.host_shutdown", (_REASON,)),
    "run_progress_recorded": ("flow.run.progress.recorded", (Field("progress", read_progress),)),
    "child_operation_linked": ("flow.child.operation.linked", (Field("child", read_child),)),
    "step_created": (
        "flow.step.created",
        (_STEP, Field("step_name", read_string), Field("input", read_payload), Field("retry", read_policy)),
    ),
    "step_started": ("flow.step.started", (_STEP, _ATTEMPT)),
    "step_completed": ("flow.step.completed", (_STEP, Field("output", read_payload))),
    "step_retrying": (
        "flow.step.retrying",
        (
            _STEP,
            _ATTEMPT,
            _ERROR,
            Field("retry_after", read_instant, optional=True),
            Field("suggested_delay_ms", read_u64, optional=True),
            _FAILURE,
        ),
    ),
    "step_failed": ("flow.step.failed", (_STEP, _ATTEMPT, _ERROR, _FAILURE)),
    "step_non_retryable": ("flow.step.non_retryable", (_STEP, _ATTEMPT, _ERROR, _FAILURE)),
    "step_cancelled": ("flow.step.cancelled", (_STEP, _ATTEMPT, Field("reason", read_string))),
    "wait_created": ("flow.wait.created", (_WAIT, Field("resume_at", read_instant))),
    "wait_completed": ("flow.wait.completed", (_WAIT,)),
    "hook_created": ("flow.hook.created", (_HOOK, Field("token", read_string), Field("metadata", read_payload))),
    "hook_received": ("flow.hook.received", (_HOOK, Field("payload", read_payload))),
    "hook_disposed": ("flow.hook.disposed", (_HOOK,)),
}

EVENT_KEYS: Final = {kind: key for kind, (key, _) in _CATALOGUE.items()}
"""Event type → its dot name (spec 1.3)."""

INVISIBLE: Final = frozenset(
    ("step_created", "step_started", "step_retrying", "wait_created", "hook_created", "run_started")
)
"""The events after which the workflow need not be asked again (R8)."""


class Event(NamedTuple):
    """One decoded event: its type, its fields by name, and its JSON as it stands."""

    type: str
    fields: dict[str, Any]
    text: str


class Line(NamedTuple):
    """One decoded envelope, without what the rules do not look at."""

    sequence: int
    timestamp: int
    event: Event


def decode_event(text: str, span: Span) -> Event:
    """The event at `span` of a checked text. Raises `Serialization` "shape"."""
    return _read_event(text, span, json.members(text, span, "event"))


def _read_event(text: str, span: Span, found: dict[str, Span]) -> Event:
    kind = read_string(text, required(found, "type"), "type")
    known = _CATALOGUE.get(kind)
    if known is None:
        raise shape("the event type is unknown to this release")
    fields: dict[str, Any] = {}
    for name, read, optional in known[1]:
        if optional:
            fields[name] = read_optional(text, found, name, read)
        elif name == "retry" and name not in found:
            fields[name] = DEFAULT_POLICY
        else:
            fields[name] = read(text, required(found, name), name)
    return Event(kind, fields, text[span[0] : span[1]])


def decode_line(line: bytes, run_id: str, number: int) -> Line:
    """One line of a history of `run_id`; `number` is its place, for errors.

    Refusals in the order malformed, unsupported version, shape, foreign run.
    """
    try:
        text = json.read_text(line)
        return _decode_envelope(text, run_id)
    except UnsupportedEventSchemaVersion as error:
        raise UnsupportedEventSchemaVersion(error.version, error.supported, number) from None
    except Serialization as error:
        raise Serialization(error.rule, number, error.detail) from None


def _decode_envelope(text: str, run_id: str) -> Line:
    return _as_written(text, run_id) or _as_it_comes(text, run_id)


def _as_written(text: str, run_id: str) -> Line | None:
    """A line with the five fields in the order they are written in, which saves a scan; None for any other form."""
    head = _match_written(text)
    if head is None:
        return None
    start = head.end()
    found, end, fault = json.scan_members(text, start)
    if end != len(text) - 1 or fault is not None:
        return None
    sequence = read_u64(text, head.span(2), "sequence")
    timestamp = read_instant(text, head.span(3), "timestamp")
    return _owned(head[1], run_id, Line(sequence, timestamp, _read_event(text, (start, end), found)))


def _as_it_comes(text: str, run_id: str) -> Line:
    if text[0] != "{":
        raise shape("the envelope is not an object")
    found, _, fault = json.scan_members(text, 0)
    if "schema_version" in found:
        version = read_u64(text, found["schema_version"], "schema_version")
        if version != _SCHEMA_VERSION:
            raise UnsupportedEventSchemaVersion(version, _SCHEMA_VERSION)
    if fault is not None:
        raise shape(f"envelope: {fault}")
    owner = read_string(text, required(found, "run_id"), "run_id")
    sequence = read_u64(text, required(found, "sequence"), "sequence")
    if not _EVENT_ID.fullmatch(read_string(text, required(found, "event_id"), "event_id")):
        raise shape("event_id is not a UUID of five hyphenated groups")
    timestamp = read_instant(text, required(found, "timestamp"), "timestamp")
    event = decode_event(text, required(found, "event"))
    return _owned(owner, run_id, Line(sequence, timestamp, event))


def _owned(owner: str, run_id: str, line: Line) -> Line:
    if owner != run_id:
        raise Serialization("foreign_run", None, "the line belongs to another run")
    return line
