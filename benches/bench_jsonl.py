"""How long it takes until a store of many runs answers: a JSONL folder reads all its logs, a database none."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from benches.conftest import Tell
from benches.stores import Told
from perdure.kernel import load
from perdure.stores import JsonlEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.stores.jsonl_lines import marked
from perdure.testing._stories import Story, created, started, wait, wait_done
from perdure.testing.postgres import shared_server

TEMPLATE = "template"
STEP = {"step_id": "a", "step_name": "reserve", "input": {"order": 417}, "retry": {"max_attempts": 3, "delay_ms": 1000}}
RUNS_OF = """
INSERT INTO {flow}flow_runs SELECT 'run-' || n, r.name, r.version, r.build, r.status, r.terminal, r.open_waits, r.active_hooks,
    r.pending_retries, r.created_at, r.updated_at, r.ended_at, r.last_sequence, NULL, 0, -1, 0, NULL, NULL, 0
FROM {numbers}, {flow}flow_runs AS r WHERE r.run_id = 'template'"""
COMMITS_OF = """
INSERT INTO {flow}flow_commits SELECT 'run-' || n, c.first_sequence, c.last_sequence, c.lines
FROM {numbers}, {flow}flow_commits AS c WHERE c.run_id = 'template'"""


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    return 200 if request.config.getoption("--smoke") else 100_000


def commits(run_id: str, *, ends: bool) -> list[bytes]:
    """The lines of a small run's commits, eight events if it has ended, else six."""
    story = Story(load("rust"), run_id)
    made = []
    attempt = {"step_id": "a", "attempt": 1}
    for drafts in (
        [created("build-1"), started(), {"type": "step_created", **STEP}, {"type": "step_started", **attempt}],
        [{"type": "step_completed", **attempt, "output": {"ok": True}}, wait("w", story.clock)],
        [wait_done("w"), {"type": "run_completed", "output": None}] if ends else [],
    ):
        batch = story.batch(*drafts)
        story.accept(batch)
        made.append(batch.lines)
    return made


def filled_folder(folder: Path, runs: int) -> Path:
    """One open run to three that have ended; the names are in no order."""
    ended, live = (b"".join(map(marked, commits(TEMPLATE, ends=ends))) for ends in (True, False))
    folder.mkdir()
    for number in range(runs):
        name = f"run-{number * 7919 % runs:06}"
        lines = (ended if number % 4 else live).replace(TEMPLATE.encode(), name.encode())
        (folder / f"{name}.jsonl").write_bytes(lines)
    return folder


async def _answers(store: FlowEventStore) -> None:
    await store.next_scheduled_wakeup()
    await store.runs(limit=100)
    await store.close()


def measure(tell: Tell, runs: int, column: str, setup: Callable[[], Callable[[], FlowEventStore]]) -> None:
    def opened(make: Callable[[], FlowEventStore]) -> Told:
        begun = time.perf_counter()

        async def use() -> None:
            await _answers(make())

        asyncio.run(use())
        seconds = time.perf_counter() - begun
        return Told(7 * runs, seconds, [seconds])

    tell(f"open with {runs:,} runs", column, setup, opened)


@pytest.mark.parametrize("left", ["JSONL", "JSONL whose owner was killed"])
def bench_open_folder(tell: Tell, folder: Path, runs: int, left: str) -> None:
    path = filled_folder(folder / "runs", runs)

    def setup() -> Callable[[], FlowEventStore]:
        (path / "perdure.lock").write_text("closed\n" if left == "JSONL" else "4711\n")
        return lambda: JsonlEventStore(path)

    measure(tell, runs, left, setup)


def bench_open_sqlite(tell: Tell, folder: Path, runs: int) -> None:
    path = folder / "runs.db"
    asyncio.run(_write(SqliteEventStore(path)))
    numbers = f"(WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {runs}) SELECT n FROM n)"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in (RUNS_OF, COMMITS_OF):
            connection.execute(statement.format(flow="", numbers=numbers))
    measure(tell, runs, "SQLite", lambda: lambda: SqliteEventStore(path))


def bench_open_postgres(tell: Tell, runs: int) -> None:
    url, schema = shared_server().url, f"open {time.time_ns()}"
    asyncio.run(_write(PostgresEventStore(url, schema=schema)))
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (RUNS_OF, COMMITS_OF):
            numbers = f"generate_series(1, {runs}) AS n"
            connection.execute(statement.format(flow=f'"{schema}".', numbers=numbers))
    measure(tell, runs, "PostgreSQL", lambda: lambda: PostgresEventStore(url, schema=schema))


async def _write(store: FlowEventStore) -> None:
    story = Story(load("rust"), TEMPLATE)
    attempt = {"step_id": "a", "attempt": 1}
    await story.write(store, created("build-1"), started(), {"type": "step_created", **STEP})
    await story.write(store, {"type": "step_started", **attempt})
    await story.write(store, {"type": "step_completed", **attempt, "output": {"ok": True}}, wait("w", story.clock))
    await store.close()
