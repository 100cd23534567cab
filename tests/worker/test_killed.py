"""A run whose step kills the process that drives it: nobody is left to count, so those who take the run over do (R44)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
from scenarios.kit import Clock

import perdure
from perdure import Flow, FlowEngine, FlowWorker, RuntimeBuildCompatibility, RuntimeCommand, WorkflowContext
from perdure.errors import DriveLost
from perdure.stores import MemoryEventStore
from perdure.stores.base import FlowEventStore
from perdure.tasks import Ack, DriveRun, handle
from perdure.testing.virtual_time import VirtualTimeLoop, run
from worker.child import address_of
from worker.kit import chain, gated

MODULE = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
from perdure import BlockingFlowEngine, Flow, FlowEngine, FlowWorker, RuntimeCommand, StepContext, WorkflowContext
import asyncio

flow = Flow()

@flow.step
def deadly() -> str:
    with Path("ran").open("a") as ran:
        ran.write("x")
    if not Path("mended").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"

@flow.step
def once(context: StepContext) -> str:
    mark = Path(f"once-{context.step_id}")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return context.step_id

@flow.step
def harmless() -> str:
    return "done"

@flow.workflow("deadly")
def kills(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete(ctx.step_output("s")) if ctx.step_completed("s") else ctx.schedule_step("s", deadly)

@flow.workflow("advancing")
def advances(ctx: WorkflowContext) -> RuntimeCommand:
    for step_id in "abcde":
        if not ctx.step_completed(step_id):
            return ctx.schedule_step(step_id, once)
    return ctx.complete("through")

@flow.workflow("harmless")
def does_not(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete() if ctx.step_completed("s") else ctx.schedule_step("s", harmless)

async def main(store: str, ttl: float) -> None:
    async with FlowEngine(flow, store, max_failures=3, lease_ttl=timedelta(seconds=ttl)) as engine:
        if ttl < 100:  # as on another host, where nobody can see that the owner is dead
            object.__setattr__(engine.leasing, "is_dead", lambda owner: False)
        await FlowWorker(engine, poll=timedelta(milliseconds=100)).run_until_idle()
        while any(not run.terminal and run.hold is None for run in (await engine.store.runs()).runs):
            await FlowWorker(engine, poll=timedelta(milliseconds=100)).run_until_idle()
            await asyncio.sleep(0.05)

if __name__ == "__main__":
    import logging
    logging.basicConfig(level="WARNING")
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


async def work(store: FlowEventStore, folder: Path, ttl: float) -> tuple[int, str]:
    """One worker process, until it has nothing more to do or dies: its status and what it logged."""
    (folder / "deadly.py").write_text(MODULE)
    environment = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    command = [sys.executable, "deadly.py", address_of(store), str(ttl)]
    ended = await asyncio.to_thread(
        subprocess.run, command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stderr


async def submit(store: FlowEventStore, *names: str) -> None:
    for name in names:
        module: dict[str, object] = {"__name__": "deadly"}
        exec(compile(MODULE, "deadly.py", "exec"), module)  # noqa: S102 - the module that the processes import
        async with FlowEngine(module["flow"], store) as engine:  # type: ignore[arg-type]  # it is a Flow
            await engine.submit(name, run_id=name)


@pytest.mark.parametrize("ttl", [3600.0, 0.6], ids=["voided", "expired"])
async def test_a_step_that_kills_its_process_is_held_and_others_go_on(
    shared: FlowEventStore, tmp_path: Path, ttl: float
) -> None:
    await submit(shared, "deadly")
    for _ in range(3):
        status, told = await work(shared, tmp_path, ttl)
        assert status == -9, told
    assert len((tmp_path / "ran").read_text()) == 3
    await submit(shared, "harmless")
    status, told = await work(shared, tmp_path, ttl)
    assert status == 0, told
    assert "3 drives failed in a row, and the last one's process ended without a word; it is held" in told
    assert len((tmp_path / "ran").read_text()) == 3
    runs = {run.run_id: run for run in (await shared.runs()).runs}
    assert runs["harmless"].status == "completed"
    hold = json.loads(runs["deadly"].hold or "{}")
    assert (hold["code"], hold["reason"], hold["workflow"], hold["builds"]) == (
        "failing",
        {"failures": 3},
        "deadly",
        [],
    )
    state = await shared.lease("deadly")
    assert (state.owner, state.failures, state.claim_at) == (None, 3, None)
    (tmp_path / "mended").touch()
    environment = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    release = [sys.executable, "-m", "perdure", "release", "deadly", "--store", address_of(shared)]
    await asyncio.to_thread(subprocess.run, release, env=environment, check=True, capture_output=True, timeout=60)
    assert (await work(shared, tmp_path, ttl))[0] == 0
    assert (await shared.summary()).completed_runs == 2


async def test_a_run_that_makes_progress_between_kills_is_not_held(shared: FlowEventStore, tmp_path: Path) -> None:
    await submit(shared, "advancing")
    statuses = [(await work(shared, tmp_path, 3600.0))[0] for _ in range(6)]
    assert statuses == [-9] * 5 + [0]
    assert (await shared.summary()).completed_runs == 1
    assert (await shared.lease("advancing")).failures == 0


class Sure(Random):
    """Draws the same fraction of the longest back-off each time."""

    def __init__(self, fraction: float) -> None:
        super().__init__(0)
        self.fraction = fraction

    def random(self) -> float:
        return self.fraction


async def lose(store: FlowEventStore, run_id: str, ttl_ns: int = 1) -> None:
    """A worker claims the run and is never heard of again."""
    assert [run.run_id for run in await store.claim(f"gone {os.urandom(4).hex()}", 1, ttl_ns=ttl_ns)] == [run_id]
    await asyncio.sleep(0.001)


async def test_a_task_counts_the_drives_that_were_lost_before_it(store: FlowEventStore) -> None:
    """A lease that expired is counted by the task that takes the run over: the first one is driven on, the next wait, and the
    last one holds the run."""
    ran: list[str] = []
    flow = chain(1, lambda context: ran.append(context.step_id))
    async with FlowEngine(flow, store, max_failures=3, random=Sure(0.0)) as engine:
        await engine.submit("chain", run_id="r")
        await lose(store, "r")
        for failures, hold in ((2, None), (3, "failing")):
            await lose(store, "r")
            outcome = await handle(engine, DriveRun("r"))
            assert isinstance(outcome.error, DriveLost)
            assert (outcome.error.failures, outcome.disposition, ran) == (failures, Ack(), [])
            state = await store.lease("r")
            held = None if state.hold is None else json.loads(state.hold)["code"]
            assert (held, state.failures, state.owner) == (hold, failures, None)
            if hold is None:
                await lose(store, "r")
        await engine.release_hold("r")
        await lose(store, "r")
        outcome = await handle(engine, DriveRun("r"))
        assert (outcome.error, outcome.disposition, ran) == (None, Ack(), ["s0"])
        assert (await engine.snapshot("r")).status == "completed"


async def test_a_worker_drives_a_run_that_was_lost_less_often(
    store: FlowEventStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with FlowEngine(chain(1), store, max_failures=3, random=Sure(0.0)) as engine:
        await engine.submit("chain", run_id="r")
        await lose(store, "r")
        await lose(store, "r")
        await FlowWorker(engine).run_until_idle()
        assert (await engine.snapshot("r")).status == "completed"
    assert (
        "2 drives failed in a row, and the last one's process ended without a word; it waits before it is"
        in caplog.text
    )


def test_drives_lost_again_wait_ever_longer_and_a_first_one_does_not() -> None:
    """What runs beside a killer is lost with it, and gets on when the back-offs have come apart (R44)."""

    async def main(loop: VirtualTimeLoop) -> None:
        store, took = MemoryEventStore(loop.clock_ns), list[float]()
        begun = asyncio.Event()

        async def lost() -> None:
            """A worker process that dies as soon as it drives the run."""
            flow, stuck = gated(lambda step_id: begun.set(), asyncio.Event()), loop.time()
            begun.clear()
            engine = FlowEngine(flow, store, random=Sure(1.0), lease_ttl=timedelta(seconds=9))
            worker = asyncio.create_task(FlowWorker(engine).run_forever(signals=False))
            await begun.wait()
            took.append(loop.time() - stuck)
            await store.void(engine.owner)
            worker.cancel()
            await asyncio.wait([worker])

        async with FlowEngine(gated(lambda step_id: None, asyncio.Event()), store) as client:
            await client.submit("gated", run_id="r")
        for _ in range(5):
            await lost()
        assert [round(seconds, 3) for seconds in took] == [0, 0, 2, 4, 8]

    run(main, Clock().ns)


async def test_a_build_that_is_lost_over_a_held_run_is_named_in_its_hold_too(store: FlowEventStore) -> None:
    """R43: the first try of a build drives a run that others failed on, whatever the count; one that is lost ends there."""
    hold = json.dumps({"code": "failing", "reason": {"failures": 1}, "builds": ["v1"]})
    v2 = RuntimeBuildCompatibility("v2", accept_unpinned=True)
    async with FlowEngine(chain(1), store, max_failures=1, builds=v2) as engine:
        await engine.submit("chain", run_id="r")
        assert await store.set_hold("r", hold, expected_sequence=1)
        for failures in (0, 1):
            assert [run.failures for run in await store.claim_held("gone", 1, build="v2", ttl_ns=1)] == [failures]
            await store.void("gone")
        await FlowWorker(engine).run_until_idle()
        held = json.loads((await store.lease("r")).hold or "{}")
        assert (held["code"], held["reason"], held["builds"]) == ("failing", {"failures": 2}, ["v1", "v2"])
    v3 = RuntimeBuildCompatibility("v3", accept_unpinned=True)
    async with FlowEngine(chain(1), store, max_failures=1, builds=v3) as engine:
        await FlowWorker(engine).run_until_idle()
        assert (await engine.snapshot("r")).status == "completed"


def test_a_build_that_fails_on_a_held_run_tries_it_ever_more_seldom() -> None:
    """Its failures are counted on the run until the hold names it too; a conflict of tokens never holds (R44)."""

    async def main(loop: VirtualTimeLoop) -> None:
        store, asked = MemoryEventStore(loop.clock_ns), list[float]()
        v2 = RuntimeBuildCompatibility("v2", accept_unpinned=True)
        flow = Flow()

        @flow.workflow("flow")
        def ask(ctx: WorkflowContext) -> RuntimeCommand:
            asked.append(loop.time())
            return ctx.create_hook("h", token="canary-taken")

        @flow.workflow("other")
        def other(ctx: WorkflowContext) -> RuntimeCommand:
            return ctx.create_hook("h", token="canary-taken")

        async with FlowEngine(flow, store, builds=v2) as engine:
            await engine.start("other", run_id="other")
            await engine.submit("flow", run_id="r")
            hold = json.dumps({"code": "non_deterministic", "reason": {}, "builds": ["v1"]})
            assert await store.set_hold("r", hold, expected_sequence=1)
            worker = FlowWorker(engine, concurrency=1, poll=timedelta(seconds=1))
            working = asyncio.create_task(worker.run_forever(signals=False))
            await asyncio.sleep(600)
            await worker.drain()
            await working
        assert 5 <= len(asked) <= 12

    run(main, Clock().ns)
