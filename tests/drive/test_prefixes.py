"""Every prefix of a history, and every commit at which the engine may end, leads to the same end (R18, spec 4.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from scenarios.kit import Clock, Crash, WatchedStore, World

from drive.programs import PROGRAMS, Program, carry_on
from perdure import Envelope, FlowEngine, RunNotFound, RuntimeCommand, WorkflowContext, WorkflowRunSnapshot
from perdure.kernel import KernelName
from perdure.stores import MemoryEventStore

Ask = Callable[[WorkflowContext], RuntimeCommand]

DEAD_AFTER_SECONDS = 31
"""The lease of an engine that crashed in this process expires; nobody can see that it is dead (R2)."""


def end_of(snapshot: WorkflowRunSnapshot) -> tuple[object, ...]:
    """What must be the same however often the run was interrupted; a deadline tells when, not what."""
    return snapshot.status, snapshot.output, snapshot.error, snapshot.terminal_outcome


def fresh(kernel: KernelName, now: int | None = None) -> World:
    """A world with nothing in it, its clock at `now`."""
    clock = Clock()
    clock.ns = clock.ns if now is None else now
    return World(kernel, MemoryEventStore(clock), clock)


async def whole(kernel: KernelName, ask: Ask, mode: str) -> tuple[list[Envelope], WorkflowRunSnapshot]:
    """The history of the uninterrupted run."""
    world = fresh(kernel)
    async with world.engine(Program(ask).flow(), commit=mode) as engine:
        await engine.submit("flow", {"n": 1}, run_id="r")
        snapshot = await carry_on(engine, world.clock, "r")
        return await engine.history("r"), snapshot


def settled_steps(history: list[Envelope]) -> set[str]:
    """Steps whose last word is in the history: they must not be called again."""
    final = {"step_completed", "step_failed", "step_non_retryable", "step_cancelled"}
    return {e.subject[1] for e in history if e.subject and e.type in final}


@pytest.mark.parametrize("mode", ["staged", "each"])
@pytest.mark.parametrize("ask", PROGRAMS)
async def test_every_prefix_comes_to_the_same_end(kernel_name: KernelName, ask: Ask, mode: str) -> None:
    """Cut after any event, the run is carried on to the end of the whole, and what was settled is not run again."""
    history, end = await whole(kernel_name, ask, mode)
    assert len(history) >= 5
    for cut in range(1, len(history) + 1):
        prefix = history[:cut]
        world = fresh(kernel_name, prefix[-1].timestamp.ns)
        await world.plant("r", prefix)
        program = Program(ask)
        async with world.engine(program.flow(), commit=mode) as engine:
            snapshot = await carry_on(engine, world.clock, "r")
            now = await engine.history("r")
        assert end_of(snapshot) == end_of(end), f"cut after event {cut}"
        assert [e.raw for e in now[:cut]] == [e.raw for e in prefix]
        assert not settled_steps(prefix) & set(program.calls), f"cut after event {cut}"


async def test_the_empty_prefix_is_a_start(kernel_name: KernelName) -> None:
    """Of a run that never was only `start` makes something."""
    world = fresh(kernel_name)
    async with world.engine(Program(PROGRAMS[0]).flow()) as engine:
        with pytest.raises(RunNotFound):
            await engine.drive("r")
        await engine.start("flow", {"n": 1}, run_id="r")
        assert (await carry_on(engine, world.clock, "r")).status == "completed"


async def begin(engine: FlowEngine, world: World) -> WorkflowRunSnapshot:
    await engine.start("flow", {"n": 1}, run_id="r")
    return await carry_on(engine, world.clock, "r")


async def interrupted(kernel: KernelName, ask: Ask, mode: str, **crash: int) -> tuple[WorkflowRunSnapshot, bool]:
    """The run with its engine ended at one commit, then carried on by a second engine; and whether there was a crash."""
    world = fresh(kernel)
    first, second = Program(ask), Program(ask)
    async with world.engine(first.flow(), WatchedStore(world.store).crash(**crash), commit=mode) as engine:
        try:
            return await begin(engine, world), False
        except Crash:
            left = await world.store.history("r") if await world.store.run_ids() else b""
    world.clock.advance(seconds=DEAD_AFTER_SECONDS)
    async with world.engine(second.flow(), commit=mode) as engine:
        snapshot = await begin(engine, world)
    assert not settled_steps(Envelope.parse_lines(left)) & set(second.calls)
    again = first.calls + second.calls - attempts_of(await world.store.history("r"))
    assert sum(again.values()) <= 2, f"more than the outcomes of the lost commit were run again: {again}"
    return snapshot, True


def attempts_of(history: bytes) -> Counter[str]:
    """How often each step was started, by its history."""
    started = (e for e in Envelope.parse_lines(history) if e.type == "step_started")
    return Counter(e.subject[1] for e in started if e.subject)


@pytest.mark.parametrize("mode", ["staged", "each"])
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("ask", PROGRAMS)
async def test_every_commit_may_be_the_last(kernel_name: KernelName, ask: Ask, side: str, mode: str) -> None:
    """The engine ends before or after each of its commits in turn; a second one comes to the same end."""
    _, end = await whole(kernel_name, ask, mode)
    number, crashed = 0, True
    while crashed:
        number += 1
        snapshot, crashed = await interrupted(kernel_name, ask, mode, **{side: number})
        assert end_of(snapshot) == end_of(end), f"{side} commit {number}"
    assert number > 2
