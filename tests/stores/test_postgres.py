"""The PostgreSQL store under the shipped suite, and what only a server has: addresses, schemas, plans, a view, rivals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.sql import Literal

from perdure import BlockingFlowEngine, Flow, FlowEngine, RuntimeCommand, WorkflowContext
from perdure.errors import EventConflict, FlowError, HookTokenConflict, StoreError
from perdure.kernel import load
from perdure.stores import open_store
from perdure.stores.base import Append, Committed, FlowEventStore, Lease, RunFilter
from perdure.stores.leases import Wanted
from perdure.stores.postgres import DUE, HISTORY, HOOKS, LAST, NEXT, RUN_IDS, TOKEN, PostgresEventStore, listing
from perdure.stores.postgres_batches import COMMIT, arguments_of
from perdure.stores.postgres_claims import CLAIM, CLAIM_HELD, LEASE, NEXT_CLAIM, OUTLOOK, RENEW, VOID, wanted_values
from perdure.stores.postgres_steps import STEP as STEP_ALONE
from perdure.stores.postgres_steps import STEPS, arguments_of_one, arguments_of_steps
from perdure.stores.postgres_wire import PostgresWire, Statement
from perdure.testing._stories import SECOND, START, Story, child, created, hook, hook_done, started, token_hash, wait
from perdure.testing.postgres import shared_server
from perdure.testing.store_contract import StoreContract

PURE = load("pure")
ME = Lease("me", 30 * SECOND)
STEP = {
    "type": "step_created",
    "step_id": "s",
    "step_name": "s",
    "input": None,
    "retry": {"max_attempts": 1, "delay_ms": 0},
}
NUMBERS = count(1)


def url() -> str:
    return shared_server().url


def new_schema() -> str:
    """A name that only works quoted."""
    return f'Tenant "{next(NUMBERS)}" – 100%s'


def on_schemas(test: Callable[[str], Awaitable[None]]) -> Callable[[], None]:
    """A test out of a coroutine that is given the name of a new schema."""

    def run() -> None:
        asyncio.run(test(new_schema()))  # type: ignore[arg-type]  # every test is a coroutine function

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class TestOnPostgres(StoreContract):
    kernel = "rust"
    random_traces = 4

    def make_store(self) -> FlowEventStore:
        self.schema = new_schema()
        return PostgresEventStore(url(), self.clock, schema=self.schema)

    def open_again(self, store: FlowEventStore) -> FlowEventStore:
        return PostgresEventStore(url(), self.clock, schema=self.schema)


# addresses and settings --------------------------------------------------------------------------------------


def test_an_address_is_told_without_its_password() -> None:
    store = PostgresEventStore("postgresql://app:canary-secret@db.example:6432/flows?application_name=x")
    assert repr(store) == "<PostgresEventStore: PostgreSQL database flows at db.example:6432, schema perdure>"
    with pytest.raises(ValueError, match="no PostgreSQL URL") as found:
        PostgresEventStore("postgresql://app:canary-secret@db.example:port=/x?y")
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("schema", ["", "x" * 64, "ü" * 32, "a\0b", "$perdure$", "pg_ours", "\ud800"])
def test_names_that_are_no_schema_are_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="is no name for one"):
        PostgresEventStore(url(), schema=schema)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="pool_size is 1"):
        PostgresEventStore(url(), pool_size=1)
    with pytest.raises(ValueError, match="synchronous is 'FULL'"):
        PostgresEventStore(url(), synchronous="FULL")  # type: ignore[arg-type]  # what a user may write


@on_schemas
async def test_an_address_in_key_value_form_and_a_durability_per_commit(schema: str) -> None:
    address = f"host=127.0.0.1 port={shared_server().port} user=postgres dbname=postgres"
    store = await PostgresEventStore.connect(address, schema=schema, synchronous="remote_apply", prepare_threshold=0)
    story = Story(PURE, "r")
    for number in range(3):
        await story.write(store, *([wait(f"w{number}", START)] if number else [created(), started()]))
    assert (await store.history("r")).count(b"\n") == 4
    await store.close()


@on_schemas
async def test_each_schema_is_a_store_of_its_own(schema: str) -> None:
    stores = [await PostgresEventStore.connect(url(), schema=f"{schema}{n}") for n in (1, 2)]
    await Story(PURE, "one").write(stores[0], created(), hook("h", "canary-same"))
    await Story(PURE, "two").write(stores[1], created(), hook("h", "canary-same"))
    assert [await store.run_ids() for store in stores] == [["one"], ["two"]]
    for store in stores:
        await store.close()


@on_schemas
async def test_a_wrong_clock_of_the_process_does_not_count(schema: str) -> None:
    """R45: the server's clock, from the first answer on, also where ours is ahead of it."""
    true = time.time_ns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: true + 600 * SECOND)
        store = await PostgresEventStore.connect(url(), schema=schema)
    assert store.clock() - true < 300 * SECOND
    await store.close()


@on_schemas
async def test_the_clock_is_the_servers_and_never_goes_back(schema: str) -> None:
    store = await PostgresEventStore.connect(url(), schema=schema)
    answer = await Story(PURE, "r").write(store, created(), lease=replace(ME, claim="firm"))
    heard = store.clock()
    assert heard >= answer.now > START // 2
    store._note(answer.now - 3600 * SECOND)  # the server's clock was set back
    assert store.clock() >= heard
    await store.close()


def test_a_fork_leaves_the_connections_to_its_parent() -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(url(), schema=new_schema())
        assert await store.run_ids() == []
        store._asking._process += 1  # what a fork sees
        story = Story(PURE, "r")
        for call in (store.run_ids(), store.commit([Append(story.batch(created()))])):
            with pytest.raises(StoreError, match="before this process was forked"):
                await call
        await store.close()
        store._asking._process -= 1
        assert store._asking._pool is not None
        (idle,) = store._asking._pool._idle
        assert not idle.closed
        await store.close()

    asyncio.run(test())


def test_a_store_serves_one_event_loop() -> None:
    store = PostgresEventStore(url(), schema=new_schema())
    first = asyncio.new_event_loop()
    first.run_until_complete(store.open())

    async def elsewhere() -> None:
        commit = store.commit([Append(Story(PURE, "r").batch(created()))])
        for call in (store.run_ids(), commit):
            with pytest.raises(StoreError, match="second event loop"):
                await asyncio.wait_for(call, 20)

    asyncio.run(elsewhere())
    store._group._idle.clear()  # as while the first loop commits: nothing may wait for it there
    asyncio.run(elsewhere())
    store._group._idle.set()
    first.run_until_complete(store.close())
    with pytest.raises(StoreError, match="is closed"):
        first.run_until_complete(store.run_ids())
    first.close()


@on_schemas
async def test_what_postgresql_cannot_hold_fails_alone_and_unseen(schema: str) -> None:
    store = await PostgresEventStore.connect(url(), schema=schema)
    good, bad = Story(PURE, "good").batch(created()), Story(PURE, "bad").batch(created(name="canary\0"))
    answers = await asyncio.gather(store.commit([Append(bad)]), store.commit([Append(good)]), return_exceptions=True)
    assert answers[1] == [Committed(1)]
    assert isinstance(answers[0], StoreError)
    assert "U+0000" in str(answers[0])
    assert "canary" not in str(answers[0])
    assert await store.run_ids() == ["good"]
    await store.close()


# plans -------------------------------------------------------------------------------------------------------


FILL = """
INSERT INTO @schema@.flow_runs
SELECT 'run-' || n, 'demo', '1', 'b1', CASE WHEN n % 1000 = 0 THEN 'failed' ELSE 'running' END, false, 0, 0, 0, 't', 't', NULL, 9,
    CASE WHEN n % 100 = 1 THEN 'owner-' || n END, 0, -1, 0, NULL, CASE WHEN n % 100 = 0 THEN '{}' END,
    CASE WHEN n % 200 <> 0 THEN 1000000::bigint * n END
FROM generate_series(1, 20000) AS n;
INSERT INTO @schema@.flow_commits SELECT 'run-' || n / 10, n % 10 + 1, n % 10 + 1, '' FROM generate_series(10, 20000) AS n;
INSERT INTO @schema@.flow_wakeups SELECT 'run-' || n, 0, 'w', '2027-01-01T00:00:00.0000' || (10000 + n) || 'Z'
FROM generate_series(1, 20000) AS n;
INSERT INTO @schema@.flow_hooks SELECT sha256(n::text::bytea), 'run-' || n, 'h', 1 FROM generate_series(1, 20000) AS n;
ANALYZE @schema@.flow_runs, @schema@.flow_commits, @schema@.flow_wakeups, @schema@.flow_hooks"""


async def filled(store: PostgresEventStore) -> None:
    """Enough rows for the planner to have a reason to use an index, and what it must know of them."""
    async with await psycopg.AsyncConnection.connect(url(), autocommit=True) as connection:
        await connection.execute(store._database.sql(FILL))


@on_schemas
async def test_every_question_of_the_store_reads_an_index(schema: str) -> None:
    store = await PostgresEventStore.connect(url(), schema=schema)
    await filled(store)
    wanted = wanted_values(Wanted([("demo", "1")], ["b1", None]))
    page, values = listing(RunFilter(), "a", 10)
    by_status, of_status = listing(RunFilter(status=("failed",)), None, 10)
    expected = [
        (HISTORY, ("r", 3), {"flow_commits_pkey"}),
        (DUE, ("2027-01-01T00:00:00.000000000Z", 10), {"flow_wakeups_by_due", "flow_runs_pkey"}),
        (NEXT, (), {"flow_wakeups_by_due", "flow_runs_pkey"}),
        (TOKEN, (token_hash("canary-t"),), {"flow_hooks_pkey"}),
        (HOOKS, (), {"flow_hooks_by_run"}),
        (RUN_IDS, (), set()),
        (LAST, (["run-1"],), {"flow_runs_pkey"}),
        (page, values, {"flow_runs_pkey"}),
        (by_status, of_status, {"flow_runs_by_status"}),
        (*listing(RunFilter(name="rare"), None, 10), {"flow_runs_by_name"}),
        (LEASE, (None, "r"), {"flow_runs_pkey"}),
        (NEXT_CLAIM, wanted, {"flow_runs_by_claim"}),
        (OUTLOOK, (None, *wanted), {"flow_runs_by_claim", "flow_runs_by_owner"}),
        (CLAIM, (None, "me", 3, SECOND, *wanted), {"flow_runs_by_claim", "flow_runs_held_by_claim", "flow_runs_pkey"}),
        (CLAIM_HELD, (None, "me", 3, SECOND, *wanted, "b1"), {"flow_runs_held", "flow_runs_pkey"}),
        (RENEW, (None, "me", ["run-1"], [1], SECOND), {"flow_runs_by_owner"}),
        (VOID, ("me",), {"flow_runs_by_owner"}),
    ]
    async with await psycopg.AsyncConnection.connect(url(), cursor_factory=psycopg.AsyncRawCursor) as connection:
        for statement, parameters, indexes in expected:
            cursor = await connection.execute(
                "EXPLAIN (FORMAT JSON) " + store._database.sql(statement), tuple(parameters)
            )
            assert_reads(await cursor.fetchall(), indexes, statement)
            # And so they do as prepared statements, which the server may plan once for all parameters.
            await connection.execute("PREPARE question AS " + store._database.sql(statement))
            literals = ", ".join(Literal(value).as_string(connection) for value in parameters)
            for _ in range(7):
                cursor = await connection.execute(
                    f"EXPLAIN (FORMAT JSON) EXECUTE question{f' ({literals})' if literals else ''}"
                )
                assert_reads(await cursor.fetchall(), indexes, statement)
            await connection.execute("DEALLOCATE question")
    await store.close()


def assert_reads(rows: list[tuple[Any, ...]], indexes: set[str], statement: str) -> None:
    text = json.dumps(rows)
    assert not indexes or "Seq Scan" not in text, statement
    assert {index for index in indexes if f'"{index}"' in text} == indexes, statement


READ_IN_FULL = """
SELECT relname, seq_tup_read FROM pg_stat_xact_user_tables
WHERE seq_tup_read > 0 AND relid IN (SELECT oid FROM pg_class WHERE relnamespace = $1::text::regnamespace)
ORDER BY relname"""


@on_schemas
async def test_commits_find_their_rows_by_key_however_empty_the_tables_were_at_first(schema: str) -> None:
    """A session plans the statements of a function once. So this one begins before there is anything to read."""
    store = await PostgresEventStore.connect(url(), schema=schema)
    stories = [Story(PURE, f"s{number}") for number in range(4)]
    for story in stories:
        await story.write(
            store, created(), started(), hook("h", f"canary-{story.run_id}"), lease=replace(ME, claim="firm")
        )
    held = replace(ME, epoch=1)
    steps = [Append(story.batch(STEP), held) for story in stories]
    others = [Append(stories[0].batch(wait("w", START), hook_done("h"), hook("g", "canary-g"), child("c", "s1")), held)]
    others += [Append(stories[1].batch({"type": "run_failed", "error": "e"}), held)]
    others += [Append(Story(PURE, "new").batch(created()), replace(ME, claim="firm"))]
    calls: list[tuple[Statement | str, Sequence[Any]]] = [
        (STEP_ALONE, arguments_of_one(steps[0], None, None)),
        (STEPS, arguments_of_steps(steps, None, None)),
        (COMMIT, (*arguments_of(others), None, None, "x")),
    ]
    async with await psycopg.AsyncConnection.connect(
        url(), autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        wire = PostgresWire(connection, store._database.sql, prepares=True)

        async def read_in_full() -> list[tuple[Any, ...]]:
            return await (await connection.execute(READ_IN_FULL, (store._database.sql("@schema@"),))).fetchall()

        async def work() -> list[str]:
            found = []
            for statement, values in calls:
                async with connection.transaction(force_rollback=True):
                    before = await read_in_full()
                    if isinstance(statement, Statement):
                        await wire.ask(statement, values)
                        wire.end()  # the driver's upper half asks next
                    else:
                        await connection.execute(store._database.sql(statement), values)
                    if (after := await read_in_full()) != before:
                        found.append(f"{statement}: {before} {after}")
            return found

        for _ in range(8):
            await work()
        await filled(store)
        assert await work() == []
    await store.close()


# races -------------------------------------------------------------------------------------------------------


@on_schemas
async def test_of_two_stores_on_one_run_one_wins_every_time(schema: str) -> None:
    stores = [await PostgresEventStore.connect(url(), schema=schema) for _ in range(2)]
    for number in range(20):
        batches = [Story(PURE, f"r{number}").batch(created(), started()) for _ in stores]
        answers = await asyncio.gather(
            *(store.commit([Append(batch)]) for store, batch in zip(stores, batches, strict=True))
        )
        kinds = sorted(type(answer).__name__ for (answer,) in answers)
        assert kinds == ["Committed", "EventConflict"], answers
        assert (await stores[0].history(f"r{number}")).count(b"\n") == 2
    for store in stores:
        await store.close()


@on_schemas
async def test_of_two_commits_under_one_lease_one_wins_though_they_meet_at_the_row(schema: str) -> None:
    stores = [await PostgresEventStore.connect(url(), schema=schema) for _ in range(2)]
    story = Story(PURE, "r")
    await story.write(stores[0], created(), started(), lease=replace(ME, claim="firm"))
    batches = [story.batch(STEP | {"step_id": name}) for name in "ab"]
    lease = replace(ME, epoch=1)
    async with await psycopg.AsyncConnection.connect(url()) as other:
        await other.execute(stores[0]._database.sql("SELECT FROM @schema@.flow_runs FOR UPDATE"))
        calls = [
            asyncio.create_task(store.commit([Append(batch, lease)]))
            for store, batch in zip(stores, batches, strict=True)
        ]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        async with await psycopg.AsyncConnection.connect(url(), autocommit=True) as look:
            while await (await look.execute(waiting)).fetchone() != (2,):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
    answers = [answer for call in calls for answer in await call]
    assert sorted(type(answer).__name__ for answer in answers) == ["Committed", "EventConflict"], answers
    assert (await stores[0].history("r")).count(b"\n") == 3
    for store in stores:
        await store.close()


@on_schemas
async def test_of_two_stores_on_one_token_one_wins_every_time(schema: str) -> None:
    stores = [await PostgresEventStore.connect(url(), schema=schema) for _ in range(2)]
    for number in range(20):
        token = f"canary-{number}"
        batches = [Story(PURE, f"{name}{number}").batch(created(), hook("h", token)) for name in "ab"]
        answers = await asyncio.gather(
            *(store.commit([Append(batch)]) for store, batch in zip(stores, batches, strict=True))
        )
        flat: list[Committed | FlowError] = [answer for (answer,) in answers]
        (winner,) = await stores[0].find_active_hooks(token_hash(token))
        (refused,) = [answer for answer in flat if isinstance(answer, FlowError)]
        assert isinstance(refused, HookTokenConflict)
        assert (refused.token, refused.existing_run_id, refused.existing_hook_id) == (token, winner.run_id, "h")
    for store in stores:
        await store.close()


@on_schemas
async def test_groups_that_cross_do_not_deadlock(schema: str) -> None:
    """Creations, links and tokens in opposite orders from two stores, for as long as it takes to meet often."""
    stores = [await PostgresEventStore.connect(url(), schema=schema) for _ in range(2)]
    await Story(PURE, "target").write(stores[0], created())

    async def work(store: PostgresEventStore, names: str, tokens: str) -> None:
        for number in range(25):
            appends = [
                Append(
                    Story(PURE, f"{name}{number}").batch(
                        created(), child("c", "target"), hook("h", f"canary-{token}{number}")
                    )
                )
                for name, token in zip(names, tokens, strict=True)
            ]
            for answer in await store.commit(appends):
                assert isinstance(answer, Committed | EventConflict | HookTokenConflict)

    await asyncio.gather(work(stores[0], "abcd", "wxyz"), work(stores[1], "dbca", "xwzy"))
    assert len(await stores[0].run_ids()) > 50
    for store in stores:
        await store.close()


@on_schemas
async def test_claims_pass_over_what_another_transaction_has_locked(schema: str) -> None:
    store = await PostgresEventStore.connect(url(), schema=schema)
    for run_id in "ab":
        await Story(PURE, run_id).write(store, created())
    async with await psycopg.AsyncConnection.connect(url()) as other:
        await other.execute(store._database.sql("SELECT FROM @schema@.flow_runs WHERE run_id = 'a' FOR UPDATE"))
        assert [run.run_id for run in await store.claim("me", 5, ttl_ns=SECOND)] == ["b"]
    await store.close()


# for people, and for engines ---------------------------------------------------------------------------------


@on_schemas
async def test_the_view_shows_one_row_per_event(schema: str) -> None:
    store = await PostgresEventStore.connect(url(), schema=schema)
    story = Story(PURE, "r")
    await story.write(store, created(input="a\nb\u2028"), started())
    await story.write(store, wait("w", START))
    async with await psycopg.AsyncConnection.connect(url()) as connection:
        view = store._database.sql(
            "SELECT sequence, type, event->>'wait_id' FROM @schema@.flow_events ORDER BY sequence"
        )
        rows = await (await connection.execute(view)).fetchall()
    assert rows == [(1, "run_created", None), (2, "run_started", None), (3, "wait_created", "w")]
    await store.close()


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


@on_schemas
async def test_a_workflow_of_three_steps_runs_to_its_end(schema: str) -> None:
    store = PostgresEventStore(url(), schema=schema)
    async with FlowEngine(flow, store) as engine:
        run = await engine.run(doubling, 5)
        assert (run.status, run.output) == ("completed", 40)
        types = [envelope.type for envelope in await engine.history(run.run_id)]
    assert types.count("step_completed") == 3
    await store.close()
    again = PostgresEventStore(url(), schema=schema)
    async with FlowEngine(flow, again) as engine:
        assert (await engine.snapshot(run.run_id)).output == 40
    await again.close()


def test_a_blocking_engine_takes_a_url() -> None:
    with BlockingFlowEngine(flow, url()) as engine:
        assert engine.run(doubling, 1).output == 8
    assert isinstance(open_store(url()), PostgresEventStore)


# tenants -----------------------------------------------------------------------------------------------------

HOSTILE = ["UPPER", "with space", "q'uo\"te; DROP", "Ünïcode – 漢字", "$1 %s @schema@ @tenant@ {x}", "pgish", "x" * 63]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_schema_name_holds_a_store(name: str) -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(url(), schema=name)
        async with FlowEngine(flow, store) as engine:
            assert (await engine.run(doubling, 5)).output == 40
        await Story(PURE, "hooked").write(store, created(), hook("h", "canary-any"))
        seen = await store.changes()
        assert await asyncio.wait_for(store.wait_for_change(seen, 0.01), 60) == seen
        await store.close()
        verified = await PostgresEventStore.connect_verified(url(), schema=name)
        assert len(await verified.run_ids()) == 2
        await verified.close()

    asyncio.run(test())


@on_schemas
async def test_tenants_with_equal_ids_and_tokens_neither_see_nor_await_each_other(schema: str) -> None:
    one, two = [await PostgresEventStore.connect(url(), schema=f"{schema}{n}") for n in (1, 2)]
    async with await psycopg.AsyncConnection.connect(url(), cursor_factory=psycopg.AsyncRawCursor) as stalled:
        # A transaction of the one tenant that has all its locks and does not end.
        append = Append(Story(PURE, "r").batch(created(), hook("h", "canary-same")), replace(ME, claim="firm"))
        values = (*arguments_of([append]), None, None, "x")
        ((_, _, verdict, *_),) = await (await stalled.execute(one._database.sql(COMMIT), values)).fetchall()
        assert verdict is None
        story = Story(PURE, "r")
        await asyncio.wait_for(
            story.write(two, created(), hook("h", "canary-same"), lease=replace(ME, claim="firm")), 60
        )
        await stalled.rollback()
    assert [await store.run_ids() for store in (one, two)] == [[], ["r"]]
    assert await one.find_active_hooks(token_hash("canary-same")) == []
    await Story(PURE, "r").write(one, created(), hook("h", "canary-same"), lease=replace(ME, claim="firm"))
    assert await two.void("me") == 1
    assert (await one.lease("r")).live
    for store in (one, two):
        await store.close()


@on_schemas
async def test_functions_run_as_their_caller_and_look_nowhere_else(schema: str) -> None:
    """A search_path full of decoys, as somebody who may create objects could lay them out."""
    store = await PostgresEventStore.connect(url(), schema=schema)
    decoys = "".join(
        f"CREATE FUNCTION decoy.{name} RETURNS {result} LANGUAGE plpgsql AS $$BEGIN RAISE 'decoy'; END$$;"
        for name, result in (
            ("hashtext(text)", "integer"),
            ("clock_timestamp()", "timestamptz"),
            ("pg_advisory_xact_lock(integer, integer)", "void"),
            ("pg_notify(text, text)", "void"),
            ("flow_clock()", "bigint"),
            ("cardinality(anyarray)", "integer"),
        )
    )
    async with await psycopg.AsyncConnection.connect(url(), autocommit=True) as connection:
        await connection.execute(f"CREATE SCHEMA decoy; CREATE TABLE decoy.flow_runs (run_id text); {decoys}")
        await connection.execute("CREATE ROLE deceived SUPERUSER LOGIN")
        await connection.execute("ALTER ROLE deceived SET search_path = decoy, pg_catalog")
        unsafe = "SELECT proname FROM pg_proc WHERE prosecdef AND pronamespace = %s::text::regnamespace"
        assert await (await connection.execute(unsafe, (store._database.sql("@schema@"),))).fetchall() == []
        await store.close()
        store = await PostgresEventStore.connect(url().replace("postgres@", "deceived@"), schema=schema)
        stories = [Story(PURE, name) for name in "abc"]
        for story in stories:
            await story.write(store, created(), hook("h", f"canary-{story.run_id}"), lease=replace(ME, claim="firm"))
        for lease in (replace(ME, epoch=1), None):
            batches = [story.batch(started() if lease else wait("w", START)) for story in stories]
            answers = await asyncio.gather(*(store.commit([Append(batch, lease)]) for batch in batches))
            assert [answer.last_sequence for (answer,) in answers if isinstance(answer, Committed)] == [
                3 if lease else 4
            ] * 3
            for story, batch in zip(stories, batches, strict=True):
                story.accept(batch)
        await store.close()
        await connection.execute("DROP OWNED BY deceived; DROP ROLE deceived; DROP SCHEMA decoy CASCADE")


@pytest.fixture(autouse=True, scope="module")
def _no_schema_left_to_the_next_module() -> Iterator[None]:
    yield
    with psycopg.connect(url(), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS perdure CASCADE")
