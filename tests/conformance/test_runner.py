"""The conformance runner itself: what it notices, what it says, and with which status it ends."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.testing.conformance import ShellName, Unreadable, main, run_files

DATA = Path(__file__).parents[1] / "data"


def _case(file: str, name: str) -> dict[str, Any]:
    rows = (json.loads(line) for line in (DATA / file / "cases.jsonl").read_text(encoding="utf-8").split("\n") if line)
    found: dict[str, Any] = next(row for row in rows if row["name"] == name)
    return found


def _problems(tmp_path: Path, row: dict[str, Any], shell: ShellName = "asyncio") -> list[tuple[str, str]]:
    file = tmp_path / "row.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    report = run_files([file], ["pure"], ["memory"], shells=[shell])
    return [(failure.use.use, failure.text) for failure in report.failures]


def _replace_in_line(row: dict[str, Any], run_id: str, index: int, old: str, new: str) -> None:
    lines = row["recorded"]["runs"][run_id]["lines"]
    assert old in lines[index]
    lines[index] = lines[index].replace(old, new)


def _spoil_result(row: dict[str, Any]) -> None:
    row["recorded"]["results"][-1] = {"ok": "something else"}


def _spoil_error(row: dict[str, Any]) -> None:
    row["recorded"]["results"][-1] = {"error": {"kind": "HookConflict"}}


def _spoil_sequence(row: dict[str, Any]) -> None:
    row["recorded"]["last_sequences"][-1] += 1


def _spoil_steps(row: dict[str, Any]) -> None:
    row["recorded"]["steps"].append(["a", 9])


def _spoil_asks(row: dict[str, Any]) -> None:
    row["recorded"]["asks"] += 1


def _spoil_during(row: dict[str, Any]) -> None:
    row["recorded"]["during"] = [{"ok": 5}, {"ok": 7}]


def _spoil_timestamp(row: dict[str, Any]) -> None:
    _replace_in_line(row, row["run_id"], 0, "2026-11-29T20:31:42Z", "2026-11-29T20:31:43Z")


def _spoil_runs(row: dict[str, Any]) -> None:
    row["recorded"]["runs"]["another"] = {"lines": [], "snapshots": []}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_spoil_result, 'call 3 (start): at $: expected "something else"'),
        (_spoil_error, 'call 3 (start): expected {"kind":"HookConflict"}'),
        (_spoil_sequence, "last sequences: expected"),
        (_spoil_steps, "step executions: expected"),
        (_spoil_asks, "asks: expected 3, found 2"),
        (_spoil_during, "call during 2: at $: expected 7, found 6"),
        (_spoil_timestamp, "line 1 of outcome-of-older-attempt-dropped: expected"),
        (_spoil_runs, "runs in the store: expected"),
    ],
)
def test_what_differs_from_a_row_of_our_own_is_noticed(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], said: str
) -> None:
    row = _case("ours", "outcome_of_older_attempt_dropped")
    assert _problems(tmp_path, copy.deepcopy(row)) == []
    spoil(row)
    problems = dict(_problems(tmp_path, row))
    assert said in problems["run"]


@pytest.mark.parametrize("shell", ["blocking", "blocking-inline"])
def test_the_blocking_shell_is_judged_as_strictly(tmp_path: Path, shell: ShellName) -> None:
    row = _case("ours", "all_step_wait")
    assert _problems(tmp_path, copy.deepcopy(row), shell) == []
    row["recorded"]["asks"] += 1
    (problem,) = _problems(tmp_path, row, shell)
    assert problem[0] == "run" and "asks: expected" in problem[1]


def test_of_steps_that_run_together_in_threads_all_but_the_order_is_judged(tmp_path: Path) -> None:
    row = _case("ours", "all_new_between_old")
    lines = row["recorded"]["runs"]["all-new-between-old"]["lines"]
    last = [index for index, line in enumerate(lines) if "step_completed" in line][-1]
    assert _problems(tmp_path, copy.deepcopy(row), "blocking") == []
    lines[last] = lines[last].replace('"output":1', '"output":2')
    assert ("run", True) in [(use, "sorted" in text) for use, text in _problems(tmp_path, row, "blocking")]


def test_one_other_byte_of_a_snapshot_is_noticed(tmp_path: Path) -> None:
    row = _case("ours", "all_step_wait")
    snapshots = row["recorded"]["runs"]["all-step-wait"]["snapshots"]
    snapshots[0] = snapshots[0].replace('"input":{"k":1}', '"input":{"k": 1}')
    assert [use for use, _ in _problems(tmp_path, row)] == ["project", "run"]


def test_recorded_rows_are_compared_as_json_and_without_their_clock(tmp_path: Path) -> None:
    row = _case("reference", "batch_delayed_retry")
    run_id = row["run_id"]
    snapshots = row["recorded"]["runs"][run_id]["snapshots"]
    snapshots[0] = snapshots[0].replace('"input":{"k":1}', '"input": {"k": 1}')
    _replace_in_line(row, run_id, 1, '"timestamp":"2026', '"timestamp":"2027')
    assert _problems(tmp_path, row) == []
    _replace_in_line(row, run_id, 7, '"output":"b1"', '"output":"b2"')
    assert {use for use, _ in _problems(tmp_path, row)} >= {"run", "project"}


def test_a_wrong_end_of_a_continued_run_is_noticed(tmp_path: Path) -> None:
    row = _case("reference", "step_one")
    snapshots = row["recorded"]["runs"]["step-one"]["snapshots"]
    snapshots[-1] = snapshots[-1].replace('"status":"completed"', '"status":"failed"', 1)
    problems = dict(_problems(tmp_path, row))
    assert problems["continue"].startswith("continued from 0 events: final snapshot at $.")


def test_what_is_expected_on_purpose_replaces_what_was_recorded(tmp_path: Path) -> None:
    row = _case("reference", "batch_grows")
    assert _problems(tmp_path, copy.deepcopy(row)) == []
    row["ours"]["events"][-1] = "run_failed"
    assert [use for use, _ in _problems(tmp_path, row)] == ["run"]


def test_the_command_line_counts_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = {"a": "1", "b": "1e0", "equal": False}, {"a": "1", "b": "1", "equal": False}
    file = tmp_path / "equality.jsonl"
    file.write_text(json.dumps(good) + "\n", encoding="utf-8")
    assert main(["--kernel", "pure", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file} · equality · pure: 1 passed, 0 failed",
        "1 passed, 0 failed",
    ]
    file.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n", encoding="utf-8")
    assert main(["--kernel", "pure", str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"FAILED {file} · equality · pure · row 2: 1 and 1: expected equal=False, found True",
        f"{file} · equality · pure: 1 passed, 1 failed",
        "1 passed, 1 failed",
    ]


def test_rows_left_out_are_counted_with_their_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(_case("reference", "crash_one_step_at_2")), encoding="utf-8")
    assert main(["--kernel", "pure", "--store", "memory", str(file)]) == 0
    assert f"{file} · run · pure memory: 0 passed, 0 failed, 1 left out (tag crash)" in capsys.readouterr().out


def test_rows_whose_end_the_first_of_several_threads_decides_are_left_out(tmp_path: Path) -> None:
    names = ["policy_at_its_edge", "unstorable_fails_run", "max_attempts_zero", "order_5_by_member"]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(_case("ours", name)) for name in names), encoding="utf-8")
    report = run_files([file], ["pure"], ["memory"], shells=["blocking", "blocking-inline"], uses=["run"])
    assert report.failures == []
    assert [(left.row, left.use.target) for left in report.left_out] == [
        (name, "pure memory blocking") for name in names[:2]
    ]
    assert {use.use for use in report.passed} == {"run"}


@pytest.mark.parametrize("content", ["{", '{"what":1}\n', "[1]", "\xff"])
def test_a_file_that_cannot_be_read_is_bad_usage(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(Unreadable, match="odd.jsonl"):
        run_files([file])
    assert main([str(file)]) == 2
    assert "odd.jsonl" in capsys.readouterr().err
    assert main([str(tmp_path / "missing.jsonl")]) == 2


def test_bad_usage_is_told_by_argparse() -> None:
    for arguments in ([], ["--kernel", "third", "file"], ["--store", "paper", "file"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
