"""Payloads in queues, encoded by the codec of the engine they are for (R42)."""

from __future__ import annotations

import base64

import pytest

from dispatch.kit import Place, story_flow
from perdure import (
    DisposeHook,
    DriveRun,
    DurableTaskQueue,
    FlowTask,
    ResumeHook,
    ResumeHookByToken,
    Serialization,
    TaskWorker,
)
from perdure.codec import PayloadPlace
from perdure.contrib._tries import read, write
from perdure.errors import PayloadCodecFailed, TaskSetAside
from perdure.task_codec import read_task, write_task
from perdure.tasks import Nack, handle

SECRET = {"card": "4711"}


class Keyed:
    """Hides payloads from those who do not know the key, and binds them to their place."""

    def __init__(self, key: str = "k1") -> None:
        self.key = key

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        return b'"%s"' % base64.b64encode(f"{self.key}|{place}|".encode() + payload)

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        key, where, payload = base64.b64decode(stored[1:-1]).split(b"|", 2)
        if (key, where) != (self.key.encode(), str(place).encode()):
            raise PayloadCodecFailed("decode", str(place), "no such key")
        return payload


@pytest.mark.parametrize("task", [ResumeHook("r", "h", SECRET), ResumeHookByToken("canary-t", SECRET)], ids=str)
def test_payloads_are_encoded_and_nothing_else(task: FlowTask) -> None:
    raw = write_task(task, Keyed())
    assert b"4711" not in raw
    assert read_task(raw, Keyed()) == task
    for codec in (None, Keyed("k2")):
        with pytest.raises(Serialization) as refused:
            read_task(raw, codec)
        assert "4711" not in str(refused.value)
    assert read_task(task.to_json(), Keyed()) == task  # one that was queued before there was a codec
    assert read(write(task, Keyed()), Keyed()) == task
    with pytest.raises(TaskSetAside, match="give this queue the codec"):
        read(write(task, Keyed()), None)


def test_tasks_without_payload_are_as_ever() -> None:
    for task in (DriveRun("r"), DisposeHook("r", "h")):
        assert write_task(task, Keyed()) == task.to_json()


async def test_a_queue_with_the_codec_of_its_engine(sql: Place) -> None:
    async with sql.engine(story_flow(), codec=Keyed()) as engine:
        for run_id in ("r", "s"):
            await engine.start("flow", {"hook": True}, run_id=run_id)
        queue = DurableTaskQueue(sql.store, codec=Keyed())
        for task in (ResumeHook("r", "h", SECRET), ResumeHookByToken("canary-s", SECRET)):
            await queue.enqueue(task)
        assert len(await TaskWorker(engine, queue).run_until_idle()) == 2
        for run_id in ("r", "s"):
            assert (await engine.snapshot(run_id)).output == SECRET
            assert b"4711" not in await sql.store.history(run_id)


async def test_a_worker_without_the_key_leaves_the_task_to_another(sql: Place) -> None:
    queue, other = (DurableTaskQueue(sql.store, codec=Keyed(key), max_attempts=3) for key in ("k1", "k2"))
    await queue.enqueue(ResumeHook("r", "h", SECRET))
    assert await other.lease() is None
    assert (await queue.len(), await queue.dead_letter_len()) == (1, 0)
    sql.clock.advance(seconds=1)
    lease = await queue.lease()
    assert lease is not None
    assert lease.task == ResumeHook("r", "h", SECRET)
    await queue.dead_letter(lease.lease_id, "no")
    (dead,) = await other.dead_lettered_tasks()
    assert dead.task is None
    assert b"4711" not in dead.raw


async def test_an_engine_without_the_key_leaves_the_event_to_another(memory: Place) -> None:
    async with memory.engine(story_flow(), codec=Keyed()) as engine:
        await engine.start("flow", {"hook": True}, run_id="r")
        await engine.resume_hook("r", "h", SECRET)
    async with memory.engine(story_flow(), codec=Keyed("k2")) as engine:
        outcome = await handle(engine, ResumeHook("r", "h", SECRET))
        assert outcome.disposition == Nack("payload_codec_failed")
