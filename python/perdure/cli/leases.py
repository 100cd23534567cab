"""What a run's lease, its failed drives and its hold mean to an operator, in words (R2, R43, R44)."""

from __future__ import annotations

import shlex
from typing import Any

import orjson

from perdure.instant import Instant
from perdure.owner import is_dead, pid_of
from perdure.stores.base import LeaseState

__all__ = ["driver", "failing", "hold_of", "next_drive", "obstacle", "time_of"]


def hold_of(text: str) -> dict[str, Any]:
    """A run hold as the object that it is stored as."""
    found = orjson.loads(text)
    return found if isinstance(found, dict) else {}


def time_of(ns: int | None) -> str | None:
    """Nanoseconds since 1970 as a time."""
    return None if ns is None else str(Instant(ns))


def driver(lease: LeaseState) -> str | None:
    """Who drives the run, or did until the lease expired; None if nobody has a lease. A process of this host that has ended
    is called dead."""
    if lease.owner is None:
        return None
    pid = pid_of(lease.owner)
    words = f"epoch {lease.epoch}" + ("" if pid is None else f", process {pid}")
    if is_dead(lease.owner):
        words += " (dead)"
    if lease.live:
        return words
    return f"{words}, lease expired" + ("" if lease.claim_at is None else f" at {Instant(lease.claim_at * 1000)}")


def next_drive(lease: LeaseState, now: int) -> str | None:
    """When workers may drive the run again, `now` in ns by the store's clock; None while somebody has a lease, if the run is
    held, and if nothing is due by itself."""
    if lease.live or lease.hold is not None or lease.claim_at is None:
        return None
    at = lease.claim_at * 1000
    return f"at {Instant(at)}" if at > now else "now, by the next free worker"


def failing(lease: LeaseState, now: int) -> str | None:
    """How many drives of the run failed in a row and when it is driven again; None if none did or `next_drive` is None."""
    again = next_drive(lease, now)
    if not lease.failures or again is None:
        return None
    drives = "drive" if lease.failures == 1 else f"{lease.failures} drives"
    return f"its last {drives} failed; it is tried again {again}"


def obstacle(run_id: str, lease: LeaseState, now: int) -> str | None:
    """Why workers do not carry the run on at once, and what lets them; None if they do."""
    if lease.hold is None:
        words = failing(lease, now)
        return None if words is None else f"run {run_id!r}: {words}"
    if lease.live and not is_dead(lease.owner or ""):
        return None
    code = hold_of(lease.hold).get("code", "?")
    return (
        f"run {run_id!r} is held ({code}): until `perdure release {shlex.quote(run_id)}` no worker carries it on, "
        "unless one of another build"
    )
