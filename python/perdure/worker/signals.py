"""The signals that end a worker: the first lets it drain, the second ends it at once (R2)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["signals_handled"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_handled(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` on the running event loop for SIGTERM and SIGINT while the block runs; not outside the main thread,
    where Python delivers no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
