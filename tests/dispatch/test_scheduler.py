"""The scheduler: scenarios 73 and 74, bugs 20 and 31, R46."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from scenarios.kit import Clock

from dispatch.kit import HOUR, Place, Recorder, raised, story_flow
from perdure import (
    DriveRun,
    DueWork,
    Flow,
    FlowScheduler,
    FlowTask,
    FlowTaskDispatcher,
    Instant,
    InvalidWorkerConfiguration,
    QueueBackpressure,
    ResumeScheduledRun,
    RuntimeBuildCompatibility,
    RuntimeBuildRouteNotFound,
    RuntimeCommand,
    StoreUnavailable,
    TaskWorker,
    WorkflowContext,
    WorkflowSpec,
)
from perdure.stores.base import FlowEventStore


async def taken(place: Place) -> list[FlowTask]:
    """What is pending, taken for good."""
    queue, found = place.queue(), list[FlowTask]()
    while (task := await queue.dequeue()) is not None:
        found.append(task)
    return found


def counts(work: DueWork) -> tuple[int, int, int, int]:
    return work.due_waits, work.due_retries, work.enqueued_tasks, work.runnable


# ticks ---------------------------------------------------------------------------------------------------------------


async def test_scenario_73_two_waits_and_a_retry_over_two_runs_are_two_tasks(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        due = place.clock.after(hours=1)
        await engine.start("flow", {"waits": 1, "step": True}, run_id="c")
        await engine.start("flow", {"waits": 1}, run_id="d")
        work = await FlowScheduler(engine, place.queue()).enqueue_due_work(due)
        assert counts(work) == (2, 1, 2, 2)
        assert work.has_due_work
        assert await taken(place) == [ResumeScheduledRun("c", due), ResumeScheduledRun("d", due)]


async def test_scenario_74_nothing_due_is_no_task_and_the_delay_is_the_distance(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        scheduler = FlowScheduler(engine, place.queue())
        assert await scheduler.enqueue_due_work(place.clock.now) == DueWork()
        assert not DueWork().has_due_work
        assert await scheduler.next_wakeup_delay(place.clock.now) is None
        assert await scheduler.next_scheduled_wakeup() is None
        await engine.start("flow", {"hook": True}, run_id="hooked")
        assert await scheduler.next_wakeup_delay(place.clock.now) is None  # hooks never count
        await engine.start("flow", {"waits": 1}, run_id="r")
        work = await scheduler.enqueue_due_work(place.clock.now)
        assert work == DueWork(next_at=place.clock.after(hours=1).ns)
        assert await scheduler.next_wakeup_delay(place.clock.after(minutes=20)) == timedelta(minutes=40)
        assert await scheduler.next_wakeup_delay() == HOUR
        wakeup = await scheduler.next_scheduled_wakeup()
        assert wakeup is not None
        assert (wakeup.run_id, wakeup.subject_id, wakeup.scheduled_at) == ("r", "w0", place.clock.after(hours=1).ns)
        for hours in (1, 2):
            assert await scheduler.next_wakeup_delay(place.clock.after(hours=hours)) == timedelta()
        found = await scheduler.next_wakeup(place.clock.after(hours=2))
        assert found is not None
        assert (found["run_id"], found["due"]) == ("r", True)
        assert await place.queue().is_empty()


async def test_bug_20_one_task_per_run_however_many_wakeups_are_due(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        await engine.start("flow", {"waits": 5, "step": True}, run_id="r")
        place.clock.advance(hours=1)
        scheduler = FlowScheduler(engine, place.queue())
        assert counts(await scheduler.enqueue_due_work()) == (5, 1, 1, 1)
        assert counts(await scheduler.enqueue_due_work()) == (5, 1, 0, 1)  # it is there already
        outcomes = await TaskWorker(engine, place.queue()).run_until_idle()
        assert [len(outcome.resumed_waits) for outcome in outcomes] == [5]
        assert await scheduler.enqueue_due_work() == DueWork()


async def test_a_wakeup_due_at_exactly_now_is_sent_for(place: Place) -> None:
    place.clock.ns += 1
    async with place.engine(story_flow()) as engine:
        await engine.start("flow", {"waits": 1}, run_id="r")
        scheduler, due = FlowScheduler(engine, place.queue()), place.clock.after(hours=1).ns
        place.clock.ns = due - 1
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 0, 0)
        place.clock.ns = due
        assert counts(await scheduler.enqueue_due_work()) == (1, 0, 1, 1)
        (outcome,) = await TaskWorker(engine, place.queue()).run_until_idle()
        assert outcome.resumed_waits == (("r", "w0"),)


async def test_orphans_and_lost_deliveries_are_found(place: Place) -> None:
    """R46: a run that was only created, and one whose task never came, are runnable and get `drive_run`."""
    async with place.engine(story_flow()) as engine:
        await engine.submit("flow", {"waits": 1}, run_id="new")
        await engine.start("flow", {"hook": True}, run_id="hooked")
        await engine.resume_hook("hooked", "h", 1, drive=False)
        scheduler = FlowScheduler(engine, place.queue())
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 2, 2)
        lost = await taken(place)
        assert sorted(lost, key=str) == [DriveRun("hooked"), DriveRun("new")]
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 2, 2)
        await TaskWorker(engine, place.queue()).run_until_idle()
        assert (await engine.snapshot("hooked")).status == "completed"
        assert await scheduler.enqueue_due_work() == DueWork(next_at=place.clock.after(hours=1).ns)


async def test_leased_held_and_backed_off_runs_are_left(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        for run_id in ("failing", "held", "leased"):
            await engine.submit("flow", {"waits": 1}, run_id=run_id)
        assert await place.store.set_hold("held", '{"code":"failing","builds":[]}', expected_sequence=1)
        await place.store.claim("somebody else", 2, ttl_ns=10**10)
        scheduler = FlowScheduler(engine, place.queue())
        assert await scheduler.enqueue_due_work() == DueWork(next_at=place.clock.after(seconds=10).ns)
        assert (
            await scheduler.enqueue_due_work(place.clock.after(hours=9)) == DueWork()
        )  # leases end by the store's clock
        place.clock.advance(seconds=10)
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 2, 2)


async def test_a_tick_looks_at_so_many_runs_and_the_next_goes_on(memory: Place) -> None:
    async with memory.engine(story_flow()) as engine:
        for n in range(7):
            await engine.submit("flow", {"waits": 1}, run_id=f"r{n}")
        scheduler = FlowScheduler(engine, memory.queue(), max_runs=3)
        works = [await scheduler.enqueue_due_work() for _ in range(4)]
        assert [(work.enqueued_tasks, work.more) for work in works] == [(3, True), (3, True), (1, False), (0, True)]
        assert len(await taken(memory)) == 7


async def test_a_bounded_queue_keeps_the_rest_for_later(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        for n in range(5):
            await engine.submit("flow", {"waits": 1}, run_id=f"r{n}")
        queue = place.queue(max_pending=2)
        scheduler, worker = FlowScheduler(engine, queue), TaskWorker(engine, queue)
        for _ in range(2):
            await raised(QueueBackpressure, scheduler.enqueue_due_work())
            assert await queue.len() == 2
            await worker.run_until_idle()
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 1, 1)


# dispatchers of others -----------------------------------------------------------------------------------------------


async def test_a_foreign_dispatcher_is_sent_one_until_it_is_overdue_or_the_run_moves(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        await engine.submit("flow", {"hook": True}, run_id="r")
        foreign = Recorder()
        scheduler = FlowScheduler(engine, foreign, redispatch_after=timedelta(seconds=60))
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 1, 1)
        place.clock.advance(seconds=59)
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 0, 1)
        place.clock.advance(seconds=1)
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 1, 1)  # that one was lost
        await engine.drive("r")
        await engine.resume_hook("r", "h", 1, drive=False)
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 1, 1)  # the run has moved on
        assert foreign.tasks == [DriveRun("r")] * 3
        later = Instant(place.clock.ns + 86_400 * 10**9)
        assert counts(await scheduler.enqueue_due_work(later)) == (0, 0, 1, 1)
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 1, 1)  # a mark of tomorrow hides nothing for a day
        assert counts(await scheduler.enqueue_due_work()) == (0, 0, 0, 1)
        other = FlowScheduler(engine, foreign)
        assert counts(await other.enqueue_due_work()) == (0, 0, 1, 1)  # two schedulers may duplicate


async def test_what_a_dispatcher_raises_leaves_the_tasks_before_it(memory: Place) -> None:
    class Breaking(FlowTaskDispatcher):
        def __init__(self) -> None:
            self.tasks: list[FlowTask] = []

        async def dispatch(self, task: FlowTask) -> None:
            if len(self.tasks) == 1:
                raise ConnectionError("broker gone")
            self.tasks.append(task)

    async with memory.engine(story_flow()) as engine:
        for n in range(3):
            await engine.submit("flow", run_id=f"r{n}")
        dispatcher = Breaking()
        await raised(ConnectionError, FlowScheduler(engine, dispatcher).enqueue_due_work())
        assert dispatcher.tasks == [DriveRun("r0")]


@pytest.mark.parametrize(
    "options",
    [{"redispatch_after": timedelta()}, {"interval": -HOUR}, {"max_runs": 0}, {"dispatcher": object()}],
    ids=lambda options: next(iter(options)),
)
async def test_settings_without_sense_are_refused(memory: Place, options: dict[str, Any]) -> None:
    async with memory.engine(story_flow()) as engine:
        with pytest.raises(InvalidWorkerConfiguration):
            FlowScheduler(engine, options.pop("dispatcher", Recorder()), **options)


# without end ---------------------------------------------------------------------------------------------------------


class GoingClock(Clock):
    def __call__(self) -> int:
        return time.time_ns()


async def until(condition: Any) -> None:
    """Waits for an async condition; the test's own limit bounds it."""
    while not await condition():  # noqa: ASYNC110 - what is waited for is in a store
        await asyncio.sleep(0.01)


async def test_it_runs_until_it_is_stopped_and_wakes_for_wakeups_and_hints(place: Place) -> None:
    """`interval` is long, so that only a wakeup or a hint can be what wakes it."""
    place.clock = GoingClock()
    flow = Flow()

    @flow.workflow("soon", version="1")
    def soon(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.wait_completed("w") else ctx.wait_for("w", timedelta(milliseconds=200))

    async with place.engine(flow) as engine:
        queue = place.queue()
        scheduler = FlowScheduler(engine, queue, interval=HOUR, redispatch_after=HOUR)
        worker = TaskWorker(engine, queue, interval=HOUR)
        running = [asyncio.create_task(scheduler.run_forever()), asyncio.create_task(worker.run_forever())]
        await asyncio.sleep(0.1)  # both are idle now
        for n in range(3):
            await engine.submit("soon", run_id=f"r{n}")

        async def done() -> bool:
            return (await engine.run_summary()).completed_runs == 3

        await until(done)
        scheduler.stop()
        worker.stop()
        await asyncio.gather(*running)
        assert await place.queue().is_empty()


async def test_a_failing_store_is_tried_again(memory: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with memory.engine(story_flow()) as engine:
        await engine.submit("flow", run_id="r")
        store, failures = engine.store, 2

        class Failing:
            async def runnable(self, *args: Any, **options: Any) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise StoreUnavailable("away")
                return await store.runnable(*args, **options)

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        engine._store = cast(FlowEventStore, Failing())
        foreign = Recorder()
        scheduler = FlowScheduler(engine, foreign)
        with caplog.at_level(logging.WARNING, "perdure"):
            running = asyncio.create_task(scheduler.run_forever())

            async def sent() -> bool:
                return bool(foreign.tasks)

            await until(sent)
            scheduler.stop()
            await running
        assert "the scheduler cannot send all tasks, and this is tried again: store_unavailable: " in caplog.text
        assert caplog.text.count("the scheduler sends all tasks again, after ") == 1


async def test_a_missing_route_ends_it(memory: Place) -> None:
    spec = replace(WorkflowSpec.python("flow", "1"), runtime_build_id="v1")
    async with memory.engine(story_flow(), builds=RuntimeBuildCompatibility("v1")) as engine:
        await engine.submit(spec, run_id="r")
        refused = await raised(RuntimeBuildRouteNotFound, FlowScheduler(engine, memory.queue()).run_forever())
        assert refused.required_build_id == "v1"


async def test_an_engine_that_is_closed_ends_it(memory: Place) -> None:
    engine = memory.engine(story_flow())
    running = asyncio.create_task(
        FlowScheduler(engine, memory.queue(), interval=timedelta(milliseconds=10)).run_forever()
    )
    await asyncio.sleep(0.01)
    await engine.close()
    await running


async def test_a_stop_does_not_wait_for_a_slow_dispatcher(memory: Place) -> None:
    sending = asyncio.Event()

    class Slow:
        async def dispatch(self, task: FlowTask) -> None:
            sending.set()
            await asyncio.sleep(3600)

    async with memory.engine(story_flow()) as engine:
        await engine.submit("flow", run_id="r")
        scheduler = FlowScheduler(engine, Slow())
        running = asyncio.create_task(scheduler.run_forever())
        await sending.wait()
        scheduler.stop()
        await running


async def test_a_dispatcher_that_fails_on_the_way_is_not_sent_all_again(memory: Place) -> None:
    foreign, sent = Recorder(), list[str | None]()

    class Failing:
        async def dispatch(self, task: FlowTask) -> None:
            if len(sent) == 450:
                raise ConnectionError("full")
            sent.append(task.target)
            await foreign.dispatch(task)

    async with memory.engine(story_flow()) as engine:
        for number in range(451):
            await engine.submit("flow", run_id=f"r{number:03}")
        scheduler = FlowScheduler(engine, Failing())
        await raised(ConnectionError, scheduler.enqueue_due_work())
        sent.clear()
        await scheduler.enqueue_due_work()
        assert sent == [f"r{number:03}" for number in range(400, 451)]
