"""Natural workflows replayed in every way: dropped after every event, from every prefix, in random arrival orders, with a
cancellation at every sequence, with what happened seen together (R18, R37, R39, R63)."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest

from coroutine.programs import ORDER, PROGRAMS, flow, outcomes
from coroutine.world import World
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel

each = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)


def played(kernel: Kernel, program: Any, random: Random | None = None, *, drop: bool = False) -> World:
    world = World(kernel, flow, program, ORDER)
    while not world.run.terminal and world.open():
        if drop:
            world.drop()
        step(world, random)
    return world


def finish(world: World) -> None:
    while not world.run.terminal:
        step(world, None)


def step(world: World, random: Random | None) -> None:
    """One thing happens: the oldest open item is resolved, or any."""
    still = world.open()
    kind, _, subject = (still[0] if random is None else random.choice(still)).partition(" ")
    if kind == "wait":
        world.fire(subject)
    elif kind == "hook":
        world.receive(subject, "yes")
    else:
        world._play_step(subject, outcomes)


@each
def test_dropped_after_every_event(kernel: Kernel, program: Any) -> None:
    plain, dropped = played(kernel, program), played(kernel, program, drop=True)
    assert plain.run.terminal
    assert plain.log == dropped.log


@each
def test_from_every_prefix(kernel: Kernel, program: Any) -> None:
    plain = played(kernel, program)
    for world in plain.prefixes():
        world.ask()
        finish(world)
        assert (world.status, world.output, world.error) == (plain.status, plain.output, plain.error)


@each
def test_in_random_orders(kernel: Kernel, program: Any) -> None:
    for seed in range(5):
        world = played(kernel, program, Random(seed))
        assert world.run.terminal
        for prefix in world.prefixes():
            prefix.ask()


@each
def test_seen_together(kernel: Kernel, program: Any) -> None:
    """Several things happen before the workflow is asked; the log replays, and the end is one that can be."""
    for seed in range(4):
        random = Random(seed)
        world = World(kernel, flow, program, ORDER)
        while not world.run.terminal and world.open():
            with world.together():
                for _ in range(random.randint(1, 3)):
                    if world.open():
                        step(world, random)
        assert world.run.terminal
        for prefix in world.prefixes():
            prefix.ask()


@each
def test_cancelled_at_every_sequence(kernel: Kernel, program: Any) -> None:
    plain = played(kernel, program)
    for prefix in plain.prefixes():
        if prefix.run.terminal:
            continue
        prefix.request("enough")
        finish(prefix)
        assert prefix.status in ("cancelled", "failed")
        for again in prefix.prefixes():
            again.ask()


@each
def test_with_a_failing_step_at_each_place(kernel: Kernel, program: Any) -> None:
    """Whatever step fails for good, the run ends, and its log replays."""
    steps = [line.split(" ", 1)[1] for line in played(kernel, program).opened() if line.startswith("step ")]
    for broken in steps:
        world = World(kernel, flow, program, ORDER)
        while not world.run.terminal and world.open():
            if f"step {broken}" in world.open():
                world.fail(broken, "runtime error: broken")
            else:
                step(world, None)
        assert world.run.terminal
        for prefix in world.prefixes():
            prefix.ask()


@each
def test_a_conflict_under_every_commit(kernel: Kernel, program: Any) -> None:
    """R4: each pass is first asked over staged events that another writer then beats; the end is the same."""
    plain = played(kernel, program)
    world = World(kernel, flow, program, ORDER)
    while not world.run.terminal and world.open():
        with world.together():
            before, lines = world.run.last_sequence, world.log
            step(world, None)
            happened = [orjson.loads(line)["event"] for line in world.log[len(lines) :].splitlines()]
            world.run, world.log = kernel.project("r", lines, DEFAULT_MAX_EVENT_BYTES), lines
            assert world.run.last_sequence == before
            staged = world.run.stage([orjson.dumps(event) for event in happened], world.clock)
            world.kept.ask(world.spec, staged)
            progress = {"progress_id": f"foreign-{before}", "completed": 0, "total": 1}
            world._append([orjson.dumps({"type": "run_progress_recorded", "progress": progress})])
            world._append([orjson.dumps(event) for event in happened])
    assert (world.status, world.output, world.error) == (plain.status, plain.output, plain.error)
    assert world.opened() == plain.opened()
