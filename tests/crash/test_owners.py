"""Who holds a run while it is driven, and when another may take it (R2): owners that die, stall, or keep on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from scenarios.kit import Clock, WatchedStore, World, stored

from perdure import Flow, FlowEngine, LeaseLost, RuntimeCommand, StepContext, StoreUnavailable, WorkflowContext
from perdure.kernel import KernelName
from perdure.owner import make_owner
from perdure.stores import MemoryEventStore, SqliteEventStore
from perdure.testing.virtual_time import VirtualTimeLoop, run

START = Clock().ns
TTL_NS = 30 * 10**9


def one_step(seconds: float, calls: list[str]) -> Flow:
    """One step that takes so long."""
    flow = Flow()

    @flow.step
    async def slow(context: StepContext) -> str:
        calls.append(f"{context.step_id} {context.attempt}")
        await asyncio.sleep(seconds)
        return "slow"

    @flow.workflow("flow", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", slow)

    return flow


# -- a real process that dies ------------------------------------------------------------------------------------------------

CHILD = """
import sys, time
from perdure import BlockingFlowEngine, Flow, RuntimeCommand, StepContext, WorkflowContext

flow = Flow()

@flow.step
def slow(context: StepContext) -> str:
    print("working", flush=True)
    time.sleep(60)
    return "slow"

@flow.workflow("flow", version="1")
def workflow(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete(ctx.step_output("a")) if ctx.step_completed("a") else ctx.schedule_step("a", slow)

with BlockingFlowEngine(flow, f"sqlite:///{sys.argv[1]}", kernel=sys.argv[2]) as engine:
    engine.start("flow", run_id="r")
"""


@contextmanager
def working_process(path: Path, kernel: KernelName) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of step `a` of run `r`."""
    import perdure

    environment = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    command = [sys.executable, "-c", CHILD, str(path), kernel]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "working\n"
            yield child
        finally:
            child.kill()


def test_a_dead_owner_is_succeeded_at_once(kernel_name: KernelName, tmp_path: Path) -> None:
    """R2: while the process lives, another stands aside; killed, its lease is void at once, long before it expires."""

    async def story(child: subprocess.Popen[str]) -> None:
        calls: list[str] = []
        store = SqliteEventStore(tmp_path / "runs.db")
        async with FlowEngine(one_step(0, calls), store, kernel=kernel_name) as engine:
            assert (await engine.drive("r")).steps["a"].status == "running"
            assert (calls, (await store.lease("r")).live) == ([], True)
            child.kill()
            await asyncio.to_thread(child.wait)
            assert (await store.lease("r")).live
            assert (await engine.drive("r")).output == "slow"
            assert calls == ["a 1"]
            assert (await store.lease("r")).epoch == 2
        await store.close()

    with working_process(tmp_path / "runs.db", kernel_name) as child:
        asyncio.run(story(child))


def foreign_owners() -> list[str]:
    """Owners of which nobody here can say that they are dead."""
    mine = orjson.loads(make_owner())
    gone = {"pid": 2**22 + 1, "started": "1"}
    strange = [
        mine | gone | {"boot": "another boot"},
        mine | gone | {"namespace": 1},
        mine | gone | {"boot": None},
        mine | gone | {"started": None},
        {key: value for key, value in mine.items() if key != "pid"},
    ]
    return ["somebody", *(orjson.dumps(owner).decode() for owner in strange)]


@pytest.mark.parametrize("owner", foreign_owners())
async def test_an_owner_not_provably_dead_lives(kernel_name: KernelName, owner: str) -> None:
    """R2: another boot or namespace, or anything unreadable, is not dead; its lease has to expire."""
    clock = Clock()
    calls: list[str] = []
    world = World(kernel_name, MemoryEventStore(clock), clock)
    async with world.engine(one_step(0, calls)) as engine:
        await engine.submit("flow", run_id="r")
        assert len(await world.store.claim(owner, 1, ttl_ns=TTL_NS)) == 1
        assert (await engine.drive("r")).status == "pending"
        assert calls == []
        clock.advance(seconds=30)
        assert (await engine.drive("r")).status == "completed"


async def test_an_owner_of_here_whose_process_is_gone(kernel_name: KernelName) -> None:
    """The same identity with a pid that nobody has, or that somebody has who started at another time: dead."""
    clock = Clock()
    world = World(kernel_name, MemoryEventStore(clock), clock)
    mine = orjson.loads(make_owner())
    async with world.engine(one_step(0, [])) as engine:
        for run_id, change in [("a", {"pid": 2**22 + 1}), ("b", {"started": "1"})]:
            await engine.submit("flow", run_id=run_id)
            owner = orjson.dumps(mine | change).decode()
            assert [run.run_id for run in await world.store.claim(owner, 1, ttl_ns=TTL_NS)] == [run_id]
            assert (await engine.drive(run_id)).status == "completed"


HIDING = """
import sys
from pathlib import Path
from perdure.owner import is_dead

owner, pid, mounted = sys.argv[1:]
if not mounted:  # where no mount is allowed
    read, hidden = Path.read_text, Path(f"/proc/{pid}/stat")

    def read_text(path, *given):
        if path == hidden:
            raise FileNotFoundError(hidden)
        return read(path, *given)

    Path.read_text = read_text
assert not Path(f"/proc/{pid}/stat").exists() or not mounted
print(is_dead(owner))
"""


def test_a_process_that_proc_does_not_show_is_not_dead() -> None:
    """R2: under `hidepid` /proc has no entry of another user's process, which lives all the same; and of one that is gone."""
    import perdure

    environment = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    owner = make_owner()
    hide = [*("sh", "-c"), 'mount -t tmpfs tmpfs "/proc/$0" && exec "$@"', str(os.getpid())]
    asked = [sys.executable, "-c", HIDING, owner, str(os.getpid())]
    for command in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        done = subprocess.run(
            [*command, *hide, *asked, "mounted"], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
    else:
        done = subprocess.run([*asked, ""], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", done.stderr


# -- time passes ---------------------------------------------------------------------------------------------------------------


class Renewals(WatchedStore):
    """Counts renewals; those with these numbers fail."""

    renewals = 0
    failing = range(0)

    async def renew(self, owner: str, pairs: Sequence[tuple[str, int]], *, ttl_ns: int) -> Any:
        self.renewals += 1
        if self.renewals in self.failing:
            raise StoreUnavailable("no renewals today")
        return await self.inner.renew(owner, pairs, ttl_ns=ttl_ns)


def in_virtual_time(kernel: KernelName, story: Any) -> None:
    """Runs `story(world, store, loop)` where hours take no time and the store's clock is the loop's."""

    async def main(loop: VirtualTimeLoop) -> None:
        inner = MemoryEventStore(loop.clock_ns)
        await story(World(kernel, inner, Clock()), Renewals(inner), loop)

    run(main, START)


def test_renewals_keep_the_lease_of_a_long_step(kernel_name: KernelName) -> None:
    """R2: renewed in time again and again, the lease lives through a step of an hour; nobody else gets the run."""

    async def story(world: World, store: Renewals, loop: VirtualTimeLoop) -> None:
        calls: list[str] = []
        poll = timedelta(seconds=5)
        owner = world.engine(one_step(3600, calls), store, poll_interval=poll)
        async with owner as first, world.engine(one_step(0, calls), poll_interval=poll) as second:
            driving = asyncio.create_task(first.run("flow", run_id="r"))
            for _ in range(7):
                await asyncio.sleep(500)
                assert (await second.drive("r")).steps["a"].status == "running"
                assert await world.store.claim(second.owner, 1, ttl_ns=TTL_NS) == []
            assert (await driving).output == "slow"
        assert calls == ["a 1"]
        assert 3600 / 20 <= store.renewals <= 3600 / 10 + 1
        assert store.commits == 2
        assert (await world.store.lease("r")).epoch == 1

    in_virtual_time(kernel_name, story)


def test_one_failed_renewal_is_no_loss(kernel_name: KernelName) -> None:
    """R2: a renewal every third of the TTL leaves time for another when one fails."""

    async def story(world: World, store: Renewals, loop: VirtualTimeLoop) -> None:
        calls: list[str] = []
        store.failing = range(3, 4)
        async with world.engine(one_step(300, calls), store) as first, world.engine(one_step(0, calls)) as second:
            driving = asyncio.create_task(first.run("flow", run_id="r"))
            while not driving.done():
                await asyncio.sleep(1)
                assert await world.store.claim(second.owner, 1, ttl_ns=TTL_NS) == []
            assert (await driving).output == "slow"
        assert calls == ["a 1"]

    in_virtual_time(kernel_name, story)


def test_an_owner_that_cannot_renew_loses_the_run(kernel_name: KernelName) -> None:
    """The lease expires, another takes the run over, the old owner's outcome is dropped: `LeaseLost`."""

    async def story(world: World, store: Renewals, loop: VirtualTimeLoop) -> None:
        calls: list[str] = []
        store.failing = range(4, 1000)
        async with world.engine(one_step(600, calls), store) as first, world.engine(one_step(999, calls)) as second:
            driving = asyncio.create_task(first.run("flow", run_id="r"))
            await asyncio.sleep(200)
            taking_over = asyncio.create_task(second.drive("r"))
            with pytest.raises(LeaseLost):
                await driving
            assert (await first.drive("r")).steps["a"].status == "running"  # the other's, now
            assert (await taking_over).output == "slow"
        assert calls == ["a 1", "a 1"]
        assert (await stored(world.store, "r")).count("step_completed a") == 1
        assert (await world.store.lease("r")).epoch == 2

    in_virtual_time(kernel_name, story)


def test_nothing_is_launched_under_a_lease_that_may_have_expired(kernel_name: KernelName) -> None:
    """R2: the answer of the claiming commit comes after the TTL; the drive renews first, and launches nothing when another
    has taken the run."""

    async def story(world: World, store: Renewals, loop: VirtualTimeLoop) -> None:
        first_calls: list[str] = []
        second_calls: list[str] = []

        async def stall() -> None:
            await asyncio.sleep(60)

        store.after[1] = stall
        owner = world.engine(one_step(1, first_calls), store)
        async with owner as first, world.engine(one_step(100, second_calls)) as second:
            driving = asyncio.create_task(first.run("flow", run_id="r"))
            await asyncio.sleep(40)
            taking_over = asyncio.create_task(second.drive("r"))
            with pytest.raises(LeaseLost):
                await driving
            assert loop.clock_ns() - START == 60 * 10**9
            assert (await taking_over).output == "slow"
        assert (first_calls, second_calls) == ([], ["a 1"])

    in_virtual_time(kernel_name, story)


def test_a_stalled_answer_that_nobody_used(kernel_name: KernelName) -> None:
    """The same stall, but nobody took the run: the lease is renewed and the step launched, once."""

    async def story(world: World, store: Renewals, loop: VirtualTimeLoop) -> None:
        calls: list[str] = []

        async def stall() -> None:
            await asyncio.sleep(60)

        store.after[1] = stall
        async with world.engine(one_step(1, calls), store) as engine:
            assert (await engine.run("flow", run_id="r")).output == "slow"
        assert (calls, store.renewals) == (["a 1"], 1)

    in_virtual_time(kernel_name, story)


def test_an_idle_run_costs_nothing(kernel_name: KernelName) -> None:
    """Parked, a run is neither renewed nor written, however often somebody looks."""

    async def story(world: World, store: Renewals, loop: VirtualTimeLoop) -> None:
        flow = Flow()

        @flow.workflow("flow", version="1")
        def workflow(ctx: WorkflowContext) -> RuntimeCommand:
            return ctx.wait_for("w", timedelta(days=1))

        async with world.engine(flow, store) as engine:
            await engine.start("flow", run_id="r")
            assert store.commits == 1
            for _ in range(3):
                await asyncio.sleep(300)
                assert (await engine.drive("r")).status == "suspended"
        assert (store.commits, store.renewals) == (1, 0)
        state = await world.store.lease("r")
        assert (state.live, state.epoch, state.parked_sequence) == (False, 1, 3)

    in_virtual_time(kernel_name, story)
