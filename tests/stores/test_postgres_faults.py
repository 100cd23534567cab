"""PostgreSQL going away: what is known of a commit is said, what is not is settled, and nothing acknowledged is lost (R48)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from scenarios.kit import hurry
from stores.wire import FOR_EVER, Wire

from perdure import Flow, FlowEngine, RuntimeCommand, WorkflowContext
from perdure.errors import OutcomeUnknown, StoreError, StoreUnavailable
from perdure.kernel import Batch, load
from perdure.stores.base import Append, Committed, Lease
from perdure.stores.postgres import PostgresEventStore
from perdure.stores.postgres_database import PostgresDatabase
from perdure.testing._stories import SECOND, START, Story, created, hook, started, wait
from perdure.testing.postgres import PostgresServer, shared_server

PURE = load("pure")
ME = Lease("me", 3600 * SECOND)
STEP = {"type": "step_created", "step_name": "s", "input": None, "retry": {"max_attempts": 1, "delay_ms": 0}}

flow = Flow()


@flow.step
def double(value: int) -> int:
    return 2 * value


@flow.workflow("doubling", version="1")
def doubling(ctx: WorkflowContext) -> RuntimeCommand:
    value = ctx.input
    for step_id in ("first", "second", "third"):
        if not ctx.step_completed(step_id):
            return ctx.schedule_step(step_id, double, value)
        value = ctx.step_output(step_id)
    return ctx.complete(value)


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:63]


async def operator(statement: str, *values: object) -> list[tuple[object, ...]]:
    """Runs a statement as somebody beside the store would."""
    async with await psycopg.AsyncConnection.connect(shared_server().url, autocommit=True) as connection:
        cursor = await connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def locked(store: PostgresEventStore, statement: str) -> AsyncIterator[None]:
    """Holds what `statement` locks."""
    async with await psycopg.AsyncConnection.connect(shared_server().url) as connection:
        await connection.execute(store._database.sql(statement))
        yield


async def session_that_waits(count: int = 1) -> int:
    """The process id of the session that waits for a lock, or of the first of `count`."""
    while True:
        rows = await operator("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        if len(rows) >= count:
            return int(str(rows[0][0]))
        await asyncio.sleep(0.01)


ONE_RUN = "SELECT FROM @schema@.flow_runs WHERE run_id = 'r' FOR UPDATE"


# one connection ----------------------------------------------------------------------------------------------


def test_a_session_killed_while_it_commits_leaves_the_outcome_unknown(schema: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema)
        story = Story(PURE, "r")
        await story.write(store, created())
        batch = story.batch(started(), hook("h", "canary-secret"))
        async with locked(store, ONE_RUN):
            committing = asyncio.create_task(store.commit([Append(batch)]))
            await operator("SELECT pg_terminate_backend(%s)", await session_that_waits())
            with pytest.raises(OutcomeUnknown, match="commit the same batch again") as found:
                await committing
        assert "canary" not in f"{found.value!r}{found.value.__context__}"
        assert await store.commit([Append(batch)]) == [Committed(3)]
        await store.close()

    asyncio.run(test())


def test_sessions_killed_while_idle_are_replaced_unnoticed(schema: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema)
        story = Story(PURE, "r")
        await story.write(store, created())
        for number in range(3):
            await operator(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'perdure'"
            )
            await story.write(store, wait(f"w{number}", START))
            await operator(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'perdure'"
            )
            assert (await store.history("r")).count(b"\n") == number + 2
        await store.close()

    asyncio.run(test())


def test_a_session_killed_while_it_reads_is_asked_again(schema: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema)
        await Story(PURE, "r").write(store, created())
        async with locked(store, "LOCK @schema@.flow_commits"):
            reading = asyncio.create_task(store.history("r"))
            await operator("SELECT pg_terminate_backend(%s)", await session_that_waits())
        assert (await reading).count(b"\n") == 1
        await store.close()

    asyncio.run(test())


def test_statements_that_a_session_has_forgotten_are_sent_whole(schema: str) -> None:
    """As behind a pooler that nobody noticed."""

    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema)
        story = Story(PURE, "r")
        await story.write(store, created(), lease=replace(ME, claim="firm"))
        for number in range(12):
            await story.write(store, STEP | {"step_id": f"s{number}"}, lease=replace(ME, epoch=1))
            await story.write(store, wait(f"w{number}", START))
            assert (await store.history("r")).count(b"\n") == 3 + 2 * number
            if number == 7:
                assert store._database.prepares
                kept = store._asking._kept
                assert kept is not None
                kept.end()  # the driver's upper half asks next
                await kept.connection.execute("DEALLOCATE ALL")
        assert not store._database.prepares
        await store.close()

    asyncio.run(test())


def test_an_engine_settles_a_commit_that_was_cut_off(schema: str) -> None:
    async def test() -> None:
        store = PostgresEventStore(shared_server().url, schema=schema)
        async with FlowEngine(flow, store) as engine:
            run_id = await engine.submit(doubling, 5)
            async with locked(store, ONE_RUN.replace("'r'", f"'{run_id}'")):
                driving = asyncio.create_task(engine.drive(run_id))
                await operator("SELECT pg_terminate_backend(%s)", await session_that_waits())
            assert (await driving).output == 40
            types = [envelope.type for envelope in await engine.history(run_id)]
        await store.close()
        assert types.count("step_completed") == 3

    asyncio.run(test())


def test_a_commit_whose_answer_is_lost_is_recognised_as_done(schema: str) -> None:
    """Committed, and nobody told: the engine must find its own events and not run a step again."""
    wire = Wire()
    ran: list[int] = []
    lossy = Flow()

    @lossy.step
    def once(value: int) -> int:
        ran.append(value)
        wire.cut = "answer"  # to the commit of this very outcome
        return value

    @lossy.workflow("lossy", version="1")
    def workflow(ctx: WorkflowContext) -> RuntimeCommand:
        for number in range(3):
            if not ctx.step_completed(f"s{number}"):
                return ctx.schedule_step(f"s{number}", once, number)
        return ctx.complete(len(ran))

    async def test() -> None:
        async with wire.up() as address:
            store = PostgresEventStore(address, schema=schema)
            async with FlowEngine(lossy, store) as engine:
                run = await engine.run(workflow)
                assert (run.status, run.output, ran) == ("completed", 3, [0, 1, 2])
            await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("ended_by", ["its caller", "time"])
def test_a_connection_that_was_not_waited_for_is_closed_at_once(ended_by: str) -> None:
    """Also while what ended the wait is kept, be it the task that was cancelled or the error."""

    async def test() -> None:
        knocked, left = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            knocked.set()
            while await reader.read(4096):
                pass
            left.set()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable&gssencmode=disable"
        kept = asyncio.create_task(PostgresDatabase(address, "perdure").connect(60))
        await knocked.wait()
        if ended_by == "time":
            hurry(60)
        else:
            kept.cancel()
        (ended,) = await asyncio.gather(kept, return_exceptions=True)
        assert isinstance(ended, StoreUnavailable if ended_by == "time" else asyncio.CancelledError)
        await asyncio.wait_for(left.wait(), 60)
        server.close()

    asyncio.run(test())


# what is known not to be written -----------------------------------------------------------------------------


def test_a_lock_that_takes_too_long_is_a_store_that_is_unavailable(schema: str) -> None:
    async def test() -> None:
        address = f"{shared_server().url}?options=-c%20lock_timeout%3D50"
        store = await PostgresEventStore.connect(address, schema=schema)
        story = Story(PURE, "r")
        await story.write(store, created())
        batch = story.batch(started())
        async with locked(store, ONE_RUN):
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                await store.commit([Append(batch)])
        assert await store.commit([Append(batch)]) == [Committed(2)]
        await store.close()

    asyncio.run(test())


def test_a_server_that_does_not_answer_leaves_the_outcome_unknown(schema: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema)
        story = Story(PURE, "r")
        await story.write(store, created())
        batch = story.batch(started())
        async with locked(store, ONE_RUN):
            committing = asyncio.create_task(store.commit([Append(batch)]))
            await session_that_waits()
            hurry(FOR_EVER)
            with pytest.raises(OutcomeUnknown):
                await committing
            # Nobody waits for it any more, so the server ends it, though it still waits for the lock.
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while await operator(waiting):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        assert await store.commit([Append(batch)]) == [Committed(2)]
        await store.close()

    asyncio.run(test())


def test_a_pool_that_is_used_up_is_told_within_the_wait(schema: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema=schema, pool_size=2, wait_seconds=30)
        async with locked(store, "LOCK @schema@.flow_commits"):
            reading = [asyncio.create_task(store.history("r")) for _ in range(2)]
            await session_that_waits(2)
            asking = asyncio.create_task(store.run_ids())
            await asyncio.sleep(0)
            hurry(30)
            with pytest.raises(StoreUnavailable, match=r"no connection within 30 s.*raise pool_size"):
                await asking
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        assert await store.run_ids() == []
        await store.close()

    asyncio.run(test())


def test_nobody_there_is_told_without_the_password() -> None:
    async def test() -> None:
        store = PostgresEventStore("postgresql://postgres:canary-secret@127.0.0.1:1/postgres")
        batch = Story(PURE, "r").batch(created())
        for call in (store.commit([Append(batch)]), store.run_ids()):
            with pytest.raises(StoreUnavailable, match="Connection refused") as found:
                await call
            assert "secret" not in str(found.value)
        await store.close()

    asyncio.run(test())


def test_a_database_that_does_not_exist_is_told(schema: str) -> None:
    async def test() -> None:
        with pytest.raises(StoreError, match='"nowhere" does not exist'):
            await PostgresEventStore.connect(f"{shared_server().url.rpartition('/')[0]}/nowhere")

    asyncio.run(test())


def test_sessions_in_another_isolation_are_refused(schema: str) -> None:
    async def test() -> None:
        address = f"{shared_server().url}?options=-c%20default_transaction_isolation%3Dserializable"
        store = await PostgresEventStore.connect(address, schema=schema)
        with pytest.raises(StoreError, match="READ COMMITTED"):
            await Story(PURE, "r").write(store, created())
        await store.close()

    asyncio.run(test())


# the whole server --------------------------------------------------------------------------------------------


def test_a_server_stopped_at_once_under_load_loses_nothing_acknowledged() -> None:
    """The server syncs here, and dies four times while eight writers commit without a pause."""
    acknowledged: dict[str, int] = {}
    progress = asyncio.Event()

    async def writer(store: PostgresEventStore, run_id: str, leased: bool, stop: asyncio.Event) -> None:
        story = Story(PURE, run_id)
        drafts, lease = [created(), started()], replace(ME, claim="firm") if leased else None
        while not stop.is_set():
            append = Append(story.batch(*drafts), lease)
            batch = append.batch
            if not await settled(store, append):
                # An outcome that was unknown and was a commit: its first event id proves it.
                assert batch.event_ids[0].encode() in await tail_of(store, batch)
            story.accept(batch)
            acknowledged[run_id] = batch.last_sequence
            progress.set()
            drafts = [wait(f"w{batch.last_sequence}", START)]
            if leased:
                drafts, lease = [STEP | {"step_id": f"s{batch.last_sequence}"}], replace(ME, epoch=1)

    async def settled(store: PostgresEventStore, append: Append) -> bool:
        while True:
            with suppress(StoreUnavailable, OutcomeUnknown):
                (answer,) = await store.commit([append])
                return isinstance(answer, Committed)
            await asyncio.sleep(0.01)

    async def tail_of(store: PostgresEventStore, batch: Batch) -> bytes:
        while True:
            with suppress(StoreUnavailable):  # the server may have died again
                return await store.history(batch.run_id, batch.expected_sequence)
            await asyncio.sleep(0.01)

    async def test(server: PostgresServer) -> None:
        store = await PostgresEventStore.connect(server.url, wait_seconds=5)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(writer(store, f"r{number}", number % 2 == 0, stop))
            for _ in range(4):
                for _ in range(20):
                    progress.clear()
                    await progress.wait()
                await asyncio.to_thread(server.stop, immediate=True)
                await asyncio.to_thread(server.start)
            stop.set()
        for run_id, last_sequence in acknowledged.items():
            assert (await store.history(run_id)).count(b"\n") >= last_sequence
        assert len(acknowledged) == 8
        await store.close()

    with closing(PostgresServer(durable=True)) as server:
        asyncio.run(test(server))


def test_an_engine_outlasts_a_server_that_comes_back() -> None:
    """The server dies while a step runs, and is back before the engine's patience with its store ends."""
    fragile = Flow()

    async def test(server: PostgresServer) -> None:
        @fragile.step
        async def outage(value: int) -> int:
            server.stop(immediate=True)
            threading.Timer(0.3, server.start).start()
            return value

        @fragile.workflow("fragile", version="1")
        def workflow(ctx: WorkflowContext) -> RuntimeCommand:
            if not ctx.step_completed("s"):
                return ctx.schedule_step("s", outage, 5)
            return ctx.complete(ctx.step_output("s"))

        store = PostgresEventStore(server.url, wait_seconds=5)
        async with FlowEngine(fragile, store, store_patience=timedelta(seconds=60)) as engine:
            assert (await engine.run(workflow)).output == 5
        await store.close()

    with closing(PostgresServer(durable=True)) as server:
        asyncio.run(test(server))


def test_a_failover_to_a_synchronous_standby_loses_nothing_acknowledged() -> None:
    """The primary dies under load, the standby takes its place, and the store finds it by itself."""
    acknowledged: dict[str, int] = {}

    async def sql(server: PostgresServer, *statements: str) -> list[tuple[object, ...]]:
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
            for statement in statements:
                cursor = await connection.execute(statement.encode())
            return await cursor.fetchall()

    async def writer(store: PostgresEventStore, run_id: str) -> None:
        story, lease, drafts = Story(PURE, run_id), replace(ME, claim="firm"), [created(), started()]
        for number in range(60):
            append = Append(story.batch(*drafts), lease)
            while True:
                with suppress(StoreUnavailable, OutcomeUnknown):
                    (answer,) = await store.commit([append])
                    break
                await asyncio.sleep(0.02)
            if not isinstance(answer, Committed):
                assert append.batch.event_ids[0].encode() in await store.history(run_id, append.batch.expected_sequence)
            story.accept(append.batch)
            acknowledged[run_id] = append.batch.last_sequence
            drafts, lease = [STEP | {"step_id": f"s{number}"}], replace(ME, epoch=1)

    async def test(primary: PostgresServer, standby: PostgresServer) -> None:
        await sql(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        while await sql(primary, "SELECT sync_state FROM pg_stat_replication") != [("sync",)]:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        address = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        store = await PostgresEventStore.connect(address, wait_seconds=5)
        writers = [asyncio.create_task(writer(store, f"r{number}")) for number in range(4)]
        while len(acknowledged) < 4 or min(acknowledged.values()) < 10:  # noqa: ASYNC110 - a look now and then will do
            await asyncio.sleep(0.01)
        await asyncio.to_thread(primary.stop, immediate=True)
        await sql(standby, "SELECT pg_promote()")
        await asyncio.gather(*writers)
        assert acknowledged == {f"r{number}": 61 for number in range(4)}
        for run_id in acknowledged:
            assert (await store.history(run_id)).count(b"\n") == 61
        await store.close()

    with (
        closing(PostgresServer(durable=True)) as primary,
        closing(PostgresServer(durable=True, follows=primary)) as standby,
    ):
        asyncio.run(test(primary, standby))
