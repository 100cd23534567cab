"""The worker of a queue: scenario 76, heartbeats, draining, and what it survives (R44, R45, spec 08 §8.4)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from scenarios.kit import one_workflow, stored

from dispatch.kit import HOUR, Place, Queue, raised, story_flow
from perdure import (
    DriveRun,
    Flow,
    FlowTask,
    InvalidWorkerConfiguration,
    ResumeHook,
    ResumeWait,
    RuntimeCommand,
    StoreUnavailable,
    TaskLeaseLost,
    TaskWorker,
    WorkflowContext,
)
from perdure.tasks import Ack, DeadLetter, Nack, TaskOutcome, backoff_ns

SECOND = timedelta(seconds=1)


class Always(Random):
    """The longest back-off, so that a test knows it."""

    def random(self) -> float:
        return 1.0


def slow_flow() -> tuple[Flow, asyncio.Event, asyncio.Event]:
    """A step that says when it runs and ends when it is let."""
    flow, runs, gate = Flow(), asyncio.Event(), asyncio.Event()

    @flow.step
    async def slow() -> int:
        runs.set()
        await gate.wait()
        return 1

    @flow.workflow("slow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(1) if ctx.step_completed("s") else ctx.schedule_step("s", slow)

    return flow, runs, gate


async def sizes(queue: Queue) -> tuple[int, int, int]:
    return await queue.len(), await queue.inflight_len(), await queue.dead_letter_len()


async def given_back(place: Place) -> None:
    """Until the run's lease is: it is the last act of a drive that was cut off."""
    while (await place.store.lease("r")).claim_at != 0:  # noqa: ASYNC110 - the store says when
        await asyncio.sleep(0.01)


async def test_a_task_is_done_and_gone(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        await engine.submit("flow", {"hook": True}, run_id="r")
        queue = place.queue()
        worker = TaskWorker(engine, queue)
        assert await worker.run_once() is None
        for task in (DriveRun("r"), ResumeHook("r", "h", 1)):
            await queue.enqueue(task)
        outcomes = await worker.run_until_idle()
        assert [outcome.resumed_hook for outcome in outcomes] == [None, ("r", "h")]
        assert await sizes(queue) == (0, 0, 0)
        assert (await engine.snapshot("r")).status == "completed"


async def test_idle_work_can_be_limited(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        queue = place.queue()
        await queue.enqueue_many([DriveRun(f"r{n}") for n in range(5)])
        assert len(await TaskWorker(engine, queue).run_until_idle(limit=2)) == 2
        assert await queue.len() == 3


async def test_scenario_76_a_task_that_failed_here_succeeds_with_another_worker(place: Place) -> None:
    """As amended by R44: it comes back by itself, after a back-off."""
    async with place.engine(story_flow()) as engine:
        await engine.submit("flow", {"hook": True}, run_id="r")
    queue = place.queue()
    await queue.enqueue(DriveRun("r"))
    async with place.engine(Flow()) as stranger:
        worker = TaskWorker(stranger, queue, random=Always())
        for nacks in range(3):
            outcome = await worker.run_once()
            assert outcome is not None
            assert outcome.disposition == Nack("workflow_not_registered", counted=False)
            assert await sizes(queue) == (1, 0, 0)
            assert await worker.run_once() is None
            place.clock.advance(seconds=2**nacks)
    async with place.engine(story_flow()) as engine:
        outcome = await TaskWorker(engine, queue).run_once()
        assert outcome is not None
        assert outcome.disposition == Ack()
    assert await sizes(queue) == (0, 0, 0)
    assert (await stored(place.store, "r"))[-1] == "hook_created h"


async def test_a_worker_that_died_leaves_its_task_to_another(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        await engine.submit("flow", {"hook": True}, run_id="r")
        queue = place.queue(lease_ttl=SECOND)
        await queue.enqueue(DriveRun("r"))
        await queue.lease()  # and its worker is gone
        worker = TaskWorker(engine, queue)
        assert await worker.run_once() is None
        place.clock.advance(seconds=1)
        assert (await worker.run_once()) == TaskOutcome(DriveRun("r"), ("r",))


async def test_a_task_refused_for_good_is_set_aside_with_the_reason(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        await engine.start("flow", {"hook": True, "waits": 1}, run_id="r")
        await engine.resume_hook("r", "h", 1)
        queue = place.queue()
        await queue.enqueue(ResumeHook("r", "h", {"secret": 1}))
        outcome = await TaskWorker(engine, queue).run_once()
        assert outcome is not None
        assert isinstance(outcome.disposition, DeadLetter)
        (dead,) = await queue.dead_lettered_tasks()
        assert dead.reason == "hook_conflict: hook 'h' of run 'r' was already received with another payload"


async def test_an_early_wait_is_delivered_again_when_it_is_due(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        await engine.start("flow", {"waits": 1}, run_id="r")
        queue = place.queue()
        await queue.enqueue(ResumeWait("r", "w0"))
        worker = TaskWorker(engine, queue)
        await worker.run_until_idle()
        assert await queue.len() == 1
        place.clock.advance(minutes=59)
        assert await worker.run_once() is None
        place.clock.advance(minutes=1, seconds=1)
        (outcome,) = await worker.run_until_idle()
        assert outcome.resumed_waits == (("r", "w0"),)


# heartbeats ----------------------------------------------------------------------------------------------------------


async def test_heartbeats_keep_a_long_task(place: Place) -> None:
    flow, runs, gate = slow_flow()
    async with place.engine(flow) as engine:
        await engine.submit("slow", run_id="r")
        queue = place.queue(lease_ttl=timedelta(seconds=60))
        heartbeat, renewed_at = queue.heartbeat, 0

        async def telling(lease_id: str) -> str:
            nonlocal renewed_at
            asked_at = place.clock.ns
            renewed = await heartbeat(lease_id)
            renewed_at = asked_at
            return renewed

        queue.heartbeat = telling  # type: ignore[method-assign]  # the queue itself, which says when it was asked
        await queue.enqueue(DriveRun("r"))
        working = asyncio.create_task(TaskWorker(engine, queue, heartbeat=timedelta(milliseconds=20)).run_once())
        await runs.wait()
        for _ in range(3):
            place.clock.advance(seconds=50)  # longer than a lease in all
            while renewed_at < place.clock.ns:  # noqa: ASYNC110 - the queue says when
                await asyncio.sleep(0.01)
            assert await sizes(queue) == (0, 1, 0)
            assert await queue.lease() is None
        gate.set()
        assert await working == TaskOutcome(DriveRun("r"), ("r",))
        assert await sizes(queue) == (0, 0, 0)


async def test_a_lease_that_was_lost_ends_the_handling(place: Place) -> None:
    flow, runs, gate = slow_flow()
    async with place.engine(flow) as engine:
        await engine.submit("slow", run_id="r")
        queue = place.queue()
        await queue.enqueue(DriveRun("r"))
        working = asyncio.create_task(TaskWorker(engine, queue, heartbeat=timedelta(milliseconds=20)).run_once())
        await runs.wait()
        assert await queue.requeue_inflight() == 1
        await raised(TaskLeaseLost, working)
        await given_back(place)
        gate.set()
        assert await TaskWorker(engine, queue).run_until_idle() == [TaskOutcome(DriveRun("r"), ("r",))]
        assert (await engine.snapshot("r")).status == "completed"


# without end ---------------------------------------------------------------------------------------------------------


async def test_many_at_once_up_to_a_limit(place: Place) -> None:
    flow, full, most, now = Flow(), asyncio.Event(), 0, 0

    @flow.step
    async def count() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        if now == 4:
            full.set()
        await full.wait()
        now -= 1

    @flow.workflow("w", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", count)

    async with place.engine(flow) as engine:
        queue = place.queue()
        for n in range(12):
            await engine.submit("w", run_id=f"r{n}")
        await queue.enqueue_many([DriveRun(f"r{n}") for n in range(12)])
        worker = TaskWorker(engine, queue, concurrency=4)
        running = asyncio.create_task(worker.run_forever())
        while (await engine.run_summary()).completed_runs < 12:  # noqa: ASYNC110 - the store says when
            await asyncio.sleep(0.01)
        worker.stop()
        await running
        assert most == 4
        assert await sizes(queue) == (0, 0, 0)


async def test_draining_lets_a_task_end(memory: Place) -> None:
    flow, runs, gate = slow_flow()
    async with memory.engine(flow) as engine:
        await engine.submit("slow", run_id="r")
        queue = memory.queue()
        await queue.enqueue(DriveRun("r"))
        worker = TaskWorker(engine, queue)
        running = asyncio.create_task(worker.run_forever())
        await runs.wait()
        worker.stop()
        await asyncio.sleep(0.02)
        assert not running.done()
        gate.set()
        await running
        assert (await engine.snapshot("r")).status == "completed"
        assert await sizes(queue) == (0, 0, 0)


async def test_what_does_not_end_in_time_is_given_back_and_nothing_is_appended(place: Place) -> None:
    flow, runs, gate = slow_flow()
    async with place.engine(flow) as engine:
        await engine.submit("slow", run_id="r")
        queue = place.queue()
        await queue.enqueue(DriveRun("r"))
        worker = TaskWorker(engine, queue, drain=timedelta(milliseconds=20))
        running = asyncio.create_task(worker.run_forever())
        await runs.wait()
        before = await place.store.history("r")
        worker.stop()
        await running
        assert await place.store.history("r") == before
        assert await sizes(queue) == (1, 0, 0)
        await given_back(place)
        gate.set()
        (outcome,) = await TaskWorker(engine, queue).run_until_idle()
        assert outcome.disposition == Ack()


async def test_cancelling_a_worker_gives_its_tasks_back(memory: Place) -> None:
    flow, runs, _ = slow_flow()
    async with memory.engine(flow) as engine:
        await engine.submit("slow", run_id="r")
        queue = memory.queue()
        await queue.enqueue(DriveRun("r"))
        running = asyncio.create_task(TaskWorker(engine, queue).run_forever())
        await runs.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await sizes(queue) == (1, 0, 0)


async def test_a_stop_ends_work_until_idle_too(memory: Place) -> None:
    """The task at work may end within the drain; the others are left."""
    flow, begun, gate = slow_flow()
    async with memory.engine(flow) as engine:
        queue = memory.queue()
        for run_id in ("r", "s", "t"):
            await engine.submit("slow", run_id=run_id)
            await queue.enqueue(DriveRun(run_id))
        worker = TaskWorker(engine, queue, drain=timedelta(hours=1))
        running = asyncio.create_task(worker.run_until_idle())
        await begun.wait()
        worker.stop()
        await asyncio.sleep(0.01)
        assert not running.done()
        gate.set()
        (outcome,) = await running
        assert (outcome.run_ids, await sizes(queue)) == (("r",), (2, 0, 0))
        gate.clear()
        begun.clear()
        worker = TaskWorker(engine, queue, drain=timedelta())
        running = asyncio.create_task(worker.run_until_idle())
        await begun.wait()
        worker.stop()
        assert await running == []
        assert await sizes(queue) == (2, 0, 0), "cut off and given back"


async def test_a_task_leased_while_the_worker_is_cancelled_is_given_back(memory: Place) -> None:
    async with memory.engine(story_flow()) as engine:
        queue, leasing = memory.queue(), asyncio.Event()
        await queue.enqueue(DriveRun("r"))
        lease = queue.lease

        async def slow() -> Any:
            leased = await lease()
            leasing.set()
            await asyncio.sleep(0.01)  # the answer is on its way
            return leased

        queue.lease = slow  # type: ignore[method-assign]  # the queue itself, only slower
        running = asyncio.create_task(TaskWorker(engine, queue).run_forever())
        await leasing.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await sizes(queue) == (1, 0, 0)


async def test_a_worker_whose_engine_closed_ends(memory: Place) -> None:
    engine = memory.engine(story_flow())
    queue = memory.queue()
    running = asyncio.create_task(TaskWorker(engine, queue, interval=timedelta(milliseconds=50)).run_forever())
    await asyncio.sleep(0.01)
    await engine.close()
    await running


async def test_a_fault_in_our_own_code_brings_the_task_back_and_ends_no_worker(
    memory: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def faulty(engine: object, task: FlowTask) -> TaskOutcome:
        raise ZeroDivisionError("canary-payload")

    monkeypatch.setattr("perdure.queues.worker.handle", faulty)
    async with memory.engine(story_flow()) as engine:
        queue = memory.queue()
        await queue.enqueue(DriveRun("r"))
        with caplog.at_level(logging.ERROR, "perdure"):
            outcome = await TaskWorker(engine, queue).run_once()
        assert outcome is not None
        assert outcome.disposition == Nack("ZeroDivisionError")
        assert await queue.len() == 1
        assert "ZeroDivisionError" in caplog.text
        assert "canary" not in caplog.text


async def test_a_queue_that_is_away_is_tried_again(memory: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with memory.engine(story_flow()) as engine:
        await engine.submit("flow", {"hook": True}, run_id="r")
        queue, failures = memory.queue(), 2
        lease = queue.lease

        async def failing() -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailable("away")
            return await lease()

        queue.lease = failing  # type: ignore[method-assign]  # a store that comes back
        await queue.enqueue(DriveRun("r"))
        worker = TaskWorker(engine, queue)
        with caplog.at_level(logging.WARNING, "perdure"):
            running = asyncio.create_task(worker.run_forever())
            while (await engine.run_summary()).active_hooks == 0:  # noqa: ASYNC110 - the store says when
                await asyncio.sleep(0.01)
            worker.stop()
            await running
        assert "cannot be reached, and this is tried again: store_unavailable: away" in caplog.text
        assert caplog.text.count("is reached again, after ") == 1


# settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"heartbeat": timedelta()},
        {"heartbeat": timedelta(seconds=30)},
        {"interval": timedelta()},
        {"drain": -SECOND},
    ],
    ids=str,
)
async def test_settings_without_sense_are_refused(memory: Place, options: dict[str, Any]) -> None:
    async with memory.engine(story_flow()) as engine:
        with pytest.raises(InvalidWorkerConfiguration):
            TaskWorker(engine, memory.queue(), **options)


def test_back_off_grows_to_ten_minutes() -> None:
    found = [backoff_ns(nacks, Always()) / 1e9 for nacks in (0, 1, 5, 9, 10, 50)]
    assert found == [1, 2, 32, 512, 600, 600]
    assert 0 <= backoff_ns(3, Random(1)) < 8 * 10**9


async def test_a_drift_is_held_once_and_sent_for_no_more(place: Place) -> None:
    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.create_hook("h", "canary-other")

    async with place.engine(story_flow()) as engine:
        await engine.start("flow", {"hook": True}, run_id="r")
    async with place.engine(one_workflow(ask)) as engine:
        queue = place.queue()
        await queue.enqueue(DriveRun("r"))
        await TaskWorker(engine, queue).run_until_idle()
        assert await sizes(queue) == (0, 0, 0)
        assert (await place.store.runnable(place.clock.after(hours=9).ns)).runs == ()
        assert HOUR
