"""What a scheduler and its operator ask: which runs are runnable (R3, R46), and how many there are of each build.

The rule stands here once: a store reads rows in the order of claims, and `runnable_page` says which of them are runnable at a given
instant and what to ask next. Columns are rounded up to microseconds; whether a wakeup is due at exactly `now` is read from the
index of wakeups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from perdure.stores.base import Runnable, RunnablePage, RunSummary
from perdure.stores.leases import microseconds
from perdure.stores.rules import Tally, summary_of

__all__ = [
    "POSTGRES_ROWS",
    "SQLITE_LATER",
    "SQLITE_ROWS",
    "START",
    "RunnableRow",
    "bound",
    "runnable_page",
    "summaries_of",
]

START: Final = (-1, "")
"""The cursor before the first row: (claim_at, run id)."""


class RunnableRow(NamedTuple):
    """A run that is not held and whose claim_at has come."""

    claim_at: int
    run_id: str
    build: str | None
    last_sequence: int
    waits_for_clock: bool
    """Somebody leases it or it backs off: that ends by the store's clock, whatever `now` is."""
    due_waits: int
    due_retries: int


# The wakeups of a run are found by its id, not by their time: a planner that expects few to be due would read all that are,
# for each run again. A plus in SQLite, an OFFSET in PostgreSQL keep it from that.
SQLITE_ROWS: Final = """
SELECT claim_at, run_id, build, last_sequence, owner IS NOT NULL OR not_before IS NOT NULL,
    (SELECT count(*) FROM flow_wakeups AS w WHERE w.run_id = r.run_id AND w.kind = 0 AND +w.due_key <= ?),
    (SELECT count(*) FROM flow_wakeups AS w WHERE w.run_id = r.run_id AND w.kind = 2 AND +w.due_key <= ?)
FROM flow_runs AS r
WHERE claim_at <= ? AND claim_at IS NOT NULL AND hold IS NULL AND (claim_at, run_id) > (?, ?)
ORDER BY claim_at, run_id LIMIT ?"""
SQLITE_LATER: Final = """
SELECT claim_at FROM flow_runs WHERE claim_at > ? AND hold IS NULL ORDER BY claim_at, run_id LIMIT 1"""
POSTGRES_ROWS: Final = """
(SELECT r.claim_at, r.run_id, r.build, r.last_sequence, r.owner IS NOT NULL OR r.not_before IS NOT NULL,
    (SELECT count(*) FROM (
        SELECT w.due_key FROM @schema@.flow_wakeups AS w WHERE w.run_id = r.run_id AND w.kind = 0 OFFSET 0
    ) AS own WHERE own.due_key <= $1),
    (SELECT count(*) FROM (
        SELECT w.due_key FROM @schema@.flow_wakeups AS w WHERE w.run_id = r.run_id AND w.kind = 2 OFFSET 0
    ) AS own WHERE own.due_key <= $1),
    coalesce($6::bigint, @schema@.flow_clock())
FROM @schema@.flow_runs AS r
WHERE r.claim_at <= $2::bigint AND r.claim_at IS NOT NULL AND r.hold IS NULL AND (r.claim_at, r.run_id) > ($3::bigint, $4)
ORDER BY r.claim_at, r.run_id LIMIT $5::bigint)
UNION ALL
(SELECT r.claim_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM @schema@.flow_runs AS r
WHERE r.claim_at > $7::bigint AND r.claim_at IS NOT NULL AND r.hold IS NULL ORDER BY r.claim_at, r.run_id LIMIT 1)"""
"""Both answers in one round trip; the row of the later one has no run id."""


def bound(now: int) -> int:
    """The last claim_at that may be due at `now`: a wakeup due at exactly `now` was rounded up to it."""
    return microseconds(now)


def runnable_page(rows: Iterable[Iterable[Any]], now: int, clock: int, limit: int, later: int | None) -> RunnablePage:
    """The page of up to `limit` rows that were read up to `bound(now)`, `clock` being the store's; `later` is the first
    claim_at past `now`."""
    read = [RunnableRow._make(row) for row in rows]
    found = tuple(
        Runnable(row.run_id, row.build, row.last_sequence, row.due_waits, row.due_retries)
        for row in read
        if _is_runnable(row, now, clock)
    )
    if len(read) == limit:
        return RunnablePage(found, (read[-1].claim_at, read[-1].run_id), None)
    return RunnablePage(found, None, None if later is None else later * 1000)


def _is_runnable(row: RunnableRow, now: int, clock: int) -> bool:
    if row.waits_for_clock and row.claim_at > clock // 1000:
        return False
    return row.claim_at <= now // 1000 or row.due_waits + row.due_retries > 0


def summaries_of(rows: Iterable[Sequence[Any]]) -> dict[str | None, RunSummary]:
    """The counters of each build, of rows that are a build and the fields of a tally."""
    tallies: dict[str | None, list[Tally]] = {}
    for build, *fields in rows:
        tallies.setdefault(build, []).append(Tally(*fields))
    return {build: summary_of(found) for build, found in tallies.items()}
