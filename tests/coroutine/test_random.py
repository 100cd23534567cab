"""Random programs under random events: nothing but what a workflow may raise comes out, every run ends, every prefix of every
log replays, and dropping the coroutine changes no command (each ask is asked of a fresh replay, too)."""

from __future__ import annotations

import os
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from coroutine.world import World
from perdure import AsyncContext, BranchCancelled, Flow, StepFailed, WorkflowCancelled, WorkflowFailed
from perdure.kernel import load

HOUR = timedelta(hours=1)
SEEDS = int(os.environ.get("PERDURE_RANDOM_PROGRAMS", "40"))

flow = Flow(guard="off")


@flow.step
def work(item: int) -> int:
    return item


def drawn(random: Random, depth: int = 0) -> list[Any]:
    """A program: a list of operations, nested."""
    leaves = ["step", "step", "sleep", "timer", "hook", "start"]
    nodes = ["gather", "race", "timeout", "wait_for", "cleanup", "guarded", "branch", "settle", "completed"]
    kinds = leaves if depth >= 3 else [*leaves, *nodes]
    program: list[Any] = []
    for _ in range(random.randint(1, 3)):
        kind = random.choice(kinds)
        if kind in leaves:
            program.append((kind, random.randint(0, 2)))
        else:
            several = kind in ("gather", "race", "settle")
            parts = [drawn(random, depth + 1) for _ in range(random.randint(1, 3) if several else 1)]
            program.append((kind, parts))
    return program


async def run(ctx: AsyncContext, program: list[Any]) -> int:
    total = 0
    for kind, value in program:
        total += await one(ctx, kind, value)
    return total


async def one(ctx: AsyncContext, kind: str, value: Any) -> int:
    match kind:
        case "step":
            return await ctx.step(work, value)
        case "sleep":
            await ctx.sleep(HOUR)
        case "timer":
            timer = ctx.timer(HOUR)
            await ctx.step(work, value)
            timer.close()
        case "hook":
            hook = ctx.hook(int)
            first = await ctx.race(hook, ctx.sleep(HOUR))
            hook.dispose()
            return 1 if first is hook else 0
        case "start":
            beside = ctx.start(run(ctx, [("step", value), ("sleep", 0)]))
            await ctx.sleep(HOUR)
            return int(beside.done())
        case "gather":
            return sum(await ctx.gather(*(run(ctx, part) for part in value), ctx.step(work, 1)))
        case "settle":
            found = await ctx.gather(*(run(ctx, part) for part in value), return_exceptions=True)
            return sum(item for item in found if isinstance(item, int))
        case "race":
            winner = await ctx.race(*(run(ctx, part) for part in value), ctx.sleep(HOUR))
            return winner.result() or 0
        case "completed":
            handles = [ctx.start(work, 1), ctx.start(run(ctx, value[0]))]
            return sum([handle.result() async for handle in ctx.as_completed(*handles)])
        case _:
            return await block(ctx, kind, value[0])
    return 0


async def block(ctx: AsyncContext, kind: str, part: list[Any]) -> int:
    match kind:
        case "timeout":
            try:
                async with ctx.timeout(HOUR):
                    return await run(ctx, part)
            except TimeoutError:
                return 7
        case "wait_for":
            try:
                return await ctx.wait_for(run(ctx, part), HOUR)
            except TimeoutError:
                return 11
        case "cleanup":
            async with ctx.cleanup():
                return await run(ctx, part)
        case "guarded":
            try:
                return await run(ctx, part)
            except (StepFailed, WorkflowCancelled, BranchCancelled):
                async with ctx.cleanup():
                    await ctx.step(work, 9)
                raise
        case _:
            try:
                return await run(ctx, part)
            except StepFailed:
                return 13


@flow.workflow("random", fails_on=(TimeoutError,))
async def program_of(ctx: AsyncContext, seed: int) -> int:
    try:
        return await run(ctx, drawn(Random(seed)))
    except BranchCancelled as error:
        raise WorkflowFailed("a branch was cancelled") from error


def happen(world: World, random: Random) -> None:
    kind, _, subject = random.choice(world.open()).partition(" ")
    if kind == "wait":
        world.fire(subject)
    elif kind == "hook":
        if random.random() < 0.5:
            world.dispose(subject)
        else:
            world.receive(subject, 1)
    elif random.random() < 0.2:
        world.fail(subject)
    else:
        world.done(subject, random.randint(0, 3))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(seed: int) -> None:
    random = Random(f"events {seed}")
    world = World(load("rust"), flow, program_of, seed)
    for _ in range(500):
        if world.run.terminal:
            break
        if not world.open():
            break
        if random.random() < 0.04 and world.run.cancellation is None:
            world.request()
        elif random.random() < 0.1:
            world.drop()
        elif random.random() < 0.2:
            with world.together():
                for _ in range(random.randint(1, 3)):
                    if world.open():
                        happen(world, random)
        else:
            happen(world, random)
    assert world.run.terminal
    for prefix in world.prefixes():
        prefix.ask()
