"""`perdure prune` and `perdure history-hold`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure.cli.app import run
from perdure.kernel import load
from perdure.stores import FlowEventStore, open_store
from perdure.testing._stories import Story, child, created, started

KERNEL = load("rust")
ENDED = {"type": "run_completed", "output": None}


@pytest.fixture(params=["sqlite", "jsonl"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store with two linked runs, a lone one, and an open one."""
    address = str(tmp_path / "app.db") if request.param == "sqlite" else f"jsonl:{tmp_path / 'runs'}"

    async def fill(opened: FlowEventStore) -> None:
        await Story(KERNEL, "kid").write(opened, created(), started(), ENDED)
        await Story(KERNEL, "parent").write(opened, created(), child("c", "kid"), ENDED)
        await Story(KERNEL, "lone").write(opened, created(name="other"), {"type": "run_failed", "error": "e"})
        await Story(KERNEL, "open").write(opened, created(), started())
        await opened.close()

    asyncio.run(fill(open_store(address)))
    monkeypatch.setenv("PERDURE_STORE", address)
    return address


def pruned(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, list[str]]:
    capsys.readouterr()
    assert run(["prune", "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    return {kind: sorted(value["first"]) for kind, value in report.items() if kind != "dry_run" and value["count"]}


AFTER = ("--before", "2100-01-01")


def test_prune_deletes_what_ended_before_the_cutoff(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    dry = pruned(capsys, *AFTER, "--dry-run")
    assert dry == {"deleted": ["kid", "lone", "parent"], "non_terminal": ["open"]}
    assert pruned(capsys, *AFTER, "--batch", "1") == dry
    assert pruned(capsys, *AFTER) == {"non_terminal": ["open"]}


def test_prune_takes_filters_and_ages(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The runs of this suite end in 2027.
    assert pruned(capsys, "--older-than", "100000w")["too_recent"] == ["kid", "lone", "parent"]
    assert pruned(capsys, "--before", "2027-01-01T00:00:00Z")["too_recent"] == ["kid", "lone", "parent"]
    assert pruned(capsys, *AFTER, "--dry-run", "--status", "failed") == {"deleted": ["lone"]}
    assert pruned(capsys, *AFTER, "--dry-run", "--workflow", "other", "--version", "1") == {"deleted": ["lone"]}
    assert pruned(capsys, *AFTER, "--dry-run", "--prefix", "l") == {"deleted": ["lone"]}
    assert pruned(capsys, *AFTER, "--run-id", "kid", "--run-id", "lone") == {"deleted": ["lone"], "referenced": ["kid"]}


def test_an_unknown_status_is_wrong_usage(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", *AFTER, "--status", "done"]) == 2
    assert "no run has the status 'done'; use pending" in capsys.readouterr().err


def test_the_table_names_what_became_of_the_runs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", *AFTER, "--dry-run"]) == 0
    told = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in told.out.splitlines()}
    assert rows["deleted"][1] == "3" and rows["deleted"][-3:] == ["kid", "parent", "lone"]
    assert rows["non-terminal"][1] == "1"
    assert told.err == "perdure: a dry run: nothing was deleted\n"


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--before", "2026-01-01", "--older-than", "1d"],
        ["--before", "yesterday"],
        ["--older-than", "1y"],
        [*AFTER, "--batch", "0"],
    ],
)
def test_a_cutoff_must_be_given_and_make_sense(
    store: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["prune", *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_run_is_refused_by_name(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prune", *AFTER, "--run-id", "never"]) == 1
    assert "'never' does not exist" in capsys.readouterr().err


def test_a_history_hold_keeps_a_run_until_released(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history-hold", "add", "kid", "audit", "--reason", "case 7"]) == 0
    assert run(["history-hold", "add", "kid", "audit", "--reason", "case 7"]) == 0
    assert capsys.readouterr().out.splitlines() == ["held", "was held already"]
    assert run(["history-hold", "add", "kid", "audit", "--reason", "case 8"]) == 1
    assert "another reason" in capsys.readouterr().err
    assert pruned(capsys, *AFTER) == {
        "deleted": ["lone"],
        "held": ["kid"],
        "referenced": ["parent"],
        "non_terminal": ["open"],
    }
    assert run(["history-hold", "ls", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run_id"], row["hold_id"], row["reason"]) == ("kid", "audit", "case 7")
    assert run(["history-hold", "ls", "parent"]) == 0
    assert "audit" not in capsys.readouterr().out
    assert run(["history-hold", "release", "kid", "audit"]) == 0
    assert run(["history-hold", "release", "kid", "audit"]) == 1
    assert pruned(capsys, *AFTER)["deleted"] == ["kid", "parent"]
    assert run(["history-hold", "add", "kid", "audit", "--reason", "late"]) == 1
    assert "was pruned" in capsys.readouterr().err
    assert run(["history-hold", "add", "open", "a\nb", "--reason", "why"]) == 2
    assert run(["history-hold", "add", "open", "h", "--reason", "why", "--json"]) == 0
    assert run(["history-hold", "release", "open", "h", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"run_id": "open", "hold_id": "h", "added": True},
        {"run_id": "open", "hold_id": "h", "released": True},
    ]


def test_looking_at_a_store_that_is_not_there_makes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for address in (str(tmp_path / "no.db"), f"jsonl:{tmp_path / 'no'}"):
        assert run(["prune", "--store", address, *AFTER]) == 1
        assert "does not exist" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
