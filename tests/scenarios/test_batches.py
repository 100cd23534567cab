"""Scenarios 28 to 38: several steps open at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure import Flow, InvalidTransition, NonDeterministic, RetryPolicy, RuntimeCommand, WorkflowContext
from perdure.instant import Instant
from scenarios.kit import Crash, WatchedStore, World, stored, story
from scenarios.worlds import world_in_both_shells  # noqa: F401 - is this module's `world`

Work = Callable[[str], Awaitable[Any]]
ONCE = RetryPolicy.none()


def batch_of(ids: str, work: Work, calls: list[str], policies: Mapping[str, RetryPolicy] | None = None) -> Flow:
    """All steps named by a letter each in one batch, then their outputs. Workflow calls are noted as `ask`, steps by id."""
    flow = Flow()

    @flow.step(name="work")
    async def step(step_id: str) -> Any:
        calls.append(step_id)
        return await work(step_id)

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("ask")
        if all(ctx.step_completed(step_id) for step_id in ids):
            return ctx.complete([ctx.step_output(step_id) for step_id in ids])
        known = policies or {}
        return ctx.schedule_steps([ctx.step(step_id, step, step_id, retry=known.get(step_id)) for step_id in ids])

    return flow


CREATED = ["run_created", "run_started"]
ABC = [*CREATED, *(f"step_created {s}" for s in "abc"), *(f"step_started {s} 1" for s in "abc")]


async def echo(step_id: str) -> str:
    return step_id.upper()


async def test_28_three_steps_that_end_together(world: World) -> None:
    """All creates, all starts, then the outcomes; equal arrival is one commit, so the workflow is asked twice."""
    calls: list[str] = []
    async with world.engine(batch_of("abc", echo, calls)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        assert await stored(world.store, "r") == [*ABC, *(f"step_completed {s}" for s in "abc"), "run_completed"]
    assert snapshot.output == ["A", "B", "C"]
    assert calls == ["ask", "a", "b", "c", "ask"]


async def test_28_three_steps_that_end_apart(world: World) -> None:
    """The workflow is asked at the start and after each outcome commit; the last to be declared may end first."""
    gates = {step_id: asyncio.Event() for step_id in "abc"}
    seen: list[str] = []

    async def gated(step_id: str) -> str:
        await gates[step_id].wait()
        return step_id

    flow = batch_of("abc", gated, [])
    ask = cast(Callable[[WorkflowContext], RuntimeCommand], flow.find_workflow("flow", "1").function)

    def watched(ctx: WorkflowContext) -> RuntimeCommand:
        done = "".join(s for s in "abc" if ctx.step_completed(s))
        seen.append(done)
        for step_id, before in (("c", ""), ("a", "c"), ("b", "ac")):
            if done == before:
                gates[step_id].set()
        return ask(ctx)

    flow.workflow("watched", version="1")(watched)
    async with world.engine(flow) as engine:
        await engine.start("watched", run_id="r")
    assert seen == ["", "c", "ac", "abc"]
    assert await stored(world.store, "r") == [*ABC, *(f"step_completed {s}" for s in "cab"), "run_completed"]


async def test_29_async_members_overlap(world: World) -> None:
    """Each member waits for all others: only true concurrency gets past the barrier."""
    barrier = asyncio.Barrier(3)

    async def meet(step_id: str) -> str:
        await barrier.wait()
        return step_id

    async with world.engine(batch_of("abc", meet, [])) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"


async def test_29_thread_members_overlap(world: World) -> None:
    """The same for plain functions, which run on threads."""
    barrier = threading.Barrier(3, timeout=20)
    flow = Flow()

    @flow.step
    def meet() -> str:
        barrier.wait()
        return threading.current_thread().name

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if all(ctx.step_completed(s) for s in "abc"):
            return ctx.complete(len({ctx.step_output(s) for s in "abc"}))
        return ctx.schedule_steps([ctx.step(s, meet, retry=ONCE) for s in "abc"])

    async with world.engine(flow) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"


async def test_30_a_fast_sibling_is_durable(asyncio_world: World) -> None:
    """One member done, one hanging, the drive dropped: a new engine runs the slow one only, its attempt still 1."""
    calls: list[str] = []
    asked_again = asyncio.Event()
    hang = [True]

    async def work(step_id: str) -> str:
        if step_id == "b" and hang[0]:
            await asyncio.Event().wait()
        return step_id

    flow = batch_of("ab", work, calls)
    store = WatchedStore(asyncio_world.store)

    async def second_commit() -> None:
        asked_again.set()

    store.after[2] = second_commit
    async with asyncio_world.engine(flow, store) as engine:
        drive = asyncio.create_task(engine.start("flow", run_id="r"))
        await asked_again.wait()
        drive.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drive
    begun = await stored(asyncio_world.store, "r")
    assert begun[6:] == ["step_completed a"]
    hang[0] = False
    calls.clear()
    async with asyncio_world.engine(flow) as engine:
        snapshot = await engine.drive("r")
    assert (snapshot.output, snapshot.steps["b"].attempt) == (["a", "b"], 1)
    assert calls == ["ask", "b", "ask"]
    assert await stored(asyncio_world.store, "r") == [*begun, "step_completed b", "run_completed"]


class Flaky:
    """Work that fails once per step, then succeeds."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    async def __call__(self, step_id: str) -> str:
        if step_id not in self.failed:
            self.failed.add(step_id)
            raise ValueError(step_id)
        return step_id


def delayed(**seconds: int) -> dict[str, RetryPolicy]:
    return {step_id: RetryPolicy.fixed(2, timedelta(seconds=delay)) for step_id, delay in seconds.items()}


async def test_31_siblings_with_one_deadline(world: World) -> None:
    """Two delayed siblings due at once are resumed by one call, both attempts started together."""
    calls: list[str] = []
    async with world.engine(batch_of("ab", Flaky(), calls, delayed(a=60, b=60))) as engine:
        assert (await engine.run("flow", run_id="r")).status == "suspended"
        before = len(await engine.history("r"))
        due = world.clock.after(seconds=60)
        wakeups = await engine.resume_scheduled_run("r", due)
        assert [(w.run_id, w.kind, w.subject_id, w.scheduled_at) for w in wakeups] == [
            ("r", "retry", "a", due.ns),
            ("r", "retry", "b", due.ns),
        ]
        assert story(await engine.history("r"))[before:] == [
            "step_started a 2",
            "step_started b 2",
            "step_completed a",
            "step_completed b",
            "run_completed",
        ]


async def test_32_staggered_deadlines(world: World) -> None:
    """The earlier member runs at its time; the later is untouched until its own."""
    begun = world.clock.ns
    calls: list[str] = []
    async with world.engine(batch_of("ab", Flaky(), calls, delayed(a=60, b=90))) as engine:
        await engine.start("flow", run_id="r")
        calls.clear()
        assert await engine.resume_due_retries(world.clock.after(seconds=60)) == [("r", "a")]
        b = (await engine.snapshot("r")).steps["b"]
        assert (b.status, b.attempt, b.retry_after) == ("pending", 1, Instant(begun + 90 * 10**9))
        assert "b" not in calls
        assert await engine.resume_due_retries(world.clock.after(seconds=90)) == [("r", "b")]
        assert (await engine.snapshot("r")).output == ["a", "b"]


@pytest.mark.parametrize(
    ("ids", "refusal"),
    [
        ([], ("empty_list", None, None)),
        (["a", "b", "a"], ("named_twice", "step", "a")),
        (["a", " "], ("blank_id", "step", " ")),
    ],
)
async def test_33_malformed_batches(world: World, ids: list[str], refusal: tuple[str, str, str]) -> None:
    """Empty list, duplicate ids, blank id: `InvalidTransition`, nothing appended."""
    flow = Flow()

    @flow.step
    async def work() -> None:
        raise AssertionError("no step may run")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_steps([ctx.step(step_id, work) for step_id in ids])

    async with world.engine(flow) as engine:
        with pytest.raises(InvalidTransition) as refused:
            await engine.start("flow", run_id="r")
        error = refused.value
        assert (error.run_id, error.rule, error.kind, error.id) == ("r", *refusal)
        assert await stored(world.store, "r") == CREATED


async def test_34_drift_listed_last(world: World) -> None:
    """A known member with another input, listed behind new ones: `NonDeterministic`, and none of the new is created."""
    flow = Flow()
    passes: list[int] = []

    @flow.step
    async def work(value: int) -> int:
        return value

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        passes.append(1)
        if len(passes) == 1:
            return ctx.schedule_steps([ctx.step("a", work, 1)])
        return ctx.schedule_steps([ctx.step("b", work, 2), ctx.step("c", work, 3), ctx.step("a", work, 9)])

    async with world.engine(flow) as engine:
        with pytest.raises(NonDeterministic) as refused:
            await engine.start("flow", run_id="r")
        error = refused.value
        assert (error.kind, error.id, error.part, error.recorded, error.now) == ("step", "a", "input", "1", "9")
        assert await stored(world.store, "r") == [*CREATED, "step_created a", "step_started a 1", "step_completed a"]


async def test_35_a_grown_batch(world: World) -> None:
    """(a, b), then (a, b, c): only c runs."""
    flow = Flow()
    calls: list[str] = []

    @flow.step
    async def work(step_id: str) -> None:
        calls.append(step_id)

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("c"):
            return ctx.complete()
        ids = "abc" if ctx.step_completed("a") and ctx.step_completed("b") else "ab"
        return ctx.schedule_steps([ctx.step(step_id, work, step_id) for step_id in ids])

    async with world.engine(flow) as engine:
        assert (await engine.run("flow", run_id="r")).status == "completed"
        assert [line for line in await stored(world.store, "r") if line.startswith("step_created")] == [
            "step_created a",
            "step_created b",
            "step_created c",
        ]
    assert calls == ["a", "b", "c"]


async def test_36_all_members_terminal(world: World) -> None:
    """Naming only what has ended is `InvalidTransition` on that very call."""
    flow = Flow()
    asked: list[int] = []

    @flow.step
    async def work() -> None:
        pass

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        asked.append(1)
        return ctx.schedule_steps([ctx.step("a", work), ctx.step("b", work)])

    async with world.engine(flow) as engine:
        with pytest.raises(InvalidTransition) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.args == ("r", "nothing_new", None, None, None, None)
        assert (await stored(world.store, "r"))[-2:] == ["step_completed a", "step_completed b"]
    assert len(asked) == 2


def fails_beside_a_hanging_one(calls: list[str], cancelled: list[str]) -> Flow:
    started = asyncio.Event()

    async def work(step_id: str) -> None:
        if step_id == "a":
            await started.wait()
            raise ValueError("for good")
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(step_id)
            raise

    return batch_of("ab", work, calls, {"a": ONCE})


CLOSED = [
    *CREATED,
    "step_created a",
    "step_created b",
    "step_started a 1",
    "step_started b 1",
    "step_failed a 1",
    "step_cancelled b 1",
    "run_retry_exhausted a 1",
]


async def test_37_a_failing_member_ends_its_siblings(world: World) -> None:
    """One member fails for good while its sibling hangs: the sibling `cancelled`, the run failed, no hang."""
    calls: list[str] = []
    cancelled: list[str] = []
    async with world.engine(fails_beside_a_hanging_one(calls, cancelled)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        await asyncio.sleep(0)
        history = await engine.history("r")
    assert story(history) == CLOSED
    assert (snapshot.status, snapshot.steps["b"].status) == ("failed", "cancelled")
    assert history[-2].event["reason"] == "run failed by step a; outcome unknown"
    assert snapshot.error == "runtime error: for good"
    assert cancelled == ["b"]
    assert calls.count("ask") == 1


async def test_38_a_lost_closing_commit(world: World) -> None:
    """The engine ends at the closing commit: the run is open, and a new one re-runs both members at the same attempt."""
    calls: list[str] = []
    async with world.engine(fails_beside_a_hanging_one(calls, []), WatchedStore(world.store).crash(before=2)) as engine:
        with pytest.raises(Crash):
            await engine.start("flow", run_id="r")
    assert await stored(world.store, "r") == CLOSED[:6]
    assert sorted(calls) == ["a", "ask", "b"]
    calls.clear()
    async with world.engine(fails_beside_a_hanging_one(calls, [])) as engine:
        assert (await engine.drive("r")).status == "failed"
    assert await stored(world.store, "r") == CLOSED
    assert sorted(calls) == ["a", "ask", "b"]


async def test_38_a_durable_failure_is_closed_without_a_call(world: World) -> None:
    """With only `step_failed` durable the run is closed with no call of the workflow or of a step."""
    calls: list[str] = []
    async with world.engine(fails_beside_a_hanging_one(calls, [])) as engine:
        await engine.start("flow", run_id="r")
        await world.plant("cut", (await engine.history("r"))[:7])
        calls.clear()
        snapshot = await engine.drive("cut")
    assert (snapshot.status, calls) == ("failed", [])
    assert await stored(world.store, "cut") == CLOSED
