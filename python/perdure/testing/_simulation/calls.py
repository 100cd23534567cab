"""Calls from outside, and what the tables of spec 06 say of them: an account of its own, beside the kernels'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import orjson

from perdure.engine import FlowEngine
from perdure.instant import MAX_NS, Instant
from perdure.kernel import Run
from perdure.snapshot import WorkflowRunSnapshot
from perdure.spec import WorkflowSpec
from perdure.task_kinds import (
    DisposeHook,
    DisposeHookByToken,
    DriveRun,
    FlowTask,
    ResumeDueRetries,
    ResumeDueWaits,
    ResumeHook,
    ResumeHookByToken,
    ResumeScheduledRun,
    ResumeWait,
)
from perdure.testing._simulation.programs import REPAIRED, Plan

__all__ = ["Call", "draw_call", "draw_task", "has_happened", "verdict"]

_FORCE: Final = ("force_cancel", "terminate_for_timeout", "terminate_for_host_shutdown")


@dataclass(frozen=True, slots=True)
class Call:
    """One host call. `arguments` are those of the engine's method beside the run id."""

    op: str
    run_id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = " ".join(f"{key}={value}" for key, value in self.arguments.items() if key not in ("token", "workflow"))
        return f"{self.op} {self.run_id} {shown}"

    @property
    def drives(self) -> bool:
        """Whether the call may go on to drive, so that it may be answered with what the drive raises."""
        return self.op in ("drive", "resume_due", "by_token") or bool(
            self.arguments.get("drive", self.op not in _QUIET)
        )

    async def make(self, engine: FlowEngine, now: int) -> WorkflowRunSnapshot | None:
        """Makes the call on an engine."""
        if self.op == "resume_due":
            moment = Instant(min(now + self.arguments["ahead_ns"], MAX_NS))
            how = self.arguments["how"]
            if how == "run":
                await engine.resume_scheduled_run(self.run_id, moment)
            else:
                await (engine.resume_due_waits(moment) if how == "waits" else engine.resume_due_retries(moment))
            return None
        if self.op == "by_token":
            method = engine.resume_hook_by_token if "payload" in self.arguments else engine.dispose_hook_by_token
            await method(**self.arguments)
            return None
        if self.op == "start":
            await engine.start(run_id=self.run_id, **self.arguments)
            return None
        answer = await getattr(engine, self.op)(self.run_id, **self.arguments)
        return answer if isinstance(answer, WorkflowRunSnapshot) else None


_QUIET: Final = (*_FORCE, "record_progress", "link_child_operation", "release_hold", "snapshot")


def draw_call(random: Random, run_id: str, plan: Plan, run: Run | None, build: str | None) -> Call:
    """A call on a run; `run` is what is durable of it, so that the call hits something often. `build`: what the run is
    pinned to."""
    quiet = {} if random.random() < 0.6 else {"drive": False}
    hooks, waits = [m.id for m in plan.members("hook")], [m.id for m in plan.members("wait")]
    active = [] if run is None or run.last_sequence == 0 else [hook.hook_id for hook in run.active_hooks()]
    hook_id = random.choice(active or hooks or ["h-none"])
    kinds = (
        "hook",
        "dispose",
        "token",
        "wait",
        "cancel",
        "force",
        "progress",
        "child",
        "due",
        "drive",
        "start",
        "hold",
    )
    weights = (22, 4, 7, 10, 5, 1.5, 6, 4, 14, 12, 8, 3)
    match random.choices(kinds, weights)[0]:
        case "hook":
            payload = random.choice(("yes", "yes", "yes", "no"))
            return Call("resume_hook", run_id, {"hook_id": hook_id, "payload": payload, **quiet})
        case "dispose":
            return Call("dispose_hook", run_id, {"hook_id": hook_id, **quiet})
        case "token":
            return _by_token(random, run_id, hook_id, plan, quiet)
        case "wait":
            early = {"early": True} if random.random() < 0.6 else {}
            return Call("resume_wait", run_id, {"wait_id": random.choice(waits or ["w-none"]), **early, **quiet})
        case "cancel":
            return Call("request_cancellation", run_id, {"reason": random.choice(("r", "r", "q")), **quiet})
        case "force":
            op = random.choice(_FORCE)
            deadline = {"deadline": "2030-01-01T00:00:00Z"} if op == "terminate_for_timeout" else {}
            return Call(op, run_id, {**deadline, "reason": "outside"})
        case "progress":
            return progress_call(run_id, "outside", random.choice((1, 1, 2)))
        case "child":
            child = {"reference_id": "o", "kind": "job", "operation_id": random.choice(("o", "o", "p"))}
            return Call("link_child_operation", run_id, {"child": child})
        case "due":
            ahead = random.choice((0, 0, 0, -1_000, 5_000, 40_000)) * 1_000_000
            return Call("resume_due", run_id, {"how": random.choice(("waits", "retries", "run")), "ahead_ns": ahead})
        case "drive":
            return Call("drive", run_id, {"take_over": True} if random.random() < 0.1 else {})
        case "hold":
            return Call("release_hold", run_id)
    return start_call(run_id, plan.name, random.choice((1, 1, 1, 2)), build, **quiet)


def start_call(run_id: str, name: str, input: int, build: str | None = None, **options: Any) -> Call:
    """A start, or the redelivery of one."""
    return Call("start", run_id, {"workflow": WorkflowSpec.python(name, build=build), "input": input, **options})


def draw_task(random: Random, call: Call, now: int) -> FlowTask | None:
    """The task that asks for what a drawn call asks for, if there is one (spec 08 §8.2)."""
    arguments, run_id = call.arguments, call.run_id
    moment = Instant(min(MAX_NS, now + arguments.get("ahead_ns", 0)))
    match call.op:
        case "resume_hook":
            return ResumeHook(run_id, arguments["hook_id"], arguments["payload"])
        case "dispose_hook":
            return DisposeHook(run_id, arguments["hook_id"])
        case "by_token" if "payload" in arguments:
            return ResumeHookByToken(arguments["token"], arguments["payload"])
        case "by_token":
            return DisposeHookByToken(arguments["token"])
        case "resume_wait":
            return ResumeWait(run_id, arguments["wait_id"])
        case "resume_due":
            kinds: list[FlowTask] = [
                *(ResumeDueWaits(moment), ResumeDueRetries(moment), ResumeScheduledRun(run_id, moment))
            ]
            return random.choice(kinds)
        case "drive":
            return DriveRun(run_id)
    return None


def progress_call(run_id: str, progress_id: str, completed: int) -> Call:
    """A progress entry from outside."""
    return Call("record_progress", run_id, {"progress": {"progress_id": progress_id, "completed": completed}})


def repair_call(run_id: str) -> Call:
    """Ends the trouble of a plan."""
    return progress_call(run_id, REPAIRED, 1)


def _by_token(random: Random, run_id: str, hook_id: str, plan: Plan, quiet: dict[str, Any]) -> Call:
    bodies = [m.body for m in plan.members("hook") if m.id == hook_id]
    token = bodies[0]["token"] if bodies else "canary-none"
    payload = {"payload": "yes"} if random.random() < 0.8 else {}
    return Call("by_token", run_id, {"token": token, **payload, **quiet})


# -- the tables -------------------------------------------------------------------------------------------------------


def verdict(call: Call, run: Run, clock: int) -> str | None:
    """How the call must be answered on this state of the run: "ok", or the name of the refusal; None: not judged."""
    arguments = call.arguments
    if run.last_sequence == 0:
        return (
            "ok"
            if call.op == "start"
            else None
            if call.op in ("resume_due", "by_token", "release_hold")
            else "RunNotFound"
        )
    match call.op:
        case "resume_hook" | "dispose_hook":
            return _of_hook(call, run)
        case "resume_wait":
            return _of_wait(arguments["wait_id"], bool(arguments.get("early")), run, clock)
        case "request_cancellation":
            if run.terminal or run.cancellation is None:
                return "ok"
            request = orjson.loads(run.cancellation)["request"]
            return "ok" if request.get("reason") == arguments["reason"] else "RunConflict"
        case "record_progress":
            progress = arguments["progress"]
            return _of_fact(run, run.progress(progress["progress_id"]), progress)
        case "link_child_operation":
            child = arguments["child"]
            return _of_fact(run, run.child(child["reference_id"]), child)
        case "start":
            name, _ = run.workflow
            same = name == arguments["workflow"].name and orjson.loads(run.input) == arguments["input"]
            return "ok" if same else "RunConflict"
        case "drive" | "force_cancel" | "terminate_for_timeout" | "terminate_for_host_shutdown":
            return "ok"
    return None


def _of_hook(call: Call, run: Run) -> str:
    hook = run.hook(call.arguments["hook_id"])
    if hook is None:
        return "RunTerminal" if run.terminal else "InvalidTransition"
    if hook.status == "active":
        return "RunTerminal" if run.terminal else "ok"
    if call.op == "dispose_hook":
        return "ok" if hook.status == "disposed" else "HookConflict"
    same = hook.status == "received" and orjson.loads(hook.payload or b"null") == call.arguments["payload"]
    return "ok" if same else "HookConflict"


def _of_wait(wait_id: str, early: bool, run: Run, clock: int) -> str:
    wait = run.wait(wait_id)
    if wait is None:
        return "RunTerminal" if run.terminal else "InvalidTransition"
    if run.terminal or wait.status != "waiting" or early or wait.resume_at <= clock:
        return "ok"
    return "InvalidTransition"


def _of_fact(run: Run, known: bytes | None, fact: Mapping[str, Any]) -> str:
    if run.terminal:
        return "RunTerminal"
    return "ok" if known is None or orjson.loads(known) == fact else "NonDeterministic"


def has_happened(call: Call, run: Run) -> bool:
    """Whether the effect of an accepted call is in the history (invariant 1)."""
    arguments = call.arguments
    match call.op:
        case "resume_hook" | "dispose_hook":
            hook = run.hook(arguments["hook_id"])
            return hook is not None and hook.status == ("received" if call.op == "resume_hook" else "disposed")
        case "resume_wait":
            wait = run.wait(arguments["wait_id"])
            return run.terminal or (wait is not None and wait.status != "waiting")
        case "request_cancellation":
            return run.terminal or run.cancellation is not None
        case "record_progress":
            return run.progress(arguments["progress"]["progress_id"]) is not None
        case "link_child_operation":
            return run.child(arguments["child"]["reference_id"]) is not None
        case "start":
            return run.last_sequence > 0
        case "force_cancel" | "terminate_for_timeout" | "terminate_for_host_shutdown":
            return run.terminal
    return True
