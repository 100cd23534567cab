"""A caller that hangs up at any moment leaves a run that others, and it, can carry on (R22)."""

from __future__ import annotations

import asyncio

import pytest
from scenarios.kit import Clock, World, stored

from crash.test_owners import one_step
from perdure.kernel import KernelName
from perdure.stores import MemoryEventStore


@pytest.mark.parametrize("again", ["same engine", "another"])
@pytest.mark.parametrize("other_way", ["cancel", "close"])
async def test_hung_up_after_any_number_of_turns(kernel_name: KernelName, again: str, other_way: str) -> None:
    """The call is cancelled, or its engine closed, after each number of turns of the event loop up to its own end."""
    turns, done = 0, False
    while not done:
        clock = Clock()
        world = World(kernel_name, MemoryEventStore(clock), clock)
        calls: list[str] = []
        engine, second = world.engine(one_step(0, calls)), world.engine(one_step(0, calls))
        call = asyncio.create_task(engine.start("flow", run_id="r"))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = call.done()
        if other_way == "close":
            await engine.close()
        else:
            call.cancel()
        await asyncio.wait([call])
        carrier = second if again == "another" or other_way == "close" else engine
        if carrier is second:
            await engine.close()
        await carrier.start("flow", run_id="r")
        assert (await carrier.snapshot("r")).output == "slow", f"after {turns} turns"
        events = await stored(world.store, "r")
        assert events.count("step_completed a") == events.count("step_started a 1") == 1
        assert set(calls) == {"a 1"}
        assert not (await world.store.lease("r")).live
        await asyncio.gather(engine.close(), second.close())
        turns += 1
    assert turns > 5
