"""Codecs, typed payloads and the guard in async workflows, through the engine (R37, R41, R42)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pydantic
import pytest

from perdure.blocking import BlockingFlowEngine
from perdure.codec_encrypted import EncryptedPayloads
from perdure.coroutine.context import AsyncContext
from perdure.engine import FlowEngine
from perdure.errors import NonDeterministic, PayloadCodecFailed, RunNotFound, Serialization
from perdure.flow import Flow
from perdure.guard_calls import GuardViolation
from perdure.kernel import KernelName, load
from perdure.model import HookMetadata
from perdure.step import StepContext
from perdure.stores import MemoryEventStore
from perdure.stores.base import Append

CANARY = "canary-plaintext"
TOKEN = "canary-token"


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    price: Decimal
    colour: Colour = Colour.RED


@dataclass
class Order:
    id: int
    placed: datetime
    items: list[Item] = field(default_factory=list)


@dataclass
class Receipt:
    order: Order
    key: bytes
    waited: timedelta


class Approval(pydantic.BaseModel):
    by: str
    until: datetime | None = None


ORDER = Order(7, datetime(2026, 1, 2, tzinfo=UTC), [Item(Decimal("1.10"))])


def shop(seen: list[object], *, note: str = CANARY) -> Flow:
    """An order charged, approved and shipped; `seen` gets every value the workflow is given."""
    flow = Flow()

    @flow.step
    def charge(order: Order, note: str = "", *, step: StepContext) -> Receipt:
        assert isinstance(order.items[0].price, Decimal)
        return Receipt(order, note.encode(), timedelta(seconds=3))

    @flow.step
    async def ship(receipt: Receipt, approval: Approval) -> tuple[Colour, str]:
        assert isinstance(receipt.waited, timedelta)
        return receipt.order.items[0].colour, approval.by

    @flow.workflow("shop")
    async def shop(ctx: AsyncContext, order: Order, express: bool = False) -> dict[str, Any]:
        approval = ctx.hook(Approval, id="approval", token=TOKEN, metadata=HookMetadata.human_approval(note))
        receipt = await ctx.step(charge, order, note)
        decided = await approval
        colour, by = await ctx.step(ship.options(id="ship"), receipt, decided)
        seen.extend([order, express, receipt, decided, colour])
        return {"by": by, "receipt": receipt}

    return flow


async def carried_out(engine: FlowEngine) -> None:
    await engine.start("shop", ORDER, run_id="r")
    await engine.resume_hook("r", "approval", Approval(by="anna", until=ORDER.placed))


@pytest.mark.parametrize(
    "codec", [None, EncryptedPayloads({"k": EncryptedPayloads.generate_key()})], ids=["plain", "encrypted"]
)
@pytest.mark.parametrize("kernel", ["rust", "pure"])
def test_values_come_as_their_annotations_say(kernel: KernelName, codec: EncryptedPayloads | None) -> None:
    async def story() -> None:
        seen: list[object] = []
        async with FlowEngine(shop(seen), codec=codec, kernel=kernel) as engine:
            await carried_out(engine)
            snapshot = await engine.snapshot("r")
            assert snapshot.status == "completed"
            receipt = Receipt(ORDER, CANARY.encode(), timedelta(seconds=3))
            assert seen == [ORDER, False, receipt, Approval(by="anna", until=ORDER.placed), Colour.RED]
            assert snapshot.step_output_as("charge", Receipt) == receipt
            assert snapshot.steps["ship"].input.keys() == {"$args"}
            history = await engine.store.history("r")
            assert (CANARY.encode() in history, b"$enc" in history) == (codec is None, codec is not None)

    asyncio.run(story())


@pytest.mark.parametrize("kernel", ["rust", "pure"])
def test_every_prefix_of_an_encrypted_run_replays_without_drift(kernel: KernelName) -> None:
    codec = EncryptedPayloads({"k": EncryptedPayloads.generate_key()})

    async def story() -> None:
        store = MemoryEventStore()
        async with FlowEngine(shop([]), store, codec=codec, kernel=kernel, strict_replay=True) as engine:
            await carried_out(engine)
            output = (await engine.snapshot("r")).output
        events = [json.loads(line)["event"] for line in (await store.history("r")).splitlines()]
        for length in range(1, len(events) + 1):
            await prefix(events[:length], output)

    async def prefix(events: list[Any], output: Any) -> None:
        store = MemoryEventStore()
        view = load(kernel).new("r", 1 << 20).stage([json.dumps(event).encode() for event in events], 1)
        await store.commit([Append(view.append(os.urandom(16 * len(events))))])
        async with FlowEngine(shop([]), store, codec=codec, kernel=kernel) as engine:
            snapshot = await engine.drive("r")
            if not snapshot.terminal:
                snapshot = await engine.resume_hook("r", "approval", Approval(by="anna", until=ORDER.placed))
            assert snapshot.output == output

    asyncio.run(story())


def test_drift_under_a_codec_is_told_in_plain_values() -> None:
    codec = EncryptedPayloads({"k": EncryptedPayloads.generate_key()})

    async def story() -> None:
        store = MemoryEventStore()
        async with FlowEngine(shop([]), store, codec=codec) as engine:
            await engine.start("shop", ORDER, run_id="r")
        async with FlowEngine(shop([], note="other"), store, codec=codec) as engine:
            with pytest.raises(NonDeterministic) as caught:
                await engine.drive("r")
        assert "$enc" not in f"{caught.value.recorded} {caught.value.now}"

    asyncio.run(story())


def test_a_lost_key_leaves_the_run_open_and_the_key_brings_it_on() -> None:
    key = EncryptedPayloads.generate_key()

    async def story() -> None:
        store = MemoryEventStore()
        async with FlowEngine(shop([]), store, codec=EncryptedPayloads({"a": key})) as engine:
            await engine.start("shop", ORDER, run_id="r")
        async with FlowEngine(shop([]), store, codec=EncryptedPayloads({"b": key})) as engine:
            with pytest.raises(PayloadCodecFailed, match="no key of the ring is called 'a'"):
                await engine.drive("r")
        async with FlowEngine(shop([]), store, codec=EncryptedPayloads({"a": key, "b": key})) as engine:
            done = await engine.resume_hook("r", "approval", Approval(by="anna"))
            assert done.status == "completed"

    asyncio.run(story())


def test_an_input_that_does_not_fit_names_parameter_and_path() -> None:
    with BlockingFlowEngine(shop([])) as engine:
        with pytest.raises(Serialization) as caught:
            engine.start("shop", {"id": 1, "placed": "2026-01-01T00:00:00", "items": []}, run_id="r")
        assert caught.value.detail.startswith(
            "parameter 'order' of workflow 'shop': $.placed: a datetime without a time zone"
        )
        with pytest.raises(RunNotFound):
            engine.snapshot("r")


def test_a_payload_that_does_not_fit_leaves_the_run_open() -> None:
    with BlockingFlowEngine(shop([])) as engine:
        engine.start("shop", ORDER, run_id="r")
        with pytest.raises(Serialization, match=r"\$\.by: does not fit Approval"):
            engine.resume_hook("r", "approval", {"by": 7})
        assert not engine.snapshot("r").terminal


def test_an_ambiguous_parameter_of_an_async_workflow_is_refused() -> None:
    flow = Flow()

    async def w(ctx: AsyncContext, order: bytes | str) -> None: ...

    with pytest.raises(TypeError, match="parameter 'order' of workflow 'w' has a type .* ambiguous"):
        flow.workflow("w")(w)


# -- the guard ------------------------------------------------------------------------------------------------------


def test_a_clock_read_in_an_async_workflow_is_refused_and_the_run_goes_on_with_the_fixed_code() -> None:
    broken, fixed = Flow(guard="raise"), Flow(guard="raise")

    @broken.step(name="load")
    def load(name: str) -> float:
        return time.time()  # a step may

    fixed.step(name="load")(load.function)

    async def helper(ctx: AsyncContext) -> float:
        clock: Any = vars(time)["time"]  # where no lint sees it
        return float(clock())

    @broken.workflow("w")
    async def w(ctx: AsyncContext, name: str) -> float:
        await ctx.step(load, name)
        try:
            return await helper(ctx)
        except Exception:  # noqa: BLE001 - as a workflow may
            return 0.0

    @fixed.workflow("w")
    async def w_fixed(ctx: AsyncContext, name: str) -> float:
        return await ctx.step(load, name)

    async def story() -> None:
        store = MemoryEventStore()
        async with FlowEngine(broken, store) as engine:
            for _ in range(2):
                with pytest.raises(GuardViolation, match=r"time\.time\(\) was called in a workflow") as caught:
                    await engine.start("w", "x", run_id="r")
                assert caught.value.run_id == "r"
            assert not (await engine.snapshot("r")).terminal
            assert time.time() > 0
        async with FlowEngine(fixed, store) as engine:
            assert (await engine.drive("r")).status == "completed"

    asyncio.run(story())
