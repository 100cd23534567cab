"""What the log says of attempts that fail: which, where, and what comes of it; never a text of the user's (R60)."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from perdure import AsyncContext, BlockingFlowEngine, Flow, NonRetryable, RetryPolicy
from perdure.kernel import KernelName

SECRET = "card 4111"
KERNELS = pytest.mark.parametrize("kernel", ["rust", "pure"])


def said(flow: Flow, kernel: KernelName, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of a run, with the places shortened to the function, and instants to `<when>`."""
    with BlockingFlowEngine(flow, kernel=kernel) as engine:
        run = engine.run("flow", run_id="r")
        while run.status == "suspended":  # until its retry is due
            time.sleep(0.01)
            run = engine.drive("r")
    assert SECRET not in caplog.text
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    lines = [re.sub(r"at \S+test_attempt_logs\.py:\d+ in ", "in ", line) for line in lines]
    return [re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<when>", line) for line in lines]


def asked_of(flow: Flow, step: Any) -> Flow:
    @flow.workflow("flow")
    async def workflow(ctx: AsyncContext) -> None:
        await ctx.step(step)

    return flow


@KERNELS
@pytest.mark.parametrize("mode", ["thread", "async", "inline"])
def test_each_failed_attempt_and_what_comes_of_it(
    kernel: KernelName, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow, policy = Flow(), RetryPolicy(max_attempts=3, delay_ms=20)

    def charge() -> None:
        raise ValueError(SECRET)

    async def charge_async() -> None:
        charge()

    function: Any = charge_async if mode == "async" else charge
    step = flow.step(name="card", retry=policy, inline=mode == "inline")(function)
    again = "run r step charge (card) attempt {} failed: ValueError in charge; it is tried again at <when>"
    last = "run r step charge (card) attempt 3 failed: ValueError in charge; it is not tried again"
    lines = said(asked_of(flow, step.options(id="charge")), kernel, caplog)
    assert lines == [again.format(1), again.format(2), last, "run r (flow 1) ended as failed"]


@KERNELS
def test_a_retry_without_a_delay(kernel: KernelName, caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow()

    @flow.step(retry=RetryPolicy(max_attempts=2))
    async def charge() -> None:
        raise ValueError(SECRET)

    first, second, _ = said(asked_of(flow, charge), kernel, caplog)
    assert first.endswith("attempt 1 failed: ValueError in charge; it is tried again now")
    assert second.endswith("attempt 2 failed: ValueError in charge; it is not tried again")


@KERNELS
def test_failures_that_are_final(kernel: KernelName, caplog: pytest.LogCaptureFixture) -> None:
    """What the author calls final, and an output that cannot be stored: that has no line of the user's."""
    flow = Flow()

    @flow.step
    async def refuse() -> None:
        raise NonRetryable(SECRET)

    @flow.step
    async def measure() -> float:
        return float("nan")

    @flow.workflow("flow")
    async def workflow(ctx: AsyncContext) -> None:
        for step in (refuse, measure):
            try:
                await ctx.step(step)
            except Exception:  # noqa: BLE001 - either
                continue

    refused, measured = said(flow, kernel, caplog)
    assert refused == "run r step refuse attempt 1 failed: NonRetryable in refuse; it is not tried again"
    assert measured == "run r step measure attempt 1 failed: Serialization; it is not tried again"


def test_a_run_that_ends_otherwise_is_a_matter_of_course(caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow()

    @flow.workflow("flow")
    async def workflow(ctx: AsyncContext) -> str:
        return SECRET

    with caplog.at_level("INFO", "perdure"), BlockingFlowEngine(flow) as engine:
        engine.run("flow", run_id="r")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", "run r (flow 1) ended as completed")]


@KERNELS
def test_an_attempt_that_times_out(kernel: KernelName, caplog: pytest.LogCaptureFixture) -> None:
    flow, over = Flow(), threading.Event()

    @flow.step(retry=RetryPolicy(max_attempts=1), timeout=timedelta(milliseconds=30))
    def wait() -> None:
        over.wait()

    try:
        line, _ = said(asked_of(flow, wait), kernel, caplog)
    finally:
        over.set()
    assert line == "run r step wait attempt 1 timed out after 30 ms; it is not tried again"


class Hostile(type):
    """A class of errors that does not even have a name."""

    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise RuntimeError("no name")
        return super().__getattribute__(name)


@KERNELS
@pytest.mark.parametrize("mode", ["thread", "async"])
def test_an_error_that_cannot_be_told_fails_its_attempt_all_the_same(
    kernel: KernelName, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow, policy = Flow(), RetryPolicy(max_attempts=1)
    nameless: Any = Hostile("Nameless", (Exception,), {})

    def charge() -> None:
        raise nameless

    async def charge_async() -> None:
        raise nameless

    step: Any = flow.step(name="charge", retry=policy)(charge if mode == "thread" else charge_async)
    line, _ = said(asked_of(flow, step), kernel, caplog)
    assert line == "run r step charge attempt 1 failed; it is not tried again"
