"""What a Python developer would write to replay such a history: orjson and dicts, no checks.

It keeps the parsed payloads, follows the statuses, and trusts its input: nothing is validated, no order is kept, no
refusal exists. It is the floor that a kernel has to beat while it does all of that.
"""

from __future__ import annotations

from typing import Any

import orjson

__all__ = ["project", "statuses"]


def project(history: bytes) -> dict[str, Any]:
    """A dict of the run after its whole history."""
    run: dict[str, Any] = {"status": "pending", "steps": {}, "waits": {}, "hooks": {}, "progress": []}
    for line in history.split(b"\n"):
        if line:
            envelope = orjson.loads(line)
            run["last_sequence"] = envelope["sequence"]
            _apply(run, envelope["event"])
    return run


def _apply(run: dict[str, Any], event: dict[str, Any]) -> None:
    kind = event["type"]
    if kind == "step_started":
        run["steps"][event["step_id"]].update(status="running", attempt=event["attempt"], retry_after=None)
    elif kind == "step_completed":
        run["steps"][event["step_id"]].update(status="completed", output=event["output"], error=None)
    elif kind == "step_created":
        run["steps"][event["step_id"]] = {**event, "status": "pending", "attempt": 0}
    elif kind == "step_retrying":
        run["steps"][event["step_id"]].update(status="pending", error=event["error"], retry_after=event["retry_after"])
    elif kind == "wait_created":
        run["waits"][event["wait_id"]] = {"status": "waiting", "resume_at": event["resume_at"]}
    elif kind == "wait_completed":
        run["waits"][event["wait_id"]]["status"] = "completed"
    elif kind == "hook_created":
        run["hooks"][event["hook_id"]] = {**event, "status": "active"}
    elif kind == "hook_received":
        run["hooks"][event["hook_id"]].update(status="received", payload=event["payload"])
    elif kind == "run_progress_recorded":
        run["progress"].append(event["progress"])
    elif kind == "run_created":
        run["spec"], run["input"] = event["spec"], event["input"]
    elif kind == "run_started":
        run["status"] = "running"
    else:
        raise ValueError(f"the baseline does not know {kind!r}")


def statuses(run: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Status by id of every step, wait and hook: what the answers of kernel and baseline are compared by."""
    return {kind: {key: entry["status"] for key, entry in run[kind].items()} for kind in ("steps", "waits", "hooks")}
