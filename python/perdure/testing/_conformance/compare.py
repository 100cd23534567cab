"""What is compared and what is left out: the rules of the two READMEs beside the vectors."""

from __future__ import annotations

import re
from typing import Any, Final

from perdure.instant import parse_instant
from perdure.testing._conformance.values import dumps, equal, loads

__all__ = [
    "difference",
    "error_found",
    "events_as_listed",
    "exact_line",
    "exact_text",
    "loose_event",
    "loose_result",
    "loose_snapshot",
    "same_error",
]

_EVENT_ID: Final = re.compile(r'"event_id":"[^"]*"')
_REFUSED_PAYLOAD: Final = re.compile(r'("(?:[^"\\]|\\.)*?serialization error: )(?:[^"\\]|\\.)*"')
_COMPARED_FROM_NS: Final = parse_instant("2100-01-01T00:00:00Z")
_INSTANTS: Final = frozenset({"retry_after", "resume_at", "requested_at", "scheduled_at", "deadline"})
_PAYLOADS: Final = frozenset({"input", "output", "payload", "metadata", "details"})
_OUR_KEYS: Final = ("resolutions", "failures")
_SNAPSHOT_KEYS: Final = {
    *("run_id", "spec", "input", "status", "steps", "waits", "hooks", "cancellation", "progress", "child_operations"),
    *("output", "error", "terminal_outcome", "last_sequence"),
}
_KINDS: Final = {"decode": "Serialization", "Store": "Serialization", "Runtime": "WorkflowRaised"}


def exact_text(text: str) -> str:
    """A snapshot of our own: all of it but the prose after `serialization error: `."""
    return _REFUSED_PAYLOAD.sub(r'\1"', text)


def exact_line(line: str) -> str:
    """A line of our own: as `exact_text`, without its event id."""
    return _EVENT_ID.sub('"event_id":""', exact_text(line), count=1)


def loose_event(line: str) -> Any:
    """The event of a recorded line, with the instants that follow the recording's clock taken out."""
    return _without_clock(loads(line)["event"])


def loose_snapshot(text: str) -> Any:
    """A snapshot without our own keys, empty maps of later levels, default error texts and the recording's clock."""
    snapshot = _without_clock(loads(text))
    for key in list(snapshot):
        if key in _OUR_KEYS or (key not in _SNAPSHOT_KEYS and not snapshot[key]):
            del snapshot[key]
    ending = snapshot.get("terminal_outcome") or {}
    if ending.get("type") in ("timed_out", "host_shutdown") and ending.get("reason") is None:
        snapshot.pop("error", None)
    return snapshot


def loose_result(result: Any) -> Any:
    """The result of a call, with the instants that follow the recording's clock taken out."""
    return _without_clock(result)


def _without_clock(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_clock(member) for member in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, member in value.items():
        if key in _INSTANTS and isinstance(member, str):
            kept[key] = _instant(member)
        else:
            kept[key] = member if key in _PAYLOADS else _without_clock(member)
    return kept


def _instant(text: str) -> Any:
    """Instants in or after 2100 follow from a given `now`; of the others only counts that there is one."""
    try:
        instant = parse_instant(text)
    except ValueError:
        return text
    return instant if instant >= _COMPARED_FROM_NS else "an instant"


def events_as_listed(lines: list[str], listed: list[str]) -> list[str]:
    """The events of `lines` as the key `ours` writes them: `type`, or `type:id` where the list gives an id at that place."""
    found = []
    for index, line in enumerate(lines):
        event = loads(line)["event"]
        named = index < len(listed) and ":" in listed[index]
        ids = [event[key] for key in ("step_id", "wait_id", "hook_id") if key in event]
        ids += [
            event[key][f"{key}_id" if key == "progress" else "reference_id"]
            for key in ("progress", "child")
            if key in event
        ]
        found.append(f"{event['type']}:{ids[0]}" if ids and (named or index >= len(listed)) else event["type"])
    return found


def error_found(error: BaseException) -> dict[str, Any]:
    """An error as a result row shows it: its kind and those of its fields that are named there."""
    fields = (
        "run_id",
        "limit",
        "token",
        "existing_run_id",
        "existing_hook_id",
        "required_build_id",
        "current_build_id",
    )
    shown = {name: getattr(error, name) for name in fields if hasattr(error, name)}
    return {"kind": type(error).__name__, **shown, "text": str(error)}


def same_error(expected: dict[str, Any], error: BaseException) -> bool:
    """Whether the error is of that kind, or a refinement of it, and has the fields that are given."""
    kind = _KINDS.get(expected["kind"], expected["kind"])
    if kind not in {base.__name__ for base in type(error).__mro__}:
        return False
    return all(getattr(error, name, None) == value for name, value in expected.items() if name != "kind")


def difference(expected: Any, found: Any, path: str = "$") -> str | None:
    """The first place where two values of `loads` differ, in words; None if they are equal (spec 1.7)."""
    if equal(expected, found):
        return None
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *found]:
            if (key in expected) != (key in found) or not equal(expected[key], found[key]):
                return difference(expected.get(key, "(absent)"), found.get(key, "(absent)"), f"{path}.{key}")
    if isinstance(expected, list) and isinstance(found, list):
        for index, (left, right) in enumerate(zip(expected, found, strict=False)):
            if not equal(left, right):
                return difference(left, right, f"{path}[{index}]")
        longer = expected if len(expected) > len(found) else found
        extra = longer[min(len(expected), len(found))]
        return f"at {path}: expected {len(expected)} members, found {len(found)}; the next is {dumps(extra)}"
    return f"at {path}: expected {dumps(expected)}, found {dumps(found)}"
