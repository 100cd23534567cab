"""The blocking engine on PostgreSQL: from many threads, and ended by Ctrl-C in the midst of a step (R55)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from perdure import BlockingFlowEngine, Flow, RuntimeCommand, WorkflowContext
from perdure.stores.postgres import PostgresEventStore
from perdure.testing.postgres import shared_server

flow = Flow()


@flow.step
def double(value: int) -> int:
    return 2 * value


@flow.workflow("doubling", version="1")
def doubling(ctx: WorkflowContext) -> RuntimeCommand:
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", double, ctx.input)
    return ctx.complete(ctx.step_output("s"))


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:63]


def test_many_threads_share_one_engine_and_a_bounded_number_of_connections(schema: str) -> None:
    address = f"{shared_server().url}?application_name=bounded"
    with (
        BlockingFlowEngine(flow, PostgresEventStore(address, schema=schema, pool_size=3)) as engine,
        ThreadPoolExecutor(16) as threads,
    ):
        runs = list(threads.map(lambda number: engine.run(doubling, number), range(48)))
        assert [run.output for run in runs] == [2 * number for number in range(48)]
        with psycopg.connect(shared_server().url) as connection:
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
            ((count,),) = connection.execute(sessions).fetchall()
        assert 1 <= count <= 3 + 2  # the thread that renews leases has two of its own
        asyncio.run_coroutine_threadsafe(engine.store.close(), engine._loop).result()


PROGRAM = """
import sys, time
from perdure import BlockingFlowEngine, Flow
from perdure.stores import PostgresEventStore

flow = Flow()

@flow.step
def patient(value):
    print("waiting", flush=True)
    time.sleep(3600 if len(sys.argv) > 3 else 0)
    return value

@flow.workflow("patient", version="1")
def workflow(ctx):
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", patient, 7)
    return ctx.complete(ctx.step_output("s"))

try:
    with BlockingFlowEngine(flow, PostgresEventStore(sys.argv[1], schema=sys.argv[2])) as engine:
        if len(sys.argv) > 3:
            engine.start_with_id("r", workflow)
        else:
            print(engine.drive("r").output, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
import os
os._exit(0)  # a thread that sleeps for an hour cannot be ended
"""


def test_ctrl_c_ends_the_call_and_gives_the_lease_back(schema: str) -> None:
    command = [sys.executable, "-c", PROGRAM, shared_server().url, schema]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, "first"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "waiting\n"
        first.send_signal(signal.SIGINT)
        out, errors = first.communicate(timeout=120)
    assert (out, errors) == ("interrupted\n", "")
    # Nobody holds the lease: another process drives on at once, and the step runs again.
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (second.stdout, second.stderr) == ("waiting\n7\n", "")
