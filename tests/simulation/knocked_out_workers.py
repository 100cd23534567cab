"""Rules of workers, queues and schedulers, each with a way to take it out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from perdure import leasing, tasks
from perdure.effects import Accepted
from perdure.errors import EventConflict, FlowError, OutcomeUnknown, StepNotRegistered, StoreUnavailable
from perdure.host_call import HostCall
from perdure.kernel import View
from perdure.leasing import LeaseKeeper, Leasing
from perdure.queues.worker import TaskWorker
from perdure.scheduler import FlowScheduler
from perdure.session import Session
from perdure.stores import leases, memory, rules
from perdure.stores.base import Append, Claimed, Lease, RunnablePage
from perdure.stores.index import MemoryIndex
from perdure.stores.leases import Columns, Wanted
from perdure.stores.memory_queue import MemoryTaskRows, _Queue
from perdure.stores.runnable import runnable_page
from perdure.task_kinds import FlowTask
from perdure.tasks import Ack, DeadLetter, Nack, TaskOutcome
from perdure.worker import flow_worker
from perdure.worker.deaths import DeathWatch
from perdure.worker.flow_worker import FlowWorker
from perdure.worker.held import HeldRuns
from simulation.knocked_out import Rule

# -- R2 ---------------------------------------------------------------------------------------------------------------


def leases_are_renewed(patch: pytest.MonkeyPatch) -> None:
    """R2."""

    async def never(self: LeaseKeeper, store: object) -> tuple[float, list[Any]]:
        return 0.0, []

    patch.setattr(LeaseKeeper, "renew", never)


def a_run_that_was_not_driven_goes_back(patch: pytest.MonkeyPatch) -> None:
    """R2."""

    async def keep(self: FlowWorker, claimed: Claimed) -> None:
        pass

    patch.setattr(FlowWorker, "_hand_back", keep)


def only_the_dead_lose_their_leases(patch: pytest.MonkeyPatch) -> None:
    """R2."""
    patch.setattr(DeathWatch, "dead", lambda self, owners: list(owners))


# -- R3 ---------------------------------------------------------------------------------------------------------------


def only_a_parking_release_parks(patch: pytest.MonkeyPatch) -> None:
    """R3."""
    released = leases._released

    def parks(row: Columns, append: Append, lease: Lease, now: int, earliest: Any) -> Columns:
        return released(row, append, replace(lease, after="park") if lease.after == "free" else lease, now, earliest)

    patch.setattr(leases, "_released", parks)


def a_released_hold_makes_a_run_claimable(patch: pytest.MonkeyPatch) -> None:
    """R3."""
    patch.setattr(leases, "hold_released", lambda row: row._replace(hold=None) if row.hold is not None else None)


def an_idle_worker_sleeps(patch: pytest.MonkeyPatch) -> None:
    """R3."""
    patch.setattr(FlowWorker, "_bounded", lambda self, seconds, now: 0.06)


def a_worker_sleeps_until_the_first_wakeup(patch: pytest.MonkeyPatch) -> None:
    """R3, invariant 6."""
    bounded = FlowWorker._bounded

    def longer(self: FlowWorker, seconds: float, now: float) -> float:
        return bounded(self, self._poll, now)

    patch.setattr(FlowWorker, "_bounded", longer)


# -- R43 --------------------------------------------------------------------------------------------------------------


def a_drift_holds_the_run(patch: pytest.MonkeyPatch) -> None:
    """R43."""

    async def without(self: Leasing, lease: Lease, *_: object) -> Lease:
        return lease

    patch.setattr(Leasing, "with_hold", without)


def held_runs_are_not_claimed(patch: pytest.MonkeyPatch) -> None:
    """R43."""
    patch.setattr(leases, "is_claimable", lambda row, now: row.claim_at is not None and row.claim_at <= now // 1000)
    patch.setattr(leases, "_unleased", lambda row, at: row._replace(owner=None, not_before=None, claim_at=at))


def a_build_that_drifted_does_not_try_again(patch: pytest.MonkeyPatch) -> None:
    """R43."""
    patch.setattr(leases, "_builds", lambda hold: ())


def another_build_tries_a_held_run(patch: pytest.MonkeyPatch) -> None:
    """R43, R3."""

    async def none(self: HeldRuns, *_: object) -> list[Claimed]:
        return []

    patch.setattr(HeldRuns, "claim", none)


def an_accepted_decision_ends_hold_and_count(patch: pytest.MonkeyPatch) -> None:
    """R43, R44."""
    committed = leases.committed

    def stays(row: Columns, append: Append, *rest: Any) -> Any:
        lease = append.lease
        return committed(row, append if lease is None else replace(append, lease=replace(lease, accepted=False)), *rest)

    patch.setattr(leases, "committed", stays)


def a_task_leaves_a_held_run_alone(patch: pytest.MonkeyPatch) -> None:
    """R43."""

    async def drive(self: Any, task: FlowTask, run_id: str, op: Mapping[str, object], now: int) -> TaskOutcome:
        with contextlib.suppress(FlowError):
            await self.engine.make(HostCall(run_id, {"op": "drive"}, due=now, worker=True))
        return TaskOutcome(task)

    patch.setattr(tasks._Handling, "drive", drive)


# -- R44 --------------------------------------------------------------------------------------------------------------


def failed_drives_are_counted(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    patch.setattr(Leasing, "_failed", lambda self, lease, opening, error: replace(lease, after="free"))


def a_missing_step_is_no_failure(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    patch.setattr(leasing, "_UNCOUNTED", tuple(kind for kind in leasing._UNCOUNTED if kind is not StepNotRegistered))


def a_run_that_fails_backs_off(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    failed = leases._failed
    patch.setattr(
        leases, "_failed", lambda row, append, lease, now: failed(row, append, replace(lease, fraction=0.0), now)
    )


def a_run_that_goes_on_failing_is_held(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    failed = leases._failed
    patch.setattr(
        leases, "_failed", lambda row, append, lease, now: failed(row, append, replace(lease, may_hold=False), now)
    )


def a_missing_step_is_left_to_others(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    patch.setattr(FlowWorker, "_shun", lambda self, run_id: None)


def workers_claim_what_they_know(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    patch.setattr(flow_worker, "_wanted_by", lambda engine: Wanted())


def a_task_comes_back_until_its_event_is_durable(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    patch.setattr(tasks._Handling, "_disposition", lambda self, task, error, call: Ack())


def only_what_is_refused_for_good_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    disposition = tasks._Handling._disposition

    def at_once(self: Any, *given: Any) -> object:
        said = disposition(self, *given)
        return DeadLetter(said.reason) if isinstance(said, Nack) else said

    patch.setattr(tasks._Handling, "_disposition", at_once)


def what_another_worker_may_know_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """R44."""
    patch.setattr(tasks, "_ELSEWHERE", ())


# -- R45 --------------------------------------------------------------------------------------------------------------


def drives_run_on_the_clock_of_the_store(patch: pytest.MonkeyPatch) -> None:
    """R45."""
    patch.setattr(Session, "clock", lambda self: time.time_ns())


def each_claim_has_an_epoch_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """R45."""
    claimed = leases.claimed
    patch.setattr(leases, "claimed", lambda row, *rest: claimed(row, *rest)._replace(epoch=row.epoch or 1))


def a_release_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """R45."""
    unleased = leases._unleased
    patch.setattr(leases, "_unleased", lambda row, claim_at: unleased(row, claim_at)._replace(epoch=0))


def task_leases_are_renewed(patch: pytest.MonkeyPatch) -> None:
    """R45."""

    async def never(self: TaskWorker, lease_id: str) -> str:
        return lease_id

    patch.setattr(TaskWorker, "_beat", never)


# -- R46 --------------------------------------------------------------------------------------------------------------


def a_run_has_one_task_that_drives_it(patch: pytest.MonkeyPatch) -> None:
    """R46."""
    of = MemoryTaskRows._of

    def forgetful(self: MemoryTaskRows, queue: str) -> _Queue:
        rows = of(self, queue)
        rows.drives.clear()
        return rows

    patch.setattr(MemoryTaskRows, "_of", forgetful)


def leased_and_backed_off_runs_get_no_task(patch: pytest.MonkeyPatch) -> None:
    """R46."""

    def everything(self: MemoryIndex, now: int, clock: int, after: object, limit: int) -> RunnablePage:
        rows = [self._runnable_row(0, id, now) for id in self.run_ids() if self.leases[id].claim_at is not None]
        return runnable_page(rows, now, clock, limit, None)

    patch.setattr(MemoryIndex, "runnable", everything)


def orphans_get_a_task(patch: pytest.MonkeyPatch) -> None:
    """R46: the reference looks for due wakeups only."""
    look = FlowScheduler._look

    async def due(self: FlowScheduler, *given: Any) -> Any:
        runs, cursor, next_at = await look(self, *given)
        return [run for run in runs if run.due_waits or run.due_retries], cursor, next_at

    patch.setattr(FlowScheduler, "_look", due)


def a_lost_delivery_is_made_good(patch: pytest.MonkeyPatch) -> None:
    """R46: a mark expires."""
    patch.setattr(
        FlowScheduler,
        "_is_marked",
        lambda self, run, moment: self._marks.get(run.run_id, (0, -1))[1] == run.last_sequence,
    )


# -- R47, R48 ---------------------------------------------------------------------------------------------------------


def the_lease_is_judged_before_the_sequence(patch: pytest.MonkeyPatch) -> None:
    """R47."""
    refusal = rules.refusal

    def other_way_round(append: Append, row: Any, now: int, rows: Any) -> FlowError | None:
        batch = append.batch
        if row.last_sequence != batch.expected_sequence:
            return EventConflict(batch.run_id, batch.expected_sequence, row.last_sequence)
        return refusal(append, row, now, rows)

    patch.setattr(memory, "refusal", other_way_round)


def an_unknown_outcome_is_not_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    """R48: the same batch is committed again."""
    commit = Session.commit

    async def hopeful(self: Session, view: View, lease: Lease | None = None) -> Accepted | FlowError:
        batch = view.append(os.urandom(16 * (view.last_sequence - self._base())))
        try:
            await self._shell.store.commit([Append(batch, lease)])
        except OutcomeUnknown:
            return Accepted(batch, self.epoch is not None)
        except StoreUnavailable:
            pass
        return await commit(self, view, lease)

    patch.setattr(Session, "commit", hopeful)


RULES: Final[dict[Rule, int]] = {
    leases_are_renewed: 31,
    only_the_dead_lose_their_leases: 0,
    only_a_parking_release_parks: 6,
    a_released_hold_makes_a_run_claimable: 44,
    an_idle_worker_sleeps: 8,
    a_worker_sleeps_until_the_first_wakeup: 256,
    a_drift_holds_the_run: 6,
    held_runs_are_not_claimed: 56,
    a_build_that_drifted_does_not_try_again: 532,
    another_build_tries_a_held_run: 1,
    an_accepted_decision_ends_hold_and_count: 2,
    a_task_leaves_a_held_run_alone: 40,
    failed_drives_are_counted: 2,
    a_missing_step_is_no_failure: 38,
    a_run_that_fails_backs_off: 2,
    a_run_that_goes_on_failing_is_held: 16,
    a_missing_step_is_left_to_others: 61,
    workers_claim_what_they_know: 59,
    a_task_comes_back_until_its_event_is_durable: 5,
    only_what_is_refused_for_good_is_set_aside: 38,
    what_another_worker_may_know_is_not_counted: 175,
    drives_run_on_the_clock_of_the_store: 2,
    each_claim_has_an_epoch_of_its_own: 0,
    a_release_keeps_the_epoch: 0,
    task_leases_are_renewed: 81,
    a_run_has_one_task_that_drives_it: 7,
    leased_and_backed_off_runs_get_no_task: 3,
    orphans_get_a_task: 5,
    a_lost_delivery_is_made_good: 38,
    the_lease_is_judged_before_the_sequence: 0,
    an_unknown_outcome_is_not_taken_for_done: 4,
}
"""Each rule with a seed that misses it. What a simulation cannot miss:

* R2: that the death of a process is seen at once, that drains let attempts settle, and that foreign appends are noticed by
  hints: without them everything only comes later, by expiry, redelivery and the next commit.
* R43: that a hold keeps the builds that drifted before: two of them must meet one held run, in one world of some thousand.
* R43, R44: what a JSONL hold file and the listings show; R45: what each database takes for its clock.
* R46: that a task is handled at the later of its `now` and the clock: what a task leaves, the scheduler finds.
* R47: tombstones, net changes of the index, and R48: the order in a group and whole groups that fail. Engines commit one
  batch at a time; groups are made in the stores of databases.

Those have tests of their own."""
