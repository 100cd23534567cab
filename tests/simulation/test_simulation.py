"""The simulator: the engine holds its invariants in it, it repeats itself exactly, and it notices what is broken."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest

from perdure.kernel import Reads
from perdure.testing._simulation.lanes import LaneLoop
from perdure.testing._simulation.process import Process
from perdure.testing._simulation.way import Hints
from perdure.testing.simulation import InvariantBroken, main, simulate
from simulation import knocked_out, knocked_out_workers
from simulation.knocked_out import Rule

ALL_RULES: dict[Rule, int] = {**knocked_out.RULES, **knocked_out_workers.RULES}
SEEDS = 500
BLOCK = 100
ENOUGH = 1_000
"""Seeds within which every rule that is taken out must be missed, after the one that is known to."""


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Worlds full of accidents log a lot, and nobody reads it."""
    logger = logging.getLogger("perdure")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_invariant_holds(first: int) -> None:
    for seed in range(first, first + BLOCK):
        simulate(seed)


def test_without_accidents() -> None:
    for seed in range(60):
        simulate(seed, faults=False)


@pytest.mark.parametrize("seed", range(20))
def test_stores_and_kernels_give_the_same_logs(seed: int) -> None:
    """Invariant 10, ids and timestamps included: they come from the seed."""
    told = simulate(seed)
    for other in (simulate(seed, store="sqlite"), simulate(seed, kernel="pure")):
        assert other.trace == told.trace
        assert other.histories == told.histories


def test_a_seed_repeats_itself() -> None:
    assert [simulate(seed).digest for seed in range(20)] == [simulate(seed).digest for seed in range(20)]


def test_a_seed_repeats_itself_in_another_process() -> None:
    """Nothing depends on the order of a set: the other process hashes texts differently."""
    code = "from perdure.testing.simulation import simulate; print(*(simulate(seed).digest for seed in range(15)))"
    told = [
        subprocess.run(
            [sys.executable, "-c", f"import logging; logging.disable(50); {code}"],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hashing in ("1", "2")
    ]
    assert told[0] == told[1] == [simulate(seed).digest for seed in range(15)]


def test_seeds_differ() -> None:
    assert len({simulate(seed).digest for seed in range(20)}) == 20


def first_broken(seeds: Iterable[int], **options: Any) -> InvariantBroken | None:
    for seed in seeds:
        try:
            simulate(seed, **options)
        except InvariantBroken as broken:
            return broken
    return None


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.__name__)
def test_a_rule_that_is_taken_out_is_missed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    options = rule(monkeypatch) or {}
    broken = first_broken((ALL_RULES[rule], *range(ENOUGH)), **options)
    assert broken is not None
    assert broken.seed is not None
    assert broken.trace
    assert "raised TypeError" not in str(broken)  # that would be the way in which it was taken out
    with pytest.raises(InvariantBroken) as again:
        simulate(broken.seed, **options)
    assert (str(again.value), again.value.trace) == (str(broken), broken.trace)


def test_a_decision_that_belongs_to_another_history_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The auditor asks the workflow itself, over exactly what a decision was added to (R4); here it is told otherwise."""
    answer = Process._answer

    def another(self: Process, run: Reads) -> bytes | None:
        command = answer(self, run)
        return None if command is None else command.replace(b'"input":1,', b'"input":"another",')

    monkeypatch.setattr(Process, "_answer", another)
    broken = first_broken(range(ENOUGH))
    assert "is not what the workflow asks for" in str(broken)


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--seeds", "5", "--first", "3"]) == 0
    assert "5 seeds" in capsys.readouterr().out
    knocked_out.a_parked_run_wakes_for_its_wakeups(monkeypatch)
    assert main(["--seeds", "50"]) == 1
    shown = capsys.readouterr().out
    seed = re.search(r"^seed (\d+): ", shown, re.MULTILINE)
    assert seed is not None
    assert f"make simulate SEEDS=1 SEED={seed[1]}" in shown


# -- lanes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[LaneLoop]:
    loop = LaneLoop(0, Random(1))
    yield loop
    loop.bury()
    loop.close()


def test_a_paused_lane_goes_on_later(loop: LaneLoop) -> None:
    lane = loop.new_lane("p")
    seen: list[float] = []

    async def work() -> None:
        await asyncio.sleep(1)
        seen.append(loop.time())

    async def main() -> None:
        loop.spawn(lane, work())
        await asyncio.sleep(0.5)
        loop.pause(lane)
        await asyncio.sleep(10)
        assert not seen
        loop.go_on(lane)
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)

    loop.run_until_complete(main())
    assert seen == [10.5]


def test_a_blocked_lane_leaves_its_threads(loop: LaneLoop) -> None:
    """A step that blocks the loop does not hold back the renewals; a process that is stopped or killed does."""
    lane = loop.new_lane("p", skew_ns=-5)
    thread = loop.new_thread(lane)
    seen: list[tuple[str, float]] = []

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            assert loop.own_clock_ns() == loop.clock_ns() - 5
            seen.append((name, loop.time()))

    async def main() -> None:
        loop.spawn(lane, tick("loop"))
        loop.spawn(thread, tick("thread"))
        await asyncio.sleep(0.5)
        loop.pause(lane, threads=False)
        await asyncio.sleep(1)
        assert seen == [("thread", 1.0)]
        loop.pause(lane)
        await asyncio.sleep(2)
        assert seen == [("thread", 1.0)]
        loop.go_on(lane)
        await asyncio.sleep(0.25)
        assert sorted(seen) == [("loop", 3.5), ("thread", 1.0), ("thread", 3.5)]
        loop.kill(lane)
        await asyncio.sleep(5)
        assert len(seen) == 3

    loop.run_until_complete(main())


def test_hints_are_lost_and_time_goes_on(loop: LaneLoop) -> None:
    async def heard(part: float) -> tuple[int, float]:
        hints, began = Hints(Random(1), part), loop.time()
        loop.call_later(1, hints.ring)
        return await hints.wait(0, 5), loop.time() - began

    assert loop.run_until_complete(heard(1.0)) == (1, 1.0)
    assert loop.run_until_complete(heard(0.0)) == (1, 5.0)


def test_a_killed_lane_never_goes_on(loop: LaneLoop) -> None:
    lane = loop.new_lane("p")
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        loop.spawn(lane, work())
        await asyncio.sleep(0.5)
        loop.kill(lane)
        await asyncio.sleep(10)

    loop.run_until_complete(main())
    assert seen == []
    loop.bury()
    assert seen == ["cleaned up"]


def test_inside_a_lane_callbacks_keep_their_order_and_lanes_interleave(loop: LaneLoop) -> None:
    lanes = [loop.new_lane(name) for name in "ab"]
    seen: list[tuple[str, int]] = []

    async def work(name: str) -> None:
        for number in range(20):
            loop.call_soon(seen.append, (name, number))
        await asyncio.sleep(0)

    async def main() -> None:
        for lane in lanes:
            loop.spawn(lane, work(lane.name))
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    for name in "ab":
        assert [number for who, number in seen if who == name] == list(range(20))
    assert seen != sorted(seen)
    assert seen != sorted(seen, reverse=True)
