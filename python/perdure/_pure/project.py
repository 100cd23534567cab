"""Projection: the rules by which one event after another makes a run (spec 02)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from perdure._pure.event import INVISIBLE, Event, Spec, decode_line, is_blank
from perdure._pure.json import quote
from perdure._pure.retry import Policy
from perdure._pure.state import Cause, Fact, Hook, Request, State, Step, Wait, refuse
from perdure.errors import InvalidTransition, InvalidWorkflow
from perdure.instant import format_instant

__all__ = ["apply", "fold", "policy_refusal"]


def fold(state: State, lines: bytes) -> None:
    """Folds lines into `state`, which is spoilt if they are refused.

    A line that cannot be decoded wins over an earlier one that breaks a rule (R61), so after such a one the rest is
    only decoded. Blank lines are skipped and counted.
    """
    refusal: InvalidTransition | InvalidWorkflow | None = None
    for number, raw in enumerate(lines.split(b"\n"), start=1):
        if not raw.strip(b" \t\r"):
            continue
        line = decode_line(raw, state.run_id, number)
        if refusal is None:
            try:
                apply(state, line.event, line.sequence, line.timestamp)
            except (InvalidTransition, InvalidWorkflow) as error:
                refusal = error
    if refusal is not None:
        raise refusal


def apply(state: State, event: Event, sequence: int, timestamp: int) -> None:
    """One event, by the checks of spec 2.1 and then its own rule. Raises `InvalidTransition` or `InvalidWorkflow`."""
    first = state.last_sequence == 0
    if first:
        if event.type != "run_created":
            raise refuse(state, "first_not_created", sequence=sequence)
        spec: Spec = event.fields["spec"]
        spec.check()
    if sequence != state.last_sequence + 1:
        raise refuse(state, "sequence_gap", value=state.last_sequence + 1, sequence=sequence)
    if state.terminal:
        raise refuse(state, "run_ended", sequence=sequence)
    state.latest = timestamp if first else max(state.latest, timestamp)
    _RULES[event.type](_Moment(state, sequence, timestamp), event.fields)
    if event.type in _SHOWN:
        kind = event.type.partition("_")[0]
        state.marks.append((sequence, event.type, event.fields.get(f"{kind}_id", ""), state.latest))
    state.last_sequence = sequence
    state.updated_at = timestamp
    if event.type not in INVISIBLE:
        state.last_visible = sequence


class _Moment(NamedTuple):
    """The state an event meets, and where the event stands."""

    state: State
    sequence: int
    timestamp: int

    def refusal(
        self, rule: str, kind: str | None = None, key: str | None = None, value: object = None
    ) -> InvalidTransition:
        return refuse(self.state, rule, kind, key, value, self.sequence)

    def step(self, fields: dict[str, Any]) -> Step:
        step = self.state.steps.get(fields["step_id"])
        if step is None:
            raise self.refusal("id_unknown", "step", fields["step_id"])
        return step

    def running_step(self, fields: dict[str, Any]) -> Step:
        step = self.step(fields)
        if step.status != "running":
            raise self.refusal("step_not_running", "step", step.step_id, step.status)
        return step

    def attempted_step(self, fields: dict[str, Any]) -> Step:
        """The running step whose current attempt the event names."""
        step = self.running_step(fields)
        self.check_attempt(step, fields["attempt"], step.attempt)
        return step

    def check_attempt(self, step: Step, attempt: int, expected: int) -> None:
        if attempt != expected:
            raise self.refusal("attempt_mismatch", "step", step.step_id, expected)

    def active_hook(self, fields: dict[str, Any]) -> Hook:
        hook = self.state.hooks.get(fields["hook_id"])
        if hook is None:
            raise self.refusal("id_unknown", "hook", fields["hook_id"])
        if hook.status != "active":
            raise self.refusal("hook_not_active", "hook", hook.hook_id, hook.status)
        return hook

    def end(self, status: str, outcome: str, error: str | None, output: str | None = None) -> None:
        state = self.state
        state.status, state.outcome, state.error, state.output = status, outcome, error, output
        state.ended_at = self.timestamp


def policy_refusal(
    state: State, step_id: str, policy: Policy, anchor: int, sequence: int | None
) -> InvalidTransition | None:
    """The refusal of an invalid policy (spec 5.2), judged at `anchor`; None for a valid one."""
    fault = policy.fault()
    if fault is not None:
        return refuse(state, "policy_invalid", "step", step_id, fault, sequence)
    if not policy.fits(anchor):
        return refuse(state, "delay_out_of_range", "step", step_id, policy.largest_delay_ms, sequence)
    return None


# Runs (spec 2.2) ----------------------------------------------------------------------------------------------------


def _run_created(at: _Moment, fields: dict[str, Any]) -> None:
    if at.state.spec is not None:
        raise at.refusal("created_again")
    at.state.spec, at.state.input = fields["spec"], fields["input"]
    at.state.created_at = at.timestamp


def _run_started(at: _Moment, fields: dict[str, Any]) -> None:
    if at.state.status != "pending":
        raise at.refusal("run_not_pending", value=at.state.status)
    at.state.status = "running"


def _run_completed(at: _Moment, fields: dict[str, Any]) -> None:
    if at.state.status == "cancelling":
        raise at.refusal("complete_while_cancelling")
    output = fields["output"]
    at.end("completed", f'{{"type":"completed","output":{output}}}', None, output)


def _run_failed(at: _Moment, fields: dict[str, Any]) -> None:
    error = fields["error"]
    at.end("failed", f'{{"type":"failed","error":{quote(error)}}}', error)


def _run_cancellation_requested(at: _Moment, fields: dict[str, Any]) -> None:
    state = at.state
    if state.request is not None:
        raise at.refusal("request_twice")
    state.status = "cancelling"
    state.request = Request(fields["request"], at.timestamp, at.sequence)
    for step in list(state.steps.opened()):
        state.put_step(step._replace(status="cancelled", retry_after=None, resolved=at.sequence))
    for wait in list(state.waits.opened()):
        state.waits.put(wait.wait_id, wait._replace(status="cancelled", resolved=at.sequence))
    for hook in list(state.hooks.opened()):
        state.hooks.put(hook.hook_id, hook._replace(status="cancelled", resolved=at.sequence))


def _run_cancelled(at: _Moment, fields: dict[str, Any]) -> None:
    reason = fields["reason"]
    at.end("cancelled", f'{{"type":"cancelled"{_reason(reason)}}}', reason)


def _run_timed_out(at: _Moment, fields: dict[str, Any]) -> None:
    deadline, reason = format_instant(fields["deadline"]), fields["reason"]
    outcome = f'{{"type":"timed_out","deadline":"{deadline}"{_reason(reason)}}}'
    at.end("failed", outcome, f"run timed out at {deadline}" if reason is None else reason)


def _run_retry_exhausted(at: _Moment, fields: dict[str, Any]) -> None:
    step = at.step(fields)
    error, attempt = fields["error"], fields["attempt"]
    for part, agrees in (
        ("status", step.status == "failed"),
        ("attempt", step.attempt == attempt),
        ("error", step.error == error),
        ("policy", step.policy.fails_run),
    ):
        if not agrees:
            raise at.refusal("exhausted_mismatch", "step", step.step_id, part)
    outcome = f'{{"type":"retry_exhausted","step_id":{quote(step.step_id)},"attempt":{attempt},"error":{quote(error)}}}'
    at.end("failed", outcome, error)


def _run_host_shutdown(at: _Moment, fields: dict[str, Any]) -> None:
    reason = fields["reason"]
    at.end("failed", f'{{"type":"host_shutdown"{_reason(reason)}}}', "host shut down" if reason is None else reason)


def _reason(reason: str | None) -> str:
    return "" if reason is None else f',"reason":{quote(reason)}'


def _run_progress_recorded(at: _Moment, fields: dict[str, Any]) -> None:
    progress, table = fields["progress"], at.state.progress
    fault = "progress_id" if is_blank(progress.progress_id) else progress.fault()
    if fault is not None:
        raise at.refusal("progress_invalid", "progress", progress.progress_id, fault)
    if table.get(progress.progress_id):
        raise at.refusal("id_used", "progress", progress.progress_id)
    table.put(progress.progress_id, Fact(progress, at.sequence))


def _child_operation_linked(at: _Moment, fields: dict[str, Any]) -> None:
    child, table = fields["child"], at.state.children
    fault = "reference_id" if is_blank(child.reference_id) else child.fault()
    if fault is not None:
        raise at.refusal("child_invalid", "child", child.reference_id, fault)
    if table.get(child.reference_id):
        raise at.refusal("id_used", "child", child.reference_id)
    table.put(child.reference_id, Fact(child, at.sequence))


# Steps (spec 2.3) ---------------------------------------------------------------------------------------------------


def _step_created(at: _Moment, fields: dict[str, Any]) -> None:
    step_id, policy = fields["step_id"], fields["retry"]
    if at.state.steps.get(step_id):
        raise at.refusal("id_used", "step", step_id)
    refusal = policy_refusal(at.state, step_id, policy, at.timestamp, at.sequence)
    if refusal is not None:
        raise refusal
    at.state.put_step(Step(step_id, fields["step_name"], "pending", fields["input"], policy, at.sequence))


def _step_started(at: _Moment, fields: dict[str, Any]) -> None:
    step = at.step(fields)
    if step.status != "pending":
        raise at.refusal("step_not_pending", "step", step.step_id, step.status)
    at.check_attempt(step, fields["attempt"], step.attempt + 1)
    at.state.put_step(step._replace(status="running", attempt=fields["attempt"], retry_after=None))


def _step_completed(at: _Moment, fields: dict[str, Any]) -> None:
    step = at.running_step(fields)
    at.state.put_step(
        step._replace(
            status="completed",
            output_text=fields["output"],
            error=None,
            retry_after=None,
            failure_text=None,
            resolved=at.sequence,
        )
    )


def _step_retrying(at: _Moment, fields: dict[str, Any]) -> None:
    step = at.attempted_step(fields)
    if step.attempt >= step.policy.budget:
        raise at.refusal("retry_beyond_budget", "step", step.step_id, step.policy.budget)
    retry_after = fields["retry_after"]
    if step.policy.delay_ms > 0 and retry_after is None:
        raise at.refusal("retry_after_missing", "step", step.step_id)
    if step.policy.delay_ms == 0 and retry_after is not None and fields["suggested_delay_ms"] is None:
        raise at.refusal("retry_after_unexpected", "step", step.step_id)
    at.state.put_step(
        step._replace(
            status="pending",
            error=fields["error"],
            retry_after=retry_after,
            failure_text=fields["failure"] or step.failure_text,
        )
    )


def _step_failed(at: _Moment, fields: dict[str, Any]) -> None:
    step = at.attempted_step(fields)
    if step.attempt < step.policy.budget:
        raise at.refusal("attempts_left", "step", step.step_id, step.policy.budget)
    _fail(at, step, fields, exhausted=True)


def _step_non_retryable(at: _Moment, fields: dict[str, Any]) -> None:
    _fail(at, at.attempted_step(fields), fields, exhausted=False)


def _fail(at: _Moment, step: Step, fields: dict[str, Any], *, exhausted: bool) -> None:
    at.state.put_step(
        step._replace(
            status="failed",
            error=fields["error"],
            retry_after=None,
            failure_text=fields["failure"] or step.failure_text,
            resolved=at.sequence,
        )
    )
    if step.policy.fails_run and at.state.cause is None:
        at.state.cause = Cause(step.step_id, exhausted)


def _step_cancelled(at: _Moment, fields: dict[str, Any]) -> None:
    step = at.step(fields)
    if not step.is_open:
        raise at.refusal("step_not_open", "step", step.step_id, step.status)
    at.check_attempt(step, fields["attempt"], step.attempt)
    at.state.put_step(step._replace(status="cancelled", error=fields["reason"], retry_after=None, resolved=at.sequence))


# Waits and hooks (spec 2.4, 2.5) ------------------------------------------------------------------------------------


def _wait_created(at: _Moment, fields: dict[str, Any]) -> None:
    wait_id, waits = fields["wait_id"], at.state.waits
    if waits.get(wait_id):
        raise at.refusal("id_used", "wait", wait_id)
    waits.put(wait_id, Wait(wait_id, "waiting", fields["resume_at"], at.sequence))


def _wait_completed(at: _Moment, fields: dict[str, Any]) -> None:
    waits = at.state.waits
    wait = waits.get(fields["wait_id"])
    if wait is None:
        raise at.refusal("id_unknown", "wait", fields["wait_id"])
    if wait.status != "waiting":
        raise at.refusal("wait_not_waiting", "wait", wait.wait_id, wait.status)
    waits.put(wait.wait_id, wait._replace(status="completed", resolved=at.sequence))


def _hook_created(at: _Moment, fields: dict[str, Any]) -> None:
    hook_id, hooks = fields["hook_id"], at.state.hooks
    if hooks.get(hook_id):
        raise at.refusal("id_used", "hook", hook_id)
    hooks.put(hook_id, Hook(hook_id, fields["token"], "active", fields["metadata"], at.sequence))


def _hook_received(at: _Moment, fields: dict[str, Any]) -> None:
    hook = at.active_hook(fields)
    at.state.hooks.put(
        hook.hook_id, hook._replace(status="received", payload_text=fields["payload"], resolved=at.sequence)
    )


def _hook_disposed(at: _Moment, fields: dict[str, Any]) -> None:
    hook = at.active_hook(fields)
    at.state.hooks.put(hook.hook_id, hook._replace(status="disposed", resolved=at.sequence))


_SHOWN: Final = frozenset(
    "run_started run_cancellation_requested step_created step_completed step_failed step_non_retryable step_cancelled "
    "wait_created wait_completed hook_created hook_received hook_disposed".split()
)
"""What workflow code is shown again, one by one, when it is replayed (R38)."""

_RULES: Final[dict[str, Callable[[_Moment, dict[str, Any]], None]]] = {
    "run_created": _run_created,
    "run_started": _run_started,
    "run_completed": _run_completed,
    "run_failed": _run_failed,
    "run_cancellation_requested": _run_cancellation_requested,
    "run_cancelled": _run_cancelled,
    "run_timed_out": _run_timed_out,
    "run_retry_exhausted": _run_retry_exhausted,
    "run_host_shutdown": _run_host_shutdown,
    "run_progress_recorded": _run_progress_recorded,
    "child_operation_linked": _child_operation_linked,
    "step_created": _step_created,
    "step_started": _step_started,
    "step_completed": _step_completed,
    "step_retrying": _step_retrying,
    "step_failed": _step_failed,
    "step_non_retryable": _step_non_retryable,
    "step_cancelled": _step_cancelled,
    "wait_created": _wait_created,
    "wait_completed": _wait_completed,
    "hook_created": _hook_created,
    "hook_received": _hook_received,
    "hook_disposed": _hook_disposed,
}
