"""The values users hold: hook metadata here; specs, policies, facts, envelopes and snapshots from beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from perdure.envelope import Envelope
from perdure.payload import encode
from perdure.policy import RetryPolicy
from perdure.snapshot import HookSnapshot, StepSnapshot, WaitSnapshot, WorkflowRunSnapshot
from perdure.spec import WorkflowSpec
from perdure.values import CancellationRequest, ChildOperationReference, WorkflowProgress
from perdure.wire import Part, object_json, text_json

__all__ = [
    "CancellationRequest",
    "ChildOperationReference",
    "Envelope",
    "HookCallbackRoute",
    "HookMetadata",
    "HookSnapshot",
    "RetryPolicy",
    "StepSnapshot",
    "WaitSnapshot",
    "WorkflowProgress",
    "WorkflowRunSnapshot",
    "WorkflowSpec",
]


@dataclass(frozen=True, slots=True)
class HookCallbackRoute:
    """Where the host wants a hook called back. The engine sends nothing and never expands `{token}` in the path."""

    path: str
    method: str = "POST"

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", self.method.upper())

    def to_json(self) -> bytes:
        """The route as on the wire, the method first."""
        return object_json([("method", text_json("method", self.method)), ("path", text_json("path", self.path))])


@dataclass(frozen=True, slots=True)
class HookMetadata:
    """What a hook is for, in the form that hosts and tools know (spec 06 §6.3). Stored in clear: no secrets in here."""

    kind: str
    subject: str | None = None
    callback: HookCallbackRoute | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    data: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", dict(self.labels))

    @classmethod
    def human_approval(cls, subject: str) -> Self:
        """Kind `human_approval`: a person decides about `subject`."""
        return cls("human_approval", subject)

    @classmethod
    def generic(cls, kind: str, subject: str | None = None) -> Self:
        """Any other kind."""
        return cls(kind, subject)

    def with_callback(self, path: str, method: str = "POST") -> Self:
        """The same with a callback route."""
        return replace(self, callback=HookCallbackRoute(path, method))

    def with_labels(self, **labels: str) -> Self:
        """The same with these labels added."""
        return replace(self, labels={**self.labels, **labels})

    def with_data(self, data: Any) -> Self:
        """The same with this JSON value as its data."""
        return replace(self, data=data)

    def to_json(self) -> bytes:
        """The metadata as on the wire; absent parts are left out. Raises `Serialization("payload")`."""
        parts: list[Part] = [("kind", text_json("kind", self.kind))]
        if self.subject is not None:
            parts.append(("subject", text_json("subject", self.subject)))
        if self.callback is not None:
            parts.append(("callback", self.callback.to_json()))
        if self.labels:
            parts.append(("labels", encode(dict(self.labels))))
        if self.data is not None:
            parts.append(("data", encode(self.data)))
        return object_json(parts)
