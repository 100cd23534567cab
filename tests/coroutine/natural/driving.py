"""How a natural workflow is driven by hand, and how long the tests look (`make natural` looks everywhere)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from coroutine.natural.kit import Natural, answer, flow, outcome
from coroutine.world import World
from perdure.kernel import Kernel

__all__ = ["EVERYWHERE", "end", "finish", "happen", "played", "sample", "started"]

T = TypeVar("T")

EVERYWHERE = os.environ.get("NATURAL") == "everywhere"


def sample(items: Sequence[T], count: int, seed: str) -> list[T]:
    """Some of them, the same ones each time and in their order; all of them in the long form."""
    if EVERYWHERE or len(items) <= count:
        return list(items)
    chosen = sorted(Random(seed).sample(range(len(items)), count))
    return [items[index] for index in chosen]


def started(kernel: Kernel, natural: Natural) -> World:
    return World(kernel, flow, natural.workflow, natural.input, strict=EVERYWHERE)


def played(kernel: Kernel, natural: Natural, random: Random | None = None) -> World:
    """A run whose open items are resolved from the oldest on, or in a random order."""
    world = started(kernel, natural)
    finish(world, random)
    return world


def finish(world: World, random: Random | None = None) -> None:
    """Resolves what is open until the run ends."""
    for _ in range(500):
        if world.run.terminal or not (still := world.open()):
            break
        happen(world, still[0] if random is None else random.choice(still))
    assert world.run.terminal, f"nothing is open any more: {world.story}"


def happen(world: World, item: str) -> None:
    """One open item is resolved as its nature is."""
    kind, _, subject = item.partition(" ")
    if kind == "wait":
        world.fire(subject)
    elif kind == "hook":
        world.receive(subject, answer(subject))
    else:
        world._play_step(subject, outcome)


def end(world: World) -> tuple[str, Any, str | None]:
    return world.status, world.output, world.error
