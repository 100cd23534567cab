"""The values users hold, in and out of JSON (spec 01 §1.4, 06 §6.3, R57)."""

from __future__ import annotations

import pickle

import pytest

from perdure.errors import Serialization
from perdure.instant import Instant
from perdure.model import (
    CancellationRequest,
    ChildOperationReference,
    Envelope,
    HookCallbackRoute,
    HookMetadata,
    WorkflowProgress,
    WorkflowSpec,
)

# -- specs ------------------------------------------------------------------------------------------------------------


def test_the_spec_of_a_python_workflow() -> None:
    spec = WorkflowSpec.python("billing.charge", "2", build="b-1")
    assert spec.to_json() == (
        b'{"name":"billing.charge","version":"2","runtime":{"kind":"rust_embedded",'
        b'"entrypoint":"billing.charge","export_name":"main"},"runtime_build_id":"b-1"}'
    )
    assert b"runtime_build_id" not in WorkflowSpec.python("a").to_json()
    assert WorkflowSpec.from_json(spec.to_json()) == spec


def test_a_spec_read_from_json_keeps_its_bytes() -> None:
    raw = b'{ "name": " ", "version": "1", "runtime": {"kind":"native_ts"}, "patch_markers": ["x"] }'
    spec = WorkflowSpec.from_json(raw)
    assert spec.to_json() == raw
    assert (spec.name, spec.kind, spec.entrypoint, spec.runtime_build_id) == (" ", "native_ts", "", None)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"name":1,"runtime":[]}', b"\xff"])
def test_a_spec_that_is_none_is_left_to_the_kernel(raw: bytes) -> None:
    spec = WorkflowSpec.from_json(raw)
    assert spec.to_json() == raw
    assert (spec.name, spec.version) == ("", "")


def test_pinning_keeps_what_this_release_does_not_know() -> None:
    runtime = b'{"kind":"rust_embedded","entrypoint":"a","export_name":"main"}'
    raw = b'{"name":"a","version":"1","runtime":%s,"signal_names":["s"]}' % runtime
    pinned = WorkflowSpec.from_json(raw).with_build("b")
    assert pinned.runtime_build_id == "b"
    assert pinned.to_json() == raw[:-1] + b',"runtime_build_id":"b"}'
    assert pinned.with_build(None).to_json() == raw
    assert WorkflowSpec.python("a").with_build("c") == WorkflowSpec.python("a", build="c")


# -- hooks ------------------------------------------------------------------------------------------------------------


def test_hook_metadata_leaves_out_what_is_absent() -> None:
    assert HookMetadata.human_approval("order:7").to_json() == b'{"kind":"human_approval","subject":"order:7"}'
    assert HookMetadata.generic("payment").to_json() == b'{"kind":"payment"}'


def test_hook_metadata_with_everything() -> None:
    metadata = (
        HookMetadata.generic("payment", "order:7")
        .with_callback("/hooks/{token}", "put")
        .with_labels(team="a")
        .with_labels(tier="b")
        .with_data({"n": 1})
    )
    assert metadata.callback == HookCallbackRoute("/hooks/{token}", "PUT")
    assert metadata.to_json() == (
        b'{"kind":"payment","subject":"order:7","callback":{"method":"PUT","path":"/hooks/{token}"},'
        b'"labels":{"team":"a","tier":"b"},"data":{"n":1}}'
    )


def test_hook_metadata_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(Serialization):
        HookMetadata.generic("a").with_data(float("nan")).to_json()
    with pytest.raises(Serialization, match="subject: a lone surrogate"):
        HookMetadata.generic("a", "\ud800").to_json()


# -- facts ------------------------------------------------------------------------------------------------------------


def test_progress() -> None:
    short, full = WorkflowProgress("p", 1), WorkflowProgress("p", 1, 2, "half", {"a": 1})
    assert short.to_json() == b'{"progress_id":"p","completed":1}'
    assert full.to_json() == b'{"progress_id":"p","completed":1,"total":2,"message":"half","details":{"a":1}}'
    for progress in (short, full):
        assert WorkflowProgress.from_json(progress.to_json()) == progress


def test_child_operations() -> None:
    short, full = ChildOperationReference("r", "job", "7"), ChildOperationReference("r", "job", "7", "run-2", [1])
    assert short.to_json() == b'{"reference_id":"r","kind":"job","operation_id":"7"}'
    assert full.to_json() == (
        b'{"reference_id":"r","kind":"job","operation_id":"7","flow_run_id":"run-2","metadata":[1]}'
    )
    for child in (short, full):
        assert ChildOperationReference.from_json(child.to_json()) == child


def test_cancellation_requests() -> None:
    assert CancellationRequest().to_json() == b"{}"
    assert CancellationRequest("stop").to_json() == b'{"reason":"stop"}'
    raw = b'{"request":{"reason":"stop"},"requested_at":"1970-01-01T00:00:01Z","sequence":4}'
    recorded = CancellationRequest.recorded(raw)
    assert (recorded.reason, recorded.requested_at, recorded.sequence) == ("stop", Instant(10**9), 4)
    assert recorded == CancellationRequest("stop")


def test_json_of_another_form_is_a_typed_error() -> None:
    with pytest.raises(Serialization, match="shape: not a progress entry"):
        WorkflowProgress.from_json(b'{"progress_id":"canary"}')


# -- envelopes --------------------------------------------------------------------------------------------------------

HEAD = (
    b'"run_id":"r","sequence":%d,"event_id":"6f0c8a8e-0000-4000-8000-000000000000","timestamp":"2026-01-01T00:00:00.5Z"'
)


def line(sequence: int, event: bytes) -> bytes:
    return b"{%s,%s}" % (HEAD % sequence, b'"event":' + event)


LINES = b"\n".join(
    [
        line(1, b'{"type":"run_started"}'),
        b" " + line(2, b'{"type":"hook_created","hook_id":"h","token":"canary","metadata":null}'),
        b"",
        line(3, b'{"type":"step_completed","step_id":"s","output":18446744073709551616}') + b"\r",
        line(4, b'{"type":"run_progress_recorded","progress":{"progress_id":"p","completed":1}}'),
        b"",
    ]
)


def test_envelopes_of_a_history() -> None:
    first, second, third, fourth = Envelope.parse_lines(LINES)
    assert (first.run_id, first.sequence, first.type, first.key) == ("r", 1, "run_started", "flow.run.started")
    assert str(first.timestamp) == "2026-01-01T00:00:00.500Z"
    assert [e.subject for e in (first, second, third, fourth)] == [
        None,
        ("hook", "h"),
        ("step", "s"),
        ("progress", "p"),
    ]
    assert third.event == {"type": "step_completed", "step_id": "s", "output": 2**64}
    assert "canary" not in repr(second)
    assert pickle.loads(pickle.dumps(third)) == third


@pytest.mark.parametrize("bad", [b"{", line(2, b'{"type":"nothing"}'), line(2, b"7"), b'{"run_id":1}', b"\xff"])
def test_another_line_is_a_typed_error_with_its_number(bad: bytes) -> None:
    with pytest.raises(Serialization) as caught:
        Envelope.parse_lines(line(1, b'{"type":"run_started"}') + b"\n" + bad)
    assert caught.value.line == 2
