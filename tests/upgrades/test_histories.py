"""What earlier releases recorded is read for ever: it projects to the recorded snapshots, and its runs go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import FlowEngine
from perdure.errors import FlowError
from perdure.exchange import Stored, import_histories
from perdure.instant import parse_instant
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel, KernelName
from perdure.stores import MemoryEventStore
from upgrades.program import BUILDS, ENDS, START, Clock, carry_on, make_flow
from upgrades.record_histories import RECORDED, version

RELEASES = sorted(folder for folder in RECORDED.iterdir() if folder.is_dir())
HISTORIES = [file for folder in RELEASES for file in sorted(folder.glob("*.jsonl"))]


def name(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def test_this_release_has_recorded_its_histories() -> None:
    assert (RECORDED / version()).is_dir(), (
        f"release {version()} has recorded nothing: run `python -m upgrades.record_histories` in the folder tests"
    )


@pytest.mark.parametrize("file", HISTORIES, ids=name)
def test_a_recorded_history_projects_to_its_snapshot(file: Path, kernel: Kernel) -> None:
    run = kernel.project(file.stem, file.read_bytes(), DEFAULT_MAX_EVENT_BYTES)
    assert run.snapshot() == file.with_suffix(".snapshot.json").read_bytes()


@pytest.mark.parametrize("file", HISTORIES, ids=name)
def test_every_prefix_of_a_recorded_history_is_one(file: Path, kernel: Kernel) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    run = kernel.new(file.stem, DEFAULT_MAX_EVENT_BYTES)
    for number, line in enumerate(lines, 1):
        run.extend(line)
        assert run.last_sequence == number
    assert run.snapshot() == file.with_suffix(".snapshot.json").read_bytes()


def test_every_event_type_is_recorded() -> None:
    recorded = b"".join(file.read_bytes() for file in (RECORDED / version()).glob("*.jsonl"))
    types = {part.partition(b'"')[0].decode() for part in recorded.split(b'"event":{"type":"')[1:]}
    assert len(types) == 23


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("kernel_name", ["rust", "pure"])
def test_recorded_runs_go_on_to_their_ends(release: Path, kernel_name: KernelName) -> None:
    histories = {file.stem: file.read_bytes() for file in release.glob("*.jsonl")}
    assert asyncio.run(ends_of(histories, kernel_name)) == {run_id: ENDS[run_id] for run_id in histories}


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("run_id", ["parade", "async-parade", "async-cancelled", "cancelled"])
def test_every_prefix_of_a_recorded_run_goes_on_to_the_same_end(release: Path, run_id: str) -> None:
    """The workflow's code is replayed over each: none of it is drift."""
    lines = (release / f"{run_id}.jsonl").read_bytes().splitlines(keepends=True)
    linked = {"handed-over": (release / "handed-over.jsonl").read_bytes()}
    for count in range(1, len(lines) + 1):
        ends = asyncio.run(ends_of({run_id: b"".join(lines[:count])} | linked, "rust"))
        assert ends[run_id] == ENDS[run_id], f"after {count} events"


async def ends_of(histories: dict[str, bytes], kernel: KernelName) -> dict[str, str]:
    clock = Clock(parse_instant(START))
    store = MemoryEventStore(clock)
    report = await import_histories(store, [Stored(*history) for history in histories.items()], kernel=kernel)
    assert report.refused == []
    async with FlowEngine(make_flow(), store, kernel=kernel, builds=BUILDS, record_tracebacks=False) as engine:
        found: dict[str, str] = {}
        for run_id in histories:
            try:
                found[run_id] = await carry_on(engine, run_id, clock)
            except FlowError as error:
                found[run_id] = str(error)
    for run_id, lines in histories.items():
        assert (await store.history(run_id)).startswith(lines)
    return found
