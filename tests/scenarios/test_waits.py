"""Scenario 39 and the tables of waits and delayed retries (spec 06 §6.1, §6.2), in both shells."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure import Flow, InvalidTransition, RetryPolicy, RunNotFound, RunTerminal, RuntimeCommand, WorkflowContext
from scenarios.kit import World, one_workflow, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

OPENED = ["run_created", "run_started", "wait_created w"]
HOUR = timedelta(hours=1)


def one_wait(calls: list[str] | None = None) -> Flow:
    """Waits for an hour, then completes."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if calls is not None:
            calls.append("workflow")
        return ctx.complete("over") if ctx.wait_completed("w") else ctx.wait_for("w", HOUR)

    return one_workflow(ask)


def two_waits_and_a_retry(attempts: list[int]) -> Flow:
    """Two timers and a step whose first attempt fails, all due at different times."""
    flow = Flow()

    @flow.step
    async def flaky() -> str:
        attempts.append(len(attempts) + 1)
        if len(attempts) == 1:
            raise ValueError("once")
        return "done"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.wait_completed("early") and ctx.wait_completed("late") and ctx.step_completed("s"):
            return ctx.complete(ctx.step_output("s"))
        step = ctx.step("s", flaky, retry=RetryPolicy.fixed(2, HOUR))
        return ctx.schedule_all([ctx.wait_for("late", 2 * HOUR), ctx.wait_for("early", HOUR), step])

    return flow


async def test_39_wait_and_redelivery(world: World, open_engine: OpenEngine) -> None:
    """Wait blocks; `resume_due_waits` at deadline completes; redelivery is Ok with one event."""
    async with open_engine(world, one_wait()) as engine:
        assert (await engine.run("flow", run_id="r")).status == "suspended"
        assert await engine.list_due_waits(world.clock.now) == []
        assert await engine.resume_due_waits(world.clock.now) == []
        assert await stored(world.store, "r") == OPENED
        world.clock.advance(hours=1)
        assert await engine.list_due_waits(world.clock.now) == [("r", "w")]
        assert await engine.resume_due_waits(world.clock.now) == [("r", "w")]
        assert (await engine.snapshot("r")).output == "over"
        after = await world.store.history("r")
        assert await engine.resume_due_waits(world.clock.now) == []
        assert (await engine.resume_wait("r", "w")).status == "completed"
        assert await world.store.history("r") == after
    assert await stored(world.store, "r") == [*OPENED, "wait_completed w", "run_completed"]


async def test_39_redelivery_to_an_open_run(world: World, open_engine: OpenEngine) -> None:
    """A completed wait of an open run: no second event, but the run is driven (the row "drive only")."""
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("workflow")
        if ctx.wait_completed("w"):
            return ctx.wait_for("next", HOUR)
        return ctx.wait_for("w", HOUR)

    async with open_engine(world, one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        await engine.resume_wait("r", "w", early=True)
        before = len(calls)
        assert (await engine.resume_wait("r", "w")).status == "suspended"
        assert len(calls) == before + 1
    assert await stored(world.store, "r") == [*OPENED, "wait_completed w", "wait_created next"]


async def test_39_rows_of_resume_wait(world: World, open_engine: OpenEngine) -> None:
    """Each row of the table that refuses, or does nothing, appends nothing (R24)."""
    async with open_engine(world, one_wait()) as engine:
        with pytest.raises(RunNotFound):
            await engine.resume_wait("nobody", "w")
        await engine.start("flow", run_id="r")
        for wait_id, rule in [("other", "id_unknown"), ("w", "wait_not_due"), (" ", "blank_id")]:
            with pytest.raises(InvalidTransition) as refused:
                await engine.resume_wait("r", wait_id)
            assert (refused.value.rule, refused.value.run_id) == (rule, "r")
        await engine.force_cancel("r")
        ended = await world.store.history("r")
        snapshot = await engine.resume_wait("r", "w")
        assert (snapshot.status, snapshot.waits["w"].status) == ("cancelled", "waiting")
        with pytest.raises(RunTerminal):
            await engine.resume_wait("r", "other")
        assert await world.store.history("r") == ended


async def test_39_a_cancelled_wait_of_an_open_run(world: World, open_engine: OpenEngine) -> None:
    """R24: resuming it appends nothing and drives; the clean-up's own wait is another."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.cancellation_request() is None:
            return ctx.wait_for("w", HOUR)
        return ctx.cancel() if ctx.wait_completed("clean-up") else ctx.wait_for("clean-up", HOUR)

    async with open_engine(world, one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.request_cancellation("r")).waits["w"].status == "cancelled"
        before = await world.store.history("r")
        for early in (False, True):
            assert (await engine.resume_wait("r", "w", early=early)).status == "cancelling"
        assert await world.store.history("r") == before
        assert await engine.list_due_waits(world.clock.after(hours=1)) == [("r", "clean-up")]
        assert await engine.resume_due_waits(world.clock.after(hours=1)) == [("r", "clean-up")]
        assert (await engine.snapshot("r")).status == "cancelled"


async def test_39_early_by_request(world: World, open_engine: OpenEngine) -> None:
    """`early=True` fires a timer before its time."""
    async with open_engine(world, one_wait()) as engine:
        await engine.start("flow", run_id="r")
        assert (await engine.resume_wait("r", "w", early=True)).status == "completed"


async def test_39_scheduled_resume_of_one_run(world: World, open_engine: OpenEngine) -> None:
    """`resume_scheduled_run`: what is due at its `now`, waits by time, then retries; too early and too late it does
    nothing."""
    attempts: list[int] = []
    async with open_engine(world, two_waits_and_a_retry(attempts)) as engine:
        assert (await engine.run("flow", run_id="r")).status == "suspended"
        assert await engine.resume_scheduled_run("r", world.clock.now) == []
        later = world.clock.after(hours=1)
        due = await engine.resume_scheduled_run("r", later)
        assert [(w.kind, w.subject_id, w.scheduled_at) for w in due] == [
            ("wait", "early", later.ns),
            ("retry", "s", later.ns),
        ]
        assert attempts == [1, 2]
        assert (await engine.snapshot("r")).waits["late"].status == "waiting"
        last = world.clock.after(hours=2)
        assert [w.subject_id for w in await engine.resume_scheduled_run("r", last)] == ["late"]
        assert (await engine.snapshot("r")).output == "done"
        assert await engine.resume_scheduled_run("r", last) == []


async def test_39_waits_due_together_are_one_commit_in_order(world: World, open_engine: OpenEngine) -> None:
    """R9: overdue waits are completed by (`resume_at`, id), all before the workflow is asked."""
    seen: list[tuple[bool, bool]] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        seen.append((ctx.wait_completed("a"), ctx.wait_completed("z")))
        if all(seen[-1]):
            return ctx.complete(ctx.first_resolved(("wait", "a"), ("wait", "z")))
        return ctx.schedule_all([ctx.wait_for("a", 2 * HOUR), ctx.wait_for("z", HOUR)])

    async with open_engine(world, one_workflow(ask)) as engine:
        await engine.start("flow", run_id="r")
        assert await engine.resume_due_waits(world.clock.after(hours=3)) == [("r", "a"), ("r", "z")]
        assert (await engine.snapshot("r")).output == ["wait", "z"]
    assert (True, False) not in seen
    assert (False, True) not in seen
    assert (await stored(world.store, "r"))[-3:] == ["wait_completed z", "wait_completed a", "run_completed"]


async def test_39_one_refusing_run_does_not_stop_the_others(world: World, open_engine: OpenEngine) -> None:
    """R58: `resume_due_waits` carries every run on, and raises the first refusal at the end."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.wait_completed("w"):
            return ctx.wait_for("w", HOUR)
        return ctx.cancel() if ctx.run_id == "b" else ctx.complete()

    async with open_engine(world, one_workflow(ask)) as engine:
        for run_id in "abc":
            await engine.start("flow", run_id=run_id)
        with pytest.raises(InvalidTransition) as refused:
            await engine.resume_due_waits(world.clock.after(hours=1))
        assert (refused.value.run_id, refused.value.rule) == ("b", "cancel_without_request")
        statuses = {run_id: (await engine.snapshot(run_id)).status for run_id in "abc"}
    assert statuses == {"a": "completed", "b": "running", "c": "completed"}
    assert (await stored(world.store, "b"))[-1] == "wait_completed w"


async def test_39_a_wait_beside_a_due_retry(world: World, open_engine: OpenEngine) -> None:
    """W2: an open wait does not hold up a retry that is due; `resume_due_retries` touches no wait."""
    attempts: list[int] = []
    async with open_engine(world, two_waits_and_a_retry(attempts)) as engine:
        await engine.start("flow", run_id="r")
        assert await engine.list_due_retries(world.clock.after(hours=1)) == [("r", "s")]
        assert await engine.resume_due_retries(world.clock.after(hours=1)) == [("r", "s")]
        snapshot = await engine.snapshot("r")
    assert attempts == [1, 2]
    assert snapshot.steps["s"].status == "completed"
    assert {wait.status for wait in snapshot.waits.values()} == {"waiting"}


async def test_39_without_driving(world: World, open_engine: OpenEngine) -> None:
    """R23: `drive=False` appends `wait_completed` and leaves the rest to whoever drives next."""
    calls: list[str] = []
    async with open_engine(world, one_wait(calls)) as engine:
        await engine.start("flow", run_id="r")
        world.clock.advance(hours=1)
        assert (await engine.resume_wait("r", "w", drive=False)).status == "running"
        assert calls == ["workflow"]
        assert (await engine.drive("r")).output == "over"
