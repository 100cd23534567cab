"""`FlowWorker`: claims runnable runs under leases and drives many at once (R2, R3, R9, R43-R45)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from perdure.engine import FlowEngine
from perdure.errors import (
    DriveLost,
    EngineClosed,
    FlowError,
    LeaseLost,
    NonDeterministic,
    StepNotRegistered,
    StoreError,
    StoreUnavailable,
    WorkflowNotRegistered,
)
from perdure.flow import Flow
from perdure.host_call import HostCall
from perdure.outage import Outage
from perdure.stores.base import Claimed
from perdure.stores.leases import Wanted
from perdure.told import told
from perdure.worker.deaths import DeathWatch
from perdure.worker.held import HeldRuns
from perdure.worker.hints import Hints
from perdure.worker.shunned import ShunnedRuns
from perdure.worker.signals import signals_handled

__all__ = ["FlowWorker"]

_log = logging.getLogger("perdure")
_BETWEEN_LOOKS: Final = 0.05
"""Seconds from one look to the next that a mere hint brings about."""
_FIRST_PAUSE: Final = 0.01
_LAST_PAUSE: Final = 1.0
"""Seconds after a look that found runs due of which the claim then got none: others were faster, or have them locked."""
_SPREAD: Final = 0.004
"""Seconds over which workers that wait for the same moment spread, so that the first has claimed before the others look."""
_BESIDE_OTHERS: Final = 5.0
"""Seconds between looks while others lease runs: they may park one with a time that comes sooner, and no store tells of that."""
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 5.0
_STORE_PATIENCE: Final = 60.0
"""Seconds for which a store may fail in a way that nobody promises to go away by itself."""
_LAST_ACT: Final = 1.0
"""Seconds that giving leases back may take in a worker that is told to end at once."""
_UNKNOWN: Final = (StepNotRegistered, WorkflowNotRegistered)


class FlowWorker:
    """Carries on the runs of a store, beside any number of other workers of other processes and hosts.

    It claims only runs of workflows and builds that its engine knows; all others are left to others. `concurrency` is how
    many runs it drives at once, `claim_batch` how many it claims in one transaction, `poll` how long it sleeps at most when
    nothing is due and nobody tells of a change. `drain_timeout` is how long the attempts that run may take when it is to
    end; what still runs then is cut off, and redelivered by another worker.

        async with FlowEngine(flow, "sqlite:///app.db") as engine:
            await FlowWorker(engine).run_forever()

    Raises `TypeError` and `ValueError` for settings without sense, and for an engine without leases. What goes wrong with a
    run is logged and recorded on the run, and never ends the worker (R44)."""

    def __init__(
        self,
        engine: FlowEngine,
        *,
        concurrency: int = 64,
        claim_batch: int = 16,
        poll: timedelta = timedelta(seconds=30),
        drain_timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        if not engine.leasing.enabled:
            raise ValueError("a worker drives under leases; make its engine without lease=False (R2)")
        self.engine = engine
        self._limit = _at_least_one("concurrency", concurrency)
        self._batch = _at_least_one("claim_batch", claim_batch)
        self._poll = _seconds("poll", poll, 0.001)
        self._grace = _seconds("drain_timeout", drain_timeout, 0.0)
        self._wanted = _wanted_by(engine)
        self._random = engine.leasing.random
        self._drives: dict[asyncio.Task[None], str] = {}  # and which run each is of
        self._shunned = ShunnedRuns()
        self._held = HeldRuns(engine, self._wanted)
        self._deaths = DeathWatch(engine.leasing.is_dead, self._stir)
        self._hints = Hints(engine.store)
        self._stirred = asyncio.Event()
        self._urgent = False  # whether the next look must not wait
        self._more = False  # whether the last look left runs that can be claimed, as far as is known
        self._pause = _FIRST_PAUSE
        self._failing_since: float | None = None
        self._outage = Outage("the worker cannot look for runs", "the worker looks for runs again")
        self._running = False
        self._draining = False
        self._hurried = asyncio.Event()
        self._ended = asyncio.Event()
        self.signals: list[int] = []
        """The signals that ended `run_forever`, in the order they came."""

    def __repr__(self) -> str:
        return f"<FlowWorker: drives {len(self._drives)} of at most {self._limit} runs>"

    # -- running ---------------------------------------------------------------------------------------------------

    async def run_forever(self, *, signals: bool = True) -> None:
        """Works until it is drained: by `drain`, or with `signals` by SIGTERM or SIGINT. A second signal ends it at once, and
        so does cancellation. Raises `StoreError` if the store cannot be worked with, and `EngineElsewhere`."""
        if not signals:
            await self._run(until_idle=False)
            return
        with signals_handled(self._on_signal):
            await self._run(until_idle=False)

    async def run_until_idle(self) -> None:
        """Works until no run is runnable and none is driven; runs that wait for a time to come are left. Raises
        `StoreError`."""
        await self._run(until_idle=True)

    async def drain(self) -> None:
        """Claims nothing more, lets the attempts that run settle for `drain_timeout`, gives all leases back, and returns when
        that is done. Nothing is appended for it: each run goes on elsewhere from where it was (R2)."""
        if not self._draining:
            self.stop()
        if self._running:
            await self._ended.wait()

    def stop(self) -> None:
        """Begins what `drain` waits for; called again, it cuts off at once what still runs. What a signal does."""
        if self._draining:
            self._hurried.set()
        self._draining = True
        self._stir()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._hurried.set()
        await self.drain()

    def _on_signal(self, number: int) -> None:
        self.signals.append(number)
        self.stop()

    def _stir(self) -> None:
        """Something happened that the worker looks at without delay."""
        self._urgent = True
        self._stirred.set()

    async def _run(self, *, until_idle: bool) -> None:
        if self._running:
            raise ValueError("this worker runs already; make another one, with an engine of its own")
        if not self.engine.closed:
            self.engine.check_use()  # else every run would be claimed, refused and given back
        self._running, self._ended = True, asyncio.Event()
        self.engine.keeper.use_thread()
        _log.info("worker started for %s", self._known())
        try:
            await self._work(until_idle)
        except BaseException:
            self._hurried.set()
            raise
        finally:
            await self._leave()
            self._running = False
            self._ended.set()
            _log.info("worker ended")

    def _known(self) -> str:
        workflows, builds = self._wanted.workflows, self._wanted.builds or ()
        names = "any workflow" if workflows is None else ", ".join(f"{name} {version}" for name, version in workflows)
        others = "" if None in builds else "; runs without a build are left to others"
        return f"{names or 'no workflow'}; builds: {', '.join(build or 'unpinned' for build in builds)}{others}"

    # -- looking and claiming --------------------------------------------------------------------------------------

    async def _work(self, until_idle: bool) -> None:
        """Looks, claims, and rests until there may be more to claim."""
        try:
            await self._patiently(self._hints.begin)
            while not self._draining and not self.engine.closed:
                self._stirred.clear()
                self._urgent = False
                pause = await self._patiently(self._look)
                # A drive that ended during the look was left out of it, and its run may be claimed again.
                if until_idle and not (self._drives or self._more or self._urgent):
                    return
                await self._rest(pause)
        finally:
            await self._hints.close()
            self._deaths.close()

    async def _patiently(self, ask: Callable[[], Any]) -> float:
        """What `ask` gives; a store that is away is asked again after growing pauses, which are given then."""
        now = asyncio.get_running_loop().time()
        try:
            pause = await ask()
        except StoreError as error:
            self._more = True
            since = self._failing_since = now if self._failing_since is None else self._failing_since
            if now - since > _STORE_PATIENCE and not isinstance(error, StoreUnavailable):
                raise
            self._outage.failed(told(error))
            return min(_LAST_RETRY, _FIRST_RETRY + (now - since) / 2)
        self._failing_since = None
        self._outage.over()
        return pause or 0.0

    async def _look(self) -> float:
        """Claims what may be claimed; says for how long there is nothing to do unless something stirs."""
        now = asyncio.get_running_loop().time()
        free = min(self._batch, self._limit - len(self._drives))
        if free <= 0:
            self._more = True
            return self._poll
        # A run that a drive here has just released, and is yet to say why, is not claimed again meanwhile.
        besides = [*self._shunned.at(now), *self._drives.values()]
        held = await self._granted(self._held.claim(free, besides, now)) if self._held.is_due(now) else []
        claimed = held
        if not held:
            ahead = await self._ahead(besides)
            if ahead > 0:
                self._more, self._pause = False, _FIRST_PAUSE
                return self._bounded(ahead, now)
            claimed = await self._claim(free, besides)
        self._more = True
        for run in claimed:
            task = asyncio.create_task(self._drive(run, held=bool(held)), name=f"perdure worker {run.run_id}")
            self._drives[task] = run.run_id
            task.add_done_callback(self._drove)
        pause, self._pause = self._pause, min(self._pause * 2, _LAST_PAUSE)
        if claimed:
            pause, self._pause = 0.0, _FIRST_PAUSE
        return pause * (0.5 + self._random.random())

    async def _ahead(self, besides: list[str]) -> float:
        """Seconds until there is something to claim, by the store's clock. The leases of processes of this host that have
        died are ended first (R2)."""
        workflows, builds = self._wanted.workflows, self._wanted.builds
        seen = await self.engine.store.outlook(workflows=workflows, builds=builds, besides=besides)
        dead = self._deaths.dead([owner for owner in seen.owners if owner != self.engine.owner])
        ended = sum([await self.engine.store.void(owner) for owner in dead])
        if ended:
            _log.warning("%d runs of a process that has died can be claimed again", ended)
            return 0.0
        ahead = self._poll if seen.claim_at is None else (seen.claim_at * 1_000 - seen.now) / 1e9
        if ahead > 0 and any(owner != self.engine.owner for owner in seen.owners):
            ahead = min(ahead, _BESIDE_OTHERS) + self._random.random() * _SPREAD
        return ahead

    async def _claim(self, k: int, besides: list[str]) -> list[Claimed]:
        workflows, builds, ttl_ns = self._wanted.workflows, self._wanted.builds, self.engine.leasing.ttl_ns
        return await self._granted(
            self.engine.store.claim(
                self.engine.owner, k, workflows=workflows, builds=builds, besides=besides, ttl_ns=ttl_ns
            )
        )

    async def _granted(self, claim: Coroutine[Any, Any, list[Claimed]]) -> list[Claimed]:
        """What a claim gives; of a worker that is cancelled meanwhile it is handed back."""
        claiming = asyncio.ensure_future(claim)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # What was asked for may be granted all the same, and nobody would drive it until it expires.
            with suppress(StoreError):  # in whose place the cancellation is told of
                for run in await claiming:
                    await self._hand_back(run)
            raise

    def _bounded(self, seconds: float, now: float) -> float:
        """No longer than until the next look that is due anyway."""
        ends = [end - now for end in (self._shunned.next_end(now), self._held.next_look) if end is not None]
        return max(0.0, min(seconds, self._poll, *ends))

    async def _rest(self, pause: float) -> None:
        """Until the pause is over, or there is something to look at: a drive has ended, a process died, the drain begins, or,
        with room for more runs, the store was changed. Mere hints bring a look every 50 ms at most."""
        if pause <= 0:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        listens = len(self._drives) < self._limit and self._failing_since is None  # a store that is away has no news
        await self._hints.wait(self._stirred, pause, listen=listens)
        while not self._urgent and (left := began + min(pause, _BETWEEN_LOOKS) - loop.time()) > 0:
            self._stirred.clear()
            await self._hints.wait(self._stirred, left, listen=False)

    # -- driving ---------------------------------------------------------------------------------------------------

    async def _drive(self, claimed: Claimed, *, held: bool) -> None:
        """Carries on one run; how that ended is the run's affair, not the worker's. `held`: it tries a run that others failed
        on."""
        call = HostCall(claimed.run_id, {"op": "drive"}, due=claimed.now, claimed=claimed)
        try:
            await self._made(call, held)
        finally:
            if not call.drove:
                await self._hand_back(claimed)

    async def _made(self, call: HostCall, held: bool) -> None:
        try:
            await self.engine.make(call)
        except EngineClosed:
            _log.debug("the drive of run %s was ended and its lease given back", call.run_id)
        except LeaseLost:
            _log.warning("run %s went to another worker while this one drove it", call.run_id)
        except DriveLost as error:
            last = error.failures >= self.engine.leasing.max_failures
            _log.warning(
                "%s; it %s", error, "is held until it is released" if last else "waits before it is driven again"
            )
        except FlowError as error:
            drifted = isinstance(error, NonDeterministic)
            until = "; it is held until it is released" if drifted else ""
            _log.warning("the drive of run %s failed: %s%s", call.run_id, told(error), until)
            # A try of a held run backs off by this memory: its row may not name this build yet, and is asked for no time (R43).
            if not call.drove or isinstance(error, _UNKNOWN) or (held and not drifted):
                self._shun(call.run_id)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - no step may end a worker
            _log.error("the drive of run %s ended by %s", call.run_id, type(error).__name__)
            self._shun(call.run_id)
        else:
            self._shunned.forget(call.run_id)

    async def _hand_back(self, claimed: Claimed) -> None:
        """A run that was claimed and never driven: its lease ends now, if it was not given back already. Cut off meanwhile it
        asks once more, which does no harm."""
        try:
            await self._give_back(claimed)
        except asyncio.CancelledError:
            await self._give_back(claimed)
            raise

    async def _give_back(self, claimed: Claimed) -> None:
        try:
            await self.engine.store.renew(self.engine.owner, [(claimed.run_id, claimed.epoch)], ttl_ns=0)
        except StoreError as error:
            _log.warning("the lease of run %s will have to expire: %s", claimed.run_id, told(error))

    def _shun(self, run_id: str) -> None:
        """Nothing on the run says that it failed here, so it is this worker that must not take it again at once."""
        seconds = self._shunned.shun(run_id, asyncio.get_running_loop().time())
        _log.warning("run %s is left to other workers for %g s", run_id, seconds)

    def _drove(self, task: asyncio.Task[None]) -> None:
        self._drives.pop(task, None)
        self._stirred.set()
        if self._more or not self._drives:
            self._urgent = True

    # -- the end ---------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Attempts that run may settle; then the leases go back (R2)."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._grace
        if self._drives:
            _log.info("worker drains: %d runs, for at most %g s", len(self._drives), self._grace)
        hurried = asyncio.ensure_future(self._hurried.wait())
        while self._drives and not self._hurried.is_set() and (left := until - loop.time()) > 0:
            self._drain_drives()
            waiting = {hurried, *self._drives}
            await asyncio.wait(waiting, timeout=min(left, _BETWEEN_LOOKS), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        await self._cut_off(_LAST_ACT if self._hurried.is_set() else None)
        await self.engine.keeper.end_thread(wait=not self._hurried.is_set())

    def _drain_drives(self) -> None:
        """Those that began meanwhile, too. A drive that somebody else waits for is theirs as well and goes on."""
        for active in self.engine.active_drives:
            if active.opening.worker and active.waiters == 1 and not active.drive.draining:
                active.drain()

    async def _cut_off(self, seconds: float | None) -> None:
        if self._drives:
            _log.warning("%d runs are cut off; other workers go on with them", len(self._drives))
        cut = list(self._drives)
        if cut:
            await asyncio.sleep(0)  # one that was cancelled before its first line would give nothing back
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=seconds)
        ending = [active.task for active in self.engine.active_drives if active.ending and active.task is not None]
        if ending:
            await asyncio.wait(ending, timeout=seconds)


def _wanted_by(engine: FlowEngine) -> Wanted:
    """The workflows and builds an engine knows. A runtime that is no `Flow` does not tell its workflows; those it turns out
    not to know are left to others for a while."""
    runtime, builds = engine.runtime, engine.builds
    workflows = list(runtime.workflows) if isinstance(runtime, Flow) else None
    if builds is None:
        return Wanted(workflows, [None])
    return Wanted(workflows, [builds.current, *builds.compatible, *([None] if builds.accept_unpinned else [])])


def _at_least_one(name: str, value: int) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value


def _seconds(name: str, value: timedelta, least: float) -> float:
    if not isinstance(value, timedelta):
        raise TypeError(f"{name} must be a timedelta, not {type(value).__name__}")
    seconds = value.total_seconds()
    if seconds < least:
        raise ValueError(f"{name} must be at least {least:g} s, not {seconds:g} s")
    return seconds
