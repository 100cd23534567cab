"""`perdure export` and `perdure import`."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.app import run
from perdure.kernel import load
from perdure.stores import FlowEventStore, open_store
from perdure.testing._stories import Story, created, hook, started

KERNEL = load("rust")
ENDED = {"type": "run_completed", "output": None}
TOKEN = "canary-exchange"


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A store with three runs, one of which holds a token."""
    address = str(tmp_path / "source.db")

    async def fill(store: FlowEventStore) -> None:
        await Story(KERNEL, "a").write(store, created(), started(), ENDED)
        await Story(KERNEL, "b").write(store, created(name="other"), hook("h", TOKEN))
        await Story(KERNEL, "c").write(store, created())
        await store.close()

    asyncio.run(fill(open_store(address)))
    return address


def contents(address: str) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        store = open_store(address)
        found = {run_id: await store.history(run_id) for run_id in await store.run_ids()}
        await store.close()
        return found

    return asyncio.run(read())


def test_a_folder_goes_out_and_in(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["export", "--store", source, "--out", str(out), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"runs": 3, "events": 6, "failed": 0}
    assert "raw: it holds hook tokens" in told.err and TOKEN not in told.err + told.out
    assert {file.stem: file.read_bytes() for file in out.iterdir()} == contents(source)
    for address in (f"jsonl:{tmp_path / 'copy'}", str(tmp_path / "copy.db")):
        assert run(["import", "--store", address, str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "imported": 3,
            "present": 0,
            "events": 6,
            "refused": [],
            "missing": [],
        }
        assert contents(address) == contents(source)
    # The folder of an export is that of a JSONL store, too.
    assert contents(f"jsonl:{out}") == contents(source)


def test_one_file_goes_out_and_in_and_appears_whole(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all.jsonl"
    assert run(["export", "--store", source, "--out", str(out)]) == 0
    assert capsys.readouterr().out.split()[-3:] == ["3", "6", str(out)]
    assert out.read_bytes() == b"".join(contents(source).values())
    assert [file.name for file in tmp_path.glob("*.part")] == []
    copy = str(tmp_path / "copy.db")
    assert run(["import", "--store", copy, str(out)]) == 0
    assert capsys.readouterr().out.split()[-4:] == ["3", "6", "0", "0"]
    assert run(["import", "--store", copy, str(out)]) == 0
    assert capsys.readouterr().out.split()[-4:] == ["0", "0", "3", "0"]
    assert contents(copy) == contents(source)


def test_a_pipe_joins_two_stores(source: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    perdure = [sys.executable, "-m", "perdure"]
    exported = subprocess.run([*perdure, "export", "--store", source, "--out", "-"], capture_output=True, check=True)
    subprocess.run([*perdure, "import", "--store", copy, "-"], input=exported.stdout, check=True, capture_output=True)
    assert contents(copy) == contents(source)
    assert exported.stderr.count(b"\n") == 1 and TOKEN.encode() not in exported.stderr


def test_progress_is_shown_on_a_terminal_only(source: str, tmp_path: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "perdure", "export", "--store", source, "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=child) as process:
        os.close(child)
        shown = b""
        while part := _read(parent):
            shown += part
        assert process.stdout is not None
        table = process.stdout.read()
    os.close(parent)
    assert process.returncode == 0
    assert b"exporting" in shown and b"3/3" in shown
    assert b"\x1b" not in table and table.split()[-3:-1] == [b"3", b"6"]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end is closed
        return b""


def test_filters_choose_what_goes_out(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (options, meant) in enumerate(
        [
            (["--status", "completed"], ["a"]),
            (["--workflow", "other"], ["b"]),
            (["--workflow", "demo", "--version", "1"], ["a", "c"]),
            (["--prefix", "c"], ["c"]),
            (["--run-id", "a", "--run-id", "b"], ["a", "b"]),
        ]
    ):
        out = tmp_path / str(number)
        assert run(["export", "--store", source, "--out", str(out), *options]) == 0
        assert sorted(file.stem for file in out.iterdir()) == meant
    assert run(["export", "--store", source, "--out", str(tmp_path / "x"), "--run-id", "never"]) == 1
    assert "'never' does not exist" in capsys.readouterr().err
    assert run(["export", "--store", source, "--out", str(tmp_path / "x"), "--run-id", "a", "--prefix", "a"]) == 2


def test_an_export_does_not_write_into_a_stores_folder(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    contents(f"jsonl:{folder}")
    assert run(["export", "--store", source, "--out", str(folder)]) == 1
    assert "folder of a JSONL store" in capsys.readouterr().err
    assert run(["export", "--store", source, "--out", "-", "--json"]) == 2


def test_a_damaged_log_is_named_and_the_others_go_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"

    async def fill() -> None:
        store = open_store(f"jsonl:{folder}")
        for run_id in ("a", "b"):
            await Story(KERNEL, run_id).write(store, created(), started())
        await store.close()

    asyncio.run(fill())
    log = folder / "a.jsonl"
    log.write_bytes(log.read_bytes().replace(b"run_created", b"run_crEated"))
    out = tmp_path / "out"
    assert run(["export", "--store", f"jsonl:{folder}", "--out", str(out)]) == 1
    assert f"line 1 of {log} cannot be read" in capsys.readouterr().err
    assert [file.name for file in out.iterdir()] == ["b.jsonl"]


def test_refused_runs_are_named_and_the_others_go_on(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", "--store", source, "--out", str(out)]) == 0
    copy = str(tmp_path / "copy.db")

    async def occupy() -> None:
        store = open_store(copy)
        await Story(KERNEL, "owner").write(store, created(), hook("mine", TOKEN))
        await store.close()

    asyncio.run(occupy())
    capsys.readouterr()
    assert run(["import", "--store", copy, str(out)]) == 1
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("perdure: run 'b' was refused:") and "owner" in line
    assert TOKEN not in told.out + told.err
    assert told.out.split()[-4:] == ["2", "4", "0", "1"]
    assert sorted(contents(copy)) == ["a", "c", "owner"]


def test_a_file_whose_name_is_no_text_is_refused_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/b\xff.jsonl")).write_bytes(Story(KERNEL, "b").batch(created()).lines)
    assert run(["import", "--json", "--store", str(tmp_path / "copy.db"), str(folder)]) == 1
    (refused,) = json.loads(capsys.readouterr().out)["refused"]
    assert refused["run_id"] == "b\udcff"


def test_a_source_that_is_not_there_or_no_history_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = str(tmp_path / "copy.db")
    assert run(["import", "--store", copy, str(tmp_path / "missing")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    assert not Path(copy).exists()

    class Stdin:
        buffer = io.BytesIO(b"hello\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert run(["import", "--store", copy, "-"]) == 1
    assert "line 1" in capsys.readouterr().err


def test_a_torn_tail_is_left_out_and_told(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(["export", "--store", source, "--out", str(out)])
    log = out / "a.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    capsys.readouterr()
    copy = str(tmp_path / "copy.db")
    assert run(["import", "--store", copy, str(out)]) == 0
    assert "run 'a': left out a torn tail of" in capsys.readouterr().err
    assert contents(copy)["a"] == b"".join(contents(source)["a"].splitlines(keepends=True)[:2])
