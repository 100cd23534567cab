"""The program of a case: ordered rules for the workflow, listed outcomes for its steps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

from perdure.commands import RawCommand, RuntimeCommand
from perdure.errors import NonRetryable, RetryAfter
from perdure.flow import StepInvocation, WorkflowInvocation
from perdure.kernel import Reads
from perdure.step import Mode, StepPlan
from perdure.testing._conformance.values import dumps, equal, loads, plain
from perdure.testing.virtual_time import Phase, VirtualTimeLoop

__all__ = ["AsyncProgram", "PlainProgram", "Program"]

_MS: Final = 1_000_000
_PLACEHOLDER: Final = re.compile(r'\{"\$(step_output|step_failed|hook_payload)":("(?:[^"\\]|\\.)*")\}')


@dataclass(slots=True)
class Program:
    """What the workflow and the steps of a case do. Counts how often it was asked and which attempts it ran."""

    rules: list[dict[str, Any]]
    outcomes: Mapping[str, list[dict[str, Any]]]
    asks: int = 0
    steps: list[tuple[str, str, int]] = field(default_factory=list)  # run, step, attempt

    def run_workflow(self, invocation: WorkflowInvocation) -> RuntimeCommand:
        """The first rule whose conditions all hold."""
        self.asks += 1
        reads = invocation.reads
        for rule in self.rules:
            if all(_holds(condition, reads) for condition in rule["when"]):
                if "raise" in rule:
                    raise RuntimeError(rule["raise"])
                return RawCommand(_filled_in(dumps(rule["do"]), reads).encode("utf-8", "surrogatepass"))
        raise RuntimeError("no rule of the program holds")

    def attempt(self, invocation: StepInvocation) -> dict[str, Any]:
        """Notes the attempt; gives its listed outcome. The last one repeats."""
        self.steps.append((invocation.run_id, invocation.step_id, invocation.attempt))
        listed = self.outcomes.get(invocation.step_id) or self.outcomes.get(invocation.step_name) or [{"ok": None}]
        return listed[min(invocation.attempt, len(listed)) - 1]


class AsyncProgram(Program):
    """A `FlowRuntime` whose steps are coroutines that sleep on a loop with virtual time."""

    def __init__(
        self, rules: list[dict[str, Any]], outcomes: Mapping[str, list[dict[str, Any]]], loop: VirtualTimeLoop
    ) -> None:
        super().__init__(rules, outcomes)
        self._loop = loop

    async def run_step(self, invocation: StepInvocation) -> Any:
        """The listed outcome, after the time it takes."""
        outcome = self.attempt(invocation)
        takes_ms = outcome.get("sleep_ms", 0) + outcome.get("timeout_ms", 0)
        await self._loop.sleep_until_ns(self._loop.clock_ns() + takes_ms * _MS, Phase.STEPS)
        return _result(outcome)


class PlainProgram(Program):
    """A `FlowRuntime` whose steps are plain functions that take no time, run as `mode` says."""

    def __init__(self, rules: list[dict[str, Any]], outcomes: Mapping[str, list[dict[str, Any]]], mode: Mode) -> None:
        super().__init__(rules, outcomes)
        self._mode = mode

    def plan_step(self, step_name: str) -> StepPlan:
        return StepPlan(self._mode)

    def run_step(self, invocation: StepInvocation) -> Any:
        """The listed outcome."""
        return _result(self.attempt(invocation))


def _result(outcome: dict[str, Any]) -> Any:
    """Returns or raises what the outcome says."""
    if "timeout_ms" in outcome:
        raise TimeoutError(f"attempt timed out after {outcome['timeout_ms']} ms")
    if "non_retryable" in outcome:
        raise NonRetryable(outcome["non_retryable"])
    if "retry_after_ms" in outcome:
        # a plain int is milliseconds; timedelta ends far below 2^64 of them
        raise RetryAfter(cast(timedelta, outcome["retry_after_ms"]), outcome["err"])
    if "err" in outcome:
        raise RuntimeError(outcome["err"])
    return float("nan") if "unstorable" in outcome else plain(outcome["ok"])


def _holds(condition: dict[str, Any], reads: Reads) -> bool:
    ((name, wanted),) = condition.items()
    match name:
        case "not":
            return not _holds(wanted, reads)
        case "any":
            return any(_holds(member, reads) for member in wanted)
        case "all":
            return all(_holds(member, reads) for member in wanted)
        case "cancelling":
            return (reads.cancellation is not None) is wanted
        case "progress":
            return reads.progress(wanted) is not None
        case "child":
            return reads.child(wanted) is not None
        case "first_resolved":
            refs, expected = wanted
            first = reads.first_resolved([(kind, subject) for kind, subject in refs])
            return first is not None and list(first[:2]) == expected
        case "step_output_is" | "hook_payload_is":
            return _is(_read(name.removesuffix("_is"), wanted[0], reads), wanted[1])
    return _resolved(name, wanted, reads)


def _resolved(name: str, subject: str, reads: Reads) -> bool:
    kind, _, status = name.partition("_")
    found = {"step": reads.step, "wait": reads.wait, "hook": reads.hook}[kind](subject)
    return found is not None and found.status == status


def _is(raw: str | None, value: Any) -> bool:
    return raw is not None and equal(loads(raw), value)


def _read(name: str, subject: str, reads: Reads) -> str | None:
    """JSON text of what the context returns; None if there is nothing."""
    if name == "hook_payload":
        hook = reads.hook(subject)
        return None if hook is None or hook.payload is None else hook.payload.decode()
    step = reads.step(subject)
    if step is None:
        return None
    if name == "step_failed":
        return dumps(step.error) if step.status == "failed" else None
    return None if step.output is None else step.output.decode()


def _filled_in(command: str, reads: Reads) -> str:
    """The command with its placeholders replaced, every payload in its own spelling."""
    return _PLACEHOLDER.sub(lambda found: _read(found[1], loads(found[2]), reads) or "null", command)
