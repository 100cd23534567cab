"""`perdure export` onto a disk that takes capitals and small letters for the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.cli.app import run
from perdure.kernel import load
from perdure.stores import open_store
from perdure.testing._stories import Story, created


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A store with the runs Order and order, and another."""
    address = str(tmp_path / "source.db")

    async def fill() -> None:
        store = open_store(address)
        for run_id in ("Order", "order", "z"):
            await Story(load("rust"), run_id).write(store, created())
        await store.close()

    asyncio.run(fill())
    return address


def test_ids_that_differ_by_case_are_two_files(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert run(["export", "--store", source, "--out", str(out)]) == 0
        assert sorted(file.name for file in out.iterdir()) == ["Order.jsonl", "order.jsonl", "z.jsonl"]


def test_no_run_replaces_another_on_a_disk_that_ignores_case(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def exists(path: Path) -> bool:
        return path.parent.is_dir() and path.name.lower() in {file.name.lower() for file in path.parent.iterdir()}

    monkeypatch.setattr(Path, "exists", exists)
    for _ in range(2):
        assert run(["export", "--store", source, "--out", str(out)]) == 1
        assert "'order' was not exported: its file would replace that of run 'Order'" in capsys.readouterr().err
        assert sorted(file.name for file in out.iterdir()) == ["Order.jsonl", "z.jsonl"]
