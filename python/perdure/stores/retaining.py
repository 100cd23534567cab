"""Pruning as every store does it: which runs are meant, which of them may go together, and in what groups (R51, spec 7.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Literal, Protocol

from perdure.retention import (
    EVERY_RUN,
    Kept,
    Part,
    PrunedRuns,
    PruneProgress,
    PruneReport,
    RunSelection,
    Standing,
    Tombstone,
    in_parts,
    kept_for_itself,
)
from perdure.stores.base import LeaseState, RunFilter, RunPage, RunRecord
from perdure.stores.rules import ALL_RUNS

__all__ = ["Retaining", "listed"]


class Lister(Protocol):
    """A store whose runs can be listed."""

    async def runs(self, filter: RunFilter = ..., *, after: str | None = None, limit: int = 100) -> RunPage: ...


class Retaining:
    """What the stores say of retention alike, over what each says for itself."""

    async def runs(self, filter: RunFilter = ALL_RUNS, *, after: str | None = None, limit: int = 100) -> RunPage:
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

    async def _delete(self, parts: Sequence[Part], cutoff: int) -> list[bool]:
        """Deletes in one transaction each part that `may_go`, leaving tombstones; whether it did, in the order given."""
        raise NotImplementedError

    async def prune(
        self,
        cutoff: int,
        filter: RunSelection = EVERY_RUN,
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
        filter: RunSelection,
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
            for part in in_parts(sorted(wanted.run_ids), self._batch):
                standings = await self._store._standings(part)
                records = [standing.record for standing in standings.values() if standing.record is not None]
                yield [record for record in records if wanted.matches(record)]
            return
        async for page in listed(self._store, wanted, self._batch):
            yield page

    async def _check_named(self, run_ids: Iterable[str]) -> None:
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
            if standing.record is None:
                continue  # somebody else pruned it meanwhile
            kept = kept_for_itself(standing, self._cutoff)
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
        return record is None or not self._filter.matches(record) or kept_for_itself(standing, self._cutoff) is not None

    async def _delete_ready(self, least: int) -> None:
        """Deletes what is ready, once it is so many runs."""
        if sum(map(len, self._ready)) >= least:
            small: list[Part] = []
            for component in self._ready:
                parts = self._parts(component)
                if len(parts) > 1:
                    await self._delete_large(parts)
                    continue
                if sum(len(part.run_ids) for part in (*small, *parts)) > self._batch:
                    await self._delete(small)
                    small = []
                small += parts
            await self._delete(small)
            self._ready = []
        self._progress(PruneProgress(self._looked_at, self._report.deleted.count))

    def _parts(self, component: list[str]) -> list[Part]:
        """A component that is larger than a batch goes in several, all of it looked at before the first."""
        members = frozenset(component)
        parts = [Part(run_ids, run_ids, members) for run_ids in in_parts(component, self._batch)]
        return [parts[0]._replace(looked_at=component), *parts[1:]]

    async def _delete_large(self, parts: list[Part]) -> None:
        goes_on = True
        for part in parts:
            if goes_on:
                goes_on = await self._delete([part])
            else:
                self._count("changed", part.run_ids)

    async def _delete(self, parts: list[Part]) -> bool:
        """Whether all of them could be deleted."""
        if not parts:
            return True
        gone = [True] * len(parts) if self._report.dry_run else await self._store._delete(parts, self._cutoff)
        for part, is_gone in zip(parts, gone, strict=True):
            self._count("deleted" if is_gone else "changed", part.run_ids)
        self._progress(PruneProgress(self._looked_at, self._report.deleted.count))
        return all(gone)

    def _count(self, kind: Literal["deleted"] | Kept, run_ids: Iterable[str]) -> None:
        counted: PrunedRuns = getattr(self._report, kind)
        for run_id in run_ids:
            counted.add(run_id)


async def listed(store: Lister, wanted: RunSelection, limit: int) -> AsyncIterator[list[RunRecord]]:
    """The rows of the runs that are meant, page by page; the ids of `wanted` are not sought."""
    status = None if wanted.status is None else tuple(sorted(wanted.status))
    rows = RunFilter(status=status, name=wanted.name, version=wanted.version)
    after = _before(wanted.prefix or "")
    while True:
        page = await store.runs(rows, after=after, limit=limit)
        yield [record for record in page.runs if wanted.matches(record)]
        after = page.next
        if after is None or (wanted.prefix is not None and after[: len(wanted.prefix)] > wanted.prefix):
            return


def _before(prefix: str) -> str | None:
    """A cursor before every run id with this prefix, and close to them."""
    return prefix[:-1] or None
