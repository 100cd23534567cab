"""Random traces of store calls, drawn once and made on every store alike, and how their answers are compared."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from perdure.errors import FlowError
from perdure.instant import MAX_NS, format_instant
from perdure.kernel import KernelName, load
from perdure.retention import RunSelection
from perdure.stores.base import After, Append, Claim, Committed, FlowEventStore, Lease, RunFilter, RunPage
from perdure.testing._store_suite import StoreClock
from perdure.testing._stories import SECOND, START, Draft, Story, child, created, hook, random_drafts, token_hash, wait

__all__ = ["Call", "Trace", "Traced", "answered", "questions"]

TTL: Final = 10 * SECOND
OWNERS: Final = ("me", "other")
TOKENS: Final = tuple(f"canary-{number}" for number in range(6))
CLAIMS: Final[tuple[Claim, ...]] = ("none", "none", "firm", "if_free", "take_over")
AFTERS: Final[tuple[After, ...]] = ("keep", "keep", "keep", "park", "park", "free", "fail", "fail")
HOLDS: Final = (
    '{"code":"nondeterministic","reason":{"é\\u0000":1},"builds":["build-2","build-1"]}',
    '{"code":"other"}',
    '{"builds":[]}',
)
STATUSES: Final = ("pending", "running", "suspended", "failed", "completed", "cancelled", "cancelling")
AT_ONCE: Final = 5
"""How many runs are open at a time; an ended one is followed by a new one."""


@dataclass(frozen=True)
class Call:
    """A method of the store and what it is given."""

    name: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    async def on(self, store: FlowEventStore) -> object:
        """What `store` answers, as a value that compares."""
        try:
            return answered(await getattr(store, self.name)(*self.args, **self.options))
        except (FlowError, ValueError) as error:
            return answered(error)


def answered(answer: object) -> object:
    """An answer with all its fields; of a refusal its class, fields and text."""
    if isinstance(answer, Exception):
        return (
            type(answer).__name__,
            answer.args,
            {name: repr(value) for name, value in vars(answer).items()},
            str(answer),
        )
    if isinstance(answer, list | tuple) and not hasattr(answer, "_fields"):
        return [answered(item) for item in answer]
    if isinstance(answer, dict):
        return sorted((repr(key), repr(value)) for key, value in answer.items())
    return repr(answer)


@dataclass
class Traced:
    """One store of several; the first is asked what the others must say."""

    name: str
    store: FlowEventStore


class Trace:
    """Draws calls and makes them on all stores. `oracle` is the store whose answers the runs' stories follow."""

    def __init__(self, stores: list[Traced], clock: StoreClock, kernel: KernelName, seed: int) -> None:
        self.stores, self.clock, self.random = stores, clock, Random(seed)
        self._kernel, self._made = load(kernel), 0
        self.stories: dict[str, Story] = {}
        self.open: list[str] = []
        self.stale: deque[Append] = deque(maxlen=8)
        self.log: deque[str] = deque(maxlen=6)
        """The last steps, for whoever reads a failure."""

    @property
    def oracle(self) -> FlowEventStore:
        return self.stores[0].store

    async def run(self, steps: int) -> None:
        """Makes as many random steps; after each, everything the stores say of the runs it touched is compared."""
        for number in range(steps):
            while len(self.open) < AT_ONCE:
                self._add_run()
            await self._step()
            self.clock.ns += self.random.choice((0, 0, 1, 999, 1000, SECOND + 1, 7 * SECOND, TTL))
            if number % 10 == 9:
                await self.compare(self.everything())

    def _add_run(self) -> None:
        # No two ids differ in case only: the JSONL store lets those exclude each other (R34).
        run_id = ("A", "b-2", "b", "c_", "Zz")[self._made % 5] + "-" * (self._made // 5)
        self._made += 1
        self.stories[run_id] = Story(self._kernel, run_id)
        self.open.append(run_id)

    # steps -----------------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        random = self.random
        choice = random.random()
        if choice < 0.08:
            await self._commit_at_once(random.sample(self.open, random.randint(2, AT_ONCE)))
        elif choice < 0.55:
            await self._commit(random.sample(self.open, random.randint(1, 4)))
        elif choice < 0.6 and self.stale:
            again = [
                random.choice(self.stale),
                Append(Story(self._kernel, random.choice(list(self.stories))).batch(created())),
            ]
            await self.compare(Call("commit", ([append],)) for append in again)
        elif choice < 0.68:
            await self.compare([self._of_retention(choice)])
        else:
            await self.compare([self._change(choice)])
        run_id = random.choice(list(self.stories))
        await self.compare([Call("lease", (run_id,)), Call("summary"), *random.sample(list(self.everything()), 3)])

    async def _commit(self, run_ids: list[str]) -> None:
        """One call with several batches, which may be in each other's way."""
        appends = [append for run_id in run_ids if (append := await self._append(run_id))]
        answers = await self.oracle.commit(appends)
        await self._compare_others(Call("commit", (appends,)), answered(answers))
        for append, answer in zip(appends, answers, strict=True):
            self._settle(append, answer)

    async def _commit_at_once(self, run_ids: list[str]) -> None:
        """Calls side by side, which a store may write as one group. Which of them would win is its choice, so none is in
        another's way."""
        appends = [append for run_id in run_ids if (append := await self._append(run_id)) and not _touches(append)]
        expected = [await self.oracle.commit([append]) for append in appends]
        for traced in self.stores[1:]:
            answers = await asyncio.gather(*(traced.store.commit([append]) for append in appends))
            assert answered(answers) == answered(expected), f"{traced.name} differs in {appends}"
        for append, (answer,) in zip(appends, expected, strict=True):
            self._settle(append, answer)

    def _settle(self, append: Append, answer: Committed | FlowError) -> None:
        story = self.stories[append.batch.run_id]
        self.stale.append(append)
        if isinstance(answer, Committed) and append.batch.lines:
            story.accept(append.batch)
            story.clock = max(story.clock, self.clock.ns)
            if story.run.terminal and story.run_id in self.open:
                self.open.remove(story.run_id)

    def _change(self, choice: float) -> Call:
        """A change of leases or holds."""
        random = self.random
        owner, run_id = random.choice(OWNERS), random.choice([*self.open, *self.stories, "missing"])
        if choice < 0.74:
            return Call("claim", (owner, random.randint(0, 4)), {"ttl_ns": TTL, **self._known()})
        if choice < 0.79:
            build = random.choice(("build-1", "build-2", "build-3"))
            return Call("claim_held", (owner, random.randint(1, 2)), {"build": build, "ttl_ns": TTL, **self._known()})
        if choice < 0.86:
            pairs = [(run_id, random.randint(0, 9)) for run_id in (*self.open, "missing")]
            return Call("renew", (owner, pairs), {"ttl_ns": random.choice((TTL, TTL, 0))})
        if choice < 0.89:
            return Call("void", (owner,))
        if choice < 0.95:
            sequence = self._last_sequence(run_id) - random.choice((0, 0, 0, 1))
            return Call("set_hold", (run_id, random.choice(HOLDS)), {"expected_sequence": sequence})
        return Call("release_hold", (run_id,))

    def _of_retention(self, choice: float) -> Call:
        """A prune, or a hold that keeps a history from it."""
        random = self.random
        held = (random.choice([*self.stories, "missing"]), random.choice(("h1", "h2", " ")))
        if choice < 0.63:
            cutoff = self.clock.ns - random.choice((0, SECOND, 40 * SECOND))
            options = {"batch": random.randint(1, 4), "dry_run": random.random() < 0.3}
            return Call("prune", (cutoff, RunSelection(name=random.choice((None, None, "demo")))), options)
        if choice < 0.66:
            return Call("hold_history", (*held, random.choice(("why", "é", ""))))
        return Call("release_history", held)

    def _last_sequence(self, run_id: str) -> int:
        return self.stories[run_id].run.last_sequence if run_id in self.stories else 1

    def _known(self) -> dict[str, Any]:
        """What a worker says it knows."""
        random = self.random
        return {
            "workflows": random.choice((None, None, [("demo", "1")], [("demo", "2"), ("other", "1")], [])),
            "builds": random.choice((None, None, ["build-1"], [None, "build-2"], [])),
            "besides": random.sample(list(self.stories), random.choice((0, 0, 1, 3))),
        }

    # a batch -------------------------------------------------------------------------------------------------------

    async def _append(self, run_id: str) -> Append | None:
        story = self.stories[run_id]
        if story.run.last_sequence and not story.run.terminal and self.random.random() < 0.3:
            return await self._moved_on(story)
        drafts = self._drafts(run_id)
        if not drafts and not story.run.last_sequence and self.random.random() < 0.7:
            return None
        return Append(story.batch(*drafts), await self._lease(story))

    async def _moved_on(self, story: Story) -> Append:
        """What most commits are: steps that begin and end under a lease that is kept. Stores have a short way for it."""
        random, number = self.random, story.run.last_sequence
        state = await self.oracle.lease(story.run_id)
        owner, epoch = state.owner or random.choice(OWNERS), random.choice((state.epoch, state.epoch, state.epoch + 1))
        step = {"step_id": f"s{number}", "step_name": "s", "input": "é", "retry": {"max_attempts": 1, "delay_ms": 0}}
        drafts: list[Draft] = [
            {"type": "step_created", **step},
            {"type": "step_started", "step_id": f"s{number}", "attempt": 1},
        ]
        batch = story.batch(*drafts[: random.randint(1, 2)])
        return Append(batch, Lease(owner, TTL, epoch=epoch, accepted=random.random() < 0.5))

    def _drafts(self, run_id: str) -> list[Draft]:
        story, random = self.stories[run_id], self.random
        if story.run.terminal or random.random() < 0.15:
            return []  # a change of the lease only
        drafts = random_drafts(story, random, TOKENS)
        number = story.run.last_sequence
        extra: list[Draft] = []
        if random.random() < 0.3:
            extra.append(wait(f"w{number}", self.clock.ns + random.randint(-SECOND, 20 * SECOND)))
        extra += self._retried_again(story)
        if random.random() < 0.3:
            extra.append(hook(f"h{number}", random.choice(TOKENS)))
        if random.random() < 0.25:
            extra.append(child(f"c{number}", random.choice([*self.stories, "missing"])))
        if number and random.random() < 0.02:
            extra.append({"type": "run_failed", "error": "e"})
        return drafts + extra if self._is_legal(story, drafts + extra) else drafts

    def _retried_again(self, story: Story) -> list[Draft]:
        """A delayed retry that runs and is put off once more, in one batch: its wakeup moves."""
        retries = [subject for kind, subject, _ in story.run.suspensions() if kind == "retry"]
        step = story.run.step(self.random.choice(retries)) if retries else None
        if step is None:
            return []
        attempt = {"step_id": step.step_id, "attempt": step.attempt + 1}
        due = format_instant(self.clock.ns + self.random.randint(0, 20 * SECOND))
        return [
            {"type": "step_started", **attempt},
            {"type": "step_retrying", **attempt, "error": "e", "retry_after": due},
        ]

    def _is_legal(self, story: Story, drafts: list[Draft]) -> bool:
        try:
            story.batch(*drafts)
        except FlowError:
            return False
        return True

    async def _lease(self, story: Story) -> Lease | None:
        random = self.random
        if random.random() < 0.2:
            return None
        owner, epoch = random.choice(OWNERS), random.choice((None, None, None, 0, 1))
        if story.run.last_sequence and random.random() < 0.5:
            state = await self.oracle.lease(story.run_id)  # most drives hold what they say
            owner, epoch = state.owner or owner, None if state.owner is None else state.epoch
        return Lease(
            owner,
            TTL + random.choice((0, 1, 999)),
            epoch=epoch,
            claim=random.choice(CLAIMS),
            unless_leased=random.random() < 0.1,
            after=random.choice(AFTERS),
            accepted=random.random() < 0.2,
            counted=random.random() < 0.8,
            fraction=random.random(),
            may_hold=random.random() < 0.8,
            max_failures=3,
            hold=random.choice(HOLDS) if random.random() < 0.1 else None,
            build=random.choice((None, 'b"\\é', "build-1")),
        )

    # comparing -----------------------------------------------------------------------------------------------------

    async def compare(self, calls: Iterable[Call]) -> None:
        """Makes each call on every store and compares what they answer."""
        for call in calls:
            await self._compare_others(call, await call.on(self.oracle))

    async def _compare_others(self, call: Call, expected: object) -> None:
        for traced in self.stores[1:]:
            found = await call.on(traced.store)
            assert found == expected, f"{traced.name} answers {found} to {call}; before it: {list(self.log)}"
        self.log.append(f"{call} -> {expected}"[:500])

    def everything(self) -> Iterator[Call]:
        """Every question, about every run."""
        return questions(list(self.stories), self.clock.ns, self.random)


def _touches(append: Append) -> bool:
    """Whether it may decide over another run's batch, or another over it."""
    return bool(append.batch.insert_hooks or append.batch.links)


def questions(run_ids: list[str], now: int, random: Random) -> Iterator[Call]:
    """Every question that a store answers, with arguments drawn anew."""
    for run_id in (*run_ids, "missing"):
        yield Call("lease", (run_id,))
        yield Call("history", (run_id,))
        yield Call("history", (run_id, random.randint(-1, 60)))
    for at in (START, now, random.randint(START, now + 30 * SECOND), MAX_NS):
        yield Call("list_due_wakeups", (at,))
        yield Call("list_due_wakeups", (at, random.randint(0, 4)))
    yield Call("next_scheduled_wakeup")
    yield Call("list_active_hooks")
    for token in (*TOKENS, "canary-free"):
        yield Call("find_active_hooks", (token_hash(token),))
    yield Call("run_ids")
    yield Call("summary")
    yield Call("summary_by_build")
    yield Call("history_holds", (random.choice((None, *run_ids)),), {"limit": random.randint(1, 3)})
    yield Call("tombstone", (random.choice(run_ids),))
    yield Call("runnable", (random.choice((now, now - SECOND)),), {"limit": random.randint(1, 4)})
    yield Call("last_sequences", (random.choices([*run_ids, "missing"], k=random.randint(0, 5)),))
    yield Call("next_claim", (), {"workflows": random.choice((None, [("demo", "1")], []))})
    builds = random.choice((None, [None], ["build-1", "build-2"], []))
    yield Call("next_claim", (), {"builds": builds})
    yield Call("outlook", (), {"builds": builds, "besides": random.sample(run_ids, 1)})
    for _ in range(4):
        after = random.choice((None, "", random.choice([*run_ids, "b", "~"])))
        yield Call("runs", (_filter(random),), {"after": after, "limit": random.randint(0, 6)})


def _filter(random: Random) -> RunFilter:
    return RunFilter(
        status=random.choice((None, None, ("failed",), tuple(random.sample(STATUSES, 3)), ())),
        name=random.choice((None, None, "demo", "other", "none")),
        version=random.choice((None, None, "1", "2")),
        build=random.choice((None, None, "build-1", "build-2")),
        terminal=random.choice((None, None, True, False)),
        held=random.choice((None, None, True, False)),
    )


async def listed(store: FlowEventStore, filter: RunFilter, limit: int) -> list[str]:
    """The ids of a listing, page after page."""
    found: list[str] = []
    page = RunPage((), "")
    while page.next is not None:
        page = await store.runs(filter, after=page.next or None, limit=limit)
        assert len(page.runs) <= limit
        found += [row.run_id for row in page.runs]
    return found
