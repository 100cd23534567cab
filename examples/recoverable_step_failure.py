"""A step that fails for good, and a workflow that knows another way.

By default a step without attempts left ends its run. `continue_workflow_on_failure` hands the failure to the workflow
instead: here it sends an invoice when the card cannot be charged.

    python examples/recoverable_step_failure.py [FILE]
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

from perdure import BlockingFlowEngine, Flow, NonRetryable, RetryPolicy, RuntimeCommand, StepContext, WorkflowContext

flow = Flow()

THREE_TIMES = RetryPolicy.fixed(3).continue_workflow_on_failure()


@flow.step
def charge_card(card: str, step: StepContext) -> str:
    print(f"{step.run_id}: charging the card, attempt {step.attempt}")
    if card == "expired":
        # Trying again cannot help: this ends the attempts at once, whatever the policy allows.
        raise NonRetryable("the card has expired")
    if card == "unreachable":
        raise TimeoutError("the bank does not answer")
    return "paid by card"


@flow.step
def send_invoice(card: str, step: StepContext) -> str:
    print(f"{step.run_id}: sending an invoice instead")
    return "invoiced"


@flow.workflow("payment", version="1")
def payment(ctx: WorkflowContext) -> RuntimeCommand:
    if ctx.step_completed("charge"):
        return ctx.complete(ctx.step_output("charge"))
    error = ctx.step_failed("charge")
    if error is None:
        return ctx.schedule_step("charge", charge_card, ctx.input, retry=THREE_TIMES)
    if not ctx.step_completed("invoice"):
        return ctx.schedule_step("invoice", send_invoice, ctx.input)
    return ctx.complete(f"{ctx.step_output('invoice')}, because of: {error}")


def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder, BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}") as engine:
        for card in ("valid", "expired", "unreachable"):
            snapshot = engine.run(payment, card, run_id=f"payment-{card}")
            print(f"{snapshot.run_id}: {snapshot.status}, {snapshot.output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
