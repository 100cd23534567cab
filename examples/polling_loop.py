"""Asking again and again until something outside is ready: a parcel is tracked until it is delivered.

Each round is a step and a wait, under ids with the round's number: an id stands for one piece of work in a run and is
never used twice. Between two rounds the run takes no thread and no memory, so the pause may as well be a day.

    python examples/polling_loop.py [FILE]
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from perdure import BlockingFlowEngine, Flow, RuntimeCommand, WorkflowContext

flow = Flow()

PAUSE = timedelta(milliseconds=100)
MOST_ROUNDS = 20


@flow.step
def ask_carrier(number: int) -> str:
    """The outside world; a real one would be asked by the parcel's number."""
    status = ("at the depot", "on its way", "on its way", "delivered")[min(number, 4) - 1]
    print(f"round {number}: {status}")
    return status


@flow.workflow("track-parcel", version="1")
def track_parcel(ctx: WorkflowContext) -> RuntimeCommand:
    """Goes through the rounds there have been, up to the first thing that is not done yet."""
    for number in range(1, MOST_ROUNDS + 1):
        if not ctx.step_completed(f"ask-{number}"):
            return ctx.schedule_step(f"ask-{number}", ask_carrier, number)
        if ctx.step_output(f"ask-{number}") == "delivered":
            return ctx.complete({"rounds": number})
        if not ctx.wait_completed(f"pause-{number}"):
            return ctx.wait_for(f"pause-{number}", PAUSE)
    return ctx.fail(f"not delivered after {MOST_ROUNDS} rounds")


def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder, BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}") as engine:
        snapshot = engine.run(track_parcel, run_id="parcel-17")
        while not snapshot.terminal:
            time.sleep(0.02)
            engine.resume_due_waits(datetime.now(UTC))
            snapshot = engine.snapshot("parcel-17")
        print(f"{snapshot.status}: {snapshot.output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
