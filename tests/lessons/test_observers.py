"""Fixed bugs about observers: 41 and 44. More of both: `tests/observe`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import orjson
import pytest
from scenarios.kit import World, one_workflow, stored

from perdure import RuntimeCommand, WorkflowContext, WorkflowProgress
from perdure.observe import AuditLog, Observation


def two_facts(ctx: WorkflowContext) -> RuntimeCommand:
    for progress_id in ("one", "two"):
        if ctx.progress(progress_id) is None:
            return ctx.record_progress(WorkflowProgress(progress_id, 1))
    return ctx.complete()


class Stuck:
    """Stands still at its first event until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def observe(self, observation: Observation) -> None:
        self.gate.wait(20)


class Raising:
    def observe(self, observation: Observation) -> None:
        raise RuntimeError("the observer is broken")


@pytest.mark.parametrize("kind", [Stuck, Raising])
async def test_bug_41_an_observer_cannot_touch_a_run(
    world: World, kind: type[Stuck | Raising], caplog: pytest.LogCaptureFixture
) -> None:
    """Slow/raising observer → run unaffected."""
    async with world.engine(one_workflow(two_facts)) as engine:
        await engine.start("flow", run_id="alone")
    observer = kind()
    caplog.set_level(logging.CRITICAL, "perdure")
    async with world.engine(one_workflow(two_facts), observer=observer) as engine:
        assert (await engine.run("flow", run_id="watched")).status == "completed"
        if isinstance(observer, Stuck):
            observer.gate.set()
    assert await stored(world.store, "watched") == await stored(world.store, "alone")


async def test_bug_44_a_torn_audit_log(world: World, tmp_path: Path) -> None:
    """Audit-sink file with torn tail repaired like the event log."""
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        async with world.engine(one_workflow(two_facts), observer=log) as engine:
            await engine.start("flow", run_id="a")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with AuditLog(path) as log:
        async with world.engine(one_workflow(two_facts), observer=log) as engine:
            await engine.start("flow", run_id="b")
    records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [(r["run_id"], r["sequence"]) for r in records] == [
        *(("a", number) for number in range(1, 5)),
        *(("b", number) for number in range(1, 6)),
    ]
