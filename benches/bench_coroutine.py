"""The async form: carrying a run on from its bytes, the user's function included, against a plain-Python prototype."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import tracemalloc
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import orjson
import pytest

from benches import prototype
from benches.conftest import KERNELS, Measure, Tell
from benches.stores import Told
from perdure import FlowEngine
from perdure.coroutine.context import AsyncContext
from perdure.flow import Flow
from perdure.keeping import KeptCoroutine
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES as LIMIT
from perdure.kernel import Kernel, View, load
from perdure.stores import MemoryEventStore

STEPS = 1_000
EARLY, LATE, SOME = 10, 9_800, 200
RECOVERY = f"recover an async run of {STEPS:,} steps"
CLOCK = 1_767_225_600_000_000_000
flow = Flow()


@dataclass(frozen=True)
class Line:
    """One line of an order, about 120 bytes of JSON."""

    order: str
    item: str
    amount: int
    warehouse: str
    cents: int
    gift: bool = False


@dataclass(frozen=True)
class Receipt:
    """What a step gives, about 100 bytes of JSON."""

    id: str
    line: int
    cents: int
    paid_with: str


@flow.step
def settle(line: Line) -> Receipt:
    return Receipt(f"receipt-{line.order}-{line.item}", line.amount, line.amount * line.cents, "card ending in 4242")


def step_row(at: int) -> str:
    return f"steps {at:,} to {at + SOME:,} of an async run"


def line_of(number: int) -> Line:
    return Line("order-2026-0001", f"item-{number:05}", number % 7 + 1, "warehouse-muc-2", 1_990)


@flow.workflow("bench.settle")
async def settle_all(ctx: AsyncContext, count: int) -> int:
    cents = 0
    for number in range(count):
        receipt = await ctx.step(settle, line_of(number))
        cents += receipt.cents
    return cents


def settle_all_again(count: int) -> Generator[prototype.Asked, Receipt, int]:
    """The same function as a generator."""
    cents = 0
    for number in range(count):
        receipt = yield "settle", (line_of(number),)
        cents += receipt.cents
    return cents


class Drive:
    """One run, carried on by hand in memory: each `step()` settles what is open and asks for the next, as one commit."""

    def __init__(self, kernel: Kernel, steps: int) -> None:
        self.kept = KeptCoroutine(flow, "bench-run", kernel.json_equal)
        self.run = kernel.new("bench-run", LIMIT)
        self.spec = flow.spec_of(settle_all)
        self.lines = b""
        self.done = 0
        start = {"op": "start", "spec": orjson.Fragment(self.spec.to_json()), "input": steps}
        self._ask(self.run.stage(self.run.control(orjson.dumps(start), CLOCK).drafts, CLOCK))

    def _ask(self, view: View) -> None:
        command = self.kept.ask(self.spec, view)
        assert command is not None
        view = view.stage(view.decide(command.to_json(), CLOCK, CLOCK).drafts, CLOCK)
        batch = view.append(bytes(16 * (view.last_sequence - self.run.last_sequence)))
        self.run.accept(batch)
        self.lines += batch.lines
        self.kept.accepted()

    def step(self) -> None:
        step_id = "settle" if self.done == 0 else f"settle#{self.done + 1}"
        view = self.run.stage([orjson.dumps({"type": "step_started", "step_id": step_id, "attempt": 1})], CLOCK)
        outcome = orjson.dumps({"type": "completed", "output": settle(line_of(self.done))})
        self._ask(view.stage(view.settle(step_id, 1, outcome, CLOCK, CLOCK, True), CLOCK))
        self.done += 1


@cache
def history(steps: int) -> bytes:
    """A run that has settled this many lines and asks for one more, which is not recorded: there is a command to compare."""
    drive = Drive(load("rust"), steps + 1)
    for _ in range(steps):
        drive.step()
    return b"".join(line + b"\n" for line in drive.lines.split(b"\n")[: 2 + 3 * steps])


def recover(kernel: Kernel, lines: bytes) -> dict[str, Any]:
    """From bytes to the next command."""
    run = kernel.project("bench-run", lines, LIMIT)
    kept = KeptCoroutine(flow, "bench-run", kernel.json_equal)
    command = kept.ask(flow.spec_of(settle_all), run)
    assert command is not None
    asked: dict[str, Any] = orjson.loads(command.to_json())["members"][0]
    return asked


def recover_again(lines: bytes) -> dict[str, Any]:
    return prototype.recover(lines, settle_all_again, {"settle": Receipt})


@pytest.mark.parametrize("engine", [*KERNELS, "orjson"])
def bench_recovery(kernels: dict[str, Kernel], measure: Measure, engine: str) -> None:
    lines = history(STEPS)
    assert recover(kernels["rust"], lines) == recover(kernels["pure"], lines) == recover_again(lines)
    row = RECOVERY
    if engine == "orjson":  # the prototype, in the column of plain Python
        measure(row, engine, lambda: recover_again(lines), events=2 + 3 * STEPS)
    else:
        kernel = kernels[engine]
        measure(
            row, engine, lambda: recover(kernel, lines), events=2 + 3 * STEPS, rounds=5 if engine == "pure" else None
        )


@pytest.mark.parametrize("done", [10, 10_000])
def bench_one_step(kernels: dict[str, Kernel], measure: Measure, sizes_up_to: int, done: int) -> None:
    """Of a kept coroutine: a step costs the same however many were before it."""
    drive = Drive(kernels["rust"], 1_000_000)
    for _ in range(min(done, sizes_up_to)):
        drive.step()
    drive.lines = b""
    measure(f"step {done:,} of an async run", "rust", drive.step, rounds=100)


@flow.step(inline=True)
def note(number: int) -> int:
    _moments.append(time.perf_counter())
    return number


@flow.workflow("bench.long")
async def count_up(ctx: AsyncContext, count: int) -> int:
    for number in range(count):
        await ctx.step(note, number)
    return count


_moments: list[float] = []


@cache
def steps_of_a_run(store: str, count: int) -> list[float]:
    """Seconds of each step of one run on the whole engine."""

    async def run(folder: str) -> None:
        opened = MemoryEventStore() if store == "memory" else f"sqlite:///{folder}/long.db"
        async with FlowEngine(flow, opened) as engine:
            await engine.run("bench.long", count)

    _moments.clear()
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        asyncio.run(run(folder))
    return [after - before for before, after in pairwise(_moments)]


@pytest.mark.parametrize("at", [EARLY, LATE])
@pytest.mark.parametrize("store", ["memory", "SQLite FULL"])
def bench_step_of_a_run(tell: Tell, sizes_up_to: int, store: str, at: int) -> None:
    """The medians of 200 steps of one run, at its beginning and further on."""
    taken = steps_of_a_run(store, min(LATE + SOME, sizes_up_to))
    first = min(at, len(taken) - SOME)
    steps = taken[first : first + SOME]
    tell(step_row(at), store, lambda: None, lambda _: Told(3 * SOME, sum(steps), steps))


def bench_suspended(kernels: dict[str, Kernel], measure: Measure) -> None:
    """What a suspended run costs while its coroutine is kept: in `extra_info`, bytes, beside the kernel's own."""
    kept: list[Drive] = []
    count = 100
    measure(
        "suspend an async run at its first step", "rust", lambda: kept.append(Drive(kernels["rust"], 2)), rounds=count
    )
    kept.clear()
    gc.collect()
    tracemalloc.start(1)
    before = tracemalloc.get_traced_memory()[0]
    kept += [Drive(kernels["rust"], 2) for _ in range(count)]
    warm = tracemalloc.get_traced_memory()[0]
    for drive in kept:
        drive.kept.close()
    gc.collect()
    evicted = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    text = f"a suspended run, bytes: warm {(warm - before) // count}, of that its coroutine {(warm - evicted) // count}"
    print(text)  # noqa: T201 - a size has no row in a table of times
