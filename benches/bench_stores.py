"""Durable events a second of the stores, beside what their medium gives when nothing is checked: floors of the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from benches import stores
from benches.conftest import Tell
from benches.stores import BATCH, RUNS, Histories, Told
from perdure.stores import JsonlEventStore, MemoryEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore

SERIAL = "one run alone, commits of one event"
AT_ONCE = f"{RUNS} runs at once, commits of one event each"
READ = "history of 10,000 events"
STORES = ("memory", "JSONL", "SQLite NORMAL", "SQLite FULL")
LEVELS: tuple[Literal["NORMAL", "FULL"], ...] = ("NORMAL", "FULL")
Prepared = tuple[asyncio.Runner, FlowEventStore, Histories]


@pytest.fixture
def commits(request: pytest.FixtureRequest) -> int:
    """How many commits a round makes of one run alone; of each of many, an eighth."""
    return 8 if request.config.getoption("--smoke") else 2_000


def measure_commits(
    tell: Tell, row: str, column: str, runs: int, turns: int, make: Callable[[], FlowEventStore]
) -> None:
    """A cell of commits to stores that `make` makes, one for each round; of use for every store."""

    def setup() -> Prepared:
        runner, load = asyncio.Runner(), stores.histories(runs, turns)

        async def begin() -> FlowEventStore:
            store = make()
            await stores.begin(store, load)
            return store

        return runner, runner.run(begin()), load

    def function(prepared: Prepared) -> Told:
        runner, store, load = prepared
        with runner:
            told = runner.run(stores.commits(store, load))
            runner.run(store.close())
        return told

    tell(row, column, setup, function)


def maker(column: str, folder: Path) -> Callable[[], FlowEventStore]:
    """Makes a fresh store at each call."""
    made = iter(range(1_000_000))
    if column == "memory":
        return MemoryEventStore
    if column == "JSONL":
        return lambda: JsonlEventStore(folder / f"runs-{next(made)}")
    level = LEVELS[column.endswith("FULL")]
    return lambda: SqliteEventStore(folder / f"runs-{next(made)}.db", synchronous=level)


# one run alone ---------------------------------------------------------------------------------------------------


def bench_fdatasync(tell: Tell, folder: Path, commits: int) -> None:
    tell(
        SERIAL,
        "bare fdatasync",
        lambda: stores.histories(1, commits),
        lambda load: stores.fdatasync(folder / "lines", load),
    )


@pytest.mark.parametrize("level", LEVELS)
def bench_bare_one_row(tell: Tell, folder: Path, commits: int, level: Literal["NORMAL", "FULL"]) -> None:
    measure_bare(tell, SERIAL, f"bare SQLite {level}", folder, level, 1, commits)


@pytest.mark.parametrize("column", STORES)
def bench_serial(tell: Tell, folder: Path, commits: int, column: str) -> None:
    measure_commits(tell, SERIAL, column, 1, commits, maker(column, folder))


# many runs at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def bench_bare_batch(tell: Tell, folder: Path, commits: int, level: Literal["NORMAL", "FULL"]) -> None:
    measure_bare(tell, AT_ONCE, f"bare SQLite {level}, {BATCH} rows", folder, level, BATCH, commits // 8)


@pytest.mark.parametrize("column", STORES)
def bench_at_once(tell: Tell, folder: Path, commits: int, column: str) -> None:
    measure_commits(tell, AT_ONCE, column, RUNS, commits // 8, maker(column, folder))


def measure_bare(
    tell: Tell, row: str, column: str, folder: Path, level: Literal["NORMAL", "FULL"], runs: int, turns: int
) -> None:
    made = iter(range(1_000_000))

    def function(load: Histories) -> Told:
        with closing(stores.bare(folder / f"bare-{next(made)}.db", level, load)) as connection:
            return stores.rows_at_once(connection, load)

    tell(row, column, lambda: stores.histories(runs, turns), function)


# reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", STORES[:-1])
def bench_read(tell: Tell, folder: Path, commits: int, column: str) -> None:
    measure_reads(tell, READ, column, commits, maker(column, folder))


def measure_reads(tell: Tell, row: str, column: str, commits: int, make: Callable[[], FlowEventStore]) -> None:
    """A cell of reading the history of a run that has 5 events a commit; of use for every store."""

    def setup() -> Prepared:
        runner, load = asyncio.Runner(), stores.histories(1, commits, 5)

        async def begin() -> FlowEventStore:
            store = make()
            await stores.begin(store, load)
            await stores.commits(store, load)
            return store

        return runner, runner.run(begin()), load

    def function(prepared: Prepared) -> Told:
        runner, store, load = prepared
        with runner:
            told = runner.run(stores.reads(store, load[0], 20))
            runner.run(store.close())
        return told

    tell(row, column, setup, function)
