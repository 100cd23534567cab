"""Runs that a worker leaves alone for a while because it cannot drive them, though others may (R44)."""

from __future__ import annotations

from typing import Final

__all__ = ["ShunnedRuns"]

_FIRST_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 300.0
_DOUBLINGS: Final = 10
_MOST: Final = 10_000


class ShunnedRuns:
    """In memory only: which runs, how often in a row they could not be driven, and until when they are passed over. Times
    are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[int, float]] = {}

    def shun(self, run_id: str, now: float) -> float:
        """Passes over the run for a time that doubles with each call; gives that time. The oldest of very many are
        forgotten."""
        times, _ = self._runs.pop(run_id, (0, 0.0))
        seconds: float = min(_LAST_SECONDS, _FIRST_SECONDS * 2 ** min(times, _DOUBLINGS))
        self._runs[run_id] = (times + 1, now + seconds)
        if len(self._runs) > _MOST:
            del self._runs[next(iter(self._runs))]
        return seconds

    def forget(self, run_id: str) -> None:
        """The run could be driven."""
        self._runs.pop(run_id, None)

    def at(self, now: float) -> list[str]:
        """The runs to be passed over now."""
        return [run_id for run_id, (_, until) in self._runs.items() if until > now]

    def next_end(self, now: float) -> float | None:
        """When the first of them is tried again."""
        return min((until for _, until in self._runs.values() if until > now), default=None)
