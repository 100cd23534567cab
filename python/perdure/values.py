"""Facts a run records beside its work: progress, child operation links, the cancellation request (spec 01 §1.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from perdure.errors import Serialization
from perdure.instant import Instant
from perdure.payload import decode, encode
from perdure.wire import Part, object_json, text_json

__all__ = ["CancellationRequest", "ChildOperationReference", "WorkflowProgress", "read_shape"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkflowProgress:
    """One progress entry, recorded once per id. The kernel judges it: `total` above 0 and at least `completed`."""

    progress_id: str
    completed: int
    total: int | None = None
    message: str | None = None
    details: Any = field(default=None, repr=False)

    def to_json(self) -> bytes:
        """The entry as on the wire; absent parts are left out. Raises `Serialization("payload")`."""
        parts: list[Part] = [
            ("progress_id", text_json("progress_id", self.progress_id)),
            ("completed", encode(self.completed)),
        ]
        if self.total is not None:
            parts.append(("total", encode(self.total)))
        if self.message is not None:
            parts.append(("message", text_json("message", self.message)))
        if self.details is not None:
            parts.append(("details", encode(self.details)))
        return object_json(parts)

    @classmethod
    def from_json(cls, raw: bytes) -> WorkflowProgress:
        """The entry of its JSON. Raises `Serialization`."""
        shape = read_shape(raw, _Progress, "a progress entry")
        return cls(shape.progress_id, shape.completed, shape.total, shape.message, decode(bytes(shape.details)))


@dataclass(frozen=True, slots=True)
class ChildOperationReference:
    """A link to work outside this run; a pure record. `flow_run_id` names a run of the same store."""

    reference_id: str
    kind: str
    operation_id: str
    flow_run_id: str | None = None
    metadata: Any = field(default=None, repr=False)

    def to_json(self) -> bytes:
        """The link as on the wire; absent parts are left out. Raises `Serialization("payload")`."""
        names = ("reference_id", "kind", "operation_id")
        parts: list[Part] = [(name, text_json(name, getattr(self, name))) for name in names]
        if self.flow_run_id is not None:
            parts.append(("flow_run_id", text_json("flow_run_id", self.flow_run_id)))
        if self.metadata is not None:
            parts.append(("metadata", encode(self.metadata)))
        return object_json(parts)

    @classmethod
    def from_json(cls, raw: bytes) -> ChildOperationReference:
        """The link of its JSON. Raises `Serialization`."""
        shape = read_shape(raw, _Child, "a child operation")
        metadata = decode(bytes(shape.metadata))
        return cls(shape.reference_id, shape.kind, shape.operation_id, shape.flow_run_id, metadata)


@dataclass(frozen=True, slots=True)
class CancellationRequest:
    """What was asked for, and, once recorded, when and as which event of the run."""

    reason: str | None = None
    requested_at: Instant | None = field(default=None, compare=False)
    sequence: int | None = field(default=None, compare=False)

    def to_json(self) -> bytes:
        """The request as on the wire: `{}` or with its reason."""
        return object_json([] if self.reason is None else [("reason", text_json("reason", self.reason))])

    @classmethod
    def recorded(cls, raw: bytes) -> CancellationRequest:
        """The request of a snapshot's `cancellation` object. Raises `Serialization`."""
        shape = read_shape(raw, _Cancellation, "a cancellation")
        return cls(shape.request.reason, Instant.parse(shape.requested_at), shape.sequence)


def read_shape(raw: bytes, shape: type[T], what: str) -> T:
    """JSON of a known form. Raises `Serialization("shape")` without the bytes."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        where = str(error).partition(" - at ")[2] or "`$`"
        raise Serialization("shape", detail=f"not {what}: unreadable at {where}") from None


_NULL = msgspec.Raw(b"null")


class _Progress(msgspec.Struct):
    progress_id: str
    completed: int
    total: int | None = None
    message: str | None = None
    details: msgspec.Raw = _NULL


class _Child(msgspec.Struct):
    reference_id: str
    kind: str
    operation_id: str
    flow_run_id: str | None = None
    metadata: msgspec.Raw = _NULL


class _Request(msgspec.Struct):
    reason: str | None = None


class _Cancellation(msgspec.Struct):
    request: _Request
    requested_at: str
    sequence: int
