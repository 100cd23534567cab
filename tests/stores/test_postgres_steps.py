"""Commits that only move a run on, in groups, beside the memory store: the rules of leases in one more place (R47)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import psycopg
import pytest

from perdure.errors import StoreError
from perdure.kernel import load
from perdure.stores import MemoryEventStore, PostgresEventStore
from perdure.stores.base import Append, Committed, FlowEventStore, Lease
from perdure.stores.postgres_steps import integers_of
from perdure.stores.rules import is_step
from perdure.testing._store_suite import StoreClock
from perdure.testing._stories import SECOND, START, Draft, Story, created, hook, started, wait
from perdure.testing.postgres import shared_server

PURE = load("pure")
TTL = 10 * SECOND
ME = Lease("me", TTL, claim="firm")
RUN_IDS = ("A", "a", "b-2", "b", "c_", "ü", "\U0001f40c")


def step(number: int) -> Draft:
    retry = {"max_attempts": 1, "delay_ms": 0}
    return {"type": "step_created", "step_id": f"s{number}", "step_name": "s", "input": "é", "retry": retry}


def told(answer: object) -> str:
    return f"{type(answer).__name__} {getattr(answer, 'args', '')} {answer!r}"


async def disturb(stores: tuple[FlowEventStore, ...], random: Random, run_id: str) -> None:
    """Does to a run what the next commit under its old lease must notice."""
    match random.randrange(8):
        case 0:
            for store in stores:
                await store.claim("other", 3, ttl_ns=TTL)
        case 1:
            owner = random.choice(("me", "other"))
            for store in stores:
                await store.void(owner)
        case 2:
            last = await stores[0].last_sequences([run_id])
            for store in stores:
                await store.set_hold(run_id, '{"code":"x"}', expected_sequence=last[run_id])
        case 3:
            for store in stores:
                await store.release_hold(run_id)


def lease_of(random: Random, epoch: int) -> Lease:
    return Lease(
        random.choice(("me", "me", "me", "other")),
        random.choice((TTL, TTL, TTL + 1, 3 * TTL)),
        epoch=epoch - random.choice((0, 0, 0, 1)),
        accepted=random.random() < 0.3,
        after=random.choice(("keep",) * 9 + ("fail",)),
        counted=True,
        fraction=0.5,
    )


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_steps_do_what_the_rules_say(seed: int) -> None:
    async def test() -> None:
        clock, random = StoreClock(), Random(seed)
        postgres = PostgresEventStore(shared_server().url, clock, schema=f"steps {seed}")
        stores = (MemoryEventStore(clock), postgres)
        stories = {run_id: Story(PURE, run_id) for run_id in RUN_IDS}
        for story in stories.values():
            batch = story.batch(created(), started())
            for store in stores:
                await store.commit([Append(batch, ME)])
            story.accept(batch)
        for number in range(60):
            await disturb(stores, random, random.choice(RUN_IDS))
            clock.ns += random.choice((0, 0, 1, 999, 1000, SECOND, TTL // 2, TTL))
            appends = []
            for run_id in random.sample(RUN_IDS, random.randint(1, len(RUN_IDS))):
                state = await stores[0].lease(run_id)
                drafts = (
                    [step(number * 10)] if random.random() < 0.9 else [step(number * 10), wait(f"w{number}", START)]
                )
                appends.append(Append(stories[run_id].batch(*drafts), lease_of(random, state.epoch)))
            ours, theirs = [
                [answer for (answer,) in await asyncio.gather(*(store.commit([append]) for append in appends))]
                for store in stores
            ]
            assert [told(answer) for answer in ours] == [told(answer) for answer in theirs], number
            for append, answer in zip(appends, ours, strict=True):
                if isinstance(answer, Committed) and random.random() < 0.95:  # else the next one is refused
                    stories[append.batch.run_id].accept(append.batch)
                elif isinstance(answer, Committed):
                    stories[append.batch.run_id] = await known(stores[0], append.batch.run_id)
            for run_id in RUN_IDS:
                assert await stores[0].lease(run_id) == await stores[1].lease(run_id), (number, run_id)
                assert await stores[0].history(run_id) == await stores[1].history(run_id)
            assert await stores[0].runs() == await stores[1].runs()
        await postgres.close()

    asyncio.run(test())


async def known(store: FlowEventStore, run_id: str) -> Story:
    story = Story(PURE, run_id)
    story.run.extend(await store.history(run_id))
    return story


def test_only_a_batch_that_touches_no_index_and_keeps_its_lease_is_a_step() -> None:
    story = Story(PURE, "r")
    batch = story.batch(created(), started())
    held = Lease("me", TTL, epoch=1)
    assert not is_step(Append(batch, held))  # a creation
    story.accept(batch)
    plain = Append(story.batch(step(1)), held)
    assert is_step(plain)
    for lease in (None, ME, replace(held, epoch=None), replace(held, after="park"), replace(held, hold="{}")):
        assert not is_step(Append(plain.batch, lease))
    for drafts in ((), (wait("w", START),), (hook("h", "canary-step"),), ({"type": "run_failed", "error": "e"},)):
        assert not is_step(Append(story.batch(*drafts), held))


def test_what_the_server_cannot_hold_is_refused_by_it() -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema="steps refused")
        stories = [Story(PURE, run_id) for run_id in "abc"]
        for story in stories:
            await story.write(store, created(), started(), lease=ME)
        for owner in ("canary\0", "canary\ud800"):
            calls = [store.commit([Append(story.batch(step(1)), Lease(owner, TTL, epoch=1))]) for story in stories]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(answer, StoreError)
                assert "canary" not in f"{answer}{answer.__context__}{answer.__cause__}"
        for story in stories:
            await story.write(store, step(1), lease=Lease("me", TTL, epoch=1))
        await store.close()

    asyncio.run(test())


def test_an_array_is_read_as_the_server_sends_it() -> None:
    assert integers_of(None) is None
    assert integers_of(bytes.fromhex("000000000000000000000014")) == []
    one = "0000000100000000000000140000000200000001"
    assert integers_of(bytes.fromhex(one + "000000080000000000000003" + "00000008fffffffffffffffe")) == [3, -2]


def test_more_than_the_system_sends_at_once_is_sent_all_the_same() -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema="steps large")
        stories = [Story(PURE, f"r{number}") for number in range(12)]
        for story in stories:
            await story.write(store, created(), started(), lease=ME)
        for number in range(3):
            batches = [story.batch({**step(number), "input": f"{story.run_id}é" * 150_000}) for story in stories]
            calls = [store.commit([Append(batch, Lease("me", TTL, epoch=1))]) for batch in batches]
            for story, batch, (answer,) in zip(stories, batches, await asyncio.gather(*calls), strict=True):
                assert answer == Committed(3 + number, epoch=1)
                story.accept(batch)
                assert await store.history(story.run_id, 2 + number) == batch.lines
        await store.close()

    asyncio.run(test())


def test_a_caller_who_goes_away_leaves_the_store_to_the_others() -> None:
    async def test() -> None:
        store = await PostgresEventStore.connect(shared_server().url, schema="steps cancelled")
        stories = [Story(PURE, run_id) for run_id in "ab"]
        for story in stories:
            await story.write(store, created(), started(), lease=ME)
        held = Lease("me", TTL, epoch=1)
        for story in stories:
            await story.write(store, step(0), lease=held)
        batch = stories[0].batch(step(1))
        async with await psycopg.AsyncConnection.connect(shared_server().url) as other:
            await other.execute(store._database.sql("SELECT FROM @schema@.flow_runs FOR UPDATE").encode())
            first = asyncio.create_task(store.commit([Append(batch, held)]))
            await asyncio.sleep(0.01)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        # The first was on its way: it may have been committed or not, and says so when it is committed again.
        (answer,) = await store.commit([Append(batch, held)])
        assert isinstance(answer, Committed) or batch.event_ids[0].encode() in await store.history("a")
        assert (await stories[1].write(store, step(1), lease=held)).last_sequence == 4
        await store.close()

    asyncio.run(test())
