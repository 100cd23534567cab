"""Retention beyond the shared suite: queue rows, indexes, engines, files, and races between processes' connections."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import psycopg
import pytest

from perdure import Flow, FlowEngine, RuntimeCommand, WorkflowContext
from perdure.errors import RunConflict, RunNotFound, StoreError, StoreUnavailable
from perdure.kernel import load
from perdure.retention import RunSelection
from perdure.stores import FlowEventStore, JsonlEventStore, MemoryEventStore, SqliteEventStore
from perdure.stores.base import Append, Committed
from perdure.stores.postgres import PostgresEventStore
from perdure.stores.postgres_database import PostgresDatabase
from perdure.stores.postgres_retention import HELD, HOLDS, HOLDS_OF, LINKED
from perdure.stores.sqlite_retention import HOLDS as SQLITE_HOLDS
from perdure.stores.sqlite_retention import HOLDS_OF as SQLITE_HOLDS_OF
from perdure.stores.sqlite_retention import NAMED, NAMING
from perdure.testing._stories import Story, child, created, started
from perdure.testing.postgres import shared_server

RUST = load("rust")
ENDED = {"type": "run_completed", "output": None}
FAR = 9 * 10**18
NUMBERS = count(1)
KINDS = ("memory", "jsonl", "sqlite", "postgres")


def make(kind: str, folder: Path) -> FlowEventStore:
    if kind == "memory":
        return MemoryEventStore()
    if kind == "jsonl":
        return JsonlEventStore(folder / "runs")
    if kind == "sqlite":
        return SqliteEventStore(folder / "app.db")
    return PostgresEventStore(shared_server().url, schema=f"retention {next(NUMBERS)}")


def on(kind: str, folder: Path, test: Callable[[FlowEventStore], Awaitable[None]]) -> None:
    async def body() -> None:
        store = make(kind, folder)
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(body())


def one_step() -> Flow:
    flow = Flow()

    @flow.step
    def double(n: int) -> int:
        return 2 * n

    @flow.workflow("doubling", version="1")
    def doubling(ctx: WorkflowContext) -> RuntimeCommand:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", double, ctx.input)
        return ctx.complete(ctx.step_output("a"))

    return flow


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_drove_a_run_keeps_nothing_of_it(kind: str, tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        async with FlowEngine(one_step(), store) as engine:
            assert (await engine.run("doubling", 21, run_id="r")).output == 42
            await store.prune(FAR)
            for call in (engine.snapshot("r"), engine.drive("r"), engine.history("r"), engine.force_cancel("r")):
                with pytest.raises(RunNotFound):
                    await call
            for start in (engine.start, engine.submit, engine.run):
                with pytest.raises(RunConflict, match="was pruned"):
                    await start("doubling", 21, run_id="r")
            assert await store.run_ids() == []

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_driven_beside_the_prune_is_whole(kind: str, tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        async with FlowEngine(one_step(), store) as engine:
            drives = [asyncio.ensure_future(engine.start("doubling", n, run_id=f"r{n}")) for n in range(12)]
            while not all(drive.done() for drive in drives):
                await store.prune(FAR, batch=3)
                await asyncio.sleep(0)  # a store in memory does not wait
            assert [drive.result() for drive in drives] == [f"r{n}" for n in range(12)]
            await store.prune(FAR)
            assert await store.run_ids() == []
            for n in range(12):
                left = await store.tombstone(f"r{n}")
                assert left is not None and left.terminal_sequence == 6  # down to its completion

    on(kind, tmp_path, test)


# SQLite and PostgreSQL -----------------------------------------------------------------------------------------


class Sql:
    """A database and a connection to it beside the store's."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.path = kind, folder / "app.db"
        self.schema = f"retention {next(NUMBERS)}"

    def store(self) -> FlowEventStore:
        if self.kind == "sqlite":
            return SqliteEventStore(self.path)
        return PostgresEventStore(shared_server().url, schema=self.schema)

    def query(self, statement: str) -> list[tuple[object, ...]]:
        if self.kind == "sqlite":
            connection = sqlite3.connect(self.path)
            try:
                return connection.execute(statement.replace("@schema@.", "")).fetchall()
            finally:
                connection.commit()
                connection.close()
        with psycopg.connect(shared_server().url, autocommit=True) as server:
            text = PostgresDatabase(shared_server().url, self.schema, None).sql(statement)
            cursor = server.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["sqlite", "postgres"])
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> Sql:
    return Sql(request.param, tmp_path)


TASKS = """INSERT INTO @schema@.flow_tasks (queue, task_id, run_id, drives, task, enqueued_at, due_at)
VALUES ('q', '{0}', '{0}', {1}, '{{}}', 0, 0)"""
DEAD = """INSERT INTO @schema@.flow_task_dead_letters
(queue, lease_id, task_id, run_id, drives, task, reason, attempts, enqueued_at, dead_lettered_at)
VALUES ('q', 'l-{0}', '{0}', '{0}', {1}, '{{}}', 'x', 1, 0, 0)"""


def test_no_table_holds_a_row_of_a_pruned_run_but_its_tombstone(sql: Sql) -> None:
    async def go() -> None:
        store = sql.store()
        await Story(RUST, "kid").write(store, created(), ENDED)
        await Story(RUST, "gone").write(store, created(), started(), child("x", "kid"), ENDED)
        await Story(RUST, "kept").write(store, created())
        yes = "1" if sql.kind == "sqlite" else "true"
        for run_id in ("gone", "kept"):
            blob = TASKS.replace("'{{}}'", "CAST('{{}}' AS BLOB)" if sql.kind == "sqlite" else "'{{}}'")
            dead = DEAD.replace("'{{}}'", "CAST('{{}}' AS BLOB)" if sql.kind == "sqlite" else "'{{}}'")
            sql.query(blob.format(run_id, yes))
            sql.query(dead.format(run_id, yes))
        await store.hold_history("kept", "h", "why")
        assert (await store.prune(FAR)).deleted.count == 2
        await store.close()

    asyncio.run(go())
    if sql.kind == "sqlite":
        tables = [
            str(name)
            for (name,) in sql.query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'flow_%'")
            if any(row[1] == "run_id" for row in sql.query(f"PRAGMA table_info({name})"))
        ]
    else:
        tables = [
            str(name)
            for (name,) in sql.query(
                "SELECT c.table_name FROM information_schema.columns AS c "
                "JOIN information_schema.tables AS t USING (table_schema, table_name) "
                f"WHERE c.table_schema = '{sql.schema}' AND c.column_name = 'run_id' AND t.table_type = 'BASE TABLE'"
            )
        ]
    assert {"flow_runs", "flow_commits", "flow_tasks", "flow_task_dead_letters", "flow_history_holds"} <= {*tables}
    holding = [table for table in tables if sql.query(f"SELECT run_id FROM @schema@.{table} WHERE run_id = 'gone'")]
    assert holding == ["flow_tombstones"]
    for table in ("flow_tasks", "flow_task_dead_letters", "flow_history_holds", "flow_runs"):
        assert sql.query(f"SELECT run_id FROM @schema@.{table}") == [("kept",)]


def test_two_pruning_processes_share_the_work(sql: Sql) -> None:
    async def go() -> None:
        first, second = sql.store(), sql.store()
        stories = [Story(RUST, f"r{n:03}") for n in range(60)]
        await first.commit([Append(story.batch(created(), ENDED)) for story in stories])
        await second.run_ids()
        reports = await asyncio.gather(first.prune(FAR, batch=7), second.prune(FAR, batch=5))
        assert sum(report.deleted.count for report in reports) == 60
        assert await first.run_ids() == []
        await first.close()
        await second.close()

    asyncio.run(go())


def test_a_link_made_by_another_process_in_mid_prune_keeps_the_run(sql: Sql) -> None:
    """The component is looked at again inside the transaction that deletes it."""

    async def go() -> None:
        pruning, other = sql.store(), sql.store()
        for run_id in ("a", "b"):
            await Story(RUST, run_id).write(pruning, created(), ENDED)
        standings = pruning._standings  # type: ignore[attr-defined]
        calls = count(1)

        async def interrupted(run_ids: list[str]) -> object:
            found = await standings(run_ids)
            if next(calls) == 1:
                await Story(RUST, "p").write(other, created(), child("x", "a"))
            return found

        pruning._standings = interrupted  # type: ignore[attr-defined]
        report = await pruning.prune(FAR)
        assert (report.deleted.first, report.changed.first) == (["b"], ["a"])
        assert await pruning.history("a")
        await pruning.close()
        await other.close()

    asyncio.run(go())


def test_sqlite_finds_links_and_holds_by_their_indexes(tmp_path: Path) -> None:
    store = SqliteEventStore(tmp_path / "app.db")
    connection = sqlite3.connect(tmp_path / "app.db")
    for statement, values in (
        (NAMED.format("?"), ("r",)),
        (NAMING.format("?"), ("r",)),
        (SQLITE_HOLDS, ("", "", 10)),
        (SQLITE_HOLDS_OF, ("r", "", "", 10)),
    ):
        plan = " | ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values))
        assert "SCAN" not in plan and "SEARCH" in plan, plan
        assert "TEMP B-TREE" not in plan
    connection.close()
    asyncio.run(store.close())


def test_postgres_finds_links_and_holds_by_their_indexes() -> None:
    sql = Sql("postgres", Path())

    async def make_schema() -> None:
        store = sql.store()
        await store.run_ids()
        await store.close()

    asyncio.run(make_schema())
    for statement in (HELD, LINKED, HOLDS, HOLDS_OF):
        given = statement
        for place, value in (("$1::text[]", "'{r}'::text[]"), ("$1", "''"), ("$2", "''"), ("$3", "10"), ("$4", "'r'")):
            given = given.replace(place, value)
        with psycopg.connect(shared_server().url, autocommit=True) as server:
            server.execute("SET enable_seqscan = off")
            text = PostgresDatabase(shared_server().url, sql.schema, None).sql(f"EXPLAIN (COSTS OFF) {given}")
            plan = "\n".join(str(row[0]) for row in server.execute(text.encode()).fetchall())
        assert "Seq Scan" not in plan and "Index" in plan, plan
        assert "Sort" not in plan.replace("Merge", "") or statement in (LINKED, HELD), plan


# JSONL ---------------------------------------------------------------------------------------------------------


def test_the_files_of_a_pruned_run_are_one_tombstone(tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        await Story(RUST, "r").write(store, created(), ENDED)
        await store.hold_history("r", "h", "why")
        assert json.loads((tmp_path / "runs" / "r.history-holds.json").read_text())[0]["reason"] == "why"
        await store.release_history("r", "h")
        await store.prune(FAR)

    on("jsonl", tmp_path, test)
    files = {file.name for file in (tmp_path / "runs").iterdir()}
    assert files == {"perdure.lock", "r.tombstone.json"}
    tombstone = json.loads((tmp_path / "runs" / "r.tombstone.json").read_text())
    assert tombstone.keys() == {"run_id", "deleted_at", "terminal_sequence", "terminal_event_id", "history_sha256"}


def test_a_log_beside_its_tombstone_is_deleted_at_open(tmp_path: Path) -> None:
    on("jsonl", tmp_path, lambda store: Story(RUST, "r").write(store, created(), ENDED))  # type: ignore[arg-type,return-value]
    folder = tmp_path / "runs"
    log = (folder / "r.jsonl").read_bytes()
    on("jsonl", tmp_path, lambda store: store.prune(FAR))  # type: ignore[arg-type,return-value]
    for name in ("r.jsonl", "r.hold.json", "r.history-holds.json", "r.torn"):
        (folder / name).write_bytes(log)

    async def test(store: FlowEventStore) -> None:
        assert await store.run_ids() == []
        assert {file.name for file in folder.iterdir()} == {"perdure.lock", "r.tombstone.json"}

    on("jsonl", tmp_path, test)


@pytest.mark.parametrize("suffix", ["tombstone", "history-holds"])
def test_a_file_of_retention_that_cannot_be_read_is_named(suffix: str, tmp_path: Path) -> None:
    async def write(store: FlowEventStore) -> None:
        await Story(RUST, "r").write(store, created(), ENDED)

    on("jsonl", tmp_path, write)
    (tmp_path / "runs" / f"r.{suffix}.json").write_text('{"a":')

    async def read(store: FlowEventStore) -> None:
        await store.tombstone("r")

    with pytest.raises(StoreError, match=f"r.{suffix}.json"):
        on("jsonl", tmp_path, read)


def test_a_folder_that_takes_no_tombstone_keeps_its_runs(tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        for run_id in ("a", "b"):
            await Story(RUST, run_id).write(store, created(), ENDED)
        (tmp_path / "runs" / "b.tombstone.json.new").mkdir()  # where the draft of b's would be
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            await store.prune(FAR)
        assert await store.run_ids() == ["a", "b"]
        assert not list((tmp_path / "runs").glob("*.tombstone.json"))
        (tmp_path / "runs" / "b.tombstone.json.new").rmdir()
        assert (await store.prune(FAR)).deleted.count == 2

    on("jsonl", tmp_path, test)


def test_a_damaged_run_keeps_the_runs_that_are_linked_to_it(tmp_path: Path) -> None:
    async def write(store: FlowEventStore) -> None:
        await Story(RUST, "kid").write(store, created(), ENDED)
        await Story(RUST, "parent").write(store, created(), child("x", "kid"), ENDED)

    on("jsonl", tmp_path, write)
    log = tmp_path / "runs" / "kid.jsonl"
    log.write_bytes(log.read_bytes().replace(b"run_created", b"run_crEated"))

    async def test(store: FlowEventStore) -> None:
        assert (await store.prune(FAR)).referenced.first == ["parent"]
        with pytest.raises(StoreError, match=r"line 1 of .*kid\.jsonl"):
            await store.prune(FAR, RunSelection(run_ids=("kid",)))
        with pytest.raises(StoreError, match=r"line 1 of .*kid\.jsonl"):
            await store.hold_history("kid", "h", "why")

    on("jsonl", tmp_path, test)


def test_an_unknown_status_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'done'; use pending"):
        RunSelection(status=("done",))
    with pytest.raises(TypeError, match="collection"):
        RunSelection(run_ids="r")


def test_history_is_found_or_not_found_but_never_torn_by_a_prune(tmp_path: Path) -> None:
    async def test(store: FlowEventStore) -> None:
        stories = [Story(RUST, f"r{n:03}") for n in range(80)]
        answers = await store.commit([Append(story.batch(created(), ENDED)) for story in stories])
        assert all(isinstance(answer, Committed) for answer in answers)

        async def read(run_id: str) -> None:
            while True:
                try:
                    lines = await store.history(run_id)
                except RunNotFound:
                    return
                assert lines.count(b"\n") == 2

        await asyncio.gather(store.prune(FAR, batch=10), *(read(story.run_id) for story in stories[::8]))

    on("jsonl", tmp_path, test)
    on("sqlite", tmp_path, test)
