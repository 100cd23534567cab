"""The runs of the kill loop: every kind of work, in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from perdure import Flow, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext

__all__ = ["KINDS", "TOKEN", "kind_of", "name_of", "program"]

KINDS: Final = ("chain", "timer", "hook", "batch", "cancel", "timer", "slow", "chain")
TOKEN: Final = "canary-kill-{}"
_LONGER_THAN_A_LEASE: Final = 2.6


def name_of(number: int) -> str:
    """The id of a run says its kind."""
    return f"{number:05}-{KINDS[number % len(KINDS)]}"


def kind_of(run_id: str) -> str:
    return run_id.partition("-")[2]


class Steps:
    """The steps; each attempt calls `ran` first."""

    def __init__(self, flow: Flow, ran: Callable[[StepContext], None]) -> None:
        self.work: Any = flow.step(self._work)
        self.flaky: Any = flow.step(retry=RetryPolicy.fixed(4, timedelta(milliseconds=80)))(self._flaky)
        self.hasty: Any = flow.step(retry=RetryPolicy.fixed(3, timedelta()))(self._hasty)
        self.blocking: Any = flow.step(inline=True)(self._blocking)
        self.lengthy: Any = flow.step(self._lengthy)
        self._ran = ran

    def _work(self, context: StepContext) -> str:
        self._ran(context)
        time.sleep(0.002)
        return context.step_id

    async def _flaky(self, context: StepContext) -> str:
        self._ran(context)
        await asyncio.sleep(0.001)
        return _unless_first(context)

    def _hasty(self, context: StepContext) -> str:
        self._ran(context)
        return _unless_first(context)

    def _blocking(self, context: StepContext) -> str:
        """Stops the event loop, as inline steps must not; leases are renewed all the same."""
        self._ran(context)
        time.sleep(0.05)
        return context.step_id

    async def _lengthy(self, context: StepContext) -> str:
        self._ran(context)
        await asyncio.sleep(_LONGER_THAN_A_LEASE)
        return context.step_id


def _unless_first(context: StepContext) -> str:
    if context.attempt == 1:
        raise RuntimeError("not the first time")
    return context.step_id


def _through(ctx: WorkflowContext, *steps: tuple[str, Any]) -> RuntimeCommand | None:
    """The first of these steps that is not done yet."""
    for step_id, step in steps:
        if not ctx.step_completed(step_id):
            return ctx.schedule_step(step_id, step)
    return None


def program(ran: Callable[[StepContext], None]) -> Flow:
    """All workflows, one for each kind."""
    flow = Flow()
    steps = Steps(flow, ran)
    _add_simple_ones(flow, steps)
    _add_those_that_meet_others(flow, steps)
    return flow


def _add_simple_ones(flow: Flow, steps: Steps) -> None:
    @flow.workflow("chain")
    def chain(ctx: WorkflowContext) -> RuntimeCommand:
        done = _through(ctx, ("a", steps.work), ("b", steps.hasty), ("c", steps.flaky), ("d", steps.work))
        return done or ctx.complete("done")

    @flow.workflow("slow")
    def slow(ctx: WorkflowContext) -> RuntimeCommand:
        return _through(ctx, ("first", steps.lengthy), ("then", steps.work)) or ctx.complete("done")

    @flow.workflow("timer")
    def timer(ctx: WorkflowContext) -> RuntimeCommand:
        for n, delay in enumerate((0.3, 1.1)):
            if command := _through(ctx, (f"before-{n}", steps.work)):
                return command
            if not ctx.wait_completed(f"wait-{n}"):
                return ctx.wait_for(f"wait-{n}", timedelta(seconds=delay))
        return _through(ctx, ("after", steps.work)) or ctx.complete("done")


def _add_those_that_meet_others(flow: Flow, steps: Steps) -> None:
    @flow.workflow("hook")
    def hook(ctx: WorkflowContext) -> RuntimeCommand:
        if command := _through(ctx, ("ask", steps.work)):
            return command
        if not ctx.hook_received("answer"):
            return ctx.create_hook("answer", token=TOKEN.format(ctx.run_id))
        return _through(ctx, ("thank", steps.flaky)) or ctx.complete(ctx.hook_payload("answer"))

    @flow.workflow("batch")
    def batch(ctx: WorkflowContext) -> RuntimeCommand:
        parts = [(f"part-{n}", steps.flaky if n == 2 else steps.work) for n in range(6)]
        if not all(ctx.step_completed(step_id) for step_id, _ in parts):
            return ctx.schedule_steps([ctx.schedule_step(*part) for part in parts], concurrency=3)
        return _through(ctx, ("sum", steps.blocking)) or ctx.complete("done")

    @flow.workflow("cancel")
    def cancel(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.cancellation_request() is not None:
            return _through(ctx, ("undo", steps.work)) or ctx.cancel()
        return _through(ctx, ("do", steps.work)) or ctx.create_hook("never", token=TOKEN.format(ctx.run_id))
