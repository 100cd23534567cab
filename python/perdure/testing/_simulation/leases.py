"""What the auditor keeps of leases: a model of R3 beside each run's row, and an account of its own of R43 and R44."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from perdure import errors
from perdure.errors import FlowError
from perdure.kernel import Run
from perdure.stores.base import Append, Claimed, Lease
from perdure.stores.leases import Wanted
from perdure.testing._lease_model import LeaseModel, hold_builds
from perdure.testing._simulation.medium import Medium

if TYPE_CHECKING:
    from perdure.testing._simulation.audit import Party

__all__ = ["LeaseBooks"]

_NOT_COUNTED: Final = frozenset(
    {
        *(errors.NonDeterministic, errors.LeaseLost, errors.LeaseHeld, errors.OutcomeUnknown, errors.EngineClosed),
        *(errors.StepNotRegistered, errors.WorkflowNotRegistered),
    }
)
_LEFT_ALONE_NS: Final = 1_000_000_000
_NEVER_HELD: Final = frozenset({errors.HookTokenConflict, errors.RunNotFound})


class LeaseBooks:
    """One model per run, moved by what the store accepted and compared with its row after each change."""

    def __init__(self, medium: Medium, fail: Callable[[int | str, str], NoReturn]) -> None:
        self._medium = medium
        self._fail = fail
        self._models: dict[str, LeaseModel] = {}
        self._ends: dict[str, tuple[Lease, FlowError | None, bool]] = {}
        """What the last drive that let go of a run says of the lease, by which error it ends, and whether a worker drives."""
        self._lacking: dict[tuple[str, str], int] = {}
        """When a worker's drive of a run was last released because its code knows no such step, by owner and run."""

    def of(self, run_id: str) -> LeaseModel:
        """The model of a run."""
        return self._models.setdefault(run_id, LeaseModel())

    # what moves it ------------------------------------------------------------------------------------------------

    def committed(self, party: Party, append: Append, run: Run) -> None:
        """A commit was accepted; `run` is folded up to it."""
        model, lease, run_id = self.of(append.batch.run_id), append.lease, append.batch.run_id
        before, now = model.hold, self._medium.clock()
        model.last_sequence, model.ended = run.last_sequence, run.terminal
        model.waits = {f"{kind} {id}": due for kind, id, due in run.suspensions() if kind != "hook" and due is not None}
        model.commit(lease, bool(append.batch.lines), now)
        if lease is not None and lease.after != "keep" and not run.terminal:
            self._check_hold(party, run_id, lease, before)
        self.compare(run_id)

    def chosen(self, party: Party, run_id: str) -> None:
        """A worker has asked for runs and been given this one: not one it could not drive a moment ago (R44). One whose store
        failed it may not know that it could not."""
        until = self._lacking.get((party.owner, run_id), 0) + _LEFT_ALONE_NS
        if until > self._medium.clock() and not party.mishaps:
            self._fail("R44", f"{party.name} claims run {run_id} again and does not know a step of it")

    def claimed(self, claim: Claimed, owner: str, ttl_ns: int) -> None:
        right = self.of(claim.run_id).claim(owner, ttl_ns, self._medium.clock())
        said = claim.failures, claim.lost
        if said != right:
            self._fail("R44", f"the claim of run {claim.run_id} says of failures {said}, and should say {right}")
        self.compare(claim.run_id)

    def renewed(self, run_id: str, ttl_ns: int) -> None:
        self.of(run_id).renew(ttl_ns, self._medium.clock())
        self.compare(run_id)

    def voided(self, owner: str) -> int:
        """The leases of a dead owner are ended; how many there were."""
        found = [(run_id, model) for run_id, model in self._models.items() if model.owner == owner]
        for run_id, model in found:
            model.void()
            self.compare(run_id)
        return len(found)

    def held(self, run_id: str, hold: str) -> None:
        self.of(run_id).hold = hold_builds(hold)
        self.compare(run_id)

    def released(self, run_id: str) -> None:
        self.of(run_id).release_hold()
        self.compare(run_id)

    def forget(self, run_id: str) -> None:
        """The run is unknown to the store."""
        self._models.pop(run_id, None)

    # what is compared ---------------------------------------------------------------------------------------------

    def compare(self, run_id: str) -> None:
        """The row against the model: columns, whether the lease is live, and whether the run can be claimed."""
        row, model, now = self._medium.lease(run_id), self.of(run_id), self._medium.clock()
        if row is None:
            self._fail("R3", f"run {run_id} has a lease and no row")
        found = (row.owner, row.epoch, row.parked_sequence, row.failures, row.not_before, hold_builds(row.hold))
        right = (model.owner, model.epoch, model.parked, model.failures, model.not_before, model.hold)
        if found != right or row.live != model.live(now):
            self._fail("R3", f"the lease of run {run_id} is {_shown(found)}, and should be {_shown(right)}")
        claimable = row.hold is None and row.claim_at is not None and row.claim_at <= now // 1000
        if claimable != model.runnable(now):
            self._fail("R3", f"run {run_id}: runnable is {model.runnable(now)}, and claim_at {row.claim_at} at {now}")

    def runnable(self, wanted: Wanted, runs: dict[str, Run]) -> set[str]:
        """Which of the runs a worker may be given now."""
        now = self._medium.clock()
        return {
            run_id
            for run_id, run in runs.items()
            if self.of(run_id).runnable(now)
            and run_id not in wanted.besides
            and wanted.includes(*run.workflow, run.build_id)
        }

    # R43, R44 -----------------------------------------------------------------------------------------------------

    def ends(self, run_id: str, error: FlowError | None, worker: bool, lease: Lease) -> None:
        """A drive is about to release the run, or goes on."""
        self._ends[run_id] = lease, error, worker
        if lease.after == "keep" or error is None:
            return
        counted = worker and type(error) not in _NOT_COUNTED
        if counted != (lease.after == "fail" and lease.counted):
            self._fail("R44", f"run {run_id}: a drive that ended by {error.code} is {'not ' if counted else ''}counted")
        if counted and lease.may_hold == (type(error) in _NEVER_HELD):
            self._fail(
                "R44", f"run {run_id}: a drive that ended by {error.code} may {'' if lease.may_hold else 'not '}hold it"
            )

    def _check_hold(self, party: Party, run_id: str, lease: Lease, before: frozenset[str] | None) -> None:
        told, error, worker = self._ends.get(run_id, (None, None, False))
        if told != replace(lease, hold=None):
            return
        if worker and isinstance(error, errors.StepNotRegistered):
            self._lacking[party.owner, run_id] = self._medium.clock()
        holds = isinstance(error, errors.NonDeterministic) and (worker or party.build is not None)
        if holds != (lease.hold is not None):
            self._fail("R43", f"{party.name} releases run {run_id} {'without' if holds else 'with'} a hold")
        caused = hold_builds(lease.hold)
        if caused is not None and not caused >= {b for b in (*(before or ()), party.build) if b is not None}:
            self._fail(
                "R43", f"run {run_id}: the hold names {set(caused)}, before it {before}, and {party.build} failed"
            )


def _shown(columns: tuple[object, ...]) -> str:
    """Without the owner, which names a process."""
    names = ("epoch", "parked", "failures", "not_before", "hold")
    said = ", ".join(f"{name} {value}" for name, value in zip(names, columns[1:], strict=True))
    return f"{'free' if columns[0] is None else 'leased'}, {said}"
