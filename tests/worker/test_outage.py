"""What logs say of a store that is away: at once, ever more seldom, and when it is back."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from scenarios.kit import Clock

from perdure import FlowEngine
from perdure.errors import StoreUnavailable
from perdure.outage import Outage
from perdure.stores import MemoryEventStore
from perdure.testing.virtual_time import VirtualTimeLoop, run
from worker.kit import CountingStore, gated, working


def in_virtual_time(story: Any) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await story(loop)

    run(main, Clock().ns)


def test_an_outage_is_told_of_when_it_is_twice_as_long(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualTimeLoop) -> None:
        outage, began, told = Outage("it fails", "it works"), loop.time(), list[float]()
        outage.over()
        for _ in range(700):
            outage.failed("no answer")
            if len(caplog.records) > len(told):
                told.append(loop.time() - began)
            await asyncio.sleep(0.1)
        outage.over()
        outage.over()
        outage.failed("no answer")
        assert [round(seconds) for seconds in told] == [0, 1, 2, 4, 8, 16, 32, 64]

    in_virtual_time(story)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["it fails, and this is tried again: no answer"] * 8 + ["it works, after 70.0 s", lines[0]]


def test_a_store_that_is_away_under_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Ten minutes away: every loop that meets it says so some ten times, with the store's own words, and says when it is over."""

    async def story(loop: VirtualTimeLoop) -> None:
        begun, gate = asyncio.Event(), asyncio.Event()
        counting: Any = CountingStore(MemoryEventStore(loop.clock_ns))
        long = timedelta(hours=1)
        async with FlowEngine(gated(lambda step_id: begun.set(), gate), counting, lease_ttl=long) as engine:
            await engine.submit("gated", run_id="r")
            async with working(engine, poll=timedelta(seconds=1)):
                await begun.wait()
                away = [StoreUnavailable("postgresql://db: connection refused")] * 10_000
                counting.failing = {"outlook": away, "last_sequences": list(away)}
                await engine.store.renew("nobody", [], ttl_ns=1)
                await asyncio.sleep(600)
                counting.failing = {}
                await asyncio.sleep(600)
                gate.set()
                await asyncio.sleep(10)
                assert (await engine.snapshot("r")).status == "completed"

    in_virtual_time(story)
    failing = [r.getMessage() for r in caplog.records if "and this is tried again" in r.getMessage()]
    why = "and this is tried again: store_unavailable: postgresql://db: connection refused"
    counts = Counter(failing)
    assert set(counts) == {f"the worker cannot look for runs, {why}", f"driven runs cannot be watched, {why}"}
    assert all(9 <= count <= 11 for count in counts.values())
    assert caplog.text.count("the worker looks for runs again, after ") == 1
    assert caplog.text.count("driven runs are watched again, after ") == 1
