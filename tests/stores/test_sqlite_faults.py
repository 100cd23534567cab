"""What an SQLite store says when SQLite fails: certain refusals, unknown outcomes, and nothing half committed (R48)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from perdure.errors import EventConflict, OutcomeUnknown, StoreError, StoreUnavailable
from perdure.kernel import Batch, load
from perdure.stores import SqliteEventStore
from perdure.stores.base import Append, Committed
from perdure.stores.sqlite_file import SqliteFile
from perdure.stores.sqlite_writer import SqliteWriter
from perdure.testing._stories import START, Story, created, started, wait

PURE = load("pure")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def error_of(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code
    return error


class FaultyConnection:
    """A connection that fails at statements beginning with a given text, as often as told."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.real = connection
        self.faults: list[tuple[str, sqlite3.Error]] = []
        self.statements: list[str] = []

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        self.statements.append(statement.split(maxsplit=1)[0])
        if self.faults and statement.lstrip().startswith(self.faults[0][0]):
            raise self.faults.pop(0)[1]
        return self.real.execute(statement, values)

    def executemany(self, statement: str, values: Sequence[Sequence[object]]) -> sqlite3.Cursor:
        self.statements.append(statement.split(maxsplit=1)[0])
        return self.real.executemany(statement, values)

    @property
    def in_transaction(self) -> bool:
        return self.real.in_transaction

    @property
    def total_changes(self) -> int:
        return self.real.total_changes


@pytest.fixture
def connection(path: Path) -> Iterator[FaultyConnection]:
    real, turns = SqliteFile(str(path), "FULL", 0.2).open_writer()
    with closing(real), closing(turns):
        yield FaultyConnection(real)


@pytest.fixture
def writer(path: Path, connection: FaultyConnection) -> SqliteWriter:
    return SqliteWriter(SqliteFile(str(path), "FULL", 0.2), cast(sqlite3.Connection, connection))


def batches(*run_ids: str) -> list[Batch]:
    return [Story(PURE, run_id).batch(created(), started()) for run_id in run_ids]


def appends(*run_ids: str) -> list[Append]:
    return [Append(batch) for batch in batches(*run_ids)]


def stored(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [run_id for (run_id,) in connection.execute("SELECT run_id FROM flow_commits ORDER BY run_id")]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
@pytest.mark.parametrize("statement", ["BEGIN", "INSERT INTO flow_commits", "COMMIT"])
def test_full_and_busy_are_certain(
    path: Path, connection: FaultyConnection, writer: SqliteWriter, code: int, statement: str
) -> None:
    connection.faults = [(statement, error_of(code))] * (100 if code == sqlite3.SQLITE_BUSY else 1)
    with pytest.raises(StoreUnavailable, match=r"runs\.db .*nothing was written"):
        writer.write(appends("a", "b"))
    assert stored(path) == []
    connection.faults = []
    assert writer.write(appends("a", "b")) == [Committed(2), Committed(2)]
    assert stored(path) == ["a", "b"]


def test_a_busy_commit_is_repeated(path: Path, connection: FaultyConnection) -> None:
    writer = SqliteWriter(SqliteFile(str(path), "FULL", 600), cast(sqlite3.Connection, connection))
    connection.faults = [("COMMIT", error_of(sqlite3.SQLITE_BUSY))] * 2
    assert writer.write(appends("a")) == [Committed(2)]
    assert connection.statements.count("COMMIT") == 3
    assert stored(path) == ["a"]


def test_the_wait_for_a_turn_counts_as_one_with_the_wait_for_a_stranger_in_it(
    connection: FaultyConnection, writer: SqliteWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("perdure.stores.sqlite_writer.time.monotonic", lambda: clock[0])
    assert writer.take(wait=True)
    clock[0] += 0.3  # the turn has taken all the time there is
    connection.faults = [("BEGIN", error_of(sqlite3.SQLITE_BUSY))] * 2
    with pytest.raises(StoreUnavailable):
        writer.write(appends("a"))
    assert connection.statements == ["BEGIN"]
    writer.release()
    assert not writer.take(wait=False)
    assert writer.take(wait=True)
    assert writer.write(appends("a")) == [Committed(2)]
    clock[0] += 0.3
    connection.faults = [("BEGIN", error_of(sqlite3.SQLITE_BUSY))] * 2
    assert writer.write(appends("b")) == [Committed(2)]
    writer.release()


@pytest.mark.parametrize("statement", ["INSERT INTO flow_commits", "COMMIT"])
def test_an_input_output_error_poisons_the_store(
    path: Path, connection: FaultyConnection, writer: SqliteWriter, statement: str
) -> None:
    connection.faults = [(statement, error_of(sqlite3.SQLITE_IOERR_FSYNC))]
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"runs\.db met an input/output error"):
            writer.write(appends("a", "b"))
    assert connection.statements.count("BEGIN") == 1
    assert writer.poison is not None


def test_a_commit_that_fails_in_another_way_is_unknown_too(connection: FaultyConnection, writer: SqliteWriter) -> None:
    connection.faults = [("COMMIT", error_of(sqlite3.SQLITE_CORRUPT))]
    with pytest.raises(OutcomeUnknown):
        writer.write(appends("a"))


def test_after_any_error_no_statement_but_a_rollback_follows(
    path: Path, connection: FaultyConnection, writer: SqliteWriter
) -> None:
    # SQLite may have rolled back by itself; the next statement would then commit alone.
    connection.faults = [("INSERT INTO flow_commits", error_of(sqlite3.SQLITE_FULL))]
    with pytest.raises(StoreUnavailable):
        writer.write(appends("a", "b", "c"))
    assert connection.statements[-2:] == ["INSERT", "ROLLBACK"]
    assert stored(path) == []


def test_a_transaction_that_sqlite_ended_itself_is_not_rolled_back_again(
    path: Path, connection: FaultyConnection, writer: SqliteWriter
) -> None:
    class EndsItself(FaultyConnection):
        def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
            if statement.startswith("INSERT INTO flow_commits"):
                self.real.execute("ROLLBACK")
                raise error_of(sqlite3.SQLITE_FULL)
            return super().execute(statement, values)

    ending = EndsItself(connection.real)
    writer = SqliteWriter(SqliteFile(str(path), "FULL", 0.2), cast(sqlite3.Connection, ending))
    with pytest.raises(StoreUnavailable):
        writer.write(appends("a", "b"))
    assert "ROLLBACK" not in ending.statements
    assert stored(path) == []


def test_a_full_disk_inside_a_group_commits_none_of_it(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        story = Story(PURE, "kept")
        await story.write(store, created(), started())
        (pages,) = store._writer._connection.execute("PRAGMA page_count").fetchone()
        store._writer._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        small, large = story.batch(wait("w", START)), Story(PURE, "large").batch(created(input="x" * 100_000))
        with pytest.raises(StoreUnavailable, match="no room left"):
            await store.commit([Append(small), Append(large)])
        assert await store.run_ids() == ["kept"]
        assert (await store.history("kept")).count(b"\n") == 2
        store._writer._connection.execute("PRAGMA max_page_count = 1073741823")
        assert await store.commit([Append(small), Append(large)]) == [Committed(3), Committed(1)]
        await store.close()

    asyncio.run(test())


def test_a_lock_held_by_another_program_is_reported_by_name_and_then_goes_away(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path, busy_seconds=0.05)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"SQLite file .*runs\.db stayed locked .* 0\.05 s while writing"):
            await store.commit(appends("a"))
        assert await store.run_ids() == []  # reads go on beside it
        other.execute("ROLLBACK")
        other.close()
        assert await store.commit(appends("a")) == [Committed(2)]
        await store.close()

    asyncio.run(test())


def test_two_stores_on_one_file_see_each_other(path: Path) -> None:
    async def test() -> None:
        first, second = SqliteEventStore(path), SqliteEventStore(path)
        assert await first.commit(appends("a")) == [Committed(2)]
        assert await second.run_ids() == ["a"]
        (answer,) = await second.commit(appends("a"))
        assert isinstance(answer, EventConflict)

        async def write(store: SqliteEventStore, run_id: str) -> None:
            story = Story(PURE, run_id)
            await story.write(store, created())
            for turn in range(10):
                await story.write(store, wait(f"w{turn}", START))

        await asyncio.gather(
            *(write(store, f"r{number}{id(store)}") for store in (first, second) for number in range(4))
        )
        assert len(await first.run_ids()) == 9
        await first.close()
        await second.close()

    asyncio.run(test())


def test_a_poisoned_store_answers_no_reads(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        connection = FaultyConnection(store._writer._connection)
        store._writer._connection = cast(sqlite3.Connection, connection)
        connection.faults = [("COMMIT", error_of(sqlite3.SQLITE_IOERR_WRITE))]
        with pytest.raises(OutcomeUnknown):
            await store.commit(appends("a"))
        for call in (store.run_ids(), store.history("a"), store.commit(appends("b"))):
            with pytest.raises(OutcomeUnknown, match="open the file again"):
                await call
        await store.close()

    asyncio.run(test())


def test_a_value_that_sqlite_cannot_take_leaves_no_open_transaction(
    path: Path, connection: FaultyConnection, writer: SqliteWriter
) -> None:
    (bad,) = batches("bad")

    class Wrong:
        lines = "text, which a BLOB column of a STRICT table refuses"

        def __getattr__(self, name: str) -> object:
            return getattr(bad, name)

    with pytest.raises(StoreError, match="BLOB"):
        writer.write([*appends("a"), Append(cast(Batch, Wrong()))])
    assert not connection.in_transaction
    assert writer.poison is None
    assert writer.write(appends("a")) == [Committed(2)]
    assert stored(path) == ["a"]
