"""Tasks as queues store them: their payloads encoded by the codec of the engine they are for, if it has one (R42).

A codec is bound to a place; a task by token does not know its run and hook yet, so its place names neither.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final

import msgspec

from perdure.codec import Coding, PayloadCodec, PayloadPlace
from perdure.errors import Serialization
from perdure.task_kinds import FlowTask, ResumeHook, ResumeHookByToken
from perdure.values import read_shape
from perdure.wire import object_json

__all__ = ["read_task", "write_task"]

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Mark(msgspec.Struct):
    """`coded`: the payload is not the plain one. A queue without the codec must not take it for that."""

    coded: bool = False
    run_id: str = ""
    hook_id: str = ""


def write_task(task: FlowTask, codec: PayloadCodec | None) -> bytes:
    """The JSON to store. Raises `Serialization`, `PayloadCodecFailed`."""
    raw = task.to_json()
    if codec is None or not isinstance(task, ResumeHook | ResumeHookByToken):
        return raw
    place = PayloadPlace(getattr(task, "run_id", ""), "hook_payload", getattr(task, "hook_id", ""))
    return _with_payload(raw, _coding(codec).encode, place, coded=True)


def read_task(raw: bytes, codec: PayloadCodec | None) -> FlowTask:
    """The task of its stored JSON. Raises `Serialization`, `PayloadCodecFailed`."""
    mark = read_shape(raw, _Mark, "a task")
    if not mark.coded:
        return FlowTask.from_json(raw)
    if codec is None:
        raise Serialization("payload", detail="the task's payload is encoded; give this queue the codec of its engine")
    place = PayloadPlace(mark.run_id, "hook_payload", mark.hook_id)
    return FlowTask.from_json(_with_payload(raw, _coding(codec).decode, place, coded=False))


def _coding(codec: PayloadCodec) -> Coding:
    return Coding(codec, operator.eq)  # nothing is compared here


def _with_payload(
    raw: bytes, change: Callable[[bytes, PayloadPlace], bytes], place: PayloadPlace, *, coded: bool
) -> bytes:
    found = _OBJECT.decode(raw)
    parts = {name: bytes(value) for name, value in found.items() if name != "coded"}
    parts["payload"] = change(parts.get("payload", b"null"), place)
    return object_json([*parts.items(), *([("coded", b"true")] if coded else [])])
