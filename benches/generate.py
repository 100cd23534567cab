"""Histories to measure with: legal, deterministic, about 290 bytes an event, in the layout the kernels write.

The mix is that of an order service: most events belong to steps, every fifth step fails once and is retried later, and
timers, approvals and progress come in between. `history(run_id, 1000)` is the same bytes on every machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import lru_cache
from hashlib import md5
from itertools import count, islice

import orjson

from perdure.instant import format_instant

__all__ = ["CLOCK", "RUN_ID", "SIZES", "history", "lines", "tail"]

RUN_ID = "order-000417"
SIZES = (10, 1_000, 100_000)
CLOCK = 1_790_000_000_000_000_000
"""ns; every history is written before this instant."""

_FIRST = CLOCK - 600_000 * 1_000_000_000
_GAP = 1_234_567_000
"""ns from one event to the next: microsecond fractions, as a Python clock gives them."""

_POLICY = {"max_attempts": 5, "delay_ms": 1000, "backoff": "exponential", "max_delay_ms": 60000}
_SPEC = {
    "name": "order.fulfil",
    "version": "7",
    "runtime": {"kind": "rust_embedded", "entrypoint": "shop.workflows", "export_name": "fulfil"},
}


def _events() -> Iterator[dict[str, object]]:
    """The events of one endless order."""
    yield {"type": "run_created", "spec": _SPEC, "input": {"order": 417, "customer": "c-88213", "express": True}}
    yield {"type": "run_started"}
    for n in count(1):
        yield from _step(n)
        if n % 4 == 0:
            yield {"type": "wait_created", "wait_id": f"settle-{n}", "resume_at": format_instant(CLOCK + n * _GAP)}
            yield {"type": "wait_completed", "wait_id": f"settle-{n}"}
        if n % 6 == 0:
            yield from _approval(n)
        if n % 9 == 0:
            progress = {"progress_id": f"parcels-{n}", "completed": n, "message": f"{n} parcels packed and labelled"}
            yield {"type": "run_progress_recorded", "progress": progress}


def _step(n: int) -> Iterator[dict[str, object]]:
    step_id = f"reserve-{n}"
    items = [{"sku": f"SKU-{n:05}-{k}", "price": f"{n % 90 + 10}.{k}9"} for k in range(2)]
    yield {
        "type": "step_created",
        "step_id": step_id,
        "step_name": "warehouse.reserve",
        "input": {"order": n, "warehouse": "muc-2", "items": items},
        "retry": _POLICY,
    }
    yield {"type": "step_started", "step_id": step_id, "attempt": 1}
    if n % 5 == 0:
        yield {
            "type": "step_retrying",
            "step_id": step_id,
            "attempt": 1,
            "error": "runtime error: the warehouse did not answer in time",
            "retry_after": format_instant(CLOCK + n * _GAP),
        }
        yield {"type": "step_started", "step_id": step_id, "attempt": 2}
    lots = [{"sku": item["sku"], "lot": f"L{n * 7 + k:06}"} for k, item in enumerate(items)]
    yield {
        "type": "step_completed",
        "step_id": step_id,
        "output": {"reservation": f"res-{n:08}", "lots": lots},
    }


def _approval(n: int) -> Iterator[dict[str, object]]:
    yield {
        "type": "hook_created",
        "hook_id": f"approval-{n}",
        "token": f"canary-bench-{n:08}",
        "metadata": {"kind": "human_approval", "subject": f"order:{n}", "channel": "backoffice"},
    }
    yield {
        "type": "hook_received",
        "hook_id": f"approval-{n}",
        "payload": {"approved": True, "by": "m.keller", "comment": "checked with the customer by phone"},
    }


def lines(run_id: str, first: int, last: int) -> bytes:
    """The lines of the events from sequence `first` to `last`, both included, each ended by a newline."""
    return b"".join(_line(run_id, n, event) for n, event in enumerate(islice(_events(), first - 1, last), first))


def _line(run_id: str, sequence: int, event: dict[str, object]) -> bytes:
    envelope = {
        "run_id": run_id,
        "sequence": sequence,
        "event_id": str(uuid.UUID(bytes=md5(b"%d" % sequence).digest(), version=4)),
        "timestamp": format_instant(_FIRST + sequence * _GAP),
        "event": event,
    }
    return orjson.dumps(envelope) + b"\n"


@lru_cache
def history(run_id: str, events: int) -> bytes:
    """A history of exactly `events` events."""
    return lines(run_id, 1, events)


def tail(run_id: str, after: int, events: int) -> bytes:
    """The `events` events that follow sequence `after`."""
    return lines(run_id, after + 1, after + events)
