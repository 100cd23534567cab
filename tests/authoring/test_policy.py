"""Retry policies as values: constructors, clamps and the wire form (spec 05 §5.1, R11, R59)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import Serialization
from perdure.policy import RetryPolicy

U64 = 2**64 - 1


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        (RetryPolicy(), (3, 0, "fixed", 0)),
        (RetryPolicy.none(), (1, 0, "fixed", 0)),
        (RetryPolicy.fixed(0), (1, 0, "fixed", 0)),
        (RetryPolicy.fixed(4, timedelta(seconds=5)), (4, 5000, "fixed", 0)),
        (RetryPolicy.fixed(4, timedelta(microseconds=999)), (4, 0, "fixed", 0)),
        (RetryPolicy.fixed(4, delay_ms=7), (4, 7, "fixed", 0)),
        (RetryPolicy.fixed(4, delay_ms=2**70), (4, U64, "fixed", 0)),
        (RetryPolicy.exponential(0), (1, 1, "exponential", 1)),
        (RetryPolicy.exponential(8, timedelta(seconds=1), timedelta(seconds=30)), (8, 1000, "exponential", 30000)),
        (RetryPolicy.exponential(2, timedelta(seconds=2), timedelta(seconds=1)), (2, 2000, "exponential", 2000)),
        (RetryPolicy.exponential(2, delay_ms=3, max_delay_ms=2**64), (2, 3, "exponential", U64)),
        (RetryPolicy(0, U64, "fixed", U64), (0, U64, "fixed", U64)),
    ],
)
def test_constructors_clamp(policy: RetryPolicy, values: tuple[int, int, str, int]) -> None:
    assert (policy.max_attempts, policy.delay_ms, policy.backoff, policy.max_delay_ms) == values
    assert policy.on_exhausted is None


@pytest.mark.parametrize(
    "build",
    [
        lambda: RetryPolicy(-1),
        lambda: RetryPolicy(2**32),
        lambda: RetryPolicy(True),
        lambda: RetryPolicy(1, 1.5),  # type: ignore[arg-type]  # the wrong type is the case
        lambda: RetryPolicy(1, -1),
        lambda: RetryPolicy(1, U64 + 1),
        lambda: RetryPolicy(1, 0, "linear"),  # type: ignore[arg-type]  # the wrong value is the case
        lambda: RetryPolicy(1, on_exhausted="retry"),  # type: ignore[arg-type]  # the wrong value is the case
        lambda: RetryPolicy.fixed(-1),
        lambda: RetryPolicy.fixed(2**32),
        lambda: RetryPolicy.fixed(1.0),  # type: ignore[arg-type]  # the wrong type is the case
        lambda: RetryPolicy.fixed(1, timedelta(milliseconds=-1)),
        lambda: RetryPolicy.fixed(1, 5),  # type: ignore[arg-type]  # the wrong type is the case
        lambda: RetryPolicy.fixed(1, delay_ms=-5),
        lambda: RetryPolicy.fixed(1, timedelta(1), delay_ms=5),
        lambda: RetryPolicy.exponential(1, timedelta(microseconds=-1)),
        lambda: RetryPolicy.exponential(1, delay_ms=0.5),  # type: ignore[arg-type]  # the wrong type is the case
    ],
)
def test_negative_non_integer_and_too_large_are_refused(build: Any) -> None:
    with pytest.raises(ValueError, match=r"integer|negative|timedelta|backoff|on_exhausted"):
        build()


@pytest.mark.parametrize(
    ("policy", "raw"),
    [
        (RetryPolicy(), b'{"max_attempts":3,"delay_ms":0}'),
        (RetryPolicy().fail_run_on_failure(), b'{"max_attempts":3,"delay_ms":0}'),
        (
            RetryPolicy.exponential(8, delay_ms=1, max_delay_ms=9).continue_workflow_on_failure(),
            b'{"max_attempts":8,"delay_ms":1,"backoff":"exponential","max_delay_ms":9,"on_exhausted":"continue_workflow"}',
        ),
    ],
)
def test_the_wire_form_leaves_out_defaults(policy: RetryPolicy, raw: bytes) -> None:
    assert policy.to_json() == raw
    assert RetryPolicy.from_json(raw).to_json() == raw


def test_failure_actions() -> None:
    assert RetryPolicy().on_exhausted is None
    assert RetryPolicy().continue_workflow_on_failure().on_exhausted == "continue_workflow"
    assert RetryPolicy().continue_workflow_on_failure().fail_run_on_failure().on_exhausted == "fail_run"


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"max_attempts":-1,"delay_ms":0}', b'{"max_attempts":"canary"}'])
def test_other_json_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises(Serialization) as caught:
        RetryPolicy.from_json(raw)
    assert caught.value.rule == "shape"
    assert "canary" not in str(caught.value)
