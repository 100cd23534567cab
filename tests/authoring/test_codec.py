"""Payload codecs: what is stored is what the codec made, and nothing else notices (R42)."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import payload
from perdure.blocking import BlockingFlowEngine
from perdure.codec import Coding, PayloadCodec, PayloadPlace
from perdure.codec_encrypted import EncryptedPayloads
from perdure.commands import RawCommand, RuntimeCommand
from perdure.context import WorkflowContext
from perdure.engine import FlowEngine
from perdure.errors import (
    HookConflict,
    NonDeterministic,
    PayloadCodecFailed,
    RunConflict,
    Serialization,
    WorkflowRaised,
)
from perdure.flow import Flow
from perdure.kernel import KernelName, load
from perdure.model import HookMetadata, RetryPolicy
from perdure.stores import MemoryEventStore
from perdure.stores.base import FlowEventStore

CANARY = "canary-plaintext"
TOKEN = "canary-token"
OLD, NEW = EncryptedPayloads.generate_key(), EncryptedPayloads.generate_key()


class Nonced:
    """Base64 behind a random prefix: other bytes each time, and a count of how often each way was gone."""

    def __init__(self) -> None:
        self.places: list[PayloadPlace] = []

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        self.places.append(place)
        return json.dumps([os.urandom(4).hex(), b64encode(payload).decode()]).encode()

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        import base64

        return base64.b64decode(json.loads(stored)[1])


def approval(*, amount: int = 7) -> Flow:
    """A step, a hook and a timer of one order, every payload with the canary in it."""
    flow = Flow()

    @flow.step(retry=RetryPolicy.fixed(2, timedelta(0)))
    def charge(order: dict[str, Any]) -> dict[str, Any]:
        return order | {"charged": True, "by": CANARY}

    @flow.step
    async def ship(receipt: dict[str, Any], express: bool = False) -> str:
        return f"{CANARY}-{receipt['charged']}-{express}"

    @flow.workflow("approval")
    def approve(ctx: WorkflowContext) -> RuntimeCommand:
        order = ctx.input | {"amount": amount}
        metadata = HookMetadata.human_approval(CANARY).with_data({"order": order})
        first = [
            ctx.schedule_step("charge", charge, order),
            ctx.create_hook("approval", TOKEN, metadata),
        ]
        if not ctx.step_completed("charge") or not ctx.hook_received("approval"):
            return ctx.schedule_all(first)
        if not ctx.step_completed("ship"):
            return ctx.schedule_steps([ctx.schedule_step("ship", ship, ctx.step_output("charge"))])
        return ctx.complete([ctx.step_output("ship"), ctx.hook_payload("approval")])

    return flow


def engine_on(
    store: FlowEventStore, codec: PayloadCodec | None, flow: Flow | None = None, **options: Any
) -> FlowEngine:
    return FlowEngine(flow or approval(), store, codec=codec, **options)


def run(work: Callable[[MemoryEventStore], Any]) -> Any:
    return asyncio.run(work(MemoryEventStore()))


# -- what is stored -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["rust", "pure"])
@pytest.mark.parametrize("commit", ["staged", "each"])
def test_a_run_goes_its_way_and_no_plaintext_is_stored(kernel: KernelName, commit: Any, tmp_path: Path) -> None:
    async def story() -> None:
        codec = EncryptedPayloads({"k": NEW})
        path = tmp_path / "runs.db"
        async with FlowEngine(approval(), f"sqlite:///{path}", codec=codec, kernel=kernel, commit=commit) as engine:
            await engine.start("approval", {"note": CANARY}, run_id="r")
            snapshot = await engine.snapshot("r")
            assert snapshot.input == {"note": CANARY}
            assert snapshot.hooks["approval"].metadata["subject"] == CANARY
            assert snapshot.hooks["approval"].payload is None
            assert snapshot.step_output("charge")["by"] == CANARY
            assert snapshot.steps["charge"].input == {"note": CANARY, "amount": 7}
            assert (await engine.list_active_hooks())[0]["hook"]["metadata"]["subject"] == CANARY
            open_now = await engine.list_open_suspensions("2026-01-01T00:00:00Z")
            assert open_now[0]["hook"]["metadata"]["data"]["order"]["note"] == CANARY
            await engine.resume_hook_by_token(TOKEN, {"ok": CANARY})
            done = await engine.snapshot("r")
            assert done.status == "completed"
            assert done.output == [f"{CANARY}-True-False", {"ok": CANARY}]
            assert done.output_as(list[Any]) == done.output
            assert done.terminal_outcome == {"type": "completed", "output": done.output}
            assert done.hook_payload_as("approval", dict[str, str]) == {"ok": CANARY}
            assert CANARY.encode() not in done.json
            assert TOKEN.encode() in await engine.store.history("r")
        stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"$enc" in stored
        assert CANARY.encode() not in stored

    asyncio.run(story())


def test_what_a_codec_is_asked_for() -> None:
    codec = Nonced()

    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, codec) as engine:
            await engine.start("approval", {}, run_id="r")
            await engine.resume_hook("r", "approval", 1)

    run(story)
    assert {(place.kind, place.subject) for place in codec.places} == {
        ("run_input", ""),
        ("step_input", "charge"),
        ("hook_metadata", "approval"),
        ("step_output", "charge"),
        ("hook_payload", "approval"),
        ("step_input", "ship"),
        ("step_output", "ship"),
        ("run_output", ""),
    }
    assert {place.run_id for place in codec.places} == {"r"}
    assert len(codec.places) == 8  # each payload once, however often the workflow was asked


def test_the_blocking_engine_has_it_too() -> None:
    with BlockingFlowEngine(approval(), codec=EncryptedPayloads({"k": NEW})) as engine:
        engine.start("approval", {"note": 1}, run_id="r")
        assert engine.resume_hook("r", "approval", 2).output == [f"{CANARY}-True-False", 2]


def test_history_is_as_stored_and_the_workflow_reads_it_plain() -> None:
    flow, seen = Flow(), []

    @flow.workflow("reader")
    def reader(ctx: WorkflowContext) -> RuntimeCommand:
        seen.append([envelope.event.get("input") for envelope in ctx.history])
        return ctx.complete(ctx.input)

    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"k": NEW}), flow) as engine:
            await engine.start("reader", {"note": CANARY}, run_id="r")
            assert list((await engine.history("r"))[0].event["input"]) == ["$enc"]
            assert seen == [[{"note": CANARY}, None]]

    run(story)


# -- no drift, no conflict ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Nonced(), EncryptedPayloads({"k": NEW})], ids=["nonced", "encrypted"])
def test_every_prefix_replays_without_drift(codec: PayloadCodec) -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, codec) as engine:
            await engine.start("approval", {"note": 1}, run_id="r")
            await engine.resume_hook("r", "approval", {"ok": True})
            whole = await store.history("r")
            output = (await engine.snapshot("r")).output
        events = [payload.decode(line)["event"] for line in whole.splitlines()]
        for length in range(1, len(events) + 1):
            await replay_prefix(events[:length], output)

    async def replay_prefix(events: list[Any], output: Any) -> None:
        store = MemoryEventStore()
        run_ = load("rust").new("r", 1 << 20)
        batch = run_.stage([json.dumps(event).encode() for event in events], 1).append(os.urandom(16 * len(events)))
        from perdure.stores.base import Append

        await store.commit([Append(batch)])
        async with engine_on(store, codec) as engine:
            if not (snapshot := await engine.drive("r")).terminal:
                snapshot = await engine.resume_hook("r", "approval", {"ok": True})
            assert snapshot.output == output

    run(story)


def test_an_equal_start_and_an_equal_payload_are_redeliveries_and_others_conflict() -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"k": NEW})) as engine:
            await engine.start("approval", {"b": 1, "a": 2}, run_id="r")
            await engine.start("approval", {"a": 2, "b": 1}, run_id="r")
            with pytest.raises(RunConflict):
                await engine.start("approval", {"a": 3}, run_id="r")
            await engine.resume_hook("r", "approval", {"ok": [1, 2]})
            known = len(await engine.history("r"))
            await engine.resume_hook("r", "approval", {"ok": [1, 2]})
            with pytest.raises(HookConflict):
                await engine.resume_hook("r", "approval", {"ok": [2, 1]})
            assert len(await engine.history("r")) == known

    run(story)


def test_two_engines_that_start_the_same_run_at_once_agree() -> None:
    async def story(store: MemoryEventStore) -> None:
        codec = EncryptedPayloads({"k": NEW})
        async with engine_on(store, codec) as one, engine_on(store, codec) as two:
            await asyncio.gather(*(e.start("approval", {"note": 1}, run_id="r") for e in (one, two)))
            assert (await one.snapshot("r")).status == "suspended"
            answers = await asyncio.gather(
                one.start("approval", {"note": 1}, run_id="s"),
                two.start("approval", {"note": 2}, run_id="s"),
                return_exceptions=True,
            )
            assert [type(answer) for answer in answers].count(RunConflict) == 1

    run(story)


def test_real_drift_is_told_in_plain_values() -> None:
    async def story(store: MemoryEventStore) -> None:
        codec = EncryptedPayloads({"k": NEW})
        async with engine_on(store, codec) as engine:
            await engine.start("approval", {"note": 1}, run_id="r")
        async with engine_on(store, codec, approval(amount=8)) as engine:
            with pytest.raises(NonDeterministic) as caught:
                await engine.drive("r")
        assert (caught.value.kind, caught.value.id, caught.value.part) == ("step", "charge", "input")
        assert (caught.value.path, caught.value.now) == ("$.amount", '{"note":1,"amount":8}')
        assert caught.value.sequence == 3

    run(story)


def test_a_hosts_own_commands_are_encoded_too() -> None:
    class Host:
        def run_workflow(self, invocation: Any) -> RuntimeCommand:
            assert json.loads(invocation.reads.input) == {"note": CANARY}
            step = invocation.reads.step("s")
            if step is None or step.output is None:
                return RawCommand(
                    b'{"type":"schedule_step","step_id":"s","step_name":"x","input":"%s"}' % CANARY.encode()
                )
            return RawCommand(b'{"type":"complete","output":%s}' % step.output)

        def run_step(self, invocation: Any) -> object:
            return json.loads(invocation.input)

        def spec_of(self, name: str) -> Any:
            from perdure.model import WorkflowSpec

            return WorkflowSpec.python(name)

    async def story(store: MemoryEventStore) -> None:
        async with FlowEngine(Host(), store, codec=EncryptedPayloads({"k": NEW})) as engine:
            assert (await engine.run("w", {"note": CANARY}, run_id="r")).output == CANARY
            assert CANARY.encode() not in await store.history("r")

    run(story)


@pytest.mark.parametrize(
    "command",
    [
        b'{"type":"schedule_step"}',
        b'{"type":"complete"}',
        b'{"type":7}',
        b"[]",
        b"nonsense",
        b'{"type":"schedule_all","members":[7]}',
    ],
)
def test_what_is_no_command_is_refused_as_ever(command: bytes) -> None:
    flow = Flow()
    flow.workflow("w")(lambda ctx: RawCommand(command))

    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"k": NEW}), flow) as engine:
            with pytest.raises(Serialization):
                await engine.start("w", 1)

    run(story)


# -- a codec that fails ---------------------------------------------------------------------------------------------


class Failing(EncryptedPayloads):
    """Fails one way at one kind of payload, with the payload in its text."""

    def __init__(self, operation: str, kind: str) -> None:
        super().__init__({"k": NEW})
        self.operation, self.kind = operation, kind

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        if (self.operation, self.kind) == ("encode", place.kind):
            raise RuntimeError(f"{CANARY} {payload!r}")
        return super().encode(payload, place)

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        if (self.operation, self.kind) == ("decode", place.kind):
            raise RuntimeError(f"{CANARY} {stored!r}")
        return super().decode(stored, place)


@pytest.mark.parametrize("place", [("decode", "step_input"), ("encode", "step_output")])
def test_a_step_whose_payload_fails_fails_for_good(place: tuple[str, str]) -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, Failing(*place)) as engine:
            await engine.start("approval", {"note": CANARY}, run_id="r")
            step = (await engine.snapshot("r")).steps["charge"]
            assert (step.status, step.attempt) == ("failed", 1)
            assert step.error == (
                f"serialization error: the codec could not {place[0]} the {place[1][5:]} of step 'charge': "
                "it raised RuntimeError"
            )
            assert CANARY.encode() not in await store.history("r")

    run(story)


@pytest.mark.parametrize("kind", ["run_input", "step_output", "hook_payload"])
def test_a_workflow_that_cannot_read_is_left_open_and_goes_on_later(kind: str) -> None:
    async def story(store: MemoryEventStore) -> None:
        good = EncryptedPayloads({"k": NEW})
        async with engine_on(store, good) as engine:
            await engine.start("approval", {"note": 1}, run_id="r")
            await engine.resume_hook("r", "approval", {"ok": CANARY}, drive=False)
        async with engine_on(store, Failing("decode", kind)) as engine:
            with pytest.raises(PayloadCodecFailed) as caught:
                await engine.drive("r")
            assert (caught.value.operation, caught.value.run_id) == ("decode", "r")
            assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r}"
        async with engine_on(store, good) as engine:
            assert (await engine.drive("r")).status == "completed"

    run(story)


@pytest.mark.parametrize(
    ("kind", "place"), [("run_input", "input of run 'r'"), ("hook_payload", "payload of hook 'approval'")]
)
def test_a_call_whose_payload_fails_appends_nothing(kind: str, place: str) -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, Failing("encode", kind)) as engine:
            calls: list[Any] = [engine.start("approval", {"note": CANARY}, run_id="r")]
            if kind == "hook_payload":
                await calls.pop()
                calls = [engine.resume_hook("r", "approval", CANARY)]
            known = await store.history("r") if await store.run_ids() else b""
            with pytest.raises(PayloadCodecFailed, match=f"could not encode the {place}: it raised RuntimeError"):
                await calls.pop()
            assert known == (await store.history("r") if await store.run_ids() else b"")

    run(story)


@pytest.mark.parametrize("answer", [b"not json", b"", b"\xff", "text", None])
def test_what_is_no_json_is_never_stored(answer: Any) -> None:
    class Odd:
        def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
            return answer  # type: ignore[no-any-return]  # a wrong codec is the case

        def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
            return stored

    coding = Coding(Odd(), load("pure").json_equal)
    with pytest.raises(PayloadCodecFailed, match="could not encode the input of run 'r': what it gave is not JSON"):
        coding.encode(b"1", PayloadPlace("r", "run_input"))


# -- encryption -----------------------------------------------------------------------------------------------------

PLACE = PayloadPlace("r", "step_output", "charge")
places = st.builds(
    PayloadPlace,
    st.text(max_size=5),
    st.sampled_from(["run_input", "step_input", "step_output", "hook_payload"]),
    st.text(max_size=5),
)


def refused(codec: PayloadCodec, stored: bytes, place: PayloadPlace = PLACE) -> str:
    with pytest.raises(PayloadCodecFailed) as caught:
        codec.decode(stored, place)
    assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r}"
    return caught.value.reason


@given(st.binary(max_size=50), places)
def test_what_is_sealed_opens_only_at_its_place(payload_bytes: bytes, place: PayloadPlace) -> None:
    codec = EncryptedPayloads({"k": NEW})
    raw = payload.encode(payload_bytes)
    stored = codec.encode(raw, place)
    assert codec.decode(stored, place) == raw
    assert codec.encode(raw, place) != stored
    assert list(payload.decode(stored)) == ["$enc"]
    for moved in (
        PayloadPlace(place.run_id + "x", place.kind, place.subject),
        PayloadPlace(place.run_id, "run_output", place.subject),
        PayloadPlace(place.run_id, place.kind, "x" + place.subject),
        PayloadPlace(place.run_id + place.subject, place.kind, "y"),
    ):
        assert "does not authenticate" in refused(codec, stored, moved)


def test_keys_rotate() -> None:
    before, during = EncryptedPayloads({"old": OLD}), EncryptedPayloads({"old": OLD, "new": NEW})
    after = EncryptedPayloads({"new": NEW})
    stored = before.encode(b'"x"', PLACE)
    assert during.decode(stored, PLACE) == b'"x"'
    assert payload.decode(during.encode(b"1", PLACE))["$enc"]["kid"] == "new"
    assert refused(after, stored) == "no key of the ring is called 'old'"
    assert "does not authenticate" in refused(EncryptedPayloads({"old": NEW}), stored)


def test_a_run_outlives_a_rotation() -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"old": OLD})) as engine:
            await engine.start("approval", {"note": 1}, run_id="r")
        async with engine_on(store, EncryptedPayloads({"old": OLD, "new": NEW})) as engine:
            await engine.start("approval", {"note": 1}, run_id="r")
            done = await engine.resume_hook("r", "approval", 1)
            assert done.status == "completed"
            assert {e.event["output"]["$enc"]["kid"] for e in await engine.history("r") if "output" in e.event} == {
                "old",
                "new",
            }
        async with engine_on(store, EncryptedPayloads({"new": NEW})) as engine:
            snapshot = await engine.snapshot("r")
            assert snapshot.output == [f"{CANARY}-True-False", 1]
            with pytest.raises(PayloadCodecFailed, match="the input of run 'r': no key of the ring is called 'old'"):
                _ = snapshot.input

    run(story)


@given(st.data())
def test_any_flipped_bit_is_found(data: st.DataObject) -> None:
    codec = EncryptedPayloads({"k": NEW})
    stored = codec.encode(f'"{CANARY}"'.encode(), PLACE)
    at = data.draw(st.integers(0, len(stored) - 1))
    broken = bytearray(stored)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = codec.decode(bytes(broken), PLACE)
    except PayloadCodecFailed:
        return
    assert found == f'"{CANARY}"'.encode()  # only the spare bits of base64's last letter change nothing


def test_plain_payloads_are_read_only_where_it_is_asked_for() -> None:
    assert refused(EncryptedPayloads({"k": NEW}), b'{"a":1}') == "it is not stored as encrypted"
    assert EncryptedPayloads({"k": NEW}, read_plain=True).decode(b'{"a":1}', PLACE) == b'{"a":1}'
    lenient = EncryptedPayloads({"k": NEW}, read_plain=True)
    moved = lenient.encode(b"1", PayloadPlace("other", "run_input"))
    assert "does not authenticate" in refused(lenient, moved)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "needs a key"),
        ({" ": NEW}, "the id of a key is a text that is not blank"),
        ({"k": b"short"}, "key 'k' must be 32 bytes"),
        ({"k": NEW.hex()}, "key 'k' must be 32 bytes"),
    ],
)
def test_a_ring_that_is_none_is_refused(keys: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EncryptedPayloads(keys)


def test_keys_are_never_shown_or_pickled() -> None:
    codec = EncryptedPayloads({"k": NEW})
    assert repr(codec) == "<EncryptedPayloads: k>"
    with pytest.raises(TypeError, match="holds keys"):
        pickle.dumps(codec)


def test_a_pickled_snapshot_leaves_the_codec_behind() -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"k": NEW})) as engine:
            snapshot = await engine.run("approval", {"note": 1}, run_id="r")
            again = pickle.loads(pickle.dumps(snapshot))
            assert again == snapshot
            assert list(again.input) == ["$enc"]

    run(story)


def test_an_outcome_of_another_process_under_a_lost_key_leaves_the_workflow_open() -> None:
    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"a": OLD})) as engine:
            await engine.start("approval", {}, run_id="r")
        async with engine_on(store, EncryptedPayloads({"b": NEW})) as engine:
            with pytest.raises(PayloadCodecFailed):
                await engine.drive("r")
            assert (await engine.snapshot("r")).status == "suspended"

    run(story)


def test_what_the_workflow_raises_itself_stays_its_own() -> None:
    flow = Flow()

    @flow.workflow("w")
    def w(ctx: WorkflowContext) -> RuntimeCommand:
        raise KeyError("x")

    async def story(store: MemoryEventStore) -> None:
        async with engine_on(store, EncryptedPayloads({"k": NEW}), flow) as engine:
            with pytest.raises(WorkflowRaised):
                await engine.start("w", {})

    run(story)
