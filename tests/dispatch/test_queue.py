"""Queues, in memory and in both SQL stores: scenarios 77-80, bugs 9, 10, 21 and 23, R45 and R46."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest

from dispatch.kit import HOUR, Place, Queue, raised, story_flow
from perdure import (
    DisposeHook,
    DriveRun,
    DurableTaskQueue,
    FlowTask,
    InvalidWorkerConfiguration,
    JsonlEventStore,
    MemoryEventStore,
    MemoryTaskQueue,
    QueueBackpressure,
    ResumeHook,
    ResumeHookByToken,
    ResumeScheduledRun,
    ResumeWait,
    RuntimeBuildRouteNotFound,
    TaskLease,
    TaskLeaseLost,
)
from perdure.stores.task_rows import NewTask

SECOND = timedelta(seconds=1)


def tasks(count: int) -> list[FlowTask]:
    return [ResumeWait("r", f"w{n}") for n in range(count)]


async def filled(queue: Queue, count: int) -> list[FlowTask]:
    added = tasks(count)
    for task in added:
        assert await queue.enqueue(task)
    return added


async def taken(queue: Queue) -> TaskLease:
    lease = await queue.lease()
    assert lease is not None
    return lease


async def sizes(queue: Queue) -> tuple[int, int, int]:
    return await queue.len(), await queue.inflight_len(), await queue.dead_letter_len()


# order and length ----------------------------------------------------------------------------------------------------


async def test_tasks_come_in_the_order_they_were_added(place: Place) -> None:
    queue = place.queue()
    assert await queue.is_empty()
    assert await queue.lease() is None
    added = await filled(queue, 3)
    assert await sizes(queue) == (3, 0, 0)
    place.clock.advance(seconds=1)
    await queue.enqueue(ResumeHook("r", "h", {"n": [1]}))
    found = [await queue.dequeue() for _ in range(4)]
    assert found == [*added, ResumeHook("r", "h", {"n": [1]})]
    assert await queue.dequeue() is None
    assert await sizes(queue) == (0, 0, 0)


async def test_scenario_80_the_order_outlives_a_restart(sql: Place) -> None:
    added = await filled(sql.queue(), 3)
    leased = await taken(sql.queue())
    again = sql.queue(store=sql.open())
    assert [await again.dequeue() for _ in range(3)] == [*added[1:], None]
    await again.ack(leased.lease_id)
    assert await sizes(sql.queue()) == (0, 0, 0)


async def test_scenario_80_two_workers_never_get_one_task(sql: Place) -> None:
    added = await filled(sql.queue(), 30)
    queues = [sql.queue(), sql.queue(store=sql.open()), sql.queue(store=sql.open())]

    async def work(queue: Queue) -> list[FlowTask]:
        found: list[FlowTask] = []
        while (task := await queue.dequeue()) is not None:
            found.append(task)
        return found

    shares = await asyncio.gather(*(work(queue) for queue in queues for _ in range(2)))
    assert sorted(task.wait_id for share in shares for task in share) == sorted(task.wait_id for task in added)  # type: ignore[attr-defined]  # all are of this kind


async def test_queues_of_other_names_are_other_queues(place: Place) -> None:
    one, two = place.queue("one"), place.queue("two")
    await one.enqueue(DriveRun("r"))
    assert await two.enqueue(DriveRun("r"))
    lease = await taken(one)
    await raised(TaskLeaseLost, two.ack(lease.lease_id))
    await one.dead_letter(lease.lease_id, "no")
    assert (await sizes(one), await sizes(two)) == ((0, 0, 1), (1, 0, 0))
    assert not await two.redrive(lease.lease_id)


# leases --------------------------------------------------------------------------------------------------------------


async def test_a_lease_ends_by_itself_and_then_the_task_is_pending_again(place: Place) -> None:
    """R45; scenario 78's "no expiry" is superseded."""
    queue = place.queue(lease_ttl=SECOND)
    (task,) = await filled(queue, 1)
    first = await taken(queue)
    assert (first.task, first.attempts, first.nacks) == (task, 0, 0)
    assert first.expires_at == place.clock.after(seconds=1)
    assert await sizes(queue) == (0, 1, 0)
    place.clock.ns += 10**9 - 1000
    assert await queue.lease() is None
    place.clock.ns += 1000
    assert await sizes(queue) == (1, 0, 0)
    second = await taken(queue)
    assert (second.task, second.attempts) == (task, 1)
    await raised(TaskLeaseLost, queue.ack(first.lease_id))
    await raised(TaskLeaseLost, queue.heartbeat(first.lease_id))
    await queue.ack(second.lease_id)


async def test_a_lease_that_ran_out_and_that_nobody_took_is_still_its_holders(place: Place) -> None:
    queue = place.queue(lease_ttl=SECOND)
    await filled(queue, 2)
    first, second = await taken(queue), await taken(queue)
    place.clock.advance(seconds=5)
    await queue.ack(first.lease_id)
    renewed = await queue.heartbeat(second.lease_id)
    assert await queue.lease() is None
    await queue.ack(renewed)


async def test_bug_9_a_heartbeat_gives_another_lease_and_the_old_one_is_dead(place: Place) -> None:
    queue = place.queue(lease_ttl=SECOND)
    await filled(queue, 1)
    lease = await taken(queue)
    place.clock.advance(seconds=0.75)
    renewed = await queue.heartbeat(lease.lease_id)
    assert renewed != lease.lease_id
    for call in (queue.ack, queue.heartbeat):
        await raised(TaskLeaseLost, call(lease.lease_id))
    place.clock.advance(seconds=0.75)
    assert await queue.lease() is None
    await queue.ack(renewed)
    assert await sizes(queue) == (0, 0, 0)


async def test_bug_10_a_late_ack_does_not_touch_the_second_worker(place: Place) -> None:
    queue = place.queue()
    await filled(queue, 1)
    late = await taken(queue)
    assert await queue.requeue_inflight() == 1
    second = await taken(queue)
    assert (second.task, second.attempts) == (late.task, 0)
    await raised(TaskLeaseLost, queue.ack(late.lease_id))
    await raised(TaskLeaseLost, queue.nack(late.lease_id, reason="late"))
    assert await sizes(queue) == (0, 1, 0)
    await queue.ack(second.lease_id)


LEASES = ["", "../x", "/etc/passwd", "a/b", "\\x", "x\x00y", "\ud800", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"]


async def test_scenario_77_a_lease_id_is_a_value_and_never_a_path(place: Place) -> None:
    queue = place.queue()
    await filled(queue, 1)
    lease = await taken(queue)
    before = sorted(path.name for path in place.folder.iterdir())
    for lease_id in (*LEASES, uuid.uuid4().hex, str(uuid.UUID(lease.lease_id)), lease.lease_id.upper()):
        calls: list[Any] = [queue.ack(lease_id), queue.heartbeat(lease_id), queue.nack(lease_id, reason="x")]
        for call in [*calls, queue.dead_letter(lease_id, "x")]:
            assert (await raised(TaskLeaseLost, call)).lease_id == lease_id
        assert not await queue.redrive(lease_id)
        assert not await queue.drop(lease_id)
    assert sorted(path.name for path in place.folder.iterdir()) == before
    assert await sizes(queue) == (0, 1, 0)
    await queue.ack(lease.lease_id)


async def test_scenario_78_a_heartbeat_keeps_a_task_from_a_sweep(place: Place) -> None:
    queue = place.queue(lease_ttl=HOUR)
    await filled(queue, 2)
    long, other = await taken(queue), await taken(queue)
    cutoff = place.clock.now
    place.clock.advance(seconds=5)
    renewed = await queue.heartbeat(long.lease_id)
    assert await queue.requeue_inflight_older_than(cutoff.ns - 1000) == 0
    assert await queue.requeue_inflight_older_than(cutoff) == 1  # inclusive
    await raised(TaskLeaseLost, queue.ack(other.lease_id))
    await queue.ack(renewed)
    assert (await taken(queue)).task == other.task


async def test_a_requeued_task_has_its_old_place(place: Place) -> None:
    queue = place.queue()
    added = await filled(queue, 2)
    place.clock.advance(seconds=1)
    await taken(queue)
    assert await queue.requeue_inflight() == 1
    assert [await queue.dequeue() for _ in range(2)] == added


@pytest.mark.parametrize("cutoff", [2**63, 2**80, -(2**63), -(2**80)])
async def test_bug_23_cutoffs_saturate(place: Place, cutoff: int) -> None:
    queue = place.queue()
    await filled(queue, 1)
    await taken(queue)
    everything = int(cutoff > 0)
    assert await queue.requeue_inflight_older_than(cutoff) == everything
    assert await queue.dead_letter_inflight_older_than(cutoff, "swept") == 0 if everything else True
    assert await sizes(queue) == (everything, 1 - everything, 0)


# coming back ---------------------------------------------------------------------------------------------------------


async def test_a_task_comes_back_after_its_delay_and_is_counted(place: Place) -> None:
    queue = place.queue()
    await filled(queue, 1)
    await queue.nack((await taken(queue)).lease_id, reason="busy", delay=3 * SECOND)
    assert await sizes(queue) == (1, 0, 0)
    assert await queue.lease() is None
    assert await queue.next_at() == place.clock.after(seconds=3).ns
    place.clock.advance(seconds=3)
    lease = await taken(queue)
    assert (lease.attempts, lease.nacks) == (1, 1)
    await queue.nack(lease.lease_id, reason="elsewhere", counted=False)
    lease = await taken(queue)
    assert (lease.attempts, lease.nacks) == (1, 2)


async def test_the_last_counted_attempt_sets_a_task_aside(place: Place) -> None:
    queue = place.queue(max_attempts=3)
    (task,) = await filled(queue, 1)
    for _ in range(5):
        await queue.nack((await taken(queue)).lease_id, reason="elsewhere", counted=False)
    for _ in range(2):
        await queue.nack((await taken(queue)).lease_id, reason="busy")
    last = await taken(queue)
    await queue.nack(last.lease_id, reason="busy again")
    assert await sizes(queue) == (0, 0, 1)
    (dead,) = await queue.dead_lettered_tasks()
    assert (dead.task, dead.lease_id, dead.reason, dead.attempts) == (task, last.lease_id, "busy again", 3)
    assert (dead.run_id, dead.enqueued_at, dead.dead_lettered_at) == ("r", place.clock.now, place.clock.now)


async def test_a_task_that_ends_its_workers_is_set_aside(place: Place) -> None:
    queue = place.queue(max_attempts=3, lease_ttl=SECOND)
    await filled(queue, 1)
    for _ in range(3):
        await taken(queue)
        place.clock.advance(seconds=1)
    assert await queue.lease() is None
    (dead,) = await queue.dead_lettered_tasks()
    assert dead.reason.startswith("lease_expired: ")
    assert dead.attempts == 3


async def test_a_task_that_cannot_be_read_is_set_aside_and_does_not_block(place: Place) -> None:
    queue = place.queue()
    rows = queue._rows
    await rows.put(queue.name, [NewTask("t", b'{"type":"of_tomorrow","token":"canary-x"}', None, False)], None)
    (task,) = await filled(queue, 1)
    assert (await taken(queue)).task == task
    (dead,) = await queue.dead_lettered_tasks()
    assert dead.task is None
    assert dead.reason == "serialization: shape: 'of_tomorrow' is no type of task this release knows"
    assert "canary" not in repr(dead)


# dead letters --------------------------------------------------------------------------------------------------------


async def test_scenario_79_a_dead_letter_keeps_task_and_reason_and_is_not_counted(place: Place) -> None:
    queue = place.queue()
    added = await filled(queue, 3)
    first, second = await taken(queue), await taken(queue)
    place.clock.advance(seconds=1)
    await queue.dead_letter(first.lease_id, "hook_conflict: no")
    await raised(TaskLeaseLost, queue.ack(first.lease_id))
    assert await sizes(queue) == (1, 1, 1)
    cutoff = place.clock.now
    assert await queue.dead_letter_inflight_older_than(cutoff, "swept") == 1
    assert await sizes(queue) == (1, 0, 2)
    found = {dead.lease_id: (dead.task, dead.reason) for dead in await queue.dead_lettered_tasks()}
    assert found == {first.lease_id: (added[0], "hook_conflict: no"), second.lease_id: (added[1], "swept")}


async def test_dead_letters_are_listed_in_pages(place: Place) -> None:
    queue = place.queue()
    await filled(queue, 5)
    leases = []
    for _ in range(5):
        leases.append((await taken(queue)).lease_id)
        await queue.dead_letter(leases[-1], "no")
        place.clock.advance(seconds=1)
    found, after = [], None
    while page := await queue.dead_lettered_tasks(after=after, limit=2):
        found += [dead.lease_id for dead in page]
        after = page[-1].dead_lettered_at.ns, page[-1].lease_id
    assert found == leases


async def test_redrive_happens_once_under_an_id_that_follows_from_the_lease(place: Place) -> None:
    queue = place.queue()
    (task,) = await filled(queue, 1)
    lease = await taken(queue)
    await queue.nack(lease.lease_id, reason="busy")
    lease = await taken(queue)
    await queue.dead_letter(lease.lease_id, "no")
    assert await queue.redrive(lease.lease_id)
    assert not await queue.redrive(lease.lease_id)
    assert await sizes(queue) == (1, 0, 0)
    row = await queue._rows.take(queue.name, uuid.uuid4().hex, 10**9)
    assert row is not None
    assert row.task_id == uuid.uuid5(uuid.NAMESPACE_URL, f"a3s-flow-redrive:{lease.lease_id}").hex
    assert (FlowTask.from_json(row.task), row.attempts, row.nacks) == (task, 0, 0)


async def test_redriving_in_two_places_at_once_makes_one_task(sql: Place) -> None:
    queue, other = sql.queue(), sql.queue(store=sql.open())
    await filled(queue, 1)
    lease = await taken(queue)
    await queue.dead_letter(lease.lease_id, "no")
    answers = await asyncio.gather(*(q.redrive(lease.lease_id) for q in (queue, other, queue, other)))
    assert sorted(answers) == [False, False, False, True]
    assert await sizes(queue) == (1, 0, 0)


async def test_redriving_a_drive_whose_run_has_one_adds_none(place: Place) -> None:
    queue = place.queue()
    await queue.enqueue(DriveRun("r"))
    lease = await taken(queue)
    await queue.dead_letter(lease.lease_id, "no")
    assert await queue.enqueue(DriveRun("r"))
    assert await queue.redrive(lease.lease_id)
    assert await sizes(queue) == (1, 0, 0)


async def test_a_dead_letter_can_be_dropped(place: Place) -> None:
    queue = place.queue()
    await filled(queue, 1)
    lease = await taken(queue)
    await queue.dead_letter(lease.lease_id, "no")
    assert await queue.drop(lease.lease_id)
    assert not await queue.drop(lease.lease_id)
    assert not await queue.redrive(lease.lease_id)


# one drive per run, bounded length -----------------------------------------------------------------------------------


async def test_a_run_has_one_drive_pending_or_leased(place: Place) -> None:
    """R46: of either kind. Tasks with an event of their own are never left out."""
    queue = place.queue()
    scheduled = ResumeScheduledRun("r", place.clock.now)
    assert await queue.enqueue(DriveRun("r"))
    assert not await queue.enqueue(DriveRun("r"))
    assert not await queue.enqueue(scheduled)
    assert await queue.enqueue(DriveRun("s"))
    for _ in range(2):
        assert await queue.enqueue(ResumeWait("r", "w"))
    lease = await taken(queue)
    assert not await queue.enqueue(scheduled)  # leased
    await queue.nack(lease.lease_id, reason="busy", delay=SECOND)
    assert not await queue.enqueue(scheduled)  # waiting for its time
    place.clock.advance(seconds=1)
    assert (await taken(queue)).task == DriveRun("s")
    assert [await queue.dequeue() for _ in range(3)] == [ResumeWait("r", "w"), ResumeWait("r", "w"), DriveRun("r")]
    assert await queue.enqueue(scheduled)
    assert await queue.enqueue_many([DriveRun("t"), scheduled, DriveRun("t"), DriveRun("u")]) == [
        True,
        False,
        False,
        True,
    ]


async def test_two_schedulers_add_one_drive(sql: Place) -> None:
    queues = [sql.queue(), sql.queue(store=sql.open())]
    adding = (queue.enqueue_many([DriveRun(f"r{n}") for n in range(10)]) for queue in queues for _ in range(3))
    answers = await asyncio.gather(*adding)
    assert sum(answer.count(True) for answer in answers) == 10
    assert await queues[0].len() == 10


async def test_a_full_queue_says_so_and_takes_nothing_more(place: Place) -> None:
    queue = place.queue(max_pending=2)
    await filled(queue, 2)
    refused = await raised(QueueBackpressure, queue.enqueue(DisposeHook("r", "h")))
    assert (refused.pending, refused.capacity) == (2, 2)
    assert await sizes(queue) == (2, 0, 0)
    lease = await taken(queue)  # what is leased is not pending
    assert await queue.enqueue(DriveRun("a"))
    assert not await queue.enqueue(DriveRun("a"))  # one that is there already needs no room
    await queue.ack(lease.lease_id)
    await taken(queue)
    await raised(QueueBackpressure, queue.enqueue_many([DriveRun("a"), DriveRun("b"), DriveRun("c"), DriveRun("d")]))
    assert await sizes(queue) == (2, 1, 0)


async def test_those_who_add_at_once_do_not_pass_the_bound(sql: Place) -> None:
    queues = [sql.queue(max_pending=5), sql.queue(store=sql.open(), max_pending=5)]
    adding = (queue.enqueue(ResumeWait("r", f"w{n}")) for n in range(10) for queue in queues)
    answers = await asyncio.gather(*adding, return_exceptions=True)
    assert answers.count(True) == 5
    assert {type(answer) for answer in answers} == {bool, QueueBackpressure}
    assert await queues[0].len() == 5


# the run goes --------------------------------------------------------------------------------------------------------


async def test_tasks_that_name_a_run_can_be_purged(place: Place) -> None:
    one, two = place.queue("one"), place.queue("two")
    for queue in (one, two):
        for task in (DriveRun("r"), DriveRun("s"), ResumeHook("r", "h", 1), ResumeHookByToken("canary-t", 1)):
            await queue.enqueue(task)
    await one.dead_letter((await taken(one)).lease_id, "no")
    queues = 1 if place.kind == "memory" else 2  # a memory queue is a place of its own
    assert await one.purge_run("r") == 2 * queues
    assert await one.purge_run("r") == 0
    assert await sizes(one) == (2, 0, 0)


# settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        (" ", {}),
        ("a\nb", {}),
        ("x" * 201, {}),
        ("q", {"lease_ttl": timedelta()}),
        ("q", {"lease_ttl": -SECOND}),
        ("q", {"max_attempts": 0}),
        ("q", {"max_pending": 0}),
    ],
)
def test_settings_without_sense_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidWorkerConfiguration):
        MemoryTaskQueue(name, **options)


def test_a_store_without_task_tables_is_refused(memory: Place) -> None:
    for store in (MemoryEventStore(), JsonlEventStore(memory.folder / "logs")):
        with pytest.raises(InvalidWorkerConfiguration, match="keeps no task queues"):
            DurableTaskQueue(store)


async def test_a_queue_takes_unpinned_work_only(place: Place) -> None:
    queue = place.queue()
    assert await queue.dispatch_for_runtime_build(None, DriveRun("r"))
    refused = await raised(RuntimeBuildRouteNotFound, queue.dispatch_for_runtime_build("v1", DriveRun("r")))
    assert refused.required_build_id == "v1"
    await raised(RuntimeBuildRouteNotFound, queue.dispatch_many("v1", [DriveRun("s")]))
    assert await queue.len() == 1


async def test_a_hint_comes_when_a_task_is_added(place: Place) -> None:
    queue = place.queue()
    await queue.lease()
    seen = await queue.changes()
    waiting = asyncio.create_task(queue.wait_for_change(seen, 20))
    await asyncio.sleep(0.05)
    await queue.enqueue(DriveRun("r"))
    assert await waiting != seen


async def test_lengths_beside_the_runs_they_are_about(sql: Place) -> None:
    """One database holds both; a queue changes nothing of a run."""
    async with sql.engine(story_flow()) as engine:
        await engine.start("flow", {"waits": 1}, run_id="r")
        before = await sql.store.history("r"), await sql.store.lease("r")
        await filled(sql.queue(), 2)
        assert (await sql.store.history("r"), await sql.store.lease("r")) == before
