"""Durable events a second of the PostgreSQL store, beside bare statements on a server of the same run that syncs its disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest

from benches import stores
from benches.bench_stores import AT_ONCE, READ, SERIAL, measure_commits, measure_reads
from benches.conftest import Tell
from benches.stores import BATCH, RUNS, Histories, Told
from perdure.stores.postgres import PostgresEventStore
from perdure.testing.postgres import PostgresServer

STORE = "PostgreSQL"
BARE = "bare PostgreSQL"
BARE_BATCH = f"{BARE}, {BATCH} rows"

_TABLES = (
    'CREATE TABLE runs (run_id text COLLATE "C" PRIMARY KEY, last_sequence bigint NOT NULL) WITH (fillfactor = 66)',
    """CREATE TABLE commits (run_id text COLLATE "C", first_sequence bigint, last_sequence bigint, lines bytea,
        PRIMARY KEY (run_id, first_sequence))""",
)
_ONE_ROW = """
WITH moved AS (UPDATE runs SET last_sequence = $3 WHERE run_id = $1 AND last_sequence = $2 RETURNING run_id)
INSERT INTO commits SELECT run_id, $2 + 1, $3, $4 FROM moved"""
_ROWS = "INSERT INTO commits SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[])"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(durable=True) as started:
        yield started


@pytest.fixture
def commits(request: pytest.FixtureRequest) -> int:
    """How many commits a round makes of one run alone; of each of many, an eighth."""
    return 16 if request.config.getoption("--smoke") else 2_000


@pytest.fixture
def make(server: PostgresServer) -> Callable[[], PostgresEventStore]:
    """Makes a fresh store at each call."""
    made = count(time.time_ns())
    return lambda: PostgresEventStore(server.url, schema=f"bench {next(made)}")


def bare(server: PostgresServer, runs: Histories) -> psycopg.Connection[tuple[object, ...]]:
    """A connection that prepares its statements, to empty tables but for a row for each run."""
    connection = psycopg.connect(
        server.url, autocommit=True, prepare_threshold=0, cursor_factory=psycopg.RawCursor[tuple[object, ...]]
    )
    for statement in ("DROP TABLE IF EXISTS runs, commits", *_TABLES):
        connection.execute(statement.encode())
    connection.execute("INSERT INTO runs SELECT unnest($1::text[]), 2", ([batches[0].run_id for batches in runs],))
    return connection


def one_row_a_statement(server: PostgresServer, runs: Histories) -> Told:
    """The sequence of one run is compared and moved, and its commit inserted, in one statement."""
    latencies: list[float] = []
    with bare(server, runs) as connection:
        start = time.perf_counter()
        for batch in runs[0][1:]:
            began = time.perf_counter()
            values = (batch.run_id, batch.expected_sequence, batch.last_sequence, batch.lines)
            assert connection.execute(_ONE_ROW, values).rowcount == 1
            latencies.append(time.perf_counter() - began)
        return Told(len(latencies), time.perf_counter() - start, latencies)


def rows_at_once(server: PostgresServer, runs: Histories) -> Told:
    """A statement for each turn of all runs that inserts their commits, and checks nothing."""
    latencies: list[float] = []
    with bare(server, runs) as connection:
        start = time.perf_counter()
        for turn in range(1, len(runs[0])):
            began = time.perf_counter()
            batches = [run[turn] for run in runs]
            columns = (
                [batch.run_id for batch in batches],
                [batch.first_sequence for batch in batches],
                [batch.last_sequence for batch in batches],
                [batch.lines for batch in batches],
            )
            assert connection.execute(_ROWS, columns).rowcount == len(runs)
            latencies.append(time.perf_counter() - began)
        return Told(len(runs) * len(latencies), time.perf_counter() - start, latencies)


def bench_bare_one_row(tell: Tell, server: PostgresServer, commits: int) -> None:
    tell(SERIAL, BARE, lambda: stores.histories(1, commits), lambda load: one_row_a_statement(server, load))


def bench_serial(tell: Tell, make: Callable[[], PostgresEventStore], commits: int) -> None:
    measure_commits(tell, SERIAL, STORE, 1, commits, make)


def bench_bare_batch(tell: Tell, server: PostgresServer, commits: int) -> None:
    tell(AT_ONCE, BARE_BATCH, lambda: stores.histories(BATCH, commits // 8), lambda load: rows_at_once(server, load))


def bench_at_once(tell: Tell, make: Callable[[], PostgresEventStore], commits: int) -> None:
    measure_commits(tell, AT_ONCE, STORE, RUNS, commits // 8, make)


def bench_read(tell: Tell, make: Callable[[], PostgresEventStore], commits: int) -> None:
    measure_reads(tell, READ, STORE, commits, make)
