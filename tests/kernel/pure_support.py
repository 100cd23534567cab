"""Short ways to make runs of the pure kernel for its unit tests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.errors import FlowError, InvalidTransition
from perdure.kernel import Reads, Run, View, load

pure = load("pure")
MAX = 1_048_576
SPEC: dict[str, Any] = {
    "name": "demo",
    "version": "1",
    "runtime": {"kind": "rust_embedded", "entrypoint": "demo", "export_name": "main"},
}
MS = 1_000_000
SECOND = 1_000 * MS


def j(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(kind: str, /, **fields: object) -> dict[str, object]:
    return {"type": kind, **fields}


def step_created(
    step_id: str, *, attempts: int = 1, delay_ms: int = 0, value: object = 1, **policy: object
) -> dict[str, object]:
    retry = {"max_attempts": attempts, "delay_ms": delay_ms, **policy}
    return event("step_created", step_id=step_id, step_name="n", input=value, retry=retry)


def step_started(step_id: str, attempt: int = 1) -> dict[str, object]:
    return event("step_started", step_id=step_id, attempt=attempt)


def wait_created(wait_id: str, resume_at: str = "1970-01-01T00:00:10Z") -> dict[str, object]:
    return event("wait_created", wait_id=wait_id, resume_at=resume_at)


def hook_created(hook_id: str, token: str | None = None, metadata: object = None) -> dict[str, object]:
    return event("hook_created", hook_id=hook_id, token=token or f"secret-{hook_id}", metadata=metadata)


def created(*events: dict[str, object], run_id: str = "r", max_bytes: int = MAX) -> Run:
    """A committed run of `run_created` and these events, all at the epoch."""
    return commit(pure.new(run_id, max_bytes), event("run_created", spec=SPEC, input={"k": 1}), *events)


def started(*events: dict[str, object], run_id: str = "r", max_bytes: int = MAX) -> Run:
    return created(event("run_started"), *events, run_id=run_id, max_bytes=max_bytes)


def commit(run: Run, *events: dict[str, object], clock: int = 0) -> Run:
    view = stage(run, *events, clock=clock)
    run.accept(view.append(bytes(16 * len(events))))
    return run


def stage(reads: Reads, *events: dict[str, object], clock: int = 0) -> View:
    return reads.stage([j(one) for one in events], clock)


def texts(drafts: list[bytes]) -> list[str]:
    return [draft.decode() for draft in drafts]


def types(drafts: list[bytes]) -> list[str]:
    return [json.loads(draft)["type"] for draft in drafts]


def refusal(info: pytest.ExceptionInfo[FlowError]) -> tuple[object, ...]:
    """rule, kind, id, sequence, value of an `InvalidTransition`; else the class name and the fields."""
    error = info.value
    if isinstance(error, InvalidTransition):
        return (error.rule, error.kind, error.id, error.sequence, error.value)
    return (type(error).__name__, *error.args)
