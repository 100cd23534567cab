"""One SQLite file, several processes: turns at writing, who is named when nobody gives way, and the elected checkpointer
(R48)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from stores import sqlite_writers

import perdure
from perdure.errors import StoreError, StoreUnavailable
from perdure.kernel import load
from perdure.stores import SqliteEventStore, sqlite_checkpoint
from perdure.stores.base import Append, Committed, Lease
from perdure.stores.sqlite_file import SqliteFile
from perdure.stores.sqlite_turnstile import LockFile, OwnTurn, Turnstile, holder_of
from perdure.testing._stories import SECOND, Story, created, started

PURE = load("pure")
MEBIBYTE = 1024 * 1024
ROUNDS = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def patient(store: SqliteEventStore) -> None:
    """From now on the store waits for others for as long as a test may take."""
    object.__setattr__(store._file, "busy_seconds", 600.0)


def append(run_id: str) -> Append:
    return Append(Story(PURE, run_id).batch(created(), started()))


@contextmanager
def process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said a line, killed at the end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(perdure.__path__[0]).parent)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "ready"
            yield child
        finally:
            child.kill()


LOCKS = """
import fcntl, os, sys, time
for path in sys.argv[1:]:
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_CREAT, 0o666), fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(600)
"""
TRANSACTION = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
time.sleep(600)
"""


# turns -----------------------------------------------------------------------------------------------------------


def test_eight_processes_get_their_share_and_wait_less_than_a_second(path: Path) -> None:
    """As long as the machine lets them run: a round in which it, or its disk, stood still says nothing of turns, and all that is
    judged of the last of ten such rounds is that nothing was lost."""
    for number in range(ROUNDS):
        file = path.with_name(f"{number}.db")
        with sqlite_writers.Stalls(path.with_name("probe")) as stalls:
            found = sqlite_writers.end(sqlite_writers.begin(file, 4.0))
        if max(stalls.longest, *(writer.stalled for writer in found)) < 0.25:
            fair = sum(writer.commits for writer in found) / len(found)
            assert min(writer.commits for writer in found) >= fair / 2, found
            assert max(writer.longest for writer in found) < 1.0, found
            break

    async def test() -> None:
        store = SqliteEventStore(file)
        lengths = await store.last_sequences([writer.run_id for writer in found])
        assert lengths == {writer.run_id: writer.last_sequence for writer in found}
        await store.close()

    asyncio.run(test())


def test_nobody_writes_out_of_turn(path: Path) -> None:
    """Stores of one process and of several event loops queue like processes do."""
    inside = 0

    async def write(run_id: str) -> None:
        nonlocal inside

        def clock() -> int:
            nonlocal inside
            inside += 1
            time.sleep(0.001)
            assert inside == 1
            inside -= 1
            return time.time_ns()

        store = SqliteEventStore(path, clock)
        story = Story(PURE, run_id)
        await story.write(store, created())
        for _ in range(15):
            await story.write(store, lease=Lease("me", SECOND, claim="take_over"))
        await store.close()

    async def test() -> None:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, write(f"r{number}")) for number in range(4)))

    asyncio.run(test())


@pytest.mark.parametrize("held", [["gate"], ["writer"], ["gate", "writer"]])
def test_who_does_not_give_way_is_named_and_a_dead_one_is_in_nobodys_way(path: Path, held: list[str]) -> None:
    async def test() -> None:
        store = SqliteEventStore(path, busy_seconds=0.3)
        assert await store.commit([append("a")]) == [Committed(2)]
        with process(LOCKS, *(f"{path}.{name}" for name in held)) as holder:
            with pytest.raises(StoreUnavailable) as caught:
                await store.commit([append("b")])
            text = caught.value.detail
            assert "runs.db stayed locked for 0.3 s" in text and "nothing was written" in text
            assert f"process {holder.pid} " in text and f"runs.db.{held[-1]}" in text
            assert await store.run_ids() == ["a"]  # reads go on
            with pytest.raises(StoreUnavailable):  # whoever was left waiting keeps the place, and is asked again
                await store.commit([append("b")])
            patient(store)
            waiting = asyncio.create_task(store.commit([append("b")]))
            await asyncio.sleep(0.05)
            holder.send_signal(signal.SIGKILL)
            assert await waiting == [Committed(2)]
        assert await store.commit([append("c")]) == [Committed(2)]
        await store.close()

    asyncio.run(test())


def test_a_process_killed_in_its_turn_lets_the_others_go_on(path: Path) -> None:
    script = """
import asyncio, sys, time
from perdure.kernel import load
from perdure.stores import SqliteEventStore
from perdure.stores.base import Append
from perdure.testing._stories import Story, created
def hang():
    if len(sys.argv) > 2:
        print("ready", flush=True)
        time.sleep(600)
    return time.time_ns()
asyncio.run(SqliteEventStore(sys.argv[1], hang).commit([Append(Story(load("pure"), "killed").batch(created()))]))
"""

    async def test() -> None:
        store = SqliteEventStore(path)
        await store.commit([append("a")])
        with process(script, path, "hang") as holder:
            waiting = [asyncio.create_task(store.commit([append(run_id)])) for run_id in "bcd"]
            await asyncio.sleep(0.1)
            assert not any(call.done() for call in waiting)
            holder.send_signal(signal.SIGKILL)
            assert await asyncio.gather(*waiting) == [[Committed(2)]] * 3
        assert await store.run_ids() == ["a", "b", "c", "d"]
        await store.close()

    asyncio.run(test())


def test_a_stopped_process_is_waited_for_and_then_named(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path, busy_seconds=0.3)
        await store.commit([append("a")])
        with process(LOCKS, f"{path}.gate", f"{path}.writer") as holder:
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(StoreUnavailable, match=f"process {holder.pid} .* end it"):
                await store.claim("me", 1, ttl_ns=SECOND)
        patient(store)
        assert len(await store.claim("me", 1, ttl_ns=SECOND)) == 1
        await store.close()

    asyncio.run(test())


def test_a_stranger_inside_a_transaction_is_named(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path, busy_seconds=0.3)
        await store.commit([append("a")])
        with process(TRANSACTION, path) as stranger:
            with pytest.raises(StoreUnavailable, match=f"process {stranger.pid} .*nothing was written") as caught:
                await store.commit([append("b")])
            assert "database is locked" not in caught.value.detail
            patient(store)
            waiting = asyncio.create_task(store.commit([append("b")]))
            await asyncio.sleep(0.05)
            stranger.kill()
            assert await waiting == [Committed(2)]
        await store.close()

    asyncio.run(test())


def test_a_stranger_that_the_holder_of_the_turn_waits_for_is_named_too(path: Path) -> None:
    async def test() -> None:
        first, second = SqliteEventStore(path, busy_seconds=600), SqliteEventStore(path, busy_seconds=0.3)
        await first.commit([append("a")])
        with process(TRANSACTION, path) as stranger:
            waiting = asyncio.create_task(first.commit([append("b")]))
            await until(lambda: holder_of(f"{path}.writer"), "the first one has no turn")
            with pytest.raises(StoreUnavailable) as caught:
                await second.commit([append("c")])
            assert (
                f"process {os.getpid()} (this one) holds {path}.writer, waiting for a transaction"
                in caught.value.detail
            )
            assert f"process {stranger.pid} " in caught.value.detail
            stranger.kill()
            assert await waiting == [Committed(2)]
        await first.close()
        await second.close()

    asyncio.run(test())


def test_an_idle_poll_takes_no_turn(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path, busy_seconds=0.2)
        await Story(PURE, "a").write(store, created(), lease=Lease("other", 3600 * SECOND, claim="firm"))
        with process(LOCKS, f"{path}.writer"):
            seen = await store.changes()
            assert await store.claim("me", 8, ttl_ns=SECOND) == []
            assert await store.claim_held("me", 8, build="b", ttl_ns=SECOND) == []
            assert await store.renew("me", [], ttl_ns=SECOND) == []
            assert await store.void("me") == 0
            assert await store.changes() == seen
        await store.close()

    asyncio.run(test())


def test_opening_a_file_that_needs_nothing_takes_no_turn(path: Path) -> None:
    asyncio.run(SqliteEventStore(path).close())
    with closing(sqlite3.connect(path)), process(LOCKS, f"{path}.gate", f"{path}.writer"):
        store = SqliteEventStore(path, busy_seconds=0.2)
        assert asyncio.run(store.run_ids()) == []
        asyncio.run(store.close())
        new = path.with_name("new.db")
        os.link(f"{path}.writer", f"{new}.writer")
        with pytest.raises(StoreUnavailable, match="stayed locked"):  # it would have to be migrated
            SqliteEventStore(new, busy_seconds=0.2)


def test_two_names_of_a_file_have_one_turnstile(path: Path, tmp_path: Path) -> None:
    asyncio.run(SqliteEventStore(path).close())
    link = tmp_path / "link.db"
    link.symlink_to(path)
    one, other = Turnstile(str(path)), Turnstile(str(link))
    assert one.take(0)
    assert not other.take(0.01)
    one.release()
    assert other.take(60)
    other.release()
    one.close()
    other.close()
    assert not Path(f"{link}.gate").exists()


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_lock_that_cannot_be_had_is_said_and_keeps_nobody_out(
    path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    asyncio.run(SqliteEventStore(path).close())
    holder, broken, third = Turnstile(str(path)), Turnstile(str(path)), Turnstile(str(path))
    if seconds:
        assert holder.take(0)  # so that a thread has to wait

    def failing(*, wait: bool) -> bool:
        raise StoreError("no locks are left")

    monkeypatch.setattr(broken._writer, "lock", failing)
    with pytest.raises(StoreError, match="no locks are left"):
        broken.take(seconds)
    if seconds:
        holder.release()
    assert third.take(60)
    third.release()
    monkeypatch.undo()
    assert broken.take(60)
    broken.release()
    for turns in (holder, broken, third):
        turns.close()


# forks -----------------------------------------------------------------------------------------------------------

FORK = """
import asyncio, os, sys, time
from perdure.stores.sqlite_turnstile import LockFile, Turnstile
turns = Turnstile(sys.argv[1])
assert turns.take(1)
if os.fork():
    print("ready", flush=True)
time.sleep(600)
"""


def test_a_fork_does_not_keep_the_lock_of_a_parent_that_was_killed(path: Path) -> None:
    asyncio.run(SqliteEventStore(path).close())
    environment = {**os.environ, "PYTHONPATH": str(Path(perdure.__path__[0]).parent)}
    parent = subprocess.Popen(
        [sys.executable, "-c", FORK, str(path)], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        turns = Turnstile(str(path))
        assert not turns.take(0)
        os.kill(parent.pid, signal.SIGKILL)
        assert turns.take(60)
        turns.release()
        turns.close()
        os.killpg(parent.pid, signal.SIGKILL)


def test_a_fork_must_open_the_file_itself(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        assert await store.commit([append("a")]) == [Committed(2)]
        store._process += 1  # what a fork sees
        for call in (store.commit([append("b")]), store.run_ids(), store.renew("me", [("a", 1)], ttl_ns=1)):
            with pytest.raises(StoreError, match="before this process was forked"):
                await call
        await asyncio.wait_for(store.close(), 60)  # leaves alone what is the parent's
        store._process -= 1
        assert await store.run_ids() == ["a"]
        await store.close()

    asyncio.run(test())


# checkpoints -----------------------------------------------------------------------------------------------------


def log_size(path: Path) -> int:
    log = Path(f"{path}-wal")
    return log.stat().st_size if log.exists() else 0


async def write_bytes(store: SqliteEventStore, name: str, size: int) -> None:
    """Commits runs of a megabyte each."""
    for number in range(size // MEBIBYTE):
        batch = Story(PURE, f"{name}-{number}").batch(created(input="x" * MEBIBYTE))
        assert await store.commit([Append(batch)]) == [Committed(1)]


async def until(condition: object, what: str) -> None:
    assert callable(condition)
    for _ in range(2400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(what)


def test_the_log_begins_anew_under_steady_load_and_is_cut_once_an_old_reader_has_gone(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path, synchronous="NORMAL")
        runs = 72
        await write_bytes(store, "steady", runs * MEBIBYTE)
        while log_size(path) >= 64 * MEBIBYTE:  # the thread is behind: it comes up with writers who are not that fast
            assert runs < 600
            await asyncio.sleep(0.05)
            await write_bytes(store, f"more-{runs}", MEBIBYTE)
            runs += 1
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            (before,) = reader.execute("SELECT count(*) FROM flow_runs").fetchone()
            await write_bytes(store, "read", 68 * MEBIBYTE)
            assert log_size(path) > 64 * MEBIBYTE
            assert reader.execute("SELECT count(*) FROM flow_runs").fetchone() == (before,)
        await until(lambda: log_size(path) <= 64 * MEBIBYTE, "the log stayed long")
        assert len(await store.run_ids()) == runs + 68
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("company", [1, 16])
def test_checkpoints_are_as_many_as_the_log_has_use_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, company: int
) -> None:
    passes = since = 0
    copied = sqlite_checkpoint._passive

    def counted(connection: sqlite3.Connection) -> tuple[int, int]:
        nonlocal passes, since
        given = copied(connection)
        passes, since = passes + 1, 0
        return given

    def keeps_up() -> bool:
        return since <= 600

    async def write(store: SqliteEventStore, run_id: str) -> None:
        nonlocal since
        story = Story(PURE, run_id)
        await story.write(store, created(), started())
        for number in range(6_400 // company):
            since += 1
            if not keeps_up():  # the thread or its disk stands still, and the log would grow without its fault
                await until(keeps_up, "there are no passes")
            await story.write(
                store, {"type": "step_created", "step_id": f"s{number}", "step_name": "n", "input": "x" * 2_000}
            )

    async def test() -> None:
        monkeypatch.setattr(sqlite_checkpoint, "_passive", counted)
        store = SqliteEventStore(path, synchronous="NORMAL")
        began = time.monotonic()
        await asyncio.gather(*(write(store, f"r{number}") for number in range(company)))
        seconds = time.monotonic() - began
        written = path.stat().st_size  # at least: most pages were written to the log more than once
        size = log_size(path)
        # Two passes for every 4 MiB of the log, whose pages are written some ten times, and two a second.
        assert passes <= 2 * (10 * written / (4 * MEBIBYTE) + seconds + 2)
        assert size <= 32 * MEBIBYTE
        await store.close()

    asyncio.run(test())


def test_a_store_that_nobody_closes_leaves_no_thread_and_no_lock_behind(path: Path) -> None:
    def checkpointers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "perdure-sqlite-checkpointer"]

    async def test() -> None:
        store = SqliteEventStore(path)
        assert await store.commit([append("a")]) == [Committed(2)]
        assert len(checkpointers()) == 1
        connections = store._connections
        del store
        # More than once: the writing thread may still be on its way out of the store.
        await until(lambda: gc.collect() >= 0 and not checkpointers(), "the thread goes on")
        for connection in connections:
            connection.close()

    asyncio.run(test())
    lock = LockFile(str(path), ".checkpoint")
    assert lock.lock(wait=False)
    lock.close()


def test_commits_do_not_checkpoint(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        await store.run_ids()
        for connection in store._connections:
            assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
        await store.close()

    asyncio.run(test())


def test_a_checkpoint_that_finds_no_connection_is_tried_again_and_who_gives_up_gives_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[sqlite3.Error] = []
    opened = SqliteFile.open_checkpointer

    def failing(file: SqliteFile) -> sqlite3.Connection:
        if not tried:
            tried.append(sqlite3.OperationalError("too many open files"))
            raise tried[0]
        return opened(file)

    def broken(self: Turnstile | OwnTurn, seconds: float) -> bool:
        raise StoreError("no locks are left")

    async def test() -> None:
        monkeypatch.setattr(SqliteFile, "open_checkpointer", failing)
        store = SqliteEventStore(path, synchronous="NORMAL")
        await write_bytes(store, "a", 5 * MEBIBYTE)
        await until(lambda: path.stat().st_size > 4 * MEBIBYTE, "nothing was copied")
        assert tried and store._checkpointer is not None
        monkeypatch.setattr("perdure.stores.sqlite_checkpoint._LONG", MEBIBYTE)
        monkeypatch.setattr(store._checkpointer._turns, "take", partial(broken, store._checkpointer._turns))
        duty = LockFile(str(path), ".checkpoint")
        assert not duty.lock(wait=False)
        await write_bytes(store, "b", 5 * MEBIBYTE)
        await until(lambda: duty.lock(wait=False), "the duty was kept")
        duty.close()
        await store.close()

    asyncio.run(test())


def test_another_process_takes_over_when_the_elected_one_dies(path: Path) -> None:
    async def test() -> None:
        with process(LOCKS, f"{path}.checkpoint") as elected:
            store = SqliteEventStore(path, synchronous="NORMAL")
            await write_bytes(store, "a", 8 * MEBIBYTE)
            await asyncio.sleep(1.3)
            before = path.stat().st_size
            assert before < 4 * MEBIBYTE  # nothing has been copied into the database
            elected.send_signal(signal.SIGKILL)
            await until(lambda: path.stat().st_size > 8 * MEBIBYTE, "nobody took over")
        await store.close()

    asyncio.run(test())


def test_a_log_that_the_elected_process_lets_grow_is_cut_by_any_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.stores.sqlite_checkpoint._DESERTED", 40 * MEBIBYTE)

    async def test() -> None:
        with process(LOCKS, f"{path}.checkpoint") as elected:
            elected.send_signal(signal.SIGSTOP)
            store = SqliteEventStore(path, synchronous="NORMAL")
            await write_bytes(store, "a", 48 * MEBIBYTE)
            await until(lambda: log_size(path) < 40 * MEBIBYTE, "nobody cut it")
            await store.close()

    asyncio.run(test())


def test_a_database_in_memory_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def test() -> None:
        store = SqliteEventStore(":memory:")
        assert await store.commit([append("a")]) == [Committed(2)]
        assert await store.commit([append("b")]) == [Committed(2)]
        assert await asyncio.gather(*(store.run_ids() for _ in range(4)), store.commit([append("c")]))
        assert store._checkpointer is None
        await store.close()

    asyncio.run(test())
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    asyncio.run(SqliteEventStore(path).close())
    for lock in (".gate", ".writer"):
        Path(f"{path}{lock}").unlink()
    Path(f"{path}.gate").mkdir()
    with pytest.raises(StoreError, match=r"runs\.db\.gate cannot be opened"):
        SqliteEventStore(path)
