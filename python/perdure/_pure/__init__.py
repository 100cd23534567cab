"""The pure-Python kernel: the oracle of the compiled one, and the baseline it is measured against.

Implements `perdure.kernel.Kernel` function by function; files are named after their Rust twins. It imports the standard
library, `perdure.errors` and `perdure.instant`, and nothing else at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure._pure import json
from perdure._pure.control import check_run_id
from perdure._pure.event import read_spec
from perdure._pure.retry import retry_delay_ms
from perdure._pure.run import Run
from perdure.errors import FlowError, RunNotFound

if TYPE_CHECKING:
    from perdure import kernel as seam

__all__ = [
    "check_run_id",
    "check_spec",
    "json_equal",
    "new",
    "project",
    "project_many",
    "retry_delay_ms",
]

_MAX_EVENT_BYTES = 1_048_576


def new(run_id: str, max_event_bytes: int) -> Run:
    """A run without events."""
    return Run(run_id, max_event_bytes)


def project(run_id: str, history: bytes, max_event_bytes: int) -> Run:
    """Folds lines into a run. Raises `RunNotFound` for no lines, `Serialization`, `InvalidWorkflow`, `InvalidTransition`."""
    if not history:
        raise RunNotFound(run_id)
    return Run.of_history(run_id, history, max_event_bytes)


def project_many(
    histories: Sequence[tuple[str, bytes]], threads: int, max_event_bytes: int = _MAX_EVENT_BYTES
) -> list[seam.Run | Exception]:
    """A run or its refusal per history, in order. One after the other: threads do not speed up the interpreter."""
    results: list[seam.Run | Exception] = []
    for run_id, history in histories:
        try:
            results.append(project(run_id, history, max_event_bytes))
        except FlowError as error:
            results.append(error)
    return results


def check_spec(spec: bytes) -> None:
    """Raises `Serialization` or `InvalidWorkflow` (spec 1.4, R61)."""
    text = json.read_text(spec)
    read_spec(text, (0, len(text)), "spec").check()


def json_equal(left: bytes, right: bytes) -> bool:
    """JSON equality of spec 1.7 and R29. Raises `Serialization` for what is not JSON."""
    return json.equal(json.read_text(left), json.read_text(right))
