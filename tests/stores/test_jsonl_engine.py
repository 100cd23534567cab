"""Whole runs on a JSONL folder: scenarios 60, 62, 63 and 68, and a hold that the next process finds (R43)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    BlockingFlowEngine,
    Flow,
    FlowEngine,
    JsonlEventStore,
    NonDeterministic,
    RetryPolicy,
    RuntimeBuildCompatibility,
    RuntimeCommand,
    StepContext,
    StoreError,
    WorkflowContext,
)

T0 = 1_800_000_000_000_000_000


def two_steps(calls: list[str]) -> Flow:
    """Steps `a`, whose first attempt fails, and `b`; both outputs are the run's."""
    flow = Flow()

    @flow.step
    async def work(context: StepContext, name: str) -> str:
        calls.append(f"{context.step_id} {context.attempt}")
        if (context.step_id, context.attempt) == ("a", 1):
            raise ValueError("not yet")
        return f"{name}\u2028{context.attempt}"

    @flow.workflow("pair", version="1")
    def pair(ctx: WorkflowContext) -> RuntimeCommand:
        for step_id in ("a", "b"):
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, work, step_id, retry=RetryPolicy.fixed(3, timedelta(0)))
        return ctx.complete([ctx.step_output("a"), ctx.step_output("b")])

    return flow


def with_engine(folder: Path, flow: Flow, use: Callable[[FlowEngine], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        store = JsonlEventStore(folder, lambda: T0)
        try:
            async with FlowEngine(flow, store, **options) as engine:
                return await use(engine)
        finally:
            await store.close()

    return asyncio.run(run())


def output_of(folder: Path, flow: Flow) -> Any:
    return with_engine(folder, flow, lambda engine: engine.run("pair", None, run_id="r")).output


def test_60_cut_at_any_line_a_run_ends_with_the_same_output(tmp_path: Path) -> None:
    calls: list[str] = []
    expected = output_of(tmp_path / "whole", two_steps(calls))
    assert expected == ["a\u20282", "b\u20281"]
    data = (tmp_path / "whole" / "r.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    for count in range(len(lines)):
        for torn in (b"", lines[count][:20]):
            folder = tmp_path / f"{count}-{len(torn)}"
            folder.mkdir()
            (folder / "r.jsonl").write_bytes(b"".join(lines[:count]) + torn)
            again: list[str] = []
            assert output_of(folder, two_steps(again)) == expected
            assert set(again) <= {"a 1", "a 2", "b 1"}


def test_62_and_63_a_damaged_run_is_refused_to_every_call_and_the_others_go_on(tmp_path: Path) -> None:
    output_of(tmp_path, two_steps([]))
    file = tmp_path / "r.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for damage, reason in ((b"{\n", "malformed"), (lines[2].replace(b'"run_id":"r"', b'"run_id":"q"'), "foreign_run")):
        file.write_bytes(b"".join([*lines[:2], damage, *lines[3:]]))

        async def use(engine: FlowEngine, reason: str = reason) -> None:
            for call in (engine.snapshot("r"), engine.drive("r"), engine.history("r"), engine.force_cancel("r")):
                with pytest.raises(StoreError, match=rf"line 3 of .*r\.jsonl cannot be read \({reason}"):
                    await call
            other = await engine.run("pair", None, run_id=f"other-{reason}")
            assert other.output == ["a\u20282", "b\u20281"]

        with_engine(tmp_path, two_steps([]), use)


def test_68_a_history_of_the_reference_engine_with_a_running_step_resumes(tmp_path: Path) -> None:
    """One redelivery under the same attempt number, and the run completes."""
    spec = {
        "name": "pair",
        "version": "1",
        "runtime": {"kind": "rust_embedded", "entrypoint": "pair", "export_name": "main"},
    }
    events = [
        {"type": "run_created", "spec": spec, "input": None},
        {"type": "run_started"},
        {
            "type": "step_created",
            "step_id": "a",
            "step_name": "work",
            "input": "a",
            "retry": {"max_attempts": 3, "delay_ms": 0},
        },
        {"type": "step_started", "step_id": "a", "attempt": 1},
    ]
    lines = [
        json.dumps(
            {
                "run_id": "r",
                "sequence": number,
                "event_id": f"0d8b7b29-50a7-4c15-8ad4-84f7a4e1110{number}",
                "timestamp": f"2026-11-29T20:31:42.53634796{number}Z",
                "event": event,
            }
        )
        for number, event in enumerate(events, 1)
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))  # the last newline is missing, too
    calls: list[str] = []
    flow = Flow()

    @flow.step
    async def work(context: StepContext, name: str) -> str:
        calls.append(f"{name} {context.attempt}")
        return "done"

    @flow.workflow("pair", version="1")
    def pair(ctx: WorkflowContext) -> RuntimeCommand:
        if ctx.step_completed("a"):
            return ctx.complete(ctx.step_output("a"))
        return ctx.schedule_step("a", work, "a", retry=RetryPolicy.fixed(3, timedelta(0)))

    snapshot = with_engine(tmp_path, flow, lambda engine: engine.drive("r"))
    assert (snapshot.status, snapshot.output) == ("completed", "done")
    assert calls == ["a 1"]
    written = (tmp_path / "r.jsonl").read_text().split("\n")
    assert written[:4] == lines


def test_a_run_held_by_one_process_is_held_in_the_next(tmp_path: Path) -> None:
    def flow_with(input: str) -> Flow:
        flow = Flow()

        @flow.step
        async def work(text: str) -> str:
            return text

        @flow.workflow("pair", version="1")
        def pair(ctx: WorkflowContext) -> RuntimeCommand:
            if ctx.step_completed("a") and ctx.wait_completed("w"):
                return ctx.complete(None)
            if ctx.step_completed("a"):
                return ctx.wait_for("w", timedelta(days=1))
            return ctx.schedule_step("a", work, input)

        return flow

    def changed() -> Flow:
        flow = Flow()

        @flow.workflow("pair", version="1")
        def pair(ctx: WorkflowContext) -> RuntimeCommand:
            return ctx.wait_until("w", "2027-01-01T00:00:00Z")

        return flow

    builds = RuntimeBuildCompatibility("b1", accept_unpinned=True)
    with_engine(tmp_path, flow_with("x"), lambda engine: engine.run("pair", None, run_id="r"))

    async def drive(engine: FlowEngine) -> None:
        with pytest.raises(NonDeterministic):
            await engine.drive("r")

    with_engine(tmp_path, changed(), drive, builds=builds)
    hold = json.loads((tmp_path / "r.hold.json").read_text())
    assert (hold["code"], hold["builds"]) == ("non_deterministic", ["b1"])

    async def held(engine: FlowEngine) -> bool:
        (row,) = (await engine.store.runs()).runs
        return row.hold is not None

    assert with_engine(tmp_path, changed(), held)


def test_the_blocking_engine_takes_the_address_of_a_folder(tmp_path: Path) -> None:
    with BlockingFlowEngine(two_steps([]), f"jsonl:{tmp_path}") as engine:
        assert engine.run("pair", None, run_id="r").output == ["a\u20282", "b\u20281"]
    assert (tmp_path / "r.jsonl").is_file()
