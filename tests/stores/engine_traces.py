"""Random traces of engine calls: a workflow told by its input, what hosts do to its runs, and all that can be seen of it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, Final, cast

from stores.tables import Tables, tables_of

from perdure import (
    ChildOperationReference,
    Flow,
    FlowEngine,
    FlowError,
    NonRetryable,
    RetryAfter,
    RetryPolicy,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StepContext,
    WorkflowContext,
    WorkflowProgress,
)
from perdure.commands import Member
from perdure.instant import Instant
from perdure.kernel import KernelName
from perdure.snapshot import WorkflowRunSnapshot
from perdure.stores.base import FlowEventStore, RunFilter
from perdure.testing.virtual_time import VirtualTimeLoop

__all__ = ["transcript"]

RUN_IDS: Final = ("a", "b-2", "c_", "D")
TOKENS: Final = ("canary-1", "canary-2", "canary-3")
AT_ONCE: Final = 5
_OWN: Final = ("start", "drive", "due", "wait", "hook", "snapshot", "request")
LATER: Final = RetryPolicy.fixed(3, timedelta(seconds=20))
Act = list[Any]


def told_by_input(drifting: Callable[[], bool]) -> Flow:
    """A flow whose workflow does, one after the other, what its input lists."""
    flow = Flow()

    @flow.step
    async def work(context: StepContext, mood: str) -> str:
        await asyncio.sleep(0.001 * (sum(context.step_id.encode()) % 7 + 1))
        if mood == "never" or (mood in ("once", "later") and context.attempt == 1):
            raise ValueError(f"{context.step_id} {context.attempt}")
        if mood == "asked" and context.attempt == 1:
            raise RetryAfter(timedelta(seconds=30))
        if mood == "not":
            raise NonRetryable("no")
        return f"{context.step_id} é {context.attempt}"

    @flow.workflow("told", version="1")
    def told(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.cancellation_request() is not None:
            return ctx.cancel() if ctx.step_completed("undo") else ctx.schedule_step("undo", work, "once")
        for act in ctx.input:
            command = _next(ctx, act, drifting)
            if command is not None:
                return command
        return ctx.complete([ctx.input, "done"])

    return flow


def _next(ctx: WorkflowContext, act: Act, drifting: Callable[[], bool]) -> RuntimeCommand | None:
    """What is left to do of one act."""
    kind, name, *details = act
    match kind:
        case "step" | "steps":
            names = [f"{name}{n}" for n in range(details[1])] if kind == "steps" else [name]
            left = [id for id in names if not ctx.step_completed(id) and ctx.step_failed(id) is None]
            steps = [_step(ctx, id, details[0] + ("!" if drifting() else "")) for id in names]
            return ctx.schedule_steps(steps, concurrency=2) if left else None
        case "wait":
            return None if ctx.wait_completed(name) else ctx.wait_for(name, timedelta(seconds=details[0]))
        case "hook":
            return None if ctx.hook_received(name) or ctx.hook_disposed(name) else ctx.create_hook(name, details[0])
        case "either":
            return _either(ctx, name, details[0])
        case "fact":
            progress, reference = (
                WorkflowProgress(name, 1),
                ChildOperationReference(name, "run", "o", flow_run_id=details[0]),
            )
            return (
                None
                if ctx.progress(name)
                else _all(ctx, ctx.record_progress(progress), ctx.link_child_operation(reference))
            )
        case "fail":
            return ctx.fail(name)
        case _:
            raise RuntimeError(name)


def _step(ctx: WorkflowContext, step_id: str, mood: str) -> Any:
    plain = mood.rstrip("!")
    policy = {"later": LATER, "never": RetryPolicy.fixed(2), "not": LATER}.get(plain, RetryPolicy.fixed(3))
    if plain in ("never", "not"):
        policy = policy.continue_workflow_on_failure()
    return ctx.step(step_id, "work", mood, retry=policy)


def _either(ctx: WorkflowContext, name: str, token: str) -> RuntimeCommand | None:
    """A hook or a time limit, whichever comes first; the other is closed."""
    if ctx.hook_received(name):
        return None if ctx.wait_completed(name) else ctx.close_wait(name)
    if ctx.wait_completed(name):
        return None if ctx.hook_disposed(name) else ctx.dispose_hook(name)
    return _all(ctx, ctx.create_hook(name, token), ctx.wait_for(name, timedelta(seconds=40)))


def _all(ctx: WorkflowContext, *members: Member) -> RuntimeCommand:
    return ctx.schedule_all(members)


def acts(random: Random, others: list[str]) -> list[Act]:
    """What a run is told to do. `others` are runs that it may name as its children."""
    drawn: list[Act] = []
    for number in range(random.randint(0, 5)):
        mood = random.choice(("good", "once", "later", "asked", "never", "not"))
        token = random.choice(TOKENS)
        drawn.append(
            random.choice(
                (
                    ["step", f"s{number}", mood],
                    ["steps", f"t{number}", mood, 3],
                    ["wait", f"w{number}", random.choice((0, 5, 60))],
                    ["hook", f"h{number}", token],
                    ["either", f"e{number}", token],
                    ["fact", f"f{number}", random.choice(others)],
                )
            )
        )
    return drawn + random.choice(([], [], [["fail", "told", "to"]], [["raise", "told", "to"]]))


# the host ------------------------------------------------------------------------------------------------------------


class _Outside:
    """The store as an engine on a virtual clock sees it: time stands still while it works."""

    def __init__(self, inner: FlowEventStore, loop: VirtualTimeLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            with self._loop.outside_work():
                return await method(*args, **options)

        return call


class _Host:
    """Draws calls and notes what they give."""

    def __init__(self, store: FlowEventStore, loop: VirtualTimeLoop, kernel: KernelName, seed: int) -> None:
        self.inner, self.loop, self.random, self._kernel = store, loop, Random(seed), kernel
        self.store = cast(FlowEventStore, _Outside(store, loop))
        self.drifts, self.acts = False, dict[str, list[Act]]()
        self.engine = self._new_engine()

    def _new_engine(self) -> FlowEngine:
        return FlowEngine(
            told_by_input(lambda: self.drifts),
            self.store,
            kernel=self._kernel,
            record_tracebacks=False,
            builds=RuntimeBuildCompatibility("build-1", accept_unpinned=True),
            random=Random(0),
        )

    async def step(self) -> list[object]:
        random = self.random
        await asyncio.sleep(random.choice((0, 0, 0.001, 1, 5, 20.000_001, 60)))
        if random.random() < 0.08:
            await self.engine.close()
            self.engine, self.drifts = self._new_engine(), random.random() < 0.3
            return ["again", self.drifts]
        run_ids = await self._some_runs()
        calls = [self._call(run_id, alone=len(run_ids) < 2) for run_id in run_ids]
        return list(await asyncio.gather(*(_told(name, call) for name, call in calls)))

    async def _some_runs(self) -> list[str]:
        """One run or two: mostly open ones."""
        random = self.random
        rows = (await self.store.runs(RunFilter(terminal=False), limit=1000)).runs
        open_runs = [row.run_id for row in rows]
        if len(open_runs) < AT_ONCE and random.random() < 0.5:
            return [f"{random.choice(RUN_IDS)}{len(self.acts)}"]
        chosen = open_runs if random.random() < 0.9 else [*self.acts, "missing"]
        drawn = random.sample(chosen, min(len(chosen), random.choice((1, 1, 1, 2))))
        return drawn if self._are_apart(drawn) else drawn[:1]

    def _are_apart(self, run_ids: list[str]) -> bool:
        """Whether none of them takes another's token or names it as its child."""
        named = [{run_id, *(str(act[-1]) for act in self.acts.get(run_id, []))} - {"good"} for run_id in run_ids]
        return len(named) < 2 or named[0].isdisjoint(named[1])

    def _call(self, run_id: str, *, alone: bool) -> tuple[str, Awaitable[object]]:
        """Something a host does to one run. Beside another call it is none that may meet that one's run: who is first there
        depends on how long a store takes."""
        name, call = self.random.choice([choice for choice in self._choices(run_id) if alone or choice[0] in _OWN])
        return f"{name} {run_id}", call()

    def _choices(self, run_id: str) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        engine, random, now = (
            self.engine,
            self.random,
            Instant(self.loop.clock_ns() + self.random.choice((0, 0, 10**10))),
        )
        if run_id not in self.acts:
            self.acts[run_id] = acts(random, [*self.acts, "missing"])
            return [
                ("start", lambda: engine.start("told", self.acts[run_id], run_id=run_id, drive=random.random() < 0.8))
            ]
        payload, drive, early = random.choice((1, 1, {"é": 2})), random.random() < 0.8, random.random() < 0.3
        _, name, *_, token = random.choice([*self.acts[run_id], ["none", "none", "canary-none"]])
        again = random.choice((self.acts[run_id], [1]))
        usual: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("drive", lambda: engine.drive(run_id)),
            ("waits", lambda: engine.resume_due_waits(now)),
            ("retries", lambda: engine.resume_due_retries(now)),
            ("due", lambda: engine.resume_scheduled_run(run_id, now)),
            ("wait", lambda: engine.resume_wait(run_id, name, early=early, drive=drive)),
            ("token", lambda: engine.resume_hook_by_token(str(token), payload, drive=drive)),
            ("hook", lambda: engine.resume_hook(run_id, name, payload, drive=drive)),
        ]
        seldom: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("start", lambda: engine.start("told", again, run_id=run_id, drive=drive)),
            ("dispose", lambda: engine.dispose_hook_by_token(str(token), drive=drive)),
            ("request", lambda: engine.request_cancellation(run_id, random.choice(("x", None)), drive=drive)),
            ("release", lambda: engine.release_hold(run_id)),
            ("snapshot", lambda: engine.snapshot(run_id)),
            ("look", lambda: self._look(now)),
            random.choice(
                (
                    ("cancel", lambda: engine.force_cancel(run_id, "y")),
                    ("timeout", lambda: engine.terminate_for_timeout(run_id, now)),
                    ("shutdown", lambda: engine.terminate_for_host_shutdown(run_id)),
                )
            ),
        ]
        return usual * 2 + seldom

    async def _look(self, now: Instant) -> list[object]:
        engine = self.engine
        return [
            await engine.list_due_wakeups(now),
            await engine.next_wakeup(now),
            await engine.list_open_suspensions(now),
            await engine.list_active_hooks(),
            await engine.run_summary(),
            [replace(row, hold=None if row.hold is None else "held") for row in (await engine.runs()).runs],
        ]

    async def seen(self) -> object:
        """The histories without event ids, and every table; of owners only whether there is one."""
        histories = {}
        for run_id in await self.store.run_ids():
            lines = [json.loads(line) for line in (await self.store.history(run_id)).split(b"\n")[:-1]]
            histories[run_id] = [{key: value for key, value in line.items() if key != "event_id"} for line in lines]
        tables: Tables = (await tables_of(self.inner)).shared()
        leases = [(run_id, owner is not None, *rest) for run_id, owner, *rest in tables.leases]
        return histories, replace(tables, leases=leases)


async def _told(name: str, call: Awaitable[object]) -> object:
    try:
        answer = await call
    except (FlowError, RuntimeError, ValueError) as error:
        fields = {key: value for key, value in vars(error).items() if not key.startswith("_")}
        return name, type(error).__name__, error.args, repr(fields)
    return name, answer.json if isinstance(answer, WorkflowRunSnapshot) else repr(answer)


async def transcript(
    store: FlowEventStore, loop: VirtualTimeLoop, kernel: KernelName, seed: int, steps: int
) -> list[object]:
    """All that was done, what came of it, and what could be seen after each step."""
    host = _Host(store, loop, kernel, seed)
    told: list[object] = []
    for _ in range(steps):
        told.append(await host.step())
        with loop.outside_work():
            told.append(await host.seen())
    await host.engine.close()
    return told
