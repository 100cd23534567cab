"""A flow for task workers in processes of their own: three steps with a pause between them, each noted in a file."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from perdure import Flow, RuntimeCommand, StepContext, WorkflowContext

__all__ = ["flow", "noted"]

flow = Flow()


@flow.step
def note(seconds: float, context: StepContext) -> None:
    with Path(os.environ["SHOP_LEDGER"]).open("a") as file:
        file.write(f"{context.run_id}/{context.step_id}\n")
    time.sleep(seconds)


@flow.workflow("walk", version="1")
def walk(ctx: WorkflowContext) -> RuntimeCommand:
    for number in range(3):
        if not ctx.step_completed(f"s{number}"):
            return ctx.schedule_step(f"s{number}", note, 0.02)
        if not ctx.wait_completed(f"w{number}"):
            return ctx.wait_for(f"w{number}", timedelta(milliseconds=50))
    return ctx.complete()


def noted(folder: Path) -> list[str]:
    """`run/step` of each step that was begun, as often as it was."""
    return (folder / "ledger").read_text().split()
