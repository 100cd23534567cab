"""Run leases as the asyncio shell keeps them: what each commit says of the lease, holds, and the renewals (R2, R43,
R44)."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import orjson

from perdure.effects import Commit, Opening
from perdure.errors import (
    EngineClosed,
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
from perdure.outage import Outage
from perdure.stores.base import FlowEventStore, Lease
from perdure.stores.leases import microseconds, renewal_from
from perdure.told import told

if TYPE_CHECKING:
    from perdure.session import Session

    _Renewed = tuple[Session, int, tuple[str, int] | LeaseLost]

__all__ = ["LeaseKeeper", "Leasing"]

_log = logging.getLogger("perdure")
_TRIES: Final = 4
"""How often a renewal that fails is tried in the time between two."""
_LAST_PAUSE: Final = 1.0
"""Seconds between two looks at driven runs in a store that is away."""
_DOUBT: Final = 20
"""The part of a TTL by which two readings of the store's clock may differ for us."""
_UNCOUNTED: Final = (
    *(NonDeterministic, LeaseLost, LeaseHeld, OutcomeUnknown, EngineClosed),
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

    def lost(self) -> Lease:
        """Counts the first failure of a drive whose owner let its lease expire, and leaves the run free: as a failure that claims
        first, without a back-off (R44)."""
        claim = Lease(self.owner, self.ttl_ns, claim="firm", after="fail")
        return replace(claim, counted=True, may_hold=False)

    def renews(self, expires_ns: int, now: int) -> bool:
        """Whether a commit at `now` renewed a lease that expired then: less than half was left, as the store judges it."""
        return microseconds(expires_ns) < renewal_from(self.ttl_ns, now)

    def latest_expiry(self) -> int:
        """When a lease may expire that was renewed just now, where the answer did not say by which reading of the clock."""
        return self.store.clock() + self.ttl_ns + self.ttl_ns // _DOUBT

    # -- holds -----------------------------------------------------------------------------------------------------

    async def with_hold(self, lease: Lease, reads: Reads, error: FlowError, worker: bool) -> Lease:
        """The hold of a drift rides on the release (R43); a direct call of an engine without a build raises without holding, a
        worker always holds, or it would claim the run again at once."""
        holds = isinstance(error, NonDeterministic) and (worker or self.build is not None)
        if lease.after == "keep" or not holds:
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
        reason = dict[str, object]()
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
    lately. A worker has them made by a thread, so that they also go out while the event loop stands still. What others
    appended is looked for at most every `poll_seconds`, while a drive waits for its steps and the store says that somebody
    committed."""

    leasing: Leasing
    sessions: Callable[[], Sequence[Session]]
    poll_seconds: float
    _task: asyncio.Task[None] | None = field(default=None)
    _thread: RenewalThread | None = field(default=None)

    def wake(self) -> None:
        """A drive begins: keep leases until none is left."""
        if self.leasing.enabled and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep(), name="perdure leases")

    async def close(self) -> None:
        await self.end_thread()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def use_thread(self) -> None:
        """From now on a thread renews."""
        if self._thread is None and self.leasing.enabled:
            self._thread = RenewalThread(self, asyncio.get_running_loop())

    async def end_thread(self, *, wait: bool = True) -> None:
        """From now on the event loop renews again. With `wait` the thread has ended when this returns."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.end(wait=wait)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        interval = self.leasing.ttl_seconds / 3
        renew_at, seen, pause = loop.time() + interval, -1, self.poll_seconds
        outage = Outage("driven runs cannot be watched", "driven runs are watched again")
        while True:
            try:
                if loop.time() >= renew_at:
                    renew_at = loop.time() + interval / _TRIES  # should this one fail: well before the lease ends
                    if self._thread is None:
                        self.take(*await self.renew(self.leasing.store))
                    renew_at = loop.time() + interval
                now = await self.leasing.store.wait_for_change(seen, max(0.0, renew_at - loop.time()))
                # What is appended together is noticed together, and nobody is asked more often than this.
                await asyncio.sleep(min(self.poll_seconds, max(0.0, renew_at - loop.time())))
                if all(session.active is None for session in self.sessions()):
                    return
                if now != seen:
                    await self._notice()
                    seen = now
                outage.over()
                pause = self.poll_seconds
            except StoreError as error:
                outage.failed(told(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_PAUSE, interval / _TRIES)

    async def renew(self, store: FlowEventStore) -> tuple[float, list[_Renewed]]:
        """Renews what is due in one statement, by `store`, on whichever event loop that serves: when it was asked, and what
        the answers were."""
        asked_at, half = asyncio.get_running_loop().time(), self.leasing.ttl_seconds / 2
        due = [(s, e) for s in self.sessions() if (e := s.epoch) is not None and s.claimed_until - asked_at < half]
        pairs = [(session.run_id, epoch) for session, epoch in due]
        answers = await store.renew(self.leasing.owner, pairs, ttl_ns=self.leasing.ttl_ns) if pairs else []
        return asked_at, [(*held, answer) for held, answer in zip(due, answers, strict=True)]

    def take(self, asked_at: float, renewed: Sequence[_Renewed]) -> None:
        """Tells the sessions, on their own loop, what `renew` brought."""
        for session, epoch, answer in renewed:
            if session.epoch == epoch:
                session.renewed(answer, asked_at)

    async def _notice(self) -> None:
        driven = {s.run_id: s for s in self.sessions() if s.active is not None}
        if not driven:
            return
        for run_id, last_sequence in (await self.leasing.store.last_sequences(list(driven))).items():
            driven[run_id].noticed(last_sequence)


class RenewalThread:
    """Renews the leases of an engine every third of the TTL from a thread and an event loop of its own, so that a step or a
    workflow that blocks the engine's loop does not cost it its leases (R2). What a renewal brought is told to that loop."""

    def __init__(self, keeper: LeaseKeeper, loop: asyncio.AbstractEventLoop) -> None:
        self._keeper = keeper
        self._told = loop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perdure-renewals", daemon=True)
        self._thread.start()

    async def end(self, *, wait: bool) -> None:
        """Ends the thread, after a renewal that is under way, which is waited for or not."""
        self._ended.set()
        if wait:
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._renew())
        except RuntimeError:
            if not self._told.is_closed():
                raise

    async def _ends_within(self, seconds: float) -> bool:
        return self._ended.wait(seconds)  # nothing else runs on this loop

    async def _renew(self) -> None:
        own = self._keeper.leasing.store.elsewhere()
        store = own or self._keeper.leasing.store
        interval = self._keeper.leasing.ttl_seconds / 3
        pause, outage = interval, Outage("leases cannot be renewed", "leases are renewed again")
        try:
            while not await self._ends_within(pause):
                try:
                    brought = await self._keeper.renew(store)
                except Exception as error:  # noqa: BLE001 - whatever it is, without this thread every run here would be lost
                    outage.failed(told(error))
                    pause = interval / _TRIES
                    continue
                pause = interval
                outage.over()
                if brought[1]:
                    self._told.call_soon_threadsafe(self._keeper.take, *brought)
        finally:
            if own is not None:
                await own.close()
