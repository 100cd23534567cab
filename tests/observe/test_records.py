"""What leaves the process about an event: names, ids, times (spec 09 §9.5, R49, R60)."""

from __future__ import annotations

import orjson
import pytest
from scenarios.kit import World

from observe.tour import CANARY, observation_of, take_the_tour
from perdure.envelope import EVENT_KEYS
from perdure.observe import MemoryObserver, labels_of, record_of


async def test_87_no_payload_and_no_token_is_in_what_leaves(world: World, caplog: pytest.LogCaptureFixture) -> None:
    memory = MemoryObserver()
    history = await take_the_tour(world, memory)
    assert any(CANARY in event.raw.decode() for event in history), "the run has what must not show"
    shown = [(record_of(seen), labels_of(seen), repr(seen)) for seen in memory.observations]
    assert CANARY not in str(shown)
    assert CANARY not in caplog.text


async def test_every_record_has_one_shape(world: World) -> None:
    memory = MemoryObserver()
    history = await take_the_tour(world, memory)
    for seen, event in zip(memory.observations, history, strict=True):
        record = record_of(seen)
        assert list(record) == [
            *("key", "run_id", "sequence", "event_id", "timestamp", "workflow", "status", "subject")
        ]
        assert (record["key"], record["sequence"]) == (EVENT_KEYS[event.type], event.sequence)
        assert record["workflow"] == {"name": "tour", "version": "3"}
        assert set(record["subject"]) == {"kind", "id"}
        assert orjson.loads(orjson.dumps(record)) == record


def test_a_record() -> None:
    event = b'{"type":"step_completed","step_id":"pay","output":{"card":"canary-4711"}}'
    seen = observation_of(7, "order-1", event)
    assert record_of(seen) == {
        "key": "flow.step.completed",
        "run_id": "order-1",
        "sequence": 7,
        "event_id": "6f0c34c1-0000-4000-8000-000000000007",
        "timestamp": "2026-01-01T00:00:00Z",
        "workflow": {"name": "order", "version": "2"},
        "status": "running",
        "subject": {"kind": "step", "id": "pay"},
    }


@pytest.mark.parametrize(
    ("event", "kind", "subject_id"),
    [
        (b'{"type":"run_completed","output":1}', "run", "r"),
        (b'{"type":"run_retry_exhausted","step_id":"pay","attempt":3,"error":"canary"}', "run", "r"),
        (b'{"type":"step_started","step_id":"pay","attempt":1}', "step", "pay"),
        (b'{"type":"wait_created","wait_id":"pause","resume_at":"2026-01-01T00:00:00Z"}', "wait", "pause"),
        (b'{"type":"hook_created","hook_id":"ok","token":"canary-1","metadata":null}', "hook", "ok"),
        (b'{"type":"run_progress_recorded","progress":{"progress_id":"p","completed":1}}', "progress", "p"),
        (
            b'{"type":"child_operation_linked","child":{"reference_id":"c","kind":"k","operation_id":"o"}}',
            *("child", "c"),
        ),
    ],
)
def test_what_an_event_is_about(event: bytes, kind: str, subject_id: str) -> None:
    assert record_of(observation_of(event=event))["subject"] == {"kind": kind, "id": subject_id}


def test_labels_take_few_values() -> None:
    """Nothing in them grows with the number of runs."""
    assert labels_of(observation_of(7, "order-1")) == labels_of(observation_of(8, "order-2"))
    assert labels_of(observation_of()) == {
        "event_key": "flow.run.started",
        "workflow_name": "order",
        "workflow_version": "2",
        "status": "running",
    }
