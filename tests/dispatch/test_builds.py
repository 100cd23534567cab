"""Builds: scenarios 83-86, bug 31."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenarios.kit import stored

from dispatch.kit import Place, Recorder, raised, story_flow
from perdure import (
    DisposeHookByToken,
    DriveRun,
    Flow,
    FlowScheduler,
    FlowTask,
    InvalidRuntimeBuildId,
    InvalidTransition,
    InvalidWorkerConfiguration,
    ResumeDueWaits,
    ResumeHookByToken,
    ResumeScheduledRun,
    ResumeWait,
    RunNotFound,
    RuntimeBuildCompatibility,
    RuntimeBuildId,
    RuntimeBuildRouteNotFound,
    RuntimeBuildTaskRouter,
    RuntimeBuildUnavailable,
    TaskWorker,
    WorkflowSpec,
)

SPEC = WorkflowSpec.python("flow", "1")
V1, V2 = (replace(SPEC, runtime_build_id=build) for build in ("v1", "v2"))


@pytest.mark.parametrize("build", ["a", "7", "ab", "v1.2-3_4:5+6/7@8", "a" * 128, "Z" + "-" * 126 + "0"])
def test_scenario_83_build_ids(build: str) -> None:
    assert RuntimeBuildId(build) == build
    assert isinstance(RuntimeBuildId(build), str)
    assert RuntimeBuildCompatibility(RuntimeBuildId(build)).current == build
    assert RuntimeBuildTaskRouter({build: Recorder()}).builds == [build]


@pytest.mark.parametrize(
    "build", ["", "a" * 129, "-a", "a-", " a", "a ", "a b", "é", "a\n", "a\x00", ".", "a*b"], ids=ascii
)
def test_scenario_83_what_is_no_build_id(build: str) -> None:
    for make in (RuntimeBuildId, RuntimeBuildCompatibility, lambda text: RuntimeBuildTaskRouter({text: Recorder()})):
        with pytest.raises(InvalidRuntimeBuildId):
            make(build)


CURRENT = RuntimeBuildCompatibility("v2", frozenset({"v1"}))
TABLE = [
    (None, None, True),
    (None, "v1", False),
    (None, "v3", False),
    (CURRENT, None, False),
    (replace(CURRENT, accept_unpinned=True), None, True),
    (CURRENT, "v1", True),
    (CURRENT, "v2", True),
    (CURRENT, "v3", False),
]


@pytest.mark.parametrize(("builds", "pinned", "admitted"), TABLE, ids=str)
async def test_scenario_84_each_cell(
    memory: Place, builds: RuntimeBuildCompatibility | None, pinned: str | None, admitted: bool
) -> None:
    spec = replace(SPEC, runtime_build_id=pinned)
    own = None if pinned is None else RuntimeBuildCompatibility(pinned)
    async with memory.engine(story_flow(), builds=own) as engine:
        await engine.submit(spec, {"hook": True}, run_id="r")
    before = await stored(memory.store, "r")
    async with memory.engine(story_flow(), builds=builds) as engine:
        if admitted:
            assert (await engine.drive("r")).status == "suspended"
            return
        refused = await raised(RuntimeBuildUnavailable, engine.drive("r"))
        assert refused.args == ("r", pinned, None if builds is None else builds.current)
    assert await stored(memory.store, "r") == before


# the router ----------------------------------------------------------------------------------------------------------


async def test_scenario_85_pinned_and_unpinned_tasks_go_their_ways(memory: Place) -> None:
    old, new, unpinned = Recorder(), Recorder(), Recorder()
    router = RuntimeBuildTaskRouter([("v1", old), ("v2", new)], unpinned)
    await router.dispatch(DriveRun("a"))
    await router.dispatch_for_runtime_build(None, DriveRun("b"))
    await router.dispatch_for_runtime_build("v2", DriveRun("c"))
    await router.dispatch_many("v1", [DriveRun("d"), DriveRun("e")])
    assert (unpinned.tasks, new.tasks) == ([DriveRun("a"), DriveRun("b")], [DriveRun("c")])
    assert old.tasks == [DriveRun("d"), DriveRun("e")]
    refused = await raised(RuntimeBuildRouteNotFound, router.dispatch_for_runtime_build("v3", DriveRun("f")))
    assert refused.required_build_id == "v3"
    bare = RuntimeBuildTaskRouter({"v1": old})
    assert (await raised(RuntimeBuildRouteNotFound, bare.dispatch(DriveRun("g")))).required_build_id is None
    for build in ("v1", "v2", None):
        router.ensure_runtime_build_route(build)
    with pytest.raises(RuntimeBuildRouteNotFound):
        bare.ensure_runtime_build_route(None)


def test_scenario_85_two_routes_for_one_build_are_refused() -> None:
    with pytest.raises(InvalidWorkerConfiguration, match="build 'v1' has two routes"):
        RuntimeBuildTaskRouter([("v1", Recorder()), ("v1", Recorder())])
    with pytest.raises(InvalidWorkerConfiguration, match="a dispatcher has an async method"):
        RuntimeBuildTaskRouter({"v1": object()})


async def test_scenario_85_the_persisted_build_of_a_run_is_its_route(place: Place) -> None:
    old, unpinned = Recorder(), Recorder()
    router = RuntimeBuildTaskRouter({"v1": old}, unpinned)
    async with place.engine(story_flow(), builds=RuntimeBuildCompatibility("v1", accept_unpinned=True)) as engine:
        await engine.submit(V1, run_id="pinned")
        await engine.submit(SPEC, run_id="free")
        for run_id in ("pinned", "free"):
            await router.dispatch_for_run(engine, run_id, ResumeWait(run_id, "w"))
        assert (old.tasks, unpinned.tasks) == ([ResumeWait("pinned", "w")], [ResumeWait("free", "w")])
        others: list[FlowTask] = [ResumeHookByToken("canary-t", 1), DisposeHookByToken("canary-t")]
        for task in [*others, ResumeDueWaits(place.clock.now), DriveRun("free")]:
            refused = await raised(InvalidTransition, router.dispatch_for_run(engine, "pinned", task))
            assert refused.rule == "task_target"
            assert "canary" not in str(refused)
        await raised(RunNotFound, router.dispatch_for_run(engine, "none", DriveRun("none")))


async def test_bug_31_scenario_85_a_missing_route_makes_the_tick_atomic(place: Place) -> None:
    unpinned = place.queue()
    async with place.engine(story_flow(), builds=RuntimeBuildCompatibility("v1", accept_unpinned=True)) as engine:
        await engine.start(SPEC, {"waits": 1}, run_id="a")
        await engine.start(V1, {"waits": 1}, run_id="b")
        place.clock.advance(hours=1)
        missing = FlowScheduler(engine, RuntimeBuildTaskRouter({"v2": Recorder()}, unpinned))
        assert (await raised(RuntimeBuildRouteNotFound, missing.enqueue_due_work())).required_build_id == "v1"
        assert await unpinned.is_empty()
        plain = FlowScheduler(engine, unpinned)  # every queue takes unpinned work only
        assert (await raised(RuntimeBuildRouteNotFound, plain.enqueue_due_work())).required_build_id == "v1"
        pinned = place.queue("v1")
        router = RuntimeBuildTaskRouter({"v1": pinned}, unpinned)
        assert (await FlowScheduler(engine, router).enqueue_due_work()).enqueued_tasks == 2
        assert await unpinned.dequeue() == ResumeScheduledRun("a", place.clock.now)
        assert await pinned.dequeue() == ResumeScheduledRun("b", place.clock.now)


async def test_scenario_86_a_rolling_upgrade(place: Place) -> None:
    """The old run stays on the old worker, the new one goes to the new worker, and counts say when the old may go."""
    old_calls: list[str] = []
    new_calls: list[str] = []

    def of(calls: list[str]) -> Flow:
        return story_flow(calls)

    async with (
        place.engine(of(old_calls), builds=RuntimeBuildCompatibility("v1")) as old,
        place.engine(of(new_calls), place.open(), builds=RuntimeBuildCompatibility("v2")) as new,
    ):
        await old.start(V1, {"waits": 1}, run_id="old")
        await new.start(V2, {"waits": 1}, run_id="new")
        old_calls.clear()
        new_calls.clear()
        queues = {"v1": place.queue("v1"), "v2": place.queue("v2")}
        scheduler = FlowScheduler(new, RuntimeBuildTaskRouter(queues))
        counts = await new.run_summary_by_build()
        assert {build: summary.non_terminal_runs for build, summary in counts.items()} == {"v1": 1, "v2": 1}
        place.clock.advance(hours=1)
        assert (await scheduler.enqueue_due_work()).enqueued_tasks == 2
        outcomes = await TaskWorker(old, queues["v1"]).run_until_idle()
        assert [outcome.run_ids for outcome in outcomes] == [("old",)]
        outcomes = await TaskWorker(new, queues["v2"]).run_until_idle()
        assert [outcome.run_ids for outcome in outcomes] == [("new",)]
        assert (len(old_calls), len(new_calls)) == (1, 1)
        counts = await new.run_summary_by_build()
        assert {build: summary.non_terminal_runs for build, summary in counts.items()} == {"v1": 0, "v2": 0}


async def test_an_engine_that_takes_only_pinned_runs_pins_what_it_starts(place: Place) -> None:
    """A workflow given by function or name is a new run's of this build; a spec says so itself; an equal start finds the run
    whichever build it was pinned to (R57)."""
    flow = story_flow()
    async with place.engine(flow, builds=RuntimeBuildCompatibility("v1")) as first:
        assert await first.submit("flow", run_id="r") == "r"
        assert await first.runtime_build_id("r") == "v1"
        with pytest.raises(RuntimeBuildUnavailable):
            await first.submit(SPEC, run_id="unpinned")
    async with place.engine(flow, builds=RuntimeBuildCompatibility("v2", {"v1"}, accept_unpinned=True)) as second:
        assert await second.submit("flow", run_id="r") == "r"
        assert await second.runtime_build_id("r") == "v1"
        await second.submit("flow", run_id="s")  # it accepts unpinned runs, and makes them
        assert await second.runtime_build_id("s") is None
