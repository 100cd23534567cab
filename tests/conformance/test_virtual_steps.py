"""Virtual time and the `def` steps of engines: it stands still while one runs on a thread, and not for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest

from perdure import AsyncContext, Flow, FlowEngine, FlowWorker, RetryPolicy, StepContext, StepFailed, WorkflowCancelled
from perdure.stores import MemoryEventStore
from perdure.testing.virtual_time import StoodStill, VirtualTimeLoop, run
from perdure.threads import StepThreads

START_NS: Final = 10**18
SECOND_NS: Final = 10**9
DAY: Final = timedelta(days=1)
SOON: Final = timedelta(milliseconds=20)
"""Real time for which the clock waits for steps of which the test knows that they hang."""


def one_step(step: Callable[..., Any], **options: Any) -> Flow:
    """A workflow `one` that awaits this step and gives what it gave, or what it failed with."""
    flow = Flow()
    registered = flow.step(retry=RetryPolicy.none(), **options)(step)

    @flow.workflow("one")
    async def one(ctx: AsyncContext) -> object:
        try:
            return await ctx.step(registered)
        except StepFailed as error:
            return str(error)

    return flow


class Times:
    """What a loop's clock shows whenever `note` is called, on whatever thread: seconds since its start."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.seen: list[int] = []

    def note(self) -> None:
        self.seen.append((self.loop.clock_ns() - START_NS) // SECOND_NS)


def test_time_stands_still_while_a_def_step_runs() -> None:
    """The newcomer's case: a step of 0.2 real seconds beside timers of seconds."""

    async def main(loop: VirtualTimeLoop) -> tuple[object, int, int]:
        times = Times(loop)

        def slow() -> str:
            times.note()
            time.sleep(0.2)
            times.note()
            return "done"

        async with FlowEngine(one_step(slow), MemoryEventStore(loop.clock_ns)) as engine:
            under_way = asyncio.create_task(engine.run("one"))
            await asyncio.sleep(1)
            assert under_way.done()
            return (await under_way).output, *times.seen

    assert run(main, START_NS) == ("done", 0, 0)


def test_a_deadline_is_met_by_a_def_step_that_takes_no_virtual_time() -> None:
    flow = Flow()

    @flow.step
    def release_stock() -> str:
        time.sleep(0.05)
        return "released"

    @flow.workflow("deadline")
    async def deadline(ctx: AsyncContext) -> list[str]:
        await ctx.race(ctx.sleep(timedelta(days=7)), ctx.hook(str, id="answer"))
        async with ctx.timeout(timedelta(seconds=1)):
            return [await ctx.step(release_stock), await ctx.step(release_stock)]

    async def main(loop: VirtualTimeLoop) -> object:
        async with FlowEngine(flow, MemoryEventStore(loop.clock_ns)) as engine, FlowWorker(engine, poll=DAY) as worker:
            working = asyncio.create_task(worker.run_forever(signals=False))
            run_id = await engine.submit("deadline")
            await asyncio.sleep(timedelta(days=8).total_seconds())
            snapshot = await engine.snapshot(run_id)
            await worker.drain()
            await working
            return snapshot.output

    assert run(main, START_NS) == ["released", "released"]


def test_retries_of_def_steps_are_made_at_their_virtual_times() -> None:
    async def main(loop: VirtualTimeLoop) -> tuple[object, list[int]]:
        flow, times = Flow(), Times(loop)

        @flow.step(retry=RetryPolicy.fixed(3, timedelta(minutes=10)))
        def flaky(context: StepContext) -> str:
            times.note()
            time.sleep(0.01)
            if context.attempt < 3:
                raise ConnectionError
            return "at last"

        @flow.workflow("flaky")
        async def workflow(ctx: AsyncContext) -> str:
            return await ctx.step(flaky)

        async with FlowEngine(flow, MemoryEventStore(loop.clock_ns)) as engine, FlowWorker(engine, poll=DAY) as worker:
            working = asyncio.create_task(worker.run_forever(signals=False))
            run_id = await engine.submit("flaky")
            await asyncio.sleep(3_600)
            snapshot = await engine.snapshot(run_id)
            await worker.drain()
            await working
            return snapshot.output, times.seen

    output, seen = run(main, START_NS)
    assert output == "at last"
    assert [at // 60 for at in seen] == [0, 10, 20]


def test_many_steps_of_several_engines_hold_the_clock() -> None:
    """Each engine has threads of its own; the clock moves when the last of all is done."""

    async def main(loop: VirtualTimeLoop) -> list[object]:
        together = threading.Barrier(8)

        def meet() -> int:
            together.wait()
            time.sleep(0.01)
            return (loop.clock_ns() - START_NS) // SECOND_NS

        async def one() -> object:
            async with FlowEngine(one_step(meet), MemoryEventStore(loop.clock_ns)) as engine:
                return (await engine.run("one")).output

        alarm = loop.call_later(1, together.abort)
        found = await asyncio.gather(*(one() for _ in range(8)))
        alarm.cancel()
        return list(found)

    assert run(main, START_NS) == [0] * 8


def test_a_time_limit_ends_a_def_step_that_never_returns() -> None:
    released = threading.Event()

    async def main(loop: VirtualTimeLoop) -> tuple[object, int]:
        flow = one_step(released.wait, name="hang", timeout=timedelta(hours=1))
        async with FlowEngine(flow, MemoryEventStore(loop.clock_ns)) as engine:
            snapshot = await engine.run("one")
            before = loop.clock_ns()
            await asyncio.sleep(60)  # the thread still hangs, and time goes on
            return snapshot.output, (before - START_NS) // SECOND_NS

    try:
        output, seconds = run(main, START_NS, step_patience=SOON)
    finally:
        released.set()
    assert "3600" in str(output)
    assert seconds >= 3_600  # it counts from when the function began


def test_a_step_that_hung_and_comes_back_counts_as_ever() -> None:
    """It waits for virtual time to pass, which waits for it; it goes on when the clock waits for it no longer."""

    async def main(loop: VirtualTimeLoop) -> tuple[object, int]:
        def patient() -> str:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(30), loop).result()
            return "slept"

        async with FlowEngine(one_step(patient), MemoryEventStore(loop.clock_ns)) as engine:
            output = (await engine.run("one")).output
            return output, (loop.clock_ns() - START_NS) // SECOND_NS

    output, seconds = run(main, START_NS, step_patience=SOON)
    assert output == "slept"
    assert seconds >= 30  # and more, until the loop heard of it


def test_after_one_step_hung_others_still_hold_the_clock() -> None:
    released = threading.Event()

    async def main(loop: VirtualTimeLoop) -> list[int]:
        times = Times(loop)

        def slow() -> None:
            time.sleep(0.05)
            times.note()

        async with (
            FlowEngine(one_step(released.wait, name="hang"), MemoryEventStore(loop.clock_ns)) as hanging,
            FlowEngine(one_step(slow), MemoryEventStore(loop.clock_ns)) as engine,
        ):
            under_way = asyncio.create_task(hanging.run("one"))
            await asyncio.sleep(3)
            await engine.run("one")
            assert not under_way.done()
            under_way.cancel()
            with suppress(asyncio.CancelledError):
                await under_way
            return times.seen

    try:
        assert run(main, START_NS, step_patience=timedelta(seconds=2)) == [3]
    finally:
        released.set()


def test_a_step_that_waits_for_its_token_is_cancelled_in_virtual_time() -> None:
    told = threading.Event()

    async def main(loop: VirtualTimeLoop) -> str:
        def wait(context: StepContext) -> None:
            if context.cancelled.wait():
                told.set()

        async with FlowEngine(one_step(wait), MemoryEventStore(loop.clock_ns)) as engine:
            under_way = asyncio.create_task(engine.start("one", run_id="r"))
            await asyncio.sleep(5)
            with suppress(WorkflowCancelled):
                await engine.request_cancellation("r", "no longer wanted")
            await under_way
            return (await engine.snapshot("r")).status

    assert run(main, START_NS, step_patience=SOON) == "cancelled"
    told.wait()


def test_a_step_on_a_loop_that_is_closed_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread raises would be told by `threading.excepthook`."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    begun, released, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    async def main(loop: VirtualTimeLoop) -> None:
        def hang() -> None:
            threads.append(threading.current_thread())
            begun.set()
            released.wait()

        async with FlowEngine(one_step(hang), MemoryEventStore(loop.clock_ns)) as engine:
            under_way = asyncio.create_task(engine.run("one"))
            await asyncio.sleep(1)
            await asyncio.to_thread(begun.wait)
            under_way.cancel()
            with suppress(asyncio.CancelledError):
                await under_way

    run(main, START_NS, step_patience=SOON)
    released.set()
    threads[0].join()
    assert raised == []


def test_the_end_of_a_step_wakes_a_loop_that_waits_for_it() -> None:
    async def main(loop: VirtualTimeLoop) -> int:
        told = asyncio.Event()

        def work() -> None:
            loop.call_soon_threadsafe(told.set)
            time.sleep(0.05)

        StepThreads().submit(work)
        await told.wait()
        await asyncio.sleep(1)
        return loop.clock_ns()

    assert run(main, START_NS, step_patience=DAY) == START_NS + SECOND_NS


def test_what_hangs_with_no_timer_left_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.virtual_time._REAL_PATIENCE_S", 0.01)
    released = threading.Event()

    def hang() -> None:
        released.wait()

    async def main(loop: VirtualTimeLoop) -> None:
        StepThreads().submit(hang)
        await loop.create_future()

    try:
        with pytest.raises(StoodStill, match="nothing can happen any more"):
            run(main, START_NS, step_patience=SOON)
    finally:
        released.set()
