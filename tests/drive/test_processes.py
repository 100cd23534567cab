"""Real processes: killed between a side effect and its commit, interrupted by Ctrl-C, ended with a thread that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import BlockingFlowEngine, Flow, RuntimeCommand, StepContext, WorkflowContext
from perdure.kernel import KernelName
from perdure.stores import SqliteEventStore

PATIENCE = 120

HEAD = """
import os, signal, sys, threading, time
from datetime import timedelta
from perdure import BlockingFlowEngine, Flow, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext

database, kernel, ledger = sys.argv[1:4]
flow = Flow()

@flow.workflow("order")
def order(ctx: WorkflowContext) -> RuntimeCommand:
    for step_id in ("reserve", "pay", "ship"):
        if not ctx.step_completed(step_id):
            return ctx.schedule_step(step_id, "effect")
    return ctx.complete("shipped")
"""


def command(script: str, folder: Path, kernel: KernelName) -> list[str]:
    return [sys.executable, "-c", HEAD + script, str(folder / "runs.db"), kernel, str(folder / "ledger")]


def environment() -> dict[str, str]:
    """The child finds the very package this process runs."""
    import perdure

    return os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}


def ran(script: str, folder: Path, kernel: KernelName) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(script, folder, kernel),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        check=False,
    )


KILLED = """
@flow.step
def effect(context: StepContext) -> None:
    with open(ledger, "a") as book:
        book.write(f"{context.attempt_key} {context.idempotency_key}\\n")
    if context.step_id == "pay" and not os.path.exists(ledger + ".killed"):
        open(ledger + ".killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

with BlockingFlowEngine(flow, f"sqlite:///{database}", kernel=kernel) as engine:
    print(engine.run(order, run_id="r").output)
"""


def test_sigkill_between_side_effect_and_commit(kernel_name: KernelName, tmp_path: Path) -> None:
    """The process dies with the side effect done and its outcome unrecorded; the next one runs the step again under the
    same attempt and the same keys, and no other step."""
    first = ran(KILLED, tmp_path, kernel_name)
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = ran(KILLED, tmp_path, kernel_name)
    assert (second.returncode, second.stdout) == (0, "shipped\n"), second.stderr
    keys = [f"flow.step.v1/1/r{len(step)}:{step}" for step in ("reserve", "pay", "pay", "ship")]
    assert (tmp_path / "ledger").read_text().splitlines() == [f"{key}/1 {key}" for key in keys]
    third = ran(KILLED, tmp_path, kernel_name)
    assert third.stdout == "shipped\n"
    assert len((tmp_path / "ledger").read_text().splitlines()) == 4


INTERRUPTED = """
calls = []

@flow.step
def effect(context: StepContext) -> None:
    calls.append(context.step_id)
    if calls == ["reserve", "pay"] and sys.stdin.readline() == "hang\\n":
        print("paying", flush=True)
        threading.Event().wait()

engine = BlockingFlowEngine(flow, f"sqlite:///{database}", kernel=kernel)
try:
    engine.run(order, run_id="r")
except KeyboardInterrupt:
    print("interrupted", flush=True)
if len(sys.argv) == 5:
    print(engine.drive("r").output, calls)
engine.close()
"""


def interrupted(folder: Path, kernel: KernelName, *more: str) -> tuple[str, int]:
    """What the process printed after Ctrl-C while it hung in a step, and how it ended."""
    child = subprocess.Popen(
        [*command(INTERRUPTED, folder, kernel), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("hang\n")
            child.stdin.flush()
            assert child.stdout.readline() == "paying\n"
            child.send_signal(signal.SIGINT)
            rest, _ = child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
    return rest, child.returncode


def test_an_interrupted_call_does_not_go_on(kernel_name: KernelName, tmp_path: Path) -> None:
    """Ctrl-C ends the drive with its call: the same engine drives again at once, and does not wait for the old attempt."""
    told, status = interrupted(tmp_path, kernel_name, "again")
    assert (told, status) == ("interrupted\nshipped ['reserve', 'pay', 'pay', 'ship']\n", 0)


def test_ctrl_c_ends_promptly_and_the_run_goes_on(kernel_name: KernelName, tmp_path: Path) -> None:
    """Ctrl-C in `run` is `KeyboardInterrupt` at once, although a step thread hangs; the process ends, the run is resumable."""
    assert interrupted(tmp_path, kernel_name) == ("interrupted\n", 0)
    flow = Flow()

    @flow.step
    def effect(context: StepContext) -> str:
        return context.attempt_key

    @flow.workflow("order")
    def order(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("pay"):
            return ctx.schedule_step("pay", effect)
        return ctx.complete(ctx.step_output("pay"))

    with BlockingFlowEngine(flow, f"sqlite:///{tmp_path / 'runs.db'}", kernel=kernel_name) as engine:
        assert engine.snapshot("r").steps["pay"].status == "running"
        assert engine.history("r")[-1].type == "step_started"
        assert engine.drive("r").output == "flow.step.v1/1/r3:pay/1"


STUCK = """
@flow.step(timeout=timedelta(milliseconds=20), retry=RetryPolicy.none())
def effect(context: StepContext) -> None:
    threading.Event().wait()

@flow.workflow("stuck")
def stuck(ctx: WorkflowContext) -> RuntimeCommand:
    return ctx.schedule_step("a", effect)

with BlockingFlowEngine(flow, f"sqlite:///{database}", kernel=kernel) as engine:
    print(engine.run(stuck, run_id="r").error)
print("closed")
"""


def test_a_stuck_thread_does_not_keep_the_process(kernel_name: KernelName, tmp_path: Path) -> None:
    """R54: `close()` and the interpreter's exit never join a step thread."""
    done = ran(STUCK, tmp_path, kernel_name)
    assert (done.returncode, done.stdout) == (0, "runtime error: attempt timed out after 20 ms\nclosed\n"), done.stderr


EXITING = """
@flow.step{how}
{kind} effect(context: StepContext) -> None:
    sys.exit(7)

engine = BlockingFlowEngine(flow, f"sqlite:///{{database}}", kernel=kernel)
try:
    engine.run(order, run_id="r")
except SystemExit as error:
    print("exit", error.code, flush=True)
print(engine.snapshot("r").steps["reserve"].status)
engine.close()
"""


@pytest.mark.parametrize(("kind", "how"), [("def", ""), ("async def", ""), ("def", "(inline=True)")])
def test_a_step_that_exits(kernel_name: KernelName, tmp_path: Path, kind: str, how: str) -> None:
    """R53: `SystemExit` in a step records nothing and reaches the caller; the engine is not broken by it."""
    done = ran(EXITING.format(kind=kind, how=how), tmp_path, kernel_name)
    assert (done.returncode, done.stdout) == (0, "exit 7\nrunning\n"), done.stderr


NO_LOOP = """
@flow.step
def effect(context: StepContext) -> str:
    return context.step_id

threads = []
with BlockingFlowEngine(flow, f"sqlite:///{database}", kernel=kernel) as engine:
    for number in range(4):
        threads.append(threading.Thread(target=engine.run, args=(order,), kwargs={"run_id": f"r{number}"}))
        threads[-1].start()
    for thread in threads:
        thread.join()
    print([row.status for row in engine.list_snapshots()])
# The engine is forgotten without `close`: the interpreter must end all the same.
BlockingFlowEngine(flow, f"sqlite:///{database}", kernel=kernel)
"""


def test_many_threads_and_a_forgotten_engine(kernel_name: KernelName, tmp_path: Path) -> None:
    """One engine serves several threads; one that nobody closed does not keep the process."""
    done = ran(NO_LOOP, tmp_path, kernel_name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{['completed'] * 4}\n"


async def test_two_kernels_carry_on_each_other(tmp_path: Path) -> None:
    """A run begun by one kernel is ended by the other, over one file."""
    from perdure import FlowEngine

    flow = Flow()

    @flow.workflow("flow")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        for hook_id in ("one", "two"):
            if not ctx.hook_received(hook_id):
                return ctx.create_hook(hook_id, f"canary-{hook_id}")
        return ctx.complete([ctx.hook_payload("one"), ctx.hook_payload("two")])

    store = SqliteEventStore(tmp_path / "runs.db")
    async with FlowEngine(flow, store, kernel="rust") as rust, FlowEngine(flow, store, kernel="pure") as pure:
        await rust.start("flow", run_id="r")
        await pure.resume_hook("r", "one", 1.5)
        ended = await rust.resume_hook("r", "two", "é")
        assert ended.output == [1.5, "é"]
        assert (await pure.snapshot("r")).json == ended.json
    await store.close()
