"""Fixed bugs about waits and the index of wakeups: 17, 18, 32, 33, 40."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from scenarios.kit import TOKEN, World, one_workflow, stored

from perdure import Flow, Instant, InvalidTransition, RetryPolicy, RuntimeCommand, WorkflowContext, WorkflowProgress

HOUR = timedelta(hours=1)


def one_wait(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete() if ctx.wait_completed("w") else ctx.wait_for("w", HOUR)


async def test_bug_17_one_nanosecond_apart(world: World) -> None:
    """Wakeups 1 ns apart order correctly; `+00:00` and `Z` forms compare equal."""
    due = {
        "a": "2026-01-01T01:00:00.000000002Z",
        "b": "2026-01-01T01:00:00.000000001+00:00",
        "c": "2026-01-01T02:00:00.000000001+01:00",
        "d": "2026-01-01T01:00:00Z",
    }

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.wait_until("w", due[ctx.run_id])

    async with world.engine(one_workflow(ask)) as engine:
        for run_id in due:
            await engine.start("flow", run_id=run_id)
            assert (await engine.drive(run_id)).status == "suspended"  # the same instant in another form is no drift
        full = world.clock.after(hours=1)
        for now, listed in [(-1, ""), (0, "d"), (1, "bcd"), (2, "abcd")]:
            assert await engine.list_due_waits(Instant(full.ns + now)) == [(run_id, "w") for run_id in listed]
        for first in ("d", "b", "c", "a"):
            found = await engine.next_wakeup(world.clock.now)
            assert found is not None
            assert found["run_id"] == first
            await engine.force_cancel(first)


async def test_bug_18_a_run_that_ended_leaves_no_row(world: World) -> None:
    """Terminal run leaves no row in wakeup or hook tables, and is not scanned."""
    flow = Flow()

    @flow.step
    async def fail() -> None:
        raise ValueError("no")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        late = ctx.step("s", fail, retry=RetryPolicy.fixed(2, HOUR))
        if ctx.progress("enough") is not None:
            return ctx.complete()
        return ctx.schedule_all([late, ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}"), ctx.wait_for("w", HOUR)])

    async with world.engine(flow) as engine:
        for run_id in ("complete", "cancel", "timeout", "shutdown"):
            await engine.start("flow", run_id=run_id)
        assert (await engine.run_summary()).open_waits == 4
        await engine.record_progress("complete", WorkflowProgress("enough", 1))
        assert (await engine.drive("complete")).status == "completed"  # with everything open (R20)
        await engine.force_cancel("cancel")
        await engine.terminate_for_timeout("timeout", "2026-01-01T00:00:00Z")
        await engine.terminate_for_host_shutdown("shutdown")
        later = world.clock.after(hours=9)
        assert await world.store.list_due_wakeups(later.ns) == []
        assert await world.store.next_scheduled_wakeup() is None
        assert await world.store.list_active_hooks() == []
        assert await engine.list_open_suspensions(later) == []
        summary = await engine.run_summary()
        assert (summary.open_waits, summary.active_hooks, summary.pending_retries) == (0, 0, 0)
        before = {run_id: await world.store.history(run_id) for run_id in await engine.list_run_ids()}
        assert (await engine.resume_due_waits(later), await engine.resume_due_retries(later)) == ([], [])
        assert {run_id: await world.store.history(run_id) for run_id in before} == before


async def test_bug_32_a_completed_wait_of_a_run_that_ended(world: World) -> None:
    """Resume of a completed wait on a terminal run → Ok."""
    async with world.engine(one_workflow(one_wait)) as engine:
        await engine.start("flow", run_id="r")
        await engine.resume_wait("r", "w", early=True)
        before = await world.store.history("r")
        assert (await engine.resume_wait("r", "w")).status == "completed"
        assert await world.store.history("r") == before


async def test_bug_33_racing_resumes_report_once(world: World) -> None:
    """Racing resumes of one wait → one reports it; by two engines over one store."""
    async with world.engine(one_workflow(one_wait)) as first, world.engine(one_workflow(one_wait)) as second:
        await first.start("flow", run_id="r")
        later = world.clock.after(hours=1)
        reports = await asyncio.gather(*(e.resume_due_waits(later) for e in (first, second, first, second)))
        assert sorted(reports) == [[], [], [], [("r", "w")]]
    assert (await stored(world.store, "r")).count("wait_completed w") == 1


async def test_bug_40_too_early(world: World) -> None:
    """Early `resume_wait` → `InvalidTransition`, nothing appended; one nanosecond early is early."""
    async with world.engine(one_workflow(one_wait)) as engine:
        await engine.start("flow", run_id="r")
        before = await world.store.history("r")
        world.clock.ns += 3600 * 10**9 - 1
        with pytest.raises(InvalidTransition) as refused:
            await engine.resume_wait("r", "w")
        assert (refused.value.rule, refused.value.value) == ("wait_not_due", "2026-01-01T01:00:00Z")
        assert await world.store.history("r") == before
        world.clock.ns += 1
        assert (await engine.resume_wait("r", "w")).status == "completed"
