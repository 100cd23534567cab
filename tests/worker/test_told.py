"""What logs say of errors: enough to find the cause, and no value of the user's (R60)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from perdure import AsyncContext, Flow, FlowEngine, FlowWorker, WorkflowSpec, errors
from perdure.errors import FlowError
from perdure.stores import MemoryEventStore
from perdure.tasks import DriveRun, ResumeWait, handle
from perdure.told import told

SECRET = "card 4111"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.RunNotFound("r"), "run_not_found: run 'r' does not exist in this store"),
        (
            errors.WorkflowRaised("r", "w", "1", f"KeyError: {SECRET}", "app.py:7"),
            "workflow_raised: KeyError at app.py:7",
        ),
        (errors.WorkflowRaised("r", "w", "1", "KeyError"), "workflow_raised: KeyError"),
        (
            errors.NonDeterministic("r", "step", "s", "input", 3, f'{{"a":"{SECRET}"}}', '{"a":2}'),
            "non_deterministic: step 's' of event 3 has another input now, at $.a",
        ),
        (
            errors.NonDeterministic("r", "step", "s", "place", 3, SECRET, "[]"),
            "non_deterministic: step 's' of event 3 was not asked for by then",
        ),
        (
            errors.Serialization("payload", detail="parameter 'n': $: Expected `int`, got `str`"),
            "serialization: payload: parameter 'n': $: Expected `int`, got `str`",
        ),
        (
            errors.Serialization(
                "payload", detail="the payload of hook 'h': $.b[3][\"card: 4111\"].x: Expected `int`, got `str`"
            ),
            "serialization: payload: the payload of hook 'h': $: Expected `int`, got `str`",
        ),
        (
            errors.Serialization("payload", detail="$.card4111: Object contains unknown field `card4111`"),
            "serialization: payload: $: Object contains unknown field",
        ),
        (errors.Serialization("malformed", 3, SECRET), "serialization"),
        (errors.StepFailed("s", "charge", 3, SECRET, "app.Broken", True), "step_failed"),
        (errors.WorkflowFailed(SECRET), "workflow_failed"),
        (errors.NonRetryable(SECRET), "non_retryable"),
    ],
)
def test_texts(error: FlowError, text: str) -> None:
    assert told(error) == text


@dataclass
class Order:
    amount: int


def flawed() -> Flow:
    flow = Flow(guard="off")

    @flow.workflow("typed")
    async def typed(ctx: AsyncContext, order: Order) -> int:
        return order.amount

    @flow.workflow("clocky")
    async def clocky(ctx: AsyncContext, order: Order) -> None:
        await asyncio.sleep(1)

    @flow.workflow("buggy")
    async def buggy(ctx: AsyncContext, order: Order) -> None:
        raise KeyError(SECRET)

    return flow


CAUSES = {
    "typed": "serialization: payload: parameter 'order' of workflow 'typed': $: Expected `int`, got `str`",
    "clocky": "foreign_await: asyncio.sleep at ",
    "buggy": "workflow_raised: KeyError at ",
}


@pytest.mark.parametrize("name", CAUSES)
async def test_a_worker_says_why_a_drive_failed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryEventStore()
    async with FlowEngine(Flow(), store) as client, FlowEngine(flawed(), store) as engine:
        amount = SECRET if name == "typed" else 4111
        await client.submit(WorkflowSpec.python(name, "1"), {"amount": amount}, run_id="r")
        await FlowWorker(engine).run_until_idle()
    (line, *_) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith(f"the drive of run r failed: {CAUSES[name]}")
    assert name == "typed" or __file__ in line
    assert SECRET not in caplog.text


async def test_a_task_says_why_it_failed_and_what_comes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async with FlowEngine(flawed()) as engine:
        await engine.submit("buggy", {"amount": 4111}, run_id="r")
        await handle(engine, DriveRun("r"))
        await handle(engine, ResumeWait("r", "nothing"))
        await handle(engine, DriveRun("gone"))
    drive, resume = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert drive.startswith("task drive_run of run r: workflow_raised: KeyError at ")
    assert drive.endswith("; the run says what becomes of it")
    assert resume == (
        "task resume_wait of run r: invalid_transition: run 'r': there is no wait 'nothing' in this run; the task is set aside"
    )
