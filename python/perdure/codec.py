"""Payload codecs: what stands between a payload's JSON and the JSON that is stored, such as encryption (R42).

Encoded are a run's input and output, the inputs and outputs of steps, hook metadata and hook payloads. Ids, tokens, error
texts, progress and child links never are: hosts and tools read them without a codec.

A codec may give other bytes each time, as encryption with a random nonce does. So wherever the engine compares, the
decoded values are compared, and where they are equal the recorded bytes go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, cast

import msgspec
import orjson

from perdure.envelope import Envelope
from perdure.errors import NonDeterministic, PayloadCodecFailed
from perdure.kernel import Hook, Reads, Step

__all__ = ["SEALED", "Coding", "PayloadCodec", "PayloadKind", "PayloadPlace", "check_plain"]

PayloadKind = Literal["run_input", "run_output", "step_input", "step_output", "hook_metadata", "hook_payload"]
_Object = dict[str, msgspec.Raw]
_OBJECT: Final = msgspec.json.Decoder(_Object)
_OBJECTS: Final = msgspec.json.Decoder(list[_Object])


SEALED: Final = b'{"$enc":'
"""How `EncryptedPayloads` begins what it stores."""


def check_plain(run_id: str, input: bytes) -> None:
    """Raises `PayloadCodecFailed` for the input of a run whose payloads are encrypted, where no codec is configured: its code
    would take ciphertexts for values."""
    if input.startswith(SEALED):
        place = str(PayloadPlace(run_id, "run_input"))
        raise PayloadCodecFailed("decode", place, "it is encrypted and no codec was given; give codec=, or --codec")


@dataclass(frozen=True, slots=True)
class PayloadPlace:
    """Where a payload stands: of which run, what it is, and the id of its step or hook ("" for the run's own)."""

    run_id: str
    kind: PayloadKind
    subject: str = ""

    def __str__(self) -> str:
        owner, what = self.kind.split("_")
        return (
            f"{what} of {owner} {self.subject or self.run_id!r}"
            if owner == "run"
            else f"{what} of {owner} {self.subject!r}"
        )


class PayloadCodec(Protocol):
    """Both methods are called on any thread, often, and must not block for long. Whatever they raise is a
    `PayloadCodecFailed`; what they raise as that error themselves keeps its reason."""

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        """The JSON to store for the JSON `payload`."""
        ...

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        """The JSON that `encode` was given."""
        ...


@dataclass(frozen=True, slots=True)
class Coding:
    """An engine's codec, with what every use of it owes: typed errors, and the recorded bytes for an equal value."""

    codec: PayloadCodec
    equal: Callable[[bytes, bytes], bool]

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        """The JSON to store. Raises `PayloadCodecFailed`."""
        return self._checked("encode", self.codec.encode, payload, place)

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        """The payload's JSON. Raises `PayloadCodecFailed`."""
        return self._checked("decode", self.codec.decode, stored, place)

    def _checked(
        self, operation: str, work: Callable[[bytes, PayloadPlace], bytes], raw: bytes, place: PayloadPlace
    ) -> bytes:
        try:
            result: object = work(bytes(raw), place)
        except PayloadCodecFailed:
            raise
        except Exception as error:  # noqa: BLE001 - a codec is code of others, and its text may hold the payload
            raise PayloadCodecFailed(operation, str(place), f"it raised {type(error).__name__}") from None
        try:
            if isinstance(result, bytes):
                _OK.decode(result)
                return result
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        raise PayloadCodecFailed(operation, str(place), "what it gave is not JSON as bytes") from None

    def keep(self, payload: bytes, recorded: bytes | None, place: PayloadPlace) -> bytes:
        """The recorded bytes if they mean this payload, else the payload encoded anew."""
        if recorded is not None and self.equal(self.decode(recorded, place), payload):
            return recorded
        return self.encode(payload, place)

    def call(self, call: Mapping[str, object], run: Reads) -> bytes:
        """A host call's JSON as the kernel judges it, its payload encoded or, where it is equal, as recorded."""
        spot = _CALLS.get(str(call["op"]))
        if spot is None:
            return orjson.dumps(call)
        name, kind = spot
        subject = str(call.get("hook_id", ""))
        recorded = self._recorded(run, kind, subject)
        stored = self.keep(orjson.dumps(call[name]), recorded, PayloadPlace(run.run_id, kind, subject))
        return orjson.dumps({**call, name: orjson.Fragment(stored)})

    @staticmethod
    def _recorded(run: Reads, kind: PayloadKind, subject: str) -> bytes | None:
        if kind == "run_input":
            return run.input if run.last_sequence else None
        hook = run.hook(subject)
        return None if hook is None else hook.payload

    # -- the workflow's side -----------------------------------------------------------------------------------------

    def reads(self, reads: Reads) -> Reads:
        """The same reads with plain payloads."""
        return cast(Reads, _PlainReads(reads, self))

    def envelope(self, envelope: Envelope) -> Envelope:
        """The same envelope with plain payloads."""
        spot = _EVENTS.get(envelope.type)
        if spot is None:
            return envelope
        name, kind, id_name = spot
        event = _OBJECT.decode(envelope.raw)
        subject = _text(event[id_name]) if id_name else ""
        event[name] = msgspec.Raw(self.decode(bytes(event[name]), PayloadPlace(envelope.run_id, kind, subject)))
        return replace(envelope, raw=_object(event))

    def entry(self, entry: bytes, run_id: str) -> bytes:
        """One step or hook of a snapshot as its own JSON, with plain payloads."""
        found = _OBJECT.decode(entry)
        owner = "step" if "step_id" in found else "hook"
        subject, status = _text(found[f"{owner}_id"]), _text(found["status"])
        spots: list[tuple[str, PayloadKind, bool]] = (
            [("input", "step_input", True), ("output", "step_output", status == "completed")]
            if owner == "step"
            else [("metadata", "hook_metadata", True), ("payload", "hook_payload", status == "received")]
        )
        for name, kind, there in spots:
            if there:
                found[name] = msgspec.Raw(self.decode(bytes(found[name]), PayloadPlace(run_id, kind, subject)))
        return _object(found)

    def command(self, command: bytes, reads: Reads) -> bytes:
        """A command's JSON as the kernel judges and stores it; `reads` are the recorded ones. Raises
        `NonDeterministic` with plain values for work that came back with another payload, as no one could compare the
        encoded ones."""
        try:
            found = _OBJECT.decode(command)
            return _object(self._command(found, reads))
        except (msgspec.MsgspecError, KeyError):
            return command  # a host's own JSON that is no command: the kernel says what is wrong with it

    def _command(self, found: _Object, reads: Reads) -> _Object:
        kind = _text(found["type"])
        if kind == "complete":
            place = PayloadPlace(reads.run_id, "run_output")
            return found | {"output": msgspec.Raw(self.encode(bytes(found["output"]), place))}
        if kind in ("schedule_step", "step", "create_hook", "hook"):
            return self._member(found, reads, kind.endswith("step"))
        for name in ("steps", "members"):
            if name in found:
                members = [self._listed(member, reads, name) for member in _OBJECTS.decode(found[name])]
                return found | {name: msgspec.Raw(b"[" + b",".join(members) + b"]")}
        return found

    def _listed(self, member: _Object, reads: Reads, name: str) -> bytes:
        return _object(self._member(member, reads, True) if name == "steps" else self._command(member, reads))

    def _member(self, member: _Object, reads: Reads, is_step: bool) -> _Object:
        owner, name = ("step", "input") if is_step else ("hook", "metadata")
        subject = _text(member[f"{owner}_id"])
        known = reads.step(subject) if is_step else reads.hook(subject)
        recorded: bytes | None = None if known is None else getattr(known, name)
        payload = bytes(member.get(name, b"null"))
        place = PayloadPlace(reads.run_id, "step_input" if is_step else "hook_metadata", subject)
        stored = self.keep(payload, recorded, place)
        if known is not None and recorded is not None and stored is not recorded and self._is_drift(member, known):
            plain = self.decode(recorded, place).decode()
            sequence = known.created_sequence
            raise NonDeterministic(reads.run_id, owner, subject, name, sequence, plain, payload.decode())
        return member | {name: msgspec.Raw(stored)}

    @staticmethod
    def _is_drift(member: _Object, known: Any) -> bool:
        """Whether the payload is the first thing that differs; else the kernel names what comes before it."""
        if "token" in member:
            return _text(member["token"]) == cast(str, known.token)
        return "step_name" not in member or _text(member["step_name"]) == cast(str, known.step_name)


_OK: Final = msgspec.json.Decoder(msgspec.Raw)

_CALLS: Final[dict[str, tuple[str, PayloadKind]]] = {
    "start": ("input", "run_input"),
    "resume_hook": ("payload", "hook_payload"),
}
"""Host call → the field that is encoded, and what it is."""

_EVENTS: Final[dict[str, tuple[str, PayloadKind, str]]] = {
    "run_created": ("input", "run_input", ""),
    "run_completed": ("output", "run_output", ""),
    "step_created": ("input", "step_input", "step_id"),
    "step_completed": ("output", "step_output", "step_id"),
    "hook_created": ("metadata", "hook_metadata", "hook_id"),
    "hook_received": ("payload", "hook_payload", "hook_id"),
}
"""Event type → the field that is encoded, what it is, and the field that names its step or hook."""


def _text(raw: msgspec.Raw) -> str:
    return msgspec.json.decode(raw, type=str)


def _object(found: _Object) -> bytes:
    return orjson.dumps({name: orjson.Fragment(bytes(value)) for name, value in found.items()})


class _Plain:
    """An object of the kernel's with some of its attributes decoded; all others are its own."""

    __slots__ = ("_coding", "_inner")

    def __init__(self, inner: Any, coding: Coding) -> None:
        self._inner, self._coding = inner, coding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _PlainReads(_Plain):
    __slots__ = ()

    def _place(self, kind: PayloadKind, subject: str = "") -> PayloadPlace:
        return PayloadPlace(self._inner.run_id, kind, subject)

    @property
    def input(self) -> bytes:
        return self._coding.decode(self._inner.input, self._place("run_input"))

    @property
    def output(self) -> bytes | None:
        raw: bytes | None = self._inner.output
        return None if raw is None else self._coding.decode(raw, self._place("run_output"))

    def replayed_step(self, *definition: object) -> None:
        """The short way compares bytes, and these are encoded."""

    def step(self, step_id: str) -> Step | None:
        step: Step | None = self._inner.step(step_id)
        return None if step is None else cast(Step, _PlainStep(step, self._coding, self._inner.run_id))

    def hook(self, hook_id: str) -> Hook | None:
        hook: Hook | None = self._inner.hook(hook_id)
        return None if hook is None else self._plain_hook(hook)

    def active_hooks(self) -> list[Hook]:
        return [self._plain_hook(hook) for hook in self._inner.active_hooks()]

    def _plain_hook(self, hook: Hook) -> Hook:
        return cast(Hook, _PlainHook(hook, self._coding, self._inner.run_id))


class _PlainMember(_Plain):
    __slots__ = ("_run_id",)

    def __init__(self, inner: Any, coding: Coding, run_id: str) -> None:
        super().__init__(inner, coding)
        self._run_id = run_id

    def _decoded(self, raw: bytes | None, kind: PayloadKind, subject: str) -> bytes | None:
        return None if raw is None else self._coding.decode(raw, PayloadPlace(self._run_id, kind, subject))


class _PlainStep(_PlainMember):
    __slots__ = ()

    @property
    def input(self) -> bytes | None:
        return self._decoded(self._inner.input, "step_input", self._inner.step_id)

    @property
    def output(self) -> bytes | None:
        return self._decoded(self._inner.output, "step_output", self._inner.step_id)


class _PlainHook(_PlainMember):
    __slots__ = ()

    @property
    def metadata(self) -> bytes | None:
        return self._decoded(self._inner.metadata, "hook_metadata", self._inner.hook_id)

    @property
    def payload(self) -> bytes | None:
        return self._decoded(self._inner.payload, "hook_payload", self._inner.hook_id)
