"""Who writes, a store's event loop or its thread: the loop while the disk is quick, and not for one slow commit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import get_ident

import pytest

from perdure.kernel import load
from perdure.stores import JsonlEventStore, SqliteEventStore, jsonl_folder
from perdure.stores.pace import Pace
from perdure.stores.sqlite_writer import SqliteWriter
from perdure.testing._stories import Draft, Story, created, started, wait

MICROSECOND = 1e-6
PURE = load("pure")


def test_a_medium_is_quick_once_it_was_and_while_most_commits_are() -> None:
    pace = Pace()
    assert not pace.is_quick()  # nothing is known of it
    pace.took(100 * MICROSECOND)
    assert pace.is_quick()
    pace.took(1)  # the disk was busy with something else
    assert pace.is_quick()
    for _ in range(12):
        pace.took(400 * MICROSECOND)
    assert not pace.is_quick()
    pace.took(100 * MICROSECOND)
    assert not pace.is_quick()
    for _ in range(24):
        pace.took(100 * MICROSECOND)
    assert pace.is_quick()


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_loop_writes_while_its_disk_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    threads: list[int] = []
    seconds = 0.0
    place, name = (jsonl_folder.JsonlFolder, "sync_files") if kind == "jsonl" else (SqliteWriter, "_commit")
    sync = getattr(place, name)

    def synced(*values: object) -> None:
        threads.append(get_ident())
        sync(*values)

    def took(self: Pace, measured: float) -> None:  # whatever this disk takes
        assert measured > 0
        self._seconds = seconds

    monkeypatch.setattr(place, name, synced)
    monkeypatch.setattr(Pace, "took", took)

    async def test() -> None:
        nonlocal seconds
        store = JsonlEventStore(tmp_path / "runs") if kind == "jsonl" else SqliteEventStore(tmp_path / "runs.db")
        story = Story(PURE, "r")

        async def write(*drafts: Draft) -> None:
            await story.write(store, *drafts)
            while store._group._writing:  # noqa: ASYNC110 - no event tells that the thread is done
                await asyncio.sleep(0)

        await write(created(), started())
        for number in range(3):
            await write(wait(f"quick-{number}", 1))
        seconds = 1.0
        for number in range(3):
            await write(wait(f"slow-{number}", 1))
        await store.close()

    asyncio.run(test())
    assert [thread == get_ident() for thread in threads] == [False, True, True, True, True, False, False]
