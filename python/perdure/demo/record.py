"""What the store and the ledger hold, read back: rows for printing, and the record that the checks look at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure import kernel as kernels
from perdure.demo.ledger import Attempt, Effect, read_effects
from perdure.envelope import Envelope
from perdure.instant import Instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, KernelName
from perdure.model import WorkflowRunSnapshot
from perdure.stores import RunSummary, SqliteEventStore

__all__ = ["KERNELS", "Record", "Row", "open_attempts", "read_record", "rows_of"]

KERNELS: Final[tuple[KernelName, ...]] = ("rust", "pure")
SETTLING: Final = frozenset({"step_completed", "step_retrying", "step_failed", "step_non_retryable", "step_cancelled"})


@dataclass(frozen=True, slots=True)
class Row:
    """One event as the demo shows it: no payloads and no tokens. `delay_ms` is how far ahead its due time lies."""

    run_id: str
    sequence: int
    at: int
    type: str
    subject: str
    attempt: int | None
    delay_ms: int | None


def rows_of(history: Iterable[Envelope]) -> list[Row]:
    """The rows of one run, in order. `step_completed` names no attempt on the wire: it is the one started last."""
    started: dict[str, int] = {}
    rows: list[Row] = []
    for envelope in history:
        event = envelope.event
        subject = "" if envelope.subject is None else envelope.subject[1]
        attempt = event.get("attempt")
        if envelope.type == "step_started":
            started[subject] = event["attempt"]
        elif envelope.type == "step_completed":
            attempt = started.get(subject)
        due = event.get("retry_after") or event.get("resume_at")
        # Rounded up: the event is stamped a moment after the failure that the delay counts from.
        delay = None if due is None else -((envelope.timestamp.ns - Instant.parse(due).ns) // 1_000_000)
        rows.append(
            Row(envelope.run_id, envelope.sequence, envelope.timestamp.ns, envelope.type, subject, attempt, delay)
        )
    return rows


def open_attempts(rows: Iterable[Row]) -> set[Attempt]:
    """The attempts that were started and whose outcome is not recorded."""
    found: set[Attempt] = set()
    for row in rows:
        if row.type == "step_started" and row.attempt is not None:
            found.add((row.run_id, row.subject, row.attempt))
        elif row.type in SETTLING and row.attempt is not None:
            found.discard((row.run_id, row.subject, row.attempt))
    return found


@dataclass(frozen=True)
class Record:
    """All runs of one file at one moment. `snapshots`: by kernel, then by run."""

    histories: dict[str, list[Envelope]]
    snapshots: dict[KernelName, dict[str, WorkflowRunSnapshot]]
    summary: RunSummary
    effects: Sequence[Effect]

    @property
    def rows(self) -> list[Row]:
        """All events of all runs, run by run."""
        return [row for history in self.histories.values() for row in rows_of(history)]

    def runs(self) -> dict[str, WorkflowRunSnapshot]:
        """The runs as the first kernel projects them."""
        return self.snapshots[KERNELS[0]]


def read_record(db: Path, effects: Path) -> Record:
    """Opens the file anew and projects every run with both kernels."""
    lines, summary = asyncio.run(_read(db))
    snapshots = {
        name: {run_id: _project(name, run_id, history) for run_id, history in lines.items()} for name in KERNELS
    }
    histories = {run_id: Envelope.parse_lines(history) for run_id, history in lines.items()}
    return Record(histories, snapshots, summary, read_effects(effects))


def _project(name: KernelName, run_id: str, history: bytes) -> WorkflowRunSnapshot:
    return WorkflowRunSnapshot(kernels.load(name).project(run_id, history, DEFAULT_MAX_EVENT_BYTES).snapshot())


async def _read(db: Path) -> tuple[dict[str, bytes], RunSummary]:
    store = SqliteEventStore(db)
    try:
        lines = {run_id: await store.history(run_id) for run_id in await store.run_ids()}
        return lines, await store.summary()
    finally:
        await store.close()
