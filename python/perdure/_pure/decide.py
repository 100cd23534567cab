"""Judging one command: the refusals in the order of R16, then the drafts of what is new (spec 03)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure._pure.command import Command, Member, NewHook, decode_command
from perdure._pure.draft import Draft, check_sizes, encode, make, moment, text_or_null
from perdure._pure.json import quote
from perdure._pure.state import State, refuse
from perdure.errors import HookTokenConflict

__all__ = ["Decision", "decide"]

_SELF_ANSWERING = frozenset(("run_progress_recorded", "child_operation_linked", "hook_disposed", "wait_completed"))


@dataclass(frozen=True, slots=True)
class Decision:
    """An accepted command."""

    drafts: list[bytes] = field(repr=False)
    ends: bool
    counts: bool
    concurrency: int | None


def decide(state: State, command: bytes, anchor: int, max_event_bytes: int) -> Decision:
    """The drafts of an accepted command; `anchor` = max(clock, horizon) judges policies and relative waits."""
    asked = decode_command(command)
    if state.spec is None:
        raise refuse(state, "no_events")
    if state.terminal:
        raise refuse(state, "run_ended")
    if asked.members is None:
        drafts = [_end(state, asked)]
    else:
        _judge(state, asked.members)
        drafts = _draft_new(state, asked.members, anchor)
    check_sizes(drafts, max_event_bytes)
    counts = bool(drafts) and all(draft.type in _SELF_ANSWERING for draft in drafts)
    return Decision(encode(drafts), asked.members is None, counts, asked.concurrency)


def _end(state: State, asked: Command) -> Draft:
    fields = asked.fields
    match asked.type:
        case "complete":
            if state.request is not None:
                raise refuse(state, "complete_while_cancelling")
            return make("run_completed", output=fields["output"])
        case "fail":
            return make("run_failed", error=quote(fields["error"]))
        case "cancel":
            if state.request is None:
                raise refuse(state, "cancel_without_request")
            return make("run_cancelled", reason=text_or_null(state.request.reason))
        case _:
            return make("run_timed_out", deadline=moment(fields["deadline"]), reason=text_or_null(fields["reason"]))


def _judge(state: State, members: Sequence[Member]) -> None:
    """Rules 2 to 7 of R16."""
    if not members:
        raise refuse(state, "empty_list")
    for member in members:
        member.check(state)
    named: set[tuple[str, str]] = set()
    for member in members:
        if (member.writes, member.key) in named:
            raise refuse(state, "named_twice", member.kind, member.key)
        named.add((member.writes, member.key))
    for member in members:
        member.check_known(state)
    _check_tokens(state, members)
    if all(member.resolved(state) for member in members):
        raise refuse(state, "nothing_new")


def _check_tokens(state: State, members: Sequence[Member]) -> None:
    """R16.6: a new hook's token against the active and new hooks of this run, less those disposed earlier in the list."""
    if not any(isinstance(member, NewHook) and member.owed(state) for member in members):
        return
    holders: dict[str, list[str]] = {}
    for hook in sorted(state.hooks.opened(), key=lambda hook: hook.hook_id):
        holders.setdefault(hook.token, []).append(hook.hook_id)
    for member in members:
        if not member.owed(state):
            continue
        if isinstance(member, NewHook):
            held = holders.setdefault(member.token, [])
            if held:
                raise HookTokenConflict(member.token, state.run_id, held[0])
            held.append(member.hook_id)
        elif member.writes == "hook_disposed":
            disposed = state.hooks.get(member.key)
            if disposed is not None:
                holders[disposed.token].remove(disposed.hook_id)


def _draft_new(state: State, members: Sequence[Member], anchor: int) -> list[Draft]:
    owed = [member for member in members if member.owed(state)]
    for member in owed:
        member.check_new(state, anchor)
    return [member.draft(anchor) for member in owed]
