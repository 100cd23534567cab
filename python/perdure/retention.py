"""Pruning: which runs may go, and in which order (R51, spec 7.7).

A run is deletable if it has ended, its last event lies before the cutoff, no retention hold keeps it, and the same is true of
every run of its linked component: whatever it is linked to, in either direction and however far. A linked run that is missing
blocks its component; one that has a tombstone does not, so that a prune that was cut short can go on.

The words and the rule stand here, the search for components in `stores/retaining.py`. A store answers how runs stand and
deletes them part by part, each after looking again inside the transaction that deletes; so a run that is held, linked or driven
meanwhile is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from perdure.stores.base import RunRecord

__all__ = [
    "EVERY_RUN",
    "Digest",
    "HistoryHold",
    "Kept",
    "Part",
    "PruneProgress",
    "PruneReport",
    "PrunedRuns",
    "RunSelection",
    "Standing",
    "Tombstone",
    "check_hold",
    "in_parts",
    "kept_for_itself",
    "may_go",
]

_SHOWN: Final = 100
"""How many ids of each kind a report names."""
_STATUSES: Final = ("pending", "running", "suspended", "cancelling", "completed", "failed", "cancelled")
_HOLD_BYTES: Final = 512
_REASON_BYTES: Final = 4096

Kept = Literal["non_terminal", "too_recent", "held", "referenced", "changed"]
"""Why a run stays: it is open; its last event is not before the cutoff; a retention hold keeps it; a run it is linked to
stays, is missing, or is left out by the filter; or it changed while it was about to be deleted."""


@dataclass(frozen=True, slots=True)
class HistoryHold:
    """A retention hold: a reason why a history must be kept. Not to be taken for a run hold (R43). `created_at` in ns."""

    run_id: str
    hold_id: str
    reason: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a pruned run. `deleted_at` in ns; `history_sha256` is the hex SHA-256 of the very bytes that
    `FlowEventStore.history` gave: every stored line, each ended by a newline."""

    run_id: str
    deleted_at: int
    terminal_sequence: int
    terminal_event_id: str
    history_sha256: str


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Which runs a prune or an export is about; every field given must hold. Raises `ValueError` for a status that no run can
    have."""

    status: Collection[str] | None = None
    name: str | None = None
    version: str | None = None
    run_ids: Collection[str] | None = None
    prefix: str | None = None
    """What the run id begins with."""

    def __post_init__(self) -> None:
        for kind in ("status", "run_ids"):
            value: Collection[str] | None = getattr(self, kind)
            if isinstance(value, str):
                raise TypeError(f"{kind} is a collection of texts, not one text")
            object.__setattr__(self, kind, None if value is None else frozenset(value))
        for status in self.status or ():
            if status not in _STATUSES:
                raise ValueError(f"no run has the status {status!r}; use {', '.join(_STATUSES)}")

    def matches(self, record: RunRecord) -> bool:
        """Whether the run is meant."""
        return (
            (self.status is None or record.status in self.status)
            and self.name in (None, record.name)
            and self.version in (None, record.version)
            and (self.run_ids is None or record.run_id in self.run_ids)
            and (self.prefix is None or record.run_id.startswith(self.prefix))
        )


EVERY_RUN: Final = RunSelection()


@dataclass(slots=True)
class PrunedRuns:
    """How many runs, and the ids of the first hundred of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, run_id: str) -> None:
        """Counts one more."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(run_id)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What a prune did, or with `dry_run` would do, with the runs that its filter means; the rest of the fields as `Kept`
    says."""

    dry_run: bool
    deleted: PrunedRuns = field(default_factory=PrunedRuns)
    held: PrunedRuns = field(default_factory=PrunedRuns)
    referenced: PrunedRuns = field(default_factory=PrunedRuns)
    non_terminal: PrunedRuns = field(default_factory=PrunedRuns)
    too_recent: PrunedRuns = field(default_factory=PrunedRuns)
    changed: PrunedRuns = field(default_factory=PrunedRuns)


@dataclass(frozen=True, slots=True)
class PruneProgress:
    """How far a prune is: runs looked at and runs deleted, so far."""

    looked_at: int
    deleted: int


class Standing(NamedTuple):
    """How a run stands with pruning. `record` is None for a run that is missing, or cannot be read."""

    record: RunRecord | None
    held: bool = False
    """Whether a retention hold keeps it."""
    linked: frozenset[str] = frozenset()
    """The runs it names or that name it, without those that have a tombstone."""


class Digest:
    """Makes a run's tombstone out of its lines, given piece by piece in order."""

    def __init__(self, run_id: str, last_sequence: int) -> None:
        self._run_id = run_id
        self._last_sequence = last_sequence
        self._sha256 = hashlib.sha256()
        self._last = b""

    def add(self, lines: bytes) -> None:
        """Takes whole lines."""
        self._sha256.update(lines)
        self._last = lines

    def tombstone(self, deleted_at: int) -> Tombstone:
        """The tombstone of what was added, which is the whole history."""
        last_line = self._last[self._last.rfind(b"\n", 0, -1) + 1 :]
        # Payloads may hold numbers that Python has no value for; none of them is looked at.
        event_id: str = json.loads(last_line, parse_int=str, parse_float=str, parse_constant=str)["event_id"]
        return Tombstone(self._run_id, deleted_at, self._last_sequence, event_id, self._sha256.hexdigest())


class Part(NamedTuple):
    """What is deleted as a whole: a component, or some runs of a large one."""

    run_ids: Sequence[str]
    looked_at: Sequence[str]
    """The runs that must still be such as may go: before the first part of a large component, all of it."""
    component: frozenset[str]


def may_go(part: Part, standings: Mapping[str, Standing], cutoff: int) -> bool:
    """Whether a part can still be deleted; asked inside the transaction that deletes it."""
    return all(
        kept_for_itself(standings[run_id], cutoff) is None and standings[run_id].linked <= part.component
        for run_id in part.looked_at
    )


def kept_for_itself(standing: Standing, cutoff: int) -> Kept | None:
    """Why the run itself stays; None if it does not."""
    record = standing.record
    if record is None:
        return "referenced"
    if not record.terminal:
        return "non_terminal"
    if record.updated_at >= cutoff:
        return "too_recent"
    return "held" if standing.held else None


def check_hold(hold_id: str, reason: str) -> None:
    """Raises `ValueError` for a hold id or a reason that no store takes."""
    if not hold_id.strip() or len(hold_id.encode()) > _HOLD_BYTES or not hold_id.isprintable():
        raise ValueError(f"hold id {hold_id[:64]!r} is not valid: use 1 to {_HOLD_BYTES} bytes of printable text")
    if not reason.strip() or len(reason.encode()) > _REASON_BYTES or "\0" in reason:
        raise ValueError(f"the reason of hold {hold_id!r} is not valid: use 1 to {_REASON_BYTES} bytes of text")


def in_parts(run_ids: Iterable[str], size: int) -> Iterator[list[str]]:
    """The ids in order, so many at a time."""
    left = iter(run_ids)
    while part := list(islice(left, size)):
        yield part
