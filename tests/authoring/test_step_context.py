"""What an attempt is told about itself: keys and the cancelled token (R20, R21, R54)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from perdure.context import StepContext
from perdure.errors import StepCancelled


def test_keys() -> None:
    context = StepContext("run/1", "step/1", "charge", 3)
    assert context.idempotency_key == "flow.step.v1/5/run/16:step/1"
    assert context.attempt_key == "flow.step.v1/5/run/16:step/1/3"


def test_lengths_count_bytes_and_keep_ids_apart() -> None:
    assert StepContext("r", "étape", "x", 1).idempotency_key == "flow.step.v1/1/r6:étape"
    keys = {StepContext(run, step, "x", 1).idempotency_key for run, step in (("a", "bc"), ("ab", "c"), ("a", "b/1"))}
    assert len(keys) == 3


def test_the_token_wakes_other_threads() -> None:
    context = StepContext("r", "s", "x", 1)
    token = context.cancelled
    assert not token.is_set()
    assert not token.wait(timedelta(0))
    token.raise_if_set()
    seen: list[bool] = []
    waiter = threading.Thread(target=lambda: seen.append(token.wait()))
    waiter.start()
    token.set()
    waiter.join()
    assert seen == [True]
    assert token.is_set()
    with pytest.raises(StepCancelled):
        token.raise_if_set()


def test_each_attempt_has_a_token_of_its_own() -> None:
    first, second = StepContext("r", "s", "x", 1), StepContext("r", "s", "x", 1)
    first.cancelled.set()
    assert not second.cancelled.is_set()
    assert first == second
