"""Rules of the engine, each with a way to take it out: the simulator must notice that it is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final

import pytest

from perdure import drive as drives
from perdure import engine as engines
from perdure._pure import run as pure_run
from perdure.drive import Drive
from perdure.effects import Accepted, DriveOptions
from perdure.errors import FlowError, StoreUnavailable
from perdure.host_call import HostCall
from perdure.kernel import View
from perdure.session import Session
from perdure.stores import leases
from perdure.stores.base import Append, Lease
from perdure.stores.index import MemoryIndex

Rule = Callable[[pytest.MonkeyPatch], dict[str, Any] | None]


def outcomes_survive_a_conflict(patch: pytest.MonkeyPatch) -> None:
    """R10."""
    applies = drives._Staged.still_applies
    patch.setattr(drives._Staged, "still_applies", lambda self, run: self.kind != "step" and applies(self, run))


def a_lost_lease_is_refused(patch: pytest.MonkeyPatch) -> None:
    """R47: the epoch decides."""
    refusal = leases.refusal

    def lax(run_id: str, row: leases.Columns, lease: Lease | None, now: int) -> FlowError | None:
        return refusal(run_id, row, lease if lease is None else replace(lease, epoch=None), now)

    patch.setattr(leases, "refusal", lax)


def a_live_lease_is_not_taken(patch: pytest.MonkeyPatch) -> None:
    """R2."""
    patch.setattr(leases, "_is_anothers", lambda row, owner, now: False)


def only_what_was_acknowledged_is_durable(patch: pytest.MonkeyPatch) -> None:
    """R1: a commit the store refused to take is not taken for done."""
    commit = Session.commit

    async def hopeful(self: Session, view: View, lease: Lease | None = None) -> Accepted | FlowError:
        batch = view.append(os.urandom(16 * (view.last_sequence - self._base())))
        try:
            await self._shell.store.commit([Append(batch, lease)])
        except StoreUnavailable:
            return Accepted(batch, self.epoch is not None)
        return await commit(self, view, lease)

    patch.setattr(Session, "commit", hopeful)


def a_due_wait_is_completed_by_the_worker(patch: pytest.MonkeyPatch) -> None:
    """R9, first commit."""
    patch.setattr(HostCall, "completes_waits", property(lambda self: False))


def the_horizon_moves_with_the_clock(patch: pytest.MonkeyPatch) -> None:
    """R9, end."""
    take = Drive._take

    def stopped(self: Drive) -> Generator[Any, Any, Any]:
        horizon = self._horizon
        staged = yield from take(self)
        self._horizon = horizon
        return staged

    patch.setattr(Drive, "_take", stopped)


def a_final_failure_ends_the_run(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """R19."""
    patch.setattr(pure_run._Reads, "closing", lambda self: [])
    return {"kernel": "pure"}


def the_workflow_sees_everything_before_it_parks(patch: pytest.MonkeyPatch) -> None:
    """R3, R8."""
    decide = Drive._decide

    def once(self: Drive, *given: Any) -> Generator[Any, Any, Any]:
        decided = yield from decide(self, *given)
        self._asked = 10**9
        return decided

    patch.setattr(Drive, "_decide", once)


async def _blind(self: Session, *_: object) -> None:
    pass


def a_lease_is_looked_at_before_a_launch(patch: pytest.MonkeyPatch) -> None:
    """R2: the deadline, and what the renewals said."""
    patch.setattr(Session, "_check_lease", _blind)


def a_redelivery_without_events_claims_first(patch: pytest.MonkeyPatch) -> None:
    """R2, W5."""
    patch.setattr(Session, "_check_lease", _blind)
    owes = Drive._owes_lease
    patch.setattr(Drive, "_owes_lease", lambda self, parks, launches, *rest: owes(self, parks, False, *rest))


def a_foreign_append_makes_a_run_claimable(patch: pytest.MonkeyPatch) -> None:
    """R3."""
    appended = leases._appended
    patch.setattr(leases, "_appended", lambda row, terminal, has: appended(row, terminal, has) if terminal else row)


def a_parked_run_wakes_for_its_wakeups(patch: pytest.MonkeyPatch) -> None:
    """R3."""
    released = leases._released
    patch.setattr(
        leases, "_released", lambda row, append, lease, now, _: released(row, append, lease, now, lambda: None)
    )


def a_drive_leaves_its_lease_when_it_is_cut_off(patch: pytest.MonkeyPatch) -> None:
    """R2."""

    async def keep(self: Session) -> None:
        pass

    patch.setattr(Session, "give_back", keep)


def a_token_belongs_to_one_run(patch: pytest.MonkeyPatch) -> None:
    """W12."""
    patch.setattr(MemoryIndex, "token_owner", lambda self, token_hash, besides: None)


def attempts_are_limited(patch: pytest.MonkeyPatch) -> None:
    """R26."""
    options = DriveOptions

    def wide(limit: int, concurrency: int, *rest: Any) -> DriveOptions:
        return options(limit, 64, *rest)

    patch.setattr(engines, "DriveOptions", wide)


RULES: Final[dict[Rule, int]] = {
    outcomes_survive_a_conflict: 32,
    a_lost_lease_is_refused: 0,
    a_live_lease_is_not_taken: 12,
    only_what_was_acknowledged_is_durable: 7,
    a_due_wait_is_completed_by_the_worker: 0,
    the_horizon_moves_with_the_clock: 32,
    a_final_failure_ends_the_run: 5,
    the_workflow_sees_everything_before_it_parks: 0,
    a_redelivery_without_events_claims_first: 9,
    a_lease_is_looked_at_before_a_launch: 988,
    a_foreign_append_makes_a_run_claimable: 2,
    a_parked_run_wakes_for_its_wakeups: 5,
    a_drive_leaves_its_lease_when_it_is_cut_off: 219,
    a_token_belongs_to_one_run: 177,
    attempts_are_limited: 11,
}
"""Each rule with a seed that misses it. Seeds shift whenever an engine asks its store once more or less: then others are tried."""
