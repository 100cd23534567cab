"""The rules of leases in SQL beside those in Python: one random trace through PostgreSQL and memory, and no difference."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

import pytest

from perdure.errors import FlowError
from perdure.instant import MAX_NS
from perdure.kernel import load
from perdure.stores import MemoryEventStore, PostgresEventStore
from perdure.stores.base import After, Append, Claim, Committed, FlowEventStore, Lease
from perdure.testing._store_suite import StoreClock
from perdure.testing._stories import SECOND, Draft, Story, child, created, hook, hook_done, wait, wait_done
from perdure.testing.postgres import shared_server

TTL: Final = 10 * SECOND
STEPS: Final = 200
RUN_IDS: Final = ("A", "a", "b-2", "b", "c_")
OWNERS: Final = ("me", "other")
CLAIMS: Final[tuple[Claim, ...]] = ("none", "none", "firm", "if_free", "take_over")
AFTERS: Final[tuple[After, ...]] = ("keep", "keep", "park", "free", "fail", "fail")
HOLDS: Final = (
    '{"code":"nondeterministic","reason":{"é\\u0000":1},"builds":["b2","b1"]}',
    '{"code":"other"}',
    '{"builds":[]}',
)


@dataclass
class Twins:
    """Both stores, and the runs as they both have them."""

    stores: tuple[FlowEventStore, FlowEventStore]
    clock: StoreClock
    random: Random
    stories: dict[str, Story]

    async def step(self) -> None:
        random = self.random
        choice = random.random()
        if choice < 0.6:
            await self.commit()
        elif choice < 0.7:
            await self.compare_call("claim", random.choice(OWNERS), random.randint(1, 3), ttl_ns=TTL, **self.known())
        elif choice < 0.76:
            build = random.choice(("b1", "b2", "b3"))
            await self.compare_call("claim_held", random.choice(OWNERS), 2, build=build, ttl_ns=TTL, **self.known())
        elif choice < 0.84:
            pairs = [(run_id, random.randint(0, 9)) for run_id in (*RUN_IDS, "missing")]
            await self.compare_call("renew", random.choice(OWNERS), pairs, ttl_ns=TTL)
        elif choice < 0.88:
            await self.compare_call("void", random.choice(OWNERS))
        elif choice < 0.94:
            run_id = random.choice(RUN_IDS)
            sequence = self.stories[run_id].run.last_sequence - random.choice((0, 0, 0, 1))
            await self.compare_call("set_hold", run_id, random.choice(HOLDS), expected_sequence=sequence)
        else:
            await self.compare_call("release_hold", random.choice(RUN_IDS))

    def known(self) -> dict[str, object]:
        """What a worker says it knows."""
        workflows = self.random.choice((None, [("demo", "1")], [("demo", "2"), ("demo", "1")], []))
        return {"workflows": workflows, "builds": self.random.choice((None, None, ["b1"], [None, "b2"]))}

    async def commit(self) -> None:
        run_ids = self.random.sample(RUN_IDS, self.random.randint(1, 3))
        appends = []
        for run_id in run_ids:
            story, drafts = self.stories[run_id], self.drafts(run_id)
            if drafts or story.run.last_sequence:
                appends.append(Append(story.batch(*drafts), await self.lease(run_id)))
        ours, theirs = [await store.commit(appends) for store in self.stores]
        assert [told(answer) for answer in ours] == [told(answer) for answer in theirs]
        for append, answer in zip(appends, ours, strict=True):
            if isinstance(answer, Committed) and append.batch.lines:
                self.stories[append.batch.run_id].accept(append.batch)

    def drafts(self, run_id: str) -> list[Draft]:
        random, run = self.random, self.stories[run_id].run
        if run.terminal or random.random() < 0.2:
            return []  # a change of the lease only
        number = run.last_sequence
        drafts: list[Draft] = [] if number else [created(random.choice((None, "b1", "b2")))]
        waits = [subject for kind, subject, _ in run.suspensions() if kind == "wait"]
        hooks = [hook.hook_id for hook in run.active_hooks()]
        if random.random() < 0.5:
            drafts.append(wait(f"w{number}", self.clock.ns + random.randint(-SECOND, 20 * SECOND)))
        if waits and random.random() < 0.5:
            drafts.append(wait_done(random.choice(waits)))
        if hooks and random.random() < 0.4:
            drafts.append(hook_done(random.choice(hooks)))
        if random.random() < 0.4:
            drafts.append(hook(f"h{number}", f"canary-{random.randint(0, 4)}"))
        if random.random() < 0.2:
            drafts.append(child(f"c{number}", random.choice(RUN_IDS)))
        if number and random.random() < 0.03:
            drafts.append({"type": "run_failed", "error": "e"})
        return drafts if self.is_legal(run_id, drafts) else []

    def is_legal(self, run_id: str, drafts: list[Draft]) -> bool:
        """Whether the kernel takes them; a token twice in one run it does not."""
        try:
            self.stories[run_id].batch(*drafts)
        except FlowError:
            return False
        return True

    async def lease(self, run_id: str) -> Lease | None:
        random = self.random
        if random.random() < 0.2:
            return None
        exists = self.stories[run_id].run.last_sequence > 0
        epoch = (await self.stores[0].lease(run_id)).epoch if exists else 0
        return Lease(
            random.choice(OWNERS),
            TTL + random.choice((0, 1, 999)),
            epoch=random.choice((None, epoch, epoch, epoch - 1)),
            claim=random.choice(CLAIMS),
            unless_leased=random.random() < 0.1,
            after=random.choice(AFTERS),
            accepted=random.random() < 0.2,
            counted=random.random() < 0.8,
            fraction=random.random(),
            may_hold=random.random() < 0.8,
            max_failures=3,
            hold=random.choice(HOLDS) if random.random() < 0.1 else None,
            build=random.choice((None, 'b"\\é', "b1")),
        )

    async def compare_call(self, name: str, *args: object, **options: object) -> None:
        ours, theirs = [await _answer(store, name, args, options) for store in self.stores]
        assert ours == theirs, name

    async def compare(self) -> None:
        for run_id in RUN_IDS:
            await self.compare_call("lease", run_id)
            await self.compare_call("history", run_id)
        for name in ("runs", "summary", "next_claim", "next_scheduled_wakeup", "list_active_hooks"):
            await self.compare_call(name)
        await self.compare_call("list_due_wakeups", MAX_NS)


async def _answer(store: FlowEventStore, name: str, args: tuple[object, ...], options: dict[str, object]) -> object:
    try:
        answer = await getattr(store, name)(*args, **options)
    except FlowError as error:
        return told(error)
    return [told(item) for item in answer] if isinstance(answer, list) else answer


def told(answer: object) -> object:
    """An answer as a value that compares: errors by class and fields, commits with all of theirs."""
    if isinstance(answer, FlowError):
        return type(answer).__name__, answer.args
    return repr(answer)


@pytest.mark.parametrize(("kernel", "seed"), [("rust", 0), ("rust", 1), ("pure", 2)])
def test_one_trace_leaves_both_stores_alike(kernel: Literal["rust", "pure"], seed: int) -> None:
    async def test() -> None:
        clock = StoreClock()
        postgres = PostgresEventStore(shared_server().url, clock, schema=f"twin {kernel} {seed}")
        stories = {run_id: Story(load(kernel), run_id) for run_id in RUN_IDS}
        twins = Twins((postgres, MemoryEventStore(clock)), clock, Random(seed), stories)
        for _ in range(STEPS):
            await twins.step()
            await twins.compare()
            clock.ns += twins.random.choice((0, 0, 1, 1000, SECOND + 1, 7 * SECOND, TTL))
        await postgres.close()

    asyncio.run(test())
