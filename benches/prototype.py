"""What a Python developer would write to carry a run on from its bytes: project with orjson, then run a generator again.

It does the work that recovery owes and no more: the order of events, their times, each step's state, one use of each id, the
comparison of what the code asks for with what is recorded, outputs as the types they are annotated with. It knows no groups,
waits, signals, retries or staged events, and keeps everything it parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any

import msgspec
import orjson

__all__ = ["Asked", "recover"]

Asked = tuple[str, tuple[Any, ...]]
"""A step's name and its arguments."""
_RETRY = {"max_attempts": 3, "delay_ms": 0, "on_exhausted": "continue_workflow"}


def project(history: bytes) -> dict[str, Any]:
    """The run: its input, its steps, and what happened in which order."""
    run: dict[str, Any] = {"status": "pending", "steps": {}, "timeline": []}
    last, run_id, latest = 0, None, None
    for line in history.split(b"\n"):
        if not line:
            continue
        envelope = orjson.loads(line)
        run_id = run_id or envelope["run_id"]
        if envelope["sequence"] != last + 1 or envelope["run_id"] != run_id:
            raise ValueError(f"line {last + 1} is out of order")
        last += 1
        timestamp = datetime.fromisoformat(envelope["timestamp"])
        latest = timestamp if latest is None else max(latest, timestamp)
        _apply(run, envelope["event"], last, latest)
    run["last_sequence"] = last
    return run


def _apply(run: dict[str, Any], event: dict[str, Any], sequence: int, latest: datetime) -> None:
    kind = event["type"]
    if kind == "run_created":
        run["spec"], run["input"] = event["spec"], event["input"]
        return
    if kind == "run_started":
        run["status"] = "running"
        return
    if kind not in ("step_created", "step_started", "step_completed"):
        raise ValueError(f"the prototype does not know {kind!r}")
    step_id, steps = event["step_id"], run["steps"]
    if kind == "step_created":
        if step_id in steps:
            raise ValueError(f"step {step_id!r} is created twice")
        steps[step_id] = {**event, "status": "pending", "attempt": 0, "output": None}
        run["timeline"].append((sequence, kind, step_id, latest))
        return
    step = steps[step_id]
    if step["status"] != ("pending" if kind == "step_started" else "running"):
        raise ValueError(f"step {step_id!r} is {step['status']}")
    if kind == "step_started":
        if event["attempt"] != step["attempt"] + 1:
            raise ValueError(f"step {step_id!r} starts at attempt {event['attempt']}")
        step.update(status="running", attempt=event["attempt"])
    else:
        step.update(status="completed", output=event["output"])
        run["timeline"].append((sequence, kind, step_id, latest))


class Replay:
    """Runs the generator over the timeline: each step it yields must be the one that was recorded."""

    def __init__(self, run: dict[str, Any], types: dict[str, Any]) -> None:
        self._run, self._types = run, types
        self._names: dict[str, int] = {}
        self._used: dict[str, str] = {}
        self.now: datetime | None = None

    def carry_on(self, generator: Generator[Asked, Any, Any]) -> dict[str, Any]:
        """Up to the first step without an output: the command that asks for it."""
        timeline = iter(self._run["timeline"])
        try:
            asked = next(generator)
            while True:
                step_id, name, stored = self._identify(asked)
                entry = next(timeline, None)
                if entry is None:
                    retry = orjson.loads(orjson.dumps(_RETRY))
                    return {"type": "step", "step_id": step_id, "step_name": name, "input": stored, "retry": retry}
                self._check(entry, step_id, name, stored)
                entry = next(timeline, None)
                if entry is None or entry[1:3] != ("step_completed", step_id):
                    raise ValueError(f"step {step_id!r} is not completed")
                self.now = entry[3]
                asked = generator.send(msgspec.convert(self._run["steps"][step_id]["output"], self._types[name]))
        except StopIteration as end:
            return {"type": "complete", "output": end.value}

    def _identify(self, asked: Asked) -> tuple[str, str, Any]:
        name, arguments = asked
        self._names[name] = count = self._names.get(name, 0) + 1
        step_id = name if count == 1 else f"{name}#{count}"
        if self._used.setdefault(step_id, name) != name:
            raise ValueError(f"step id {step_id!r} is used twice")
        value = arguments[0] if len(arguments) == 1 else {"$args": dict(enumerate(arguments))}
        return step_id, name, orjson.loads(orjson.dumps(value))

    def _check(self, entry: tuple[Any, ...], step_id: str, name: str, stored: Any) -> None:
        _, kind, recorded_id, _ = entry
        recorded = self._run["steps"][recorded_id]
        if kind != "step_created" or recorded_id != step_id:
            raise ValueError(f"the code asks for {step_id!r}, recorded is {recorded_id!r}")
        if recorded["step_name"] != name or recorded["input"] != stored or recorded["retry"] != _RETRY:
            raise ValueError(f"step {step_id!r} came back with another definition")


def recover(
    history: bytes, workflow: Callable[[Any], Generator[Asked, Any, Any]], types: dict[str, Any]
) -> dict[str, Any]:
    """From bytes to the next command."""
    run = project(history)
    return Replay(run, types).carry_on(workflow(run["input"]))
