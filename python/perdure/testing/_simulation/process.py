"""One simulated process: an engine, the code it runs, and the worker and the scheduler beside it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import orjson

from perdure.builds import RuntimeBuildCompatibility
from perdure.commands import RawCommand, RuntimeCommand
from perdure.engine import FlowEngine
from perdure.errors import FlowError, StepNotRegistered, StoreError
from perdure.flow import StepInvocation, WorkflowInvocation
from perdure.kernel import KernelName, Reads
from perdure.queues import TaskWorker
from perdure.routing import RuntimeBuildTaskRouter
from perdure.scheduler import FlowScheduler
from perdure.step import StepPlan
from perdure.task_kinds import FlowTask
from perdure.testing._simulation.audit import Auditor, Party
from perdure.testing._simulation.chance import Chance, ProcessSettings, Settings
from perdure.testing._simulation.client import Client
from perdure.testing._simulation.drawing import behaviour
from perdure.testing._simulation.lanes import Lane, LaneLoop
from perdure.testing._simulation.post import Post, PostClient
from perdure.testing._simulation.programs import INLINE, LIMIT_MS, LIMITED, Plan
from perdure.testing._simulation.way import Hints
from perdure.worker import FlowWorker

__all__ = ["Process", "World"]


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
    hints: Hints
    post: Post | None
    post_hints: Hints
    builds: tuple[str, ...]
    """Those that runs are pinned to."""
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
        if step_name == LIMITED and self._process.settings.lacks:
            raise StepNotRegistered(step_name)
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
    return re.sub(rb'"input":(\d+)', rb'"input":-\1', command)


class Process:
    """A process from its start to its end; `restart` of the world makes the next one in its place."""

    def __init__(self, world: World, settings: ProcessSettings, name: str) -> None:
        self.world = world
        self.settings = settings
        self.name = name
        self.lane: Lane = world.loop.new_lane(name, settings.skew_ns)
        self.closing = False
        self.closed = False
        self.calls: list[asyncio.Task[None]] = []
        self.party = Party(
            name,
            "",
            settings.lease,
            settings.concurrency,
            settings.commit == "each",
            lambda: self.lane.dead or self.closed,
            self._answer,
            self.supports,
            settings.build,
        )
        self.client = Client(world.auditor, world.chance, world.loop, self, world.hints, settings.lag_ns)
        self.engine = self._make_engine()
        self.party.owner = self.engine.owner
        world.auditor.parties.append(self.party)
        self.post = self._make_post()
        self.worker = self._make_worker()
        self.task_worker = self._make_task_worker()
        self.scheduler = self._make_scheduler()
        self._programs = [
            self.spawn(self._run, program) for program in (self.worker, self.task_worker, self.scheduler) if program
        ]

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
            self.client,
            kernel=world.kernel,
            max_replay_iterations=world.settings.limit,
            concurrency=own.concurrency,
            max_event_bytes=world.settings.max_event_bytes,
            commit=own.commit,
            record_tracebacks=False,
            builds=RuntimeBuildCompatibility(own.build, self._compatible, accept_unpinned=True) if own.build else None,
            store_patience=timedelta(seconds=own.patience_s),
            cancel_grace=timedelta(milliseconds=own.grace_ms),
            lease=own.lease,
            lease_ttl=timedelta(milliseconds=world.settings.ttl_ms),
            poll_interval=timedelta(milliseconds=own.poll_ms),
            max_failures=world.settings.max_failures,
            random=Random(f"{world.seed}/{self.name}"),
        )

    @property
    def _compatible(self) -> tuple[str, ...]:
        return self.world.builds if self.settings.compatible else ()

    def supports(self, build: str | None) -> bool:
        """Whether its code may drive a run pinned to this build."""
        return self.engine.supports_runtime_build(build)

    def _make_post(self) -> PostClient | None:
        world = self.world
        if world.post is None:
            return None
        lag_ns = self.settings.lag_ns
        return PostClient(world.auditor, world.chance, world.loop, self, world.post, world.post_hints, lag_ns)

    def _make_worker(self) -> FlowWorker | None:
        own = self.settings
        if own.role != "runs":
            return None
        return FlowWorker(
            self.engine,
            concurrency=own.at_once,
            claim_batch=own.batch,
            poll=timedelta(seconds=own.look_s),
            drain_timeout=timedelta(milliseconds=own.drain_ms),
        )

    def _make_task_worker(self) -> TaskWorker | None:
        own = self.settings
        if own.role != "tasks" or self.post is None:
            return None
        return TaskWorker(
            self.engine,
            self.post,
            concurrency=own.at_once,
            interval=timedelta(seconds=own.look_s),
            drain=timedelta(milliseconds=own.drain_ms),
            random=Random(f"{self.world.seed}/{self.name}/tasks"),
        )

    def _make_scheduler(self) -> FlowScheduler | None:
        own, queue = self.settings, self.world.settings.queue
        if not own.schedules or self.post is None or queue is None:
            return None
        return FlowScheduler(
            self.engine,
            RuntimeBuildTaskRouter(dict.fromkeys(self.world.builds, self.post), self.post),
            redispatch_after=timedelta(seconds=queue.redispatch_s),
            interval=timedelta(seconds=own.look_s),
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
        how = self.world.random.random()
        if how < 0.2:
            await self.engine.close()  # whoever works with it finds it closed
        for program in (self.scheduler, self.task_worker, self.worker):
            if program is not None:
                program.stop()
        if how > 0.8 and self.worker is not None:
            self.worker.stop()  # the second signal
        if self._programs:
            await asyncio.wait(self._programs)
        await self.engine.close()
        self.closed = True
        self.note("is closed")
        self.world.auditor.closed(self.party)

    # -- what it does by itself ------------------------------------------------------------------------------------

    async def _run(self, program: FlowWorker | TaskWorker | FlowScheduler) -> None:
        try:
            if isinstance(program, FlowWorker):
                await program.run_forever(signals=False)
            else:
                await program.run_forever()
        except StoreError as error:
            self.note(f"ends: {error.code}")
            self.crash()
        else:
            if not self.closing:
                self.world.auditor.fail("a call", f"{self.name}: {type(program).__name__} ended by itself")

    async def send(self, task: FlowTask) -> None:
        """A host sends a task of its own."""
        assert self.post is not None
        try:
            await self.post.dispatch(task)
        except StoreError as error:
            self.note(f"could not send {task.type}: {error.code}")
