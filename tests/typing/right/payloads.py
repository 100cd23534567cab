"""The command form, snapshots, payload types and codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from perdure import (
    BlockingFlowEngine,
    EncryptedPayloads,
    Flow,
    FlowEngine,
    PayloadPlace,
    RuntimeCommand,
    WorkflowContext,
)

flow = Flow(guard="raise")


@dataclass
class Order:
    id: int


@flow.step
def charge(order: Order) -> str:
    return str(order.id)


@flow.workflow("command")
def command(ctx: WorkflowContext) -> RuntimeCommand:
    assert_type(ctx.input_as(Order), Order)
    assert_type(ctx.step_output("charge", as_=str), str | None)
    assert_type(ctx.hook_payload_as("approval", Order), Order | None)
    assert_type(ctx.step_output("charge"), Any)
    if not ctx.step_completed("charge"):
        return ctx.schedule_all([ctx.schedule_step("charge", charge, ctx.input), ctx.create_hook("h", "t")])
    return ctx.complete(ctx.step_output("charge"))


class Plain:
    """A codec of a host's own."""

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        return payload

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        return stored


async def asynchronous() -> None:
    async with FlowEngine(flow, codec=EncryptedPayloads({"k": EncryptedPayloads.generate_key()})) as engine:
        assert_type(await engine.start(command, Order(1)), str)
        snapshot = await engine.run("command", Order(1))
        assert_type(snapshot.output_as(str), str | None)
        assert_type(snapshot.step_output_as("charge", str), str | None)


def blocking() -> None:
    with BlockingFlowEngine(flow, codec=Plain()) as engine:
        assert_type(engine.start(command, Order(1)), str)
        assert_type(engine.run("command", Order(1)).input_as(Order), Order)
