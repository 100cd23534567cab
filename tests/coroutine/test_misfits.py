"""A group that gives failures as values gives what does not fit its type as one, too."""

from __future__ import annotations

from typing import Any

from coroutine.world import World
from perdure import AsyncContext, Flow, Serialization
from perdure.kernel import Kernel


def test_gather_gives_a_payload_that_does_not_fit_as_a_value(kernel: Kernel) -> None:
    flow = Flow()
    seen: list[tuple[Any, ...]] = []

    @flow.step
    def work() -> str:
        return ""

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        hook = ctx.hook(int, id="h", token="canary-h")
        seen.append(await ctx.gather(ctx.step(work), hook, ctx.step(work), return_exceptions=True))

    world = World(kernel, flow, w)
    world.done("work", 1)
    world.done("work#2", "fits")
    world.receive("h", "one")
    assert world.status == "completed"
    first, second, third = seen[-1]
    assert isinstance(first, Serialization) and "the output of step 'work'" in str(first)
    assert isinstance(second, Serialization) and "the payload of hook 'h'" in str(second)
    assert third == "fits"
