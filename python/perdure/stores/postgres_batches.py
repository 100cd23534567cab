"""A group of batches as the arguments of `flow_commit`, and its rows as answers (R47, R50)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from perdure.errors import (
    EventConflict,
    FlowError,
    HookTokenConflict,
    LeaseHeld,
    LeaseLost,
    RunConflict,
    RunNotFound,
)
from perdure.kernel import Batch, HookInsert
from perdure.payload import encode
from perdure.stores.base import Append, Committed, Lease
from perdure.stores.rules import RANK

__all__ = ["COMMIT", "COMMIT_RESTORED", "answers_of", "arguments_of", "restored_links"]

COMMIT: Final = """
SELECT place, now, verdict, held, actual, other, other_hook, token
FROM @schema@.flow_commit(
    $1::json, $2::bytea[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint, $8::text, $9::text)"""

COMMIT_RESTORED: Final = f"""
WITH done AS MATERIALIZED ({COMMIT}), linked AS (
    INSERT INTO @schema@.flow_links SELECT l.run_id, l.linked
    FROM unnest($10::bigint[], $11::text[], $12::text[]) AS l (place, run_id, linked)
    JOIN done ON done.place = l.place AND done.verdict IS NULL
    ON CONFLICT DO NOTHING
)
SELECT * FROM done"""
"""As `COMMIT`, with the links of restored runs."""


def restored_links(appends: Sequence[Append]) -> tuple[list[int], list[str], list[str]] | None:
    """The last arguments of `COMMIT_RESTORED`; None if there are no such links."""
    links = [
        (place, append.batch.run_id, linked)
        for place, append in enumerate(appends, 1)
        if append.restored
        for linked in append.batch.links
    ]
    return ([link[0] for link in links], [link[1] for link in links], [link[2] for link in links]) if links else None


def arguments_of(appends: Sequence[Append]) -> tuple[object, ...]:
    """Of `flow_commit`: the batches as JSON and their lines as bytes, and what is to be locked, None where there is
    nothing."""
    batches = [append.batch for append in appends]
    creations = [batch.run_id for batch in batches if not batch.expected_sequence]
    linked = [run_id for append in appends if not append.restored for run_id in append.batch.links]
    tokens = [hook.token_hash for batch in batches for hook in batch.insert_hooks]
    runs = [batch.run_id for batch in batches]
    members = [_members(place, append) for place, append in enumerate(appends, 1)]
    lines = [batch.lines for batch in batches]
    return encode(members).decode(), lines, creations or None, runs, linked or None, tokens or None


def answers_of(appends: Sequence[Append], rows: Iterable[tuple[Any, ...]]) -> list[Committed | FlowError]:
    """Answers in the order of `appends`."""
    by_place = {row[0]: row[1:] for row in rows}
    return [_answer(append.batch, *by_place[place]) for place, append in enumerate(appends, 1)]


def _answer(
    batch: Batch,
    now: int,
    verdict: str | None,
    held: int | None,
    actual: int,
    other: str,
    other_hook: str,
    token: int,
) -> Committed | FlowError:
    match verdict:
        case None:
            return Committed(batch.last_sequence, now, held)
        case "pruned":
            return RunConflict(batch.run_id, "pruned")
        case "lost":
            return LeaseLost(batch.run_id)
        case "held":
            return LeaseHeld(batch.run_id)
        case "conflict":
            return EventConflict(batch.run_id, batch.expected_sequence, actual)
        case "link":
            return RunNotFound(other)
        case _:
            return HookTokenConflict(_hooks(batch)[token].token, other, other_hook)


def _hooks(batch: Batch) -> list[HookInsert]:
    """As created: the first of several refused tokens is named (R16)."""
    return sorted(batch.insert_hooks, key=lambda hook: hook.sequence)


# members of flow_batch; what is None, false or empty is left out --------------------------------------------------


def _members(place: int, append: Append) -> dict[str, object]:
    batch, lease = append.batch, append.lease
    found: dict[str, object] = {
        "position": place,
        "run_id": batch.run_id,
        "expected": batch.expected_sequence,
        "last_sequence": batch.last_sequence,
        "has_lines": bool(batch.lines),
    }
    found |= _row(batch)
    found |= _index(batch)
    if append.restored:
        found.pop("links", None)  # not to be judged: `COMMIT_RESTORED` writes them
    if lease is not None:
        found |= _lease(lease)
    return found


def _row(batch: Batch) -> dict[str, object]:
    row = batch.row
    found: dict[str, object] = {
        "name": row.name,
        "version": row.version,
        "status": row.status,
        "terminal": row.terminal,
        "open_waits": row.open_waits,
        "active_hooks": row.active_hooks,
        "pending_retries": row.pending_retries,
        "updated_at": row.updated_key,
    }
    if not batch.expected_sequence:
        found["created_at"] = row.created_key
    if row.build is not None:
        found["build"] = row.build
    if row.ended_at is not None:
        found["ended_at"] = row.ended_key
    return found


def _index(batch: Batch) -> dict[str, object]:
    found: dict[str, object] = {}
    if batch.clear_wakeups:
        found["clear_wakeups"] = True
    if gone := batch.delete_wakeups:
        found["gone_kinds"] = [RANK[wakeup.kind] for wakeup in gone]
        found["gone_subjects"] = [wakeup.subject_id for wakeup in gone]
    if wakeups := batch.upsert_wakeups:
        found["wakeup_kinds"] = [RANK[wakeup.kind] for wakeup in wakeups]
        found["wakeup_subjects"] = [wakeup.subject_id for wakeup in wakeups]
        found["wakeup_dues"] = [wakeup.due_key for wakeup in wakeups]
    if batch.clear_hooks:
        found["clear_hooks"] = True
    if ended := batch.delete_hooks:
        found["gone_tokens"] = [_bytea(hook.token_hash) for hook in ended]
        found["gone_hooks"] = [hook.hook_id for hook in ended]
    if hooks := _hooks(batch):
        found["tokens"] = [_bytea(hook.token_hash) for hook in hooks]
        found["hooks"] = [hook.hook_id for hook in hooks]
        found["hook_sequences"] = [hook.sequence for hook in hooks]
    if links := batch.links:
        found["links"] = links
    return found


def _lease(lease: Lease) -> dict[str, object]:
    found: dict[str, object] = {
        "leased": True,
        "owner": lease.owner,
        "ttl": lease.ttl_ns,
        "claim": lease.claim,
        "unless_leased": lease.unless_leased,
        "after": lease.after,
        "accepted": lease.accepted,
    }
    if lease.epoch is not None:
        found["epoch"] = lease.epoch
    if lease.counted:
        found |= {
            "counted": True,
            "fraction": lease.fraction,
            "may_hold": lease.may_hold,
            "max_failures": lease.max_failures,
        }
    if lease.hold is not None:
        found["hold"] = lease.hold
    if lease.build is not None:
        found["drive_build"] = lease.build
    return found


def _bytea(value: bytes) -> str:
    return "\\x" + value.hex()
