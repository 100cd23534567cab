"""A run that waits for a person: expenses that somebody has to approve.

A hook is a place in a run where a payload from outside arrives. Whoever knows its token can deliver, so a token is a
secret: send it to the approver, for example in a link, and keep it out of logs.

    python examples/hook_approval.py [FILE]
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from perdure import (
    BlockingFlowEngine,
    Flow,
    HookConflict,
    HookMetadata,
    HookTokenNotFound,
    RunTerminal,
    RuntimeCommand,
    WorkflowContext,
)

flow = Flow()


@dataclass(frozen=True)
class Expense:
    what: str
    amount: int
    token: str


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str


@flow.step
def reimburse(expense: Expense) -> str:
    return f"paid out {expense.amount} for {expense.what}"


@flow.workflow("expense", version="1")
def expense(ctx: WorkflowContext) -> RuntimeCommand:
    claim = ctx.input_as(Expense)
    if ctx.hook_disposed("approval"):
        return ctx.fail("withdrawn")
    decision = ctx.hook_payload("approval", as_=Decision)
    if decision is None:
        # The token is made outside and comes with the input: asked again, a workflow has to say the same again.
        metadata = HookMetadata.human_approval(claim.what).with_labels(amount=str(claim.amount))
        return ctx.create_hook("approval", claim.token, metadata)
    if not decision.approved:
        return ctx.fail(f"refused by {decision.by}")
    if not ctx.step_completed("reimburse"):
        return ctx.schedule_step("reimburse", reimburse, claim)
    return ctx.complete(f"{ctx.step_output('reimburse')}, approved by {decision.by}")


def submit(engine: BlockingFlowEngine, what: str, amount: int) -> tuple[str, str]:
    """Hands in an expense; gives its run id and the secret for its approver."""
    token = secrets.token_urlsafe()
    return engine.start(expense, Expense(what, amount, token)), token


def main(file: str | None = None) -> None:
    with TemporaryDirectory() as folder, BlockingFlowEngine(flow, f"sqlite:///{file or folder + '/runs.db'}") as engine:
        ticket, ticket_token = submit(engine, "train ticket", 48)
        balloon, balloon_token = submit(engine, "balloon ride", 9000)
        dinner, _ = submit(engine, "dinner", 60)
        for entry in engine.list_active_hooks():
            metadata = entry["hook"]["metadata"]
            print(f"waiting for {metadata['kind']} of {metadata['subject']}, {metadata['labels']['amount']}")

        engine.resume_hook_by_token(ticket_token, Decision(approved=True, by="Ada"))
        engine.resume_hook_by_token(balloon_token, Decision(approved=False, by="Grace"))
        engine.dispose_hook(dinner, "approval")
        for run_id in (ticket, balloon, dinner):
            snapshot = engine.snapshot(run_id)
            print(f"{snapshot.input['what']}: {snapshot.status}, {snapshot.output or snapshot.error}")

        # Links are clicked twice and guessed. Only active hooks have tokens, and one answer is all a hook takes.
        try:
            engine.resume_hook_by_token(ticket_token, Decision(approved=False, by="Mallory"))
        except HookTokenNotFound:
            print("that link is used up")
        try:
            engine.resume_hook(ticket, "approval", Decision(approved=False, by="Mallory"))
        except (HookConflict, RunTerminal) as error:
            print(f"a second answer is refused: {error.code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
