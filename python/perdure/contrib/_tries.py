"""What the adapters share: how often a task has come back, and what its outcome asks of a foreign queue."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from random import Random
from typing import Final

from perdure.codec import PayloadCodec
from perdure.errors import FlowError, TaskSetAside
from perdure.task_codec import read_task, write_task
from perdure.task_kinds import FlowTask
from perdure.tasks import DeadLetter, Nack, TaskOutcome, backoff_ns

__all__ = ["MAX_ATTEMPTS", "Tries", "read", "write"]

_log = logging.getLogger("perdure")
_RANDOM: Final = Random()
MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a task came back counted, and at all; it travels with the task."""

    attempts: int = 0
    nacks: int = 0

    def after(self, outcome: TaskOutcome, max_attempts: int, now: int) -> tuple[float, Tries] | None:
        """In how many seconds the task is to come back, and with which tries; None if it is done. Raises `TaskSetAside`."""
        disposition = outcome.disposition
        if isinstance(disposition, DeadLetter):
            raise _set_aside(outcome, disposition.reason)
        if not isinstance(disposition, Nack):
            return None
        tries = Tries(self.attempts + disposition.counted, self.nacks + 1)
        if tries.attempts >= max_attempts:
            raise _set_aside(outcome, f"{disposition.reason}: it came back {tries.attempts} times")
        delay_ns = backoff_ns(self.nacks, _RANDOM)
        if disposition.not_before is not None:
            delay_ns = max(delay_ns, disposition.not_before - now + 1000)
        return delay_ns / 1e9, tries


def _set_aside(outcome: TaskOutcome, reason: str) -> TaskSetAside:
    _log.error("task %s is set aside: %s", outcome.task.type, reason)
    error = TaskSetAside(reason)
    error.run_id = outcome.task.target
    return error


def read(text: str, codec: PayloadCodec | None) -> FlowTask:
    """The task of a message. Raises `TaskSetAside` for one that cannot be read: it would not be readable later."""
    try:
        return read_task(text.encode("utf-8", "surrogatepass"), codec)
    except FlowError as error:
        raise TaskSetAside(f"{error.code}: {error}") from None


def write(task: FlowTask, codec: PayloadCodec | None) -> str:
    """The message of a task."""
    return write_task(task, codec).decode()
