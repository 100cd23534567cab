"""Scenario 53: the six ends of a run and what they look like as JSON (spec 06 §6.8), in both shells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from perdure import Flow, FlowEngine, RetryPolicy, RuntimeCommand, WorkflowContext, WorkflowRunSnapshot
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, load
from scenarios.kit import World
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

DEADLINE = "2031-01-01T00:00:00.5Z"


def ending() -> Flow:
    """Ends as its input says; without one it stays open."""
    flow = Flow()

    @flow.step
    async def never() -> None:
        raise ValueError("broken")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        match ctx.input:
            case "completed":
                return ctx.complete({"total": 5})
            case "failed":
                return ctx.fail("out of stock")
            case "timed_out":
                return ctx.timeout(DEADLINE)
            case "retry_exhausted":
                return ctx.schedule_step("pay", never, retry=RetryPolicy.none())
            case _:
                return ctx.cancel() if ctx.cancellation_request() else ctx.wait_until("w", DEADLINE)

    return flow


End = Callable[[FlowEngine], Awaitable[Any]]


def started(input: str) -> End:
    return lambda engine: engine.run("flow", input, run_id="r")


def called(name: str, *arguments: object) -> End:
    async def end(engine: FlowEngine) -> Any:
        await engine.start("flow", run_id="r")
        return await getattr(engine, name)("r", *arguments)

    return end


EXHAUSTED = {"type": "retry_exhausted", "step_id": "pay", "attempt": 1, "error": "runtime error: broken"}
ENDS: list[tuple[End, str, dict[str, Any]]] = [
    (started("completed"), "completed", {"type": "completed", "output": {"total": 5}}),
    (started("failed"), "failed", {"type": "failed", "error": "out of stock"}),
    (started("timed_out"), "failed", {"type": "timed_out", "deadline": DEADLINE}),
    (started("retry_exhausted"), "failed", EXHAUSTED),
    (called("request_cancellation"), "cancelled", {"type": "cancelled"}),
    (called("request_cancellation", "stop"), "cancelled", {"type": "cancelled", "reason": "stop"}),
    (called("force_cancel"), "cancelled", {"type": "cancelled"}),
    (called("force_cancel", ""), "cancelled", {"type": "cancelled", "reason": ""}),
    (
        called("terminate_for_timeout", DEADLINE, "late"),
        "failed",
        {"type": "timed_out", "deadline": DEADLINE, "reason": "late"},
    ),
    (called("terminate_for_host_shutdown"), "failed", {"type": "host_shutdown"}),
    (called("terminate_for_host_shutdown", "moved"), "failed", {"type": "host_shutdown", "reason": "moved"}),
]


@pytest.mark.parametrize(("end", "status", "outcome"), ENDS)
async def test_53_outcomes(
    world: World, open_engine: OpenEngine, end: End, status: str, outcome: dict[str, Any]
) -> None:
    """Outcome JSON for all six kinds round-trips; optional reason omitted. A second engine and either kernel, reading the
    history anew, say the same bytes."""
    async with open_engine(world, ending()) as engine:
        snapshot: WorkflowRunSnapshot = await end(engine)
        assert (snapshot.status, snapshot.terminal) == (status, True)
        assert normal(snapshot.terminal_outcome) == normal(outcome)
        assert orjson.loads(snapshot.json)["terminal_outcome"] == snapshot.terminal_outcome
    for kernel in ("rust", "pure"):
        run = load(kernel).project("r", await world.store.history("r"), DEFAULT_MAX_EVENT_BYTES)
        assert run.snapshot() == snapshot.json


def normal(outcome: dict[str, Any] | None) -> dict[str, Any]:
    """Fractions of a second may be written with three digits."""
    assert outcome is not None
    return {
        key: DEADLINE if key == "deadline" and value[:21] == DEADLINE[:21] else value for key, value in outcome.items()
    }


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (called("terminate_for_timeout", DEADLINE, "late"), "late"),
        (called("terminate_for_host_shutdown"), "host shut down"),
        (called("terminate_for_host_shutdown", "moved"), "moved"),
    ],
)
async def test_53_the_error_of_an_end_without_one(world: World, open_engine: OpenEngine, end: End, error: str) -> None:
    """R28: timeout and shutdown have a default error text where no reason was given."""
    async with open_engine(world, ending()) as engine:
        assert (await end(engine)).error == error
