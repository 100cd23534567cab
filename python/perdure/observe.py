"""Ready-made observers, and what may leave a process about an event: `FlowEngine(…, observer=AuditLog("audit.jsonl"))`.

An observer is told of every committed event, in order, and cannot touch a run (R52, spec 09 §9.5). `Observer` is the
protocol for your own; `FanOut` joins several.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import orjson

from perdure.errors import FlowError
from perdure.observing import Failures, Observation, Observer

__all__ = ["AuditLog", "FanOut", "MemoryObserver", "Observation", "Observer", "labels_of", "record_of"]

_BLOCK: Final = 64 * 1024


def record_of(observation: Observation) -> dict[str, Any]:
    """What may leave the process about an event: names, ids and times; no input, output, error text, token or payload.

    Keys: `key` (the dot name), `run_id`, `sequence`, `event_id`, `timestamp` (RFC 3339), `workflow` {`name`, `version`},
    `status` of the run after the commit, `subject` {`kind`, `id`} with kind run, step, wait, hook, progress or child.
    """
    envelope = observation.envelope
    kind, subject_id = envelope.subject or ("run", envelope.run_id)
    return {
        "key": envelope.key,
        "run_id": envelope.run_id,
        "sequence": envelope.sequence,
        "event_id": envelope.event_id,
        "timestamp": str(envelope.timestamp),
        "workflow": {"name": observation.spec.name, "version": observation.spec.version},
        "status": observation.status,
        "subject": {"kind": kind, "id": subject_id},
    }


def labels_of(observation: Observation) -> dict[str, str]:
    """Labels for metrics: few values each, so no ids and no times."""
    return {
        "event_key": observation.envelope.key,
        "workflow_name": observation.spec.name,
        "workflow_version": observation.spec.version,
        "status": observation.status,
    }


class MemoryObserver:
    """Keeps every observation in `observations`, for tests and small tools."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)


class FanOut:
    """Tells several observers of each event, in the order given. One that raises does not keep it from the others.

    They share one queue: plain functions run one after the other, coroutine functions side by side after them, and the
    next event waits for all.
    """

    def __init__(self, *observers: Observer) -> None:
        self._members = [(observer, Failures(observer)) for observer in observers]

    def observe(self, observation: Observation) -> Awaitable[None] | None:
        pending: list[tuple[Awaitable[None], Failures]] = []
        for observer, failures in self._members:
            with failures.caught(observation):
                result = observer.observe(observation)
                if result is not None:
                    pending.append((result, failures))
        return _all(pending, observation) if pending else None


async def _all(pending: list[tuple[Awaitable[None], Failures]], observation: Observation) -> None:
    await asyncio.gather(*(_one(result, failures, observation) for result, failures in pending))


async def _one(result: Awaitable[None], failures: Failures, observation: Observation) -> None:
    with failures.caught(observation):
        await result


class AuditLog:
    """Appends one record (`record_of`) a line to a file of JSON lines. One `AuditLog` at a time writes a file.

    Opening makes the folder, and repairs a torn last line as spec 07 §7.3 does for logs: one that is whole but for its
    end gets its newline, any other is cut off. An `OSError` of opening is raised. Failures of writing are not: the newest
    one is in `last_error`, the torn record is removed before the next, and `written` counts what got there. With
    `fsync=True` every record is forced to the disk before the next. Safe to share between engines.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        self.path = Path(path)
        self.last_error: Exception | None = None
        self.written = 0
        self._fsync = fsync
        self._lock = threading.Lock()
        self._torn = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self.path.open("a+b", buffering=0)
        try:
            _repair(self._file)
        except BaseException:
            self._file.close()
            raise

    def observe(self, observation: Observation) -> None:
        with self._lock:
            try:
                self._write(orjson.dumps(record_of(observation)) + b"\n")
            except (OSError, ValueError, FlowError) as error:  # ValueError: the file is closed
                self.last_error = error

    def close(self) -> None:
        """Closes the file, after the engine. Idempotent."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        if self._torn:
            _repair(self._file)
        self._torn = True
        count = self._file.write(line)
        if count != len(line):
            raise OSError(f"{self.path}: only {count} of {len(line)} bytes of a record were written")
        self._torn = False
        self.written += 1
        if self._fsync:
            os.fsync(self._file.fileno())


def _repair(file: BinaryIO) -> None:
    """Ends or removes a last line without its newline."""
    size = file.seek(0, os.SEEK_END)
    tail = b""
    while len(tail) < size and b"\n" not in tail:
        start = max(0, size - len(tail) - _BLOCK)
        file.seek(start)
        tail = file.read(size - start - len(tail)) + tail
    last = tail.rpartition(b"\n")[2]
    if not last:
        return
    if _is_record(last):
        file.write(b"\n")
    else:
        file.truncate(size - len(last))


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False
