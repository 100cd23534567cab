"""One run in this process: its projection, its lock, and the one drive that all callers share (rulings R22, R48)."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from perdure.attempts import Attempts
from perdure.drive import Drive
from perdure.effects import (
    Accepted,
    Commit,
    DriveOptions,
    Effect,
    Failed,
    Load,
    Look,
    NextOutcomes,
    Opening,
    Outcome,
    Program,
    Release,
    Standing,
    StartSteps,
    Taken,
)
from perdure.errors import (
    EngineClosed,
    EventConflict,
    FlowError,
    LeaseLost,
    OutcomeUnknown,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from perdure.kernel import Batch, Kernel, Run, View
from perdure.leasing import Leasing
from perdure.stores.base import Append, Claimed, Committed, FlowEventStore, Lease, LeaseState
from perdure.told import told

__all__ = ["ActiveDrive", "Session", "Shell"]

T = TypeVar("T")
_log = logging.getLogger("perdure")
_FIRST_BACKOFF_SECONDS = 0.05
_LAST_BACKOFF_SECONDS = 2.0
_BYTES_PER_EVENT_ID = 16


@dataclass(frozen=True, slots=True)
class Shell:
    """What every session of an engine shares."""

    kernel: Kernel
    store: FlowEventStore
    options: DriveOptions
    max_event_bytes: int
    patience_seconds: float
    clock: Callable[[], int]
    program: Callable[[str], Program]
    attempts: Callable[[str, Callable[[], None]], Attempts]
    discarded: Callable[[str, Outcome], None]
    failed: Callable[[Run, Outcome], None]
    committed: Callable[[Run, Batch], None]
    idle: Callable[[Session], None]
    closed: Callable[[], bool]
    leasing: Leasing


class _Patience:
    """How long a store that fails is asked again: with growing pauses until `store_patience` or the engine ends (R1)."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._give_up = asyncio.get_running_loop().time() + shell.patience_seconds
        self._seconds = _FIRST_BACKOFF_SECONDS

    async def pause(self) -> bool:
        """Waits before the next try; False, without waiting, when there is to be none."""
        if asyncio.get_running_loop().time() + self._seconds > self._give_up or self._shell.closed():
            return False
        await asyncio.sleep(self._seconds)
        self._seconds = min(self._seconds * 2, _LAST_BACKOFF_SECONDS)
        return True


@dataclass(slots=True, eq=False)
class ActiveDrive:
    """A drive under way, and who waits for it."""

    drive: Drive
    opening: Opening
    attempts: Attempts = field(init=False)
    task: asyncio.Task[None] | None = None
    waiters: int = 0
    horizon: int | None = None
    created: asyncio.Event = field(default_factory=asyncio.Event)
    waiter: asyncio.Future[None] | None = None
    foreign: bool = False
    begun: bool = False
    ending: bool = False
    drained: bool = False
    lost: LeaseLost | None = None

    @property
    def stirred(self) -> bool:
        return self.foreign or self.drained or self.lost is not None or self.horizon is not None

    def wake(self) -> None:
        """Something finished or was appended: let `NextOutcomes` return."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def end(self) -> None:
        """Cancels the drive, once: a second time would cut off what it still gives back. One that has not begun sees
        `ending` when it does; cancelled before, it would run no line and give nothing back."""
        if self.task is not None and not self.ending and not self.task.done():
            self.ending = True
            if self.begun:
                self.task.cancel()

    def drain(self) -> None:
        """Lets the attempts that run now settle, and then ends the drive with `EngineClosed`, its lease given back (R2)."""
        self.drive.draining = self.drained = True
        self.wake()

    def join(self, horizon: int, *, worker: bool) -> None:
        """Another caller hands over its horizon; once a worker is among them a failure is counted (R22, R44)."""
        self.horizon = horizon if self.horizon is None else max(self.horizon, horizon)
        if worker and not self.opening.worker:
            self.opening = self.drive.opening = replace(self.opening, worker=True)
        self.wake()


class Session:
    """The run's lock is held by whoever stages on the run until the store has answered, so within one process nobody
    ever works on a stale view; only a drive that waits for its steps lets go of it."""

    def __init__(self, run_id: str, shell: Shell) -> None:
        self.run_id = run_id
        self.lock = asyncio.Lock()
        self.run: Run | None = None
        self.active: ActiveDrive | None = None
        self.users = 0
        self.size = 0  # bytes of history folded, for the cache
        self.epoch: int | None = None
        self.lease_until = 0.0  # on the loop's clock, counted from before the request that last claimed or renewed
        self.claimed_until = 0.0  # the same, as known at the last commit under it
        self.expires_ns = 0  # the lease by the store's clock; never earlier than the store says
        self._shell = shell
        self._last_clock = 0
        self._program: Program | None = None
        self._unfinished: tuple[Append, asyncio.Future[Sequence[Committed | FlowError]]] | None = None

    def clock(self) -> int:
        """The drive's clock: never going back (R45)."""
        self._last_clock = max(self._last_clock, self._shell.clock())
        return self._last_clock

    # -- the projection --------------------------------------------------------------------------------------------

    async def load(self, known_sequence: int | None = None) -> Run:
        """The run with everything the store has; only the tail is read and folded (W1), and nothing where the store's last
        sequence is known and here already. Raises `RunNotFound`."""
        if self.run is None or self.run.last_sequence == 0:
            history = await self._shell.store.history(self.run_id)
            run = self._shell.kernel.project(self.run_id, history, self._shell.max_event_bytes)
            if self.active is not None:  # a drive is creating the run with the one it has; this is for a reader only
                return run
            self.run, self.size = run, len(history)
        elif self.run.last_sequence != known_sequence:
            await self.extend()
        return self.run

    def unready(self) -> Coroutine[Any, Any, object] | None:
        """What a call must wait for before it may be judged: a drive that was cancelled and still ends, or the
        creation of the run. The lock must not be held while waiting."""
        active = self.active
        if active is not None and active.ending and active.task is not None:
            return asyncio.wait([active.task])
        if active is not None and active.drive.run.last_sequence == 0:
            return active.created.wait()
        return None

    async def extend(self) -> None:
        if self.run is not None:
            tail = await self._shell.store.history(self.run_id, self.run.last_sequence)
            if tail:
                self.run.extend(tail)
                self.size += len(tail)

    async def load_or_new(self) -> Run:
        try:
            return await self.load()
        except RunNotFound:
            if self.run is None:
                self.run = self._shell.kernel.new(self.run_id, self._shell.max_event_bytes)
            return self.run

    # -- commits ---------------------------------------------------------------------------------------------------

    async def commit(self, view: View, lease: Lease | None = None) -> Accepted | FlowError:
        """Commits what the view stages. A store that fails is asked again with the same batch until patience ends
        (R1, R48); the event ids were fixed before the first try, so a commit of unknown outcome is recognised in the
        tail."""
        batch = view.append(os.urandom(_BYTES_PER_EVENT_ID * (view.last_sequence - self._base())))
        loop = asyncio.get_running_loop()
        patience, unknown = _Patience(self._shell), False
        first_asked_at = loop.time()
        while True:
            asked_at = loop.time()
            try:
                (answer,) = await self._store_commit(Append(batch, lease))
            except (StoreUnavailable, OutcomeUnknown) as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if not await patience.pause():
                    raise
                continue
            if unknown and isinstance(answer, EventConflict | LeaseLost) and await self._is_durable(batch, lease):
                # Which try it was that the store took is not known: the lease counts from before the first.
                return self._accepted(batch, await self._epoch_in_store(), first_asked_at)
            if isinstance(answer, Committed):
                epoch = answer.epoch if lease is not None else self.epoch
                return self._accepted(batch, epoch, asked_at, answer.now if lease is not None else 0)
            if isinstance(answer, LeaseLost):
                self.epoch = None
            return answer

    async def patiently(self, read: Callable[[], Awaitable[T]]) -> T:
        """A read or renewal inside a drive, or the first read of a call that may append: a store that is away for a moment
        costs no attempt its result and no caller a retry that its commit would not have cost (R1)."""
        patience = _Patience(self._shell)
        while True:
            try:
                return await read()
            except (StoreUnavailable, OutcomeUnknown):
                if not await patience.pause():
                    raise

    async def _store_commit(self, append: Append) -> Sequence[Committed | FlowError]:
        """A commit once begun is seen to its end, also when its caller is cancelled meanwhile: `give_back` then finds
        it."""
        committing = asyncio.ensure_future(self._shell.store.commit([append]))
        self._unfinished = (append, committing)
        try:
            answers = await asyncio.shield(committing)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._unfinished = None
            raise
        self._unfinished = None
        return answers

    async def finish_commit(self) -> None:
        """Takes the answer of a commit whose caller was cancelled while it was under way."""
        if self._unfinished is None:
            return
        (append, committing), self._unfinished = self._unfinished, None
        (answer,) = await committing
        if isinstance(answer, Committed):
            if append.lease is not None:
                self.epoch = answer.epoch
            await self.extend()
            if self.run is not None and append.batch.lines:
                self._shell.committed(self.run, append.batch)

    def _accepted(self, batch: Batch, epoch: int | None, asked_at: float, now: int = 0) -> Accepted:
        """`now` is the store's clock in the commit, 0 where that is not known."""
        leasing = self._shell.leasing
        claimed = epoch is not None and epoch != self.epoch
        if claimed or (epoch is not None and now and leasing.renews(self.expires_ns, now)):
            self.lease_until = self.claimed_until = asked_at + leasing.ttl_seconds
            self.expires_ns = now + leasing.ttl_ns if now else leasing.latest_expiry()
        elif epoch is not None:  # it commits, and so may save the next renewal as well
            self.claimed_until = self.lease_until
        self.epoch = epoch
        self.size += len(batch.lines)
        return Accepted(batch, epoch is not None)

    def _base(self) -> int:
        return 0 if self.run is None else self.run.last_sequence

    async def _is_durable(self, batch: Batch, lease: Lease | None) -> bool:
        if not batch.lines:  # a lease given back: it was, if it is not ours any more
            return lease is not None and lease.epoch is not None and await self._epoch_in_store() != lease.epoch
        tail = await self.patiently(lambda: self._shell.store.history(self.run_id, batch.expected_sequence))
        return tail.startswith(batch.lines)

    async def _epoch_in_store(self) -> int | None:
        state = await self.patiently(lambda: self._shell.store.lease(self.run_id))
        return state.epoch if state.owner == self._shell.leasing.owner else None

    # -- the shared drive ------------------------------------------------------------------------------------------

    def begin(self, opening: Opening) -> ActiveDrive:
        """Starts the drive of this run; the lock must be held and no drive be active."""
        run = self.run
        if run is None:
            raise RunNotFound(self.run_id)
        shell = self._shell
        drive = Drive(
            run,
            self._own_program(),
            shell.options,
            opening,
            self.clock,
            lambda outcome: shell.discarded(self.run_id, outcome),
            partial(self._committed, run),
        )
        active = ActiveDrive(drive, opening)
        active.attempts = shell.attempts(self.run_id, active.wake)
        active.task = asyncio.create_task(self._carry(active), name=f"perdure drive {self.run_id}")
        active.task.add_done_callback(lambda task: self._ended(active))
        self.active = active
        return active

    def _committed(self, run: Run, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.told is not None:
                self._shell.failed(run, outcome)
        self._shell.committed(run, batch)

    def _own_program(self) -> Program:
        """One program for all drives of this session, so that a coroutine it keeps outlives a drive (R63)."""
        if self._program is None:
            self._program = self._shell.program(self.run_id)
        return self._program

    def check_payload(self, hook_id: str, payload: bytes) -> None:
        """Raises `Serialization("payload")` for what the workflow, if it is known here, could not take from this hook."""
        run = self.run
        hook = None if run is None or run.terminal else run.hook(hook_id)
        if run is not None and hook is not None and hook.status == "active":
            self._own_program().check_payload(run, hook_id, payload)

    @property
    def weight(self) -> int:
        """What the session counts in the engine's cache, bytes."""
        return self.size + (0 if self._program is None else self._program.kept_bytes)

    def evicted(self) -> None:
        """The engine lets go of this session."""
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def _ended(self, active: ActiveDrive) -> None:
        active.created.set()
        if self.active is active:
            self.active = None
        self._shell.idle(self)

    def adopt(self, claimed: Claimed) -> None:
        """Takes over a lease that `store.claim` gave to this engine; the newest epoch is the one that counts."""
        if self.epoch is None or claimed.epoch > self.epoch:
            self.epoch = claimed.epoch
            age_seconds = max(0, self.clock() - claimed.now) / 1e9
            until = asyncio.get_running_loop().time() + self._shell.leasing.ttl_seconds - age_seconds
            self.lease_until = self.claimed_until = until
            self.expires_ns = claimed.now + self._shell.leasing.ttl_ns

    async def wait(self, active: ActiveDrive) -> None:
        """Waits for the shared drive; its refusal reaches each waiter as an instance of its own. When the last waiter
        leaves, the drive is cancelled (R22). The caller has counted itself in `active.waiters` already."""
        task = active.task
        if task is None:
            return
        try:
            await asyncio.wait([task])
        finally:
            active.waiters -= 1
            if active.waiters == 0:
                active.end()
        if active.attempts.fatal is not None:
            raise active.attempts.fatal
        if task.cancelled():  # not this waiter: its own cancellation left the line above
            raise EngineClosed
        error = task.exception()
        if isinstance(error, FlowError):
            own = copy.copy(error).with_traceback(error.__traceback__)
            own.run_id = own.run_id or self.run_id
            own.__cause__ = error.__cause__
            raise own
        if error is not None:
            raise error

    async def _carry(self, active: ActiveDrive) -> None:
        """Performs the drive's effects; the lock is held throughout, except while it waits for its steps."""
        steps = active.drive.steps()
        active.begun = True
        try:
            await _reacquire(self.lock)
            if active.ending:
                raise asyncio.CancelledError
            effect = next(steps)
            while True:
                try:
                    answer = await self._perform(active, effect)
                except BaseException as error:  # noqa: BLE001 - thrown on into the drive, which re-raises it
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except (StopIteration, _StepExited):
            pass
        except (KeyboardInterrupt, SystemExit) as error:  # raised by workflow code; they must not leave the task
            active.attempts.fatal = error
        except StoreError:  # patience is over: no other commit, the lease expires by itself (R1)
            self.epoch = self._unfinished = None
            raise
        finally:
            active.created.set()
            try:
                await active.attempts.abort()
                await self.give_back()
            finally:
                if self.active is active:
                    self.active = None
                self.lock.release()

    async def give_back(self) -> None:
        """The last act of a drive that was cut off: its attempts have ended, so another may go on at once (R2)."""
        try:
            await self.finish_commit()
            while self.epoch is not None and self.run is not None:
                known = self.run.last_sequence
                lease = self._shell.leasing.give_back(self.epoch)
                batch = self.run.stage([], self.clock()).append(b"")
                (answer,) = await self._shell.store.commit([Append(batch, lease)])
                if not isinstance(answer, EventConflict):
                    break
                await self.extend()
                if self.run.last_sequence == known:
                    break
        except FlowError as error:
            _log.warning("the lease of run %s could not be given back and will expire: %s", self.run_id, told(error))
        finally:
            self.epoch = None

    async def _perform(self, active: ActiveDrive, effect: Effect) -> object:
        leasing = self._shell.leasing
        match effect:
            case NextOutcomes(until):
                return await self._next(active, until)
            case Commit(view):
                if active.lost is not None:
                    raise active.lost
                lease = leasing.for_drive(self.epoch, active.opening, effect)
                if effect.error is not None:
                    lease = await leasing.with_hold(lease, view, effect.error, active.opening.worker)
                answer = await self.commit(view, lease)
                active.created.set()
                return answer
            case StartSteps(attempts, renew):
                await self._check_lease(active, renew)
                active.attempts.launch(attempts)
                self._raise_fatal(active)
            case Release(keys, ended):
                active.attempts.release(keys, ended=ended)
            case Look():
                return await self._look(active.opening.worker)
            case Failed(error):
                await leasing.hold_without_lease(active.drive.run, error)
            case Load(after):
                try:
                    return await self.patiently(lambda: self._shell.store.history(self.run_id, after))
                except RunNotFound:
                    return b""
        return None

    async def _look(self, worker: bool) -> Standing:
        leasing = self._shell.leasing
        state = await self.patiently(lambda: self._shell.store.lease(self.run_id))
        owner = state.owner
        if state.live and owner is not None and owner != leasing.owner and leasing.is_dead(owner):
            await self._shell.store.void(owner)
            state = await self.patiently(lambda: self._shell.store.lease(self.run_id))
        held = state.live and state.owner != leasing.owner
        failures, lost = 0, False
        if worker and leasing.enabled and not state.live:
            failures, lost = await self._failures(state)
        marked = bool(state.hold or failures or state.failures or state.not_before)
        return Standing(held, state.parked_sequence, marked, failures, lost)

    async def _failures(self, state: LeaseState) -> tuple[int, bool]:
        """What a claim says of failures, for a task, which claims nothing before it drives: a first drive that was lost is
        counted here (R44)."""
        expired = state.owner not in (None, self._shell.leasing.owner)
        if state.failures or not expired or self.run is None:
            return state.failures, state.not_before == 0 or (expired and state.failures > 0)
        nothing = self.run.stage([], self.clock()).append(b"")
        (answer,) = await self._shell.store.commit([Append(nothing, self._shell.leasing.lost())])
        return int(isinstance(answer, Committed)), False

    async def _check_lease(self, active: ActiveDrive, renew: bool) -> None:
        """Nothing is launched under a lease that was lost or may have expired, however late an answer came (R2)."""
        loop = asyncio.get_running_loop()
        leasing = self._shell.leasing
        while self.epoch is not None and (renew or loop.time() >= self.lease_until):
            asked_at = loop.time()
            pairs = [(self.run_id, self.epoch)]
            (answer,) = await self.patiently(
                partial(self._shell.store.renew, leasing.owner, pairs, ttl_ns=leasing.ttl_ns)
            )
            self.renewed(answer, asked_at)
            renew = False
        if active.lost is not None:
            raise active.lost
        if leasing.enabled and self.epoch is None:
            raise LeaseLost(self.run_id)

    def renewed(self, answer: tuple[str, int] | LeaseLost, asked_at: float) -> None:
        """What a renewal said of this run: the lease goes on, perhaps with events of others, or it was lost."""
        if isinstance(answer, LeaseLost):
            self.epoch = None
            if self.active is not None:
                self.active.lost = answer
                self.active.wake()
            return
        self.lease_until = asked_at + self._shell.leasing.ttl_seconds
        self.expires_ns = self._shell.leasing.latest_expiry()
        self.noticed(answer[1])

    def noticed(self, last_sequence: int) -> None:
        """The store's last sequence of this run, read beside the drive: it may have to look (R2, R9)."""
        if self.active is not None and last_sequence > self.active.drive.run.last_sequence:
            self.active.foreign = True
            self.active.wake()

    async def _next(self, active: ActiveDrive, until: int | None) -> Taken:
        attempts = active.attempts
        ready = attempts.outcomes or active.stirred or self._moved(active)
        await self._sleep(active, None if ready else until, wait=not ready)
        self._raise_fatal(active)
        if active.lost is not None:
            raise active.lost
        outcomes, attempts.outcomes = tuple(attempts.outcomes), []
        horizon, active.horizon = active.horizon, None
        foreign, active.foreign = active.foreign, False
        active.drained = False
        return Taken(outcomes, horizon, foreign)

    def _moved(self, active: ActiveDrive) -> bool:
        return active.drive.run.last_sequence != active.drive.known_sequence

    async def _sleep(self, active: ActiveDrive, until: int | None, *, wait: bool) -> None:
        """Lets go of the lock until something stirs. Others get a turn even when nothing needs to be waited for, so a
        run of inline steps over a fast store starves nobody."""
        loop = asyncio.get_running_loop()
        active.waiter = waiter = loop.create_future()
        timer = None
        if until is not None:
            timer = loop.call_later(max(0, until - self.clock()) / 1e9, active.wake)
        self.lock.release()
        try:
            if wait:
                await waiter
            await asyncio.sleep(0)  # what finishes at this same moment belongs into the same commit
        finally:
            active.waiter = None
            if timer is not None:
                timer.cancel()
            await _reacquire(self.lock)

    def _raise_fatal(self, active: ActiveDrive) -> None:
        if active.attempts.fatal is not None:
            raise _StepExited


class _StepExited(BaseException):
    """A step raised KeyboardInterrupt or SystemExit. Those two would end the event loop if they left a task by
    themselves, so the drive ends by this and the waiting calls raise the original."""


async def _reacquire(lock: asyncio.Lock) -> None:
    """Takes the lock even when the drive is being cancelled, so that its owner can release it: the holders of this lock
    only wait for the store, and a cancellation asked for meanwhile is delivered afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            await lock.acquire()
            break
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
