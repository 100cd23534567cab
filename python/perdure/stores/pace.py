"""How long it takes of late to make a commit durable: where that is less than the way to a thread and back, the event loop
writes itself (`GroupCommitter`)."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace"]

_QUICK_SECONDS: Final = 0.0003
_STALL_SECONDS: Final = 4 * _QUICK_SECONDS
"""What anything longer counts as, so that it takes several to call a disk slow."""
_WEIGHT: Final = 0.125
"""Of the last one in the mean."""


class Pace:
    """A moving mean, and what follows from it. What one slow commit adds is forgotten over the next few dozen."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def took(self, seconds: float) -> None:
        """Takes note of one more."""
        counted = min(seconds, _STALL_SECONDS)
        self._seconds = counted if self._seconds is None else self._seconds + (counted - self._seconds) * _WEIGHT

    def is_quick(self) -> bool:
        """Whether the next one may be expected to keep a loop for a moment only."""
        return self._seconds is not None and self._seconds < _QUICK_SECONDS
