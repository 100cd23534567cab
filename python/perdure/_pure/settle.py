"""Attempts: what an outcome means, which steps to run, what a final failure owes (spec 4.3, R5, R10, R15, R19, R26)."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from perdure._pure import json
from perdure._pure.draft import Draft, check_sizes, encode, make, moment
from perdure._pure.event import read_failure, read_optional, read_string, required
from perdure._pure.json import Span, quote, shape
from perdure._pure.retry import add_ms, retry_delay_ms
from perdure._pure.state import State, Step
from perdure.errors import PayloadTooLarge
from perdure.instant import MAX_NS

__all__ = ["closing", "settle", "starts"]

_TEXT_BYTES: Final = 65_536
"""Longest `error` and `failure.message`, in bytes of UTF-8 (R53)."""
_U64_MAX: Final = 2**64 - 1
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Outcome(NamedTuple):
    """What one attempt came to."""

    type: str
    output: str = ""
    error: str = ""
    suggestion_ms: int | None = None
    failure: str | None = None


def settle(
    state: State, max_event_bytes: int, step_id: str, attempt: int, outcome: bytes, anchor: int, *, restart: bool
) -> list[bytes]:
    """The drafts of an attempt's outcome, none if the step is no longer running at that attempt (R10).

    `anchor` = max(clock, horizon) is what a retry's delay counts from. Raises `Serialization` for a malformed outcome.
    """
    result = _decode(outcome)
    step = None if state.terminal else state.steps.get(step_id)
    if step is None or step.status != "running" or step.attempt != attempt:
        return []
    if result.type == "completed":
        return encode([_completed(step, result.output, max_event_bytes)])
    if result.type == "non_retryable":
        return encode([_final("step_non_retryable", step, result.error, result.failure)])
    if attempt >= step.policy.budget:
        return encode([_final("step_failed", step, result.error, result.failure)])
    return encode(_retry(state, step, result, anchor, restart))


def _completed(step: Step, output: str, max_event_bytes: int) -> Draft:
    draft = make("step_completed", step_id=quote(step.step_id), output=output)
    try:
        check_sizes([draft], max_event_bytes)
    except PayloadTooLarge as error:
        text = (
            f"serialization error: {error.event_key} would take {error.bytes} bytes and {error.max_bytes} are allowed"
        )
        return _final("step_non_retryable", step, text, None)
    return draft


def _final(kind: str, step: Step, error: str, failure: str | None) -> Draft:
    return make(kind, step_id=quote(step.step_id), attempt=str(step.attempt), error=quote(error), failure=failure)


def _retry(state: State, step: Step, result: _Outcome, anchor: int, restart: bool) -> list[Draft]:
    delay = retry_delay_ms(step.policy, state.run_id, step.step_id, step.attempt)
    due: int | None = None
    if delay or result.suggestion_ms:
        due = add_ms(anchor, max(delay, result.suggestion_ms or 0))
        due = MAX_NS if due is None else due
    step_id = quote(step.step_id)
    retrying = make(
        "step_retrying",
        step_id=step_id,
        attempt=str(step.attempt),
        error=quote(result.error),
        retry_after="null" if due is None else moment(due),
        suggested_delay_ms=None if result.suggestion_ms is None else str(result.suggestion_ms),
        failure=result.failure,
    )
    if due is None and restart:
        return [retrying, make("step_started", step_id=step_id, attempt=str(step.attempt + 1))]
    return [retrying]


def _decode(outcome: bytes) -> _Outcome:
    text = json.read_part(outcome)
    fields = json.members(text, (0, len(text)), "the outcome")
    kind = read_string(text, required(fields, "type"), "type")
    if kind == "completed":
        start, end = required(fields, "output")
        return _Outcome(kind, output=text[start:end])
    if kind not in ("failed", "non_retryable"):
        raise shape("the outcome type is none of completed, failed, non_retryable")
    error = _storable(_any_string(text, required(fields, "error")))
    suggestion = read_optional(text, fields, "retry_after_ms", _suggestion) if kind == "failed" else None
    return _Outcome(kind, error=error, suggestion_ms=suggestion or None, failure=_failure(text, fields))


def _suggestion(text: str, span: Span, what: str) -> int:
    """The suggested delay, 0 for one outside 1 to 2^64-1: it is ignored, never an error of the run (R5)."""
    lexeme = text[span[0] : span[1]]
    if not _INTEGER.fullmatch(lexeme):
        raise shape(f"{what} is not an integer")
    value = int(lexeme) if len(lexeme) <= 20 else 0
    return value if 1 <= value <= _U64_MAX else 0


def _any_string(text: str, span: Span) -> str:
    start, end = span
    if text[start] != '"':
        raise shape("error is not a string")
    return json.unescape(text[start + 1 : end - 1])


def _storable(value: str) -> str:
    """Unpaired surrogates replaced, then cut to what is stored of a text, at a character's edge (R53)."""
    data = _SURROGATE.sub("\ufffd", value).encode()
    return data[:_TEXT_BYTES].decode("utf-8", "ignore")


def _failure(text: str, fields: dict[str, Span]) -> str | None:
    """The failure object as it stands, but for a message that cannot be stored whole."""
    failure: str | None = read_optional(text, fields, "failure", read_failure)
    if failure is None:
        return None
    span = json.members(failure, (0, len(failure)), "failure").get("message")
    if span is None or failure[span[0]] != '"':
        return failure
    message = _any_string(failure, span)
    stored = _storable(message)
    return failure if stored == message else failure[: span[0]] + quote(stored) + failure[span[1] :]


def starts(state: State, horizon: int, live: Collection[tuple[str, int]], limit: int) -> list[tuple[str, int, bool]]:
    """(step id, attempt, needs a step_started): running steps without a live attempt, then pending ones that are due,
    each in the order of their creation, as many as the limit leaves beside the live attempts of running steps."""
    if state.terminal:
        return []
    held = {step_id for step_id, attempt in live if _runs(state, step_id, attempt)}
    free = limit - len(held)
    running: list[tuple[str, int, bool]] = []
    pending: list[tuple[str, int, bool]] = []
    for step in state.steps.opened():
        if len(running) >= free:
            break
        if step.status == "running":
            if step.step_id not in held:
                running.append((step.step_id, step.attempt, False))
        elif len(pending) < free and (step.retry_after is None or step.retry_after <= horizon):
            pending.append((step.step_id, step.attempt + 1, True))
    return (running + pending)[: max(free, 0)]


def _runs(state: State, step_id: str, attempt: int) -> bool:
    step = state.steps.get(step_id)
    return step is not None and step.status == "running" and step.attempt == attempt


def closing(state: State) -> list[bytes]:
    """What a final failure under fail_run still owes: open steps cancelled by id bytes, then the run's end (R19)."""
    cause = None if state.terminal else state.cause
    failed = state.steps.get(cause.step_id) if cause else None
    if cause is None or failed is None:
        return []
    reason = quote(f"run failed by step {failed.step_id}; outcome unknown")
    drafts = [
        make("step_cancelled", step_id=quote(step.step_id), attempt=str(step.attempt), reason=reason)
        for step in sorted(state.steps.opened(), key=lambda step: step.step_id)
    ]
    error = quote(failed.error or "")
    if cause.exhausted:
        drafts.append(
            make("run_retry_exhausted", step_id=quote(failed.step_id), attempt=str(failed.attempt), error=error)
        )
    else:
        drafts.append(make("run_failed", error=error))
    return encode(drafts)
