"""The async form: carrying a run on from its bytes, the user's function included, against a plain-Python prototype."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import pytest

from benches import prototype
from benches.conftest import KERNELS, Measure
from perdure.coroutine.context import AsyncContext
from perdure.flow import Flow
from perdure.keeping import KeptCoroutine
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES as LIMIT
from perdure.kernel import Kernel, load

STEPS = 1_000
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


@cache
def history(steps: int) -> bytes:
    """A run that has settled this many lines and asks for one more."""
    kernel = load("rust")
    run = kernel.new("bench-run", LIMIT)
    spec = flow.spec_of(settle_all)
    start = {"op": "start", "spec": orjson.Fragment(spec.to_json()), "input": steps + 1}
    kept = KeptCoroutine(flow, "bench-run", kernel.json_equal)
    view = run.stage(run.control(orjson.dumps(start), CLOCK).drafts, CLOCK)
    lines = b""
    for number in range(steps + 1):
        command = kept.ask(spec, view)
        assert command is not None
        view = view.stage(view.decide(command.to_json(), CLOCK, CLOCK).drafts, CLOCK)
        kept.accepted()
        batch = view.append(bytes(16 * (view.last_sequence - run.last_sequence)))
        run.accept(batch)
        lines += batch.lines
        if number < steps:
            step_id = "settle" if number == 0 else f"settle#{number + 1}"
            started = orjson.dumps({"type": "step_started", "step_id": step_id, "attempt": 1})
            view = run.stage([started], CLOCK + number)
            outcome = orjson.dumps({"type": "completed", "output": settle(line_of(number))})
            view = view.stage(view.settle(step_id, 1, outcome, CLOCK, CLOCK, True), CLOCK + number)
    # What is asked for last is not recorded, so that there is a command to compare.
    return b"".join(line + b"\n" for line in lines.split(b"\n")[: 2 + 3 * steps])


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
    row = f"recover an async run of {STEPS:,} steps"
    if engine == "orjson":  # the prototype, in the column of plain Python
        measure(row, engine, lambda: recover_again(lines), events=2 + 3 * STEPS)
    else:
        kernel = kernels[engine]
        measure(
            row, engine, lambda: recover(kernel, lines), events=2 + 3 * STEPS, rounds=5 if engine == "pure" else None
        )
