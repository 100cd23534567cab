"""What workers cost a store: the table of counts, exactly (sql-sketch.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import psycopg
from scenarios.kit import Clock, one_workflow

from perdure import FlowEngine, FlowWorker, RuntimeCommand, WorkflowContext
from perdure.stores import MemoryEventStore, PostgresEventStore, SqliteEventStore
from perdure.stores.base import FlowEventStore
from perdure.testing.postgres import shared_server
from perdure.testing.virtual_time import VirtualTimeLoop, run
from worker.kit import CountingStore, chain, until, working

SELDOM = timedelta(hours=1)
"""For what else reads now and then, and would blur a count on a slow machine."""
LOOKS = ("outlook", "changes")


def counted(counting: CountingStore) -> dict[str, int]:
    """The calls since the last time, but for looks, whose number is a matter of time."""
    calls = {name: number for name, number in counting.calls.items() if name not in LOOKS}
    counting.calls.clear()
    return calls


def in_virtual_time(story: Callable[[Any, VirtualTimeLoop], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await story(CountingStore(MemoryEventStore(loop.clock_ns)), loop)

    run(main, Clock().ns)


# -- runs ----------------------------------------------------------------------------------------------------------------------


async def test_steps_of_a_direct_start(store: FlowEventStore) -> None:
    """N + 1 commits, one read at the start, none per step."""
    counting: Any = CountingStore(store)
    async with FlowEngine(chain(7), counting, poll_interval=SELDOM) as engine:
        await engine.start("chain")
        assert counted(counting) == {"history": 1, "commit": 8}


async def test_steps_by_a_worker_after_a_submission(store: FlowEventStore) -> None:
    """One commit to submit; a claim, shared by all that is claimed with it; N + 1 commits and one read for each run."""
    counting: Any = CountingStore(store)
    async with FlowEngine(chain(7), counting, poll_interval=SELDOM) as client:
        for number in range(5):
            await client.submit("chain", run_id=f"r{number}")
        assert counted(counting) == {"history": 5, "commit": 5}
    async with FlowEngine(chain(7), counting, poll_interval=SELDOM) as engine:
        await FlowWorker(engine).run_until_idle()
        assert counted(counting) == {"claim": 1, "history": 5, "commit": 5 * 8}


def test_a_timer_by_a_worker() -> None:
    """The claim, and one commit with `wait_completed`, the decision and the parking; at most one read."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        for n in range(3):
            if not ctx.wait_completed(f"w{n}"):
                return ctx.wait_for(f"w{n}", timedelta(minutes=5))
        return ctx.complete()

    async def story(counting: Any, loop: VirtualTimeLoop) -> None:
        async with FlowEngine(one_workflow(ask), counting, poll_interval=SELDOM) as engine, working(engine):
            await engine.submit("flow", run_id="r")
            await asyncio.sleep(60)
            counted(counting)
            for _ in range(2):
                await asyncio.sleep(300)
                assert counted(counting) == {"claim": 1, "commit": 1}, "what this worker parked it knows"
        async with FlowEngine(one_workflow(ask), counting, poll_interval=SELDOM) as engine, working(engine):
            await asyncio.sleep(300)
            assert counted(counting) == {"claim": 1, "history": 1, "commit": 1}, "one that another parked it reads"
            assert (await engine.snapshot("r")).status == "completed"

    in_virtual_time(story)


async def test_a_hook_by_a_call_and_a_worker(store: FlowEventStore) -> None:
    """The call's append; the claim and one commit of the worker."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.hook_received("h") else ctx.create_hook("h", token="canary-count")

    counting: Any = CountingStore(store)
    async with FlowEngine(one_workflow(ask), store) as setup:
        await setup.start("flow", run_id="r")
    async with FlowEngine(one_workflow(ask), counting, poll_interval=SELDOM) as client:
        await client.resume_hook("r", "h", "yes", drive=False)
        assert counted(counting)["commit"] == 1
    async with FlowEngine(one_workflow(ask), counting, poll_interval=SELDOM) as engine:
        await FlowWorker(engine).run_until_idle()
        assert counted(counting) == {"claim": 1, "history": 1, "commit": 1}


async def test_a_claim_that_finds_nothing_to_do(store: FlowEventStore) -> None:
    """The claim and a parking without events."""

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        return ctx.complete() if ctx.hook_received("h") else ctx.create_hook("h", token="canary-nothing")

    counting: Any = CountingStore(store)
    async with FlowEngine(one_workflow(ask), counting, poll_interval=SELDOM) as engine:
        await engine.start("flow", run_id="r")
        last = (await store.lease("r")).last_sequence
        await store.set_hold("r", '{"code":"failing"}', expected_sequence=last)
        await store.release_hold("r")
        counted(counting)
        await FlowWorker(engine).run_until_idle()
        assert counted(counting) == {"claim": 1, "commit": 1}
        assert (await store.lease("r")).parked_sequence == last == (await store.lease("r")).last_sequence


async def test_a_drive_that_fails(store: FlowEventStore) -> None:
    """The claim and the commit that counts the failure. The back-off it draws may be over at once, so the worker is stopped
    before it could claim the run again."""
    workers: list[FlowWorker] = []

    def ask(ctx: WorkflowContext) -> RuntimeCommand:
        workers[0].stop()
        raise RuntimeError("a bug")

    counting: Any = CountingStore(store)
    async with FlowEngine(one_workflow(ask), counting, poll_interval=SELDOM) as engine:
        await engine.submit("flow", run_id="r")
        counted(counting)
        workers.append(FlowWorker(engine))
        await workers[0].run_until_idle()
        assert counted(counting) == {"claim": 1, "commit": 1}
        assert (await store.lease("r")).failures == 1


# -- idle workers --------------------------------------------------------------------------------------------------------------


def test_an_idle_worker_looks_twice_a_minute() -> None:
    async def story(counting: Any, loop: VirtualTimeLoop) -> None:
        async with FlowEngine(chain(), counting) as engine, working(engine, poll=timedelta(seconds=30)):
            await asyncio.sleep(1)
            counting.calls.clear()
            await asyncio.sleep(600)
            assert dict(counting.calls) == {"outlook": 20}

    in_virtual_time(story)


def test_hints_bring_a_look_every_50_ms_at_most() -> None:
    """However much others commit, a worker that finds nothing for itself reads twenty times a second, and takes no lock."""

    async def story(counting: Any, loop: VirtualTimeLoop) -> None:
        async with FlowEngine(chain(), counting) as engine, working(engine):
            async with FlowEngine(chain(version="2"), counting.inner) as other:
                await asyncio.sleep(1)
                counting.calls.clear()
                for _ in range(1000):
                    await other.submit("chain")
                    await asyncio.sleep(0.001)
            assert dict(counting.calls) == {"outlook": 20}

    in_virtual_time(story)


def test_what_is_due_and_cannot_be_had_is_asked_for_ever_more_seldom() -> None:
    """Other workers have it locked, or are faster: pauses grow to a second."""

    async def story(counting: Any, loop: VirtualTimeLoop) -> None:
        async def nothing(*_: object, **__: object) -> list[object]:
            counting.calls["claim"] += 1
            return []

        async with FlowEngine(chain(), counting) as engine:
            await engine.submit("chain")
            counting.claim = nothing
            async with working(engine):
                await asyncio.sleep(60)
                assert 45 <= counting.calls["claim"] <= 90

    in_virtual_time(story)


async def test_an_idle_worker_writes_nothing_to_sqlite(sqlite: SqliteEventStore) -> None:
    """Each look is one statement on a reading connection."""
    counting: Any = CountingStore(sqlite)
    async with FlowEngine(chain(), counting) as engine, working(engine, poll=timedelta(milliseconds=20)):
        await until(lambda: _reached(counting, "outlook", 1))
        written: list[str] = []
        sqlite._writer._connection.set_trace_callback(written.append)
        counting.calls.clear()
        await until(lambda: _reached(counting, "outlook", 5))
        assert (written, set(counting.calls)) == ([], {"outlook"})


async def _reached(counting: CountingStore, name: str, number: int) -> bool:
    return counting.calls[name] >= number


async def test_an_idle_worker_asks_postgresql_nothing_while_it_listens() -> None:
    """Until the next poll, two a minute by default: what is to be known comes by NOTIFY. The server says when any of the
    worker's sessions last asked something."""
    asked = "SELECT max(query_start) FROM pg_stat_activity WHERE application_name = 'idle-worker'"
    store = PostgresEventStore(f"{shared_server().url}?application_name=idle-worker", schema="idle worker")
    async with (
        await psycopg.AsyncConnection.connect(shared_server().url, autocommit=True) as server,
        FlowEngine(chain(), store) as engine,
        working(engine),
    ):
        await until(lambda: _at_rest(store))
        (before,) = await (await server.execute(asked)).fetchall()
        await asyncio.sleep(2.5)
        assert before != (None,)
        assert await (await server.execute(asked)).fetchall() == [before]
    await store.close()


async def _at_rest(store: PostgresEventStore) -> bool:
    """Whether it listens, and one who waits for a change knows of all that was heard and done so far."""
    hints = store._hints
    _, heard, own, _ = hints._noted
    return hints._listening and hints._waiting == 1 and (heard, own) == (hints._count, hints._own)
