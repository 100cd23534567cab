"""About sixty natural workflows, each run in every way: straight, dropped, from every prefix, in other orders, cancelled, with
failures, conflicts and crashes (R18, R37, R39, R63). Here at sampled places; `make natural` at all of them, on both kernels."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import orjson
import pytest
from scenarios.kit import Clock, Crash, open_store, story

from coroutine.natural import NATURAL, Natural, flow
from coroutine.natural.driving import EVERYWHERE, end, finish, happen, played, sample, started
from coroutine.natural.kit import answer
from coroutine.world import World
from perdure import FlowEngine
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, KernelName, load

KERNELS: tuple[KernelName, ...] = ("rust", "pure")
PLACES = 3
SEEDS = 20 if EVERYWHERE else 1


def cases() -> list[Any]:
    """Each workflow on both kernels; in the short form on one, by its name."""
    found = []
    for natural in NATURAL:
        for number, kernel in enumerate(KERNELS):
            if EVERYWHERE or zlib.crc32(natural.name.encode()) % 4 // 3 == number:
                found.append(pytest.param(natural, load(kernel), id=f"{natural.name}-{kernel}"))
    return found


each = pytest.mark.parametrize(("natural", "kernel"), cases())


def replays(world: World) -> None:
    """The log replays from sampled prefixes: nothing that it holds is drift."""
    prefixes = list(world.prefixes())[1:]
    for prefix in sample(prefixes, PLACES, str(len(prefixes))):
        prefix.ask()


@each
def test_straight_and_dropped(natural: Natural, kernel: Kernel) -> None:
    plain = played(kernel, natural)
    assert len(set(plain.opened())) == len(plain.opened()) > 0
    dropped = started(kernel, natural)
    while not dropped.run.terminal:
        dropped.drop()
        happen(dropped, dropped.open()[0])
    assert dropped.log == plain.log


@each
def test_from_every_prefix(natural: Natural, kernel: Kernel) -> None:
    plain = played(kernel, natural)
    lines = plain.log.splitlines(keepends=True)
    for count in sample(range(1, len(lines) + 1), PLACES, natural.name):
        world = World(kernel, flow, natural.workflow, log=b"".join(lines[:count]), strict=False, ask=False)
        world.ask()
        finish(world)
        assert end(world) == end(plain)
        assert world.story == plain.story


@each
def test_in_random_orders(natural: Natural, kernel: Kernel) -> None:
    plain = played(kernel, natural)
    for seed in range(SEEDS):
        random = Random(f"{natural.name} {seed}")
        world = played(kernel, natural, random)
        if natural.any_order:
            assert end(world) == end(plain)
        replays(world)
        together = started(kernel, natural)
        while not together.run.terminal:
            with together.together():
                for _ in range(random.randint(1, 3)):
                    if still := together.open():
                        happen(together, random.choice(still))
        if natural.any_order:
            assert end(together) == end(plain)
        replays(together)


@each
def test_cancelled_at_every_sequence(natural: Natural, kernel: Kernel) -> None:
    open_prefixes = [prefix for prefix in played(kernel, natural).prefixes() if not prefix.run.terminal]
    for prefix in sample(open_prefixes, PLACES, natural.name):
        prefix.request("enough")
        finish(prefix)
        assert prefix.status in ("cancelled", "failed", "timed_out")
        assert len(set(prefix.opened())) == len(prefix.opened())
        replays(prefix)


@each
def test_with_a_failing_step_at_each_place(natural: Natural, kernel: Kernel) -> None:
    steps = [line for line in played(kernel, natural).opened() if line.startswith("step ")]
    for broken in sample(steps, 2, natural.name):
        world = started(kernel, natural)
        while not world.run.terminal:
            still = world.open()
            if broken in still:
                world.fail(broken.removeprefix("step "), "runtime error: broken")
            else:
                happen(world, still[0])
        replays(world)


@each
def test_a_conflict_under_every_commit(natural: Natural, kernel: Kernel) -> None:
    """R4: each pass is first asked over staged events that another writer then beats."""
    plain = played(kernel, natural)
    world = started(kernel, natural)
    while not world.run.terminal:
        with world.together():
            before, lines = world.run.last_sequence, world.log
            happen(world, world.open()[0])
            happened = [orjson.loads(line)["event"] for line in world.log[len(lines) :].splitlines()]
            world.run, world.log = kernel.project("r", lines, DEFAULT_MAX_EVENT_BYTES), lines
            world.kept.ask(world.spec, world.run.stage([orjson.dumps(event) for event in happened], world.clock))
            progress = {"progress_id": f"foreign-{before}", "completed": 0, "total": 1}
            world._append([orjson.dumps({"type": "run_progress_recorded", "progress": progress})])
            world._append([orjson.dumps(event) for event in happened])
    assert end(world) == end(plain)
    assert [line for line in world.story if "progress" not in line] == [
        line for line in plain.story if "progress" not in line
    ]


# -- on the engine -----------------------------------------------------------------------------------------------------


class Losing:
    """A store that loses the n-th commit, and whoever made it: before it is written, or after."""

    def __init__(self, inner: Any, number: int, written: bool) -> None:
        self._inner, self._number, self._written, self.commits = inner, number, written, 0

    async def commit(self, appends: Any) -> Any:
        if any(append.batch.lines for append in appends):
            self.commits += 1
            if self.commits == self._number:
                if self._written:
                    await self._inner.commit(appends)
                raise Crash
        return await self._inner.commit(appends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Counting:
    """The flow, which notes the steps that really run."""

    def __init__(self, ran: list[tuple[str, int]]) -> None:
        self._ran = ran

    def run_step(self, invocation: Any) -> object:
        self._ran.append((invocation.step_id, invocation.attempt))
        return flow.run_step(invocation)

    def __getattr__(self, name: str) -> Any:
        return getattr(flow, name)


async def run_to_end(store: Any, natural: Natural, clock: Clock, ran: list[tuple[str, int]], options: Any) -> None:
    """Starts the run, or goes on with it, and answers what it waits for: where it stands decides what comes first."""
    async with FlowEngine(Counting(ran), store, lease=False, record_tracebacks=False, **options) as engine:
        await engine.start(natural.workflow, natural.input, run_id="r")
        for _ in range(100):
            at, suspended = await engine.read("r", lambda run: (run.last_sequence, run.suspensions()))
            if not suspended:
                assert await engine.read("r", lambda run: run.terminal)
                return
            kind, subject, due = suspended[zlib.crc32(b"%d" % at) % len(suspended)]
            if kind == "hook":
                await engine.resume_hook("r", subject, answer(subject))
            else:
                clock.ns = max(clock.ns, due or 0)
                await engine.resume_wait("r", subject)
    raise AssertionError("the run does not end")


@each
async def test_a_crash_at_every_commit(natural: Natural, kernel: Kernel, tmp_path: Any) -> None:
    """The same end and the same events, and no step runs again whose outcome was committed."""
    options: dict[str, Any] = {"kernel": next(name for name in KERNELS if load(name) is kernel)}
    for commit in ("staged", "each") if EVERYWHERE else (("staged", "each")[len(natural.name) % 2],):
        options["commit"] = commit
        clock = Clock()
        inner = open_store("memory", tmp_path, clock)
        counted = Losing(inner, 0, False)
        await run_to_end(counted, natural, clock, [], options)
        plain = await told(inner, clock)
        numbers = [(number, written) for number in range(1, counted.commits + 1) for written in (False, True)]
        for number, written in sample(numbers, PLACES, natural.name):
            await crash(natural, number, written, plain, options, tmp_path)


async def told(store: Any, clock: Clock) -> tuple[Any, list[str]]:
    async with FlowEngine(flow, store, lease=False) as engine:
        snapshot = await engine.snapshot("r")
        return (snapshot.status, snapshot.output, snapshot.error), story(await engine.history("r"))


async def crash(natural: Natural, number: int, written: bool, plain: Any, options: Any, tmp_path: Any) -> None:
    clock = Clock()
    inner = open_store("memory", tmp_path, clock)
    with pytest.raises(Crash):
        await run_to_end(Losing(inner, number, written), natural, clock, [], options)
    begun, settled = {}, set()
    if await inner.run_ids():
        for line in (await inner.history("r")).splitlines():
            event = orjson.loads(line)["event"]
            if event["type"] == "step_started":
                begun[event["step_id"]] = event["attempt"]
            elif event["type"] in ("step_completed", "step_failed", "step_retrying", "step_non_retryable"):
                settled.add((event["step_id"], begun[event["step_id"]]))
    ran: list[tuple[str, int]] = []
    await run_to_end(inner, natural, clock, ran, options)
    assert not settled & set(ran)
    assert await told(inner, clock) == plain
