"""Eight processes that write one SQLite file: how fair the turns are, and how long anybody waits (R48).

`python -m tests.stores.sqlite_writers --seconds 60` prints the table; the test suite runs a short form. With `--reader 30` a
reader is held open for that long, and the size of the log is told."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

import perdure
from perdure.kernel import load
from perdure.stores import SqliteEventStore
from perdure.stores.base import Append, Committed, Lease
from perdure.testing._stories import SECOND, Story, created

WRITERS: Final = 8
_ROOT: Final = Path(__file__).parents[2]
_LOOK_SECONDS: Final = 0.05
_LEASE: Final = Lease("me", 3600 * SECOND, epoch=1)


@dataclass(frozen=True)
class Writer:
    """What one process did: commits acknowledged, the longest wait for one in seconds, the run's last sequence, and how many
    seconds at most it was kept from running."""

    run_id: str
    commits: int
    longest: float
    last_sequence: int
    stalled: float


class Stalls:
    """Looks in a thread for how long this process, or the disk that `file` is on, stands still, while the block lasts:
    `longest`, in seconds."""

    def __init__(self, file: Path | None = None) -> None:
        self.longest = 0.0
        self._file = file
        self._over = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_LOOK_SECONDS):
            if self._file is not None:
                with self._file.open("ab", buffering=0) as file:
                    file.write(b"x")
                    os.fsync(file.fileno())
            now = time.monotonic()
            self.longest, before = max(self.longest, now - before - _LOOK_SECONDS), now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def write(path: Path, run_id: str, start_at: float, seconds: float) -> Writer:
    """Commits one event after the other until the time is over."""
    store = SqliteEventStore(path)
    story = Story(load("rust"), run_id)
    await story.write(store, created(), lease=Lease("me", 3600 * SECOND, claim="firm"))
    await asyncio.sleep(max(0.0, start_at - time.time()))
    late = time.time() - start_at
    commits, longest, end = 0, 0.0, time.monotonic() + seconds
    with Stalls() as stalls:
        while (began := time.monotonic()) < end:
            progress = {"progress_id": f"p{commits}", "completed": commits, "message": "written"}
            batch = story.batch({"type": "run_progress_recorded", "progress": progress})
            (answer,) = await store.commit([Append(batch, _LEASE)])
            assert isinstance(answer, Committed), answer
            longest = max(longest, time.monotonic() - began)
            story.accept(batch)
            commits += 1
    await store.close()
    return Writer(run_id, commits, longest, story.run.last_sequence, max(stalls.longest, late))


def begin(path: Path, seconds: float, writers: int = WRITERS) -> list[subprocess.Popen[str]]:
    """That many processes that write for that time, started at one moment."""
    start_at = time.time() + 0.3 + 0.25 * writers  # they import in turns on a small machine
    command = [sys.executable, "-m", "tests.stores.sqlite_writers", "--file", str(path)]
    command += ["--start-at", str(start_at), "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(perdure.__path__[0]).parent)}
    pipe = subprocess.PIPE
    return [
        subprocess.Popen(
            [*command, "--run", f"run-{number}"], cwd=_ROOT, env=environment, stdout=pipe, stderr=pipe, text=True
        )
        for number in range(writers)
    ]


def end(processes: Sequence[subprocess.Popen[str]]) -> list[Writer]:
    """What each of them did. Raises if one failed."""
    found: list[Writer] = []
    for process in processes:
        out, error = process.communicate(timeout=600)
        if process.returncode:
            raise AssertionError(error)
        found.append(Writer(**json.loads(out)))
    return found


def hold_a_reader(path: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Keeps a read transaction open for that long, and tells what the log is like at its end and in the seconds after."""
    log = Path(f"{path}-wal")
    while not (path.exists() and log.exists()):
        time.sleep(0.05)
    time.sleep(3)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        time.sleep(seconds)
        say(f"after {seconds:g} s with a reader: {log.stat().st_size / 2**20:.1f} MiB of log")
    for _ in range(5):
        time.sleep(1)
        say(f"a second later: {log.stat().st_size / 2**20:.1f} MiB of log")


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--reader", type=float, default=0.0, help="seconds that a reader is held open meanwhile")
    parser.add_argument("--file", type=Path, help="only with --run")
    parser.add_argument("--run", help="be one of the writers")
    parser.add_argument("--start-at", type=float, default=0.0)
    given = parser.parse_args(arguments)
    if given.run:
        say(json.dumps(vars(asyncio.run(write(given.file, given.run, given.start_at, given.seconds)))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "runs.db")
        processes = begin(path, given.seconds)
        if given.reader:
            hold_a_reader(path, given.reader, say)
        found = end(processes)
    total = sum(writer.commits for writer in found)
    say(f"{total} commits in {given.seconds:g} s by {len(found)} processes, {total / given.seconds:,.0f} a second")
    for writer in sorted(found, key=lambda writer: writer.commits):
        share = writer.commits * len(found) / total
        say(
            f"{writer.run_id}: {writer.commits} commits, {share:.2f} of a fair share, longest wait {writer.longest:.3f} s"
        )


if __name__ == "__main__":
    main()
