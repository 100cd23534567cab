"""The rules of leases, parking, failures and holds, as functions over a run's lease columns (R2, R3, R43, R44, R47).

They stand here once for all stores. A store reads a run's `Columns`, asks what becomes of them, and writes the answer in the
same transaction as the batch. `now` is always the store's clock, ns, read inside that transaction; columns hold microseconds,
rounded up, so nothing is ever claimed before its time (R50).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from perdure.errors import FlowError, LeaseHeld, LeaseLost
from perdure.instant import format_instant
from perdure.payload import decode, encode
from perdure.stores.base import Append, Lease, LeaseState

__all__ = [
    "NEW",
    "UNKNOWN",
    "Columns",
    "RunState",
    "Wanted",
    "claimed",
    "committed",
    "given",
    "held",
    "hold_released",
    "is_claimable",
    "is_claimable_though_held",
    "is_live",
    "microseconds",
    "passed_over",
    "refusal",
    "renewal_from",
    "renewed",
    "state_of",
    "voided",
]

_FIRST_BACKOFF_NS: Final = 1_000_000_000
_LAST_BACKOFF_NS: Final = 600_000_000_000
_DOUBLINGS: Final = 10  # 2^10 s are more than the last back-off; far larger powers need not be computed
_AT_ONCE: Final = 0
"""The `not_before` of a run whose owner died after other drives had failed: there is no back-off, and the next claim is told of
a failure to be counted."""


class Columns(NamedTuple):
    """A run's lease columns. `not_before` and `claim_at` in microseconds since 1970.

    `not_before` is set from a counted failure to the next change of the row: whatever touches the run ends the back-off. So
    R3's "runnable" and `claim_at` say the same. It is 0 from a lost drive that is not counted yet."""

    owner: str | None
    epoch: int
    parked_sequence: int
    failures: int
    not_before: int | None
    hold: str | None
    claim_at: int | None


NEW: Final = Columns(None, 0, -1, 0, None, None, 0)
"""Of a run without events, and of an imported one (R3)."""


class RunState(NamedTuple):
    """As much of a run's row as a change of it is judged by. `last_sequence` is 0 for a run without events."""

    last_sequence: int
    terminal: bool
    lease: Columns


UNKNOWN: Final = RunState(0, False, NEW)


class Wanted(NamedTuple):
    """What a worker knows how to drive (R44); None stands for everything. It passes over the runs `besides`."""

    workflows: Collection[tuple[str, str]] | None = None
    builds: Collection[str | None] | None = None
    besides: Collection[str] = ()

    def includes(self, name: str, version: str, build: str | None) -> bool:
        """Whether a run of this workflow and build may be given to the worker."""
        return (self.workflows is None or (name, version) in self.workflows) and (
            self.builds is None or build in self.builds
        )


# looking at a row ------------------------------------------------------------------------------------------------


def microseconds(ns: int) -> int:
    """Nanoseconds in the unit of the columns, rounded up."""
    return -(-ns // 1000)


def is_live(row: Columns, now: int) -> bool:
    """Whether somebody's lease has not expired."""
    return row.owner is not None and row.claim_at is not None and row.claim_at > now // 1000


def is_claimable(row: Columns, now: int) -> bool:
    """Whether the run is runnable (R3). Only an open run has a `claim_at`."""
    return row.hold is None and row.claim_at is not None and row.claim_at <= now // 1000


def is_claimable_though_held(row: Columns, now: int, build: str) -> bool:
    """Whether a worker of this build may try a held run: nobody leases it, and no drive of the build has caused the hold
    (R43)."""
    return row.hold is not None and not is_live(row, now) and build not in _builds(row.hold)


def state_of(row: Columns, last_sequence: int, now: int) -> LeaseState:
    """The columns as a caller reads them."""
    not_before = None if row.not_before is None else row.not_before * 1000
    return LeaseState(
        row.owner,
        row.epoch,
        row.parked_sequence,
        row.failures,
        not_before,
        row.hold,
        row.claim_at,
        is_live(row, now),
        last_sequence,
    )


# a commit --------------------------------------------------------------------------------------------------------


def refusal(run_id: str, row: Columns, lease: Lease | None, now: int) -> FlowError | None:
    """The lease's part of R47's order. The epoch alone decides whether a lease is held: one that expired and that nobody
    took is still its holder's."""
    if lease is None:
        return None
    if lease.epoch is not None and (row.owner, row.epoch) != (lease.owner, lease.epoch):
        return LeaseLost(run_id)
    if (lease.claim == "firm" or lease.unless_leased) and _is_anothers(row, lease.owner, now):
        return LeaseHeld(run_id)
    return None


def committed(row: Columns, append: Append, now: int, earliest: Callable[[], int | None]) -> tuple[Columns, int | None]:
    """The columns after an accepted commit, and the epoch its owner then holds.

    `earliest` gives the run's earliest wakeup after the batch, ns; it is asked only if the run parks."""
    batch, lease = append.batch, append.lease
    if lease is None:
        return _appended(row, batch.row.terminal, bool(batch.lines)), None
    holds = lease.epoch is not None
    if lease.claim in ("firm", "take_over") or (lease.claim == "if_free" and not _is_anothers(row, lease.owner, now)):
        row, holds = claimed(row, lease.owner, lease.ttl_ns, now), True
    if not holds and is_live(row, now):
        return _appended(row, batch.row.terminal, bool(batch.lines)), None
    if lease.accepted:
        row = row._replace(failures=0, not_before=None, hold=None)
    if batch.row.terminal:
        return _ended(row), None
    if lease.hold is not None:
        row = row._replace(hold=lease.hold)
    if holds and lease.after == "keep":
        return _kept(row, lease.ttl_ns, now), row.epoch
    return _released(row, append, lease, now, earliest), None


def _is_anothers(row: Columns, owner: str, now: int) -> bool:
    return row.owner != owner and is_live(row, now)


def _appended(row: Columns, terminal: bool, has_events: bool) -> Columns:
    """After an append by somebody who does not hold the lease: a leased run is its owner's, any other may be claimed."""
    if terminal:
        return _ended(row)
    if not has_events or row.owner is not None:
        return row
    return _unleased(row, 0)


def _ended(row: Columns) -> Columns:
    return row._replace(owner=None, not_before=None, hold=None, claim_at=None)


def _kept(row: Columns, ttl_ns: int, now: int) -> Columns:
    if row.claim_at is not None and row.claim_at >= renewal_from(ttl_ns, now):
        return row
    return row._replace(claim_at=microseconds(now + ttl_ns))


def renewal_from(ttl_ns: int, now: int) -> int:
    """A lease that expires before this, in microseconds, is renewed by a commit: less than half of it is left (R2). So most
    commits leave the index of claims alone."""
    return microseconds(now + ttl_ns // 2)


def _released(row: Columns, append: Append, lease: Lease, now: int, earliest: Callable[[], int | None]) -> Columns:
    if lease.after == "park":
        due = earliest()
        parked = row._replace(parked_sequence=append.batch.last_sequence)
        return _unleased(parked, None if due is None else microseconds(due))
    if lease.after == "fail" and lease.counted:
        return _failed(row, append, lease, now)
    return _unleased(row, 0)


def _failed(row: Columns, append: Append, lease: Lease, now: int) -> Columns:
    delay = lease.fraction * min(_LAST_BACKOFF_NS, _FIRST_BACKOFF_NS * 2 ** min(row.failures, _DOUBLINGS))
    failures, not_before = row.failures + 1, microseconds(now + int(delay))
    hold = row.hold
    if lease.may_hold and lease.hold is None and failures >= lease.max_failures:
        builds = {*_builds(row.hold), *([] if lease.build is None else [lease.build])}
        hold = _failing(append.batch.row.name, append.batch.row.version, failures, builds, now)
    released = _unleased(row._replace(failures=failures, hold=hold), not_before)
    return released._replace(not_before=not_before)


def _unleased(row: Columns, claim_at: int | None) -> Columns:
    return row._replace(owner=None, not_before=None, claim_at=None if row.hold is not None else claim_at)


# holds -----------------------------------------------------------------------------------------------------------


def _failing(name: str, version: str, failures: int, builds: Collection[str], now: int) -> str:
    hold = {
        "code": "failing",
        "reason": {"failures": failures},
        "workflow": name,
        "version": version,
        "builds": sorted(builds),
        "at": format_instant(now),
    }
    return encode(hold).decode()


def _builds(hold: str | None) -> Collection[str]:
    """The builds whose drives caused a hold (R43)."""
    if hold is None:
        return ()
    builds: list[str] = decode(hold.encode()).get("builds", [])
    return builds


def held(state: RunState, hold: str, expected_sequence: int, now: int) -> Columns | None:
    """Held by somebody without a lease, None where that is not allowed: the run has ended or moved on, or somebody's lease
    is live (R43)."""
    if state.terminal or state.last_sequence != expected_sequence or is_live(state.lease, now):
        return None
    return state.lease._replace(hold=hold, claim_at=None)


def hold_released(row: Columns) -> Columns | None:
    """After `release_hold`, None if there was no hold: as a run that was never parked and never failed (R3). A lease stays;
    one that has expired lets the run be claimed."""
    if row.hold is None:
        return None
    leased = row.owner is not None and row.claim_at is not None
    return row._replace(
        hold=None, parked_sequence=-1, failures=0, not_before=None, claim_at=row.claim_at if leased else 0
    )


# beside a commit -------------------------------------------------------------------------------------------------


def claimed(row: Columns, owner: str, ttl_ns: int, now: int) -> Columns:
    """With the lease given to `owner`."""
    return row._replace(owner=owner, epoch=row.epoch + 1, not_before=None, claim_at=microseconds(now + ttl_ns))


def given(row: Columns, owner: str, ttl_ns: int, now: int) -> tuple[Columns, bool]:
    """The same by a worker's claim, and what `Claimed.lost` says. An owner that let its lease expire did not come to count its
    failure (R44). The first one is counted here, and the run may be driven at once; one after others has to wait, and whether
    the run is held is the claimer's to know."""
    expired = row.owner not in (None, owner)
    lost = row.not_before == _AT_ONCE or (expired and row.failures > 0)
    if expired and not row.failures:
        row = row._replace(failures=1)
    return claimed(row, owner, ttl_ns, now), lost


def passed_over(row: Columns) -> Columns:
    """A held run whose lease has expired, met by a claim (R3). Its holder may still renew it: nobody took it."""
    return row._replace(claim_at=None)


def renewed(row: Columns, owner: str, epoch: int, ttl_ns: int, now: int) -> Columns | None:
    """With the lease renewed, or given back if `ttl_ns` is 0; None if `owner` does not hold that epoch."""
    if (row.owner, row.epoch) != (owner, epoch):
        return None
    if ttl_ns == 0:
        return _unleased(row, microseconds(now))
    return row._replace(claim_at=microseconds(now + ttl_ns))


def voided(row: Columns) -> Columns:
    """With the lease ended because its owner is dead (R2), which is a failure of its drive (R44): as an expired one in `given`."""
    released = _unleased(row, 0)
    return released._replace(not_before=_AT_ONCE) if row.failures else released._replace(failures=1)
