"""What becomes of a task, rule by rule (R43, R44, spec 08 §8.2): its outcome and its disposition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from scenarios.kit import one_workflow, stored

from dispatch.kit import Place, raised, story_flow
from perdure import (
    DisposeHook,
    DisposeHookByToken,
    DriveRun,
    Flow,
    FlowEngine,
    FlowTask,
    ResumeDueRetries,
    ResumeDueWaits,
    ResumeHook,
    ResumeHookByToken,
    ResumeScheduledRun,
    ResumeWait,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    TaskOutcome,
    WorkflowContext,
    WorkflowNotRegistered,
    WorkflowRaised,
    WorkflowSpec,
)
from perdure.tasks import Ack, DeadLetter, Nack, handle


@asynccontextmanager
async def suspended(place: Place, **wants: object) -> AsyncIterator[FlowEngine]:
    """An engine, and run `r` waiting for what is asked for."""
    async with place.engine(story_flow()) as engine:
        await engine.start("flow", wants, run_id="r")
        yield engine


# what the lists say --------------------------------------------------------------------------------------------------


async def test_a_drive_completes_what_is_due_and_a_second_one_reports_nothing(place: Place) -> None:
    """The lists hold only what this handling committed; a redelivery still drives and names the run."""
    async with suspended(place, waits=2) as engine:
        place.clock.advance(hours=1)
        outcome = await handle(engine, DriveRun("r"))
        assert outcome == TaskOutcome(DriveRun("r"), ("r",), resumed_waits=(("r", "w0"), ("r", "w1")))
        assert await handle(engine, DriveRun("r")) == TaskOutcome(DriveRun("r"), ("r",))
        assert (await engine.snapshot("r")).status == "completed"


async def test_a_scheduled_resume_lists_waits_and_the_retries_it_started(place: Place) -> None:
    async with suspended(place, waits=1, step=True) as engine:
        early = await handle(engine, ResumeScheduledRun("r", place.clock.now))
        assert early == TaskOutcome(early.task, ("r",))
        task = ResumeScheduledRun("r", place.clock.after(hours=1))
        outcome = await handle(engine, task)
        assert outcome == TaskOutcome(task, ("r",), resumed_waits=(("r", "w0"),), resumed_retries=(("r", "s"),))
        assert await handle(engine, task) == TaskOutcome(task, ("r",))


async def test_scenario_75_an_early_task_does_nothing(place: Place) -> None:
    async with suspended(place, waits=1) as engine:
        before = await place.store.history("r")
        place.clock.advance(minutes=59)
        outcome = await handle(engine, ResumeScheduledRun("r", place.clock.now))
        assert (outcome.resumed_waits, outcome.disposition) == ((), Ack())
        assert await place.store.history("r") == before


async def test_scenario_75_a_task_of_a_run_that_ended_is_empty_and_acknowledged(place: Place) -> None:
    async with suspended(place, waits=1, hook=True) as engine:
        await engine.force_cancel("r")
        before = await place.store.history("r")
        later = place.clock.after(hours=2)
        tasks: list[FlowTask] = [
            DriveRun("r"),
            ResumeScheduledRun("r", later),
            ResumeWait("r", "w0"),
            ResumeWait("r", "x"),
        ]
        tasks += [ResumeHook("r", "h", 1), DisposeHook("r", "h"), ResumeDueWaits(later), ResumeDueRetries(later)]
        for task in tasks:
            outcome = await handle(engine, task)
            assert outcome.disposition == Ack()
            assert (outcome.resumed_waits, outcome.resumed_retries) == ((), ())
            assert (outcome.resumed_hook, outcome.disposed_hook) == (None, None)
        assert await place.store.history("r") == before


async def test_a_task_of_an_unknown_run_is_acknowledged(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        tasks: list[FlowTask] = [DriveRun("no"), ResumeScheduledRun("no", place.clock.now), ResumeWait("no", "w")]
        for task in [*tasks, ResumeHook("no", "h", 1), DisposeHook("no", "h"), DriveRun("../no")]:
            assert await handle(engine, task) == TaskOutcome(task)


async def test_a_task_is_handled_at_the_later_of_its_now_and_the_clock(place: Place) -> None:
    """R46: an old task delivered late completes what is due by then."""
    async with suspended(place, waits=1) as engine:
        old = ResumeScheduledRun("r", place.clock.now)
        place.clock.advance(hours=1)
        assert (await handle(engine, old)).resumed_waits == (("r", "w0"),)


async def test_scenario_81_scans_of_older_schedulers_still_run(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        for run_id in ("a", "b"):
            await engine.start("flow", {"waits": 2, "step": run_id == "b"}, run_id=run_id)
        later = place.clock.after(hours=1)
        waits = await handle(engine, FlowTask.from_json(ResumeDueWaits(later).to_json()))
        assert waits.run_ids == ("a", "b")
        assert waits.resumed_waits == (("a", "w0"), ("a", "w1"), ("b", "w0"), ("b", "w1"))
        place.clock.advance(hours=1)
        retries = await handle(engine, FlowTask.from_json(ResumeDueRetries(later).to_json()))
        assert (retries.resumed_retries, retries.resumed_waits) == ((), ())  # the drive after the waits has started it
        assert (await engine.run_summary()).completed_runs == 2
        assert await handle(engine, ResumeDueWaits(later)) == TaskOutcome(ResumeDueWaits(later))


async def test_a_scan_for_retries_starts_those_that_are_due(place: Place) -> None:
    async with suspended(place, step=True, hook=True) as engine:
        outcome = await handle(engine, ResumeDueRetries(place.clock.after(hours=1)))
        assert outcome.resumed_retries == (("r", "s"),)


# tasks with an event of their own ------------------------------------------------------------------------------------


async def test_a_wait_is_resumed_once(place: Place) -> None:
    async with suspended(place, waits=1) as engine:
        place.clock.advance(hours=1)
        assert (await handle(engine, ResumeWait("r", "w0"))).resumed_waits == (("r", "w0"),)
        assert await handle(engine, ResumeWait("r", "w0")) == TaskOutcome(ResumeWait("r", "w0"), ("r",))


async def test_a_wait_before_its_time_comes_back_when_it_is_due(place: Place) -> None:
    async with suspended(place, waits=1) as engine:
        outcome = await handle(engine, ResumeWait("r", "w0"))
        assert outcome.disposition == Nack("invalid_transition", not_before=place.clock.after(hours=1).ns)


async def test_a_hook_is_resumed_once(place: Place) -> None:
    async with suspended(place, hook=True) as engine:
        task = ResumeHook("r", "h", {"n": 1})
        assert await handle(engine, task) == TaskOutcome(task, ("r",), resumed_hook=("r", "h"))
        assert (await engine.snapshot("r")).output == {"n": 1}
        assert await handle(engine, task) == TaskOutcome(task, ("r",))


async def test_a_hook_by_token(place: Place) -> None:
    async with place.engine(story_flow()) as engine:
        for run_id in ("r", "s"):
            await engine.start("flow", {"hook": True, "waits": 1}, run_id=run_id)
        task = ResumeHookByToken("canary-r", 5)
        assert await handle(engine, task) == TaskOutcome(task, ("r",), resumed_hook=("r", "h"))
        gone = await handle(engine, task)
        assert isinstance(gone.disposition, DeadLetter)
        assert gone.disposition.reason.startswith("hook_token_not_found: ")
        assert "canary" not in repr(gone)
        away = DisposeHookByToken("canary-s")
        assert await handle(engine, away) == TaskOutcome(away, ("s",), disposed_hook=("s", "h"))


async def test_a_hook_is_disposed_once(place: Place) -> None:
    async with suspended(place, hook=True, waits=1) as engine:
        task = DisposeHook("r", "h")
        assert await handle(engine, task) == TaskOutcome(task, ("r",), disposed_hook=("r", "h"))
        assert await handle(engine, task) == TaskOutcome(task, ("r",))


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (ResumeWait("r", "unknown"), "invalid_transition: "),
        (ResumeHook("r", "unknown", 1), "invalid_transition: "),
        (ResumeHook("r", "h", {"secret": 2}), "hook_conflict: "),
        (DisposeHook("r", "h"), "hook_conflict: "),
        (ResumeHookByToken("canary-nobody", 1), "hook_token_not_found: "),
        (ResumeHookByToken(" ", 1), "invalid_transition: "),
        (ResumeHook("r", "h", 2**70), "serialization: "),
        (ResumeHook("r r", "h", 1), ""),
    ],
)
async def test_a_task_refused_for_good_is_set_aside(memory: Place, task: FlowTask, reason: str) -> None:
    async with suspended(memory, hook=True, waits=1) as engine:
        await engine.resume_hook("r", "h", 1)
        before = await memory.store.history("r")
        outcome = await handle(engine, task)
        if reason:
            assert isinstance(outcome.disposition, DeadLetter)
            assert outcome.disposition.reason.startswith(reason)
            assert "secret" not in outcome.disposition.reason
        else:
            assert outcome.disposition == Ack()  # no run has such an id
        assert await memory.store.history("r") == before


async def test_an_event_too_large_is_set_aside(memory: Place) -> None:
    async with memory.engine(story_flow(), max_event_bytes=4000) as engine:
        await engine.start("flow", {"hook": True}, run_id="r")
        outcome = await handle(engine, ResumeHook("r", "h", "x" * 5000))
        assert isinstance(outcome.disposition, DeadLetter)
        assert outcome.disposition.reason.startswith("payload_too_large: ")


async def test_a_redelivery_goes_on_where_the_first_was_cut_off(place: Place) -> None:
    """The wait was completed and the drive then lost: nothing is due any more, and yet the task drives."""
    async with suspended(place, waits=1) as engine:
        place.clock.advance(hours=1)
        await engine.resume_wait("r", "w0", drive=False)
        task = ResumeScheduledRun("r", place.clock.now)
        assert await handle(engine, task) == TaskOutcome(task, ("r",))
        assert (await engine.snapshot("r")).status == "completed"


# a drive that fails --------------------------------------------------------------------------------------------------


def raising_after_hook() -> Flow:
    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.hook_payload("h") is not None:
            raise KeyError("a bug")
        return ctx.create_hook("h", f"canary-{ctx.run_id}")

    return one_workflow(ask)


async def test_a_failed_drive_is_counted_on_its_run_and_the_task_acknowledged(place: Place) -> None:
    """R44: also where the drive fails at its first ask, before it has claimed anything."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        raise KeyError("a bug")

    async with place.engine(one_workflow(ask)) as engine:
        await engine.submit("flow", run_id="r")
        for failures in (1, 2):
            outcome = await handle(engine, DriveRun("r"))
            assert outcome.disposition == Ack()
            assert isinstance(outcome.error, WorkflowRaised)
            state = await place.store.lease("r")
            assert (state.failures, state.live, state.owner) == (failures, False, None)
            assert state.not_before is not None
            place.clock.ns = max(place.clock.ns, state.not_before)


async def test_a_run_that_keeps_failing_is_held_and_its_tasks_are_acknowledged(place: Place) -> None:
    calls: list[str] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        calls.append("asked")
        raise KeyError("a bug")

    async with place.engine(one_workflow(ask), max_failures=3) as engine:
        await engine.submit("flow", run_id="r")
        for _ in range(5):
            assert (await handle(engine, DriveRun("r"))).disposition == Ack()
        assert len(calls) == 3
        hold = (await place.store.lease("r")).hold
        assert hold is not None
        assert '"failing"' in hold


async def test_a_drift_holds_the_run(place: Place) -> None:
    """R43: a worker without a build holds too, or it would be sent the run for ever."""

    def later(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.wait_for("w0", timedelta(0)) if ctx.wait_completed("w0") else ctx.create_hook("w0", "canary-other")

    def sooner(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.create_hook("w0", "canary-one")

    async with place.engine(one_workflow(sooner)) as engine:
        await engine.start("flow", run_id="r")
    async with place.engine(one_workflow(later)) as engine:
        assert (await handle(engine, DriveRun("r"))).disposition == Ack()
        assert (await place.store.lease("r")).hold is not None


async def test_the_event_of_a_task_is_durable_although_the_drive_after_it_failed(place: Place) -> None:
    async with place.engine(raising_after_hook()) as engine:
        await engine.start("flow", run_id="r")
        outcome = await handle(engine, ResumeHook("r", "h", 1))
        assert (outcome.resumed_hook, outcome.disposition) == (("r", "h"), Ack())
        assert (await place.store.lease("r")).failures == 1
        assert (await stored(place.store, "r"))[-1] == "hook_received h"


async def test_a_held_run_takes_the_event_and_is_not_driven(place: Place) -> None:
    calls: list[str] = []
    async with place.engine(story_flow(calls)) as engine:
        await engine.start("flow", {"hook": True}, run_id="r")
        last = (await place.store.lease("r")).last_sequence
        assert await place.store.set_hold("r", '{"code":"failing","builds":[]}', expected_sequence=last)
        calls.clear()
        for task in (DriveRun("r"), ResumeScheduledRun("r", place.clock.now)):
            assert await handle(engine, task) == TaskOutcome(task, ("r",))
        outcome = await handle(engine, ResumeHook("r", "h", 1))
        assert (outcome.resumed_hook, outcome.disposition) == (("r", "h"), Ack())
        assert calls == []
        assert (await place.store.lease("r")).hold is not None


async def test_an_unknown_workflow_comes_back_and_is_never_counted(place: Place) -> None:
    async with suspended(place, waits=1, hook=True):
        pass
    async with place.engine(Flow()) as engine:
        place.clock.advance(hours=1)
        for task in (DriveRun("r"), ResumeScheduledRun("r", place.clock.now), ResumeHook("r", "h", 1)):
            outcome = await handle(engine, task)
            assert outcome.disposition == Nack("workflow_not_registered", counted=False)
            assert isinstance(outcome.error, WorkflowNotRegistered)
        assert outcome.resumed_hook == ("r", "h")
        assert (await place.store.lease("r")).failures == 0


async def test_a_run_of_another_build_comes_back_and_nothing_is_written(place: Place) -> None:
    spec = replace(WorkflowSpec.python("flow", "1"), runtime_build_id="v1")
    async with place.engine(story_flow(), builds=RuntimeBuildCompatibility("v1")) as engine:
        await engine.start(spec, {"hook": True}, run_id="r")
    before = await place.store.history("r")
    async with place.engine(story_flow(), builds=RuntimeBuildCompatibility("v2")) as engine:
        for task in (DriveRun("r"), ResumeHook("r", "h", 1), ResumeHookByToken("canary-r", 1)):
            assert (await handle(engine, task)).disposition == Nack("runtime_build_unavailable", counted=False)
    assert await place.store.history("r") == before


async def test_a_run_that_another_engine_leases_is_left_to_it(place: Place) -> None:
    async with suspended(place, waits=1) as engine:
        claimed = await place.store.claim("somebody else", 1, ttl_ns=10**12)
        assert claimed == []
        place.clock.advance(hours=1)
        (claimed_run,) = await place.store.claim("somebody else", 1, ttl_ns=10**12)
        before = await place.store.history("r")
        for task in (DriveRun("r"), ResumeScheduledRun("r", place.clock.now)):
            assert await handle(engine, task) == TaskOutcome(task, ("r",))
        assert await place.store.history("r") == before
        assert (await place.store.lease("r")).epoch == claimed_run.epoch


async def test_an_engine_without_leases_cannot_count_so_the_task_does(memory: Place) -> None:
    async with memory.engine(raising_after_hook(), lease=False) as engine:
        await engine.start("flow", run_id="r")
        assert (await handle(engine, ResumeHook("r", "h", 1))).disposition == Nack("workflow_raised")


async def test_an_engine_that_closes_brings_the_task_back(memory: Place) -> None:
    engine = memory.engine(story_flow())
    await engine.start("flow", {"waits": 1}, run_id="r")
    await engine.close()
    assert (await handle(engine, DriveRun("r"))).disposition == Nack("engine_closed", counted=False)


async def test_two_handlings_of_one_hook_report_it_once(place: Place) -> None:
    async with place.engine(story_flow()) as one, place.engine(story_flow()) as two:
        await one.start("flow", {"hook": True}, run_id="r")
        task = ResumeHook("r", "h", 1)
        outcomes = await asyncio.gather(*(handle(engine, task) for engine in (one, two, one, two)))
        assert [outcome.resumed_hook for outcome in outcomes].count(("r", "h")) == 1
        assert {type(outcome.disposition) for outcome in outcomes} == {Ack}
    assert (await stored(place.store, "r")).count("hook_received h") == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_step_that_exits_ends_no_worker_and_brings_the_task_back(
    memory: Place, kind: type[BaseException]
) -> None:
    flow = Flow()

    @flow.step
    async def leave() -> None:
        raise kind

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", leave)

    async with memory.engine(flow) as engine:
        await engine.submit("flow", run_id="r")
        assert await handle(engine, DriveRun("r")) == TaskOutcome(
            DriveRun("r"), ("r",), disposition=Nack(kind.__name__)
        )
        assert (await memory.store.lease("r")).live is False


async def test_a_task_joined_to_a_direct_call_is_counted(memory: Place) -> None:
    """R22, R44: once a worker is among the callers of a drive, its failure is counted."""
    flow, gate = Flow(), asyncio.Event()

    @flow.step
    async def slow() -> None:
        await gate.wait()

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("s"):
            raise KeyError("a bug")
        return ctx.schedule_step("s", slow)

    async with memory.engine(flow) as engine:
        direct = asyncio.create_task(engine.start("flow", run_id="r"))
        while not await memory.store.last_sequences(["r"]):  # noqa: ASYNC110 - nobody but the store knows
            await asyncio.sleep(0)
        task = asyncio.create_task(handle(engine, DriveRun("r")))
        while [active.waiters for active in engine.active_drives] != [2]:  # noqa: ASYNC110 - the engine counts its callers
            await asyncio.sleep(0)
        gate.set()
        assert (await task).disposition == Ack()
        await raised(WorkflowRaised, direct)
        assert (await memory.store.lease("r")).failures == 1


async def test_what_is_no_task_is_a_type_error(memory: Place) -> None:
    async with memory.engine(story_flow()) as engine:
        with pytest.raises(TypeError, match="a task is one of"):
            await handle(engine, {"type": "drive_run"})  # type: ignore[arg-type]  # that is the test
