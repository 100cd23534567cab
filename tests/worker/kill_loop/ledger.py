"""What processes write down beside the store: one file, one line of JSON per fact, appended so that no kill tears or mixes
lines. Times are the true ones, read before any clock was set wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "true_ns"]

true_ns = time.time_ns
"""The clock of the machine, whatever becomes of `time.time_ns` later."""


class Ledger:
    """Appends facts; each is a list whose first member says what it is, with the time and the process put after it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def note(self, what: str, *facts: object) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._file, (json.dumps([what, true_ns(), os.getpid(), *facts]) + "\n").encode())

    def read(self) -> Iterator[list[Any]]:
        for line in self._path.read_text("utf-8").splitlines():
            yield json.loads(line)
