"""What is said of a workflow that drifted, raised, or waits for nothing (R37, R38)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson

from perdure.coroutine.places import Place, line_of, tell
from perdure.errors import NonDeterministic, WorkflowRaised
from perdure.outcome import brief, where_raised

if TYPE_CHECKING:
    from perdure.coroutine.chain import Chain
    from perdure.coroutine.replay import Replay

__all__ = ["awaits", "emit", "raised", "unasked"]

_log = logging.getLogger("perdure")


def awaits(replay: Replay) -> list[str]:
    """Where each open chain is, and how the workflow ended if it has."""
    lines = [_at(chain) for chain in replay.chains]
    main = replay.main
    if main is not None and main.done:
        lines.insert(0, _ended(replay, main))
    return lines


def _at(chain: Chain) -> str:
    what = "nothing yet" if chain.waiting is None else chain.waiting.describe()
    return f"{what} at {tell(chain.place)}" if chain.place is not None else what


def _ended(replay: Replay, main: Chain) -> str:
    error = replay.error
    if error is None:
        return f"returned, last await at {tell(main.place)}" if main.place is not None else "returned without an await"
    return f"raised {type(error).__name__} at {where_raised(error) or 'an unknown line'}"


def raised(replay: Replay, error: BaseException) -> WorkflowRaised:
    """The engine's error for what workflow code raised."""
    program = replay.program
    return WorkflowRaised(replay.run_id, program.name, program.version, brief(error), where_raised(error))


def unasked(replay: Replay, sequence: int, key: tuple[str, str]) -> NonDeterministic:
    """The drift of recorded work that the code has not asked for by then."""
    kind, subject = key
    now = orjson.dumps(awaits(replay)).decode()
    error = NonDeterministic(replay.run_id, kind, subject, "place", sequence, _definition(replay, key), now)
    error.__cause__ = replay.error
    return error


def _definition(replay: Replay, key: tuple[str, str]) -> str:
    """What was recorded, without what may be secret."""
    kind, subject = key
    if kind == "step" and (step := replay.reads.step(subject)) is not None:
        input, retry = orjson.Fragment(step.input), orjson.Fragment(step.retry)
        return orjson.dumps({"step_id": subject, "step_name": step.step_name, "input": input, "retry": retry}).decode()
    return orjson.dumps({f"{kind}_id": subject}).decode()


def emit(told: Iterable[tuple[str, Place]]) -> None:
    """Warns, each with its line. A filter that turns warnings into errors must not stop a drive that was committed."""
    for text, place in told:
        try:
            warnings.warn_explicit(text, RuntimeWarning, place[0].co_filename, line_of(place))
        except Warning:
            _log.warning("%s: %s", tell(place), text)
