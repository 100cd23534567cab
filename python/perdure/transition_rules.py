"""The text of each rule that an `InvalidTransition` can name: a leaf beside `errors`."""

from __future__ import annotations

from typing import Final

__all__ = ["RULES"]

RULES: Final[dict[str, str]] = {
    # projection (spec 02) -----------------------------------------------------------------------------------
    "first_not_created": "the first event must be run_created",
    "sequence_gap": "the sequence is {sequence} where {value} was due",
    "created_again": "run_created may only be the first event",
    "run_ended": "the run has already ended; nothing may follow its terminal event",
    "run_not_pending": "run_started needs a pending run; this one is {value}",
    "complete_while_cancelling": "a run that is cancelling ends with cancel, fail or timeout, not with complete",
    "request_twice": "cancellation was already requested; a run takes one request",
    "exhausted_mismatch": "run_retry_exhausted does not match step {id!r}: its {value} differs",
    "id_used": "{kind} id {id!r} is already used in this run",
    "id_unknown": "there is no {kind} {id!r} in this run",
    "step_not_pending": "step {id!r} is {value}; only a pending step can start",
    "step_not_running": "step {id!r} is {value}; only a running step has an outcome",
    "step_not_open": "step {id!r} is {value}; only a pending or running step can be cancelled",
    "attempt_mismatch": "attempt of step {id!r} should be {value}",
    "retry_beyond_budget": "step {id!r} has used its {value} attempts",
    "attempts_left": "step {id!r} has attempts left of its {value}; it cannot fail yet",
    "retry_after_missing": "step {id!r} retries with a delay, so retry_after must be set",
    "retry_after_unexpected": "step {id!r} retries without a delay, so retry_after must be null",
    "wait_not_waiting": "wait {id!r} is {value}; only a waiting wait can complete",
    "hook_not_active": "hook {id!r} is {value}; only an active hook can be resolved",
    "progress_invalid": "progress {id!r} has an invalid {value}; total must be above 0 and completed at most total",
    "child_invalid": "child operation {id!r} has a blank {value}",
    "policy_invalid": "the retry policy of step {id!r} is inconsistent in {value} (fixed: max_delay_ms 0; "
    "exponential: delay_ms at least 1 and max_delay_ms at least delay_ms)",
    "delay_out_of_range": "a delay of {value} ms for {kind} {id!r} leaves the calendar (years 0001 to 9999)",
    # commands (spec 03, R16, R34, R40) ------------------------------------------------------------------------
    "empty_list": "the command names nothing to do",
    "blank_id": "a {kind} id is blank",
    "blank_token": "the token of hook {id!r} is blank",
    "id_too_long": "a {kind} id has {value} bytes of UTF-8; 512 are allowed",
    "id_control_character": "a {kind} id holds a control character",
    "name_too_long": "the step name of {id!r} has {value} bytes of UTF-8; 512 are allowed",
    "name_control_character": "the step name of {id!r} holds a control character",
    "named_twice": "{kind} {id!r} is named twice in one command",
    "already_cancelled": "{kind} {id!r} was cancelled; clean-up needs an id of its own",
    "cannot_dispose": "hook {id!r} cannot be disposed: it is {value}",
    "cannot_close": "wait {id!r} cannot be closed: it is {value}",
    "nothing_new": "everything the command names is already resolved, so the workflow makes no progress; "
    "test what is done before scheduling it again",
    "cancel_without_request": "cancel is only allowed after a cancellation request",
    # host calls (spec 06) -------------------------------------------------------------------------------------
    "wait_not_due": "wait {id!r} is not due before {value}; pass early=True to fire it now",
    "task_target": "a {kind} task does not name this run, so it cannot be sent to the workers of its build",
    "token_ambiguous": "the token belongs to more than one active hook; resume by run id and hook id",
    "no_events": "the run has no events yet; start it first",
    # the seam ---------------------------------------------------------------------------------------------------
    "stale_view": "this view belongs to an earlier state of the run; stage again",
    "entropy_length": "append needs 16 bytes of entropy per event: {value}",
}
"""Why an `InvalidTransition` was raised: stable code → text. Both kernels use exactly these codes."""
