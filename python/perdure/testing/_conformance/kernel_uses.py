"""The uses that need a kernel and nothing else. Each gives what is wrong with a row, or None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.errors import FlowError
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Kernel
from perdure.testing._conformance.compare import difference, error_found, loose_snapshot, same_error
from perdure.testing._conformance.rows import Row
from perdure.testing._conformance.values import dumps, loads

__all__ = ["equality", "event_id", "project_case", "project_history", "retry_delay"]


@dataclass(frozen=True, slots=True)
class _Policy:
    delay_ms: int
    max_delay_ms: int
    backoff: str
    max_attempts: int = 2**32 - 1


def _history(lines: list[str]) -> bytes:
    # a lone surrogate in a row stands for the bytes it would have, which are no UTF-8
    return b"".join(line.encode("utf-8", "surrogatepass") + b"\n" for line in lines)


def project_history(kernel: Kernel, row: Row) -> str | None:
    """`lines` gives the snapshot, or the refusal (projection.jsonl, decode.jsonl)."""
    data = row.data
    refused = "decode" if data.get("ours") == "decode" else data.get("refused")
    if data.get("ours") == "accept":
        refused = None
    try:
        snapshot = kernel.project(data["run_id"], _history(data["lines"]), DEFAULT_MAX_EVENT_BYTES).snapshot().decode()
    except FlowError as error:
        if refused is not None and same_error({"kind": refused}, error):
            return None
        return f"expected {refused or 'a snapshot'}, found {dumps(error_found(error))}"
    if refused is not None:
        return f"expected {refused}, found the snapshot {snapshot}"
    return None if data.get("ours") == "accept" else _snapshots_differ(data["snapshot"], snapshot)


def _snapshots_differ(expected: str, found: str) -> str | None:
    """Byte for byte where the recording has our own keys, else as JSON without what the reference does not say."""
    if "resolutions" in loads(expected):
        return None if expected == found else f"expected the bytes {expected}, found {found}"
    return difference(loose_snapshot(expected), loose_snapshot(found))


def project_case(kernel: Kernel, row: Row) -> str | None:
    """Every prefix of every recorded history gives the recorded snapshot, whole and by extending."""
    data = row.data
    for recording in ("recorded", "recorded_older"):
        for run_id, recorded in data.get(recording, {}).get("runs", {}).items():
            problem = _project_prefixes(kernel, run_id, recorded)
            if problem:
                return f"{recording}, run {run_id}, {problem}"
    return None


def _project_prefixes(kernel: Kernel, run_id: str, recorded: dict[str, Any]) -> str | None:
    lines = recorded["lines"]
    grown = None
    for cut, expected in enumerate(recorded["snapshots"], 1):
        try:
            whole = kernel.project(run_id, _history(lines[:cut]), DEFAULT_MAX_EVENT_BYTES)
            if grown is None:
                grown = whole
            else:
                grown.extend(_history(lines[cut - 1 : cut]))
        except FlowError as error:
            return f"prefix {cut}: expected a snapshot, found {dumps(error_found(error))}"
        if problem := _snapshots_differ(expected, whole.snapshot().decode()):
            return f"prefix {cut}: {problem}"
        if grown.snapshot() != whole.snapshot():
            return f"prefix {cut}: extended {grown.snapshot().decode()}, projected whole {whole.snapshot().decode()}"
    return None


def equality(kernel: Kernel, row: Row) -> str | None:
    """Two JSON texts are equal or not, either way round (R29)."""
    left, right = (row.data[side].encode("utf-8", "surrogatepass") for side in "ab")
    for one, other in ((left, right), (right, left)):
        try:
            found = kernel.json_equal(one, other)
        except FlowError as error:
            return f"expected equal={row.data['equal']}, found {dumps(error_found(error))}"
        if found is not row.data["equal"]:
            return f"expected equal={row.data['equal']}, found {found}"
    return None


def event_id(kernel: Kernel, row: Row) -> str | None:
    """16 bytes of entropy give the event id (R13)."""
    created = b'{"type":"run_created","spec":{"name":"demo","version":"1","runtime":{"kind":"rust_embedded",'
    created += b'"entrypoint":"demo","export_name":"main"}},"input":null}'
    batch = kernel.new("run-1", DEFAULT_MAX_EVENT_BYTES).stage([created], 0).append(bytes.fromhex(row.data["entropy"]))
    written = loads(batch.lines.decode())["event_id"]
    expected = row.data["event_id"]
    if batch.event_ids == [expected] and written == expected:
        return None
    return f"expected {expected}, found {batch.event_ids[0]} in the batch and {written} in its line"


def retry_delay(kernel: Kernel, row: Row) -> str | None:
    """The delay of exponential backoff with full jitter (spec 05 §5.3)."""
    data = row.data
    policy = _Policy(data["delay_ms"], data["max_delay_ms"], data.get("backoff", "exponential"))
    found = kernel.retry_delay_ms(policy, data["run_id"], data["step_id"], data["failed_attempt"])
    expected = data["delay_ms_chosen"]
    return None if found == expected else f"expected {expected} ms, found {found} ms"
