"""One simulated process: an engine, the code it runs, and a stand-in of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final

import orjson

from perdure.builds import RuntimeBuildCompatibility
from perdure.commands import RawCommand, RuntimeCommand
from perdure.engine import FlowEngine
from perdure.errors import EngineClosed, FlowError, StoreError
from perdure.flow import StepInvocation, WorkflowInvocation
from perdure.kernel import KernelName, Reads
from perdure.step import StepPlan
from perdure.stores.base import Claimed
from perdure.testing._simulation.audit import Auditor, Party
from perdure.testing._simulation.chance import Chance, ProcessSettings, Settings
from perdure.testing._simulation.client import Client
from perdure.testing._simulation.drawing import behaviour
from perdure.testing._simulation.lanes import Lane, LaneLoop
from perdure.testing._simulation.programs import INLINE, LIMIT_MS, LIMITED, Plan

__all__ = ["Process", "World"]

_NS: Final = 1_000_000_000
_IDLE_S: Final = (2.0, 10.0, 30.0)
_CLAIMED_AT_ONCE: Final = 2


@dataclass(slots=True)
class World:
    """What all processes share."""

    seed: int
    settings: Settings
    loop: LaneLoop
    auditor: Auditor
    chance: Chance
    random: Random
    plans: dict[str, Plan]
    kernel: KernelName
    note: Callable[[str, str], None]
    restart: Callable[[Process], None]
    race: Callable[[str], None]
    dead_owners: set[str] = field(default_factory=set)


class Code:
    """The `FlowRuntime` of one process: plans from the seed, steps that the auditor watches."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def run_workflow(self, invocation: WorkflowInvocation) -> RuntimeCommand:
        command = ask(self._world.plans[invocation.spec.name], invocation.reads)
        return RawCommand(_drifted(command) if self._process.settings.drifts else command)

    def plan_step(self, step_name: str) -> StepPlan:
        return StepPlan("inline" if step_name == INLINE else "async", LIMIT_MS if step_name == LIMITED else None)

    def run_step(self, invocation: StepInvocation) -> object:
        if invocation.step_name == INLINE:
            return self._begin(invocation, lambda: False)
        return self._run(invocation)

    async def _run(self, invocation: StepInvocation) -> object:
        task = asyncio.current_task()
        assert task is not None
        key = (invocation.run_id, invocation.step_id, invocation.attempt)
        ended = False
        self._launch(key, lambda: task.cancelling() > 0 or invocation.context.cancelled.is_set())
        try:
            does = behaviour(self._world.seed, *key)
            try:
                await asyncio.sleep(does.ms / 1000)
            except asyncio.CancelledError:
                await asyncio.sleep(does.lingers_ms / 1000)
                raise
            ended = True
            return does.end(invocation.step_id, invocation.attempt)
        finally:
            self._end(key, ended)

    def _begin(self, invocation: StepInvocation, told: Callable[[], bool]) -> object:
        key = (invocation.run_id, invocation.step_id, invocation.attempt)
        self._launch(key, told)
        try:
            return behaviour(self._world.seed, *key).end(invocation.step_id, invocation.attempt)
        finally:
            self._end(key, True)

    def _launch(self, key: tuple[str, str, int], told: Callable[[], bool]) -> None:
        self._process.note(f"runs {key[0]} {key[1]} attempt {key[2]}")
        self._world.auditor.launched(self._process.party, key, told)

    def _end(self, key: tuple[str, str, int], with_outcome: bool) -> None:
        if not self._process.party.gone():
            self._process.note(f"{'ended' if with_outcome else 'let go'} {key[0]} {key[1]} attempt {key[2]}")
            self._world.auditor.ended(self._process.party, key, with_outcome=with_outcome)


def ask(plan: Plan, reads: Reads) -> bytes:
    """The plan's command, as JSON."""
    return orjson.dumps(plan.ask(reads))


def _drifted(command: bytes) -> bytes:
    """The same command by other code: steps get another input."""
    return command.replace(b'"input":1,', b'"input":"1 of another build",')


class Process:
    """A process from its start to its end; `restart` of the world makes the next one of these settings."""

    def __init__(self, world: World, settings: ProcessSettings, name: str) -> None:
        self.world = world
        self.settings = settings
        self.name = name
        self.lane: Lane = world.loop.new_lane(name)
        self.closing = False
        self.closed = False
        self.calls: list[asyncio.Task[None]] = []
        self._idle = world.random.choice(_IDLE_S)
        self.party = Party(
            name,
            "",
            settings.lease,
            settings.concurrency,
            settings.commit == "each",
            lambda: self.lane.dead or self.closed,
            self._answer,
        )
        self.engine = self._make_engine()
        self.party.owner = self.engine.owner
        world.auditor.parties.append(self.party)
        self._worker = self.spawn(self._work) if settings.works else None

    @property
    def alive(self) -> bool:
        """Whether calls can be made on it."""
        return not (self.lane.dead or self.closing)

    def note(self, text: str) -> None:
        self.world.note(self.name, text)

    def race(self, run_id: str) -> None:
        self.world.race(run_id)

    def _answer(self, run: Reads) -> bytes | None:
        if run.last_sequence == 0:
            return None
        try:
            command = ask(self.world.plans[run.workflow[0]], run)
        except ValueError:
            return None
        return _drifted(command) if self.settings.drifts else command

    def _make_engine(self) -> FlowEngine:
        world, own = self.world, self.settings
        return FlowEngine(
            Code(self),
            Client(world.auditor, world.chance, world.loop, self),
            kernel=world.kernel,
            max_replay_iterations=world.settings.limit,
            concurrency=own.concurrency,
            max_event_bytes=world.settings.max_event_bytes,
            commit=own.commit,
            record_tracebacks=False,
            builds=RuntimeBuildCompatibility(own.build, accept_unpinned=True) if own.build is not None else None,
            store_patience=timedelta(seconds=own.patience_s),
            cancel_grace=timedelta(milliseconds=own.grace_ms),
            lease=own.lease,
            lease_ttl=timedelta(milliseconds=world.settings.ttl_ms),
            poll_interval=timedelta(milliseconds=own.poll_ms),
            max_failures=world.settings.max_failures,
            random=Random(f"{world.seed}/{self.name}"),
        )

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *given: object) -> asyncio.Task[None]:
        """A task of this process; what it raises, and nobody expects, is a finding."""
        return self.world.loop.spawn(self.lane, self._guarded(work, *given))

    async def _guarded(self, work: Callable[..., Coroutine[Any, Any, None]], *given: object) -> None:
        try:
            await work(*given)
        except FlowError as error:
            self.note(f"unexpected {error.code}")
            self.world.auditor.fail("a call", f"{self.name}: {type(error).__name__}: {error}")
        except Exception as error:  # whatever it is, it is no answer of the contract
            if self.world.auditor.broken is None:
                self.world.auditor.fail("a call", f"{self.name} raised {error!r}")
            raise

    # -- ends ------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """What a killed process leaves: nothing."""
        if not self.lane.dead:
            self.world.loop.kill(self.lane)
            if self.world.settings.deaths_show:
                self.world.dead_owners.add(self.party.owner)
            self.world.restart(self)

    async def close(self) -> None:
        """A process that ends in order: its leases go back as its last act."""
        self.note("closes")
        self.closing = True
        if self._worker is not None:
            self._worker.cancel()
        await self.engine.close()
        self.closed = True
        self.note("is closed")
        self.world.auditor.closed(self.party)

    # -- the worker ------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        client, world = self.engine.store, self.world
        ttl_ns = world.settings.ttl_ms * 1_000_000
        held_at = world.loop.time()
        while not self.closing:
            try:
                claimed = await client.claim(self.party.owner, _CLAIMED_AT_ONCE, ttl_ns=ttl_ns)
                if self.settings.build is not None and not claimed and world.loop.time() >= held_at:
                    held_at = world.loop.time() + 30
                    build = self.settings.build
                    claimed = await client.claim_held(self.party.owner, _CLAIMED_AT_ONCE, build=build, ttl_ns=ttl_ns)
                first = None if claimed else await client.next_claim()
            except StoreError:
                await asyncio.sleep(0.5)
                continue
            for claim in claimed:
                self.spawn(self._drive, claim)
            if not claimed:
                now = client.clock()
                pause = self._idle if first is None else min(self._idle, max(0.05, (first * 1_000 - now) / _NS))
                await asyncio.sleep(pause)

    async def _drive(self, claim: Claimed) -> None:
        self.party.undriven.discard(claim.run_id)
        try:
            await self.engine.drive_claimed(claim)
        except EngineClosed:
            self.party.undriven.add(claim.run_id)
        except FlowError as error:
            self.note(f"drive of {claim.run_id}: {error.code}")
