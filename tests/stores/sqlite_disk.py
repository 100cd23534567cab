"""What a store says on a disk that is full or fails; run by `test_sqlite_disk.py` in a process of its own, whose disk it is.

Prints, as JSON, how far each run was acknowledged and what was said of the rest."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

from perdure.errors import OutcomeUnknown, StoreUnavailable
from perdure.kernel import load
from perdure.stores import SqliteEventStore
from perdure.stores.base import Append, Committed
from perdure.testing._stories import Draft, Story, created

PURE = load("pure")


def progress(number: int, size: int = 10) -> Draft:
    return {
        "type": "run_progress_recorded",
        "progress": {"progress_id": f"p{number}", "completed": number, "message": "x" * size},
    }


class Ledger:
    """Several runs that are committed together, and what was acknowledged of each."""

    def __init__(self, *run_ids: str) -> None:
        self.stories = [Story(PURE, run_id) for run_id in run_ids]
        self.turn = 0

    async def commit(self, store: SqliteEventStore, size: int = 10) -> None:
        """One batch of every run, each by a caller of its own, so that they share a group. Raises what the last was told."""
        self.turn += 1
        first = [created()] if self.turn == 1 else []
        calls = [(story, story.batch(*first, progress(self.turn, size))) for story in self.stories]
        answers = await asyncio.gather(*(store.commit([Append(batch)]) for _, batch in calls), return_exceptions=True)
        failure: BaseException | None = None
        for (story, batch), answer in zip(calls, answers, strict=True):
            if isinstance(answer, BaseException):
                failure = answer
            else:
                assert [type(one) for one in answer] == [Committed]
                story.accept(batch)
        if failure is not None:
            raise failure

    def acknowledged(self) -> dict[str, int]:
        return {story.run_id: story.run.last_sequence for story in self.stories}


async def full(path: Path, fill: Callable[[], None], free: Callable[[], None]) -> dict[str, object]:
    """Commits groups until nothing fits, sees that nothing was written, makes room and goes on."""
    store, ledger = SqliteEventStore(path), Ledger("a", "b", "c")
    for _ in range(20):
        await ledger.commit(store)
    fill()
    said: list[str] = []
    for _ in range(500):
        try:
            await ledger.commit(store, 20_000)
        except StoreUnavailable as error:
            said.append(error.detail)
            assert (
                await store.last_sequences(list("abc")) == ledger.acknowledged()
            )  # reads go on, and nothing was written
            if len(said) == 5:
                break
    free()
    for _ in range(5):
        await ledger.commit(store, 20_000)
    await store.close()
    return {"acknowledged": ledger.acknowledged(), "said": said}


async def unsynced(path: Path) -> dict[str, object]:
    """Commits groups, lets the sync of one fail, and sees what the store, and a second one, say then."""
    control = Path(f"{path}.sync")
    store, ledger = SqliteEventStore(path), Ledger("a", "b", "c")
    for _ in range(20):
        await ledger.commit(store)
    control.touch()
    said: list[str] = []
    for call in (ledger.commit(store), ledger.commit(store), store.run_ids(), store.claim("me", 1, ttl_ns=1)):
        try:
            await call
        except OutcomeUnknown as error:
            said.append(error.detail)
    control.unlink()
    for call in (ledger.commit(store), store.run_ids()):  # for this object it stays unknown
        try:
            await call
        except OutcomeUnknown as error:
            said.append(error.detail)
    await store.close()
    again = SqliteEventStore(path)
    found = await again.last_sequences(list("abc"))
    acknowledged = ledger.acknowledged()
    # It is settled by committing once more at the same sequence.
    unsettled = [(story, story.batch(progress(99))) for story in ledger.stories]
    (*answers,) = await again.commit([Append(batch) for _, batch in unsettled])
    await again.close()
    return {
        "acknowledged": acknowledged,
        "found": found,
        "said": said,
        "settled": [type(answer).__name__ for answer in answers],
    }


async def unsynced_checkpoint(path: Path) -> dict[str, object]:
    """Lets checkpoints fail: what is in the log stays there, and commits go on once the disk does."""
    control = Path(f"{path}.sync")
    store, ledger = SqliteEventStore(path, synchronous="NORMAL"), Ledger("a", "b", "c")
    control.touch()
    for _ in range(30):
        await ledger.commit(store, 100_000)
        await asyncio.sleep(0.01)
    assert store._checkpointer is not None
    while not store._checkpointer._failing:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.01)
    control.unlink()
    await ledger.commit(store)
    await store.close()
    return {"acknowledged": ledger.acknowledged(), "said": []}


def main() -> None:
    kind, path = sys.argv[1], Path(sys.argv[2])
    if kind == "tmpfs":
        ballast = path.with_name("ballast")
        told = asyncio.run(full(path, lambda: _fill(ballast), ballast.unlink))
    elif kind == "shim":
        control = Path(f"{path}.full")
        told = asyncio.run(full(path, control.touch, control.unlink))
    elif kind == "sync":
        told = asyncio.run(unsynced(path))
    else:
        told = asyncio.run(unsynced_checkpoint(path))
    told["stored"] = asyncio.run(_stored(path))
    sys.stdout.write(json.dumps(told))


def _fill(ballast: Path) -> None:
    """Takes the room but for some tens of kilobytes."""
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass
        file.truncate(max(0, file.tell() - 4 * 65536))


async def _stored(path: Path) -> dict[str, int]:
    store = SqliteEventStore(path)
    lengths = {run_id: (await store.history(run_id)).count(b"\n") for run_id in await store.run_ids()}
    await store.close()
    return lengths


if __name__ == "__main__":
    main()
