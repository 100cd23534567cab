"""Three ways an order goes, and the steps they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from perdure import (
    AsyncContext,
    Flow,
    HookMetadata,
    RetryPolicy,
    RuntimeCommand,
    StepContext,
    WorkflowCancelled,
    WorkflowContext,
)
from perdure.demo.ledger import Ledger

__all__ = [
    "APPROVAL",
    "CARD",
    "PICKUP",
    "Order",
    "flow",
    "ledger",
    "order_with_approval",
    "order_with_card",
    "order_with_pickup",
]

flow: Final = Flow()
ledger: Final = Ledger()

CARD: Final = "order-101"
APPROVAL: Final = "order-102"
PICKUP: Final = "order-103"
"""The ids of the three runs."""

PATIENT: Final = RetryPolicy.exponential(5, timedelta(seconds=1), timedelta(seconds=4))
REMIND_AFTER: Final = timedelta(seconds=4)
GIVE_UP_AFTER: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Order:
    """What is ordered; `declines` is how often the bank refuses before it pays."""

    amount: int
    declines: int = 0


# -- steps: they do something, and may do it again after a crash -------------------------------------------------------


@flow.step
def charge(order: Order, step: StepContext) -> str:
    if step.attempt <= order.declines:
        ledger.record(step, "declined")
        raise ConnectionError("the bank declined; it asks to try again")
    return ledger.charge(step, order.amount)


@flow.step
def reserve(order: Order, step: StepContext) -> None:
    ledger.record(step, "goods set aside")


@flow.step
def invoice(order: Order, step: StepContext) -> None:
    ledger.record(step, "invoice written")


@flow.step
def remind(order: Order, step: StepContext) -> None:
    ledger.record(step, "reminder sent")


@flow.step
def ship(order: Order, step: StepContext) -> None:
    ledger.record(step, "parcel handed over")


@flow.step
def refund(order: Order, step: StepContext) -> None:
    ledger.record(step, f"refunded {order.amount}")


@flow.step
def release(order: Order, step: StepContext) -> None:
    ledger.record(step, "goods put back")


# -- workflows: they say what comes next, and do nothing ---------------------------------------------------------------


@flow.workflow("order-with-card", version="1")
async def order_with_card(ctx: AsyncContext, order: Order) -> str:
    """Charge, with patience; then two steps side by side."""
    receipt = await ctx.step(charge.options(retry=PATIENT), order)
    await ctx.gather(ctx.step(reserve, order), ctx.step(invoice, order))
    return receipt


@flow.workflow("order-with-approval", version="1")
def order_with_approval(ctx: WorkflowContext) -> RuntimeCommand:
    """Wait for a person and remind them once; whatever is resolved first decides, on every replay alike. This one is in the
    command form: a pure function that is asked again after whatever happens."""
    order, token = ctx.input["order"], ctx.input["token"]
    first = ctx.first_resolved(("hook", "approval"), ("wait", "patience"))
    if first is None:
        open_work = [
            ctx.create_hook("approval", token, HookMetadata.human_approval(ctx.run_id)),
            ctx.wait_for("patience", GIVE_UP_AFTER),
            ctx.wait_for("reminder", REMIND_AFTER),
        ]
        if ctx.wait_completed("reminder"):
            open_work.append(ctx.step("remind", remind, order))
        return ctx.schedule_all(open_work)
    if first == ("wait", "patience") or not ctx.hook_payload("approval")["approved"]:
        return ctx.fail("nobody approved")
    if not ctx.step_completed("ship"):
        return ctx.schedule_all([ctx.close_wait("patience"), ctx.step("ship", ship, order)])
    return ctx.complete("shipped")


@flow.workflow("order-with-pickup", version="1")
async def order_with_pickup(ctx: AsyncContext, order: Order) -> str:
    """Reserve, charge, wait for the customer; if the order is cancelled, take back what was done."""
    await ctx.step(reserve, order)
    undo = [release]
    try:
        await ctx.step(charge, order)
        undo.append(refund)
        await ctx.sleep(GIVE_UP_AFTER, id="pickup")
    except WorkflowCancelled:
        async with ctx.cleanup():
            await ctx.gather(*(ctx.step(step, order) for step in undo))
        raise
    return "picked up"
