"""Workflow specs: what a run is a run of (spec 01 §1.4, R57)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perdure.errors import Serialization
from perdure.payload import decode, encode
from perdure.wire import Part, object_json, text_json

__all__ = ["WorkflowSpec"]

PYTHON_KIND: Final = "rust_embedded"
"""The reference's kind for code that the host provides (spec 01 §1.4, R57)."""
PYTHON_EXPORT: Final = "main"


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """What a run is a run of; stored in its first event and compared on every start (spec 01 §1.4, R57).

    Any text is taken here: blanks and the grammar of the build id are judged by the kernel at start.
    A spec read from JSON keeps its bytes, so that what this release does not know travels on.
    """

    name: str
    version: str
    entrypoint: str
    export_name: str = PYTHON_EXPORT
    kind: str = PYTHON_KIND
    runtime_build_id: str | None = None
    _raw: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def python(cls, name: str, version: str = "1", build: str | None = None) -> WorkflowSpec:
        """The spec of a Python workflow: found by name and version, never by module path (R57)."""
        return cls(name, version, entrypoint=name, runtime_build_id=build)

    @classmethod
    def from_json(cls, raw: bytes) -> WorkflowSpec:
        """The spec of its JSON. What is missing or mistyped reads as empty; `to_json` gives the bytes to be judged."""
        try:
            found = decode(raw)
        except Serialization:
            found = {}
        top = found if isinstance(found, dict) else {}
        within = top.get("runtime")
        runtime = within if isinstance(within, dict) else {}
        spec = cls(
            name=_text(top, "name"),
            version=_text(top, "version"),
            entrypoint=_text(runtime, "entrypoint"),
            export_name=_text(runtime, "export_name"),
            kind=_text(runtime, "kind"),
            runtime_build_id=_text(top, "runtime_build_id") or None,
        )
        object.__setattr__(spec, "_raw", bytes(raw))
        return spec

    def with_build(self, build: str | None) -> WorkflowSpec:
        """The same spec pinned to another build, or to none."""
        spec = replace(self, runtime_build_id=build)
        if self._raw is not None:
            known: dict[str, Any] = decode(self._raw)
            known.pop("runtime_build_id", None)
            object.__setattr__(spec, "_raw", encode(known if build is None else known | {"runtime_build_id": build}))
        return spec

    def to_json(self) -> bytes:
        """The bytes it was read from, or the fields in wire order. Raises `Serialization("payload")`."""
        if self._raw is not None:
            return self._raw
        runtime = object_json(
            (key, text_json(key, getattr(self, key))) for key in ("kind", "entrypoint", "export_name")
        )
        parts: list[Part] = [
            ("name", text_json("name", self.name)),
            ("version", text_json("version", self.version)),
            ("runtime", runtime),
        ]
        if self.runtime_build_id is not None:
            parts.append(("runtime_build_id", text_json("runtime_build_id", self.runtime_build_id)))
        return object_json(parts)


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    return value if isinstance(value, str) else ""
