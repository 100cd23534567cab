"""Two workflows that together use every primitive, and what their host does: the runs that get cut short.

The host acts through calls that may be repeated, so whoever carries the runs on after a crash calls `carry_on` from its
beginning. What a step does to the outside world is one line in a ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from scenarios.kit import TOKEN, Clock

from perdure import (
    ChildOperationReference,
    Flow,
    FlowEngine,
    NonRetryable,
    RetryAfter,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowProgress,
    WorkflowRunSnapshot,
)

__all__ = ["APPROVAL", "DOOMED", "MAIN", "carry_on", "everything", "summary"]

MAIN, DOOMED = "main", "doomed"
"""The run of every primitive, and the one whose cancellation is asked for."""

APPROVAL = f"{TOKEN}-approval"
MINUTE = timedelta(minutes=1)
AT_ONCE = RetryPolicy.fixed(3)
LATER = RetryPolicy.fixed(3, MINUTE)


def everything(effect: Callable[[str], None]) -> Flow:
    """The flow. `effect` is called with `run/step attempt` by every attempt."""
    flow = Flow()

    @flow.step(timeout=timedelta(hours=1))
    async def work(context: StepContext, value: int) -> str:
        effect(f"{context.run_id}/{context.step_id} {context.attempt}")
        return f"{context.step_id} {value} by attempt {context.attempt}"

    @flow.step
    def flaky(context: StepContext) -> str:
        effect(f"{context.run_id}/{context.step_id} {context.attempt}")
        if context.attempt == 1:
            raise ValueError("the first attempt fails")
        if context.attempt == 2 and context.step_id == "patient":
            raise RetryAfter(3 * MINUTE)
        return f"{context.step_id} by attempt {context.attempt}"

    @flow.step(inline=True)
    def declined(context: StepContext) -> None:
        effect(f"{context.run_id}/{context.step_id} {context.attempt}")
        raise NonRetryable("declined")

    flow.workflow(MAIN, version="1")(main)
    flow.workflow(DOOMED, version="1")(doomed)
    return flow


def main(ctx: WorkflowContext) -> RuntimeCommand:
    """Facts and steps, then open work of every kind, then what came of it."""
    return _before_the_approval(ctx) or _after_the_approval(ctx)


BATCH = ("x", "y", "z")


def _before_the_approval(ctx: WorkflowContext) -> RuntimeCommand | None:
    if ctx.progress("begun") is None:
        return ctx.record_progress(WorkflowProgress("begun", 0, total=9))
    if ctx.child_operation("sibling") is None:
        return ctx.link_child_operation(ChildOperationReference("sibling", "run", "op-1", flow_run_id=DOOMED))
    for step_id in ("one", "two"):
        if not ctx.step_completed(step_id):
            return ctx.schedule_step(step_id, "work", 1)
    if not all(ctx.step_completed(step_id) for step_id in BATCH):
        others = [ctx.step(step_id, "work", 2) for step_id in BATCH[1:]]
        return ctx.schedule_steps([ctx.step("x", "flaky", retry=AT_ONCE), *others])
    if not ctx.hook_received("approval"):
        approval = ctx.create_hook("approval", APPROVAL, {"for": "ada"})
        return ctx.schedule_all(
            [approval, ctx.create_hook("spare", f"{TOKEN}-spare"), ctx.wait_for("unused", 9 * MINUTE)]
        )
    return None


def _after_the_approval(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.hook_disposed("spare"):
        return ctx.schedule_all([ctx.dispose_hook("spare"), ctx.close_wait("unused")])
    if not ctx.wait_completed("until"):
        return ctx.wait_until("until", "2026-01-01T00:05:00Z")
    if not ctx.step_completed("patient"):
        return ctx.schedule_step("patient", "flaky", retry=LATER)
    if ctx.step_failed("pay") is None:
        return ctx.schedule_step("pay", "declined", retry=AT_ONCE.continue_workflow_on_failure())
    outputs = [ctx.step_output(step_id) for step_id in ("one", "two", *BATCH, "patient")]
    return ctx.complete([*outputs, ctx.hook_payload("approval"), ctx.step_failed("pay")])


def doomed(ctx: WorkflowContext) -> RuntimeCommand:
    """Opens a delayed retry, a hook and a wait; asked to cancel, it undoes in two steps, one of them delayed."""
    if ctx.cancellation_request() is None:
        late = ctx.step("late", "flaky", retry=LATER)
        return ctx.schedule_all([late, ctx.create_hook("h", f"{TOKEN}-doomed"), ctx.wait_for("w", 99 * MINUTE)])
    if not ctx.step_completed("undo"):
        return ctx.schedule_step("undo", "flaky", retry=AT_ONCE)
    if not ctx.step_completed("undo-late"):
        return ctx.schedule_step("undo-late", "flaky", retry=LATER)
    return ctx.cancel()


async def carry_on(engine: FlowEngine, clock: Clock, *, until_approval: bool = False) -> None:
    """Both runs, from wherever they stand, to their ends; or to the point where `main` waits for its approval."""
    await engine.start(DOOMED, run_id=DOOMED)
    await engine.start(MAIN, {"order": 7}, run_id=MAIN)
    await engine.drive(MAIN)
    if until_approval:
        return
    if (await engine.snapshot(MAIN)).hooks["approval"].status == "active":
        await engine.resume_hook_by_token(APPROVAL, {"by": "ada"})
    await engine.request_cancellation(DOOMED, "customer left")
    for _ in range(20):
        if all([(await engine.drive(run_id)).terminal for run_id in (MAIN, DOOMED)]):
            return
        clock.advance(minutes=1)
        for wakeup in await engine.list_due_wakeups(clock.now):
            await engine.resume_scheduled_run(wakeup.run_id, clock.now)
    raise AssertionError("the runs do not come to an end")


def summary(snapshot: WorkflowRunSnapshot) -> object:
    """What must be the same however often the run was interrupted."""
    statuses = {
        kind: {key: item.status for key, item in entries.items()}
        for kind, entries in (("step", snapshot.steps), ("wait", snapshot.waits), ("hook", snapshot.hooks))
    }
    attempts = {key: step.attempt for key, step in snapshot.steps.items()}
    facts = [p.progress_id for p in snapshot.progress], sorted(snapshot.child_operations)
    return snapshot.status, snapshot.terminal_outcome, snapshot.output, statuses, attempts, facts
