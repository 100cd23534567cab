"""The workflows of the recorded histories. FROZEN: recorded runs of earlier releases are carried on by this very code, so new
primitives get new workflows beside these.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from perdure import (
    AsyncContext,
    ChildOperationReference,
    Flow,
    FlowEngine,
    NonRetryable,
    RetryAfter,
    RetryPolicy,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StepContext,
    StepFailed,
    WorkflowCancelled,
    WorkflowContext,
    WorkflowProgress,
)
from perdure.errors import FlowError
from perdure.instant import Instant

__all__ = ["BUILDS", "ENDS", "START", "TOKEN", "Clock", "carry_on", "make_flow"]

TOKEN: Final = "canary-recorded"
START: Final = "2026-01-01T00:00:00Z"
MINUTE: Final = timedelta(minutes=1)
AT_ONCE: Final = RetryPolicy.fixed(3)
LATER: Final = RetryPolicy.fixed(3, MINUTE)
GROWING: Final = RetryPolicy.exponential(4, MINUTE, 10 * MINUTE)
BUILDS: Final = RuntimeBuildCompatibility("build-1", accept_unpinned=True)
BATCH: Final = ("x", "y", "z")

ENDS: Final = {
    "async-asking": "completed",
    "async-cancelled": "cancelled",
    "async-parade": "completed",
    "asking": "completed",
    "cancelled": "cancelled",
    "cancelling": "cancelled",
    "declined": "failed",
    "exhausted": "failed",
    "failed": "failed",
    "force-cancelled": "cancelled",
    "handed-over": "completed",
    "host-shutdown": "failed",
    "host-timeout": "failed",
    "parade": "completed",
    "pending": "completed",
    "retrying": "completed",
    "running": "completed",
    "timed-out": "failed",
    "waiting": "completed",
    "with-detail": "completed",
}
"""How each recorded run ends, once it is carried on."""


class Clock:
    """Nanoseconds since 1970; stands still until somebody moves it."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __call__(self) -> int:
        return self.ns


def make_flow() -> Flow:
    """The workflows, each in version 1."""
    flow = Flow()

    @flow.step(timeout=timedelta(hours=1))
    async def work(context: StepContext, value: Any) -> str:
        return f"{context.step_id} {value} by attempt {context.attempt}"

    @flow.step(inline=True)
    def flaky(context: StepContext) -> str:
        if context.attempt == 1:
            raise ValueError("the first attempt fails")
        if context.attempt == 2 and context.step_id == "patient":
            raise RetryAfter(3 * MINUTE)
        return f"{context.step_id} by attempt {context.attempt}"

    @flow.step(inline=True)
    def broken(context: StepContext) -> str:
        raise ValueError(f"attempt {context.attempt} fails like all")

    @flow.step(inline=True)
    def declining(context: StepContext) -> None:
        raise NonRetryable("declined")

    for function in (parade, one_step, waiting, asking, retrying, cancelling, declined, exhausted, failed, timed_out):
        flow.workflow(function.__name__.replace("_", "-"), version="1")(function)

    @flow.workflow("async-parade", version="1")
    async def async_parade(ctx: AsyncContext) -> Any:
        ctx.record_progress(WorkflowProgress("begun", 0, total=3))
        first = await ctx.step(work, 1)
        pair = await ctx.gather(ctx.step(work, 2), ctx.step(flaky))
        timer = ctx.timer(timedelta(hours=9))
        hook = ctx.hook(str, id="approval", token=f"{TOKEN}-async")
        winner = await ctx.race(hook, ctx.sleep(2 * MINUTE))
        timer.close()
        hook.dispose()
        try:
            await ctx.step(declining)
        except StepFailed as error:
            refused = error.error
        async with ctx.timeout(timedelta(hours=5)):
            with_scope = []
            for n in range(2):
                with ctx.scope(f"turn-{n}"):
                    with_scope.append(await ctx.step(work, n))
        await ctx.sleep_until("2026-01-01T00:30:00Z")
        return [first, *pair, winner is hook, refused, with_scope]

    @flow.workflow("async-asking", version="1")
    async def async_asking(ctx: AsyncContext) -> Any:
        return await ctx.hook(dict, id="answer", token=f"{TOKEN}-async-asking", metadata={"for": "ada"})

    @flow.workflow("async-cancelled", version="1")
    async def async_cancelled(ctx: AsyncContext) -> Any:
        try:
            await ctx.sleep(timedelta(days=9))
        except WorkflowCancelled:
            async with ctx.cleanup():
                await ctx.step(work, "undo")
            raise

    return flow


def parade(ctx: WorkflowContext) -> RuntimeCommand:
    """Every primitive of the command form, one after the other."""
    return _facts_and_steps(ctx) or _open_work(ctx) or _what_came_of_it(ctx)


def _facts_and_steps(ctx: WorkflowContext) -> RuntimeCommand | None:
    if ctx.progress("begun") is None:
        return ctx.record_progress(WorkflowProgress("begun", 0, total=9))
    if ctx.child_operation("sibling") is None:
        return ctx.link_child_operation(ChildOperationReference("sibling", "run", "op-1", flow_run_id="handed-over"))
    for step_id in ("one", "two"):
        if not ctx.step_completed(step_id):
            return ctx.schedule_step(step_id, "work", {"n": 1, "text": "é\n\"'"})
    if not all(ctx.step_completed(step_id) for step_id in BATCH):
        others = [ctx.step(step_id, "work", 2) for step_id in BATCH[1:]]
        return ctx.schedule_steps([ctx.step("x", "flaky", retry=AT_ONCE), *others], concurrency=2)
    return None


def _open_work(ctx: WorkflowContext) -> RuntimeCommand | None:
    if not ctx.hook_received("approval"):
        approval = ctx.create_hook("approval", f"{TOKEN}-parade", {"for": "ada"})
        spare = ctx.create_hook("spare", f"{TOKEN}-spare")
        return ctx.schedule_all([approval, spare, ctx.wait_for("unused", 9 * MINUTE)])
    if not ctx.hook_disposed("spare"):
        return ctx.schedule_all([ctx.dispose_hook("spare"), ctx.close_wait("unused")])
    if not ctx.wait_completed("until"):
        return ctx.wait_until("until", "2026-01-01T00:05:00Z")
    return None


def _what_came_of_it(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("patient"):
        return ctx.schedule_step("patient", "flaky", retry=GROWING)
    if ctx.step_failed("pay") is None:
        return ctx.schedule_step("pay", "declining", retry=AT_ONCE.continue_workflow_on_failure())
    outputs = [ctx.step_output(step_id) for step_id in ("one", "two", *BATCH, "patient")]
    return ctx.complete([*outputs, ctx.hook_payload("approval"), ctx.step_failed("pay")])


def one_step(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("a"):
        return ctx.schedule_step("a", "work", ctx.input)
    return ctx.complete(ctx.step_output("a"))


def waiting(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.wait_completed("w"):
        return ctx.wait_until("w", "2026-01-01T01:00:00.000000001Z")
    return ctx.complete("waited")


def asking(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.hook_received("h"):
        return ctx.create_hook("h", f"{TOKEN}-asking")
    return ctx.complete(ctx.hook_payload("h"))


def retrying(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("late"):
        return ctx.schedule_step("late", "flaky", retry=LATER)
    return ctx.complete(ctx.step_output("late"))


def cancelling(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.cancellation_request() is None:
        late = ctx.step("late", "flaky", retry=LATER)
        return ctx.schedule_all([late, ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}"), ctx.wait_for("w", 99 * MINUTE)])
    if not ctx.step_completed("undo"):
        return ctx.schedule_step("undo", "flaky", retry=LATER)
    return ctx.cancel()


def declined(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.schedule_steps([ctx.step("pay", "declining"), ctx.step("late", "flaky", retry=LATER)])


def exhausted(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.schedule_step("never", "broken", retry=RetryPolicy.fixed(2))


def failed(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.fail("nothing to do")


def timed_out(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.timeout("2026-01-01T00:00:00Z", "too late")


async def carry_on(engine: FlowEngine, run_id: str, clock: Clock) -> str:
    """Carries a run on to its end, from wherever it stands, as its host; gives its status."""
    for _ in range(30):
        snapshot = await engine.drive(run_id)
        if snapshot.terminal:
            return str(snapshot.status)
        for hook in snapshot.hooks.values():
            if hook.status == "active" and hook.hook_id != "spare":
                await engine.resume_hook(run_id, hook.hook_id, {"by": "ada"} if hook.hook_id != "approval" else "yes")
        if run_id.endswith("cancelled"):
            await engine.request_cancellation(run_id, "customer left")
        clock.ns += 7 * 60 * 10**9
        for wakeup in await engine.list_due_wakeups(Instant(clock.ns)):
            if wakeup.run_id == run_id:
                await engine.resume_scheduled_run(run_id, Instant(clock.ns))
    raise FlowError(f"run {run_id} does not come to an end")
