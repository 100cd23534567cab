"""What every store does alike: the order of refusals (R47), pages, counters, and the cut through a commit's lines (R50)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from perdure.errors import EventConflict, FlowError, HookTokenConflict, RunConflict, RunNotFound
from perdure.instant import parse_instant
from perdure.kernel import RunRow
from perdure.stores import leases
from perdure.stores.base import ActiveHook, Append, RunFilter, RunPage, RunRecord, RunSummary

__all__ = [
    "ALL_RUNS",
    "KINDS",
    "RANK",
    "RUN_COLUMNS",
    "Lookup",
    "Tally",
    "check_call",
    "check_limit",
    "is_step",
    "lines_after",
    "matches",
    "page_of",
    "record_from",
    "record_of",
    "refusal",
    "summary_of",
]

ALL_RUNS: Final = RunFilter()
RUN_COLUMNS: Final = (
    "run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, "
    "created_at, updated_at, ended_at, last_sequence, hold, failures"
)
"""The columns of `flow_runs` that say what a listing shows."""
RANK: Final[dict[str, int]] = {"wait": 0, "retry": 2}
"""Order of wakeup kinds, and their number in an index (spec 7.5; 1 is the hook's, which no wakeup has)."""
KINDS: Final[dict[int, str]] = {rank: kind for kind, rank in RANK.items()}


class Lookup(Protocol):
    """What else a refusal is judged by: the store as the batches before this one left it."""

    def pruned(self, run_id: str) -> bool:
        """Whether the id has a tombstone (R51)."""
        ...

    def exists(self, run_id: str) -> bool:
        """Whether the run has events."""
        ...

    def token_owner(self, token_hash: bytes, besides: str) -> ActiveHook | None:
        """The first active hook, by (run id, hook id), that holds the token in a run other than `besides`."""
        ...


def refusal(append: Append, row: leases.RunState, now: int, rows: Lookup) -> FlowError | None:
    """The first refusal of `append` in the order of R47, None if it may be written. `now` is the store's clock, ns."""
    batch, run_id = append.batch, append.batch.run_id
    if row.last_sequence == 0 and rows.pruned(run_id):
        return RunConflict(run_id, "pruned")
    refused = leases.refusal(run_id, row.lease, append.lease, now)
    if refused is not None:
        return refused
    if row.last_sequence != batch.expected_sequence:
        return EventConflict(run_id, batch.expected_sequence, row.last_sequence)
    for linked in batch.links if not append.restored else ():
        if linked != run_id and not rows.exists(linked):
            return RunNotFound(linked)
    for hook in sorted(batch.insert_hooks, key=lambda hook: hook.sequence):  # the first created is named (R16)
        owner = rows.token_owner(hook.token_hash, run_id)
        if owner is not None:
            return HookTokenConflict(hook.token, owner.run_id, owner.hook_id)
    return None


def check_call(appends: Sequence[Append]) -> None:
    """Raises `ValueError` for a call with two batches of one run: which of them is meant to come first is not said."""
    if len(appends) < 2:
        return
    seen: set[str] = set()
    for append in appends:
        run_id = append.batch.run_id
        if run_id in seen:
            raise ValueError(f"run {run_id!r} has two batches in one commit call; commit them one after the other")
        seen.add(run_id)


def is_step(append: Append) -> bool:
    """Whether a commit under a lease only moves its run on, leaving lease and index as they are: most do."""
    batch, lease = append.batch, append.lease
    return (
        lease is not None
        and lease.epoch is not None
        and lease.after == "keep"
        and lease.claim == "none"
        and lease.hold is None
        and batch.expected_sequence > 0
        and not batch.changes_index
        and bool(batch.lines)
    )


def lines_after(lines: bytes, first_sequence: int, after: int) -> bytes:
    """The lines of a commit that begins at `first_sequence` whose events come after sequence `after`."""
    start = 0
    for _ in range(after + 1 - first_sequence):
        start = lines.find(b"\n", start) + 1
        if start == 0:
            return b""
    return lines[start:]


def record_from(row: Sequence[Any]) -> RunRecord:
    """A run's row as a database gives it, columns as `RUN_COLUMNS` lists them."""
    run_id, name, version, build, status, terminal, waits, hooks, retries, created, updated, ended, last, *lease = row
    return RunRecord(
        run_id,
        name,
        version,
        build,
        status,
        bool(terminal),
        waits,
        hooks,
        retries,
        parse_instant(created),
        parse_instant(updated),
        None if ended is None else parse_instant(ended),
        last,
        *lease,
    )


def record_of(run_id: str, row: RunRow, hold: str | None, failures: int) -> RunRecord:
    """What a listing shows of a run."""
    return RunRecord(
        run_id,
        row.name,
        row.version,
        row.build,
        row.status,
        row.terminal,
        row.open_waits,
        row.active_hooks,
        row.pending_retries,
        row.created_at,
        row.updated_at,
        row.ended_at,
        row.last_sequence,
        hold,
        failures,
    )


def matches(filter: RunFilter, row: RunRow, hold: str | None) -> bool:
    """Whether every field given in `filter` holds for a run."""
    return (
        (filter.status is None or row.status in filter.status)
        and (filter.name is None or row.name == filter.name)
        and (filter.version is None or row.version == filter.version)
        and (filter.build is None or row.build == filter.build)
        and (filter.terminal is None or row.terminal == filter.terminal)
        and (filter.held is None or (hold is not None) == filter.held)
    )


def check_limit(limit: int | None, name: str = "limit") -> None:
    """Raises `ValueError` for a limit below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"{name} is {limit}; ask for at least 1 row")


def page_of(found: Sequence[RunRecord], limit: int) -> RunPage:
    """The page of up to `limit` rows out of `found`, which holds one row more if another page follows."""
    more = len(found) > limit
    return RunPage(tuple(found[:limit]), found[limit - 1].run_id if more else None)


class Tally(NamedTuple):
    """Counters of the runs of one status."""

    status: str
    terminal: bool
    runs: int
    open_waits: int
    active_hooks: int
    pending_retries: int


def summary_of(tallies: Iterable[Tally]) -> RunSummary:
    """Adds tallies up to the counters of spec 2.7; what ended runs left open does not count."""
    count: dict[str, int] = {}

    def add(name: str, by: int) -> None:
        count[name] = count.get(name, 0) + by

    for tally in tallies:
        add("total_runs", tally.runs)
        add(f"{tally.status}_runs", tally.runs)
        add("terminal_runs" if tally.terminal else "non_terminal_runs", tally.runs)
        if not tally.terminal:
            add("open_waits", tally.open_waits)
            add("active_hooks", tally.active_hooks)
            add("pending_retries", tally.pending_retries)
    return RunSummary(**count)
