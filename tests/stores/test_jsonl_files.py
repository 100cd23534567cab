"""Which files a JSONL store touches: those of the runs it is asked about, whatever their ids are, and no others."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from perdure.errors import FlowError, InvalidRunId, StoreUnavailable
from perdure.instant import MAX_NS
from perdure.kernel import load
from perdure.stores import JsonlEventStore, SqliteEventStore, folders, jsonl_folder
from perdure.stores.base import Append, Committed, FlowEventStore, RunFilter
from perdure.testing._stories import SECOND, START, Story, created, hook, started, token_hash, wait

PURE = load("pure")

_watchers: list[list[str]] = []
"""Who wants to know which files and folders the process opens or lists. An audit hook stays for ever."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _watchers and event in ("open", "os.listdir", "os.scandir", "os.remove", "os.rename"):
        _watchers[0].append(str(arguments[0]))


sys.addaudithook(_note)


@pytest.fixture
def touched() -> Iterator[Callable[[Path], list[str]]]:
    """Gives the names below a folder that were touched since it was last asked."""
    noted: list[str] = []

    def names(folder: Path) -> list[str]:
        found = [name.removeprefix(str(folder)).removeprefix("/") for name in noted if name.startswith(str(folder))]
        noted.clear()
        return found

    _watchers.append(noted)
    yield names
    _watchers.clear()


def opened(folder: Path) -> JsonlEventStore:
    return JsonlEventStore(folder, lambda: START, kernel="pure")


async def fill(folder: Path, count: int) -> None:
    store = opened(folder)
    for number in range(count):
        await Story(PURE, f"r{number}").write(store, created(), wait("w", START), hook("h", f"canary-{number}"))
    await store.close()


def test_no_question_reads_a_file_and_a_commit_touches_its_own(
    tmp_path: Path, touched: Callable[[Path], list[str]]
) -> None:
    questions: list[Callable[[FlowEventStore], Awaitable[object]]] = [
        lambda store: store.list_due_wakeups(MAX_NS),
        lambda store: store.next_scheduled_wakeup(),
        lambda store: store.find_active_hooks(token_hash("canary-3")),
        lambda store: store.list_active_hooks(),
        lambda store: store.runs(RunFilter(status=("failed",))),
        lambda store: store.run_ids(),
        lambda store: store.summary(),
        lambda store: store.next_claim(),
        lambda store: store.claim("me", 9, ttl_ns=SECOND),
        lambda store: store.claim_held("me", 9, build="b", ttl_ns=SECOND),
        lambda store: store.renew("me", [("r1", 1)], ttl_ns=SECOND),
        lambda store: store.void("me"),
        lambda store: store.lease("r1"),
        lambda store: store.last_sequences(["r1", "r2", "missing"]),
        lambda store: store.changes(),
    ]

    async def test() -> None:
        await fill(tmp_path, 20)
        store = opened(tmp_path)
        touched(tmp_path)
        for question in questions:
            await question(store)
            assert touched(tmp_path) == []
        await store.history("r7")
        assert touched(tmp_path) == ["r7.jsonl"]
        await Story(PURE, "new").write(store, created(), hook("h", "canary-new"))
        assert touched(tmp_path) == ["new.jsonl", ""]  # the folder, to make the new name durable
        story = Story(PURE, "r7")
        story.run = PURE.project("r7", await store.history("r7"), 1_000_000)
        touched(tmp_path)
        await story.write(store, started())
        assert touched(tmp_path) == ["r7.jsonl"]
        await store.set_hold("r7", "{}", expected_sequence=4)
        assert touched(tmp_path) == ["r7.hold.json.new", "r7.hold.json.new", ""]
        await store.close()

    asyncio.run(test())


def test_files_are_on_the_disk_and_names_in_the_folder_before_a_commit_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is synced is the very file, after its last byte was written and before the caller hears of it."""
    told: list[str] = []

    def watching(sync: Callable[[int], None]) -> Callable[[int], None]:
        def watched(descriptor: int) -> None:
            inode = os.fstat(descriptor).st_ino
            (name,) = (file.name for file in (tmp_path, *tmp_path.iterdir()) if file.stat().st_ino == inode)
            lines = (tmp_path / "r.jsonl").read_bytes().count(b"\n") if (tmp_path / "r.jsonl").exists() else 0
            told.append(f"{'folder' if name == tmp_path.name else name} at {lines}")
            sync(descriptor)

        return watched

    async def test() -> None:
        store = opened(tmp_path)
        monkeypatch.setattr(jsonl_folder, "_sync_data", watching(jsonl_folder._sync_data))
        monkeypatch.setattr(os, "fsync", watching(os.fsync))
        story = Story(PURE, "r")
        await story.write(store, created(), started())
        told.append("created")
        await story.write(store, wait("w", START))
        told.append("went on")
        await store.set_hold("r", "{}", expected_sequence=3)
        told.append("held")
        await store.release_hold("r")
        told.append("released")
        await store.close()

    asyncio.run(test())
    assert told == [
        *("r.jsonl at 2", "folder at 2", "created"),
        *("r.jsonl at 3", "went on"),
        *("r.hold.json.new at 3", "folder at 3", "held"),
        *("folder at 3", "released"),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_new_folders_are_durable_up_to_the_first_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(folders, "sync_folder", lambda path: synced.append(path.relative_to(tmp_path)))
    deep = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        store = opened(deep) if kind == "jsonl" else SqliteEventStore(deep / "runs.db")
        asyncio.run(store.close())
    assert synced == [Path("a/b"), Path("a"), Path()]


def test_a_full_disk_keeps_nobody_from_giving_a_folder_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> None:
        os.ftruncate(descriptor, 0)
        raise OSError(errno.ENOSPC, "No space left on device")

    store = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(jsonl_folder, "_replace", full)
        asyncio.run(store.close())
        with pytest.raises(StoreUnavailable, match="No space left on device"):
            opened(tmp_path)
    asyncio.run(opened(tmp_path).close())


HOSTILE = (
    *("", ".", "..", "../evil", "..\\evil", "/etc/passwd", "a/b", "a.b", "a\0b", "a\n", "a b", "é", "~", "*", "a:b"),
    *("r.jsonl", "r.hold", "perdure.lock", "\u202e", "\ud800", "a" * 201, "a" * 5000),
)


class _Named:
    """A batch that says it is of another run."""

    def __init__(self, batch: object, run_id: str) -> None:
        self._batch, self._run_id = batch, run_id

    def __getattr__(self, name: str) -> object:
        return self._run_id if name == "run_id" else getattr(self._batch, name)


def test_no_hostile_id_reaches_the_file_system_and_its_group_goes_on(
    tmp_path: Path, touched: Callable[[Path], list[str]]
) -> None:
    async def test() -> None:
        store = opened(tmp_path / "runs")
        for number, run_id in enumerate(HOSTILE):
            good = Story(PURE, f"good-{number}").batch(created())
            hostile = _Named(Story(PURE, "x").batch(created()), run_id)
            touched(tmp_path)
            refused, accepted = await store.commit([Append(hostile), Append(good)])  # type: ignore[arg-type]  # on purpose
            assert isinstance(refused, InvalidRunId), run_id[:20]
            assert accepted == Committed(1)
            assert touched(tmp_path) == [f"runs/good-{number}.jsonl", "runs"]
            for call in (store.history(run_id), store.lease(run_id), store.set_hold(run_id, "{}", expected_sequence=1)):
                with pytest.raises(FlowError):
                    await call
            assert touched(tmp_path) == []
        await store.close()

    asyncio.run(test())


def test_names_that_mean_something_elsewhere_are_ids_like_any_other(tmp_path: Path) -> None:
    names = ("CON", "nul", "LPT1", "-rf", "--", "_", "perdure", "jsonl", "a" * 200)

    async def test() -> None:
        store = opened(tmp_path)
        for run_id in names:
            await Story(PURE, run_id).write(store, created())
        await store.close()
        again = opened(tmp_path)
        assert await again.run_ids() == sorted(names)
        await again.close()

    asyncio.run(test())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(f"{name}.jsonl" for name in names), "perdure.lock"]
    )
