"""The run, wakeup, hook and link rows in memory, kept by the batches, so that no question scans runs (R50, W1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from perdure.errors import LeaseLost, RunNotFound
from perdure.kernel import Batch
from perdure.retention import HistoryHold
from perdure.stores import leases
from perdure.stores.base import (
    ActiveHook,
    Append,
    Claimed,
    RunFilter,
    RunnablePage,
    RunPage,
    RunRecord,
    RunSummary,
    Wakeup,
)
from perdure.stores.claims import MemoryClaims
from perdure.stores.leases import UNKNOWN, RunState, Wanted
from perdure.stores.rules import KINDS, RANK, Tally, matches, page_of, record_of, summary_of
from perdure.stores.runnable import RunnableRow, bound, runnable_page

__all__ = ["MemoryIndex"]


class _Entry:
    """One run: its row, what it has open, and the runs linked to it either way."""

    __slots__ = ("hooks", "linked", "record", "wakeups")

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.wakeups: dict[tuple[str, str], int] = {}  # (kind, subject id) -> due ns
        self.hooks: dict[str, bytes] = {}  # hook id -> token hash
        self.linked: set[str] = set()  # ids this run names


class MemoryIndex:
    """The index tables of R50 as dicts and sorted lists. Not safe against several threads; its owner locks."""

    def __init__(self) -> None:
        self.leases = MemoryClaims()
        self._runs: dict[str, _Entry] = {}
        self._run_ids: list[str] = []
        # Text order puts "retry" before "wait" and the contract the other way round, so lists hold the rank, not the kind.
        self._due: list[tuple[int, str, int, str]] = []  # (due ns, run id, rank, subject id)
        self._hooks: list[tuple[str, str]] = []  # (run id, hook id)
        self._owners: dict[bytes, list[tuple[str, str]]] = {}  # token hash -> sorted (run id, hook id)
        self._tallies: dict[str | None, dict[tuple[str, bool], Tally]] = {}  # by build, then (status, terminal)
        self._named_by: dict[str, set[str]] = {}  # run id -> the runs that name it
        self.tombstones: set[str] = set()
        self.history_holds: dict[str, dict[str, HistoryHold]] = {}  # run id -> hold id -> retention hold

    # what a refusal is judged by -----------------------------------------------------------------------------

    def pruned(self, run_id: str) -> bool:
        return run_id in self.tombstones

    def exists(self, run_id: str) -> bool:
        return run_id in self._runs

    def state(self, run_id: str) -> RunState:
        entry = self._runs.get(run_id)
        if entry is None:
            return UNKNOWN
        return RunState(entry.record.last_sequence, entry.record.terminal, self.leases[run_id])

    def known(self, run_id: str) -> RunState:
        """As `state`. Raises `RunNotFound` for a run that does not exist."""
        if run_id not in self._runs:
            raise RunNotFound(run_id)
        return self.state(run_id)

    def token_owner(self, token_hash: bytes, besides: str) -> ActiveHook | None:
        for run_id, hook_id in self._owners.get(token_hash, ()):
            if run_id != besides:
                return ActiveHook(run_id, hook_id)
        return None

    def earliest(self, run_id: str) -> int | None:
        """The run's earliest wakeup, ns."""
        entry = self._runs.get(run_id)
        return min(entry.wakeups.values(), default=None) if entry is not None else None

    # writing -------------------------------------------------------------------------------------------------

    def accept(self, append: Append, now: int) -> int | None:
        """Takes over a batch that is committed, with what it says of the lease; gives the epoch its owner then holds."""
        batch = append.batch
        if batch.lines:
            self.apply(batch)
        row = self.leases[batch.run_id]
        columns, epoch = leases.committed(row, append, now, lambda: self.earliest(batch.run_id))
        if batch.run_id in self._runs:  # a batch without events makes no run
            self.leases[batch.run_id] = columns
        return epoch

    def apply(self, batch: Batch) -> None:
        """Takes over the index changes of an accepted batch, in the order of R47."""
        record = record_of(batch)
        entry = self._runs.get(batch.run_id)
        if entry is None:
            entry = self._runs[batch.run_id] = _Entry(record)
            insort(self._run_ids, batch.run_id)
        else:
            self._count(entry.record, -1)
            entry.record = record
        self._count(record, +1)
        self._apply_wakeups(entry, batch)
        self._apply_hooks(entry, batch)
        for linked in batch.links:
            entry.linked.add(linked)
            self._named_by.setdefault(linked, set()).add(batch.run_id)

    def remove(self, run_id: str) -> None:
        """Forgets a run that was pruned, all but its tombstone (R51)."""
        entry = self._runs.pop(run_id)
        del self._run_ids[bisect_left(self._run_ids, run_id)]
        self._count(entry.record, -1)
        for kind, subject_id in list(entry.wakeups):
            self._drop_wakeup(entry, kind, subject_id)
        for hook_id in list(entry.hooks):
            self._drop_hook(entry, hook_id)
        for linked in entry.linked:
            self._named_by[linked].discard(run_id)
            if not self._named_by[linked]:
                del self._named_by[linked]
        self.leases.remove(run_id)
        self.history_holds.pop(run_id, None)
        self.tombstones.add(run_id)

    def record(self, run_id: str) -> RunRecord | None:
        """The run's row, None for a run that does not exist."""
        entry = self._runs.get(run_id)
        return None if entry is None else replace(entry.record, hold=self.leases[run_id].hold)

    def linked(self, run_id: str) -> set[str]:
        """The runs that this one names or that name it."""
        entry = self._runs.get(run_id)
        return (entry.linked if entry is not None else set()) | self._named_by.get(run_id, set())

    def _apply_wakeups(self, entry: _Entry, batch: Batch) -> None:
        gone = list(entry.wakeups) if batch.clear_wakeups else [(w.kind, w.subject_id) for w in batch.delete_wakeups]
        for kind, subject_id in gone:
            self._drop_wakeup(entry, kind, subject_id)
        for wakeup in batch.upsert_wakeups:
            self._drop_wakeup(entry, wakeup.kind, wakeup.subject_id)
            entry.wakeups[wakeup.kind, wakeup.subject_id] = wakeup.due
            insort(self._due, (wakeup.due, batch.run_id, RANK[wakeup.kind], wakeup.subject_id))

    def _drop_wakeup(self, entry: _Entry, kind: str, subject_id: str) -> None:
        due = entry.wakeups.pop((kind, subject_id), None)
        if due is not None:
            del self._due[bisect_left(self._due, (due, entry.record.run_id, RANK[kind], subject_id))]

    def _apply_hooks(self, entry: _Entry, batch: Batch) -> None:
        for hook_id in list(entry.hooks) if batch.clear_hooks else [h.hook_id for h in batch.delete_hooks]:
            self._drop_hook(entry, hook_id)
        for hook in batch.insert_hooks:
            entry.hooks[hook.hook_id] = hook.token_hash
            insort(self._hooks, (batch.run_id, hook.hook_id))
            insort(self._owners.setdefault(hook.token_hash, []), (batch.run_id, hook.hook_id))

    def _drop_hook(self, entry: _Entry, hook_id: str) -> None:
        token_hash = entry.hooks.pop(hook_id, None)
        if token_hash is None:
            return
        key = (entry.record.run_id, hook_id)
        del self._hooks[bisect_left(self._hooks, key)]
        owners = self._owners[token_hash]
        owners.remove(key)
        if not owners:
            del self._owners[token_hash]

    def _count(self, record: RunRecord, by: int) -> None:
        key, tallies = (record.status, record.terminal), self._tallies.setdefault(record.build, {})
        tally = tallies.get(key) or Tally(record.status, record.terminal, 0, 0, 0, 0)
        tallies[key] = Tally(
            tally.status,
            tally.terminal,
            tally.runs + by,
            tally.open_waits + by * record.open_waits,
            tally.active_hooks + by * record.active_hooks,
            tally.pending_retries + by * record.pending_retries,
        )

    # leases ---------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """As `FlowEventStore.changes`: whatever is committed sets lease columns."""
        return self.leases.changes

    def claim(self, owner: str, k: int, wanted: Wanted, ttl_ns: int, now: int) -> list[Claimed]:
        """As `FlowEventStore.claim`."""
        found: list[str] = []
        passed: list[str] = []
        for claim_at, run_id in self.leases.in_order():
            if claim_at > now // 1000 or len(found) == k:
                break
            if leases.is_claimable(self.leases[run_id], now):
                if self._is_wanted(run_id, wanted):
                    found.append(run_id)
            else:
                passed.append(run_id)
        for run_id in passed:
            self.leases[run_id] = leases.passed_over(self.leases[run_id])
        return [self._give(run_id, owner, ttl_ns, now) for run_id in found]

    def claim_held(self, owner: str, k: int, build: str, wanted: Wanted, ttl_ns: int, now: int) -> list[Claimed]:
        """As `FlowEventStore.claim_held`."""
        found = (
            run_id
            for run_id in self.leases.held()
            if leases.is_claimable_though_held(self.leases[run_id], now, build) and self._is_wanted(run_id, wanted)
        )
        return [self._give(run_id, owner, ttl_ns, now) for run_id in islice(found, k)]

    def next_claim(self, wanted: Wanted) -> int | None:
        """As `FlowEventStore.next_claim`."""
        for claim_at, run_id in self.leases.in_order():
            if self.leases[run_id].hold is None and self._is_wanted(run_id, wanted):
                return claim_at
        return None

    def owners(self) -> list[str]:
        """Who leases runs."""
        return self.leases.owners()

    def _is_wanted(self, run_id: str, wanted: Wanted) -> bool:
        record = self._runs[run_id].record
        return run_id not in wanted.besides and wanted.includes(record.name, record.version, record.build)

    def _give(self, run_id: str, owner: str, ttl_ns: int, now: int) -> Claimed:
        row = self.leases[run_id] = leases.claimed(self.leases[run_id], owner, ttl_ns, now)
        return Claimed(run_id, row.epoch, self._runs[run_id].record.last_sequence, now)

    def renew(
        self, owner: str, pairs: Sequence[tuple[str, int]], ttl_ns: int, now: int
    ) -> list[tuple[str, int] | LeaseLost]:
        """As `FlowEventStore.renew`."""
        return [self._renewed(run_id, owner, epoch, ttl_ns, now) for run_id, epoch in pairs]

    def _renewed(self, run_id: str, owner: str, epoch: int, ttl_ns: int, now: int) -> tuple[str, int] | LeaseLost:
        state = self.state(run_id)
        row = leases.renewed(state.lease, owner, epoch, ttl_ns, now)
        if row is None:
            return LeaseLost(run_id)
        self.leases[run_id] = row
        return run_id, state.last_sequence

    def void(self, owner: str) -> int:
        """As `FlowEventStore.void`."""
        run_ids = self.leases.owned_by(owner)
        for run_id in run_ids:
            self.leases[run_id] = leases.voided(self.leases[run_id])
        return len(run_ids)

    def set_hold(self, run_id: str, hold: str, expected_sequence: int, now: int) -> bool:
        """As `FlowEventStore.set_hold`."""
        row = leases.held(self.known(run_id), hold, expected_sequence, now)
        if row is not None:
            self.leases[run_id] = row
        return row is not None

    def release_hold(self, run_id: str) -> bool:
        """As `FlowEventStore.release_hold`."""
        row = leases.hold_released(self.known(run_id).lease)
        if row is not None:
            self.leases[run_id] = row
        return row is not None

    # questions -----------------------------------------------------------------------------------------------

    def due(self, now: int, limit: int | None) -> list[Wakeup]:
        """As `FlowEventStore.list_due_wakeups`."""
        found = self._due[: bisect_left(self._due, (now + 1,))][:limit]
        return [self._wakeup(row) for row in sorted(found, key=lambda row: (row[2], row[1], row[3]))]

    def next_wakeup(self) -> Wakeup | None:
        """The first row by (due, run id, kind, subject id)."""
        return self._wakeup(self._due[0]) if self._due else None

    def _wakeup(self, row: tuple[int, str, int, str]) -> Wakeup:
        due, run_id, rank, subject_id = row
        return Wakeup(run_id, KINDS[rank], subject_id, due, self._runs[run_id].record.build)

    def find_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """Active hooks with that token hash, by (run id, hook id)."""
        return [ActiveHook(*key) for key in self._owners.get(token_hash, ())]

    def hooks(self) -> list[ActiveHook]:
        """All active hooks, by (run id, hook id)."""
        return [ActiveHook(*key) for key in self._hooks]

    def runs(self, filter: RunFilter, after: str | None, limit: int) -> RunPage:
        """One page of the run index, by run id."""
        run_ids = self.leases.held() if filter.held else self._run_ids
        start = 0 if after is None else bisect_right(run_ids, after)
        found: list[RunRecord] = []
        for run_id in islice(run_ids, start, None):
            record = replace(self._runs[run_id].record, hold=self.leases[run_id].hold)
            if matches(filter, record):
                found.append(record)
                if len(found) > limit:
                    break
        return page_of(found, limit)

    def run_ids(self) -> list[str]:
        """All run ids, sorted by bytes."""
        return list(self._run_ids)

    def summary(self) -> RunSummary:
        """The counters of spec 2.7."""
        return summary_of(tally for tallies in self._tallies.values() for tally in tallies.values())

    def summary_by_build(self) -> dict[str | None, RunSummary]:
        """The same for each build that has runs."""
        found = {build: summary_of(tallies.values()) for build, tallies in self._tallies.items()}
        return {build: summary for build, summary in found.items() if summary.total_runs}

    def runnable(self, now: int, clock: int, after: tuple[int, str] | None, limit: int) -> RunnablePage:
        """As `FlowEventStore.runnable`."""
        last, rows = bound(now), list[RunnableRow]()
        for claim_at, run_id in self.leases.in_order(after):
            if claim_at > last or len(rows) == limit:
                break
            if self.leases[run_id].hold is None:
                rows.append(self._runnable_row(claim_at, run_id, now))
        return runnable_page(rows, now, clock, limit, self._later(now))

    def _runnable_row(self, claim_at: int, run_id: str, now: int) -> RunnableRow:
        entry, lease = self._runs[run_id], self.leases[run_id]
        due = [kind for (kind, _), at in entry.wakeups.items() if at <= now]
        waits = lease.owner is not None or lease.not_before is not None
        record = entry.record
        return RunnableRow(
            claim_at, run_id, record.build, record.last_sequence, waits, due.count("wait"), due.count("retry")
        )

    def _later(self, now: int) -> int | None:
        for claim_at, run_id in self.leases.in_order((now // 1000, "\U0010ffff")):
            if self.leases[run_id].hold is None:
                return claim_at
        return None
