"""The SQLite store under the shipped suite, and what only a database has: addresses, plans, a view, a kill."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import perdure
from perdure.errors import FlowError, StoreError
from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Batch, load
from perdure.stores import SqliteEventStore
from perdure.stores.base import Append, Committed, FlowEventStore, Lease, RunFilter
from perdure.stores.leases import Wanted
from perdure.stores.runnable import SQLITE_LATER, SQLITE_ROWS
from perdure.stores.sqlite import DUE, HISTORY, HOOKS, NEXT, RUN_IDS, TOKEN, listing
from perdure.stores.sqlite_checkpoint import Checkpointer
from perdure.stores.sqlite_claims import OWNED, SET_COLUMNS, STATE, claim_query, held_query, next_query, outlook_query
from perdure.stores.sqlite_file import Synchronous
from perdure.stores.sqlite_writer import EARLIEST, STEADY
from perdure.testing._store_suite import StoreClock
from perdure.testing._stories import SECOND, START, Draft, Story, created, hook, started, token_hash, wait
from perdure.testing.store_contract import StoreContract

PURE = load("pure")
STEP: Draft = {
    "type": "step_created",
    "step_id": "s",
    "step_name": "s",
    "input": None,
    "retry": {"max_attempts": 1, "delay_ms": 0},
}
KNOWN = Wanted([("demo", "1"), ("other", "2")], ["b1", None])


class OnSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.files = 0

    def make_store(self) -> FlowEventStore:
        self.files += 1
        return SqliteEventStore(self.folder / f"{self.files}.db", self.clock)

    def open_again(self, store: FlowEventStore) -> FlowEventStore:
        return SqliteEventStore(self.folder / f"{self.files}.db", self.clock)


class TestOnRust(OnSqlite):
    kernel = "rust"


class TestOnPure(OnSqlite):
    kernel = "pure"


class TestInMemory(StoreContract):
    kernel = "pure"

    @pytest.fixture(autouse=True)
    def _closed_at_the_end(self) -> Iterator[None]:
        # What a database in memory held goes with its close, so the tests that open it again find it still open.
        self.made: list[_StaysOpen] = []
        yield
        for store in self.made:
            asyncio.run(store.close_in_earnest())

    def make_store(self) -> FlowEventStore:
        self.made.append(_StaysOpen(":memory:", self.clock))
        return self.made[-1]

    def test_closing_waits_for_what_is_queued_and_may_be_repeated(self) -> None:
        async def test() -> None:
            store = SqliteEventStore(":memory:")
            calls = [asyncio.create_task(commit(store, Story(PURE, f"r{n}").batch(created()))) for n in range(8)]
            await asyncio.sleep(0)
            await store.close()
            assert await asyncio.gather(*calls) == [[Committed(1)]] * 8
            await store.close()
            with pytest.raises(StoreError, match="is closed"):
                await store.run_ids()

        asyncio.run(test())


class _StaysOpen(SqliteEventStore):
    async def close(self) -> None:
        await asyncio.sleep(0)

    async def close_in_earnest(self) -> None:
        await super().close()


async def commit(store: FlowEventStore, *batches: Batch) -> Sequence[Committed | FlowError]:
    return await store.commit([Append(batch) for batch in batches])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def sql(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Runs one statement as somebody with an SQL prompt would."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement, values).fetchall()


def filled(path: Path) -> None:
    """A file with three runs that have waits, hooks and an end."""

    async def fill() -> None:
        store = SqliteEventStore(path)
        for number in range(3):
            story = Story(PURE, f"run-{number}")
            await story.write(store, created("build-1"), started(), wait("w", START + number))
            await story.write(store, hook("h", f"canary-{number}"))
        await store.close()

    asyncio.run(fill())


# addresses and settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{0}", "sqlite:{0}", "sqlite:///{0}"])
def test_the_forms_of_an_address_name_one_file_and_make_its_folder(tmp_path: Path, form: str) -> None:
    path = tmp_path / "new" / "folder" / "runs.db"
    store = SqliteEventStore(form.format(path))
    assert repr(store) == f"<SqliteEventStore: SQLite file {path}>"
    asyncio.run(store.close())
    assert path.exists()


@pytest.mark.parametrize(
    "address", ["sqlite:///sub/runs.db", "sqlite://sub/runs.db", "sqlite:sub/runs.db", "sub/runs.db"]
)
def test_a_relative_address_is_below_the_working_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slashes are relative, as in the database URLs Python people write."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(SqliteEventStore(address).close())
    assert (tmp_path / "sub" / "runs.db").exists()


@pytest.mark.parametrize("address", [":memory:", "sqlite::memory:", "sqlite://:memory:"])
def test_the_forms_of_memory(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(SqliteEventStore(address).close())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["", "sqlite:", "sqlite://", "sqlite:///", "sqlite:///runs.db?mode=ro"])
def test_an_address_that_names_no_file_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address|options"):
        SqliteEventStore(address)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"file/runs\.db: its folder cannot be made"):
        SqliteEventStore(tmp_path / "file" / "runs.db")


@pytest.mark.parametrize(("setting", "level"), [("FULL", 2), ("NORMAL", 1)])
def test_synchronous_is_what_was_asked_for(path: Path, setting: Synchronous, level: int) -> None:
    store = SqliteEventStore(path, synchronous=setting)
    assert store._writer._connection.execute("PRAGMA synchronous").fetchone() == (level,)
    assert store._writer._connection.execute("PRAGMA journal_size_limit").fetchone() == (64 * 1024 * 1024,)
    asyncio.run(store.close())


def test_synchronous_is_full_or_normal(path: Path) -> None:
    with pytest.raises(ValueError, match="FULL"):
        SqliteEventStore(path, synchronous="OFF")  # type: ignore[arg-type]  # the refusal is the test


def test_the_file_is_in_write_ahead_mode(path: Path) -> None:
    filled(path)
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


def test_the_clock_is_the_one_given() -> None:
    assert SqliteEventStore(":memory:", clock=lambda: 42).clock() == 42


def test_a_file_with_an_applications_own_tables_takes_ours_beside_them(path: Path) -> None:
    sql(path, "CREATE TABLE orders (id INTEGER)")
    filled(path)
    assert sql(path, "SELECT count(*) FROM flow_runs") == [(3,)]
    assert sql(path, "SELECT count(*) FROM orders") == [(0,)]


def test_tables_of_our_names_that_are_anothers_are_refused_and_the_file_is_left_alone(path: Path) -> None:
    for statement in (
        "CREATE TABLE flow_runs (id INTEGER)",
        "CREATE TABLE mine (id)",
        "CREATE VIEW flow_events AS SELECT 1",
    ):
        sql(path, statement)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"runs\.db has flow_events, flow_runs of another program"):
        SqliteEventStore(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_closed_store_says_so(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        await asyncio.gather(store.close(), store.close())
        for call in (store.run_ids(), commit(store, Story(PURE, "r").batch(created()))):
            with pytest.raises(StoreError, match=r"runs\.db is closed; open the store again"):
                await call

    asyncio.run(test())


def test_no_placeholder_is_numbered() -> None:
    """Some releases of Python take those for names and warn that a sequence has none."""
    folder = Path(perdure.__path__[0]) / "stores"
    assert not [file.name for file in folder.glob("*.py") if re.search(r"\?\d", file.read_text("utf-8"))]


def test_a_file_in_another_encoding_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16le'")
        connection.execute("CREATE TABLE orders (id)")
    with pytest.raises(StoreError, match=r"runs\.db is encoded in UTF-16le"):
        SqliteEventStore(path)


def test_a_value_that_no_file_can_hold_is_refused_by_name(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        story = Story(PURE, "r")
        await story.write(store, created())
        wrong = "\ud800"
        for call in (
            store.history(wrong),
            store.lease(wrong),
            store.runs(RunFilter(name=wrong)),
            store.set_hold("r", wrong, expected_sequence=1),
            store.renew("me", [(wrong, 1)], ttl_ns=1),
            store.claim("me", 1, ttl_ns=2**80),
            store.history("r", 2**63),
        ):
            with pytest.raises(StoreError, match="lone surrogates"):
                await call
        await story.write(store, started())  # nothing was left open
        await store.close()

    asyncio.run(test())


# tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "values", "plan"),
    [
        (DUE, (START, 5), "SEARCH w USING COVERING INDEX flow_wakeups_by_due"),
        (NEXT, (), "SCAN w USING COVERING INDEX flow_wakeups_by_due"),
        (TOKEN, (bytes(32),), "SEARCH flow_hooks USING PRIMARY KEY"),
        (HOOKS, (), "SCAN flow_hooks USING COVERING INDEX flow_hooks_by_run"),
        (HISTORY, ("r", "r", 3), "SEARCH flow_commits USING INDEX sqlite_autoindex_flow_commits_1"),
        (RUN_IDS, (), "SCAN flow_runs"),
        (*listing(RunFilter(), "r", 10), "SEARCH flow_runs USING PRIMARY KEY"),
        (*listing(RunFilter(status=("running",)), "r", 10), "SEARCH flow_runs USING INDEX flow_runs_by_status"),
        (*listing(RunFilter(held=True), "r", 10), "SEARCH flow_runs USING INDEX flow_runs_held"),
        (*listing(RunFilter(terminal=False), "r", 10), "SEARCH flow_runs USING INDEX flow_runs_open"),
        (*listing(RunFilter(terminal=False), None, 10), "SCAN flow_runs USING INDEX flow_runs_open"),
        (
            *listing(RunFilter(name="demo"), "r", 10),
            "SEARCH flow_runs USING INDEX flow_runs_by_name (name=? AND run_id>?)",
        ),
        (
            *listing(RunFilter(name="demo", version="1", build="b1"), None, 10),
            "SEARCH flow_runs USING INDEX flow_runs_by_name (name=?)",
        ),
        (*claim_query(Wanted(), START), "SEARCH flow_runs USING INDEX flow_runs_by_claim (claim_at<?)"),
        *(
            (*query, plan)
            for known in (KNOWN, Wanted([("demo", "1")]), Wanted([("demo", "1")], ["b1"], ["r"]))
            for query, plan in (
                (claim_query(known, START), "SEARCH flow_runs USING INDEX flow_runs_by_claim (claim_at<?)"),
                (held_query(known), "SCAN flow_runs USING INDEX flow_runs_held"),
                (next_query(known), "SEARCH flow_runs USING INDEX flow_runs_by_claim (claim_at>?)"),
            )
        ),
        (SQLITE_LATER, (START,), "SEARCH flow_runs USING INDEX flow_runs_by_claim (claim_at>?)"),
        (
            SQLITE_ROWS,
            (START, START, START, -1, "", 5),
            "SEARCH r USING INDEX flow_runs_by_claim ((claim_at,run_id)>(?,?)",
        ),
        (OWNED, ("me",), "SEARCH flow_runs USING COVERING INDEX flow_runs_by_owner"),
        (EARLIEST, ("r",), "SEARCH flow_wakeups USING PRIMARY KEY (run_id=?)"),
        (STEADY, ("x",) * 11, "SEARCH flow_runs USING PRIMARY KEY (run_id=?)"),
        (STATE, ("r",), "SEARCH flow_runs USING PRIMARY KEY (run_id=?)"),
        (SET_COLUMNS, ("x",) * 8, "SEARCH flow_runs USING PRIMARY KEY (run_id=?)"),
    ],
)
def test_queries_use_their_index(path: Path, query: str, values: Sequence[object], plan: str) -> None:
    filled(path)
    steps = [str(row[3]) for row in sql(path, f"EXPLAIN QUERY PLAN {query}", *values)]
    assert steps[0].startswith(plan), steps
    assert not any("TEMP B-TREE" in step for step in steps)
    # The run of a wakeup, and nothing else, is looked up beside it, by its key.
    assert all("SEARCH r USING PRIMARY KEY" in step for step in steps[1:] if " r " in step)


def test_what_an_idle_worker_asks_steps_through_indexes(path: Path) -> None:
    filled(path)
    query, values = outlook_query(Wanted([("demo", "1")], ["b1", None]))
    steps = [str(row[3]) for row in sql(path, f"EXPLAIN QUERY PLAN {query}", *values)]
    looks = [step for step in steps if " flow_runs " in step or " r " in step]
    assert [step.split(" USING ")[1].split(" (")[0] for step in looks] == [
        "INDEX flow_runs_by_claim",
        "COVERING INDEX flow_runs_by_owner",
        "COVERING INDEX flow_runs_by_owner",
    ]
    assert not any("TEMP B-TREE" in step for step in steps)


def test_the_view_shows_one_row_for_each_event(path: Path) -> None:
    filled(path)
    rows = sql(path, "SELECT run_id, sequence, timestamp, type, event FROM flow_events WHERE run_id = 'run-1'")
    assert [row[:2] for row in rows] == [("run-1", number) for number in range(1, 5)]
    assert [row[3] for row in rows] == ["run_created", "run_started", "wait_created", "hook_created"]
    assert rows[0][2] == "2027-01-15T08:00:00Z"
    assert rows[1][4] == '{"type":"run_started"}'
    assert sql(path, "SELECT count(*), count(DISTINCT event_id) FROM flow_events") == [(12, 12)]


def test_a_commit_is_one_row_and_tokens_are_kept_as_hashes(path: Path) -> None:
    filled(path)
    assert sql(path, "SELECT run_id, first_sequence, last_sequence FROM flow_commits WHERE run_id = 'run-0'") == [
        ("run-0", 1, 3),
        ("run-0", 4, 4),
    ]
    assert sql(path, "SELECT token_hash, hook_id, sequence FROM flow_hooks WHERE run_id = 'run-0'") == [
        (token_hash("canary-0"), "h", 4)
    ]
    assert sql(path, "SELECT kind, due_key FROM flow_wakeups WHERE run_id = 'run-1'") == [
        (0, "2027-01-15T08:00:00.000000001Z")
    ]


def test_a_commit_under_a_held_lease_is_one_update_and_one_insert(path: Path) -> None:
    async def test() -> None:
        clock = StoreClock()
        store = SqliteEventStore(path, clock)
        story, lease = Story(PURE, "r"), Lease("me", 30 * SECOND)
        await story.write(store, created(), started(), lease=replace(lease, claim="firm"))
        statements: list[str] = []
        store._writer._connection.set_trace_callback(statements.append)
        clock.ns += SECOND
        await story.write(store, STEP, lease=replace(lease, epoch=1, accepted=True))
        assert [statement.split()[0] for statement in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]
        assert "claim_at =" not in statements[1].replace("claim_at >=", "")
        await store.close()

    asyncio.run(test())


def test_the_clock_of_a_commit_is_read_inside_the_write_lock(path: Path) -> None:
    async def test() -> None:
        locked: list[bool] = []

        def clock() -> int:
            locked.append(store._writer._connection.in_transaction)
            return START + 2 * SECOND * (len(locked) > 1)

        store = SqliteEventStore(path, clock)
        answer = await Story(PURE, "r").write(store, created(), lease=Lease("me", SECOND, claim="firm"))
        assert answer.now == START
        (claimed,) = await store.claim("me", 1, ttl_ns=SECOND)
        assert claimed.now == START + 2 * SECOND
        assert locked == [True, False, True]  # a look whether there is anything to claim comes first
        await store.close()

    asyncio.run(test())


def test_changes_are_seen_of_another_store_on_the_same_file(path: Path) -> None:
    async def test() -> None:
        first, second = SqliteEventStore(path), SqliteEventStore(path)
        seen = await second.changes()
        assert await second.changes() == seen
        await Story(PURE, "r").write(first, created())
        assert await second.changes() != seen
        await asyncio.gather(*(second.changes() for _ in range(8)))
        seen = await second.changes()
        waiting = asyncio.create_task(second.wait_for_change(seen, 3600))
        await asyncio.sleep(0)
        await Story(PURE, "s").write(first, created())
        assert await asyncio.wait_for(waiting, 30) != seen
        await first.close()
        await second.close()

    asyncio.run(test())


def test_renewals_take_their_turn_under_a_steady_stream_of_commits(path: Path) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        stop = asyncio.Event()

        async def writer(story: Story) -> None:
            while not stop.is_set():
                await story.write(store, wait(f"w{story.clock}", START))

        stories = [Story(PURE, f"r{number}") for number in range(4)]
        for story in stories:
            await story.write(store, created(), lease=Lease("me", SECOND, claim="firm"))
        writers = [asyncio.create_task(writer(story)) for story in stories]
        for _ in range(5):
            answers = await store.renew("me", [(f"r{number}", 1) for number in range(4)], ttl_ns=SECOND)
            assert [type(answer) for answer in answers] == [tuple] * 4
        stop.set()
        await asyncio.gather(*writers)
        await store.close()

    asyncio.run(test())


def test_lease_columns_stand_at_their_defaults(path: Path) -> None:
    filled(path)

    async def end() -> None:
        store = SqliteEventStore(path)
        story = Story(PURE, "run-9")
        await story.write(store, created())
        await story.write(store, {"type": "run_failed", "error": "e"})
        await store.close()

    asyncio.run(end())
    columns = "owner, epoch, parked_sequence, failures, not_before, hold, claim_at"
    assert sql(path, f"SELECT {columns} FROM flow_runs WHERE NOT terminal") == [(None, 0, -1, 0, None, None, 0)] * 3
    assert sql(path, f"SELECT {columns} FROM flow_runs WHERE terminal") == [(None, 0, -1, 0, None, None, None)]


def test_the_links_of_a_run_are_rows(path: Path) -> None:
    filled(path)

    async def link() -> None:
        store = SqliteEventStore(path)
        reference = {"reference_id": "c", "kind": "flow", "operation_id": "o", "flow_run_id": "run-0"}
        again = {**reference, "reference_id": "d"}
        story = Story(PURE, "parent")
        await story.write(store, created(), {"type": "child_operation_linked", "child": reference})
        await story.write(store, {"type": "child_operation_linked", "child": again})
        await store.close()

    asyncio.run(link())
    assert sql(path, "SELECT * FROM flow_links") == [("parent", "run-0")]


def test_the_id_of_a_pruned_run_is_refused_before_anything_else(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO flow_tombstones VALUES ('gone', 'now', 1, 'e', ?)", (bytes(32),))
        connection.commit()

    async def test() -> None:
        store = SqliteEventStore(path)
        story = Story(PURE, "gone")
        (fresh,) = await commit(store, story.batch(created(), hook("h", "canary-0")))
        story.accept(story.batch(created()))
        (later,) = await commit(store, story.batch(started()))
        for answer in (fresh, later):
            assert isinstance(answer, FlowError)
            assert (answer.code, answer.args) == ("run_conflict", ("gone", "pruned"))
        await store.close()

    asyncio.run(test())


# durability --------------------------------------------------------------------------------------------------

_WRITER = """
import asyncio, sys
from perdure.kernel import load
from perdure.stores import SqliteEventStore
from perdure.testing._stories import START, Story, created, started, wait

async def writer(store, run_id):
    story = Story(load("pure"), run_id)
    await story.write(store, created(), started())
    for turn in range(100_000):
        print(run_id, story.run.last_sequence, flush=True)
        await story.write(store, wait(f"a{turn}", START), wait(f"b{turn}", START))

async def main():
    store = SqliteEventStore(sys.argv[1])
    await asyncio.gather(*(writer(store, f"r{number}") for number in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 40, 200])
def test_a_killed_process_loses_nothing_that_was_acknowledged(path: Path, lines: int) -> None:
    package = str(Path(perdure.__path__[0]).parent)
    environment = {**os.environ, "PYTHONPATH": package}
    child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, env=environment)
    with child:
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        heard += child.stdout.readlines()
    acknowledged = {
        run_id: int(sequence) for run_id, sequence in (line.split() for line in heard if line.endswith(b"\n"))
    }

    async def test() -> None:
        store = SqliteEventStore(path)
        for run_id, sequence in acknowledged.items():
            run = PURE.project(run_id.decode(), await store.history(run_id.decode()), DEFAULT_MAX_EVENT_BYTES)
            assert run.last_sequence >= sequence
            assert run.last_sequence % 2 == 0  # whole batches
        await store.close()

    asyncio.run(test())


def test_a_torn_log_reopens_with_whole_groups_only(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def write() -> None:
        monkeypatch.setattr(Checkpointer, "start", lambda _: None)  # it would copy a part of the log meanwhile
        store = SqliteEventStore(path)
        story, other = Story(PURE, "r"), Story(PURE, "s")
        for turn in range(6):
            batches = [
                one.batch(*([created()] if turn == 0 else []), wait(f"a{turn}", START), wait(f"b{turn}", START))
                for one in (story, other)
            ]
            assert not any(
                isinstance(answer, FlowError) for answer in await store.commit([Append(batch) for batch in batches])
            )
            story.accept(batches[0])
            other.accept(batches[1])
        # The files as a power cut would find them: the log has not been folded into the database.
        copies[path.name] = path.read_bytes()
        copies["wal"] = Path(f"{path}-wal").read_bytes()
        await store.close()

    async def look(torn: Path) -> int:
        store = SqliteEventStore(torn)
        lengths = {run_id: (await store.history(run_id)).count(b"\n") for run_id in await store.run_ids()}
        due = len(await store.list_due_wakeups(START))
        await store.close()
        assert lengths in ({}, {"r": lengths.get("r"), "s": lengths.get("r")})
        length = lengths.get("r", 0)
        assert length in (0, 3, 5, 7, 9, 11, 13)
        assert due == 2 * max(length - 1, 0)
        return length

    copies: dict[str, bytes] = {}
    asyncio.run(write())
    monkeypatch.undo()
    lengths = []
    log = copies["wal"]
    for number, size in enumerate([*range(0, len(log), 1999), len(log)]):
        torn = tmp_path / f"torn-{number}.db"
        torn.write_bytes(copies[path.name])
        Path(f"{torn}-wal").write_bytes(log[:size])
        lengths.append(asyncio.run(look(torn)))
    assert lengths == sorted(lengths)
    assert lengths[-1] == 13


def test_runs_that_commit_at_once_share_a_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = SqliteEventStore(path)
        sizes: list[int] = []
        write = store._writer.write

        def counted(appends: Sequence[Append]) -> list[Committed | FlowError]:
            sizes.append(len(appends))
            return write(appends)

        monkeypatch.setattr(store._writer, "write", counted)

        async def writer(run_id: str) -> None:
            story = Story(PURE, run_id)
            await story.write(store, created())
            for turn in range(5):
                await story.write(store, wait(f"w{turn}", START))

        await asyncio.gather(*(writer(f"r{number}") for number in range(32)))
        assert sum(sizes) == 32 * 6
        assert len(sizes) < 32 * 6 / 2
        await store.close()

    asyncio.run(test())
