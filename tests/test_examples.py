"""Every program under examples/ runs as its reader runs it, ends by itself, and prints what it is there to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
LOGGED = re.compile(
    r"run \S+ \(.+\) ended as failed|run \S+ step .+; it is (not )?tried again.*|task .+; the task is set aside"
)


def run(name: str, *arguments: str) -> list[str]:
    """The lines that an example prints. It must end well, and nothing but perdure's own log go to stderr."""
    found = os.environ | {"PYTHONPATH": str(Path(perdure.__file__).parents[1])}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=found, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if not LOGGED.fullmatch(line)]) == (0, [])
    return done.stdout.splitlines()


def test_retry_backoff() -> None:
    lines = run("retry_backoff")
    assert lines[0] == "after the first attempt the run is suspended"
    assert [line.partition("; next one at ")[0] for line in lines[1:3]] == [
        "attempt 1: runtime error: 503 Service Unavailable",
        "attempt 2: runtime error: 503 Service Unavailable",
    ]
    assert lines[3:] == ["completed at attempt 3: 110.68 EUR"]


def test_recoverable_step_failure() -> None:
    lines = run("recoverable_step_failure")
    ends = [line for line in lines if "completed" in line]
    assert ends == [
        "payment-valid: completed, paid by card",
        "payment-expired: completed, invoiced, because of: non-retryable step error: the card has expired",
        "payment-unreachable: completed, invoiced, because of: runtime error: the bank does not answer",
    ]
    charged = [line.split(":")[0] for line in lines if "charging" in line]
    assert charged == ["payment-valid", "payment-expired", *["payment-unreachable"] * 3]


def test_polling_loop() -> None:
    assert run("polling_loop") == [
        "round 1: at the depot",
        "round 2: on its way",
        "round 3: on its way",
        "round 4: delivered",
        "completed: {'rounds': 4}",
    ]


def test_hook_approval() -> None:
    lines = run("hook_approval")
    assert sorted(lines[:3]) == [
        "waiting for human_approval of balloon ride, 9000",
        "waiting for human_approval of dinner, 60",
        "waiting for human_approval of train ticket, 48",
    ]
    assert lines[3:] == [
        "train ticket: completed, paid out 48 for train ticket, approved by Ada",
        "balloon ride: failed, refused by Grace",
        "dinner: failed, withdrawn",
        "that link is used up",
        "a second answer is refused: hook_conflict",
    ]


def test_cancellation_cleanup() -> None:
    assert run("cancellation_cleanup") == [
        *("booking the hotel", "booking the flight", "booking the car"),
        "trip-lisbon is suspended",
        *("cancelling the car", "cancelling the flight", "cancelling the hotel"),
        "trip-lisbon is cancelled; how it ended: {'type': 'cancelled', 'reason': 'the customer broke a leg'}",
    ]


def test_batch_steps() -> None:
    lines = run("batch_steps")
    assert "notes.txt: failed runtime error: notes.txt is not a picture" in lines
    assert sum(": completed " in line for line in lines) == 5
    result, _, most = lines[-1].partition(", at most ")
    assert result == "completed: {'bytes': 44000, 'failed': ['notes.txt']}"
    assert most in ("1 at once", "2 at once"), "a busy machine may never get to two"


def test_run_inspection() -> None:
    lines = run("run_inspection")
    assert lines[0] == "5 runs, 1 completed, 1 failed"
    for line in (
        "  newsletter-Ada: suspended after 8 events",
        "  newsletter-Ada: retry, due now: False",
        "  newsletter-Edsger: hook",
        "  newsletter-Grace: wait, due now: False",
        "  next of all by time: newsletter-Ada",
        "Why newsletter-nobody failed: runtime error: no such customer",
        "  1 flow.run.created",
        "  4 flow.step.started look-up",
        "  1 flow.hook.created (suspended)",
    ):
        assert line in lines


def names() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", names())
def test_run_twice_over_one_file(name: str, tmp_path: Path) -> None:
    """Each takes the place of its database; the second time its runs are there already, and it ends as well."""
    file = str(tmp_path / "runs.db")
    first, second = run(name, file), run(name, file)
    assert first
    assert second[-1] == first[-1] or name in ("batch_steps", "run_inspection")


def test_each_example_is_tested_and_says_how_to_run_it() -> None:
    tested = {test.removeprefix("test_") for test in globals() if test.startswith("test_")}
    assert [name for name in names() if name not in tested | {"order"}] == []  # `order` has its own beside the demo's
    for name in names():
        assert f"python examples/{name}.py [FILE]" in (EXAMPLES / f"{name}.py").read_text("utf-8")


def test_scheduler_worker() -> None:
    assert run("scheduler_worker") == [
        *(f"tea-{number}: cup {number} of tea: good" for number in (1, 2, 3)),
        "set aside: hook_conflict: hook 'verdict' of run 'tea-3' was already received with another payload",
    ]


def test_async_order() -> None:
    assert run("async_order") == [
        "approved: suspended",
        "  completed: {'receipt': 'receipt-approved', 'for': 'Ada', 'reserved': ['2 x book', '2 x pen'], 'approved_by': 'grace'}",
        "refused: suspended",
        "  whatever was charged for refused is given back",
        "  failed: nobody approved",
        "cancelled: suspended",
        "  whatever was charged for cancelled is given back",
        "  cancelled: the customer called",
    ]


def test_async_fan_out() -> None:
    assert run("async_fan_out") == [
        "pages: ONE, TWO, (runtime error: 404 Not Found)",
        "mirror: NEAR",
        "mirrors in order: NEAR, A MIRROR THAT IS FAR AWAY",
        "patience: gave up",
    ]
