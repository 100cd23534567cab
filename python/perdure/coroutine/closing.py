"""Closing what a dropped pass leaves, so that none of it runs at some later time (R63)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from perdure.coroutine.places import tell

if TYPE_CHECKING:
    from perdure.coroutine.chain import Chain
    from perdure.coroutine.replay import Replay

__all__ = ["SURVIVORS", "close_chains", "close_generators"]

_log = logging.getLogger("perdure")
_TRIES: Final = 8

SURVIVORS: Final[list[Any]] = []
"""Coroutines that would not end. Kept, because collecting them would run their code at a time of the collector's
choice."""


def close_chains(chains: Iterable[Chain], run_id: str) -> None:
    """Closes coroutines in the order given; what survives is kept and logged with its line."""
    for chain in chains:
        chain.done = True
        if not _closes(partial(_end, chain), partial(_has_ended, chain.coroutine)):
            SURVIVORS.append(chain.coroutine)
            _log.warning(
                "a coroutine of run %s ignores being closed, at %s; it is kept",
                run_id,
                chain.place and tell(chain.place),
            )


def _end(chain: Chain) -> None:
    """One try. A chain that waits is resumed, and its await raises `GeneratorExit`: before Python 3.13 `close()` does not
    reach an async generator that is suspended inside an await."""
    if chain.started:
        chain.context.run(chain.coroutine.send, None)
    else:
        chain.coroutine.close()


def _closes(close: Callable[[], object], ended: Callable[[], bool]) -> bool:
    for _ in range(_TRIES):
        try:
            close()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - whatever the clean-up of a dropped pass raises, nobody is there for it
            pass
        if ended():
            return True
    return False


def _has_ended(code: Any) -> bool:
    return getattr(code, "cr_frame", None) is None and getattr(code, "ag_frame", None) is None


def close_generators(replay: Replay, generators: Iterable[Any]) -> RuntimeError | None:
    """Closes async generators by hand. Gives the error for one whose clean-up awaits; it is closed all the same."""
    problem: RuntimeError | None = None
    for generator in generators:
        if generator.ag_frame is None:
            continue
        code, line = generator.ag_code, generator.ag_frame.f_lineno
        where = f"{code.co_filename}:{line} in {code.co_qualname}"
        if replay.without_awaits(partial(_closes, partial(_drain, generator), partial(_has_ended, generator))):
            problem = RuntimeError(
                f"the async generator at {where} was dropped before its end and its clean-up awaits, which nobody "
                "would wait for; iterate it inside `async with contextlib.aclosing(…)`"
            )
        if generator.ag_frame is not None:
            SURVIVORS.append(generator)
            _log.warning("an async generator of run %s ignores being closed, at %s; it is kept", replay.run_id, where)
    return problem


def _drain(generator: Any) -> None:
    """One `aclose()`, driven without a loop; what it awaits raises `GeneratorExit`."""
    closing = generator.aclose()
    try:
        closing.send(None)
    except StopIteration:
        return
    closing.close()
