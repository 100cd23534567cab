"""The four rules on both kernels, and replay against a plain orjson-to-dict projection. Answers first, then times."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import orjson
import pytest

from benches import baseline
from benches.conftest import KERNELS, Measure
from benches.generate import CLOCK, RUN_ID, SIZES, history, tail
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES as LIMIT
from perdure.kernel import Kernel, Run, load

Kernels = dict[str, Kernel]

STEP = {"step_name": "warehouse.reserve", "input": {"order": 7, "warehouse": "muc-2"}}
COMMAND = orjson.dumps({"type": "schedule_steps", "steps": [{"step_id": f"new-{n}", **STEP} for n in range(3)]})
ENTROPY = bytes(range(48))
MANY = 16
THREADS = sorted({1, min(4, os.cpu_count() or 1)})


@dataclass(frozen=True)
class Policy:
    max_attempts: int = 8
    delay_ms: int = 1_000
    backoff: str = "exponential"
    max_delay_ms: int = 60_000


@cache
def check_projections(events: int) -> None:
    """Both kernels give the same snapshot, byte for byte, and the baseline the same statuses."""
    lines = history(RUN_ID, events)
    rust, pure = (load(name).project(RUN_ID, lines, LIMIT).snapshot() for name in ("rust", "pure"))
    assert rust == pure, f"the kernels disagree on the history of {events} events"
    assert baseline.statuses(orjson.loads(rust)) == baseline.statuses(baseline.project(lines))


def project(kernel: Kernel, events: int) -> Run:
    return kernel.project(RUN_ID, history(RUN_ID, events), LIMIT)


@pytest.mark.parametrize("engine", [*KERNELS, "orjson"])
@pytest.mark.parametrize("events", SIZES)
def bench_project(kernels: Kernels, measure: Measure, sizes_up_to: int, events: int, engine: str) -> None:
    events = min(events, sizes_up_to)
    check_projections(events)
    lines = history(RUN_ID, events)
    row = f"project {events:,} events"
    if engine == "orjson":
        measure(row, engine, lambda: baseline.project(lines), events=events)
    else:
        kernel = kernels[engine]
        seconds_long = engine == "pure" and events > 10_000
        measure(
            row, engine, lambda: kernel.project(RUN_ID, lines, LIMIT), events=events, rounds=1 if seconds_long else None
        )


@pytest.mark.parametrize("engine", KERNELS)
@pytest.mark.parametrize("threads", THREADS)
def bench_project_many(kernels: Kernels, measure: Measure, threads: int, engine: str) -> None:
    check_projections(1_000)
    items = [(RUN_ID, history(RUN_ID, 1_000))] * MANY
    kernel = kernels[engine]
    row = f"project_many {MANY} x 1,000 events, {threads} thread{'s' * (threads > 1)}"
    measure(row, engine, lambda: kernel.project_many(items, threads), events=MANY * 1_000)


@pytest.mark.parametrize("engine", KERNELS)
def bench_extend(kernels: Kernels, measure: Measure, engine: str) -> None:
    more = tail(RUN_ID, 1_000, 3)
    answers = []
    for kernel in kernels.values():
        run = project(kernel, 1_000)
        run.extend(more)
        answers.append(run.snapshot())
    assert answers[0] == answers[1] == project(kernels["rust"], 1_003).snapshot()
    kernel = kernels[engine]
    rounds = 100 if engine == "rust" else 10
    measure(
        "extend 1,000 by 3 events",
        engine,
        lambda run: run.extend(more),
        setup=lambda: project(kernel, 1_000),
        rounds=rounds,
    )


@pytest.mark.parametrize("engine", KERNELS)
def bench_decide(kernels: Kernels, measure: Measure, engine: str) -> None:
    runs = {name: project(kernel, 1_000) for name, kernel in kernels.items()}
    drafts = [run.decide(COMMAND, CLOCK, CLOCK).drafts for run in runs.values()]
    assert drafts[0] == drafts[1] and len(drafts[0]) == 3
    run = runs[engine]
    measure("decide 3 new steps on 1,000", engine, lambda: run.decide(COMMAND, CLOCK, CLOCK))


@pytest.mark.parametrize("engine", KERNELS)
def bench_append(kernels: Kernels, measure: Measure, engine: str) -> None:
    runs = {name: project(kernel, 1_000) for name, kernel in kernels.items()}
    drafts = runs["rust"].decide(COMMAND, CLOCK, CLOCK).drafts
    batches = [run.stage(drafts, CLOCK).append(ENTROPY) for run in runs.values()]
    assert batches[0].lines == batches[1].lines and batches[0].last_sequence == 1_003
    run = runs[engine]
    measure("stage and append 3 events on 1,000", engine, lambda: run.stage(drafts, CLOCK).append(ENTROPY))


@pytest.mark.parametrize("engine", KERNELS)
def bench_snapshot(kernels: Kernels, measure: Measure, engine: str) -> None:
    check_projections(1_000)
    measure("snapshot JSON of 1,000 events", engine, project(kernels[engine], 1_000).snapshot)


@pytest.mark.parametrize("engine", KERNELS)
def bench_read(kernels: Kernels, measure: Measure, engine: str) -> None:
    runs = {name: project(kernel, 1_000) for name, kernel in kernels.items()}
    answers = [step.output for run in runs.values() if (step := run.step("reserve-17"))]
    assert len(answers) == 2 and answers[0] == answers[1] is not None
    run = runs[engine]
    measure("read one step of 1,000 events", engine, lambda: run.step("reserve-17"))


@pytest.mark.parametrize("engine", KERNELS)
def bench_retry_delay(kernels: Kernels, measure: Measure, engine: str) -> None:
    policy = Policy()
    for attempt in range(1, 8):
        delays = {kernel.retry_delay_ms(policy, RUN_ID, "reserve-17", attempt) for kernel in kernels.values()}
        assert len(delays) == 1
    kernel = kernels[engine]
    measure("retry delay", engine, lambda: kernel.retry_delay_ms(policy, RUN_ID, "reserve-17", 3))
