"""Steps that run in threads at the same time end in any order, and a drive may take their outcomes in several commits.

What a row says about the order of their events, and how often the workflow was asked, is then nothing to compare; and a row
that ends one way or another with that order is left out. Both are seen by rule, from what the row recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from perdure.testing._conformance.values import loads

__all__ = ["decides", "live_together"]

_OUTCOMES: Final = frozenset({"step_completed", "step_retrying", "step_failed", "step_non_retryable", "step_cancelled"})
_FOR_GOOD: Final = _OUTCOMES - {"step_completed", "step_retrying"}


def live_together(row: dict[str, Any]) -> list[set[str]]:
    """The sets of two or more steps of one run that were being executed at some moment."""
    executed = {(step_id, attempt) for step_id, attempt in row["recorded"]["steps"]}
    groups: list[set[str]] = []
    for run in row["recorded"]["runs"].values():
        live: set[str] = set()
        for event in _events(run):
            if event["type"] == "step_started" and (event["step_id"], event["attempt"]) in executed:
                live.add(event["step_id"])
                groups.append(set(live))
            elif event["type"] in _OUTCOMES:
                live.discard(event["step_id"])
    return [group for group in groups if len(group) > 1]


def decides(row: dict[str, Any]) -> bool:
    """Whether the end of a row may depend on which of its steps ends first: one that fails for good ends the run beside the
    others, or the program looks at some of them and not at the others."""
    groups = live_together(row)
    return any(_ends_its_run(row, group) or _looks_at_a_part(row, group) for group in groups)


def _ends_its_run(row: dict[str, Any], group: set[str]) -> bool:
    for run in row["recorded"]["runs"].values():
        events = list(_events(run))
        fails = any(event["type"] in _FOR_GOOD and event["step_id"] in group for event in events)
        if fails and any(event["type"] == "run_failed" for event in events):
            return True
    return False


def _looks_at_a_part(row: dict[str, Any], group: set[str]) -> bool:
    programs = [row["program"], *(call["program"] for call in row["calls"] if call["op"] == "program")]
    for rule in (rule for program in programs for rule in program):
        seen = set(_looked_at(rule)) & group
        if seen and (seen != group or _takes_one(rule["when"])):
            return True
    return False


def _looked_at(value: Any) -> Iterator[str]:
    """Ids of steps in conditions and placeholders."""
    if isinstance(value, list):
        for member in value:
            yield from _looked_at(member)
    elif isinstance(value, dict):
        for key, member in value.items():
            if key in ("step_completed", "step_failed", "$step_output", "$step_failed"):
                yield member
            elif key == "step_output_is":
                yield member[0]
            elif key == "first_resolved":
                yield from (subject for kind, subject in member[0] if kind == "step")
            else:
                yield from _looked_at(member)


def _takes_one(conditions: list[dict[str, Any]]) -> bool:
    """Not every condition must hold of every step it names."""
    return any(key in condition for condition in conditions for key in ("any", "not", "first_resolved"))


def _events(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (loads(line)["event"] for line in run["lines"])
