"""The async form on the engine: stores, restarts, crashes at every commit, conflicts, what is kept between drives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from scenarios.kit import Clock, Crash, WatchedStore, open_store

from coroutine.programs import ORDER, PROGRAMS
from coroutine.programs import flow as programs
from perdure import AsyncContext, BlockingFlowEngine, Envelope, Flow, FlowEngine, NonDeterministic, RetryPolicy
from perdure.effects import CommitMode
from perdure.engine import FlowEngine as Engine
from perdure.errors import FlowError
from perdure.kernel import KernelName
from perdure.stores.base import Append, FlowEventStore

HOUR = timedelta(hours=1)
STORES = ("memory", "sqlite")


@pytest.fixture(params=["rust", "pure"])
def kernel_name(request: pytest.FixtureRequest) -> KernelName:
    name: KernelName = request.param
    return name


def counting(begun: list[str]) -> tuple[Flow, Any]:
    flow = Flow(guard="off")

    @flow.step
    async def work(item: str = "") -> str:
        return item

    @flow.workflow("w")
    async def w(ctx: AsyncContext, name: str) -> str:
        begun.append(name)
        first = await ctx.step(work, name)
        answer = await ctx.hook(str, id="answer", token=f"canary-{name}")
        second = await ctx.step(work, answer)
        third = await ctx.hook(str, id="third", token=f"canary-third-{name}")
        return first + second + third

    return flow, w


async def drive_on(engine: FlowEngine, run_id: str, clock: Clock) -> None:
    """Answers hooks and waits until the run ends."""
    for _ in range(100):
        run = await engine.read(run_id, lambda run: (run.terminal, run.suspensions()))
        terminal, suspended = run
        if terminal or not suspended:
            return
        kind, subject, due = suspended[0]
        if kind == "hook":
            await engine.resume_hook(run_id, subject, "yes")
        else:
            clock.ns = max(clock.ns, due or 0)
            await engine.resume_wait(run_id, subject)
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("store_kind", STORES)
async def test_a_coroutine_is_kept_between_drives_and_dropped_with_its_session(
    kernel_name: KernelName, tmp_path: Path, store_kind: str
) -> None:
    begun: list[str] = []
    flow, w = counting(begun)
    async with FlowEngine(flow, open_store(store_kind, tmp_path, Clock()), kernel=kernel_name) as engine:
        await engine.start(w, "a", run_id="a")
        await engine.resume_hook("a", "answer", "b")
        snapshot = await engine.resume_hook("a", "third", "c")
        assert (snapshot.status, snapshot.output) == ("completed", "abc")
        assert begun == ["a"]
    begun.clear()
    async with FlowEngine(flow, open_store(store_kind, tmp_path / "two", Clock()), cache_bytes=0) as engine:
        (tmp_path / "two").mkdir(exist_ok=True)
        await engine.start(w, "a", run_id="a")
        await engine.resume_hook("a", "answer", "b")
        snapshot = await engine.resume_hook("a", "third", "c")
        assert (snapshot.output, len(begun)) == ("abc", 5), "one for each drive, one to judge each answer"


@pytest.mark.parametrize("store_kind", STORES)
@pytest.mark.parametrize(("strict", "commit"), [(False, "staged"), (True, "staged"), (True, "each")])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_programs_run_on_the_engine(
    tmp_path: Path, store_kind: str, strict: bool, commit: CommitMode, program: Any
) -> None:
    clock = Clock()
    flow = real()
    store = open_store(store_kind, tmp_path, clock)
    async with FlowEngine(flow, store, strict_replay=strict, commit=commit) as engine:
        await engine.start(flow.find_workflow(program.name, "1"), ORDER, run_id="r")
        await drive_on(engine, "r", clock)
        snapshot = await engine.snapshot("r")
        assert snapshot.status == ("failed" if program.name in ("saga", "failing") else "completed")


def real() -> Flow:
    """The programs' flow with steps that really run."""
    flow = Flow(guard="off")
    flow._workflows.update(programs._workflows)
    for name, step in programs.steps.items():
        if name == "flaky":

            @flow.step(name="flaky", retry=RetryPolicy.none())
            async def flaky(item: str) -> str:
                raise ValueError("declined")
        else:
            flow._steps[name] = step
    return flow


class _Losing:
    """Loses the n-th commit, and whoever made it."""

    def __init__(self, inner: FlowEventStore, number: int) -> None:
        self._inner, self._number, self.commits = inner, number, 0

    async def commit(self, appends: Sequence[Append]) -> Any:
        if any(append.batch.lines for append in appends):
            self.commits += 1
            if self.commits == self._number:
                raise Crash
        return await self._inner.commit(appends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("program", PROGRAMS[:6], ids=lambda program: program.name)
async def test_a_crash_at_every_commit_changes_no_end(tmp_path: Path, program: Any) -> None:
    flow = real()
    workflow: Any = flow.find_workflow(program.name, "1")
    clock = Clock()
    async with FlowEngine(flow, open_store("memory", tmp_path, clock), lease=False) as engine:
        await engine.start(workflow, ORDER, run_id="r")
        await drive_on(engine, "r", clock)
        plain = await engine.snapshot("r")
        commits = len([e for e in await engine.history("r") if e.type == "step_completed"]) + 6
    for number in range(1, commits):
        clock = Clock()
        inner = open_store("memory", tmp_path, clock)
        losing = cast(FlowEventStore, _Losing(inner, number))
        try:
            async with FlowEngine(flow, losing, lease=False) as engine:
                await engine.start(workflow, ORDER, run_id="r")
                await drive_on(engine, "r", clock)
        except Crash:
            pass
        async with FlowEngine(flow, inner, lease=False, strict_replay=True) as engine:
            await engine.start(workflow, ORDER, run_id="r")
            await drive_on(engine, "r", clock)
            snapshot = await engine.snapshot("r")
            assert (snapshot.status, snapshot.error) == (plain.status, plain.error)
            assert snapshot.output == plain.output


async def test_a_refused_commit_drops_the_coroutine_and_the_pass_is_asked_anew(tmp_path: Path) -> None:
    """R4: another process appends first; the outcome is kept, the decision is made again by a replay."""
    flow = Flow(guard="off")
    begun: list[str] = []

    @flow.step
    async def work() -> str:
        return "out"

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        begun.append("begun")
        hook = ctx.hook(str, id="h", token="canary-h")
        first = await ctx.step(work)
        return f"{first} {'answered' if hook.done() else 'not yet'}, {await hook}"

    inner = open_store("memory", tmp_path, Clock())
    store = WatchedStore(inner)
    other = FlowEngine(Flow(), inner, lease=False)  # which does not know the workflow

    async def foreign() -> None:
        await other.resume_hook("r", "h", "yes", drive=False)

    store.before[2] = foreign
    async with FlowEngine(flow, cast(FlowEventStore, store), lease=False, strict_replay=False) as engine:
        snapshot = await engine.snapshot(await engine.start(w, run_id="r"))
        assert snapshot.output == "out answered, yes"
        assert len(begun) == 2
    await other.close()


async def test_logs_of_a_refused_pass_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow(guard="off")

    @flow.step
    async def work() -> str:
        return "out"

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        hook = ctx.hook(str, id="h", token="canary-h")
        await ctx.step(work)
        ctx.log.warning("hook is %s", "done" if hook.done() else "open")

    inner = open_store("memory", tmp_path, Clock())
    store = WatchedStore(inner)
    other = FlowEngine(flow, inner, lease=False)

    async def foreign() -> None:
        await other.resume_hook("r", "h", "yes", drive=False)

    store.before[2] = foreign
    async with FlowEngine(flow, cast(FlowEventStore, store), lease=False) as engine:
        await engine.start(w, run_id="r")
    await other.close()
    assert [r.getMessage() for r in caplog.records if r.name == "perdure.workflow"] == ["hook is done"]


async def test_drift_after_a_restart_is_raised_with_the_run(tmp_path: Path) -> None:
    store = open_store("memory", tmp_path, Clock())

    def build(item: str) -> tuple[Flow, Any]:
        flow = Flow(guard="off")

        @flow.step
        async def work(item: str) -> str:
            return item

        @flow.workflow("w")
        async def w(ctx: AsyncContext) -> None:
            await ctx.step(work, item)
            await ctx.hook(str, id="h", token="canary-h")

        return flow, w

    flow, w = build("a")
    async with FlowEngine(flow, store) as engine:
        await engine.start(w, run_id="r")
    flow, _ = build("b")
    async with FlowEngine(flow, store) as engine:
        with pytest.raises(NonDeterministic) as caught:
            await engine.drive("r")
        assert (caught.value.run_id, caught.value.part) == ("r", "input")
    flow, _ = build("a")
    async with FlowEngine(flow, store) as engine:
        assert (await engine.drive("r")).status == "suspended"


async def test_limits_by_options_hold_again_after_a_restart(tmp_path: Path) -> None:
    """R54: a limit named by a pass of this drive; a replay names what is open."""
    flow = Flow(guard="off")
    gate = asyncio.Event()

    @flow.step
    async def work() -> str:
        await gate.wait()
        return "late"

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> str:
        quick = work.options(timeout=timedelta(milliseconds=30), retry=RetryPolicy.none())
        try:
            return await ctx.step(quick)
        except Exception as error:  # noqa: BLE001 - what it is, is what the test asks
            return str(error)

    store = open_store("memory", tmp_path, Clock())
    async with FlowEngine(flow, store) as engine:
        task = asyncio.create_task(engine.start(w, run_id="r"))
        while not any(e.type == "step_started" for e in Envelope.parse_lines(await history(store))):  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with FlowEngine(flow, store) as engine:
        snapshot = await engine.drive("r", take_over=True)
        assert "timed out after 30 ms" in str(snapshot.output)


async def history(store: FlowEventStore) -> bytes:
    try:
        return await store.history("r")
    except FlowError:
        return b""


async def test_the_engine_closes_what_it_keeps(tmp_path: Path) -> None:
    flow = Flow(guard="off")
    seen: list[str] = []

    @flow.workflow("w")
    async def w(ctx: AsyncContext) -> None:
        try:
            await ctx.hook(str, id="h", token="canary-h")
        finally:
            seen.append("closed")

    async with FlowEngine(flow, open_store("memory", tmp_path, Clock())) as engine:
        await engine.start(w, run_id="r")
        assert seen == []
    assert seen == ["closed"]


def test_the_blocking_engine_runs_the_async_form() -> None:
    flow = Flow(guard="off")

    @flow.step
    def double(number: int) -> int:
        return 2 * number

    @flow.workflow("w")
    async def w(ctx: AsyncContext, number: int) -> int:
        a, b = await ctx.gather(ctx.step(double, number), ctx.step(double, number + 1))
        return a + b

    with BlockingFlowEngine(flow, strict_replay=True) as engine:
        assert engine.run(w, 3).output == 14


async def test_a_host_that_wraps_the_flow_is_asked_without_a_cache() -> None:
    begun: list[str] = []
    flow, w = counting(begun)

    class Host:
        """Knows the calls of the protocol and how steps run."""

        plan_step = flow.plan_step
        run_workflow = flow.run_workflow
        run_step = flow.run_step

    async with Engine(cast(Any, Host())) as engine:
        await engine.start(w.spec(), "a", run_id="a")
        await engine.resume_hook("a", "answer", "b")
        assert (await engine.resume_hook("a", "third", "c")).output == "abc"
        assert len(begun) > 3
