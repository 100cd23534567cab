"""`guard="raise"`: the calls themselves refuse while a workflow's pass runs, and nobody else notices (R63 aside).

The wrappers stay for the life of the process, so the tests that need a clean one run in an interpreter of their own.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from perdure.blocking import BlockingFlowEngine
from perdure.commands import RuntimeCommand
from perdure.context import WorkflowContext
from perdure.flow import Flow
from perdure.guard import Guard, GuardMode, GuardWarning
from perdure.guard_calls import GuardViolation

GUARD = Guard("raise")


def refused(call: Callable[[], Any]) -> GuardViolation:
    with pytest.raises(GuardViolation) as caught, GUARD.watching():
        call()
    return caught.value


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: [time.time()], "time.time()"),
        (lambda: [time.monotonic_ns()], "time.monotonic_ns()"),
        (lambda: time.sleep(0), "time.sleep()"),
        (lambda: [random.random()], "random.random()"),
        (lambda: random.choice([1]), "random.choice()"),
        (lambda: [secrets.token_hex()], "secrets.token_hex()"),
        (lambda: [uuid.uuid4()], "uuid.uuid4()"),
        (lambda: os.urandom(1), "os.urandom()"),
        (lambda: os.getenv("HOME"), "os.getenv()"),
        (lambda: os.environ["HOME"], "os.environ()"),
        (lambda: os.environ.get("HOME"), "os.environ()"),
        (lambda: open(__file__), "open()"),  # noqa: PTH123, SIM115 - the builtin is the case
        (lambda: [socket.socket()], "socket.socket()"),
        (lambda: socket.create_connection(("127.0.0.1", 9)), "socket.create_connection()"),
        (lambda: subprocess.Popen(["true"]), "subprocess.Popen()"),
        (lambda: subprocess.run(["true"], check=False), "subprocess.Popen()"),
    ],
)
def test_a_call_in_a_pass_is_refused_with_its_place(call: Callable[[], Any], name: str) -> None:
    violation = refused(call)
    assert (violation.call, violation.place) == (name, f"{__file__}:{call.__code__.co_firstlineno}")
    assert str(violation).startswith(f"{violation.place}: {name} was called in a workflow: ")


def test_the_same_calls_outside_a_pass_are_what_they_were() -> None:
    assert abs(time.time() - time.time()) < 60
    assert random.randint(3, 3) == 3
    assert uuid.uuid4() != uuid.uuid4()
    assert os.environ.get("PATH") == os.getenv("PATH")
    with open(__file__) as file:  # noqa: PTH123 - the builtin is the case
        assert file.readline().startswith('"""')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))


def test_another_thread_and_another_task_do_not_notice() -> None:
    seen: list[float] = []

    async def beside() -> None:
        seen.append(time.time())

    async def story() -> None:
        task = asyncio.create_task(beside())
        with GUARD.watching():
            thread = threading.Thread(target=lambda: seen.append(time.time()))
            thread.start()
            thread.join()
        await task

    asyncio.run(story())
    assert len(seen) == 2


def test_a_chain_with_a_context_of_its_own_is_watched_while_the_pass_runs() -> None:
    chain = Context()
    assert refused(lambda: chain.run(time.time_ns)).call == "time.time_ns()"
    assert chain.run(time.time) > 0


def caught_and_went_on() -> None:
    try:
        time.time()
    except Exception:  # noqa: BLE001 - as a workflow may
        random_too()


def caught_and_raised_another() -> None:
    try:
        time.time()
    except GuardViolation:
        raise KeyError("other") from None


def test_a_violation_that_was_caught_still_ends_the_pass() -> None:
    assert refused(caught_and_went_on).call == "time.time()"
    assert isinstance(refused(caught_and_raised_another).__cause__, KeyError)
    with GUARD.watching():
        pass


def random_too() -> None:
    with pytest.raises(GuardViolation):
        random.random()


def test_the_standard_library_may_go_about_its_business(caplog: pytest.LogCaptureFixture) -> None:
    import logging
    import traceback

    with GUARD.watching():
        logging.getLogger("guarded").error("a log record has a time")
        traceback.format_stack()
        sys.modules.pop("colorsys", None)
        __import__("colorsys")
    assert "a log record has a time" in caplog.text


def test_a_line_may_be_allowed() -> None:
    with GUARD.watching():
        assert time.time() > 0  # perdure: allow


def test_reading_through_the_standard_library_is_refused_too() -> None:
    violation = refused(lambda: Path(__file__).read_text("utf-8"))
    assert violation.call == "io.open()"


def test_the_wrappers_are_as_good_as_what_they_wrap() -> None:
    clock: Any = type("Clock", (), {"now": time.time})
    assert clock().now() > 0  # a builtin is no method, and neither is its wrapper
    assert time.time.__name__ == "time"
    assert pickle.loads(pickle.dumps(time.time)) is time.time
    assert pickle.loads(pickle.dumps(random.random)) is random.random
    assert Guard("raise") is not Guard("raise")
    wrapped = time.time
    Guard("raise")
    assert time.time is wrapped


def test_nothing_is_touched_before_somebody_asks() -> None:
    code = (
        "import sys, time, random; before = time.time, random.random, open\n"
        "from perdure import Flow, FlowEngine\n"
        "Flow(); Flow(guard='off'); FlowEngine(Flow(), kernel='pure')\n"
        "assert (time.time, random.random, open) == before\n"
        "assert 'perdure.guard_calls' not in sys.modules\n"
        "Flow(guard='raise')\n"
        "assert time.time is not before[0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- through an engine ----------------------------------------------------------------------------------------------


def test_a_command_workflow_is_refused_and_its_steps_are_not() -> None:
    flow = Flow(guard="raise")

    @flow.step(name="clock")
    def read_clock() -> bool:
        return time.time() > 0

    @flow.workflow("good")
    def good(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "clock")
        return ctx.complete(ctx.step_output("s"))

    @flow.workflow("bad")
    def bad(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(sorted({"a"}, key=lambda _: clock()))

    clock: Any = vars(time)["time"]  # where no lint sees it
    with BlockingFlowEngine(flow) as engine:
        assert engine.run("good").output is True
        with pytest.raises(GuardViolation, match=r"time\.time\(\) was called in a workflow") as caught:
            engine.start("bad", run_id="r")
        assert caught.value.run_id == "r"
        assert not engine.snapshot("r").terminal


def test_what_is_seen_at_registration() -> None:
    def w(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete(random.random())

    modes: list[GuardMode] = ["warn", "raise"]
    for guard in modes:
        with pytest.warns(GuardWarning, match=r"\[random\] random.random in .*w: ") as caught:
            Flow(guard=guard).workflow("w")(w)
        assert (caught[0].filename, caught[0].lineno) == (__file__, w.__code__.co_firstlineno + 1)
    Flow(guard="off").workflow("w")(w)
