"""Scenarios 11 to 22: attempts, delays, jitter and exhaustion."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from perdure import Flow, InvalidTransition, RetryPolicy, RuntimeCommand, WorkflowContext
from perdure import kernel as kernels
from perdure.commands import RawCommand
from perdure.instant import Instant
from perdure.kernel import KernelName
from scenarios.kit import World, stored, story
from scenarios.worlds import world_in_both_shells  # noqa: F401 - is this module's `world`

U64 = 2**64 - 1
I64 = 2**63 - 1
BEGUN = ["run_created", "run_started", "step_created a", "step_started a 1"]


def failing(
    times: int, policy: RetryPolicy, attempts: list[int], on_failure: Callable[[], None] = lambda: None
) -> Flow:
    """One step `a` that fails `times` times. `attempts` takes the number of each call."""
    flow = Flow()

    @flow.step
    async def work() -> str:
        attempts.append(len(attempts) + 1)
        if len(attempts) <= times:
            on_failure()
            raise ValueError(f"no. {len(attempts)}")
        return "done"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", work, retry=policy)
        return ctx.complete(ctx.step_output("a"))

    return flow


async def test_11_fails_once_then_succeeds(world: World) -> None:
    """Two attempts without delay: started 1, retrying 1 (null), started 2, completed, in one drive."""
    attempts: list[int] = []
    async with world.engine(failing(1, RetryPolicy.fixed(2), attempts)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        history = await engine.history("r")
    assert (snapshot.status, snapshot.output, snapshot.steps["a"].attempt) == ("completed", "done", 2)
    assert story(history) == [*BEGUN, "step_retrying a 1", "step_started a 2", "step_completed a", "run_completed"]
    assert history[4].event["retry_after"] is None
    assert history[4].event["error"] == "runtime error: no. 1"
    assert len(attempts) == 2


async def test_12_exhausted_fails_the_run(world: World) -> None:
    """Always fails, two attempts, `fail_run`: step_failed 2, run_retry_exhausted; the outcome names step, attempt, error."""
    attempts: list[int] = []
    async with world.engine(failing(9, RetryPolicy.fixed(2), attempts)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        assert await stored(world.store, "r") == [
            *BEGUN,
            "step_retrying a 1",
            "step_started a 2",
            "step_failed a 2",
            "run_retry_exhausted a 2",
        ]
    assert snapshot.status == "failed"
    error = "runtime error: no. 2"
    assert snapshot.terminal_outcome == {"type": "retry_exhausted", "step_id": "a", "attempt": 2, "error": error}
    assert snapshot.error == error
    assert len(attempts) == 2


async def test_13_exhausted_goes_on(world: World) -> None:
    """The same with `continue_workflow`: the workflow runs its fallback and completes."""
    flow = Flow()

    @flow.step
    async def work() -> None:
        raise ValueError("no")

    @flow.step
    async def fallback(error: str) -> str:
        return f"instead of <{error}>"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        error = ctx.step_failed("a")
        if error is None:
            return ctx.schedule_step("a", work, retry=RetryPolicy.fixed(2).continue_workflow_on_failure())
        if not ctx.step_completed("b"):
            return ctx.schedule_step("b", fallback, error)
        return ctx.complete(ctx.step_output("b"))

    async with world.engine(flow) as engine:
        snapshot = await engine.run("flow", run_id="r")
        assert (await stored(world.store, "r"))[4:] == [
            "step_retrying a 1",
            "step_started a 2",
            "step_failed a 2",
            "step_created b",
            "step_started b 1",
            "step_completed b",
            "run_completed",
        ]
    assert (snapshot.status, snapshot.output) == ("completed", "instead of <runtime error: no>")


async def test_14_no_attempts_means_one(world: World) -> None:
    """`max_attempts` 0 acts as 1 and is stored as 0."""
    attempts: list[int] = []
    async with world.engine(failing(9, RetryPolicy(max_attempts=0), attempts)) as engine:
        snapshot = await engine.run("flow", run_id="r")
        assert await stored(world.store, "r") == [*BEGUN, "step_failed a 1", "run_retry_exhausted a 1"]
    assert snapshot.steps["a"].retry.max_attempts == 0
    assert attempts == [1]


async def test_15_a_delay_suspends(world: World) -> None:
    """Delay 60 s: suspended; nothing due now, one entry at +120 s; resumed then it completes; a second resume is empty."""
    attempts: list[int] = []
    async with world.engine(failing(1, RetryPolicy.fixed(2, timedelta(seconds=60)), attempts)) as engine:
        assert (await engine.run("flow", run_id="r")).status == "suspended"
        assert await engine.list_due_retries(world.clock.now) == []
        later = world.clock.after(seconds=120)
        assert await engine.list_due_retries(later) == [("r", "a")]
        assert await engine.resume_due_retries(world.clock.now) == []
        assert await engine.resume_due_retries(later) == [("r", "a")]
        assert await engine.resume_due_retries(later) == []
        snapshot = await engine.snapshot("r")
    assert (snapshot.status, snapshot.output, attempts) == ("completed", "done", [1, 2])


async def test_16_the_deadline_counts_from_the_failure(world: World) -> None:
    """A step of 90 s with a delay of 1 s retries 91 s after it began, and not in the drive that recorded it."""
    begun = world.clock.now
    attempts: list[int] = []
    flow = failing(1, RetryPolicy.fixed(2, timedelta(seconds=1)), attempts, lambda: world.clock.advance(seconds=90))
    async with world.engine(flow) as engine:
        snapshot = await engine.run("flow", run_id="r")
        assert (snapshot.status, attempts) == ("suspended", [1])
        assert snapshot.steps["a"].retry_after == Instant(begun.ns + 91 * 10**9)
        assert await engine.list_due_retries(world.clock.now) == []


async def test_17_exponential_chain(world: World) -> None:
    """Exponential 1 s to 4 s, each resumed at its deadline: the delays of the golden vectors, exhausted after 4 attempts."""
    attempts: list[int] = []
    policy = RetryPolicy.exponential(4, timedelta(seconds=1), timedelta(seconds=4))
    flow = Flow()

    @flow.step
    async def charge() -> None:
        attempts.append(1)
        raise ValueError("declined")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.schedule_step("charge-card", charge, retry=policy)

    run_id = "invoice-2026-0001"
    delays_ms: list[int] = []
    async with world.engine(flow) as engine:
        snapshot = await engine.run("flow", run_id=run_id)
        while (due := snapshot.steps["charge-card"].retry_after) is not None:
            assert snapshot.status == "suspended"
            delays_ms.append((due.ns - world.clock.ns) // 10**6)
            world.clock.ns = due.ns
            assert await engine.resume_due_retries(due) == [(run_id, "charge-card")]
            snapshot = await engine.snapshot(run_id)
    assert delays_ms == [507, 207, 796]
    assert (snapshot.status, snapshot.steps["charge-card"].attempt, len(attempts)) == ("failed", 4, 4)


async def test_18_catch_up_runs_one_attempt(world: World) -> None:
    """A `now` far in the future starts exactly one attempt per drive; the next deadline lies beyond it."""
    attempts: list[int] = []
    async with world.engine(failing(9, RetryPolicy.fixed(5, timedelta(seconds=1)), attempts)) as engine:
        await engine.start("flow", run_id="r")
        for made in (2, 3):
            far = world.clock.after(days=365 * made)
            assert await engine.resume_due_retries(far) == [("r", "a")]
            snapshot = await engine.snapshot("r")
            assert len(attempts) == made
            assert snapshot.steps["a"].retry_after == Instant(far.ns + 10**9)


@pytest.mark.parametrize("delay_ms", [U64, I64])
@pytest.mark.parametrize("batch", [False, True])
async def test_19_delays_beyond_the_calendar(world: World, delay_ms: int, batch: bool) -> None:
    """A delay of u64 max or i64 max, single and in a batch: refused; only creation and start stored, no step called."""
    calls: list[str] = []
    flow = Flow()

    @flow.step
    async def work() -> None:
        calls.append("step")

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        policy = RetryPolicy.fixed(2, delay_ms=delay_ms)
        if batch:
            return ctx.schedule_steps([ctx.step("good", work), ctx.step("a", work, retry=policy)])
        return ctx.schedule_step("a", work, retry=policy)

    async with world.engine(flow) as engine:
        with pytest.raises(InvalidTransition) as refused:
            await engine.start("flow", run_id="r")
        assert refused.value.args == ("r", "delay_out_of_range", "step", "a", None, str(delay_ms))
        assert await stored(world.store, "r") == ["run_created", "run_started"]
    assert calls == []


async def test_20_policies_on_the_wire(world: World) -> None:
    """A fixed policy has only `max_attempts` and `delay_ms`; a command without `retry` reads as 3 and 0."""
    flow = failing(0, RetryPolicy.fixed(2, timedelta(seconds=5)), [])

    @flow.workflow("raw", version="1")
    def raw(ctx: WorkflowContext) -> RuntimeCommand:
        return RawCommand(b'{"type":"schedule_step","step_id":"a","step_name":"work","input":null}')

    async with world.engine(flow) as engine:
        await engine.start("flow", run_id="fixed")
        assert b'"retry":{"max_attempts":2,"delay_ms":5000}' in await world.store.history("fixed")
        with pytest.raises(InvalidTransition) as refused:  # it names the finished step again
            await engine.start("raw", run_id="raw")
        assert refused.value.rule == "nothing_new"
        assert b'"retry":{"max_attempts":3,"delay_ms":0}' in await world.store.history("raw")
        assert (await engine.snapshot("raw")).steps["a"].retry == RetryPolicy(3, 0)


@pytest.mark.parametrize("name", ["rust", "pure"])
def test_21_jitter_is_a_function_of_run_step_and_attempt(name: KernelName) -> None:
    """It needs neither process nor time; it differs by run, step and attempt; (`a`, `bc`) is not (`ab`, `c`)."""
    delay = kernels.load(name).retry_delay_ms
    policy = RetryPolicy.exponential(9, delay_ms=100, max_delay_ms=400)
    golden = [(("run-1", "step-1", 1), 90), (("run-1", "step-1", 2), 179), (("run-1", "step-1", 3), 48)]
    golden += [(("run-2", "step-1", 3), 321), (("run-1", "step-2", 3), 208), (("run-1", "étape", 1), 89)]
    assert [delay(policy, *args) for args, _ in golden] == [ms for _, ms in golden]
    second = RetryPolicy.exponential(9, delay_ms=1000, max_delay_ms=1000)
    assert (delay(second, "a", "bc", 1), delay(second, "ab", "c", 1)) == (494, 510)


async def test_22_summary_counts_open_retries(world: World) -> None:
    """The summary counts pending retries of open runs only."""
    async with world.engine(failing(99, RetryPolicy.fixed(2, timedelta(seconds=60)), [])) as engine:
        for run_id in ("one", "two", "three"):
            await engine.start("flow", run_id=run_id)
        assert (await engine.run_summary()).pending_retries == 3
        await engine.force_cancel("two")
        summary = await engine.run_summary()
        assert (summary.total_runs, summary.suspended_runs, summary.cancelled_runs) == (3, 2, 1)
        assert (summary.terminal_runs, summary.non_terminal_runs, summary.pending_retries) == (1, 2, 2)
        assert (await engine.snapshot("two")).steps["a"].retry_after is not None
        assert await engine.list_due_retries(world.clock.after(days=1)) == [("one", "a"), ("three", "a")]
