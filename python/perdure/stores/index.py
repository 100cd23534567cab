"""The run, wakeup, hook and link rows in memory, kept by the batches, so that no question scans runs (R50, W1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from perdure.errors import LeaseLost, RunNotFound
from perdure.kernel import Batch, RunRow
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
from perdure.stores.leases import NEW, UNKNOWN, RunState, Wanted
from perdure.stores.rules import KINDS, RANK, Tally, matches, page_of, record_of, summary_of
from perdure.stores.runnable import RunnableRow, bound, runnable_page

__all__ = ["MemoryIndex"]

_NONE: Final[Mapping[tuple[str, str], int]] = {}


class MemoryIndex:
    """The index tables of R50 as dicts and sorted lists. Not safe against several threads; its owner locks."""

    def __init__(self) -> None:
        self.leases = MemoryClaims()
        self._rows: dict[str, RunRow] = {}
        self._run_ids: list[str] = []
        self._open: list[str] = []  # those of them that have not ended, which are few beside the others in the end
        # By run, and only for runs that have any.
        self._wakeups_of: dict[str, dict[tuple[str, str], int]] = {}  # (kind, subject id) -> due ns
        self._hooks_of: dict[str, dict[str, bytes]] = {}  # hook id -> token hash
        self._links_of: dict[str, set[str]] = {}
        # Text order puts "retry" before "wait" and the contract the other way round, so lists hold the rank, not the kind.
        self._due: list[tuple[int, str, int, str]] = []  # (due ns, run id, rank, subject id)
        self._hooks: list[tuple[str, str]] = []  # (run id, hook id)
        self._owners: dict[bytes, list[tuple[str, str]]] = {}  # token hash -> sorted (run id, hook id)
        # By build, status and whether that is terminal: runs, waits, hooks, retries.
        self._tallies: dict[tuple[str | None, str, bool], list[int]] = {}
        self._named_by: dict[str, set[str]] = {}  # run id -> the runs that name it
        self.tombstones: set[str] = set()
        self.history_holds: dict[str, dict[str, HistoryHold]] = {}  # run id -> hold id -> retention hold
        self._insert: Callable[[list[Any], Any], None] = insort

    # what a refusal is judged by -----------------------------------------------------------------------------

    def pruned(self, run_id: str) -> bool:
        return run_id in self.tombstones

    def exists(self, run_id: str) -> bool:
        return run_id in self._rows

    def state(self, run_id: str) -> RunState:
        row = self._rows.get(run_id)
        return UNKNOWN if row is None else RunState(row.last_sequence, row.terminal, self.leases[run_id])

    def known(self, run_id: str) -> RunState:
        """As `state`. Raises `RunNotFound` for a run that does not exist."""
        if run_id not in self._rows:
            raise RunNotFound(run_id)
        return self.state(run_id)

    def token_owner(self, token_hash: bytes, besides: str) -> ActiveHook | None:
        for run_id, hook_id in self._owners.get(token_hash, ()):
            if run_id != besides:
                return ActiveHook(run_id, hook_id)
        return None

    def earliest(self, run_id: str) -> int | None:
        """The run's earliest wakeup, ns."""
        return min(self._wakeups_of.get(run_id, _NONE).values(), default=None)

    # writing -------------------------------------------------------------------------------------------------

    def accept(self, append: Append, now: int) -> int | None:
        """Takes over a batch that is committed, with what it says of the lease; gives the epoch its owner then holds."""
        batch = append.batch
        if batch.lines:
            self.apply(batch)
        row = self.leases[batch.run_id]
        columns, epoch = leases.committed(row, append, now, lambda: self.earliest(batch.run_id))
        if batch.run_id in self._rows:  # a batch without events makes no run
            self.leases[batch.run_id] = columns
        return epoch

    def fill(self, batches: Iterable[Batch]) -> None:
        """Takes over whole runs, each as one batch, about which nothing is known yet, as `apply` does and faster. Nothing of
        leases is kept in their histories: every open run can be claimed once (R12)."""
        self._insert = list.append
        try:
            for batch in batches:
                self.apply(batch)
        finally:
            self._insert = insort
            for ordered in (self._run_ids, self._open, self._due, self._hooks):
                ordered.sort()
        for terminal, columns in ((False, NEW), (True, NEW._replace(claim_at=None))):
            self.leases.fill([id for id, row in self._rows.items() if row.terminal == terminal], columns)

    def apply(self, batch: Batch) -> None:
        """Takes over the index changes of an accepted batch, in the order of R47."""
        run_id, row = batch.run_id, batch.row
        before = self._rows.get(run_id)
        if before is None:
            self._insert(self._run_ids, run_id)
        else:
            self._count(before, -1)
        self._note_end(run_id, before is not None and not before.terminal, not row.terminal)
        self._rows[run_id] = row
        self._count(row, +1)
        self._apply_wakeups(batch)
        self._apply_hooks(batch)
        for linked in batch.links:
            self._links_of.setdefault(run_id, set()).add(linked)
            self._named_by.setdefault(linked, set()).add(run_id)

    def remove(self, run_id: str) -> None:
        """Forgets a run that was pruned, all but its tombstone (R51)."""
        row = self._rows.pop(run_id)
        self._count(row, -1)
        self._note_end(run_id, not row.terminal, False)
        del self._run_ids[bisect_left(self._run_ids, run_id)]
        self._drop_wakeups(run_id, list(self._wakeups_of.get(run_id, ())))
        self._drop_hooks(run_id, list(self._hooks_of.get(run_id, ())))
        for linked in self._links_of.pop(run_id, ()):
            self._named_by[linked].discard(run_id)
            if not self._named_by[linked]:
                del self._named_by[linked]
        self.leases.remove(run_id)
        self.history_holds.pop(run_id, None)
        self.tombstones.add(run_id)

    def _note_end(self, run_id: str, was_open: bool, is_open: bool) -> None:
        if was_open and not is_open:
            del self._open[bisect_left(self._open, run_id)]
        elif is_open and not was_open:
            self._insert(self._open, run_id)

    def _apply_wakeups(self, batch: Batch) -> None:
        run_id, upserts = batch.run_id, [(w.kind, w.subject_id, w.due) for w in batch.upsert_wakeups]
        if run_id in self._wakeups_of:
            gone = [(kind, subject_id) for kind, subject_id, _ in upserts]
            gone += [(w.kind, w.subject_id) for w in batch.delete_wakeups]
            self._drop_wakeups(run_id, list(self._wakeups_of[run_id]) if batch.clear_wakeups else gone)
        for kind, subject_id, due in upserts:
            self._wakeups_of.setdefault(run_id, {})[kind, subject_id] = due
            self._insert(self._due, (due, run_id, RANK[kind], subject_id))

    def _drop_wakeups(self, run_id: str, gone: Sequence[tuple[str, str]]) -> None:
        held = self._wakeups_of.get(run_id, {})
        for kind, subject_id in gone:
            due = held.pop((kind, subject_id), None)
            if due is not None:
                del self._due[bisect_left(self._due, (due, run_id, RANK[kind], subject_id))]
        if not held:
            self._wakeups_of.pop(run_id, None)

    def _apply_hooks(self, batch: Batch) -> None:
        run_id = batch.run_id
        if run_id in self._hooks_of:
            gone = [hook.hook_id for hook in batch.delete_hooks]
            self._drop_hooks(run_id, list(self._hooks_of[run_id]) if batch.clear_hooks else gone)
        for hook in batch.insert_hooks:
            self._hooks_of.setdefault(run_id, {})[hook.hook_id] = hook.token_hash
            self._insert(self._hooks, (run_id, hook.hook_id))
            insort(self._owners.setdefault(hook.token_hash, []), (run_id, hook.hook_id))

    def _drop_hooks(self, run_id: str, gone: Sequence[str]) -> None:
        held = self._hooks_of.get(run_id, {})
        for hook_id in gone:
            token_hash = held.pop(hook_id, None)
            if token_hash is not None:
                del self._hooks[bisect_left(self._hooks, (run_id, hook_id))]
                owners = self._owners[token_hash]
                owners.remove((run_id, hook_id))
                if not owners:
                    del self._owners[token_hash]
        if not held:
            self._hooks_of.pop(run_id, None)

    def _count(self, row: RunRow, by: int) -> None:
        counts = self._tallies.setdefault((row.build, row.status, row.terminal), [0, 0, 0, 0])
        counts[0] += by
        counts[1] += by * row.open_waits
        counts[2] += by * row.active_hooks
        counts[3] += by * row.pending_retries

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
        row = self._rows[run_id]
        return run_id not in wanted.besides and wanted.includes(row.name, row.version, row.build)

    def _give(self, run_id: str, owner: str, ttl_ns: int, now: int) -> Claimed:
        row, lost = leases.given(self.leases[run_id], owner, ttl_ns, now)
        self.leases[run_id] = row
        return Claimed(run_id, row.epoch, self._rows[run_id].last_sequence, now, row.failures, lost)

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
        return Wakeup(run_id, KINDS[rank], subject_id, due, self._rows[run_id].build)

    def record(self, run_id: str) -> RunRecord | None:
        """The run's row, None for a run that does not exist."""
        row = self._rows.get(run_id)
        return None if row is None else self._record(run_id, row)

    def _record(self, run_id: str, row: RunRow) -> RunRecord:
        lease = self.leases[run_id]
        return record_of(run_id, row, lease.hold, lease.failures)

    def linked(self, run_id: str) -> set[str]:
        """The runs that this one names or that name it."""
        return self._links_of.get(run_id, set()) | self._named_by.get(run_id, set())

    def find_hooks(self, token_hash: bytes) -> list[ActiveHook]:
        """Active hooks with that token hash, by (run id, hook id)."""
        return [ActiveHook(*key) for key in self._owners.get(token_hash, ())]

    def hooks(self) -> list[ActiveHook]:
        """All active hooks, by (run id, hook id)."""
        return [ActiveHook(*key) for key in self._hooks]

    def runs(self, filter: RunFilter, after: str | None, limit: int) -> RunPage:
        """One page of the run index, by run id."""
        run_ids = self.leases.held() if filter.held else self._open if filter.terminal is False else self._run_ids
        start = 0 if after is None else bisect_right(run_ids, after)
        found = (
            self._record(run_id, self._rows[run_id])
            for run_id in islice(run_ids, start, None)
            if matches(filter, self._rows[run_id], self.leases[run_id].hold)
        )
        return page_of(list(islice(found, limit + 1)), limit)

    def run_ids(self) -> list[str]:
        """All run ids, sorted by bytes."""
        return list(self._run_ids)

    def summary(self) -> RunSummary:
        """The counters of spec 2.7."""
        return summary_of(Tally(status, terminal, *counts) for (_, status, terminal), counts in self._tallies.items())

    def summary_by_build(self) -> dict[str | None, RunSummary]:
        """The same for each build that has runs."""
        by_build: dict[str | None, list[Tally]] = {}
        for (build, status, terminal), counts in self._tallies.items():
            if counts[0]:
                by_build.setdefault(build, []).append(Tally(status, terminal, *counts))
        return {build: summary_of(tallies) for build, tallies in by_build.items()}

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
        row, lease = self._rows[run_id], self.leases[run_id]
        due = [kind for (kind, _), at in self._wakeups_of.get(run_id, _NONE).items() if at <= now]
        waits = lease.owner is not None or lease.not_before is not None
        return RunnableRow(claim_at, run_id, row.build, row.last_sequence, waits, due.count("wait"), due.count("retry"))

    def _later(self, now: int) -> int | None:
        for claim_at, run_id in self.leases.in_order((now // 1000, "\U0010ffff")):
            if self.leases[run_id].hold is None:
                return claim_at
        return None
