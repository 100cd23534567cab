"""Records the histories of this release, and their snapshots, into `tests/data/recorded/<version>/`.

    python -m upgrades.record_histories        (from the folder `tests`)

Clock and event ids are fixed, so a second run writes the same bytes. What was recorded is never written again: the command
refuses a folder that is there, unless it is to be compared (`--check`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from perdure import FlowEngine, WorkflowSpec
from perdure.instant import Instant, parse_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, load
from perdure.stores import MemoryEventStore
from upgrades.program import BUILDS, START, Clock, carry_on, make_flow

RECORDED = Path(__file__).resolve().parents[1] / "data" / "recorded"


def version() -> str:
    """Of this release."""
    return str(getattr(load("rust"), "__version__", ""))


def record() -> dict[str, bytes]:
    """The histories, by run id."""
    # Event ids come from the system's randomness, which is ours for the while.
    system, os.urandom = os.urandom, Random(7).randbytes
    try:
        return asyncio.run(_record())
    finally:
        os.urandom = system


async def _record() -> dict[str, bytes]:
    clock = Clock(parse_instant(START))
    store = MemoryEventStore(clock)
    async with FlowEngine(make_flow(), store, record_tracebacks=False, builds=BUILDS) as engine:
        await engine.start(WorkflowSpec.python("one-step", "1", "build-1"), [1, 2.5, None, "é"], run_id="handed-over")
        await _ended(engine, clock)
        await _open(engine)
        await _by_the_host(engine)
    histories = {run_id: await store.history(run_id) for run_id in await store.run_ids()}
    # A process that died while its step ran.
    lines = histories["running"].splitlines(keepends=True)
    histories["running"] = b"".join(lines[: 1 + next(n for n, line in enumerate(lines) if b"step_started" in line)])
    histories["with-detail"] = _with_detail(histories["retrying"])
    return histories


def _with_detail(lines: bytes) -> bytes:
    """A delayed retry with a failure's detail, which holds paths of the machine when it is not made up; and members that this
    release does not know."""
    detail = b',"failure":{"type":"builtins.ValueError","message":"the first attempt fails","traceback":"Traceback\\n"}'
    head, brace, tail = lines.rpartition(b"}}")
    retold = head + detail + brace[:1] + b',"of_later":[1e400,{"a":1,"a":2}]}' + tail
    return retold.replace(b'"run_id":"retrying"', b'"run_id":"with-detail"')


async def _ended(engine: FlowEngine, clock: Clock) -> None:
    for run_id, workflow in (
        ("parade", "parade"),
        ("async-parade", "async-parade"),
        ("cancelled", "cancelling"),
        ("async-cancelled", "async-cancelled"),
        ("declined", "declined"),
        ("exhausted", "exhausted"),
        ("failed", "failed"),
        ("timed-out", "timed-out"),
    ):
        clock.ns = parse_instant(START)
        await engine.start(workflow, {"order": 7}, run_id=run_id)
        await carry_on(engine, run_id, clock)
    clock.ns = parse_instant(START)


async def _open(engine: FlowEngine) -> None:
    await engine.submit("one-step", "later", run_id="pending")
    await engine.start("one-step", "now", run_id="running")
    for run_id in ("waiting", "asking", "retrying", "cancelling", "async-asking"):
        await engine.start(run_id, None, run_id=run_id)
    await engine.request_cancellation("cancelling", "customer left")


async def _by_the_host(engine: FlowEngine) -> None:
    calls: dict[str, Callable[[str], Any]] = {
        "force-cancelled": lambda run_id: engine.force_cancel(run_id, "by hand"),
        "host-shutdown": engine.terminate_for_host_shutdown,
        "host-timeout": lambda run_id: engine.terminate_for_timeout(run_id, Instant(parse_instant(START))),
    }
    for run_id, end in calls.items():
        await engine.start("waiting", None, run_id=run_id)
        await end(run_id)


def files() -> dict[str, bytes]:
    """What the folder of this release holds, by file name."""
    found: dict[str, bytes] = {}
    for run_id, lines in sorted(record().items()):
        found[f"{run_id}.jsonl"] = lines
        found[f"{run_id}.snapshot.json"] = load("rust").project(run_id, lines, DEFAULT_MAX_EVENT_BYTES).snapshot()
    return found


def main(arguments: list[str]) -> int:
    folder = RECORDED / version()
    if arguments == ["--check"]:
        wrong = [name for name, data in files().items() if (folder / name).read_bytes() != data]
        sys.stdout.write("".join(f"{name} differs\n" for name in wrong))
        return 1 if wrong else 0
    if folder.exists():
        sys.stderr.write(f"{folder} is there; what a release recorded is not written again\n")
        return 1
    folder.mkdir(parents=True)
    for name, data in files().items():
        (folder / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
