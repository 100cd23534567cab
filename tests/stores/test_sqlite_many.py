"""Calls that name more runs than an SQLite statement has room for values (32,766)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import LeaseLost
from perdure.kernel import load
from perdure.stores import SqliteEventStore
from perdure.stores.leases import Wanted
from perdure.stores.sqlite import LAST_SEQUENCES
from perdure.stores.sqlite_claims import claim_query
from perdure.testing._stories import START, Story, created

MANY = [f"other_{number}" for number in range(40_000)]


@pytest.fixture(autouse=True)
def _usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builds of SQLite take more values than its own default."""
    connect = sqlite3.connect

    def limited(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)


def with_two_runs(path: Path, test: Callable[[SqliteEventStore], Coroutine[None, None, None]]) -> None:
    """Runs `test` on a store that holds the runs a and b."""

    async def work() -> None:
        store = SqliteEventStore(path)
        try:
            for run_id in ("a", "b"):
                await Story(load("rust"), run_id).write(store, created())
            await test(store)
        finally:
            await store.close()

    asyncio.run(work())


def test_last_sequences_of_very_many_runs(tmp_path: Path) -> None:
    async def test(store: SqliteEventStore) -> None:
        assert await store.last_sequences([*MANY, "b", "a"]) == {"a": 1, "b": 1}
        assert await store.last_sequences([]) == {}

    with_two_runs(tmp_path / "flow.db", test)


def test_a_worker_that_drives_very_many_runs_claims_another(tmp_path: Path) -> None:
    async def test(store: SqliteEventStore) -> None:
        besides = [*MANY, "a"]
        claimed = await store.claim("me", 5, ttl_ns=10**9, besides=besides)
        assert [given.run_id for given in claimed] == ["b"]
        assert await store.claim_held("me", 5, build="b1", ttl_ns=10**9, besides=besides) == []

    with_two_runs(tmp_path / "flow.db", test)


def test_renewing_very_many_leases(tmp_path: Path) -> None:
    async def test(store: SqliteEventStore) -> None:
        (given,) = await store.claim("me", 1, ttl_ns=10**9)
        answers = await store.renew(
            "me", [*((run_id, 1) for run_id in MANY), (given.run_id, given.epoch)], ttl_ns=10**9
        )
        assert answers[-1] == (given.run_id, 1)
        assert all(isinstance(answer, LeaseLost) for answer in answers[:-1])

    with_two_runs(tmp_path / "flow.db", test)


@pytest.mark.parametrize(
    ("query", "values", "plan"),
    [
        (LAST_SEQUENCES, ['["a"]'], "SEARCH flow_runs USING PRIMARY KEY (run_id=?)"),
        (*claim_query(Wanted(besides=["a"]), START), "SEARCH flow_runs USING INDEX flow_runs_by_claim (claim_at<?)"),
    ],
)
def test_ids_as_one_value_leave_the_index_in_use(tmp_path: Path, query: str, values: list[object], plan: str) -> None:
    async def nothing(store: SqliteEventStore) -> None: ...

    path = tmp_path / "flow.db"
    with_two_runs(path, nothing)
    with closing(sqlite3.connect(path)) as connection:
        steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert steps[0].startswith(plan), steps
