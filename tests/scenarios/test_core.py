"""Scenarios 1 to 10: starting, suspending, ending, and what is refused on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Flow,
    InvalidRunId,
    InvalidWorkflow,
    ReplayLimitExceeded,
    RunConflict,
    RunNotFound,
    RuntimeCommand,
    Serialization,
    WorkflowContext,
    WorkflowProgress,
    WorkflowRaised,
    WorkflowSpec,
)
from scenarios.kit import TOKEN, World, one_workflow, stored, story
from scenarios.worlds import world_in_both_shells  # noqa: F401 - is this module's `world`

TWO_STEPS = [
    "run_created",
    "run_started",
    "step_created a",
    "step_started a 1",
    "step_completed a",
    "step_created b",
    "step_started b 1",
    "step_completed b",
    "run_completed",
]


def two_steps(calls: list[str]) -> Flow:
    """`a`, then `b`; each call of the workflow and of a step is noted."""
    flow = Flow()

    @flow.step
    async def add(amount: int) -> int:
        calls.append("step")
        return amount + 1

    @flow.workflow("two", version="1")
    def two(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("workflow")
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", add, ctx.input)
        if not ctx.step_completed("b"):
            return ctx.schedule_step("b", add, ctx.step_output("a"))
        return ctx.complete(ctx.step_output("b"))

    return flow


async def test_01_two_steps(world: World) -> None:
    """Two-step workflow: the events in order, sequences 1 to 9."""
    calls: list[str] = []
    async with world.engine(two_steps(calls)) as engine:
        snapshot = await engine.run("two", 5, run_id="r")
        history = await engine.history("r")
    assert (snapshot.status, snapshot.output, snapshot.last_sequence) == ("completed", 7, 9)
    assert story(history) == TWO_STEPS
    assert [e.sequence for e in history] == list(range(1, 10))
    assert calls == ["workflow", "step", "workflow", "step", "workflow"]


@dataclass
class Order:
    id: str
    amount: int


@dataclass
class Approval:
    by: str


async def test_02_step_wait_hook_in_a_row(world: World) -> None:
    """Typed input, step, wait, hook: suspends twice, ends with a combined output; a wait already past still suspends."""
    flow = Flow()

    @flow.step
    async def price(order: Order) -> int:
        return order.amount * 2

    @flow.workflow("order", version="1")
    def order(ctx: WorkflowContext) -> RuntimeCommand:
        wanted = ctx.input_as(Order)
        if not ctx.step_completed("price"):
            return ctx.schedule_step("price", price, wanted)
        if not ctx.wait_completed("cool-down"):
            return ctx.wait_until("cool-down", "2020-02-02T00:00:00Z")
        approval = ctx.hook_payload_as("approval", Approval)
        if approval is None:
            return ctx.create_hook("approval", TOKEN)
        return ctx.complete([wanted.id, ctx.step_output_as("price", int), approval.by])

    async with world.engine(flow) as engine:
        first = await engine.run("order", Order("o-1", 21), run_id="r")
        assert (first.status, first.waits["cool-down"].status) == ("suspended", "waiting")
        second = await engine.resume_wait("r", "cool-down")
        assert (second.status, second.hooks["approval"].status) == ("suspended", "active")
        third = await engine.resume_hook("r", "approval", Approval("ada"))
        assert (third.status, third.output) == ("completed", ["o-1", 42, "ada"])
        assert third.input_as(Order) == Order("o-1", 21)
        assert story(await engine.history("r"))[5:] == [
            "wait_created cool-down",
            "wait_completed cool-down",
            "hook_created approval",
            "hook_received approval",
            "run_completed",
        ]


async def test_03_typed_reads(world: World) -> None:
    """Missing typed values are None; a value of the wrong type is `Serialization`."""
    flow = Flow()
    missing: list[object] = []

    @flow.workflow("typed", version="1")
    def typed(ctx: WorkflowContext) -> RuntimeCommand:
        missing.extend([ctx.step_output_as("none", int), ctx.hook_payload_as("none", Approval)])
        return ctx.complete(ctx.input_as(Order).amount)

    async with world.engine(flow) as engine:
        assert (await engine.run("typed", {"id": "x", "amount": 3}, run_id="good")).output == 3
        assert missing == [None, None]
        with pytest.raises(Serialization) as refused:
            await engine.run("typed", {"id": "x", "amount": "three"}, run_id="bad")
        assert (refused.value.rule, refused.value.run_id) == ("payload", "bad")
        assert "$.amount" in refused.value.detail
        assert await stored(world.store, "bad") == ["run_created", "run_started"]
        snapshot = await engine.snapshot("good")
        assert snapshot.output_as(int) == 3
        assert snapshot.step_output_as("none", int) is None
        assert snapshot.hook_payload_as("none", Approval) is None
        with pytest.raises(Serialization):
            snapshot.output_as(Approval)


async def test_04_equal_start_twice(world: World) -> None:
    """`start` twice with equal id, spec and input: one history; the second calls neither workflow nor step."""
    calls: list[str] = []
    async with world.engine(two_steps(calls)) as engine:
        assert await engine.start("two", 5, run_id="r") == "r"
        before = await world.store.history("r")
        calls.clear()
        assert await engine.start_with_id("r", "two", 5) == "r"
        assert calls == []
        assert await world.store.history("r") == before


async def test_05_start_conflicts(world: World) -> None:
    """Another input or another spec is `RunConflict`; the spec is compared first."""
    flow = two_steps([])

    @flow.workflow("two", version="2")
    def two_again(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(None)

    spec = WorkflowSpec.python("two", "1")
    async with world.engine(flow) as engine:
        await engine.start(spec, 5, run_id="r")
        before = await world.store.history("r")
        for other, value, reason in [
            (spec, 6, "input"),
            (replace(spec, version="2"), 5, "spec"),
            (replace(spec, version="2"), 6, "spec"),
        ]:
            with pytest.raises(RunConflict) as refused:
                await engine.start(other, value, run_id="r")
            assert refused.value.args == ("r", reason)
        assert await world.store.history("r") == before


@pytest.mark.parametrize(
    ("run_id", "reason"),
    [
        ("", "empty"),
        ("a/b", "characters"),
        ("..", "characters"),
        ("a b", "characters"),
        ("é", "characters"),
        ("x" * 201, "length"),
    ],
)
async def test_06_run_ids(world: World, tmp_path: Path, run_id: str, reason: str) -> None:
    """Bad run ids are `InvalidRunId`; nothing is made."""
    files = sorted(tmp_path.iterdir())
    async with world.engine(two_steps([])) as engine:
        with pytest.raises(InvalidRunId) as refused:
            await engine.start("two", 5, run_id=run_id)
        assert refused.value.args == (run_id, reason)
        assert await engine.list_run_ids() == []
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": " "}, "name"),
        ({"version": ""}, "version"),
        ({"entrypoint": "\u00a0"}, "runtime.entrypoint"),
        ({"export_name": "\t"}, "runtime.export_name"),
    ],
)
async def test_07_blank_specs(world: World, change: dict[str, Any], field: str) -> None:
    """A blank name, version, entrypoint or export name is `InvalidWorkflow`; nothing is appended."""
    async with world.engine(two_steps([])) as engine:
        with pytest.raises(InvalidWorkflow) as refused:
            await engine.start(replace(WorkflowSpec.python("two", "1"), **change), 5, run_id="r")
        assert refused.value.field == field
        assert await engine.list_run_ids() == []


async def test_08_a_workflow_that_raises(world: World) -> None:
    """The drive returns the error, the history is unchanged, the run open, and the next drive calls the workflow again."""
    bug = [ZeroDivisionError("no orders"), None]

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if error := bug.pop(0):
            raise error
        return ctx.complete("fine")

    async with world.engine(one_workflow(ask)) as engine:
        with pytest.raises(WorkflowRaised) as refused:
            await engine.start("flow", run_id="r")
        error = refused.value
        assert (error.run_id, error.workflow, error.version) == ("r", "flow", "1")
        assert error.error == "ZeroDivisionError: no orders"
        assert "test_core.py" in str(error.where)
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert await stored(world.store, "r") == ["run_created", "run_started"]
        assert (await engine.snapshot("r")).status == "running"
        snapshot = await engine.drive("r")
        assert (snapshot.status, snapshot.output) == ("completed", "fine")


@pytest.mark.parametrize(("given", "limit"), [(0, 1), (1, 1), (5, 5)])
async def test_09_replay_limit(world: World, given: int, limit: int) -> None:
    """A fresh progress id on each call ends at the limit; 0 acts as 1. The last decision is asked for and dropped (R6)."""
    asked: list[int] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        asked.append(len(asked))
        return ctx.record_progress(WorkflowProgress(f"p{len(asked)}", len(asked)))

    async with world.engine(one_workflow(ask), max_replay_iterations=given) as engine:
        with pytest.raises(ReplayLimitExceeded) as refused:
            await engine.start("flow", run_id="r")
        assert (refused.value.limit, refused.value.run_id) == (limit, "r")
        facts = [f"run_progress_recorded p{n + 1}" for n in range(limit)]
        assert await stored(world.store, "r") == ["run_created", "run_started", *facts]
        assert len(asked) == limit + 1
        assert not (await engine.snapshot("r")).terminal


async def test_09_limit_1_lets_a_normal_run_finish(world: World) -> None:
    """Only passes that record nothing but facts count (R6)."""
    async with world.engine(two_steps([]), max_replay_iterations=1) as engine:
        assert (await engine.run("two", 1, run_id="r")).output == 3


async def test_10_unknown_run(world: World) -> None:
    """Snapshot, drive, history and every call on an unknown run: `RunNotFound`."""
    async with world.engine(two_steps([])) as engine:
        for call in [
            engine.snapshot("nobody"),
            engine.history("nobody"),
            engine.drive("nobody"),
            engine.resume_wait("nobody", "w"),
            engine.resume_hook("nobody", "h", None),
            engine.dispose_hook("nobody", "h"),
            engine.request_cancellation("nobody"),
            engine.force_cancel("nobody"),
            engine.resume_scheduled_run("nobody", world.clock.now),
        ]:
            with pytest.raises(RunNotFound) as refused:
                await call
            assert refused.value.run_id == "nobody"
        assert await engine.list_run_ids() == []
