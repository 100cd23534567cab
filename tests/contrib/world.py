"""What both adapter tests do: worker processes that come and go, and a scheduler beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import perdure

__all__ = ["Workers", "until"]

TESTS = Path(__file__).resolve().parent.parent


@dataclass
class Workers:
    """Worker processes of one command, all of which end with the block."""

    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """One more."""
        paths = os.pathsep.join((str(Path(perdure.__file__).parents[1]), str(TESTS)))
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *self.command],
                env=os.environ | self.environment | {"PYTHONPATH": paths},
                cwd=self.log.parent,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)

    def kill(self) -> None:
        """Ends the oldest one, with its children, as a crash would."""
        process = self.running.pop(0)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self.running:
            self.kill()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for an async condition; the test's own limit bounds it."""
    while not await condition():  # noqa: ASYNC110 - what is waited for is in another process
        await asyncio.sleep(0.05)
