"""Commits that only move a run on, under a lease that they keep, as arguments of `flow_step` and `flow_steps` (R48).

Most commits are such. Their arrays are packed here as PostgreSQL reads them: the driver would take longer to do that, one
element after the other, than the server takes for the whole group."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Final, cast

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8

from perdure.instant import due_key
from perdure.stores.base import Append, Lease

__all__ = ["STEP", "STEPS", "arguments_of_one", "arguments_of_steps", "is_step", "register"]

STEP: Final = f"SELECT @schema@.flow_step({', '.join(f'${n}' for n in range(1, 15))})"
STEPS: Final = f"SELECT now, moved FROM @schema@.flow_steps({', '.join(f'${n}' for n in range(1, 15))})"

_BYTEA, _INT8, _TEXT = 17, 20, 25


def is_step(append: Append) -> bool:
    """Whether the batch only moves its run on: most do."""
    batch, lease = append.batch, append.lease
    return (
        lease is not None
        and lease.epoch is not None
        and lease.after == "keep"
        and lease.claim == "none"
        and lease.hold is None
        and batch.expected_sequence > 0
        and bool(batch.lines)
        and not batch.row.terminal
        and not (
            batch.upsert_wakeups
            or batch.delete_wakeups
            or batch.clear_wakeups
            or batch.insert_hooks
            or batch.delete_hooks
            or batch.clear_hooks
            or batch.links
        )
    )


def arguments_of_one(append: Append, clock: int | None, durability: str | None) -> tuple[object, ...]:
    """Of `flow_step`."""
    batch, lease = append.batch, cast(Lease, append.lease)
    row = batch.row
    return (
        batch.run_id,
        Int8(batch.expected_sequence),
        Int8(batch.last_sequence),
        row.status,
        Int8(row.open_waits),
        Int8(row.active_hooks),
        Int8(row.pending_retries),
        due_key(row.updated_at),
        lease.owner,
        Int8(cast(int, lease.epoch)),
        Int8(lease.ttl_ns),
        batch.lines,
        None if clock is None else Int8(clock),
        durability,
    )


def arguments_of_steps(appends: Sequence[Append], clock: int | None, durability: str | None) -> tuple[object, ...]:
    """Of `flow_steps`; `appends` come in the order of their run ids."""
    batches = [append.batch for append in appends]
    leases = [cast(Lease, append.lease) for append in appends]
    rows = [batch.row for batch in batches]
    return (
        _texts([batch.run_id for batch in batches]),
        _integers([batch.expected_sequence for batch in batches]),
        _integers([batch.last_sequence for batch in batches]),
        _texts([row.status for row in rows]),
        _integers([row.open_waits for row in rows]),
        _integers([row.active_hooks for row in rows]),
        _integers([row.pending_retries for row in rows]),
        _texts([due_key(row.updated_at) for row in rows]),
        _texts([lease.owner for lease in leases]),
        _integers([cast(int, lease.epoch) for lease in leases]),
        _integers([lease.ttl_ns for lease in leases]),
        ByteaArray(_array(_BYTEA, [batch.lines for batch in batches])),
        None if clock is None else Int8(clock),
        durability,
    )


# arrays in PostgreSQL's binary form: dimensions, nulls, element type; length, lower bound; then each with its length ------


class TextArray(bytes):
    """A packed text[]."""


class IntegerArray(bytes):
    """A packed bigint[]."""


class ByteaArray(bytes):
    """A packed bytea[]."""


def _texts(items: list[str]) -> TextArray:
    return TextArray(_array(_TEXT, [item.encode() for item in items]))


def _integers(items: list[int]) -> IntegerArray:
    parts = [part for item in items for part in (8, item)]
    return IntegerArray(pack(f">5i{'iq' * len(items)}", 1, 0, _INT8, len(items), 1, *parts))


def _array(element: int, items: list[bytes]) -> bytes:
    parts = [pack(">5i", 1, 0, element, len(items), 1)]
    for item in items:
        parts.append(len(item).to_bytes(4, "big"))
        parts.append(item)
    return b"".join(parts)


def _dumper(array_type: int) -> type[Dumper]:
    class PackedDumper(Dumper):
        format = Format.BINARY
        oid = array_type

        def dump(self, obj: bytes) -> bytes:
            return obj

    return PackedDumper


_DUMPERS: Final[list[tuple[type[bytes], type[Dumper]]]] = [
    (TextArray, _dumper(1009)),
    (IntegerArray, _dumper(1016)),
    (ByteaArray, _dumper(1001)),
]


def register(adapters: AdaptersMap) -> None:
    """Lets a connection send packed arrays."""
    for cls, dumper in _DUMPERS:
        adapters.register_dumper(cls, dumper)
