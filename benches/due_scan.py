"""What a tick of the scheduler costs with very many suspended runs (R46; gate: 5 ms, flat from 10,000 runs up).

    python -m benches.due_scan [--runs 10000 100000 1000000] [--stores sqlite postgres]

The rows of the indexes are loaded in bulk: each run waits for one timer, all of them in the future but a few. Printed are
medians in milliseconds of a tick that finds nothing, one that finds ten runs due and sends a task for each, and the look for the
next wakeup. PostgreSQL is a server of its own, in a temporary folder.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import psycopg

from perdure import Flow, FlowEngine, FlowScheduler, FlowTask, FlowTaskDispatcher, SqliteEventStore
from perdure.instant import due_key
from perdure.stores.base import FlowEventStore
from perdure.stores.postgres import PostgresEventStore
from perdure.testing.postgres import PostgresServer

SECOND = 1_000_000_000
DUE = 10
ROUNDS = 60
RUN_COLUMNS = (
    "run_id, name, version, build, status, terminal, open_waits, active_hooks, pending_retries, created_at, updated_at, "
    "ended_at, last_sequence, epoch, parked_sequence, failures, claim_at"
)


class Nowhere(FlowTaskDispatcher):
    """Takes every task and forgets it, so that the next tick sends it again."""

    async def dispatch(self, task: FlowTask) -> bool:
        return True


def rows(count: int, start: int, due: int) -> Iterator[tuple[tuple[object, ...], tuple[object, ...]]]:
    """Rows of runs and of their wakeups: `due` of them an hour ago, the rest from an hour ahead on, a second apart."""
    text = due_key(start)
    for number in range(count):
        at = start + (3600 + number) * SECOND if number >= due else start - 3600 * SECOND
        run_id = f"run-{number * 7919 % count:07d}"
        run = (run_id, "demo", "1", None, "suspended", False, 1, 0, 0, text, text, None, 3, 1, 3, 0, at // 1000)
        yield run, (run_id, 0, "w", due_key(at))


def fill_sqlite(path: Path, count: int, start: int, due: int) -> None:
    with sqlite3.connect(path) as database:
        places = ", ".join("?" * (RUN_COLUMNS.count(",") + 1))
        loaded = list(rows(count, start, due))
        database.executemany(f"INSERT INTO flow_runs ({RUN_COLUMNS}) VALUES ({places})", (run for run, _ in loaded))
        database.executemany("INSERT INTO flow_wakeups VALUES (?, ?, ?, ?)", (wakeup for _, wakeup in loaded))
        database.execute("ANALYZE")
    database.close()


def fill_postgres(url: str, schema: str, count: int, start: int, due: int) -> None:
    loaded = list(rows(count, start, due))
    with psycopg.connect(url, autocommit=True) as database, database.cursor() as cursor:
        for table, columns, part in (
            ("flow_runs", RUN_COLUMNS, 0),
            ("flow_wakeups", "run_id, kind, subject_id, due_key", 1),
        ):
            with cursor.copy(f'COPY "{schema}".{table} ({columns}) FROM STDIN') as copy:
                for row in loaded:
                    copy.write_row(row[part])
            cursor.execute(f'ANALYZE "{schema}".{table}')


async def median_ms(call: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await call()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def measure(store: FlowEventStore, start: int) -> tuple[float, float, float]:
    """Medians in ms of a tick that finds nothing, of one that finds the runs due, and of the next wakeup."""
    async with FlowEngine(Flow(), store) as engine:
        scheduler = FlowScheduler(engine, Nowhere())
        before = start - 7200 * SECOND
        assert (await scheduler.enqueue_due_work(_instant(before))).runnable == 0
        assert (await scheduler.enqueue_due_work(_instant(start))).enqueued_tasks == DUE
        return (
            await median_ms(lambda: scheduler.enqueue_due_work(_instant(before))),
            await median_ms(lambda: scheduler.enqueue_due_work(_instant(start))),
            await median_ms(scheduler.next_wakeup_delay),
        )


def _instant(ns: int) -> str:
    return due_key(ns)


async def on_sqlite(count: int) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder) / "runs.db", time.time_ns()
        await SqliteEventStore(path).close()
        fill_sqlite(path, count, start, DUE)
        store = SqliteEventStore(path)
        try:
            return await measure(store, start)
        finally:
            await store.close()


async def on_postgres(count: int, url: str) -> tuple[float, float, float]:
    start, schema = time.time_ns(), f"runs {count}"
    store = await PostgresEventStore.connect(url, schema=schema)
    try:
        fill_postgres(url, schema, count, start, DUE)
        return await measure(store, start)
    finally:
        await store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--stores", nargs="+", choices=["sqlite", "postgres"], default=["sqlite", "postgres"])
    chosen = parser.parse_args(arguments)
    out = sys.stdout
    out.write(
        "| store | suspended runs | tick, nothing due | tick, 10 due | next wakeup |\n| --- | --- | --- | --- | --- |\n"
    )
    server = PostgresServer() if "postgres" in chosen.stores else None
    try:
        for kind in chosen.stores:
            for count in chosen.runs:
                found = asyncio.run(
                    on_sqlite(count) if server is None or kind == "sqlite" else on_postgres(count, server.url)
                )
                cells = " | ".join(f"{value:.2f} ms" for value in found)
                out.write(f"| {kind} | {count:,} | {cells} |\n")
                out.flush()
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
