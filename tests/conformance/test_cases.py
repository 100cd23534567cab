"""Every row of the recorded cases, run and continued: both kernels, all stores, both ways to commit, both shells.

The runner that ships is what judges here; this file only says which rows may be left out, and why.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perdure.kernel import KernelName
from perdure.testing.conformance import CommitMode, Report, ShellName, StoreName, UseName, run_files

DATA = Path(__file__).parents[1] / "data"
OURS, REFERENCE = DATA / "ours" / "cases.jsonl", DATA / "reference" / "cases.jsonl"
NOT_CONTINUED = {
    OURS: {"without the tag continue": 126},
    REFERENCE: {
        "differs on purpose": 5,
        "op append_raw": 3,
        "op append_raw, program": 1,
        "op builds": 2,
        "op program": 6,
    },
}
NOT_RUN = {
    (OURS, "staged"): {},
    (OURS, "each"): {"race_at counts on staged commits": 24},
    (REFERENCE, "staged"): {"tag crash": 14},
    (REFERENCE, "each"): {"tag crash": 14},
}
TIMED = {  # in real time nothing can be made to happen at a given moment of a drive
    (OURS, "run"): {"during, sleep_ms": 11, "race_at": 12, "race_at, sleep_ms": 12, "sleep_ms": 44, "timeout_ms": 1},
    (OURS, "continue"): {"sleep_ms": 24, "timeout_ms": 1},
    (REFERENCE, "run"): {"sleep_ms": 7},
    (REFERENCE, "continue"): {"sleep_ms": 10},
}
ORDER_DECIDES = {  # which of several threads is first
    (OURS, "blocking", "run"): {"order of arrival decides": 2},
}
ROWS = {OURS: 224, REFERENCE: 79}


def _left_out(report: Report, use: str) -> dict[str, int]:
    return dict(Counter(left.reason for left in report.left_out if left.use.use == use))


def _passed(report: Report, use: str) -> int:
    return sum(count for judged, count in report.passed.items() if judged.use == use)


@pytest.mark.parametrize("file", [OURS, REFERENCE], ids=["ours", "reference"])
@pytest.mark.parametrize("store", ["memory", "jsonl", "sqlite"])
@pytest.mark.parametrize("name", ["rust", "pure"])
def test_every_case(name: KernelName, store: StoreName, file: Path) -> None:
    _holds(file, name, store, "staged")


@pytest.mark.parametrize("file", [OURS, REFERENCE], ids=["ours", "reference"])
@pytest.mark.parametrize("name", ["rust", "pure"])
def test_every_case_with_each_event_committed_by_itself(name: KernelName, file: Path) -> None:
    _holds(file, name, "memory", "each")


@pytest.mark.parametrize("file", [OURS, REFERENCE], ids=["ours", "reference"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("name", ["rust", "pure"])
def test_every_case_in_the_blocking_shell(name: KernelName, store: StoreName, file: Path) -> None:
    _holds_in_real_time(file, name, store, "blocking", "run")


@pytest.mark.parametrize("file", [OURS, REFERENCE], ids=["ours", "reference"])
@pytest.mark.parametrize("name", ["rust", "pure"])
def test_every_case_in_the_blocking_shell_with_steps_in_place(name: KernelName, file: Path) -> None:
    _holds_in_real_time(file, name, "memory", "blocking-inline", "run")


@pytest.mark.parametrize("file", [OURS, REFERENCE], ids=["ours", "reference"])
def test_every_case_continued_in_the_blocking_shell(file: Path) -> None:
    _holds_in_real_time(file, "rust", "memory", "blocking", "continue")


def _holds_in_real_time(file: Path, name: KernelName, store: StoreName, shell: ShellName, use: UseName) -> None:
    report = run_files([file], [name], [store], shells=[shell], uses=[use])
    assert [str(failure) for failure in report.failures] == []
    timed = {f"timed within a drive: {what}": count for what, count in TIMED[file, use].items()}
    others = NOT_RUN[file, "staged"] if use == "run" else NOT_CONTINUED[file]
    assert _left_out(report, use) == {**others, **timed, **ORDER_DECIDES.get((file, shell, use), {})}
    assert _passed(report, use) == ROWS[file] - sum(_left_out(report, use).values())


def _holds(file: Path, name: KernelName, store: StoreName, commit: CommitMode) -> None:
    report = run_files([file], [name], [store], commit, shells=["asyncio"])
    assert [str(failure) for failure in report.failures] == []
    assert _left_out(report, "run") == NOT_RUN[file, commit]
    assert _left_out(report, "continue") == NOT_CONTINUED[file]
    assert _left_out(report, "project") == {}
    for use in ("run", "continue", "project"):
        assert _passed(report, use) == ROWS[file] - sum(_left_out(report, use).values())
