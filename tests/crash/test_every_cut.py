"""Every event prefix and every commit of a run that uses every primitive (R18, spec 04 §4.6).

`tests/drive/test_prefixes.py` does the same for small programs; this one holds all of them together: two runs, one linked to
the other, one of them cancelled by its host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from scenarios.kit import Clock, Crash, WatchedStore, World

from crash.program import DOOMED, MAIN, carry_on, everything, summary
from perdure import Envelope, FlowEngine
from perdure.kernel import KernelName
from perdure.stores import MemoryEventStore
from perdure.stores.base import FlowEventStore

FINAL = {"step_completed", "step_failed", "step_non_retryable", "step_cancelled"}
RUNS = (MAIN, DOOMED)


def fresh(kernel: KernelName) -> World:
    """A world with nothing in it."""
    clock = Clock()
    return World(kernel, MemoryEventStore(clock), clock)


async def ends(engine: FlowEngine) -> list[object]:
    return [summary(await engine.snapshot(run_id)) for run_id in RUNS]


async def whole(kernel: KernelName, mode: str) -> tuple[list[object], dict[str, list[Envelope]]]:
    """How the uninterrupted runs end, and their histories."""
    world = fresh(kernel)
    async with world.engine(everything(lambda _: None), commit=mode) as engine:
        await carry_on(engine, world.clock)
        return await ends(engine), {run_id: await engine.history(run_id) for run_id in RUNS}


def settled(run_id: str, history: Sequence[Envelope]) -> set[str]:
    """`run/step` of each step whose last word is in the history."""
    return {f"{run_id}/{e.subject[1]}" for e in history if e.subject and e.type in FINAL}


async def settled_in(store: FlowEventStore) -> set[str]:
    found: set[str] = set()
    for run_id in await store.run_ids():
        found |= settled(run_id, Envelope.parse_lines(await store.history(run_id)))
    return found


def steps_of(effects: Sequence[str]) -> set[str]:
    return {effect.partition(" ")[0] for effect in effects}


async def test_the_program_uses_every_primitive(kernel_name: KernelName) -> None:
    """All event types of ours but those of a failed or forced end are in the two histories."""
    _, histories = await whole(kernel_name, "staged")
    types = Counter(e.type for history in histories.values() for e in history)
    assert set(types) == {
        *("run_created", "run_started", "run_completed", "run_cancellation_requested", "run_cancelled"),
        *("run_progress_recorded", "child_operation_linked"),
        *("step_created", "step_started", "step_completed", "step_retrying", "step_non_retryable"),
        *("wait_created", "wait_completed", "hook_created", "hook_received", "hook_disposed"),
    }


@pytest.mark.parametrize("cut_run", RUNS)
async def test_every_prefix_comes_to_the_same_end(kernel_name: KernelName, cut_run: str) -> None:
    """One run cut after any event, the other not begun or whole: both end as if nothing had happened, and what was settled is
    not run again."""
    end, histories = await whole(kernel_name, "staged")
    history = histories[cut_run]
    for cut in range(1, len(history) + 1):
        world = fresh(kernel_name)
        prefix = history[:cut]
        if cut_run == MAIN:  # it links to the other, which must be there
            await world.plant(DOOMED, histories[DOOMED])
        await world.plant(cut_run, prefix)
        world.clock.ns = prefix[-1].timestamp.ns
        effects: list[str] = []
        async with world.engine(everything(effects.append)) as engine:
            await carry_on(engine, world.clock)
            assert await ends(engine) == end, f"cut after event {cut}"
            assert [e.raw for e in (await engine.history(cut_run))[:cut]] == [e.raw for e in prefix]
        assert not settled(cut_run, prefix) & steps_of(effects), f"cut after event {cut}"


async def interrupted(world: World, mode: str, end: list[object], **crash: int) -> bool:
    """The runs with their engine ended at one commit, then carried on by another; whether there was a crash."""
    first: list[str] = []
    second: list[str] = []
    watched = WatchedStore(world.store).crash(**crash)
    crashed = False
    async with world.engine(everything(first.append), watched, commit=mode, lease=False) as engine:
        try:
            await carry_on(engine, world.clock)
        except Crash:
            crashed = True
    done = await settled_in(world.store)
    async with world.engine(everything(second.append), commit=mode, lease=False) as engine:
        await carry_on(engine, world.clock)
        assert await ends(engine) == end
    assert not done & steps_of(second)
    return crashed


@pytest.mark.parametrize(("kernel", "mode"), [("rust", "staged"), ("pure", "staged"), ("rust", "each")])
@pytest.mark.parametrize("side", ["before", "after"])
async def test_every_commit_may_be_the_last(side: str, kernel: KernelName, mode: str) -> None:
    """The engine ends right before or right after each of its commits in turn; the second one comes to the same end, and
    nothing that was committed runs again. On SQLite real processes do the same: scenario 60."""
    end, _ = await whole(kernel, mode)
    number, crashed = 0, True
    while crashed:
        number += 1
        crashed = await interrupted(fresh(kernel), mode, end, **{side: number})
    assert number > 20
