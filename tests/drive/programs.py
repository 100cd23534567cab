"""Workflows that use every primitive, each with what its host does from outside, for tests that cut histories short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from scenarios.kit import TOKEN, Clock

from perdure import (
    ChildOperationReference,
    Flow,
    FlowEngine,
    NonRetryable,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowProgress,
    WorkflowRunSnapshot,
)

__all__ = ["PROGRAMS", "Program", "carry_on"]


@dataclass
class Program:
    """A workflow called `flow`, and a count of the calls of each step. Steps depend on their attempt, never on the past."""

    ask: Callable[[WorkflowContext], RuntimeCommand]
    calls: Counter[str] = field(default_factory=Counter)

    def flow(self) -> Flow:
        flow = Flow()

        @flow.step
        async def work(context: StepContext) -> str:
            self.calls[context.step_id] += 1
            return f"{context.step_id} by attempt {context.attempt}"

        @flow.step(inline=True)
        def flaky(context: StepContext) -> str:
            self.calls[context.step_id] += 1
            if context.attempt < 3:
                raise ValueError(f"attempt {context.attempt}")
            return f"{context.step_id} by attempt {context.attempt}"

        @flow.step
        async def never(context: StepContext) -> None:
            self.calls[context.step_id] += 1
            raise ValueError("never")

        @flow.step
        async def declined(context: StepContext) -> None:
            self.calls[context.step_id] += 1
            raise NonRetryable("declined")

        flow.workflow("flow")(self.ask)
        return flow


LATER = timedelta(seconds=60)
AGAIN = RetryPolicy.fixed(3)


def everything(ctx: WorkflowContext) -> RuntimeCommand:
    """Facts, a step, a batch with immediate retries, a hook beside a timer, a fallback, a disposal."""
    if ctx.progress("begun") is None:
        return ctx.record_progress(WorkflowProgress("begun", 0, total=3))
    if ctx.child_operation("ci") is None:
        return ctx.link_child_operation(ChildOperationReference("ci", "build", "job-1"))
    if not ctx.step_completed("one"):
        return ctx.schedule_step("one", "work")
    if not (ctx.step_completed("two") and ctx.step_completed("three")):
        return ctx.schedule_steps([ctx.step("two", "flaky", retry=AGAIN), ctx.step("three", "work")])
    opened = [ctx.create_hook("spare", f"{TOKEN}-spare"), ctx.wait_for("timer", LATER)]
    if not ctx.hook_received("approval"):
        return ctx.schedule_all([ctx.create_hook("approval", TOKEN), *opened])
    if not ctx.hook_disposed("spare"):
        return ctx.dispose_hook("spare")
    if ctx.step_failed("pay") is None:
        return ctx.schedule_step("pay", "declined", retry=AGAIN.continue_workflow_on_failure())
    if not ctx.wait_completed("timer"):
        return ctx.schedule_all(opened)
    if not ctx.step_completed("late"):
        return ctx.schedule_step("late", "flaky", retry=RetryPolicy.fixed(3, LATER))
    outputs = [ctx.step_output(step_id) for step_id in ("one", "two", "three", "late")]
    return ctx.complete([*outputs, ctx.hook_payload("approval"), ctx.step_failed("pay")])


def failing_batch(ctx: WorkflowContext) -> RuntimeCommand:
    """A member that fails for good under `fail_run`, one that is done by then, one that waits for its retry."""
    if not ctx.step_completed("done"):
        return ctx.schedule_step("done", "work")
    late = ctx.step("late", "never", retry=RetryPolicy.fixed(9, LATER))
    return ctx.schedule_steps([ctx.step("bad", "never", retry=RetryPolicy.fixed(2)), late])


def non_retryable(ctx: WorkflowContext) -> RuntimeCommand:
    """A final failure that no policy retries, with a hook open."""
    return ctx.schedule_all([ctx.create_hook("h", TOKEN), ctx.step("pay", "declined")])


def cancelled(ctx: WorkflowContext) -> RuntimeCommand:
    """The host asks for cancellation; the clean-up needs a step and a retry, then the run ends cancelled."""
    if ctx.cancellation_request() is None:
        members = [ctx.wait_for("timer", timedelta(days=9)), ctx.create_hook("h", TOKEN)]
        return ctx.schedule_all([*members, ctx.step("late", "never", retry=RetryPolicy.fixed(9, timedelta(days=9)))])
    if not ctx.step_completed("undo"):
        return ctx.schedule_step("undo", "flaky", retry=AGAIN)
    return ctx.cancel()


def timed_out(ctx: WorkflowContext) -> RuntimeCommand:
    """The workflow ends itself when its timer is over."""
    if ctx.wait_completed("deadline"):
        return ctx.timeout("2030-01-01T00:00:00Z", "too late")
    return ctx.wait_for("deadline", LATER)


PROGRAMS = [everything, failing_batch, non_retryable, cancelled, timed_out]


async def carry_on(engine: FlowEngine, clock: Clock, run_id: str) -> WorkflowRunSnapshot:
    """Drives the run to its end, doing what its host would do whenever it is suspended."""
    snapshot = await engine.drive(run_id)
    for _ in range(20):
        if snapshot.terminal:
            return snapshot
        await _host(engine, clock, snapshot)
        snapshot = await engine.snapshot(run_id)
    raise AssertionError(f"the run does not come to an end: {snapshot}")


async def _host(engine: FlowEngine, clock: Clock, snapshot: WorkflowRunSnapshot) -> None:
    run_id = snapshot.run_id
    hooks = {hook_id for hook_id, hook in snapshot.hooks.items() if hook.status == "active"}
    call: Awaitable[object]
    if "approval" in hooks:
        call = engine.resume_hook(run_id, "approval", {"by": "ada"})
    elif snapshot.cancellation is None and {"h", "late"} <= hooks | set(snapshot.steps):
        call = engine.request_cancellation(run_id, "customer left")
    else:
        clock.advance(seconds=61)
        call = engine.resume_scheduled_run(run_id, clock.now)
    await call
