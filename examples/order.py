"""An order in the command form: charge, then reserve and invoice side by side.

Run it twice with the same file: the second time nothing is charged, because the run is already there. End it while it
charges and run it again: it goes on where it stopped.

    python examples/order.py [FILE]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta

from perdure import BlockingFlowEngine, Flow, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext

flow = Flow()

PATIENT = RetryPolicy.exponential(5, timedelta(seconds=1), timedelta(seconds=30))


@dataclass(frozen=True)
class Order:
    amount: int
    items: tuple[str, ...]


@flow.step
def charge(order: Order, step: StepContext) -> str:
    """Does the side effect, and may do it again after a crash: the key tells the provider that it is the same payment."""
    print(f"charging {order.amount} under the key {step.idempotency_key}")
    return f"paid {order.amount}"


@flow.step
def reserve(order: Order) -> int:
    print(f"reserving {', '.join(order.items)}")
    return len(order.items)


@flow.step
def invoice(order: Order) -> str:
    print("writing the invoice")
    return f"invoice over {order.amount}"


@flow.workflow("order", version="1")
def order(ctx: WorkflowContext) -> RuntimeCommand:
    """Decides what comes next: a pure function of what has happened."""
    if not ctx.step_completed("charge"):
        return ctx.schedule_step("charge", charge, ctx.input, retry=PATIENT)
    if not (ctx.step_completed("reserve") and ctx.step_completed("invoice")):
        return ctx.schedule_steps([ctx.step("reserve", reserve, ctx.input), ctx.step("invoice", invoice, ctx.input)])
    return ctx.complete({"receipt": ctx.step_output("charge"), "invoice": ctx.step_output("invoice")})


def main(file: str = "orders.db") -> None:
    with BlockingFlowEngine(flow, f"sqlite:///{file}") as engine:
        print(engine.run(order, Order(120, ("lamp", "table")), run_id="order-7").output)


if __name__ == "__main__":
    main(*sys.argv[1:])
