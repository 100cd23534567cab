"""Pruning: which runs may go, and in which order (R51, spec 7.7).

A run is deletable if it has ended, its last event lies before the cutoff, no retention hold keeps it, and the same is true of
every run of its linked component: whatever it is linked to, in either direction and however far. A linked run that is missing
blocks its component; one that has a tombstone does not, so that a prune that was cut short can go on.

The algorithm stands here once. A store answers how runs stand and deletes components, each after looking again inside the
transaction that deletes; so a run that is held, linked or driven meanwhile is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, NamedTuple

from perdure.stores.base import LeaseState, RunFilter, RunPage, RunRecord

__all__ = [
    "ALL_ENDED",
    "Digest",
    "HistoryHold",
    "Kept",
    "PruneFilter",
    "PruneProgress",
    "PruneReport",
    "PrunedRuns",
    "Retaining",
    "Standing",
    "Tombstone",
    "check_hold",
    "in_parts",
    "may_go",
]

_SHOWN: Final = 100
"""How many ids of each kind a report names."""
_HOLD_BYTES: Final = 512
_REASON_BYTES: Final = 4096
_ALL_RUNS: Final = RunFilter()

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
class PruneFilter:
    """Which runs a prune is about; every field given must hold. A linked run that it leaves out blocks its component."""

    status: tuple[str, ...] | None = None
    name: str | None = None
    version: str | None = None
    run_ids: tuple[str, ...] | None = None
    prefix: str | None = None
    """What the run id begins with."""

    def matches(self, record: RunRecord) -> bool:
        """Whether the run is meant."""
        return (
            (self.status is None or record.status in self.status)
            and self.name in (None, record.name)
            and self.version in (None, record.version)
            and (self.run_ids is None or record.run_id in self.run_ids)
            and (self.prefix is None or record.run_id.startswith(self.prefix))
        )


ALL_ENDED: Final = PruneFilter()


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


def may_go(component: Iterable[str], standings: dict[str, Standing], cutoff: int) -> bool:
    """Whether a component can still be deleted as a whole; asked inside the transaction that deletes it."""
    members = frozenset(component)
    return all(_kept(standings[run_id], cutoff) is None and standings[run_id].linked <= members for run_id in members)


def _kept(standing: Standing, cutoff: int) -> Kept | None:
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


class Retaining:
    """What the stores say of retention alike, over what each says for itself."""

    async def runs(self, filter: RunFilter = _ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
        """As `FlowEventStore.runs`."""
        raise NotImplementedError

    async def lease(self, run_id: str) -> LeaseState:
        """As `FlowEventStore.lease`."""
        raise NotImplementedError

    async def tombstone(self, run_id: str) -> Tombstone | None:
        """As `FlowEventStore.tombstone`."""
        raise NotImplementedError

    async def _standings(self, run_ids: Sequence[str]) -> dict[str, Standing]:
        """How each of these runs stands, as one read."""
        raise NotImplementedError

    async def _delete(self, components: Sequence[Sequence[str]], cutoff: int) -> list[bool]:
        """Deletes each component that `may_go`, whole and leaving tombstones; whether it did, in the order given."""
        raise NotImplementedError

    async def prune(
        self,
        cutoff: int,
        filter: PruneFilter = ALL_ENDED,
        *,
        batch: int = 500,
        dry_run: bool = False,
        progress: Callable[[PruneProgress], None] | None = None,
    ) -> PruneReport:
        """As `FlowEventStore.prune`."""
        if batch < 1:
            raise ValueError(f"batch is {batch}; use at least 1")
        return await _Prune(self, cutoff, filter, batch, dry_run, progress or (lambda _: None)).run()


class _Prune:
    """One prune. Memory: the ids of linked runs, and the runs of one batch."""

    def __init__(
        self,
        store: Retaining,
        cutoff: int,
        filter: PruneFilter,
        batch: int,
        dry_run: bool,
        progress: Callable[[PruneProgress], None],
    ) -> None:
        self._store = store
        self._cutoff = cutoff
        self._filter = filter
        self._batch = batch
        self._progress = progress
        self._report = PruneReport(dry_run)
        self._looked_at = 0
        self._ready: list[list[str]] = []
        self._planned: set[str] = set()  # members of components that may go
        self._staying: set[str] = set()  # linked runs whose component stays

    async def run(self) -> PruneReport:
        async for page in self._pages():
            await self._look_at(page)
            self._looked_at += len(page)
            await self._delete_ready(self._batch)
        await self._delete_ready(1)
        return self._report

    # which runs are meant ------------------------------------------------------------------------------------

    async def _pages(self) -> AsyncIterator[Sequence[RunRecord]]:
        wanted = self._filter
        if wanted.run_ids is not None:
            await self._check_named(wanted.run_ids)
            for part in in_parts(sorted(set(wanted.run_ids)), self._batch):
                standings = await self._store._standings(part)
                records = [standing.record for standing in standings.values() if standing.record is not None]
                yield [record for record in records if wanted.matches(record)]
            return
        rows = RunFilter(status=wanted.status, name=wanted.name, version=wanted.version)
        after = _before(wanted.prefix or "")
        while True:
            page = await self._store.runs(rows, after=after, limit=self._batch)
            found = [record for record in page.runs if wanted.matches(record)]
            yield found
            after = page.next
            if after is None or (wanted.prefix is not None and after[: len(wanted.prefix)] > wanted.prefix):
                return

    async def _check_named(self, run_ids: Sequence[str]) -> None:
        """Raises what there is to say of a run that is named and is not there, unless it was pruned."""
        for part in in_parts(run_ids, self._batch):
            for run_id, standing in (await self._store._standings(part)).items():
                if standing.record is None and await self._store.tombstone(run_id) is None:
                    await self._store.lease(run_id)

    # what becomes of them ------------------------------------------------------------------------------------

    async def _look_at(self, page: Sequence[RunRecord]) -> None:
        standings = await self._store._standings([record.run_id for record in page if record.terminal])
        for record in page:
            run_id = record.run_id
            if run_id in self._planned:
                continue
            standing = standings.get(run_id, Standing(record))
            kept = _kept(standing, self._cutoff)
            if kept is None and standing.linked and not await self._may_go_with(run_id, standing):
                kept = "referenced"
            if kept is not None:
                self._count(kept, [run_id])
            elif not standing.linked:
                self._ready.append([run_id])

    async def _may_go_with(self, run_id: str, standing: Standing) -> bool:
        """Whether the run's whole component may go; it is made ready then. What is found to stay is remembered, so that no
        run is looked at for each of its relatives."""
        found = {run_id}
        frontier = standing.linked - found
        stays = False
        while frontier and not stays:
            stays = not frontier.isdisjoint(self._staying)
            ahead: set[str] = set()
            for part in in_parts(sorted(frontier), self._batch):
                if stays:
                    break
                standings = await self._store._standings(part)
                found.update(part)
                stays = any(self._blocks(each) for each in standings.values())
                ahead.update(*(each.linked for each in standings.values()))
            frontier = frozenset(ahead - found)
        if stays:
            self._staying |= found
        else:
            self._planned |= found
            self._ready.append(sorted(found))
        return not stays

    def _blocks(self, standing: Standing) -> bool:
        record = standing.record
        return record is None or not self._filter.matches(record) or _kept(standing, self._cutoff) is not None

    async def _delete_ready(self, least: int) -> None:
        """Deletes what is ready, once it is so many runs."""
        if sum(map(len, self._ready)) >= least:
            for group in self._groups():
                if self._report.dry_run:
                    gone = [True] * len(group)
                else:
                    gone = await self._store._delete(group, self._cutoff)
                for component, is_gone in zip(group, gone, strict=True):
                    self._count("deleted" if is_gone else "changed", component)
                self._progress(PruneProgress(self._looked_at, self._report.deleted.count))
            self._ready = []
        self._progress(PruneProgress(self._looked_at, self._report.deleted.count))

    def _groups(self) -> Iterator[list[list[str]]]:
        """What is deleted together: components up to the size of a batch, or one that is larger."""
        group: list[list[str]] = []
        size = 0
        for component in self._ready:
            if group and size + len(component) > self._batch:
                yield group
                group, size = [], 0
            group.append(component)
            size += len(component)
        if group:
            yield group

    def _count(self, kind: Literal["deleted"] | Kept, run_ids: Iterable[str]) -> None:
        counted: PrunedRuns = getattr(self._report, kind)
        for run_id in run_ids:
            counted.add(run_id)


def _before(prefix: str) -> str | None:
    """A cursor before every run id with this prefix, and close to them."""
    return prefix[:-1] or None
