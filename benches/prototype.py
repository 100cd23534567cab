"""What a Python developer would write to carry a run on from its bytes: project with orjson, then run a generator again.

It does the work that recovery owes, by the rules of spec 02 for runs, steps, waits and hooks, each as briefly as we could
write it: every envelope and event has its fields and of the right types; sequences have no gaps and all lines are of one
run; nothing follows the end; ids are used once; statuses, attempts and the retry budget follow; policies make sense;
times are read, and the largest up to each event kept; what is open is indexed. Then the generator runs again: ids are
counted and used once, the arguments asked for now are compared with the recorded ones, name and policy too, and an output
becomes the dataclass it is annotated with, its fields checked. It knows no groups, signals, cancellation or staged events,
reads times to the microsecond and numbers as orjson rounds them.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Generator
from datetime import datetime
from functools import cache
from typing import Any

import orjson

__all__ = ["Asked", "recover"]

Asked = tuple[str, tuple[Any, ...]]
"""A step's name and its arguments."""
Fields = tuple[tuple[str, type], ...]
_RETRY = {"max_attempts": 3, "delay_ms": 0, "on_exhausted": "continue_workflow"}
_ENVELOPE: Fields = (("run_id", str), ("sequence", int), ("event_id", str), ("timestamp", str), ("event", dict))
_ATTEMPT: Fields = (("step_id", str), ("attempt", int))
_FIELDS: dict[str, Fields] = {
    "run_created": (("spec", dict),),
    "run_started": (),
    "run_completed": (),
    "run_failed": (("error", str),),
    "step_created": (("step_id", str), ("step_name", str)),
    "step_started": _ATTEMPT,
    "step_completed": (("step_id", str),),
    "step_retrying": (*_ATTEMPT, ("error", str)),
    "step_failed": (*_ATTEMPT, ("error", str)),
    "step_non_retryable": (*_ATTEMPT, ("error", str)),
    "wait_created": (("wait_id", str), ("resume_at", str)),
    "wait_completed": (("wait_id", str),),
    "hook_created": (("hook_id", str), ("token", str)),
    "hook_received": (("hook_id", str),),
    "hook_disposed": (("hook_id", str),),
}
_PAYLOADS = {"run_created": "input", "step_created": "input", "step_completed": "output", "hook_received": "payload"}
_EVENT_ID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_POLICY: Fields = (("max_attempts", int), ("delay_ms", int))


class Refused(Exception):
    """A history that breaks the rules, or a workflow that does not ask for what it says."""


def _shaped(value: dict[str, Any], fields: Fields) -> None:
    for name, kind in fields:
        if type(value.get(name)) is not kind:
            raise Refused(f"{name} is missing or no {kind.__name__}")


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise Refused("a time without a zone")
    return instant


class Run:
    """The fold of a history."""

    def __init__(self) -> None:
        self.run_id = ""
        self.status = ""
        self.spec: Any = None
        self.input: Any = None
        self.outcome: Any = None
        self.last_sequence = 0
        self.latest: Any = None
        self.steps: dict[str, dict[str, Any]] = {}
        self.waits: dict[str, dict[str, Any]] = {}
        self.hooks: dict[str, dict[str, Any]] = {}
        self.open: dict[tuple[str, str], dict[str, Any]] = {}
        self.timeline: list[tuple[int, str, str, datetime]] = []

    def fold(self, history: bytes) -> None:
        for line in history.split(b"\n"):
            if not line:
                continue
            envelope = orjson.loads(line)
            _shaped(envelope, _ENVELOPE)
            if not _EVENT_ID.fullmatch(envelope["event_id"]):
                raise Refused("event_id is no UUID")
            self.run_id = self.run_id or envelope["run_id"]
            if envelope["sequence"] != self.last_sequence + 1 or envelope["run_id"] != self.run_id:
                raise Refused(f"line {self.last_sequence + 1} is out of order or of another run")
            timestamp = _instant(envelope["timestamp"])
            if self.latest is None or timestamp > self.latest:
                self.latest = timestamp
            self._apply(envelope["event"])
            self.last_sequence += 1

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        fields = _FIELDS.get(kind) if isinstance(kind, str) else None
        if fields is None or kind is None:
            raise Refused(f"the prototype does not know {kind!r}")
        _shaped(event, fields)
        if (payload := _PAYLOADS.get(kind)) is not None and payload not in event:
            raise Refused(f"{payload} is missing")
        if (kind == "run_created") is not (self.status == ""):
            raise Refused("a history begins with its only run_created")
        if self.status in ("completed", "failed"):
            raise Refused("the run has ended")
        subject = kind.partition("_")[0]
        if subject == "run":
            self._run(kind, event)
        elif subject == "step":
            self._step(kind, event)
        else:
            self._other(subject, kind, event)

    def _run(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "run_created":
            self.status, self.spec, self.input = "pending", event["spec"], event["input"]
        elif kind == "run_started":
            if self.status != "pending":
                raise Refused(f"the run is {self.status}")
            self.status = "running"
            self._show(kind, "")
        else:
            self.status, self.outcome = kind.removeprefix("run_"), event.get("output", event.get("error"))

    def _step(self, kind: str, event: dict[str, Any]) -> None:
        step_id = event["step_id"]
        step = self.steps.get(step_id)
        if kind == "step_created":
            if step is not None:
                raise Refused(f"step {step_id!r} is created twice")
            policy = event.get("retry", _RETRY)
            _check_policy(policy)
            self.steps[step_id] = self.open["step", step_id] = {
                "name": event["step_name"],
                "input": event["input"],
                "retry": policy,
                "status": "pending",
                "attempt": 0,
                "output": None,
                "error": None,
                "retry_after": None,
                "resolved": 0,
            }
            self._show(kind, step_id)
            return
        if step is None:
            raise Refused(f"step {step_id!r} is unknown")
        starts = kind == "step_started"
        if step["status"] != ("pending" if starts else "running"):
            raise Refused(f"step {step_id!r} is {step['status']}")
        if event.get("attempt", step["attempt"]) != step["attempt"] + starts:
            raise Refused(f"step {step_id!r} is at attempt {step['attempt']}")
        if starts:
            step.update(status="running", attempt=event["attempt"], retry_after=None)
        elif kind == "step_retrying":
            self._retry(step_id, step, event)
        else:
            self._resolve_step(kind, step_id, step, event)

    def _retry(self, step_id: str, step: dict[str, Any], event: dict[str, Any]) -> None:
        after = event.get("retry_after")
        if step["attempt"] >= max(step["retry"]["max_attempts"], 1):
            raise Refused(f"step {step_id!r} has no attempts left")
        if (after is None) is (step["retry"]["delay_ms"] > 0):
            raise Refused(f"step {step_id!r} is retried at another time than its policy says")
        step.update(status="pending", error=event["error"], retry_after=None if after is None else _instant(after))

    def _resolve_step(self, kind: str, step_id: str, step: dict[str, Any], event: dict[str, Any]) -> None:
        if kind == "step_completed":
            step.update(status="completed", output=event["output"], error=None, resolved=self.last_sequence + 1)
        else:
            if kind == "step_failed" and step["attempt"] < max(step["retry"]["max_attempts"], 1):
                raise Refused(f"step {step_id!r} has attempts left")
            step.update(status="failed", error=event["error"], resolved=self.last_sequence + 1)
        del self.open["step", step_id]
        self._show(kind, step_id)

    def _other(self, subject: str, kind: str, event: dict[str, Any]) -> None:
        """Waits and hooks."""
        subject_id, table = event[f"{subject}_id"], self.waits if subject == "wait" else self.hooks
        if kind.endswith("_created"):
            if subject_id in table:
                raise Refused(f"{subject} {subject_id!r} is created twice")
            due = _instant(event["resume_at"]) if subject == "wait" else None
            table[subject_id] = self.open[subject, subject_id] = {**event, "due": due, "status": "open", "resolved": 0}
        else:
            found = self.open.pop((subject, subject_id), None)
            if found is None:
                raise Refused(f"{subject} {subject_id!r} is not open")
            found.update(status=kind, payload=event.get("payload"), resolved=self.last_sequence + 1)
        self._show(kind, subject_id)

    def _show(self, kind: str, subject: str) -> None:
        self.timeline.append((self.last_sequence + 1, kind, subject, self.latest))


def _check_policy(policy: Any) -> None:
    if type(policy) is not dict:
        raise Refused("retry is no object")
    _shaped(policy, _POLICY)
    delay, most = policy["delay_ms"], policy.get("max_delay_ms", 0)
    if (delay < 1 or most < delay) if policy.get("backoff") == "exponential" else most:
        raise Refused("the retry policy contradicts itself")


class Replay:
    """Runs the generator over the timeline: each step it yields must be the one that was recorded."""

    def __init__(self, run: Run, types: dict[str, Any]) -> None:
        self._run, self._types = run, types
        self._names: dict[str, int] = {}
        self._used: dict[str, str] = {}
        self.now: datetime | None = None

    def carry_on(self, generator: Generator[Asked, Any, Any]) -> dict[str, Any]:
        """Up to the first step without an output: the command that asks for it."""
        timeline = iter(self._run.timeline)
        if next(timeline, (0, ""))[1] != "run_started":
            raise Refused("the run has not started")
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
                    raise Refused(f"step {step_id!r} is not completed")
                self.now = entry[3]
                asked = generator.send(_made(self._types[name], self._run.steps[step_id]["output"]))
        except StopIteration as end:
            return {"type": "complete", "output": end.value}

    def _identify(self, asked: Asked) -> tuple[str, str, Any]:
        name, arguments = asked
        self._names[name] = count = self._names.get(name, 0) + 1
        step_id = name if count == 1 else f"{name}#{count}"
        if self._used.setdefault(step_id, name) != name:
            raise Refused(f"step id {step_id!r} is used twice")
        value = arguments[0] if len(arguments) == 1 else {"$args": dict(enumerate(arguments))}
        return step_id, name, orjson.loads(orjson.dumps(value))

    def _check(self, entry: tuple[Any, ...], step_id: str, name: str, stored: Any) -> None:
        _, kind, recorded_id, _ = entry
        recorded = self._run.steps.get(recorded_id, {})
        if kind != "step_created" or recorded_id != step_id:
            raise Refused(f"the code asks for {step_id!r}, recorded is {recorded_id!r}")
        if recorded["name"] != name or recorded["input"] != stored or recorded["retry"] != _RETRY:
            raise Refused(f"step {step_id!r} came back with another definition")


@cache
def _members(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _made(kind: Any, output: Any) -> Any:
    """The dataclass of an output. Its fields are of the JSON types."""
    if type(output) is not dict:
        raise Refused(f"the output is no {kind.__name__}")
    for name, member in _members(kind).items():
        if type(output.get(name)) is not member:
            raise Refused(f"{name} of a {kind.__name__} is missing or no {member.__name__}")
    return kind(**output)


def recover(
    history: bytes, workflow: Callable[[Any], Generator[Asked, Any, Any]], types: dict[str, Any]
) -> dict[str, Any]:
    """From bytes to the next command."""
    run = Run()
    run.fold(history)
    return Replay(run, types).carry_on(workflow(run.input))
