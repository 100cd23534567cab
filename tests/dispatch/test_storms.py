"""Seeded storms in virtual time: schedulers, queues and workers of which some die at any call; tasks that are lost, delayed and
delivered twice. Every run ends once, nothing spins, and the queue is empty at the end (R44-R46, W18-W20).

What dies raises from every call of its store and queue from then on, so it gives nothing back, as a killed process would not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any, cast

import pytest
from scenarios.kit import stored

from perdure import (
    Flow,
    FlowEngine,
    FlowScheduler,
    FlowTask,
    FlowTaskQueue,
    MemoryEventStore,
    MemoryTaskQueue,
    ResumeHook,
    RetryPolicy,
    RuntimeCommand,
    TaskWorker,
    WorkflowContext,
)
from perdure.instant import parse_instant
from perdure.stores.base import FlowEventStore, Runnable, RunnablePage
from perdure.stores.memory_queue import MemoryTaskRows
from perdure.stores.task_rows import NewTask, TaskRow
from perdure.tasks import handle
from perdure.testing.virtual_time import VirtualTimeLoop, run

START = parse_instant("2026-01-01T00:00:00Z")
TTL = timedelta(seconds=10)
RUNS = 8
MOST_TASKS = 1000
SEEDS = range(int(os.environ.get("STORM_SEEDS", "2")))
LONGEST = timedelta(minutes=60)


class Killed(BaseException):
    """The process is gone: no line of its code runs to an effect any more."""


@dataclass
class Mortal:
    """A process's way to a store or queue. It lives for so many calls."""

    inner: Any
    life: list[int]  # calls left, shared by all ways of the process

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            if self.life[0] <= 0:
                raise Killed
            self.life[0] -= 1
            return await found(*arguments, **options)

        return call


@dataclass
class Storm:
    """A store, what is due to happen to it, and all that was handled."""

    loop: VirtualTimeLoop
    random: Random
    store: MemoryEventStore = field(init=False)
    queue: MemoryTaskQueue = field(init=False)
    handled: int = 0
    deaths: int = 0
    in_hand: dict[str | None, list[int]] = field(default_factory=dict)  # run → the life of who drives it
    twice: bool = False  # two of the living had one run in hand
    running: list[asyncio.Task[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryEventStore(self.loop.clock_ns)
        self.queue = MemoryTaskQueue(clock=self.loop.clock_ns, lease_ttl=TTL, max_attempts=1000)

    def flow(self) -> Flow:
        flow, random = Flow(), self.random

        @flow.step(retry=RetryPolicy.exponential(50, timedelta(seconds=1), timedelta(minutes=5)))
        async def work() -> int:
            await asyncio.sleep(random.expovariate(0.2))
            if random.random() < 0.3:
                raise ConnectionError("away")
            return 1

        @flow.workflow("stormy", version="1")
        def stormy(ctx: WorkflowContext) -> RuntimeCommand:
            for number in range(2):
                members = [ctx.step(f"a{number}", work), ctx.step(f"b{number}", work)]
                if not (ctx.step_completed(f"a{number}") and ctx.step_completed(f"b{number}")):
                    return ctx.schedule_all([*members, ctx.wait_for(f"w{number}", timedelta(minutes=10))])
                if not ctx.wait_completed(f"w{number}"):
                    return ctx.wait_for(f"w{number}", timedelta(minutes=10))
            if ctx.hook_payload("h") is None:
                return ctx.create_hook("h", f"canary-{ctx.run_id}")
            return ctx.complete(ctx.hook_payload("h"))

        return flow

    def process(self, life: int) -> tuple[FlowEngine, FlowTaskQueue]:
        """An engine and a way to the queue that end after so many calls."""
        left = [life]
        engine = FlowEngine(
            self.flow(), cast(FlowEventStore, Mortal(self.store, left)), lease_ttl=TTL, random=self.random
        )
        return engine, cast(FlowTaskQueue, Mortal(self.queue, left))

    def start(self, make: Callable[[FlowEngine, FlowTaskQueue], Coroutine[Any, Any, object]]) -> None:
        """Runs a process, and after its death another one in its place, a little later."""

        async def forever() -> None:
            while True:
                engine, queue = self.process(self.random.randint(5, 200))
                with suppress(Killed):
                    await make(engine, queue)
                self.deaths += 1
                await asyncio.sleep(self.random.uniform(0, 20))

        self.running.append(asyncio.create_task(forever()))

    async def ends(self) -> None:
        """Until all runs have ended; hooks are answered as they appear, each answer twice."""
        deadline = self.loop.time() + LONGEST.total_seconds()
        engine = FlowEngine(Flow(), self.store)
        answered: set[str] = set()
        while (await engine.run_summary()).completed_runs < RUNS:
            assert self.loop.time() < deadline, await self.state()
            assert self.handled < MOST_TASKS, await self.state()
            assert not self.twice
            for hook in await self.store.list_active_hooks():
                if hook.run_id not in answered:
                    answered.add(hook.run_id)
                    for _ in range(2):
                        await self.queue.enqueue(ResumeHook(hook.run_id, hook.hook_id, "yes"))
            await asyncio.sleep(10)

    async def state(self) -> str:
        page = await self.store.runs()
        states = [(row.run_id, row.status, await self.store.lease(row.run_id)) for row in page.runs if not row.terminal]
        return f"{self.handled} tasks, at {self.loop.time():.0f} s: {states}"

    async def check(self) -> None:
        for task in self.running:
            task.cancel()
        for number in range(RUNS):
            told = await stored(self.store, f"r{number}")
            assert told[-1] == "run_completed"
            for name in ("a0", "b0", "a1", "b1"):
                assert told.count(f"step_completed {name}") == 1
            for name in ("wait_completed w0", "wait_completed w1", "hook_received h"):
                assert told.count(name) == 1


def in_virtual_time(seed: int, test: Callable[[Storm], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        loop.set_exception_handler(lambda *_: None)  # what the dead leave behind
        storm = Storm(loop, Random(f"storm {seed}"))
        async with FlowEngine(storm.flow(), storm.store) as engine:
            for number in range(RUNS):
                await engine.submit("stormy", run_id=f"r{number}")
        await test(storm)

    run(main, START)


def own_queue(seed: int) -> None:
    """Schedulers and workers that die, over our queue."""

    async def test(storm: Storm) -> None:
        class Counting(TaskWorker):
            async def _handle(self, task: FlowTask) -> Any:
                storm.handled += 1
                if not task.drives:
                    return await super()._handle(task)
                life = cast(Mortal, self._engine.store).life
                storm.twice |= storm.in_hand.get(task.target, [0])[0] > 0
                storm.in_hand[task.target] = life
                try:
                    return await super()._handle(task)
                finally:
                    if storm.in_hand.get(task.target) is life:
                        del storm.in_hand[task.target]

        def schedule(engine: FlowEngine, queue: FlowTaskQueue) -> Coroutine[Any, Any, None]:
            return FlowScheduler(engine, queue, interval=timedelta(seconds=10)).run_forever()

        def work(engine: FlowEngine, queue: FlowTaskQueue) -> Coroutine[Any, Any, None]:
            return Counting(
                engine, queue, concurrency=3, interval=timedelta(seconds=20), random=storm.random
            ).run_forever()

        for _ in range(2):
            storm.start(schedule)
        for _ in range(3):
            storm.start(work)
        await storm.ends()
        for _ in range(200):  # what is left comes back, and finds its runs ended
            if await storm.queue.len() + await storm.queue.inflight_len() == 0:
                break
            await asyncio.sleep(30)
        assert (await storm.queue.len(), await storm.queue.inflight_len()) == (0, 0)
        assert await storm.queue.dead_letter_len() == 0
        assert storm.deaths > 5
        await storm.check()

    in_virtual_time(seed, test)


def foreign_queue(seed: int) -> None:
    """A host's queue that loses, delays and doubles."""

    async def test(storm: Storm) -> None:
        random = storm.random
        engines = [storm.process(10**9)[0] for _ in range(3)]

        async def deliver(task: FlowTask) -> None:
            await asyncio.sleep(random.choice((0.0, random.expovariate(0.1), random.uniform(0, 200))))
            storm.handled += 1
            handling = asyncio.ensure_future(handle(random.choice(engines), task))
            if random.random() < 0.1:  # the worker is told to stop in the middle
                await asyncio.sleep(random.expovariate(0.3))
                handling.cancel()
            await asyncio.wait([handling])

        class Foreign:
            async def dispatch(self, task: FlowTask) -> None:
                for _ in range(random.choice((0, 0, 1, 1, 2))):
                    storm.running.append(asyncio.create_task(deliver(task)))

        scheduler = FlowScheduler(engines[0], Foreign(), redispatch_after=timedelta(seconds=30))
        storm.running.append(asyncio.create_task(scheduler.run_forever()))

        async def answers() -> None:
            while True:
                task = await storm.queue.dequeue()
                if task is not None:
                    await deliver(task)
                await asyncio.sleep(1)

        storm.running.append(asyncio.create_task(answers()))
        await storm.ends()
        await storm.check()

    in_virtual_time(seed, test)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("storm", [own_queue, foreign_queue])
def test_every_run_ends_once(storm: Callable[[int], None], seed: int) -> None:
    storm(seed)


# each rule taken out is found ----------------------------------------------------------------------------------------


def marks_never_expire(patch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def is_marked(self: FlowScheduler, run: Runnable, moment: int) -> bool:
        return self._marks.get(run.run_id, (0, -1))[1] == run.last_sequence

    patch.setattr(FlowScheduler, "_is_marked", is_marked)
    return foreign_queue


def no_task_for_orphans(patch: pytest.MonkeyPatch) -> Callable[[int], None]:
    real = MemoryEventStore.runnable

    async def runnable(self: MemoryEventStore, now: int, **options: Any) -> RunnablePage:
        page = await real(self, now, **options)
        return replace(page, runs=tuple(run for run in page.runs if run.due_waits or run.due_retries))

    patch.setattr(MemoryEventStore, "runnable", runnable)
    return foreign_queue


def task_leases_never_end(patch: pytest.MonkeyPatch) -> Callable[[int], None]:
    real = MemoryTaskRows.take

    async def take(self: MemoryTaskRows, queue: str, lease_id: str, ttl_ns: int) -> TaskRow | None:
        return await real(self, queue, lease_id, ttl_ns * 10**5)

    patch.setattr(MemoryTaskRows, "take", take)
    return own_queue


def many_drives_per_run(patch: pytest.MonkeyPatch) -> Callable[[int], None]:
    real = MemoryTaskRows.put

    async def put(
        self: MemoryTaskRows, queue: str, tasks: Sequence[NewTask], capacity: int | None
    ) -> list[bool | None]:
        return await real(self, queue, [replace(task, drives=False) for task in tasks], capacity)

    patch.setattr(MemoryTaskRows, "put", put)
    return own_queue


@pytest.mark.parametrize(
    "knock_out", [marks_never_expire, no_task_for_orphans, task_leases_never_end, many_drives_per_run]
)
def test_a_rule_that_is_taken_out_is_found(
    knock_out: Callable[[pytest.MonkeyPatch], Callable[[int], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = knock_out(monkeypatch)
    with pytest.raises(AssertionError):
        all(storm(seed) is None for seed in range(3))
