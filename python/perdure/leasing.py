"""Run leases as the asyncio shell keeps them: what each commit says of the lease, holds, and the renewals (R2, R43,
R44)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import orjson

from perdure.effects import Commit, Opening
from perdure.errors import (
    FlowError,
    HookTokenConflict,
    LeaseHeld,
    LeaseLost,
    NonDeterministic,
    OutcomeUnknown,
    RunNotFound,
    StepNotRegistered,
    StoreError,
    WorkflowNotRegistered,
)
from perdure.instant import format_instant
from perdure.kernel import Reads, Run
from perdure.stores.base import FlowEventStore, Lease

if TYPE_CHECKING:
    from perdure.session import Session

__all__ = ["LeaseKeeper", "Leasing"]

_log = logging.getLogger("perdure")
_UNCOUNTED: Final = (
    *(NonDeterministic, LeaseLost, LeaseHeld, OutcomeUnknown),
    *(StepNotRegistered, WorkflowNotRegistered),
)
"""Ends of a drive that are no failures of the run (R44)."""


@dataclass(frozen=True, slots=True)
class Leasing:
    """How this engine leases runs. `enabled` False: it drives without leases and stands back from those of others."""

    store: FlowEventStore
    owner: str
    ttl_ns: int
    enabled: bool
    build: str | None
    max_failures: int
    is_dead: Callable[[str], bool]
    random: random.Random

    @property
    def ttl_seconds(self) -> float:
        return self.ttl_ns / 1e9

    def for_drive(self, epoch: int | None, opening: Opening, commit: Commit) -> Lease:
        """What a drive's commit says of the lease: claims it where it is not held, and gives it back at the end."""
        if not self.enabled:
            return Lease(self.owner, self.ttl_ns, unless_leased=True, accepted=commit.accepted)
        lease = Lease(
            self.owner,
            self.ttl_ns,
            epoch=epoch,
            accepted=commit.accepted,
            max_failures=self.max_failures,
            build=self.build,
        )
        if epoch is None:
            lease = replace(lease, claim="take_over" if opening.take_over else "firm")
        if commit.after == "park":
            return replace(lease, after="park")
        if commit.after == "fail":
            return self._failed(lease, opening, commit.error)
        return lease

    def _failed(self, lease: Lease, opening: Opening, error: FlowError | None) -> Lease:
        if not opening.worker or error is None or isinstance(error, _UNCOUNTED):
            return replace(lease, after="free")
        never_holds = isinstance(error, HookTokenConflict | RunNotFound)
        return replace(lease, after="fail", counted=True, fraction=self.random.random(), may_hold=not never_holds)

    def for_call(self) -> Lease | None:
        """A host call that goes on to drive claims the lease with its own event, if it is free (R2)."""
        return Lease(self.owner, self.ttl_ns, claim="if_free") if self.enabled else None

    def give_back(self, epoch: int) -> Lease:
        return Lease(self.owner, self.ttl_ns, epoch=epoch, after="free")

    # -- holds -----------------------------------------------------------------------------------------------------

    async def with_hold(self, lease: Lease, reads: Reads, error: FlowError, worker: bool) -> Lease:
        """The hold of a drift rides on the release (R43); a direct call of an engine without a build raises without
        holding, a worker always holds, or it would claim the run again at once."""
        drifted = isinstance(error, NonDeterministic) and (worker or self.build is not None)
        if lease.after == "keep" or not drifted:
            return lease
        return replace(lease, hold=await self._hold(reads, error))

    async def hold_without_lease(self, run: Run, error: FlowError) -> None:
        """The same for a drive that never held the lease: only if nobody else drives and nothing was appended since."""
        if isinstance(error, NonDeterministic) and self.build is not None and run.last_sequence:
            hold = await self._hold(run, error)
            await self.store.set_hold(run.run_id, hold, expected_sequence=run.last_sequence)

    async def _hold(self, reads: Reads, error: FlowError) -> str:
        builds = {self.build}
        if reads.last_sequence:
            try:
                known = (await self.store.lease(reads.run_id)).hold
            except RunNotFound:
                known = None
            builds |= set(orjson.loads(known).get("builds", ()) if known else ())
        name, version = reads.workflow
        reason = {}
        if isinstance(error, NonDeterministic):  # ids and places only: values never leave the error (R60)
            reason = {
                "kind": error.kind,
                "id": error.id,
                "part": error.part,
                "sequence": error.sequence,
                "path": error.path,
            }
        hold = {
            "code": error.code,
            "reason": reason,
            "workflow": name,
            "version": version,
            "builds": sorted(b for b in builds if b is not None),
            "at": format_instant(self.store.clock()),
        }
        return orjson.dumps(hold).decode()


@dataclass(slots=True)
class LeaseKeeper:
    """Renews the leases of the runs this engine drives, and notices what others appended to them.

    Renewals are one statement for all runs every third of the TTL, leaving out runs whose commits renewed them
    lately. Where the store can tell that somebody committed, that is asked every `poll_seconds` while a drive waits
    for its steps."""

    leasing: Leasing
    sessions: Callable[[], Iterable[Session]]
    poll_seconds: float
    _task: asyncio.Task[None] | None = field(default=None)

    def wake(self) -> None:
        """A drive begins: keep leases until none is left."""
        if self.leasing.enabled and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep(), name="perdure leases")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        interval = self.leasing.ttl_seconds / 3
        renew_at, seen = loop.time() + interval, -1
        while any(s.active is not None for s in self.sessions()):
            await asyncio.sleep(min(self.poll_seconds, max(0.0, renew_at - loop.time())))
            try:
                if loop.time() >= renew_at:
                    renew_at = loop.time() + interval / 4  # should this one fail: well before the lease ends
                    await self._renew()
                    renew_at = loop.time() + interval
                if (now := await self.leasing.store.changes()) != seen:
                    seen = now
                    await self._notice()
            except StoreError as error:
                _log.warning("leases could not be renewed and are tried again: %s", error.code)

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        half = self.leasing.ttl_seconds / 2
        due = [s for s in self.sessions() if s.epoch is not None and s.claimed_until - loop.time() < half]
        pairs = [(s.run_id, s.epoch) for s in due if s.epoch is not None]
        if not pairs:
            return
        asked_at = loop.time()
        answers = await self.leasing.store.renew(self.leasing.owner, pairs, ttl_ns=self.leasing.ttl_ns)
        for session, (_, epoch), answer in zip(due, pairs, answers, strict=True):
            if session.epoch == epoch:
                session.renewed(answer, asked_at)

    async def _notice(self) -> None:
        driven = {s.run_id: s for s in self.sessions() if s.active is not None}
        for run_id, last_sequence in (await self.leasing.store.last_sequences(list(driven))).items():
            driven[run_id].noticed(last_sequence)
