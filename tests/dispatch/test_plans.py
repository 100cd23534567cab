"""How the databases answer a scheduler: by index, for whatever number of runs (R46, W1)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
from scenarios.kit import Clock

from benches.due_scan import DUE, fill_postgres, fill_sqlite
from perdure import PostgresEventStore, SqliteEventStore
from perdure.instant import due_key
from perdure.stores.postgres_queue import NEXT, TAKE
from perdure.stores.runnable import POSTGRES_ROWS, SQLITE_LATER, SQLITE_ROWS, START, bound
from perdure.testing.postgres import shared_server

RUNS = 2000


async def test_sqlite_reads_the_index_of_claims_and_the_wakeups_of_each_run(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "runs.db"
    await SqliteEventStore(file, clock).close()
    fill_sqlite(file, RUNS, clock.ns, DUE)
    with sqlite3.connect(file) as database:
        values = (due_key(clock.ns), due_key(clock.ns), bound(clock.ns), *START, 1000)
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {SQLITE_ROWS}", values)]
        assert plan[0].startswith("SEARCH r USING INDEX flow_runs_by_claim")
        found = [line for line in plan if "SEARCH w" in line]
        assert found == ["SEARCH w USING PRIMARY KEY (run_id=? AND kind=?)"] * 2
        assert not [line for line in plan if "TEMP B-TREE" in line or line.startswith("SCAN")]
        later = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {SQLITE_LATER}", (clock.ns // 1000,))]
        assert len(later) == 1
        assert later[0].startswith("SEARCH flow_runs USING INDEX flow_runs_by_claim (claim_at>?)")
    database.close()


async def test_postgres_does_likewise(clock: Clock) -> None:
    schema = "dispatch plans"
    store = await PostgresEventStore.connect(shared_server().url, schema=schema)
    await store.close()
    fill_postgres(shared_server().url, schema, RUNS, clock.ns, DUE)
    with psycopg.connect(shared_server().url) as database:

        def plan(statement: str, *values: object) -> str:
            cursor = psycopg.RawCursor(database)
            cursor.execute("EXPLAIN " + statement.replace("@schema@", f'"{schema}"'), values)
            return "\n".join(line for (line,) in cursor.fetchall())

        found = plan(POSTGRES_ROWS, due_key(clock.ns), bound(clock.ns), *START, 1000, None, clock.ns // 1000)
        assert found.count("flow_runs_by_claim") == 2
        assert found.count("flow_wakeups_pkey") == 2
        assert "flow_wakeups_by_due" not in found
        assert "Seq Scan" not in found
        assert "Sort" not in found
        # The table of tasks is empty, where any plan will do: what matters is that an index can answer.
        database.execute("SET enable_seqscan = off")
        assert "flow_tasks_by_due" in plan(TAKE, None, "q", "l", 1)
        assert "flow_tasks_by_due" in plan(NEXT, "q")
