"""A flow for workers in processes of their own: each run reserves, waits a little, and asks for an answer by a hook."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from perdure import Flow, RuntimeCommand, StepContext, WorkflowContext

__all__ = ["ANSWER", "LEASE", "calls", "flow"]

ANSWER = {"approved": True}
LEASE = timedelta(seconds=1)
"""How long the runs of a worker that was killed are its own."""

flow = Flow()


def ledger() -> Path:
    """The file in which the steps note that they ran."""
    return Path(os.environ["SHOP_LEDGER"])


@flow.step
def reserve(seconds: float, context: StepContext) -> str:
    with ledger().open("a") as file:
        file.write(f"{context.run_id}\n")
    time.sleep(seconds)
    return "reserved"


@flow.workflow("order", version="1")
def order(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("reserve"):
        return ctx.schedule_step("reserve", reserve, (ctx.input or {}).get("seconds", 0))
    if ctx.hook_payload("answer") is not None and ctx.wait_completed("pause"):
        return ctx.complete(ctx.hook_payload("answer"))
    return ctx.schedule_all(
        [ctx.wait_for("pause", timedelta(milliseconds=200)), ctx.create_hook("answer", f"canary-{ctx.run_id}")]
    )


def calls(run_id: str) -> int:
    """How often the step of a run was begun."""
    return ledger().read_text().split().count(run_id) if ledger().exists() else 0
