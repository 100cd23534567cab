"""Fixed bugs about histories that no sound engine writes, or that a crash leaves: 24 to 28, 36, 43."""

from __future__ import annotations

from typing import Any

import pytest
from scenarios.kit import World, stored
from scenarios.test_projection import CREATED, REQUEST, STARTED, created, lines, refused, step

from perdure import Envelope, Flow, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel

DUE = "2026-01-01T00:01:00Z"
RUNNING = (CREATED, STARTED, created(), step("started", 1))
DELAYED = (CREATED, STARTED, created(2, 60_000), step("started", 1))
FAILED = (*RUNNING, step("retrying", 1, error="e", retry_after=None), step("started", 2), step("failed", 2, error="e"))


def exhausted(**change: Any) -> dict[str, Any]:
    return {"type": "run_retry_exhausted", "step_id": "s", "attempt": 2, "error": "e"} | change


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ((*RUNNING, step("retrying", 2, error="e", retry_after=None)), "attempt_mismatch"),
        ((CREATED, STARTED, created(), step("started", 2)), "attempt_mismatch"),
        (
            (CREATED, STARTED, created(1), step("started", 1), step("retrying", 1, error="e", retry_after=None)),
            "retry_beyond_budget",
        ),
        ((*RUNNING, step("retrying", 1, error="e", retry_after=DUE)), "retry_after_unexpected"),
        ((*DELAYED, step("retrying", 1, error="e", retry_after=None)), "retry_after_missing"),
    ],
)
def test_bug_24_corrupt_attempts(kernel: Kernel, events: tuple[dict[str, Any], ...], rule: str) -> None:
    """Corrupt histories (attempt jump, retry beyond budget, retry_after without delay, missing retry_after with delay) →
    projection error."""
    assert refused(kernel, lines(*events))[0] == rule


def test_bug_24_but_for_a_suggestion(kernel: Kernel) -> None:
    """§H: with `suggested_delay_ms` a retry without a policy delay may have a time."""
    events = (*RUNNING, step("retrying", 1, error="e", retry_after=DUE, suggested_delay_ms=60_000))
    run = kernel.project("r", lines(*events), DEFAULT_MAX_EVENT_BYTES)
    assert [kind for kind, _, _ in run.suspensions()] == ["retry"]


@pytest.mark.parametrize("change", [{"attempt": 1}, {"error": "another"}])
def test_bug_25_exhaustion_that_differs_from_its_step(kernel: Kernel, change: dict[str, Any]) -> None:
    """`run_retry_exhausted` whose attempt or error differs from the failed step → projection error."""
    kernel.project("r", lines(*FAILED, exhausted()), DEFAULT_MAX_EVENT_BYTES)
    assert refused(kernel, lines(*FAILED, exhausted(**change)))[0] == "exhausted_mismatch"


def failing(calls: list[str]) -> Flow:
    flow = Flow()

    @flow.step
    async def fail(context: StepContext) -> None:
        calls.append(context.step_id)
        raise ValueError("no")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("workflow")
        if ctx.cancellation_request() is not None:
            return ctx.cancel()
        return ctx.schedule_step("a", fail, retry=RetryPolicy.none())

    return flow


async def failed_prefix(world: World, calls: list[str]) -> list[str]:
    """Run `r`: everything up to `step_failed`, with the end missing."""
    async with world.engine(failing(calls)) as engine:
        await engine.start("flow", run_id="whole")
    history = Envelope.parse_lines(await world.store.history("whole"))
    await world.plant("r", history[:-1])
    calls.clear()
    events = await stored(world.store, "r")
    assert events[-1] == "step_failed a 1"
    return events


async def test_bug_26_the_missing_end(world: World) -> None:
    """Crash between `step_failed` and `run_retry_exhausted` → next drive appends it, zero workflow and step calls."""
    calls: list[str] = []
    left = await failed_prefix(world, calls)
    async with world.engine(failing(calls)) as engine:
        assert (await engine.drive("r")).status == "failed"
    assert await stored(world.store, "r") == [*left, "run_retry_exhausted a 1"]
    assert calls == []


@pytest.mark.parametrize("drive", [True, False])
async def test_bug_27_exhaustion_wins_over_a_request(world: World, drive: bool) -> None:
    """Same with a cancellation request in between → exhaustion wins."""
    calls: list[str] = []
    left = await failed_prefix(world, calls)
    async with world.engine(failing(calls)) as engine:
        await engine.request_cancellation("r", "stop", drive=drive)
        snapshot = await engine.drive("r")
    assert (snapshot.terminal_outcome or {})["type"] == "retry_exhausted"
    assert await stored(world.store, "r") == [*left, "run_cancellation_requested", "run_retry_exhausted a 1"]
    assert calls == []


async def test_bug_28_ended_before_it_started(world: World) -> None:
    """Run force-cancelled between `run_created` and `run_started` → no `run_started` afterwards."""
    calls: list[str] = []
    async with world.engine(failing(calls)) as engine:
        await engine.submit("flow", run_id="r")
        await engine.force_cancel("r")
        await engine.start("flow", run_id="r")
        assert (await engine.drive("r")).status == "cancelled"
    assert await stored(world.store, "r") == ["run_created", "run_cancelled"]
    assert calls == []


async def test_bug_36_a_pending_run_is_repaired(world: World) -> None:
    """`drive` on a pending run repairs the missing `run_started`."""
    calls: list[str] = []
    async with world.engine(failing(calls)) as engine:
        await engine.submit("flow", run_id="r")
        await engine.drive("r")
    assert (await stored(world.store, "r"))[:2] == ["run_created", "run_started"]
    assert calls == ["workflow", "a"]


def test_bug_43_folding_in_parts(kernel: Kernel) -> None:
    """Incremental projection of every prefix equals full replay, event by event and in every two parts."""
    events = [
        *(CREATED, STARTED, created(), step("started", 1)),
        {"type": "wait_created", "wait_id": "w", "resume_at": DUE},
        {"type": "hook_created", "hook_id": "h", "token": "canary-h", "metadata": {"a": [1]}},
        step("retrying", 1, error="e", retry_after=None),
        {"type": "run_progress_recorded", "progress": {"progress_id": "p", "completed": 1}},
        step("started", 2),
        {"type": "hook_received", "hook_id": "h", "payload": {"b": None}},
        *(REQUEST, {"type": "run_cancelled", "reason": "stop"}),
    ]
    history = lines(*events).splitlines(keepends=True)
    for end in range(1, len(history) + 1):
        whole = kernel.project("r", b"".join(history[:end]), DEFAULT_MAX_EVENT_BYTES)
        for cut in range(1, end):
            parts = kernel.project("r", b"".join(history[:cut]), DEFAULT_MAX_EVENT_BYTES)
            parts.extend(b"".join(history[cut:end]))
            assert parts.snapshot() == whole.snapshot(), f"{cut} + {end - cut}"
        stepwise = kernel.project("r", history[0], DEFAULT_MAX_EVENT_BYTES)
        for line in history[1:end]:
            stepwise.extend(line)
        assert stepwise.snapshot() == whole.snapshot()


async def test_bug_43_what_a_drive_folded(world: World) -> None:
    """The snapshot an engine keeps beside its drives is that of the history read anew."""
    async with world.engine(failing([])) as engine:
        snapshot = await engine.run("flow", run_id="r")
    async with world.engine(failing([])) as engine:
        assert (await engine.snapshot("r")).json == snapshot.json
