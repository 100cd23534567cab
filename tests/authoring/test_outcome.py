"""What an attempt's end becomes for the kernel (R5, R15, R53)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import NonRetryable, RetryAfter, Serialization
from perdure.outcome import MAX_TRACEBACK_BYTES, completed_outcome, failure_outcome, timeout_outcome


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 whatever was given comes back
        return caught


def failed(error: BaseException, record_traceback: bool = False) -> Any:
    return json.loads(failure_outcome(raised(error), record_traceback))


class Silent(Exception):
    def __str__(self) -> str:
        return "  "


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_output() -> None:
    assert completed_outcome(b'{"a":1.0}') == b'{"type":"completed","output":{"a":1.0}}'


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("bad"), {"type": "failed", "error": "runtime error: bad"}),
        (ValueError(), {"type": "failed", "error": "runtime error: ValueError"}),
        (Silent(), {"type": "failed", "error": "runtime error: Silent"}),
        (Broken(), {"type": "failed", "error": "runtime error: Broken"}),
        (ValueError("a\ud800b\ud83d\ude00"), {"type": "failed", "error": "runtime error: a\ufffdb\U0001f600"}),
        (NonRetryable("no"), {"type": "non_retryable", "error": "non-retryable step error: no"}),
        (Serialization("payload", detail="$: x"), {"type": "non_retryable", "error": "serialization error: $: x"}),
        (Serialization("malformed", 3, "x"), {"type": "failed", "error": "runtime error: malformed (line 3): x"}),
    ],
)
def test_the_stored_text(error: BaseException, outcome: dict[str, object]) -> None:
    assert failed(error) == outcome


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        (timedelta(seconds=1), 1000),
        (timedelta(microseconds=1), 1),
        (timedelta(0), 0),
        (timedelta(microseconds=-1), 0),
        (timedelta(milliseconds=-5), -5),
        (timedelta.min, -86_399_999_913_600_000),
        (timedelta.max, 86_400_000_000_000_000),
        (2**64, 2**64),
    ],
)
def test_a_suggested_delay_of_any_size_is_passed_on(delay: Any, ms: int) -> None:
    outcome = failed(RetryAfter(delay, "later"))
    assert outcome == {"type": "failed", "error": "runtime error: later", "retry_after_ms": ms}


def test_a_suggestion_that_is_no_time_suggests_nothing() -> None:
    assert failed(RetryAfter("soon", "later")) == {"type": "failed", "error": "runtime error: later"}  # type: ignore[arg-type]  # the wrong type is the case


def test_a_timeout() -> None:
    assert json.loads(timeout_outcome(1500)) == {
        "type": "failed",
        "error": "runtime error: attempt timed out after 1500 ms",
    }


def test_the_failure_detail() -> None:
    failure = failed(Silent(), True)["failure"]
    assert list(failure) == ["type", "message", "traceback"]
    assert failure["type"] == f"{__name__}.Silent"
    assert failure["message"] == "Silent"
    assert "in raised" in failure["traceback"]


def test_a_long_traceback_keeps_its_end() -> None:
    failure = failed(ValueError("é" * 100_000 + "the end"), True)["failure"]
    assert len(failure["traceback"].encode()) <= MAX_TRACEBACK_BYTES
    assert failure["traceback"].endswith("the end\n")
    assert "\ufffd" not in failure["traceback"]


def test_the_detail_of_an_error_without_text() -> None:
    assert failed(Broken(), True)["failure"]["message"] == "Broken"
