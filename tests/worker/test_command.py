"""`perdure worker`: what it says, how it ends, and what becomes of its children (R2, R55)."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import orjson
import pytest

import perdure
from perdure import DurableTaskQueue, FlowEngine, ResumeHook, WorkflowSpec
from perdure.cli.app import run
from perdure.cli.processes import Processes
from perdure.owner import is_dead
from perdure.stores import SqliteEventStore
from perdure.stores.base import FlowEventStore
from worker.child import MODULE, child, logged
from worker.kit import chain, until

MODULES = {
    "broken_by_itself": "raise RuntimeError('no database')",
    "broken_by_another": "import no_such_module_at_all",
    "no_python": "def (:",
    "several": "from perdure import Flow\nfirst, second, third = Flow(), Flow(), 3",
}
REFUSED = [
    ("several", "names no flow; write module:attribute"),
    ("several:", "names no flow"),
    ("no_such_module:flow", "there is no module 'no_such_module'"),
    ("several.deeper:flow", "several"),
    ("broken_by_itself:flow", "RuntimeError: no database"),
    ("broken_by_another:flow", "No module named 'no_such_module_at_all'"),
    ("no_python:flow", "SyntaxError"),
    ("several:flow", "module 'several' has no 'flow'; its flows: first, second"),
    ("several:third", "is of type int, not a Flow; its flows: first, second"),
]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with modules in it; the next test finds none of them."""
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("target", "said"), REFUSED)
def test_a_target_that_is_none_is_refused_in_one_line(
    modules: Path, capsys: pytest.CaptureFixture[str], target: str, said: str
) -> None:
    assert run(["worker", target, "--store", str(modules / "runs.db")]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not (modules / "runs.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "memory:"], "a store in memory is gone with its process"),
        (["--store", "jsonl:runs", "--processes", "2"], "belongs to one process"),
        (["--store", "a.db", "--compatible", "b1"], "--build"),
        (["--store", "a.db", "--build", "-b1"], "'-b1' is not valid"),
        (["--store", "a.db", "--processes", "0"], "--processes"),
        (["--store", "a.db", "--lease-ttl", "0"], "--lease-ttl"),
        (["--store", "a.db", "--lease-ttl", "inf"], "--lease-ttl"),
        (["--store", "a.db", "--drain-timeout", "1e300"], "--drain-timeout"),
    ],
)
def test_options_without_sense_are_refused(
    modules: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run(["worker", "several:first", *options]) == 2
    assert said in capsys.readouterr().err


def test_until_idle_ends_by_itself(modules: Path) -> None:
    async def submit() -> None:
        async with FlowEngine(chain(2), "runs.db") as engine:
            await engine.submit("chain", run_id="r")

    async def look() -> str:
        async with FlowEngine(chain(2), "runs.db") as engine:
            return (await engine.snapshot("r")).status

    (modules / "shop_of_chains.py").write_text("from worker.kit import chain\nflow = chain(2)\n")
    asyncio.run(submit())
    assert run(["worker", "shop_of_chains:flow", "--store", "runs.db", "--until-idle"]) == 0
    assert asyncio.run(look()) == "completed"


def test_a_module_that_configures_logging_silences_no_worker(modules: Path) -> None:
    """`dictConfig` disables by default the loggers that it does not name, and ours exist before it."""
    (modules / "configured.py").write_text(
        "import logging.config\n"
        "from perdure import Flow\n"
        "logging.config.dictConfig({'version': 1, 'handlers': {'out': {'class': 'logging.StreamHandler'}},\n"
        "    'root': {'level': 'INFO', 'handlers': ['out']}})\n"
        "flow = Flow()\n"
    )
    command = [sys.executable, "-m", "perdure", "worker", "configured:flow", "--store", "app.db", "--until-idle"]
    found = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    done = subprocess.run(command, env=found, cwd=modules, capture_output=True, text=True, check=True, timeout=120)
    assert "worker started for no workflow" in done.stderr and "worker ended" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(sqlite: SqliteEventStore, tmp_path: Path, number: signal.Signals) -> None:
    async with FlowEngine(chain(), sqlite) as engine:
        await submit(engine)
        with child(sqlite, tmp_path) as process:
            process.send_signal(number)
            await until(lambda: logged(tmp_path, "worker drains: 1 runs"))
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(process.wait) == 0
        snapshot = await engine.snapshot("r")
        assert (snapshot.status, snapshot.steps["s"].output) == ("running", "by the child")
        assert (await sqlite.lease("r")).owner is None


async def submit(engine: FlowEngine, *run_ids: str) -> None:
    for run_id in run_ids or ("r",):
        await engine.submit(WorkflowSpec.python("flow", "1"), run_id=run_id)


UNHURRIED = """
from perdure.worker import flow_worker
flow_worker._LAST_ACT = 200.0  # seconds that giving leases back may take: a machine may be slow
"""


async def test_a_second_signal_ends_it_at_once(sqlite: SqliteEventStore, tmp_path: Path) -> None:
    """A step that never ends does not keep it; the status says by which signal."""
    async with FlowEngine(chain(), sqlite) as engine:
        await submit(engine)
        with child(sqlite, tmp_path, module=MODULE + UNHURRIED) as process:
            process.send_signal(signal.SIGTERM)
            await until(lambda: logged(tmp_path, "worker drains"))
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait) == 128 + signal.SIGINT
        assert (await sqlite.lease("r")).owner is None


async def test_a_thread_that_a_step_left_behind_does_not_keep_the_process(
    sqlite: SqliteEventStore, tmp_path: Path
) -> None:
    """The step is asynchronous and was cut off; asyncio would wait for the thread in which it called something."""
    module = MODULE.replace("import time", "import asyncio, time").replace("def slow(", "async def slow(")
    module = module.replace("    while not", "    await asyncio.to_thread(time.sleep, 3600)\n    while not")
    async with FlowEngine(chain(), sqlite) as engine:
        await submit(engine)
        with child(sqlite, tmp_path, "--drain-timeout", "0", module=module) as process:
            process.terminate()
            assert await asyncio.to_thread(process.wait) == 0
        assert (await sqlite.lease("r")).owner is None


async def test_a_child_that_cannot_be_started_for_a_moment_ends_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program is away while one child dies; its place is filled when it is back, and the other child never noticed."""
    program, away, log = tmp_path / "program", tmp_path / "away", tmp_path / "log"
    program.write_text(f"#!/bin/sh\necho begun >> {log}\ntrap 'exit 0' TERM\nwhile true; do sleep 0.02; done\n")
    program.chmod(0o755)
    processes = Processes([str(program)], 2, "memory:", 1.0)
    running = asyncio.create_task(processes.run())

    def begun(count: int) -> Callable[[], Awaitable[bool]]:
        async def so_often() -> bool:
            return log.exists() and log.read_text().count("begun") == count

        return so_often

    async def both_known() -> bool:
        return len(processes._children) == 2  # a child may begin before its parent has written it down

    async def missed() -> bool:
        return "a worker cannot be started" in caplog.text

    await until(begun(2))
    await until(both_known)
    first, other = processes._children
    program.rename(away)
    first.kill()
    await first.wait()
    await until(missed)  # it is started again after half a second, in vain
    away.rename(program)
    await until(begun(3))
    assert other.returncode is None
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_a_step_that_ends_its_process_with_the_status_of_wrong_usage_ends_no_other(tmp_path: Path) -> None:
    program, log = tmp_path / "program", tmp_path / "log"
    program.write_text(f"#!/bin/bash\necho begun >> {log}\necho somebody >&$2\nexit 2\n")
    program.chmod(0o755)
    running = asyncio.create_task(Processes([str(program)], 1, "memory:", 1.0).run())

    async def begun_again() -> bool:
        return log.exists() and log.read_text().count("begun") > 1

    await until(begun_again)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


def pid_of(owner: str) -> int:
    pid: int = orjson.loads(owner)["pid"]
    return pid


async def owners(store: FlowEventStore, count: int) -> tuple[str, ...]:
    """Who leases runs, once there are so many."""

    async def so_many() -> bool:
        return len((await store.outlook()).owners) == count

    await until(so_many)
    return (await store.outlook()).owners


async def test_a_child_that_dies_is_replaced_and_its_runs_carried_on(shared: FlowEventStore, tmp_path: Path) -> None:
    """The parent ends the leases of a child it reaps, which would else live for an hour, and starts another."""
    options = ("--processes", "2", "--concurrency", "1", "--lease-ttl", "3600")
    async with FlowEngine(chain(), shared) as engine:
        await submit(engine, "r1", "r2")
        with child(shared, tmp_path, *options) as parent:
            first, second = await owners(shared, 2)
            os.kill(pid_of(first), signal.SIGKILL)
            await until(lambda: logged(tmp_path, "another one starts"))
            later = await owners(shared, 2)
            assert second in later
            assert first not in later
            (tmp_path / "go").touch()
            await until(lambda: _ended(shared, 2))
            parent.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(parent.wait) == 0
        assert all(is_dead(owner) for owner in later)


async def _ended(store: FlowEventStore, count: int) -> bool:
    return (await store.summary()).terminal_runs == count


async def test_children_drain_when_their_parent_is_gone(sqlite: SqliteEventStore, tmp_path: Path) -> None:
    async with FlowEngine(chain(), sqlite) as engine:
        await submit(engine)
        with child(sqlite, tmp_path, "--processes", "2") as parent:
            (owner,) = await owners(sqlite, 1)
            parent.kill()
            parent.wait()
            await until(lambda: logged(tmp_path, "worker drains"))
            (tmp_path / "go").touch()
            await until(lambda: _is_dead(owner))
        assert (await sqlite.lease("r")).owner is None


async def _is_dead(owner: str) -> bool:
    return is_dead(owner)


async def test_children_are_told_of_a_second_signal(sqlite: SqliteEventStore, tmp_path: Path) -> None:
    async with FlowEngine(chain(), sqlite) as engine:
        await submit(engine)
        with child(sqlite, tmp_path, "--processes", "2") as parent:
            await owners(sqlite, 1)
            parent.send_signal(signal.SIGINT)
            await until(lambda: logged(tmp_path, "worker drains"))
            parent.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(parent.wait) == 128 + signal.SIGINT


HOOKED = """
import base64, json
from perdure import Flow, RuntimeCommand, WorkflowContext

flow = Flow()

@flow.workflow("asks")
def asks(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.complete(ctx.hook_payload("h")) if ctx.hook_received("h") else ctx.create_hook("h", token="canary-queue")

class Turned:
    def encode(self, payload, place):
        return json.dumps(payload.decode()[::-1]).encode()

    def decode(self, stored, place):
        return json.loads(stored)[::-1].encode()

codec = Turned()
"""


def test_the_tasks_of_a_queue_are_done_too_and_payloads_go_through_the_codec(modules: Path) -> None:
    (modules / "shop_that_asks.py").write_text(HOOKED)
    shop = importlib.import_module("shop_that_asks")

    async def begin() -> None:
        store = SqliteEventStore("runs.db")
        async with FlowEngine(shop.flow, store, codec=shop.codec) as engine:
            await engine.start("asks", run_id="r")
            await DurableTaskQueue(store, "answers", codec=shop.codec).enqueue(ResumeHook("r", "h", {"said": "yes"}))
        await store.close()

    async def output() -> object:
        async with FlowEngine(shop.flow, "runs.db", codec=shop.codec) as engine:
            return (await engine.snapshot("r")).output

    asyncio.run(begin())
    options = ["--store", "runs.db", "--queue", "answers", "--codec", "shop_that_asks:codec", "--until-idle"]
    assert run(["worker", "shop_that_asks:flow", *options]) == 0
    assert asyncio.run(output()) == {"said": "yes"}
    sys.modules.pop("shop_that_asks")


def test_queues_and_codecs_that_are_none_are_refused(modules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["worker", "several:first", "--store", "jsonl:runs", "--queue", "q"]) == 2
    assert "keeps no task queues" in capsys.readouterr().err
    assert run(["worker", "several:first", "--store", "runs.db", "--codec", "several:third"]) == 2
    assert "not a codec" in capsys.readouterr().err
