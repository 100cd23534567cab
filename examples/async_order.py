"""An order in the async form: charge, wait for a person, reserve side by side, and give the money back if it comes to nothing.

Written as plain Python; every await is stored, so the order goes on after a crash or a deployment. Three orders are played:
one is approved, one is refused, one is cancelled from outside while it waits.

    python examples/async_order.py [FILE]
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta

from perdure import AsyncContext, Flow, FlowEngine, HookMetadata, RetryPolicy, WorkflowCancelled

flow = Flow()


class Refused(Exception):
    """Nobody agreed to the order."""


@dataclass(frozen=True)
class Order:
    id: str
    user: str
    items: list[str]


@dataclass(frozen=True)
class Approval:
    approved: bool
    by: str


@flow.step(retry=RetryPolicy.fixed(4, timedelta(seconds=5)))
async def charge(order: Order) -> str:
    return f"receipt-{order.id}"


@flow.step
async def refund(order: Order) -> None:
    print(f"  whatever was charged for {order.id} is given back")  # nothing, if the charge never came through


@flow.step
async def load_user(user: str) -> str:
    return user.title()


@flow.step
async def reserve(item: str, amount: int = 1) -> str:
    return f"{amount} x {item}"


@flow.workflow("order", version="1", fails_on=(Refused,))
async def order(ctx: AsyncContext, order: Order) -> dict[str, object]:
    try:
        receipt = await ctx.step(charge, order)
        approval = ctx.hook(Approval, id="approval", metadata=HookMetadata.human_approval(f"order:{order.id}"))
        first = await ctx.race(approval, ctx.sleep(timedelta(hours=24), id="patience"))
        if first is not approval or not approval.result().approved:
            raise Refused("nobody approved")
        user, *reserved = await ctx.gather(
            ctx.step(load_user, order.user), *(ctx.step(reserve, item, amount=2) for item in order.items)
        )
        return {"receipt": receipt, "for": user, "reserved": reserved, "approved_by": approval.result().by}
    except (Refused, WorkflowCancelled):
        async with ctx.cleanup():  # cancellation waits until the money is back, and not for a charge that is under way
            await ctx.step(refund, order)
        raise


async def main(store: str | None) -> None:
    async with FlowEngine(flow, store) as engine:
        for name in ("approved", "refused", "cancelled"):
            run_id = await engine.start(order, Order(name, "ada", ["book", "pen"]), run_id=name)
            print(f"{name}: {(await engine.snapshot(run_id)).status}")
            if name == "cancelled":
                snapshot = await engine.request_cancellation(run_id, "the customer called")
            else:
                snapshot = await engine.resume_hook(run_id, "approval", Approval(name == "approved", "grace"))
            print(f"  {snapshot.status}: {snapshot.output or snapshot.error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))  # a SQLite file, or memory
