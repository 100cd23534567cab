"""PostgreSQL over a wire that breaks at a chosen point: what is known is said, what is not is called unknown (R48)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

import psycopg
import pytest
from stores.wire import Cut, Wire

from perdure.errors import EventConflict, LeaseLost, OutcomeUnknown, StoreUnavailable
from perdure.instant import MAX_NS
from perdure.kernel import Batch, load
from perdure.stores.base import Append, Committed, Lease
from perdure.stores.postgres import PostgresEventStore
from perdure.testing._stories import SECOND, START, Draft, Story, created, hook, started, wait
from perdure.testing.postgres import shared_server

PURE = load("pure")
ME = Lease("me", 3600 * SECOND)
CUTS: list[Cut] = ["question", "silence", "answer", "half an answer"]
WRITTEN = {"question": False, "silence": True, "answer": True, "half an answer": True}


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return f"{zlib.crc32(request.node.name.encode())} {request.node.name}"[:63]


def step(number: int) -> Draft:
    retry = {"max_attempts": 1, "delay_ms": 0}
    return {"type": "step_created", "step_id": f"s{number}", "step_name": "s", "input": None, "retry": retry}


@asynccontextmanager
async def over(wire: Wire, schema: str) -> AsyncIterator[PostgresEventStore]:
    async with wire.up() as address:
        store = await PostgresEventStore.connect(address, schema=schema)
        yield store
        await store.close()


async def written(schema: str, batch: Batch) -> bool:
    """Whether the server has the batch, asked over no wire."""
    store = await PostgresEventStore.connect(shared_server().url, schema=schema)
    lines = await store.history(batch.run_id)
    await store.close()
    return batch.event_ids[0].encode() in lines


# one statement -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", ["a step", "a hook", "foreign"])
def test_a_commit_cut_off_is_unknown_and_settles_by_committing_again(schema: str, cut: Cut, kind: str) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            story = Story(PURE, "r")
            await story.write(store, created(), started(), lease=replace(ME, claim="firm"))
            lease = None if kind == "foreign" else replace(ME, epoch=1)
            append = Append(story.batch(hook("h", "canary-cut") if kind == "a hook" else step(1)), lease)
            wire.cut = cut
            with pytest.raises(OutcomeUnknown, match="commit the same batch again") as found:
                await store.commit([append])
            assert "canary" not in f"{found.value!r}{found.value.__cause__}{found.value.__context__}"
            assert await written(schema, append.batch) == WRITTEN[cut]
            (answer,) = await store.commit([append])
            if WRITTEN[cut]:
                assert isinstance(answer, EventConflict)
                assert append.batch.event_ids[0].encode() in await store.history("r", append.batch.expected_sequence)
            else:
                assert answer == Committed(3, epoch=None if kind == "foreign" else 1)

    asyncio.run(test())


@pytest.mark.parametrize("cut", CUTS)
def test_a_group_cut_off_is_unknown_to_each_of_its_callers(schema: str, cut: Cut) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            stories = [Story(PURE, f"r{number}") for number in range(4)]
            for story in stories:
                await story.write(store, created(), started(), lease=replace(ME, claim="firm"))
            batches = [story.batch(step(1)) for story in stories]
            calls = [asyncio.create_task(store.commit([Append(batch, replace(ME, epoch=1))])) for batch in batches]
            # The first goes out alone, the others wait for it and go together.
            await calls[0]
            wire.cut = cut
            answers = await asyncio.gather(*calls[1:], return_exceptions=True)
            assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
            assert len({id(answer) for answer in answers}) == 3
            assert [await written(schema, batch) for batch in batches[1:]] == [WRITTEN[cut]] * 3

    asyncio.run(test())


def test_opening_ends_wherever_the_server_falls_silent(schema: str) -> None:
    async def test() -> None:
        await (await PostgresEventStore.connect(shared_server().url, schema=schema)).close()
        wire = Wire()
        async with wire.up() as address:
            for passes in count():
                store = PostgresEventStore(address, schema=schema)
                wire.cut, wire.passes = "silence", passes
                with suppress(StoreUnavailable):
                    await store.open()
                whole, wire.cut = wire.cut is not None, None
                await store.close()
                if whole:
                    break
            assert passes > 3

    asyncio.run(test())


@pytest.mark.parametrize("kind", ["hold", "prune"])
def test_a_transaction_ends_wherever_the_server_falls_silent(schema: str, kind: str) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            for passes in count():
                run_id = f"r{passes}"
                await Story(PURE, run_id).write(store, created(), started(), {"type": "run_completed", "output": None})
                call = partial(store.hold_history, run_id, "h", "x") if kind == "hold" else partial(store.prune, MAX_NS)
                wire.cut, wire.passes = "silence", passes
                with suppress(StoreUnavailable, OutcomeUnknown):
                    await call()
                whole, wire.cut = wire.cut is not None, None
                await call()  # settles it
                holds = [hold.hold_id for hold in await store.history_holds(run_id)]
                assert holds == (["h"] if kind == "hold" else [])
                assert (await store.tombstone(run_id) is None) == (kind == "hold")
                if whole:
                    break
            assert passes > 4

    asyncio.run(test())


@pytest.mark.parametrize("cut", CUTS)
def test_a_claim_cut_off_is_unknown_and_the_row_tells_whose_lease_it_is(schema: str, cut: Cut) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            await Story(PURE, "r").write(store, created())
            wire.cut = cut
            with pytest.raises(OutcomeUnknown):
                await store.claim("me", 1, ttl_ns=60 * SECOND)
            state = await store.lease("r")
            assert (state.owner, state.epoch) == (("me", 1) if WRITTEN[cut] else (None, 0))

    asyncio.run(test())


@pytest.mark.parametrize("cut", ["question", "answer", "half an answer"])
def test_what_may_be_asked_twice_is_asked_again(schema: str, cut: Cut) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            await Story(PURE, "r").write(store, created(), lease=replace(ME, claim="firm"))
            wire.cut = cut
            assert (await store.history("r")).count(b"\n") == 1
            wire.cut = cut
            kept, lost = await store.renew("me", [("r", 1), ("r", 2)], ttl_ns=SECOND)
            assert kept == ("r", 1)
            assert isinstance(lost, LeaseLost)

    asyncio.run(test())


def test_connections_torn_while_idle_are_replaced_before_anything_is_sent(schema: str) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            story = Story(PURE, "r")
            await story.write(store, created(), started(), lease=replace(ME, claim="firm"))
            for number in range(3):
                wire.tear()
                await asyncio.sleep(0.01)
                await story.write(store, step(number), lease=replace(ME, epoch=1))
                wire.tear()
                await asyncio.sleep(0.01)
                await story.write(store, wait(f"w{number}", START))
                wire.tear()
                await asyncio.sleep(0.01)
                assert await store.last_sequences(["r"]) == {"r": 4 + 2 * number}

    asyncio.run(test())


def test_a_server_that_cannot_be_reached_any_more_has_written_nothing(schema: str) -> None:
    async def test() -> None:
        wire = Wire()
        async with over(wire, schema) as store:
            story = Story(PURE, "r")
            await story.write(store, created(), started(), lease=replace(ME, claim="firm"))
            append = Append(story.batch(step(1)), replace(ME, epoch=1))
            wire.refusing = True
            wire.tear()
            await asyncio.sleep(0.01)
            for call in (store.commit([append]), store.claim("me", 1, ttl_ns=SECOND), store.run_ids()):
                with pytest.raises(StoreUnavailable, match="nothing was written"):
                    await call
            assert not await written(schema, append.batch)
            wire.refusing = False
            assert await store.commit([append]) == [Committed(3, epoch=1)]

    asyncio.run(test())


# a session that turned read-only -----------------------------------------------------------------------------


def test_a_server_that_became_a_standby_is_unavailable_and_left_for_another(schema: str) -> None:
    """What a failover does to those who are connected: the session stays and takes no more writes."""

    async def operator(statement: str) -> None:
        async with await psycopg.AsyncConnection.connect(shared_server().url, autocommit=True) as connection:
            await connection.execute(statement.encode())

    async def test() -> None:
        await operator("CREATE ROLE demoted SUPERUSER LOGIN")
        store = await PostgresEventStore.connect(shared_server().url.replace("postgres@", "demoted@"), schema=schema)
        story = Story(PURE, "r")
        await story.write(store, created(), started(), lease=replace(ME, claim="firm"))
        await operator("ALTER ROLE demoted SET default_transaction_read_only = on")
        sessions = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'demoted'"
        await operator(sessions)
        append = Append(story.batch(step(1)), replace(ME, epoch=1))
        hooked = Append(story.batch(hook("h", "canary-h")))
        for call in (store.commit([append]), store.commit([hooked]), store.claim("me", 1, ttl_ns=SECOND)):
            with pytest.raises(StoreUnavailable, match=r"nothing was written.*25006"):
                await call
        assert (await store.history("r")).count(b"\n") == 2
        # The other server takes writes; nobody ended the sessions with the old one.
        await operator("ALTER ROLE demoted RESET default_transaction_read_only")
        assert await store.commit([append]) == [Committed(3, epoch=1)]
        await store.close()
        await operator("DROP OWNED BY demoted; DROP ROLE demoted")

    asyncio.run(test())


# anything, at any time ---------------------------------------------------------------------------------------


class World:
    """What the writers did: batches written, by which the sabotage is paced, and the first event of each that was not."""

    def __init__(self) -> None:
        self.written = asyncio.Semaphore(0)
        self.denied: list[str] = []
        self.unknown = 0


async def writer(store: PostgresEventStore, run_id: str, leased: bool, world: World) -> Story:
    story, lease = Story(PURE, run_id), replace(ME, claim="firm") if leased else None
    await settle(store, story, [created(), started()], lease, world)
    for number in range(12):
        await settle(store, story, [step(number)], replace(ME, epoch=1) if leased else None, world)
    return story


async def settle(
    store: PostgresEventStore, story: Story, drafts: list[Draft], lease: Lease | None, world: World
) -> None:
    batch, unknown = story.batch(*drafts), False
    while True:
        try:
            (answer,) = await store.commit([Append(batch, lease)])
        except StoreUnavailable:
            if not unknown:
                world.denied.append(batch.event_ids[0])
                batch = story.batch(*drafts)  # with ids of its own
            continue
        except OutcomeUnknown:
            unknown = True
            world.unknown += 1
            continue
        if not isinstance(answer, Committed):
            # Only our own, unknown until now, can be in the way.
            assert unknown, answer
            lines = await settled(store.history, batch.run_id, batch.expected_sequence)
            assert batch.event_ids[0].encode() in lines
        story.accept(batch)
        world.written.release()
        return


async def settled(ask: Callable[..., Awaitable[bytes]], *values: object) -> bytes:
    while True:
        with suppress(StoreUnavailable):
            return await ask(*values)


@pytest.mark.parametrize("seed", range(2))
def test_cuts_at_random_under_load_lose_nothing_acknowledged_and_undo_nothing_denied(schema: str, seed: int) -> None:
    async def test() -> None:
        wire, random, world = Wire(), Random(seed), World()

        async def saboteur() -> None:
            while True:
                for _ in range(random.randint(1, 5)):
                    await world.written.acquire()
                match random.randrange(4):
                    case 0:
                        wire.tear()
                    case 1:
                        wire.refusing = True
                        wire.tear()
                        await asyncio.sleep(0.01)
                        wire.refusing = False
                    case _:
                        wire.cut = random.choice(["question", "answer", "half an answer"])

        async with over(wire, schema) as store:
            breaking = asyncio.create_task(saboteur())
            stories = await asyncio.gather(*(writer(store, f"r{n}", n % 2 == 0, world) for n in range(8)))
            assert not breaking.done()
            assert world.unknown > 0
            breaking.cancel()
            wire.cut, wire.refusing = None, False
            for story in stories:
                lines = await store.history(story.run_id)
                assert lines.count(b"\n") == story.run.last_sequence
                assert PURE.project(story.run_id, lines, 1 << 20).last_sequence == story.run.last_sequence
                assert not [event_id for event_id in world.denied if event_id.encode() in lines]

    asyncio.run(test())
