"""The JSONL store under the shipped suite, and what only a folder has: an owner, file names, holds and tombstones beside
logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import perdure
from perdure.errors import (
    FlowError,
    HookTokenConflict,
    LeaseLost,
    RunConflict,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Batch, load
from perdure.stores import JsonlEventStore, jsonl, jsonl_folder, open_store
from perdure.stores.base import ActiveHook, Append, Claimed, Committed, FlowEventStore, Lease, RunFilter
from perdure.stores.jsonl import _read
from perdure.testing._store_suite import told
from perdure.testing._stories import SECOND, START, Story, child, created, hook, hook_done, started, token_hash, wait
from perdure.testing.store_contract import StoreContract

PURE = load("pure")
REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference" / "cases.jsonl"
HOLD = '{"code":"non_deterministic","reason":{},"workflow":"demo","version":"1","builds":["b1"],"at":"2026-11-29T00:00:00Z"}'


class OnJsonl(StoreContract):
    run_ids = ("A", "b", "b-2", "c", "c_")

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.folders = 0

    def make_store(self) -> FlowEventStore:
        self.folders += 1
        return self.open_again(self)

    def open_again(self, store: object) -> FlowEventStore:
        return JsonlEventStore(self.folder / str(self.folders), self.clock, kernel=self.kernel)

    def test_leases_outlive_the_store_object(self) -> None:
        """Here they do not: nothing about leases is on disk, and every open run can be claimed once (R12)."""

        async def test() -> None:
            store = self.make_store()
            story = await self.leased(store)
            await story.write(store, wait("w", START + SECOND), lease=Lease("me", SECOND, epoch=1, after="park"))
            await self.story("ended").write(store, created(), {"type": "run_failed", "error": "e"})
            await store.close()
            again = self.open_again(store)
            refused = await again.commit([Append(story.batch(wait("v", START)), Lease("me", SECOND, epoch=1))])
            assert told(refused) == told([LeaseLost("r")])
            assert await again.next_claim() == 0
            assert await again.claim("other", 9, ttl_ns=SECOND) == [Claimed("r", 1, 3)]
            await again.close()

        asyncio.run(test())


class TestOnRust(OnJsonl):
    kernel = "rust"


class TestOnPure(OnJsonl):
    kernel = "pure"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def opened(folder: Path) -> JsonlEventStore:
    return JsonlEventStore(folder, lambda: START, kernel="pure")


async def commit(store: FlowEventStore, *batches: Batch) -> Sequence[Committed | FlowError]:
    return await store.commit([Append(batch) for batch in batches])


# addresses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["jsonl:", "jsonl:///"])
def test_an_address_opens_a_folder(folder: Path, prefix: str) -> None:
    async def test() -> None:
        store = open_store(f"{prefix}{folder}")
        assert isinstance(store, perdure.JsonlEventStore)
        await Story(PURE, "r").write(store, created())
        assert repr(store) == f"<JsonlEventStore: JSONL folder {folder}>"
        await store.close()

    asyncio.run(test())
    assert (folder / "r.jsonl").is_file()


def test_an_empty_address_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a folder"):
        JsonlEventStore("jsonl://")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be opened"):
        JsonlEventStore(tmp_path / "file")


def test_a_closed_store_says_so(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        story = Story(PURE, "r")
        await story.write(store, created())
        await store.close()
        for call in (store.history("r"), store.run_ids(), commit(store, story.batch(started())), store.void("me")):
            with pytest.raises(StoreError, match="is closed; open the store again"):
                await call

    asyncio.run(test())


# one owner -----------------------------------------------------------------------------------------------------------

OWNER = """
import asyncio, sys
from perdure.stores import JsonlEventStore
store = JsonlEventStore(sys.argv[1], kernel="pure")
print("open", flush=True)
sys.stdin.read()
"""


def started_process(script: str, folder: Path, *, own_group: bool = False) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(perdure.__file__).parent.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=own_group,
    )


def test_a_second_process_is_told_who_owns_the_folder_and_a_dead_owner_is_no_hindrance(folder: Path) -> None:
    owner = started_process(OWNER, folder)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StoreUnavailable, match=rf"runs is in use by process {owner.pid}; .*one owner at a time"):
            opened(folder)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    assert (folder / "perdure.lock").read_text() == f"{owner.pid}\n"
    asyncio.run(opened(folder).close())


def test_what_a_killed_owner_left_is_made_durable_before_it_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill() -> None:
        store = opened(folder)
        for run_id in ("a", "b"):
            await Story(PURE, run_id).write(store, created())
        await store.close()

    asyncio.run(fill())
    synced: list[str] = []

    names = {file.stat().st_ino: file.name for file in folder.iterdir()}

    def name(descriptor: int) -> str:
        return names[os.fstat(descriptor).st_ino]

    monkeypatch.setattr(jsonl_folder, "_sync_data", lambda descriptor: synced.append(name(descriptor)))
    monkeypatch.setattr(jsonl_folder, "sync_folder", lambda path: synced.append(path.name))
    asyncio.run(opened(folder).close())
    assert synced == []
    (folder / "perdure.lock").write_text("4711\n")
    asyncio.run(opened(folder).close())
    assert (sorted(synced[:2]), synced[2:]) == (["a.jsonl", "b.jsonl"], ["runs"])


def test_the_tail_of_a_history_is_read_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(PURE, "r")
    read: list[int] = []

    def counting(file: Path, start: int, end: int) -> bytes:
        data = _read(file, start, end)
        read.append(len(data))
        return data

    monkeypatch.setattr(jsonl, "_read", counting)

    async def test() -> None:
        store = opened(folder)
        await story.write(store, created(), started())
        await store.close()
        file = folder / "r.jsonl"
        file.write_bytes(file.read_bytes().removesuffix(b"\n"))  # as another program may leave it
        store = opened(folder)
        for number in range(24):
            await story.write(store, *(wait(f"w{number}-{n}", START) for n in range(number % 3 + 1)))
        lines = (await store.history("r")).splitlines(keepends=True)
        assert len(lines) == 50
        for after in range(-1, 52):
            assert await store.history("r", after) == b"".join(lines[max(after, 0) :])
        read.clear()
        await store.history("r", 49)
        assert read[0] < 4 * len(lines[-1])
        await store.close()
        store = opened(folder)
        assert await store.history("r") == b"".join(lines)
        await store.close()

    asyncio.run(test())


def test_one_process_opens_a_folder_once_at_a_time(folder: Path) -> None:
    store = opened(folder)
    with pytest.raises(StoreUnavailable, match=f"process {os.getpid()};"):
        opened(folder)
    asyncio.run(store.close())
    asyncio.run(opened(folder).close())


FORK = """
import asyncio, os, sys, time
from perdure.errors import StoreError
from perdure.stores import JsonlEventStore

async def use(store):
    for call in (lambda: store.commit([]), store.run_ids, lambda: store.history("r"), lambda: store.void("me")):
        try:
            await asyncio.wait_for(call(), 10)
        except StoreError as error:
            print(str(error), flush=True)
    await store.close()

store = JsonlEventStore(sys.argv[1], kernel="pure")
if os.fork() == 0:
    asyncio.run(use(store))
time.sleep(600)
"""


def test_a_fork_is_told_that_the_folder_is_its_parents_and_does_not_keep_it(folder: Path) -> None:
    parent = started_process(FORK, folder, own_group=True)
    try:
        assert parent.stdout is not None
        told = {parent.stdout.readline() for _ in range(4)}
        assert len(told) == 1
        assert f"was opened by process {parent.pid}, of which this one is a fork" in told.pop()
        with pytest.raises(StoreUnavailable, match=f"in use by process {parent.pid}"):
            opened(folder)
        parent.kill()
        parent.wait()
        asyncio.run(opened(folder).close())
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def test_a_store_that_could_not_be_opened_leaves_the_folder_free(folder: Path) -> None:
    folder.mkdir()
    Path(folder, "r.jsonl").mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        opened(folder)
    Path(folder, "r.jsonl").rmdir()
    asyncio.run(opened(folder).close())


WRITER = """
import asyncio, sys
from perdure.kernel import load
from perdure.stores import JsonlEventStore
from perdure.testing._stories import START, Story, created, started, wait

async def write(store, run_id):
    story = Story(load("pure"), run_id)
    await story.write(store, created(), started())
    for turn in range(10_000):
        await story.write(store, wait(f"a{turn}", START), wait(f"b{turn}", START))
        print(run_id, story.run.last_sequence, flush=True)

async def main():
    store = JsonlEventStore(sys.argv[1], kernel="pure")
    await asyncio.gather(*(write(store, f"r{number}") for number in range(4)))

asyncio.run(main())
"""


def test_a_killed_process_loses_nothing_that_was_acknowledged(folder: Path) -> None:
    writer = started_process(WRITER, folder)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(40)]
    writer.send_signal(signal.SIGKILL)
    lines += writer.communicate()[0].splitlines()
    told = [line.split() for line in lines if len(line.split()) == 2]
    acknowledged = {run_id: int(sequence) for run_id, sequence in told}
    assert len(acknowledged) == 4

    async def test() -> None:
        store = opened(folder)
        for run_id, sequence in acknowledged.items():
            run = PURE.project(run_id, await store.history(run_id), DEFAULT_MAX_EVENT_BYTES)
            assert run.last_sequence >= sequence
            assert run.last_sequence % 2 == 0  # whole batches
        await store.close()

    asyncio.run(test())


# files and names -----------------------------------------------------------------------------------------------------


def test_lines_of_a_batch_are_marked_on_disk_and_nowhere_else(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        story = Story(PURE, "r")
        first = story.batch(created(), started(), wait("w", START))
        story.accept(first)
        second = story.batch(wait("v", START))
        await commit(store, first)
        await commit(store, second)
        written = (folder / "r.jsonl").read_bytes()
        assert [line[:2] for line in written.splitlines()] == [b" {", b" {", b'{"', b'{"']
        assert written.replace(b"\n ", b"\n")[1:] == first.lines + second.lines
        assert await store.history("r") == first.lines + second.lines
        assert await store.history("r", 2) == (first.lines + second.lines).split(b"\n", 2)[2]
        await store.close()

    asyncio.run(test())


def test_other_files_are_nobodys(folder: Path) -> None:
    folder.mkdir()
    for name in ("notes.txt", "a.b.jsonl", ".jsonl", "r.jsonl.bak", "é.jsonl", "x.hold.json", "x.checkpoint.json"):
        (folder / name).write_bytes(b"not ours")

    async def test() -> None:
        (folder / "x.hold.json").write_text(HOLD)  # of a run that is not here
        store = opened(folder)
        assert await store.run_ids() == []
        await store.close()

    asyncio.run(test())
    assert (folder / "notes.txt").read_bytes() == b"not ours"


def test_a_new_run_whose_file_exists_under_another_case_is_refused(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        await Story(PURE, "Order-1").write(store, created())
        for again in (False, True):
            refused = await commit(store, Story(PURE, "order-1").batch(created()))
            assert told(refused) == told([RunConflict("order-1", "case")])
            assert await store.run_ids() == ["Order-1"]
            if not again:
                await store.close()
                store = opened(folder)
        both = [Story(PURE, run_id).batch(created()) for run_id in ("x", "X")]
        assert told(await commit(store, *both)) == told([RunConflict("x", "case"), Committed(1)])
        await store.close()

    asyncio.run(test())


def test_a_file_that_came_to_be_beside_the_store_is_not_overwritten(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        (folder / "r.jsonl").write_bytes(b"foreign\n")
        ours = Story(PURE, "other")
        results = await asyncio.gather(
            commit(store, Story(PURE, "r").batch(created())), ours.write(store, created()), return_exceptions=True
        )
        assert isinstance(results[0], StoreError)
        assert "came to be beside this store" in str(results[0])
        assert results[1] == Committed(1)
        assert (folder / "r.jsonl").read_bytes() == b"foreign\n"
        with (folder / "other.jsonl").open("ab") as file:
            file.write(b"foreign\n")
        with pytest.raises(StoreError, match="another program wrote to it"):
            await commit(store, ours.batch(started()))
        await store.close()

    asyncio.run(test())


# tombstones and holds --------------------------------------------------------------------------------------------------


def test_a_tombstone_blocks_its_id_and_ends_a_prune_that_was_cut_short(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        await Story(PURE, "gone").write(store, created(), {"type": "run_failed", "error": "e"})
        await store.close()
        (folder / "gone.tombstone.json").write_text("{}")
        (folder / "gone.torn").write_bytes(b"x")
        store = opened(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["gone.tombstone.json", "perdure.lock"]
        assert await store.run_ids() == []
        refused = await commit(store, Story(PURE, "gone").batch(created()), Story(PURE, "GONE").batch(created()))
        assert told(refused) == told([RunConflict("gone", "pruned"), RunConflict("GONE", "case")])
        await store.close()

    asyncio.run(test())


def test_a_hold_outlives_the_store_and_ends_with_its_file(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        story = Story(PURE, "r")
        await story.write(store, created())
        assert await store.set_hold("r", HOLD, expected_sequence=1)
        file = folder / "r.hold.json"
        assert json.loads(file.read_bytes()) == json.loads(HOLD)
        await store.close()
        store = opened(folder)
        assert await store.claim("me", 1, ttl_ns=SECOND) == []
        (row,) = (await store.runs(RunFilter(held=True))).runs
        assert row.hold == HOLD
        assert await store.claim_held("me", 1, build="b1", ttl_ns=SECOND) == []
        assert await store.claim_held("me", 1, build="b2", ttl_ns=SECOND) == [Claimed("r", 1, 1)]
        assert await store.release_hold("r")
        assert not file.exists()
        assert not await store.release_hold("r")
        await store.close()

    asyncio.run(test())


def test_a_hold_that_rides_on_commits_is_written_and_deleted_with_them(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        story = Story(PURE, "r")
        await story.write(store, created(), lease=Lease("me", SECOND, claim="firm", after="fail", hold=HOLD))
        file = folder / "r.hold.json"
        assert file.exists()
        await story.write(store, started(), lease=Lease("me", SECOND, claim="firm"))
        assert file.exists()
        await story.write(store, wait("w", START), lease=Lease("me", SECOND, epoch=2, accepted=True))
        assert not file.exists()
        await story.write(store, lease=Lease("me", SECOND, epoch=2, after="free", hold=HOLD))
        assert file.exists()
        await story.write(store, {"type": "run_failed", "error": "e"})
        assert not file.exists()
        await store.close()

    asyncio.run(test())


def test_a_hold_that_cannot_be_read_is_named(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        await Story(PURE, "r").write(store, created())
        await store.close()

    asyncio.run(test())
    for text in ("{", "[]", ""):
        (folder / "r.hold.json").write_text(text)
        with pytest.raises(StoreError, match=r"r\.hold\.json is no run hold; .* delete it to release the run"):
            opened(folder)


# groups ----------------------------------------------------------------------------------------------------------------


def test_batches_that_rest_on_others_of_their_group_are_judged_after_them(folder: Path) -> None:
    async def test() -> None:
        store = opened(folder)
        holder, linking = Story(PURE, "a"), Story(PURE, "z")
        await holder.write(store, created(), hook("h", "canary-t"))
        frees = holder.batch(hook_done("h"))
        takes = Story(PURE, "b").batch(created(), hook("h", "canary-t"))
        late = Story(PURE, "c").batch(created(), hook("h", "canary-t"))
        links = linking.batch(created(), child("one", "b"), child("none", "missing"))
        links_well = linking.batch(created(), child("one", "b"))
        answers = await commit(store, links, late, takes, frees)
        expected: list[Committed | FlowError] = [
            RunNotFound("missing"),
            HookTokenConflict("canary-t", "b", "h"),
            Committed(2),
            Committed(3),
        ]
        assert told(answers) == told(expected)
        assert await commit(store, links_well) == [Committed(2)]
        assert await store.find_active_hooks(token_hash("canary-t")) == [ActiveHook("b", "h")]
        await store.close()

    asyncio.run(test())


def test_a_group_is_made_durable_before_what_rests_on_it_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        store = opened(folder)
        synced: list[tuple[int, list[str]]] = []
        sync_files = store._folder.sync_files

        def sync(descriptors: list[int]) -> None:
            synced.append((len(descriptors), sorted(path.stem for path in folder.glob("*.jsonl"))))
            sync_files(descriptors)

        folders: list[Path] = []
        monkeypatch.setattr(store._folder, "sync_files", sync)
        monkeypatch.setattr(jsonl_folder, "sync_folder", folders.append)
        stories = [Story(PURE, run_id) for run_id in ("a", "b")]
        batches = [story.batch(created()) for story in stories]
        await commit(store, Story(PURE, "c").batch(created(), child("one", "a")), *batches)
        assert synced == [(2, ["a", "b"]), (1, ["a", "b", "c"])]
        assert folders == [folder, folder]
        for story, batch in zip(stories, batches, strict=True):
            story.accept(batch)
        await commit(store, *(story.batch(started()) for story in stories))
        assert synced[2:] == [(2, ["a", "b", "c"])]
        assert folders == [folder, folder]  # a file that was there has its name on the disk
        await store.close()

    asyncio.run(test())


# histories of the reference engine -------------------------------------------------------------------------------------


def reference_runs() -> dict[str, list[str]]:
    runs: dict[str, list[str]] = {}
    for text in REFERENCE.read_text("utf-8").rstrip("\n").split("\n"):
        for run_id, run in json.loads(text)["recorded"]["runs"].items():
            runs.setdefault(run_id.lower(), [run_id, *run["lines"]])
    return {run_id: lines for run_id, *lines in runs.values() if lines}


def test_files_of_the_reference_engine_load_and_are_continued(folder: Path) -> None:
    folder.mkdir()
    runs = reference_runs()
    assert len(runs) > 20
    for run_id, lines in runs.items():
        (folder / f"{run_id}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")

    async def test() -> None:
        store = JsonlEventStore(folder, lambda: START)
        assert await store.run_ids() == sorted(runs)
        assert {row.run_id for row in (await store.runs(limit=1000)).runs} == runs.keys()
        open_runs = 0
        for run_id, lines in runs.items():
            assert (await store.history(run_id)).decode() == "".join(f"{line}\n" for line in lines)
            story = Story(PURE, run_id)
            story.run = PURE.project(run_id, await store.history(run_id), DEFAULT_MAX_EVENT_BYTES)
            if not story.run.terminal:
                open_runs += 1
                await story.write(store, wait("one-more", START), wait("two-more", START))
        assert open_runs
        shown = await store.runs(limit=1000)
        await store.close()
        store = JsonlEventStore(folder, lambda: START)
        assert await store.runs(limit=1000) == shown
        await store.close()

    asyncio.run(test())
