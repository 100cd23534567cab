"""Loads for stores, and the floors to compare them with: what the medium does when nobody checks, decides or answers.

A load is prepared outside the clock: batches of a kernel, one event each of about 400 bytes, for runs that exist and are
leased."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import orjson

from perdure.kernel import DEFAULT_MAX_EVENT_BYTES, Batch, load
from perdure.stores.base import Append, Committed, FlowEventStore, Lease

__all__ = [
    "BATCH",
    "RUNS",
    "Histories",
    "Told",
    "bare",
    "begin",
    "commits",
    "fdatasync",
    "histories",
    "reads",
    "rows_at_once",
]

RUNS: Final = 64
BATCH: Final = 100
_SECOND: Final = 1_000_000_000
_CLOCK: Final = 1_790_000_000 * _SECOND
_CLAIM: Final = Lease("bench", 3600 * _SECOND, claim="firm")
_HELD: Final = Lease("bench", 3600 * _SECOND, epoch=1)
_RUNTIME: Final = {"kind": "rust_embedded", "entrypoint": "shop.workflows", "export_name": "fulfil"}


Histories = Sequence[Sequence[Batch]]


@dataclass
class Told:
    """What one call of a load took. Latencies of commits in seconds."""

    events: int
    seconds: float
    latencies: list[float]
    group: float | None = None
    """Commits that shared a transaction, on average; None where nobody counts."""


def histories(number_of_runs: int, commits: int, events: int = 1) -> list[list[Batch]]:
    """For each run the batch that makes it, and `commits` of so many events each."""
    kernel = load("rust")
    found: list[list[Batch]] = []
    for number in range(number_of_runs):
        run = kernel.new(f"order-{number:06}", DEFAULT_MAX_EVENT_BYTES)
        batches: list[Batch] = []
        for turn in range(commits + 1):
            drafts = (
                [_step(turn * events + k) for k in range(events)] if turn else [_created(), b'{"type":"run_started"}']
            )
            batch = run.stage(drafts, _CLOCK + turn).append(os.urandom(16 * len(drafts)))
            run.accept(batch)
            batches.append(batch)
        found.append(batches)
    return found


def _created() -> bytes:
    spec = {"name": "order.fulfil", "version": "7", "runtime": _RUNTIME}
    return orjson.dumps({"type": "run_created", "spec": spec, "input": {"order": 417, "customer": "c-88213"}})


def _step(turn: int) -> bytes:
    items = [{"sku": f"SKU-{turn:05}-{k}", "price": f"{turn % 90 + 10}.{k}9"} for k in range(2)]
    step = {"step_id": f"reserve-{turn}", "step_name": "warehouse.reserve", "input": {"order": turn, "items": items}}
    return orjson.dumps({"type": "step_created", **step, "retry": {"max_attempts": 5, "delay_ms": 1000}})


async def begin(store: FlowEventStore, runs: Histories) -> None:
    """Makes the runs of a load, and leases them."""
    answers = await store.commit([Append(batches[0], _CLAIM) for batches in runs])
    assert [type(answer) for answer in answers] == [Committed] * len(runs), answers


async def commits(store: FlowEventStore, runs: Histories) -> Told:
    """Commits the batches of each run one after the other, and those of different runs at once."""
    latencies: list[float] = []

    async def one(batches: Sequence[Batch]) -> None:
        for batch in batches[1:]:
            began = time.perf_counter()
            (answer,) = await store.commit([Append(batch, _HELD)])
            latencies.append(time.perf_counter() - began)
            assert type(answer) is Committed, answer

    groups = _groups(store)
    start = time.perf_counter()
    await asyncio.gather(*(one(batches) for batches in runs))
    seconds = time.perf_counter() - start
    groups = _groups(store) - groups
    return Told(len(latencies), seconds, latencies, len(latencies) / groups if groups else None)


def _groups(store: FlowEventStore) -> int:
    """Transactions of the committers that a store has, where they count them."""
    return sum(getattr(getattr(store, name, None), "groups", 0) for name in ("_group", "_steps"))


async def reads(store: FlowEventStore, batches: Sequence[Batch], times: int) -> Told:
    """Reads a whole history, one time after the other."""
    whole = b"".join(batch.lines for batch in batches)
    latencies: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        lines = await store.history(batches[0].run_id)
        latencies.append(time.perf_counter() - began)
        assert lines == whole
    return Told(times * batches[-1].last_sequence, sum(latencies), latencies)


# floors ----------------------------------------------------------------------------------------------------------

_TABLES: Final = """
CREATE TABLE runs (run_id TEXT NOT NULL PRIMARY KEY, last_sequence INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE commits (
    run_id TEXT NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL, lines BLOB NOT NULL,
    PRIMARY KEY (run_id, first_sequence)
) STRICT;
"""
_ADVANCE: Final = "UPDATE runs SET last_sequence = ? WHERE run_id = ? AND last_sequence = ?"
_APPEND: Final = "INSERT INTO commits VALUES (?, ?, ?, ?)"


def bare(path: Path, synchronous: Literal["FULL", "NORMAL"], runs: Histories) -> sqlite3.Connection:
    """A connection to a database with nothing but a row for each run and a table of commits."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.executescript(_TABLES)
    connection.executemany("INSERT INTO runs VALUES (?, 2)", [(batches[0].run_id,) for batches in runs])
    return connection


def rows_at_once(connection: sqlite3.Connection, runs: Histories) -> Told:
    """A transaction for each turn of all runs: the sequence of each is compared and moved, and its commit inserted."""
    latencies: list[float] = []
    start = time.perf_counter()
    for turn in range(1, len(runs[0])):
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        for batches in runs:
            batch = batches[turn]
            values = (batch.last_sequence, batch.run_id, batch.expected_sequence)
            assert connection.execute(_ADVANCE, values).rowcount == 1
            connection.execute(_APPEND, (batch.run_id, batch.first_sequence, batch.last_sequence, batch.lines))
        connection.execute("COMMIT")
        latencies.append(time.perf_counter() - began)
    return Told(len(runs) * len(latencies), time.perf_counter() - start, latencies)


def fdatasync(path: Path, runs: Histories) -> Told:
    """The lines of one run appended to a file, each made durable."""
    latencies: list[float] = []
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    with path.open("ab", buffering=0) as file:
        start = time.perf_counter()
        for batch in runs[0][1:]:
            began = time.perf_counter()
            file.write(batch.lines)
            sync(file.fileno())
            latencies.append(time.perf_counter() - began)
    return Told(len(latencies), time.perf_counter() - start, latencies)
