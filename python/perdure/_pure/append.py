"""Append: staged events as envelope lines, with the index changes they imply (R13, R47, R50)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure._pure.json import quote
from perdure._pure.state import Hook, State, Step, Wait, refuse
from perdure.instant import due_key, format_instant

if TYPE_CHECKING:
    # Types only: lists are invariant, so their elements carry the names that the seam gives them.
    from perdure import kernel as seam

__all__ = ["Batch", "Staged", "event_id", "make_batch"]

_ENTROPY_BYTES: Final = 16


class Staged(NamedTuple):
    """One staged event, as it will stand in the history."""

    sequence: int
    timestamp: int
    text: str


@dataclass(frozen=True, slots=True)
class WakeupUpsert:
    kind: str
    subject_id: str
    due: int
    due_key: str


@dataclass(frozen=True, slots=True)
class WakeupDelete:
    kind: str
    subject_id: str


@dataclass(frozen=True, slots=True)
class HookInsert:
    hook_id: str
    token: str = field(repr=False)
    token_hash: bytes = field(repr=False)
    sequence: int


@dataclass(frozen=True, slots=True)
class HookDelete:
    hook_id: str
    token_hash: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RunRow:
    name: str
    version: str
    build: str | None
    status: str
    terminal: bool
    open_waits: int
    active_hooks: int
    pending_retries: int
    created_at: int
    updated_at: int
    ended_at: int | None
    last_sequence: int

    @property
    def created_key(self) -> str:
        return due_key(self.created_at)

    @property
    def updated_key(self) -> str:
        return due_key(self.updated_at)

    @property
    def ended_key(self) -> str | None:
        return None if self.ended_at is None else due_key(self.ended_at)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a store commits. `layer` is the state it was made of, for `Run.accept`."""

    run_id: str
    expected_sequence: int
    last_sequence: int
    lines: bytes = field(repr=False)
    event_ids: list[str]
    row: seam.RunRow
    clear_wakeups: bool
    delete_wakeups: list[seam.WakeupDelete]
    upsert_wakeups: list[seam.WakeupUpsert]
    clear_hooks: bool
    delete_hooks: list[seam.HookDelete]
    insert_hooks: list[seam.HookInsert]
    links: list[str]
    layer: State = field(repr=False, compare=False)

    @property
    def first_sequence(self) -> int:
        return self.expected_sequence + 1

    @property
    def changes_index(self) -> bool:
        rows = self.delete_wakeups, self.upsert_wakeups, self.delete_hooks, self.insert_hooks, self.links
        return self.clear_wakeups or self.clear_hooks or any(rows)


def event_id(entropy: bytes) -> str:
    """Sixteen bytes as a version 4 UUID (R13)."""
    data = bytearray(entropy)
    data[6] = data[6] & 0x0F | 0x40
    data[8] = data[8] & 0x3F | 0x80
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def make_batch(base: State, top: State, staged: Sequence[Staged], entropy: bytes) -> Batch:
    """Everything staged between `base` and `top`. Raises `InvalidTransition` for entropy of another length."""
    if len(entropy) != _ENTROPY_BYTES * len(staged):
        raise refuse(base, "entropy_length", value=f"{len(entropy)} bytes for {len(staged)} events")
    ids = [event_id(entropy[at : at + _ENTROPY_BYTES]) for at in range(0, len(entropy), _ENTROPY_BYTES)]
    owner = quote(base.run_id)
    lines = "".join(
        f'{{"run_id":{owner},"sequence":{event.sequence},"event_id":"{identity}",'
        f'"timestamp":"{format_instant(event.timestamp)}","event":{event.text}}}\n'
        for event, identity in zip(staged, ids, strict=True)
    )
    ended = top.terminal and not base.terminal
    layers = list(_layers(base, top))
    deleted, upserted = ([], []) if ended else _wakeup_changes(base, top, layers)
    removed, inserted = ([], []) if ended else _hook_changes(base, top, layers)
    return Batch(
        run_id=base.run_id,
        expected_sequence=base.last_sequence,
        last_sequence=top.last_sequence,
        lines=lines.encode(),
        event_ids=ids,
        row=_row(top),
        clear_wakeups=ended,
        delete_wakeups=deleted,
        upsert_wakeups=upserted,
        clear_hooks=ended,
        delete_hooks=removed,
        insert_hooks=inserted,
        links=_links(layers),
        layer=top,
    )


def _layers(base: State, top: State) -> Iterator[State]:
    """The layers above `base`, lowest first."""
    found: list[State] = []
    at: State | None = top
    while at is not None and at is not base:
        found.append(at)
        at = at.parent
    return reversed(found)


def _wakeup_changes(
    base: State, top: State, layers: Sequence[State]
) -> tuple[list[seam.WakeupDelete], list[seam.WakeupUpsert]]:
    """Net changes of the wakeup rows: waits before retries, by id bytes."""
    deleted: list[seam.WakeupDelete] = []
    upserted: list[seam.WakeupUpsert] = []
    moves = [
        ("wait", key, _wait_due(base.waits.get(key)), _wait_due(top.waits.get(key)))
        for key in _touched(layers, "waits")
    ]
    moves += [
        ("retry", key, _retry_due(base.steps.get(key)), _retry_due(top.steps.get(key)))
        for key in _touched(layers, "steps")
    ]
    for kind, key, before, after in moves:
        if after is None:
            if before is not None:
                deleted.append(WakeupDelete(kind, key))
        elif after != before:
            upserted.append(WakeupUpsert(kind, key, after, due_key(after)))
    return deleted, upserted


def _hook_changes(
    base: State, top: State, layers: Sequence[State]
) -> tuple[list[seam.HookDelete], list[seam.HookInsert]]:
    """Net changes of the hook rows, by id bytes."""
    removed: list[seam.HookDelete] = []
    inserted: list[seam.HookInsert] = []
    for key in _touched(layers, "hooks"):
        before, after = _active(base.hooks.get(key)), _active(top.hooks.get(key))
        if before and not after:
            removed.append(HookDelete(key, _hash(before.token)))
        elif after and not before:
            inserted.append(HookInsert(key, after.token, _hash(after.token), after.created_sequence))
    return removed, inserted


def _touched(layers: Sequence[State], table: str) -> list[str]:
    return sorted({key for layer in layers for key in getattr(layer, table).own})


def _wait_due(wait: Wait | None) -> int | None:
    return wait.resume_at if wait and wait.is_open else None


def _retry_due(step: Step | None) -> int | None:
    return step.retry_due if step else None


def _active(hook: Hook | None) -> Hook | None:
    return hook if hook and hook.is_open else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _links(layers: Sequence[State]) -> list[str]:
    linked: dict[str, None] = {}
    for layer in layers:
        for fact in layer.children.own.values():
            if fact.value.flow_run_id is not None:
                linked[fact.value.flow_run_id] = None
    return list(linked)


def _row(state: State) -> RunRow:
    spec, open_rows = state.spec, not state.terminal
    return RunRow(
        name=spec.name if spec else "",
        version=spec.version if spec else "",
        build=spec.build_id if spec else None,
        status=state.derived_status,
        terminal=state.terminal,
        open_waits=state.waits.open_count if open_rows else 0,
        active_hooks=state.hooks.open_count if open_rows else 0,
        pending_retries=state.pending_retries if open_rows else 0,
        created_at=state.created_at,
        updated_at=state.updated_at,
        ended_at=state.ended_at,
        last_sequence=state.last_sequence,
    )
