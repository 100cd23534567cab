"""W15, fixed bug 41: an observer that is slow or raises leaves the run as it would have been without it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from scenarios.kit import World, one_workflow, story

from observe.tour import CANARY, observation_of, sequences, take_the_tour
from perdure.observe import FanOut, MemoryObserver, Observation, Observer
from perdure.observing import ObserverQueue

PATIENCE = 30.0
SPEC = b'{"name":"order","version":"2","runtime":{"kind":"rust_embedded","entrypoint":"order","export_name":"main"}}'


async def put(queue: ObserverQueue, *numbers: int) -> None:
    """Hands the queue a batch of run `r` with these sequences, and lets it take them."""
    head = b'{"run_id":"r","sequence":%d,"event_id":"e","timestamp":"2026-01-01T00:00:00Z","event":{"type":"run_started"}}\n'
    run: Any = SimpleNamespace(spec=SPEC)
    batch: Any = SimpleNamespace(lines=b"".join(head % n for n in numbers), row=SimpleNamespace(status="running"))
    queue.put(run, batch)
    await asyncio.sleep(0)


class Gated(MemoryObserver):
    """Blocks its thread at the first event until `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

        self._seen = threading.Semaphore(0)

    def observe(self, observation: Observation) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        super().observe(observation)
        self._seen.release()

    async def has_seen(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self._seen.acquire, timeout=PATIENCE)

    async def is_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


# -- slow --------------------------------------------------------------------------------------------------------------


async def test_41_a_run_ends_while_its_observer_still_stands_at_the_first_event(world: World) -> None:
    slow = Gated()
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), observer=slow) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
        await slow.is_entered()
        assert slow.observations == []
        slow.gate.set()
    assert sequences(slow.observations) == [1, 2, 3]


async def test_41_the_same_for_a_coroutine(world: World) -> None:
    gate = asyncio.Event()

    class Slow(MemoryObserver):
        async def observe(self, observation: Observation) -> None:  # type: ignore[override] # both fit the protocol
            await gate.wait()
            self.observations.append(observation)

    slow = Slow()
    async with world.engine(one_workflow(lambda ctx: ctx.complete()), observer=slow) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
        assert slow.observations == []
        gate.set()
    assert sequences(slow.observations) == [1, 2, 3]


# -- raising -----------------------------------------------------------------------------------------------------------


class Raising:
    """Counts what it is told, and raises each time."""

    def __init__(self, error: Callable[[str], BaseException]) -> None:
        self.error = error
        self.told = 0

    def observe(self, observation: Observation) -> Awaitable[None] | None:
        self.told += 1
        raise self.error(f"{CANARY}: {observation.envelope.event}")


class RaisingLater(Raising):
    """The same from a coroutine."""

    async def observe(self, observation: Observation) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        super().observe(observation)


ERRORS = [ValueError, SystemExit, asyncio.CancelledError]


@pytest.mark.parametrize("kind", [Raising, RaisingLater])
@pytest.mark.parametrize("error", ERRORS)
async def test_41_an_observer_that_raises(
    world: World, kind: type[Raising], error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """The history is the one of a run without it; every event is still told; one line in the log, without payloads."""
    observer = kind(error)
    history = await take_the_tour(world, observer)
    assert story(history)[-1] == "run_cancelled"
    assert observer.told == len(history)
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert f"{kind.__name__} raised" in record.getMessage()
    assert "run r, sequence 1" in record.getMessage()
    assert CANARY not in caplog.text


async def test_an_observer_that_raises_does_not_keep_an_event_from_others(caplog: pytest.LogCaptureFixture) -> None:
    first, last = MemoryObserver(), MemoryObserver()
    bad: list[Raising] = [Raising(ValueError), RaisingLater(ValueError), Raising(SystemExit), RaisingLater(SystemExit)]
    queue = ObserverQueue(FanOut(first, *bad, last))
    await put(queue, 1, 2, 3)
    await queue.close()
    assert sequences(first.observations) == sequences(last.observations) == [1, 2, 3]
    assert [observer.told for observer in bad] == [3, 3, 3, 3]
    assert len(caplog.records) == 4, "each is logged once"


async def test_fan_out_tells_in_order_and_awaits_all_before_the_next() -> None:
    told: list[str] = []

    def plain(name: str) -> Observer:
        return SimpleNamespace(observe=lambda seen: told.append(f"{name}{seen.envelope.sequence}"))

    class Later:
        async def observe(self, seen: Observation) -> None:
            await asyncio.sleep(0)
            told.append(f"later{seen.envelope.sequence}")

    queue = ObserverQueue(FanOut(plain("a"), Later(), FanOut(plain("b"), plain("c"))))
    await put(queue, 1, 2)
    await queue.close()
    assert told == ["a1", "b1", "c1", "later1", "a2", "b2", "c2", "later2"]


def test_fan_out_of_plain_observers_needs_no_loop() -> None:
    memory = MemoryObserver()
    assert FanOut(memory, memory).observe(observation_of()) is None
    assert sequences(memory.observations) == [1, 1]


# -- overflow ----------------------------------------------------------------------------------------------------------


async def test_a_full_queue_drops_the_newest_counts_them_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    slow = Gated()
    queue = ObserverQueue(slow, limit=3)
    await put(queue, 1)
    await slow.is_entered()
    await put(queue, 2, 3)
    await put(queue, 4, 5, 6)
    await put(queue, 7)
    assert queue.dropped == 3
    slow.gate.set()
    await queue.close()
    assert sequences(slow.observations) == [1, 2, 3, 4]
    assert [r.getMessage() for r in caplog.records] == [
        "the observer is too slow: events are dropped while 3 wait for it",
        "the observer missed 3 events in all",
    ]


async def test_a_queue_that_was_full_takes_events_again() -> None:
    slow = Gated()
    queue = ObserverQueue(slow, limit=1)
    await put(queue, 1)
    await slow.is_entered()
    await put(queue, 2, 3)
    slow.gate.set()
    await slow.has_seen(2)
    await put(queue, 4)
    await queue.close()
    assert sequences(slow.observations) == [1, 2, 4]


def test_the_limit_is_10_000_by_default() -> None:
    async def fill() -> ObserverQueue:
        slow = Gated()
        queue = ObserverQueue(slow)
        await put(queue, 1)
        await slow.is_entered()
        await put(queue, *range(2, 10_005))
        slow.gate.set()
        await queue.close()
        assert len(slow.observations) == 10_001
        return queue

    assert asyncio.run(fill()).dropped == 3


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_close_waits_for_what_is_under_way_and_what_waits() -> None:
    slow = Gated()
    queue = ObserverQueue(slow)
    await put(queue, 1, 2, 3)
    closing = asyncio.create_task(queue.close(PATIENCE))
    await slow.is_entered()
    assert not closing.done()
    slow.gate.set()
    await closing
    assert sequences(slow.observations) == [1, 2, 3]


async def test_close_gives_up_at_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that hangs is left behind; if it ever comes back it is told nothing more."""
    slow = Gated()
    queue = ObserverQueue(slow)
    await put(queue, 1, 2, 3)
    await slow.is_entered()
    await queue.close(0.01)
    await queue.close(PATIENCE)
    assert [r.getMessage() for r in caplog.records] == [
        "the observer was not done after 0.01 s and is cut off, with 2 events unseen",
        "the observer missed 2 events in all",
    ]
    slow.gate.set()
    await ended(queue)
    assert sequences(slow.observations) == [1]


async def test_close_cancels_a_coroutine_at_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    entered = asyncio.Event()

    class Stuck:
        async def observe(self, observation: Observation) -> None:
            told.append("entered")
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                told.append("cancelled")

    queue = ObserverQueue(Stuck())
    await put(queue, 1, 2)
    await entered.wait()
    await queue.close(0.01)
    assert told == ["entered", "cancelled"]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    await ended(queue)


async def test_what_comes_after_close_is_counted_only() -> None:
    memory = MemoryObserver()
    early, late = ObserverQueue(memory), ObserverQueue(memory)
    await early.close()
    await put(early, 1)
    await put(late, 1, 2)
    await late.close()
    await put(late, 3, 4)
    assert (early.dropped, late.dropped) == (1, 2)
    assert sequences(memory.observations) == [1, 2]


def test_a_loop_that_ended_before_its_engine_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody closed the engine; its observer comes back with a coroutine when the loop is gone."""
    entered, gate = threading.Event(), threading.Event()

    async def never() -> None:
        raise AssertionError("there is no loop to run on")

    def observe(_: Observation) -> Awaitable[None]:
        entered.set()
        assert gate.wait(PATIENCE)
        return never()

    queue = ObserverQueue(SimpleNamespace(observe=observe))

    async def leave() -> None:
        await put(queue, 1)
        assert await asyncio.to_thread(entered.wait, PATIENCE)

    asyncio.run(leave())
    gate.set()
    asyncio.run(queue.close(PATIENCE))
    assert "raised RuntimeError" in caplog.text


async def ended(queue: ObserverQueue) -> None:
    thread = queue._thread
    assert thread is not None
    assert thread.daemon, "a process exits though its observer hangs"
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive()
