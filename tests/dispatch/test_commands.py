"""`perdure scheduler` and `perdure dead-letters`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

import perdure
from dispatch.host import dispatcher
from dispatch.kit import story_flow
from perdure import (
    DriveRun,
    DurableTaskQueue,
    FlowEngine,
    FlowTask,
    ResumeHookByToken,
    ResumeWait,
    RuntimeBuildCompatibility,
    SqliteEventStore,
)
from perdure.cli.app import run

T = TypeVar("T")


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a run that has something to do."""
    found = f"sqlite:///{tmp_path / 'app.db'}"
    monkeypatch.setenv("PERDURE_STORE", found)

    async def fill(store: SqliteEventStore) -> None:
        async with FlowEngine(story_flow(), store) as engine:
            await engine.submit("flow", run_id="r")

    use(found, fill)
    dispatcher.tasks.clear()
    return found


def use(address: str, work: Callable[[SqliteEventStore], Awaitable[T]]) -> T:
    async def body() -> T:
        store = SqliteEventStore(address)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(body())


def pending(address: str, name: str = "default") -> int:
    return use(address, lambda store: DurableTaskQueue(store, name).len())


def pin(address: str) -> None:
    """Adds a run that is pinned to build v1."""

    async def fill(store: SqliteEventStore) -> None:
        async with FlowEngine(story_flow(), store, builds=RuntimeBuildCompatibility("v1")) as engine:
            await engine.submit("flow", run_id="old")

    use(address, fill)


def set_aside(address: str, *tasks: FlowTask) -> list[str]:
    """Leases of tasks among the dead letters."""

    async def fill(store: SqliteEventStore) -> list[str]:
        queue, found = DurableTaskQueue(store), []
        for task in tasks:
            await queue.enqueue(task)
            lease = await queue.lease()
            assert lease is not None
            await queue.dead_letter(lease.lease_id, "hook_conflict: no")
            found.append(lease.lease_id)
        return found

    return use(address, fill)


# scheduler -----------------------------------------------------------------------------------------------------------


def test_one_look(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scheduler", "--once", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"due_waits": 0, "due_retries": 0, "enqueued_tasks": 1, "runnable": 1, "more": False}
    assert run(["scheduler", "--once"]) == 0
    assert "enqueued tasks" in capsys.readouterr().out
    assert pending(address) == 1


def test_another_queue_and_routes(address: str) -> None:
    pin(address)
    assert run(["scheduler", "--once", "--queue", "new", "--route", "v1=old"]) == 0
    assert (pending(address, "new"), pending(address, "old")) == (1, 1)


def test_a_missing_route_is_one_line(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    pin(address)
    assert run(["scheduler"]) == 1
    assert capsys.readouterr().err.startswith("perdure: no route for build 'v1'")
    assert pending(address) == 0


def test_a_dispatcher_of_ones_own(address: str) -> None:
    assert run(["scheduler", "dispatch.host:dispatcher", "--once"]) == 0
    assert dispatcher.tasks == [DriveRun("r")]
    assert run(["scheduler", "dispatch.host:flow", "--once"]) == 0
    assert pending(address) == 1


@pytest.mark.parametrize(
    "options",
    [
        ["dispatch.host:neither"],
        ["dispatch.host:missing"],
        ["nothing"],
        ["--route", "v1"],
        ["--route", "-=q"],
        ["--route", "v1=a", "--route", "v1=b"],
        ["--queue", ""],
        ["--max-pending", "0"],
        ["--interval", "0"],
        ["--interval", "inf"],
        ["--redispatch-after", "1e300"],
    ],
)
def test_wrong_usage(address: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scheduler", "--once", *options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_store_without_queues_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scheduler", "--once", "--store", f"jsonl:{tmp_path / 'runs'}"]) == 2
    assert "keeps no task queues" in capsys.readouterr().err


def test_a_signal_ends_it_at_once(address: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    command = [sys.executable, "-m", "perdure", "scheduler", "--interval", "3600"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while pending(address) == 0:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


# dead letters --------------------------------------------------------------------------------------------------------


def test_listing_shows_reasons_and_no_secrets(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    wait, token = set_aside(address, ResumeWait("r", "w"), ResumeHookByToken("canary-t", {"secret": 1}))
    assert run(["dead-letters", "list", "--json"]) == 0
    text = capsys.readouterr().out
    told = json.loads(text)
    assert [(row["lease_id"], row["type"], row["run_id"], row["reason"]) for row in told] == [
        (wait, "resume_wait", "r", "hook_conflict: no"),
        (token, "resume_hook_by_token", None, "hook_conflict: no"),
    ]
    assert "canary" not in text
    assert "secret" not in text
    assert run(["dead-letters", "list", "--limit", "1"]) == 0
    text = capsys.readouterr().out
    assert wait in text
    assert token not in text
    assert run(["dead-letters", "list", "--json", "--show-tokens"]) == 0
    assert json.loads(json.loads(capsys.readouterr().out)[1]["task"])["payload"] == {"secret": 1}


def test_redrive_and_drop(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = set_aside(address, *(ResumeWait("r", f"w{n}") for n in range(3)))
    assert run(["dead-letters", "redrive", one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"redriven": [one], "missing": []}
    assert run(["dead-letters", "redrive", one]) == 1
    assert capsys.readouterr().err == f"perdure: not among the dead letters of queue 'default': {one}\n"
    assert run(["dead-letters", "drop", two]) == 0
    assert two in capsys.readouterr().out
    assert run(["dead-letters", "redrive", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["redriven"] == [three]
    assert pending(address) == 2
    assert run(["dead-letters", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("options", [[], ["--all", "x"], ["--queue", "", "--all"]])
def test_which_ones_must_be_said(address: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead-letters", "redrive", *options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
