"""A run that lives through every kind of event it can; its secrets and payloads all begin with one word."""

from __future__ import annotations

from datetime import timedelta

from scenarios.kit import TOKEN, World

from perdure import (
    ChildOperationReference,
    Envelope,
    Flow,
    HookMetadata,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowProgress,
)
from perdure.observe import Observation, Observer
from perdure.spec import WorkflowSpec

__all__ = ["CANARY", "flow", "observation_of", "sequences", "take_the_tour"]

CANARY = "canary"
assert TOKEN.startswith(CANARY)

flow = Flow()


@flow.step(inline=True, retry=RetryPolicy.fixed(2))
def flaky(word: str, step: StepContext) -> str:
    if step.attempt == 1:
        raise ValueError(f"{CANARY}-error")
    return f"{CANARY}-output {word}"


@flow.step(inline=True, retry=RetryPolicy.none().continue_workflow_on_failure())
def broken(word: str) -> str:
    raise ValueError(f"{CANARY}-error {word}")


@flow.workflow("tour", version="3")
def tour(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.progress("plan"):
        return ctx.record_progress(WorkflowProgress("plan", 1, 2, f"{CANARY}-message", {"of": f"{CANARY}-details"}))
    if not ctx.child_operation("mail"):
        return ctx.link_child_operation(ChildOperationReference("mail", "smtp", "m-1", metadata=f"{CANARY}-metadata"))
    if not ctx.step_completed("left"):
        return ctx.schedule_steps([ctx.step(id, flaky, f"{CANARY}-input") for id in ("left", "right")])
    if ctx.step_failed("lost") is None:
        return ctx.schedule_step("lost", broken, f"{CANARY}-input")
    if not ctx.wait_completed("pause"):
        return ctx.wait_for("pause", timedelta(hours=1))
    if not ctx.hook_received("approval"):
        return ctx.schedule_all(
            [
                ctx.create_hook("approval", TOKEN, HookMetadata.human_approval(f"{CANARY}-subject")),
                ctx.create_hook("second", f"{TOKEN}-2"),
            ]
        )
    if not ctx.hook_disposed("second"):
        return ctx.dispose_hook("second")
    if ctx.cancellation_request():
        return ctx.cancel()
    return ctx.create_hook("third", f"{TOKEN}-3")


async def take_the_tour(world: World, observer: Observer) -> list[Envelope]:
    """Drives run `r` through all of it under this observer; gives its history."""
    async with world.engine(flow, observer=observer) as engine:
        await engine.start("tour", f"{CANARY}-input", run_id="r")
        world.clock.advance(hours=2)
        await engine.resume_due_waits(world.clock.now)
        await engine.resume_hook_by_token(TOKEN, f"{CANARY}-payload")
        await engine.record_progress("r", WorkflowProgress("host", 1, message=f"{CANARY}-message"))
        await engine.request_cancellation("r", f"{CANARY}-reason")
        return await engine.history("r")


def observation_of(sequence: int = 1, run_id: str = "r", event: bytes = b'{"type":"run_started"}') -> Observation:
    """An observation made by hand."""
    line = (
        b'{"run_id":"%b","sequence":%d,"event_id":"6f0c34c1-0000-4000-8000-%012d",'
        b'"timestamp":"2026-01-01T00:00:00Z","event":%b}' % (run_id.encode(), sequence, sequence, event)
    )
    return Observation(Envelope.parse(line), WorkflowSpec.python("order", "2"), "running")


def sequences(seen: list[Observation]) -> list[int]:
    return [observation.envelope.sequence for observation in seen]
