"""Cancelling a run that has done something already: what was booked is taken back, latest first.

A cancellation is a request. The run sees it, may go on with steps of its own, under new ids, and says itself when it is
done: `ctx.cancel()`. `force_cancel` would end it at once, with the hotel still booked.

    python examples/cancellation_cleanup.py [FILE]
"""

from __future__ import annotations

import sys
from datetime import timedelta
from tempfile import TemporaryDirectory

from perdure import BlockingFlowEngine, Flow, RetryPolicy, RuntimeCommand, WorkflowContext

flow = Flow()

BOOKINGS = ("hotel", "flight", "car")

# Nobody wants to pay for a hotel because one call failed; clean-up deserves more patience than the work itself.
STUBBORN = RetryPolicy.fixed(10)


@flow.step
def book(what: str) -> str:
    print(f"booking the {what}")
    return f"{what} booked"


@flow.step
def give_back(what: str) -> str:
    print(f"cancelling the {what}")
    return f"{what} cancelled"


@flow.workflow("trip", version="1")
def trip(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.cancellation_request():
        return clean_up(ctx)
    for what in BOOKINGS:
        if not ctx.step_completed(f"book-{what}"):
            return ctx.schedule_step(f"book-{what}", book, what)
    if not ctx.wait_completed("departure"):
        return ctx.wait_for("departure", timedelta(days=30))
    return ctx.complete("bon voyage")


def clean_up(ctx: WorkflowContext) -> RuntimeCommand:
    """Only what was done is undone. Steps the request found open were cancelled with it and are not repeated."""
    for what in reversed(BOOKINGS):
        if ctx.step_completed(f"book-{what}") and not ctx.step_completed(f"give-back-{what}"):
            return ctx.schedule_step(f"give-back-{what}", give_back, what, retry=STUBBORN)
    return ctx.cancel()


def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder, BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}") as engine:
        snapshot = engine.run(trip, run_id="trip-lisbon")
        print(f"{snapshot.run_id} is {snapshot.status}")
        snapshot = engine.request_cancellation("trip-lisbon", "the customer broke a leg")
        print(f"{snapshot.run_id} is {snapshot.status}; how it ended: {snapshot.terminal_outcome}")


if __name__ == "__main__":
    main(*sys.argv[1:])
