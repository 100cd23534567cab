"""Envelopes as users read them: one per line of a history (spec 01 §1.1 and §1.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.errors import Serialization
from perdure.instant import Instant
from perdure.payload import decode

__all__ = ["EVENT_KEYS", "Envelope"]

EVENT_KEYS: Final[dict[str, str]] = {
    "run_created": "flow.run.created",
    "run_started": "flow.run.started",
    "run_completed": "flow.run.completed",
    "run_failed": "flow.run.failed",
    "run_cancellation_requested": "flow.run.cancellation.requested",
    "run_cancelled": "flow.run.cancelled",
    "run_timed_out": "flow.run.timed_out",
    "run_retry_exhausted": "flow.run.retry_exhausted",
    "run_host_shutdown": "flow.run.host_shutdown",
    "run_progress_recorded": "flow.run.progress.recorded",
    "child_operation_linked": "flow.child.operation.linked",
    "step_created": "flow.step.created",
    "step_started": "flow.step.started",
    "step_completed": "flow.step.completed",
    "step_retrying": "flow.step.retrying",
    "step_failed": "flow.step.failed",
    "step_non_retryable": "flow.step.non_retryable",
    "step_cancelled": "flow.step.cancelled",
    "wait_created": "flow.wait.created",
    "wait_completed": "flow.wait.completed",
    "hook_created": "flow.hook.created",
    "hook_received": "flow.hook.received",
    "hook_disposed": "flow.hook.disposed",
}
"""`type` on the wire → event key, the dot name of observers and errors. Keys are not on the wire."""


class _Line(msgspec.Struct):
    run_id: str
    sequence: int
    event_id: str
    timestamp: str
    event: msgspec.Raw


class _Type(msgspec.Struct):
    type: str


class _Progress(msgspec.Struct, frozen=True):
    progress_id: str | None = None


class _Child(msgspec.Struct, frozen=True):
    reference_id: str | None = None


class _Ids(msgspec.Struct):
    step_id: str | None = None
    wait_id: str | None = None
    hook_id: str | None = None
    progress: _Progress = _Progress()
    child: _Child = _Child()


_IDS: Final = msgspec.json.Decoder(_Ids)
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_LINE: Final = msgspec.json.Decoder(_Line)
_TYPE: Final = msgspec.json.Decoder(_Type)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event of a run. `raw` is the event's JSON as stored; the repr shows neither payloads nor tokens."""

    run_id: str
    sequence: int
    event_id: str
    timestamp: Instant
    type: str
    raw: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: bytes) -> Envelope:
        """The envelope of one line. Raises `Serialization`."""
        return _parse(line, None)

    @classmethod
    def parse_lines(cls, lines: bytes) -> list[Envelope]:
        """The envelopes of a history. Lines of blanks are skipped. Raises `Serialization` with the line's number."""
        split = lines.split(b"\n")
        return [_parse(line, number) for number, line in enumerate(split, 1) if line.strip(b" \t\r")]

    @property
    def key(self) -> str:
        """The event key, such as `flow.step.completed`."""
        return EVENT_KEYS[self.type]

    @property
    def event(self) -> dict[str, Any]:
        """The event with its payload, decoded anew at each call. Raises `Serialization("payload")`."""
        found: dict[str, Any] = decode(self.raw)
        return found

    @property
    def subject(self) -> tuple[str, str] | None:
        """What the event is about, as (kind, id): a step, wait, hook, progress or child; None for the run itself."""
        ids = _IDS.decode(_readable(self.raw))  # ids only: a payload may hold what Python cannot (R30)
        found = (
            ("step", ids.step_id),
            ("wait", ids.wait_id),
            ("hook", ids.hook_id),
            ("progress", ids.progress.progress_id),
            ("child", ids.child.reference_id),
        )
        if self.type.startswith("run_") and self.type != "run_progress_recorded":
            return None
        return next(((kind, id) for kind, id in found if id is not None), None)


def _readable(line: bytes) -> bytes:
    """The line with lone surrogate escapes replaced, byte for byte in place: a history may hold one inside a
    payload (R30), and what is read of a line here are ids and the type."""
    return _LONE_SURROGATE.sub(rb"\\ufffd", line)


def _parse(line: bytes, number: int | None) -> Envelope:
    try:
        readable = _readable(line)
        found = _LINE.decode(readable)
        event_type = _TYPE.decode(found.event).type
        begin = readable.index(found.event)
        raw = line[begin : begin + len(bytes(found.event))]
        timestamp = Instant.parse(found.timestamp)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        raise Serialization("shape", number, "not an envelope of an event") from None
    if event_type not in EVENT_KEYS:
        raise Serialization("shape", number, "an event type this release does not know")
    return Envelope(found.run_id, found.sequence, found.event_id, timestamp, event_type, raw)
