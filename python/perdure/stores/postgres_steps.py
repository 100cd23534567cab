"""Commits that only move a run on, under a lease that they keep, as arguments of `flow_step` and `flow_steps` (R48).

Most commits are such. Their values are packed here as PostgreSQL reads them: the driver would take longer to do that, one
value after the other, than the server takes for the commit."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack_from
from typing import Final, cast

from perdure.stores.base import Append, Lease
from perdure.stores.postgres_wire import Statement

__all__ = ["STEP", "STEPS", "arguments_of_one", "arguments_of_steps", "integer_of", "integers_of"]

_BYTEA, _INT8, _TEXT = 17, 20, 25
_BYTEAS, _INT8S, _TEXTS = 1001, 1016, 1009


def _call(function: str, answer: str, types: tuple[int, ...]) -> Statement:
    parameters = ", ".join(f"${number}" for number in range(1, len(types) + 1))
    return Statement(f"perdure_{function}", f"SELECT {answer} FROM @schema@.{function}({parameters}) AS step", types)


STEP: Final = _call(
    "flow_step",
    "step",
    (_TEXT, _INT8, _INT8, _TEXT, _INT8, _INT8, _INT8, _TEXT, _TEXT, _INT8, _INT8, _BYTEA, _INT8, _TEXT),
)
STEPS: Final = _call(
    "flow_steps",
    "now, moved",
    (
        *(_TEXTS, _INT8S, _INT8S, _TEXTS, _INT8S, _INT8S, _INT8S, _TEXTS, _TEXTS, _INT8S, _INT8S, _BYTEAS),
        *(_INT8, _TEXT),
    ),
)


def arguments_of_one(append: Append, clock: int | None, durability: str | None) -> list[bytes | None]:
    """Of `flow_step`."""
    batch, lease = append.batch, cast(Lease, append.lease)
    row = batch.row
    return [
        _text(batch.run_id),
        _integer(batch.expected_sequence),
        _integer(batch.last_sequence),
        _text(row.status),
        _integer(row.open_waits),
        _integer(row.active_hooks),
        _integer(row.pending_retries),
        _text(row.updated_key),
        _text(lease.owner),
        _integer(cast(int, lease.epoch)),
        _integer(lease.ttl_ns),
        batch.lines,
        None if clock is None else _integer(clock),
        None if durability is None else _text(durability),
    ]


def arguments_of_steps(appends: Sequence[Append], clock: int | None, durability: str | None) -> list[bytes | None]:
    """Of `flow_steps`; `appends` come in the order of their run ids."""
    batches = [append.batch for append in appends]
    leases = [cast(Lease, append.lease) for append in appends]
    rows = [batch.row for batch in batches]
    return [
        _texts([batch.run_id for batch in batches]),
        _integers([batch.expected_sequence for batch in batches]),
        _integers([batch.last_sequence for batch in batches]),
        _texts([row.status for row in rows]),
        _integers([row.open_waits for row in rows]),
        _integers([row.active_hooks for row in rows]),
        _integers([row.pending_retries for row in rows]),
        _texts([row.updated_key for row in rows]),
        _texts([lease.owner for lease in leases]),
        _integers([cast(int, lease.epoch) for lease in leases]),
        _integers([lease.ttl_ns for lease in leases]),
        _array(_BYTEA, [batch.lines for batch in batches]),
        None if clock is None else _integer(clock),
        None if durability is None else _text(durability),
    ]


def integer_of(value: bytes | None) -> int | None:
    """A bigint as it was answered."""
    return None if value is None else int.from_bytes(value, "big", signed=True)


def integers_of(value: bytes | None) -> list[int] | None:
    """A bigint[] without nulls as it was answered."""
    if value is None:
        return None
    (dimensions,) = unpack_from(">i", value)
    if not dimensions:
        return []
    (length,) = unpack_from(">i", value, 12)
    return list(unpack_from(f">{'4xq' * length}", value, 20))


# PostgreSQL's binary form. An array: dimensions, nulls, element type; length, lower bound; then each with its length -----


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")  # the server refuses what is no text, as it does U+0000


def _integer(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _texts(items: list[str]) -> bytes:
    return _array(_TEXT, [_text(item) for item in items])


def _integers(items: list[int]) -> bytes:
    parts = [part for item in items for part in (8, item)]
    return pack(f">5i{'iq' * len(items)}", 1, 0, _INT8, len(items), 1, *parts)


def _array(element: int, items: list[bytes]) -> bytes:
    parts = [pack(">5i", 1, 0, element, len(items), 1)]
    for item in items:
        parts.append(len(item).to_bytes(4, "big"))
        parts.append(item)
    return b"".join(parts)
