"""Small random workflows: plans made of phases, read as pure functions of a run's history, and the steps they call.

A plan is a list of phases. The first one that the history does not satisfy is asked for; when all are satisfied the run
ends. So every answer follows from what is resolved, and a replay always gives the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from perdure.instant import format_instant
from perdure.kernel import Reads

__all__ = ["INLINE", "LIMITED", "LIMIT_MS", "PLAIN", "REPAIRED", "Member", "Phase", "Plan", "Trouble"]

PLAIN: Final = "plain"
LIMITED: Final = "limited"
INLINE: Final = "inline"
LIMIT_MS: Final = 900
"""Time limit of the steps called `limited`."""
REPAIRED: Final = "repaired"
"""The progress entry that a host records when the trouble of a plan is over."""
_END_OF_STEP: Final = ("completed", "failed")
_END_OF_HOOK: Final = ("received", "disposed")

Trouble = Literal["blank", "twice", "resolved", "unknown_run", "raises", "own_token", "drift", "cancel"]


@dataclass(frozen=True, slots=True)
class Member:
    """One thing a plan opens. `body` is the command's JSON object."""

    kind: Literal["step", "wait", "hook", "progress", "child"]
    id: str
    body: dict[str, Any] = field(repr=False)

    def resolved(self, reads: Reads) -> bool:
        """Whether its end, whatever it is, is in the history."""
        match self.kind:
            case "step":
                step = reads.step(self.id)
                return step is not None and step.status in _END_OF_STEP
            case "wait":
                wait = reads.wait(self.id)
                return wait is not None and wait.status == "completed"
            case "hook":
                hook = reads.hook(self.id)
                return hook is not None and hook.status in _END_OF_HOOK
            case "progress":
                return reads.progress(self.id) is not None
        return reads.child(self.id) is not None

    def closing(self, reads: Reads) -> dict[str, Any] | None:
        """The command that closes it, if it is still open and can be closed."""
        if self.kind == "wait":
            wait = reads.wait(self.id)
            return {"type": "close_wait", "wait_id": self.id} if wait is not None and wait.status == "waiting" else None
        if self.kind == "hook":
            hook = reads.hook(self.id)
            return (
                {"type": "dispose_hook", "hook_id": self.id} if hook is not None and hook.status == "active" else None
            )
        return None


@dataclass(frozen=True, slots=True)
class Phase:
    """Members opened together. `need`: all of them must be resolved, any of them, or they must only be closed."""

    members: tuple[Member, ...]
    need: Literal["all", "any", "closed"] = "all"
    concurrency: int | None = None
    style: Literal["group", "single"] = "group"
    trouble: Trouble | None = None

    def ask(self, reads: Reads) -> dict[str, Any] | None:
        """The command this phase still asks for, None if it is satisfied. Raises what a workflow in trouble raises."""
        if self.trouble is not None:
            return None if reads.progress(REPAIRED) is not None else _troubled(self, reads)
        if self.need == "closed":
            return _all([body for member in self.members if (body := member.closing(reads)) is not None])
        resolved = [member.resolved(reads) for member in self.members]
        if all(resolved) or (self.need == "any" and any(resolved)):
            return None
        bodies = [member.body for member in self.members]
        if self.style == "single":
            return bodies[resolved.index(False)]
        if self.concurrency is None and all(body["type"] == "schedule_step" for body in bodies):
            return {"type": "schedule_steps", "steps": [_without_type(body) for body in bodies]}
        return _all(bodies, self.concurrency)


@dataclass(frozen=True, slots=True)
class Plan:
    """A workflow. `ends` and `cleans_up` say how it ends by itself, and after its clean-up."""

    name: str
    phases: tuple[Phase, ...]
    cleanup: tuple[Phase, ...]
    ends: Literal["complete", "fail", "timeout"] = "complete"
    cleans_up: Literal["cancel", "fail", "timeout"] = "cancel"

    def ask(self, reads: Reads) -> dict[str, Any]:
        """The command for what the history shows."""
        cancelling = reads.cancellation is not None
        for phase in self.cleanup if cancelling else self.phases:
            if (command := phase.ask(reads)) is not None:
                return command
        how = self.cleans_up if cancelling else self.ends
        match how:
            case "complete":
                return {"type": "complete", "output": orjson.Fragment(self._output(reads))}
            case "fail":
                return {"type": "fail", "error": "the plan wants it so"}
            case "timeout":
                return {"type": "timeout", "deadline": format_instant(0), "reason": "the plan wants it so"}
        return {"type": "cancel"}

    def _output(self, reads: Reads) -> bytes:
        outputs = {}
        for member in self.members("step"):
            step = reads.step(member.id)
            if step is not None and step.status == "completed" and step.output is not None:
                outputs[member.id] = orjson.Fragment(step.output)
        return orjson.dumps(outputs)

    def members(self, kind: str) -> Iterable[Member]:
        """All members of a kind, clean-up included."""
        return (m for phase in (*self.phases, *self.cleanup) for m in phase.members if m.kind == kind)


def _all(bodies: list[dict[str, Any]], concurrency: int | None = None) -> dict[str, Any] | None:
    if not bodies:
        return None
    names = {"schedule_step": "step", "create_hook": "hook"}
    members = [{**body, "type": names.get(body["type"], body["type"])} for body in bodies]
    command: dict[str, Any] = {"type": "schedule_all", "members": members}
    return command if concurrency is None else {**command, "concurrency": concurrency}


def _without_type(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != "type"}


def _step(step_id: str, input: object = None) -> dict[str, Any]:
    return {"type": "step", "step_id": step_id, "step_name": PLAIN, "input": input}


def _troubled(phase: Phase, reads: Reads) -> dict[str, Any]:
    """A command that is refused, with a member that would be legal by itself: nothing of it may be written."""
    known = next((member for member in phase.members if member.resolved(reads)), None)
    match phase.trouble:
        case "blank":
            members = [_step("bad-1"), _step(" ")]
        case "twice":
            members = [_step("bad-1"), _step("bad-1")]
        case "unknown_run":
            child = {"reference_id": "bad-1", "kind": "k", "operation_id": "o", "flow_run_id": "no-such-run"}
            members = [_step("bad-2"), {"type": "link_child_operation", "child": child}]
        case "own_token":
            hooks = [{"type": "hook", "hook_id": f"bad-{n}", "token": "canary-bad", "metadata": None} for n in (1, 2)]
            members = [_step("bad-3"), *hooks]
        case "cancel":
            return {"type": "cancel"}
        case "drift" if known is not None and known.kind == "step":
            members = [_step("bad-1"), {**known.body, "type": "step", "input": "another"}]
        case "resolved" if known is not None and known.kind == "step":
            return known.body
        case _:
            raise ValueError("this workflow has a bug")
    return {"type": "schedule_all", "members": members}
