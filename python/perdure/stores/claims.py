"""The lease columns in memory, kept in the order of claims, so that none of a worker's questions scans runs (R3, W1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from perdure.stores.leases import NEW, Columns

__all__ = ["MemoryClaims"]

_NOBODYS: Final = NEW._replace(claim_at=None)
"""Columns that stand in none of the orders."""


class MemoryClaims:
    """Each run's columns, the runs by (claim_at, run id), and the held ones. Not safe against several threads."""

    def __init__(self) -> None:
        self._columns: dict[str, Columns] = {}
        self._order: list[tuple[int, str]] = []
        self._held: list[str] = []
        self._owned: dict[str, set[str]] = {}
        self.changes = 0
        """How often columns were set."""

    def __getitem__(self, run_id: str) -> Columns:
        """A run's columns; those of a new one if it has none yet."""
        return self._columns.get(run_id, NEW)

    def __setitem__(self, run_id: str, row: Columns) -> None:
        before = self._columns.get(run_id, _NOBODYS)
        self._columns[run_id] = row
        self.changes += 1
        if before.claim_at != row.claim_at:
            if before.claim_at is not None:
                del self._order[bisect_left(self._order, (before.claim_at, run_id))]
            if row.claim_at is not None:
                insort(self._order, (row.claim_at, run_id))
        if (before.hold is None) != (row.hold is None):
            if row.hold is None:
                del self._held[bisect_left(self._held, run_id)]
            else:
                insort(self._held, run_id)
        if before.owner != row.owner:
            self._change_owner(run_id, before.owner, row.owner)

    def _change_owner(self, run_id: str, before: str | None, after: str | None) -> None:
        if before is not None:
            self._owned[before].discard(run_id)
            if not self._owned[before]:
                del self._owned[before]
        if after is not None:
            self._owned.setdefault(after, set()).add(run_id)

    def fill(self, run_ids: Sequence[str], row: Columns) -> None:
        """Gives many runs that nothing is known of the same columns, without owner and hold."""
        self._columns.update(dict.fromkeys(run_ids, row))
        if row.claim_at is not None:
            self._order += [(row.claim_at, run_id) for run_id in run_ids]
            self._order.sort()

    def remove(self, run_id: str) -> None:
        """Forgets a run that was pruned."""
        self[run_id] = _NOBODYS
        del self._columns[run_id]

    def in_order(self, after: tuple[int, str] | None = None) -> Iterator[tuple[int, str]]:
        """(claim_at, run id) in the order of claims, past `after`; columns must not be set meanwhile."""
        return islice(self._order, 0 if after is None else bisect_right(self._order, after), None)

    def held(self) -> list[str]:
        """The held runs, by id."""
        return list(self._held)

    def owners(self) -> list[str]:
        """Who leases runs, sorted."""
        return sorted(self._owned)

    def owned_by(self, owner: str) -> list[str]:
        """The runs that `owner` leases."""
        return list(self._owned.get(owner, ()))
