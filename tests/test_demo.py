"""The main job, `python -m perdure.demo`, as a user starts it; its checks must also be able to fail. And the examples."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perdure.demo.checks import Evidence, checks_of
from perdure.demo.orders import APPROVAL, CARD, PICKUP
from perdure.demo.record import Record, read_record

ROOT = Path(__file__).resolve().parent.parent
CUT_OFF = (CARD, "charge", 3)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


@dataclass(frozen=True)
class Played:
    status: int
    out: str
    err: str
    record: Record

    @property
    def evidence(self) -> Evidence:
        """What the demo judged, from its files; of the histories at the kill, what must have been there."""
        at_kill = {run_id: history[:5] for run_id, history in self.record.histories.items()}
        return Evidence(self.record, at_kill, CUT_OFF, {"first": -signal.SIGKILL, "second": 0})


def failing(evidence: Evidence) -> list[str]:
    return [check.text for check in checks_of(evidence) if not check.holds]


@pytest.fixture(scope="module", params=["rust", "pure"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    db = tmp_path_factory.mktemp("demo") / "orders.db"
    command = python("-m", "perdure.demo", "--kernel", request.param, "--db", str(db))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return Played(done.returncode, done.stdout, done.stderr, read_record(db, db.with_name("orders.db.ledger")))


def test_every_check_holds(played: Played) -> None:
    assert "FAILED" not in played.out
    assert re.search(r"^\d+ checks, 0 failed$", played.out, re.MULTILINE)
    assert played.status == 0


def test_it_tells_the_story(played: Played) -> None:
    for line in (
        "==> SIGKILL to the first process",
        "charge of order-101 is still running at attempt 3",
        f"{CARD}  order-with-card 1  completed, 16 events",
        f"{APPROVAL}  order-with-approval 1  completed, 15 events",
        f"{PICKUP}  order-with-pickup 1  cancelled, 17 events",
    ):
        assert line in played.out
    ran_twice = [line.split() for line in played.out.splitlines() if line.strip().startswith("TWICE")]
    assert [row[1:4] for row in ran_twice] == [[CARD, "charge", "3"]]
    assert ran_twice[0][-1] == "flow.step.v1/9/order-1016:charge"


def test_it_is_plain_text_of_100_columns_without_tokens(played: Played) -> None:
    assert played.out.isascii()
    assert max(map(len, played.out.splitlines())) <= 100
    (hook,) = played.record.runs()[APPROVAL].hooks.values()
    assert hook.token not in played.out


def test_its_checks_hold_for_what_it_left_behind(played: Played) -> None:
    assert failing(played.evidence) == []


def twice_invoiced(record: Record) -> Record:
    again = [effect for effect in record.effects if effect.step_id == "invoice"]
    return replace(record, effects=[*record.effects, *again])


def another_key(record: Record) -> Record:
    of_second = [e.of == CUT_OFF and e.process == "second" for e in record.effects]
    changed = [replace(e, key="other") if second else e for e, second in zip(record.effects, of_second, strict=True)]
    return replace(record, effects=changed)


def charged_twice(record: Record) -> Record:
    changed = [replace(effect, result="charged 120") if effect.of == CUT_OFF else effect for effect in record.effects]
    return replace(record, effects=changed)


def an_event_lost(record: Record) -> Record:
    return replace(record, histories={**record.histories, PICKUP: record.histories[PICKUP][1:]})


def a_retry_early(record: Record) -> Record:
    first_start = next(e for e in record.histories[CARD] if e.type == "step_started")
    moved = [
        replace(e, timestamp=first_start.timestamp) if e.type == "step_started" else e for e in record.histories[CARD]
    ]
    return replace(record, histories={**record.histories, CARD: moved})


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (twice_invoiced, "had its side effect exactly once"),
        (another_key, "one idempotency key"),
        (charged_twice, "charged once"),
        (an_event_lost, "without gap or repeat"),
        (a_retry_early, "before its deadline"),
    ],
)
def test_its_checks_can_fail(played: Played, spoil: Callable[[Record], Record], complaint: str) -> None:
    complaints = failing(replace(played.evidence, record=spoil(played.record)))
    assert [text for text in complaints if complaint in text]


def test_a_worker_that_was_not_killed_is_a_failure(played: Played) -> None:
    complaints = failing(replace(played.evidence, exits={"first": 0, "second": 1}))
    assert len(complaints) == 2


def test_it_refuses_a_file_that_exists(tmp_path: Path) -> None:
    db = tmp_path / "orders.db"
    db.touch()
    command = python("-m", "perdure.demo", "--db", str(db))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "exists already" in done.stderr


def test_interrupted_it_ends_its_processes(tmp_path: Path) -> None:
    command = python("-m", "perdure.demo", "--kernel", "pure", "--db", str(tmp_path / "orders.db"))
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert demo.stdout is not None
    lines = iter(demo.stdout.readline, "")
    pid = next(int(found[1]) for line in lines if (found := re.search(r"The first process \(pid (\d+)\)", line)))
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_first_example_charges_once(tmp_path: Path) -> None:
    command = python(str(ROOT / "examples" / "order.py"), str(tmp_path / "orders.db"))
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout for _ in range(2)
    )
    result = "{'receipt': 'paid 120', 'invoice': 'invoice over 120'}"
    assert "charging 120 under the key flow.step.v1/7/order-76:charge" in first
    assert first.splitlines()[-1] == result
    assert second.splitlines() == [result]
