"""The event loop with virtual time: it jumps only when nothing else can happen, and serves one instant in a fixed order."""

from __future__ import annotations

import asyncio
import threading

import pytest

from perdure.testing.virtual_time import Phase, StoodStill, VirtualTimeLoop, run

START_NS = 10**18
DAY_NS = 86_400 * 10**9


def test_sleeping_moves_the_clock_and_nothing_else_does() -> None:
    async def main(loop: VirtualTimeLoop) -> list[int]:
        seen = [loop.clock_ns()]
        await asyncio.sleep(0)
        seen.append(loop.clock_ns())
        await asyncio.sleep(86_400)
        return [*seen, loop.clock_ns()]

    assert run(main, START_NS) == [START_NS, START_NS, START_NS + DAY_NS]


def test_one_instant_is_served_by_phase_and_then_by_age() -> None:
    async def main(loop: VirtualTimeLoop) -> list[str]:
        order: list[str] = []

        async def sleeper(name: str, phase: Phase) -> None:
            await loop.sleep_until_ns(START_NS + 5, phase)
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for name, phase in (
                ("timer", Phase.TIMERS),
                ("b", Phase.STEPS),
                ("a", Phase.STEPS),
                ("other", Phase.OTHERS),
            ):
                group.create_task(sleeper(name, phase))
        return order

    assert run(main, START_NS) == ["other", "b", "a", "timer"]


def test_between_two_phases_everything_ready_runs() -> None:
    async def main(loop: VirtualTimeLoop) -> list[str]:
        order: list[str] = []

        async def chatty() -> None:
            await loop.sleep_until_ns(START_NS, Phase.OTHERS)
            for _ in range(10):
                await asyncio.sleep(0)
            order.append("chatty")

        async def step() -> None:
            await loop.sleep_until_ns(START_NS, Phase.STEPS)
            order.append("step")

        await asyncio.gather(step(), chatty())
        return order

    assert run(main, START_NS) == ["chatty", "step"]


def test_the_clock_stands_still_while_a_thread_works() -> None:
    async def main(loop: VirtualTimeLoop) -> tuple[int, bool]:
        released = threading.Event()
        alarm = loop.call_later(1, released.set)
        work = asyncio.create_task(asyncio.to_thread(released.wait, 0.05))
        fired = await work
        alarm.cancel()
        return loop.clock_ns(), fired

    assert run(main, START_NS) == (START_NS, False)


def test_the_clock_stands_still_during_outside_work() -> None:
    async def main(loop: VirtualTimeLoop) -> int:
        answer = loop.create_future()
        worker = threading.Thread(target=lambda: loop.call_soon_threadsafe(answer.set_result, None))
        alarm = loop.call_later(1, lambda: None)
        with loop.outside_work():
            worker.start()
            await answer
        alarm.cancel()
        worker.join()
        return loop.clock_ns()

    assert run(main, START_NS) == START_NS


def test_a_cancelled_timer_does_not_move_the_clock() -> None:
    async def main(loop: VirtualTimeLoop) -> int:
        loop.call_later(1, lambda: None).cancel()
        await asyncio.sleep(2)
        return loop.clock_ns()

    assert run(main, START_NS) == START_NS + 2 * 10**9


def test_timeouts_of_asyncio_fire_in_virtual_time() -> None:
    async def main(loop: VirtualTimeLoop) -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3_600):
                await loop.create_future()
        return loop.clock_ns()

    assert run(main, START_NS) == START_NS + 3_600 * 10**9


def test_waiting_for_what_can_never_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.virtual_time._REAL_PATIENCE_S", 0.01)

    async def main(loop: VirtualTimeLoop) -> None:
        await loop.create_future()

    with pytest.raises(StoodStill, match="nothing can happen any more"):
        run(main, START_NS)
