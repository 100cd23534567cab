"""The world outside the engine: one line per side effect, durable before the step goes on."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from perdure.step import StepContext

__all__ = ["Attempt", "Effect", "Ledger", "read_effects"]

Attempt = tuple[str, str, int]
"""Run id, step id, attempt number."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One side effect: which attempt of which step had it, when (ns since 1970), in which process, under which key."""

    at: int
    process: str
    pid: int
    run_id: str
    step_id: str
    attempt: int
    key: str
    result: str

    @property
    def of(self) -> Attempt:
        """The attempt that had it."""
        return self.run_id, self.step_id, self.attempt

    @property
    def charged(self) -> bool:
        """Whether money moved."""
        return self.result.startswith("charged")


class Ledger:
    """Where the steps of one process leave their side effects. `open` it before the first step runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._process = ""
        self._hold: Attempt | None = None

    def open(self, path: Path, process: str, hold: Attempt | None) -> None:
        """Writes to `path` as `process`. After the side effect of the attempt `hold` the step goes no further: it waits
        to be killed, with its effect done and its outcome not committed."""
        self._path, self._process, self._hold = path, process, hold

    def record(self, step: StepContext, result: str) -> None:
        """Does the side effect."""
        with self._lock:
            self._write(step, result)
        if self._hold == (step.run_id, step.step_id, step.attempt):
            threading.Event().wait()

    def charge(self, step: StepContext, amount: int) -> str:
        """Takes money as payment providers do: a key that was charged before gets its receipt, and no second charge."""
        charged = {effect.key for effect in read_effects(self.path) if effect.charged}
        known = step.idempotency_key in charged
        self.record(step, "key known: not charged" if known else f"charged {amount}")
        return f"receipt for {step.run_id}"

    @property
    def path(self) -> Path:
        if self._path is None:
            raise RuntimeError("the ledger is not open; call ledger.open(path, process, hold) first")
        return self._path

    def _write(self, step: StepContext, result: str) -> None:
        key = step.idempotency_key
        effect = Effect(
            time.time_ns(), self._process, os.getpid(), step.run_id, step.step_id, step.attempt, key, result
        )
        with self.path.open("ab") as file:
            file.write(json.dumps(asdict(effect)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_effects(path: Path) -> Sequence[Effect]:
    """All side effects so far, in order; a line that is still being written is left for the next look."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [Effect(**json.loads(line)) for line in lines]
