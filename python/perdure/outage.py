"""What a log says of something that fails for a while: at once, then ever more seldom, and when it works again."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

__all__ = ["Outage"]

_log = logging.getLogger("perdure")
_FIRST_SECONDS: Final = 1.0


class Outage:
    """One thing that is tried again and again. `failing` and `working` say what: "leases cannot be renewed", "leases are renewed
    again". To be used on a running event loop, whose time it goes by."""

    def __init__(self, failing: str, working: str) -> None:
        self._failing, self._working = failing, working
        self._since: float | None = None
        self._told_next = 0.0

    def failed(self, why: str) -> None:
        """It failed; `why` has no value of the user's. Told again when the outage has become twice as long."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = self._told_next = now
        if now >= self._told_next:
            self._told_next = now + max(_FIRST_SECONDS, now - self._since)
            _log.warning("%s, and this is tried again: %s", self._failing, why)

    def over(self) -> None:
        """It works."""
        if self._since is not None:
            seconds = asyncio.get_running_loop().time() - self._since
            self._since = None
            _log.warning("%s, after %.1f s", self._working, seconds)
