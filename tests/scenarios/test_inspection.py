"""Scenario 88 and the listings beside it (spec 09 §9.3), in both shells."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure import Flow, RetryPolicy, RunFilter, RunNotFound, RuntimeCommand, StepContext, WorkflowContext
from scenarios.kit import TOKEN, World, stored
from scenarios.shells import SHELLS, OpenEngine

pytestmark = pytest.mark.parametrize("open_engine", SHELLS)

HOUR = timedelta(hours=1)


def zoo() -> Flow:
    """By input: `open` holds waits, a hook and a delayed retry; `hook` only a hook; anything else completes."""
    flow = Flow()

    @flow.step
    async def flaky(context: StepContext) -> None:
        if context.attempt == 1:
            raise ValueError("once")

    @flow.workflow("zoo", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        hook = ctx.create_hook("h", f"{TOKEN}-{ctx.run_id}")
        if ctx.input == "hook":
            return hook
        if ctx.input != "open":
            return ctx.complete(ctx.input)
        late = ctx.step("s", flaky, retry=RetryPolicy.fixed(2, 2 * HOUR))
        return ctx.schedule_all([ctx.wait_for("w2", 3 * HOUR), hook, late, ctx.wait_for("w1", HOUR)])

    @flow.workflow("other", version="7")
    def other(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.fail("no")

    return flow


async def test_88_open_suspensions(world: World, open_engine: OpenEngine) -> None:
    """`list_open_suspensions` sorted and with due flags; `next_wakeup` ignores hooks."""
    async with open_engine(world, zoo()) as engine:
        for run_id, kind in [("b", "open"), ("a", "hook"), ("c", "done"), ("d", "open")]:
            await engine.start("zoo", kind, run_id=run_id)
        await engine.force_cancel("d")
        now = world.clock.after(hours=2)
        found = await engine.list_open_suspensions(now)
        assert [(item["run_id"], item["kind"]) for item in found] == [
            ("a", "hook"),
            ("b", "wait"),
            ("b", "wait"),
            ("b", "hook"),
            ("b", "retry"),
        ]
        hook, first, second, _, retry = found
        assert hook["hook"] == {
            "hook_id": "h",
            "token": f"{TOKEN}-a",
            "status": "active",
            "metadata": None,
            "payload": None,
        }
        assert "due" not in hook
        assert (first["wait"]["wait_id"], first["due"]) == ("w1", True)
        assert (second["wait"]["wait_id"], second["due"]) == ("w2", False)
        assert (retry["step"]["step_id"], retry["step"]["status"], retry["due"]) == ("s", "pending", True)
        assert retry["step"]["retry_after"] == "2026-01-01T02:00:00Z"
        just_before = type(now)(now.ns - 1)
        assert [item.get("due") for item in await engine.list_open_suspensions(just_before)][-1] is False


async def test_88_next_wakeup(world: World, open_engine: OpenEngine) -> None:
    """The earliest wait or retry of any open run, due or not; never a hook; none is None."""
    async with open_engine(world, zoo()) as engine:
        await engine.start("zoo", "hook", run_id="a")
        assert await engine.next_wakeup(world.clock.now) is None
        await engine.start("zoo", "open", run_id="b")
        found = await engine.next_wakeup(world.clock.now)
        assert found is not None
        assert (found["kind"], found["run_id"], found["wait"]["wait_id"], found["due"]) == ("wait", "b", "w1", False)
        found = await engine.next_wakeup(world.clock.after(hours=1))
        assert found is not None
        assert found["due"] is True
        await engine.resume_wait("b", "w1", early=True)
        found = await engine.next_wakeup(world.clock.now)
        assert found is not None
        assert (found["kind"], found["step"]["step_id"]) == ("retry", "s")
        await engine.force_cancel("b")
        assert await engine.next_wakeup(world.clock.now) is None


async def test_88_due_wakeups(world: World, open_engine: OpenEngine) -> None:
    """`list_due_wakeups`: kind, run, subject and time, waits before retries."""
    async with open_engine(world, zoo()) as engine:
        for run_id in ("b", "a"):
            await engine.start("zoo", "open", run_id=run_id)
        due = await engine.list_due_wakeups(world.clock.after(hours=2))
        assert [(w.kind, w.run_id, w.subject_id, w.scheduled_at) for w in due] == [
            ("wait", "a", "w1", world.clock.after(hours=1).ns),
            ("wait", "b", "w1", world.clock.after(hours=1).ns),
            ("retry", "a", "s", world.clock.after(hours=2).ns),
            ("retry", "b", "s", world.clock.after(hours=2).ns),
        ]
        assert {w.runtime_build_id for w in due} == {None}


async def test_88_summary_and_snapshots(world: World, open_engine: OpenEngine) -> None:
    """`run_summary` counts by status; `list_run_ids` and `list_snapshots` are sorted; a snapshot reads as its history."""
    async with open_engine(world, zoo()) as engine:
        for run_id, kind in [("b", "open"), ("a", "hook"), ("c", "done"), ("d", "open"), ("e", "open")]:
            await engine.start("zoo", kind, run_id=run_id)
        await engine.start("other", run_id="f")
        await engine.submit("zoo", "hook", run_id="g")
        await engine.force_cancel("d")
        await engine.request_cancellation("a", drive=False)
        summary = await engine.run_summary()
        assert (summary.total_runs, summary.terminal_runs, summary.non_terminal_runs) == (7, 3, 4)
        assert (summary.pending_runs, summary.suspended_runs, summary.cancelling_runs) == (1, 2, 1)
        assert (summary.completed_runs, summary.failed_runs, summary.cancelled_runs) == (1, 1, 1)
        assert (summary.open_waits, summary.active_hooks, summary.pending_retries) == (4, 2, 2)
        assert await engine.list_run_ids() == list("abcdefg")
        snapshots = await engine.list_snapshots()
        assert [snapshot.run_id for snapshot in snapshots] == list("abcdefg")
        assert snapshots[2] == await engine.snapshot("c")
        assert (snapshots[2].output, snapshots[2].last_sequence) == ("done", 3)
        assert [e.sequence for e in await engine.history("c")] == [1, 2, 3]
        assert await stored(world.store, "c") == ["run_created", "run_started", "run_completed"]
        with pytest.raises(RunNotFound):
            await engine.snapshot("nobody")


async def test_88_the_index_of_runs(world: World, open_engine: OpenEngine) -> None:
    """`runs(filter)` is paged by the index; every field of the filter must hold."""
    async with open_engine(world, zoo()) as engine:
        for number in range(5):
            await engine.start("zoo", "hook" if number % 2 else "done", run_id=f"r{number}")
        await engine.start("other", run_id="x")
        seen: list[str] = []
        page = await engine.runs(limit=2)
        while True:
            seen += [row.run_id for row in page.runs]
            if page.next is None:
                break
            page = await engine.runs(after=page.next, limit=2)
        assert sorted(seen) == ["r0", "r1", "r2", "r3", "r4", "x"]
        assert len(seen) == len(set(seen))

        async def ids(**wanted: object) -> list[str]:
            return [row.run_id for row in (await engine.runs(RunFilter(**wanted))).runs]  # type: ignore[arg-type]  # one field each

        assert await ids(terminal=False) == ["r1", "r3"]
        assert await ids(status=("failed", "suspended")) == ["r1", "r3", "x"]
        assert await ids(name="other") == ["x"]
        assert await ids(name="other", terminal=False) == []
        assert await ids(version="1", status=("completed",)) == ["r0", "r2", "r4"]
        assert await ids(held=True) == []
        (row,) = (await engine.runs(RunFilter(name="other"))).runs
        assert (row.version, row.build, row.status, row.terminal, row.last_sequence) == ("7", None, "failed", True, 3)
        assert row.created_at == row.updated_at == row.ended_at == world.clock.ns
