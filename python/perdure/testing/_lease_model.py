"""R3's "runnable" as it is defined, without `claim_at`: an oracle for what stores keep as one column. A random trace compares
a store with it, and so does the simulator after each change it sees."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Final

from perdure.errors import FlowError, LeaseHeld, LeaseLost
from perdure.instant import parse_instant
from perdure.stores.base import Append, Claimed, Committed, FlowEventStore, Lease
from perdure.testing._store_suite import StoreClock
from perdure.testing._stories import SECOND, Draft, Story, created, wait, wait_done

__all__ = ["LeaseModel", "compare_on_a_random_trace", "hold_builds"]

_STEPS: Final = 120
_TTL: Final = 10 * SECOND
_MAX_FAILURES: Final = 3
_OWNERS: Final = ("me", "other")
_BUILDS: Final = ("b1", "b2")


@dataclass(slots=True)
class LeaseModel:
    """The lease of one run. Times in ns; what lies ahead is rounded up to microseconds, as stores keep it (R50)."""

    last_sequence: int = 0
    ended: bool = False
    owner: str | None = None
    epoch: int = 0
    expires: int = 0
    parked: int = -1
    failures: int = 0
    not_before: int | None = None
    hold: frozenset[str] | None = None
    """The builds that caused the hold."""
    waits: dict[str, int] = field(default_factory=dict)
    given_back: int = 0
    """When a lease ended that was renewed for no time, ns, rounded up."""
    owes_a_look: bool = True
    """Something other than a parking release happened since the last one."""

    def live(self, now: int) -> bool:
        return self.owner is not None and _past(now) < self.expires

    def runnable(self, now: int) -> bool:
        return (
            self.last_sequence > 0
            and not self.ended
            and self.hold is None
            and not self.live(now)
            and (self.not_before is None or self.not_before <= _past(now))
            and self.given_back <= _past(now)
            and (self.owes_a_look or any(_ahead(due) <= _past(now) for due in self.waits.values()))
        )

    def give(self, owner: str, ttl: int, now: int) -> None:
        """A claim."""
        self.owner, self.epoch, self.expires = owner, self.epoch + 1, _ahead(now + ttl)
        self.not_before, self.owes_a_look = None, True

    def claim(self, owner: str, ttl: int, now: int) -> tuple[int, bool]:
        """A worker's claim; gives what it is told of failures, and of one that it has to count (R44)."""
        expired, voided = self.owner is not None and self.owner != owner, self.not_before == 0
        lost = voided or (expired and self.failures > 0)
        self.give(owner, ttl, now)
        if expired and self.failures == 0:
            self.failures = 1
        return self.failures, lost

    def renew(self, ttl: int, now: int) -> None:
        if ttl == 0:
            self.free()
            self.given_back = _ahead(now)
        self.expires = _ahead(now + ttl)

    def free(self) -> None:
        """A release that is no parking one, a foreign append."""
        self.owner, self.not_before, self.owes_a_look = None, None, True

    def void(self) -> None:
        """The owner is dead."""
        self.free()
        if self.failures:
            self.not_before = 0
        else:
            self.failures = 1

    def release_hold(self) -> None:
        if self.hold is not None:
            self.hold, self.parked, self.failures, self.not_before, self.owes_a_look = None, -1, 0, None, True

    def commit(self, lease: Lease | None, has_events: bool, now: int) -> None:
        """What an accepted commit did. `last_sequence`, `ended` and `waits` are set before it."""
        holds = False
        if lease is not None:
            others = self.live(now) and self.owner != lease.owner
            claims = lease.claim in ("firm", "take_over") or (lease.claim == "if_free" and not others)
            holds = claims or lease.epoch is not None
            if claims:
                self.give(lease.owner, lease.ttl_ns, now)
        if lease is None or (not holds and self.live(now)):
            if has_events and self.owner is None:
                self.free()
        else:
            self._release(lease, holds, now)
        if self.ended:
            self.owner, self.hold, self.not_before = None, None, None

    def _release(self, lease: Lease, holds: bool, now: int) -> None:
        if lease.accepted:
            self.failures, self.not_before, self.hold = 0, None, None
        if self.ended:
            return
        if lease.hold is not None:
            self.hold = hold_builds(lease.hold)
        if lease.after == "keep" and holds:
            if self.expires < _ahead(now + lease.ttl_ns // 2):
                self.renew(lease.ttl_ns, now)
            return
        delay = int(lease.fraction * (min(600, 2 ** min(self.failures, 10)) * SECOND))
        self.free()
        if lease.after == "park":
            self.parked, self.owes_a_look = self.last_sequence, False
        elif lease.after == "fail" and lease.counted:
            self.failures, self.not_before = self.failures + 1, _ahead(now + delay)
            if lease.may_hold and lease.hold is None and self.failures >= lease.max_failures:
                self.hold = (self.hold or frozenset()) | ({lease.build} if lease.build else set())


@dataclass(slots=True)
class _Run(LeaseModel):
    story: Story = field(kw_only=True)


async def compare_on_a_random_trace(
    store: FlowEventStore, clock: StoreClock, stories: list[Story], random: Random
) -> None:
    """Does random things to the runs of `stories` and compares all that the store says of their leases after each."""
    trace = _Trace(store, clock, {story.run_id: _Run(story=story) for story in stories}, random)
    for _ in range(_STEPS):
        step = random.choice((*[trace.commit] * 6, trace.claim, trace.claim_held, trace.renew, trace.others))
        await step()
        await trace.compare()
        clock.ns += random.choice((0, 0, 1000, SECOND, 7 * SECOND, _TTL))


@dataclass(slots=True)
class _Trace:
    store: FlowEventStore
    clock: StoreClock
    runs: dict[str, _Run]
    random: Random

    async def compare(self) -> None:
        now = self.clock.ns
        claimable: set[str] = set()
        for run_id, run in self.runs.items():
            if not run.last_sequence:
                continue
            state = await self.store.lease(run_id)
            found = (state.owner, state.epoch, state.parked_sequence, state.failures, state.not_before)
            assert found == (run.owner, run.epoch, run.parked, run.failures, run.not_before), run
            assert (state.live, state.last_sequence) == (run.live(now), run.last_sequence)
            assert hold_builds(state.hold) == run.hold
            if state.claim_at is not None and state.claim_at * 1000 <= now and state.hold is None:
                claimable.add(run_id)
        assert claimable == {run_id for run_id, run in self.runs.items() if run.runnable(now)}

    async def commit(self) -> None:
        run, now = self.runs[self.random.choice(sorted(self.runs))], self.clock.ns
        if run.ended:
            return
        lease = self._lease(run)
        drafts = self._drafts(run)
        batch = run.story.batch(*drafts)
        (answer,) = await self.store.commit([Append(batch, lease)])
        refusal = _refusal(run, lease, now)
        if refusal is not None:
            assert isinstance(answer, refusal)
            return
        assert isinstance(answer, Committed), answer
        if drafts:
            run.story.accept(batch)
            run.last_sequence = batch.last_sequence
        for draft in drafts:
            self._note(run, draft)
        run.commit(lease, bool(drafts), now)
        keeps = lease is not None and lease.after == "keep" and run.owner == lease.owner
        claims = lease is not None and (lease.epoch is not None or lease.claim != "none")
        assert answer.epoch == (run.epoch if keeps and claims else None)

    def _lease(self, run: _Run) -> Lease | None:
        random = self.random
        if random.random() < 0.2:
            return None
        owner = random.choice(_OWNERS)
        return Lease(
            owner,
            _TTL,
            epoch=random.choice((None, run.epoch, run.epoch, run.epoch - 1)),
            claim=random.choice(("none", "firm", "if_free", "take_over")),
            unless_leased=random.random() < 0.2,
            after=random.choice(("keep", "keep", "park", "park", "free", "fail")),
            accepted=random.random() < 0.3,
            counted=random.random() < 0.7,
            fraction=random.choice((0.0, 0.25, 1.0)),
            may_hold=random.random() < 0.8,
            max_failures=_MAX_FAILURES,
            hold=json.dumps({"code": "c", "builds": ["b1"]}) if random.random() < 0.1 else None,
            build=random.choice((None, *_BUILDS)),
        )

    def _drafts(self, run: _Run) -> list[Draft]:
        random = self.random
        drafts: list[Draft] = [] if run.last_sequence else [created("b1")]
        if random.random() < 0.4:
            due = self.clock.ns + random.randint(-SECOND, 20 * SECOND)
            drafts.append(wait(f"w{run.story.clock}", due))
        if run.waits and random.random() < 0.4:
            drafts.append(wait_done(min(run.waits)))
        if run.last_sequence and random.random() < 0.02:
            drafts.append({"type": "run_failed", "error": "e"})
        return drafts

    def _note(self, run: _Run, draft: Draft) -> None:
        if draft["type"] == "wait_created":
            run.waits[str(draft["wait_id"])] = parse_instant(str(draft["resume_at"]))
        elif draft["type"] == "wait_completed":
            del run.waits[str(draft["wait_id"])]
        elif draft["type"] == "run_failed":
            run.ended = True

    async def claim(self) -> None:
        now, k, owner = self.clock.ns, self.random.randint(1, 3), self.random.choice(_OWNERS)
        order = [(claim_at, run_id) for run_id in self.runs if (claim_at := await self._claim_at(run_id)) is not None]
        expected = [run_id for _, run_id in sorted(order) if self.runs[run_id].runnable(now)][:k]
        self._given(await self.store.claim(owner, k, ttl_ns=_TTL), expected, owner, now)

    def _given(self, claimed: list[Claimed], expected: list[str], owner: str, now: int) -> None:
        assert [run.run_id for run in claimed] == expected
        for run in claimed:
            assert (run.failures, run.lost) == self.runs[run.run_id].claim(owner, _TTL, now)

    async def _claim_at(self, run_id: str) -> int | None:
        return (await self.store.lease(run_id)).claim_at if self.runs[run_id].last_sequence else None

    async def claim_held(self) -> None:
        now, build, owner = self.clock.ns, self.random.choice(_BUILDS), self.random.choice(_OWNERS)
        expected = [
            run_id
            for run_id, run in sorted(self.runs.items())
            if run.hold is not None and build not in run.hold and not run.live(now)
        ][:2]
        self._given(await self.store.claim_held(owner, 2, build=build, ttl_ns=_TTL), expected, owner, now)

    async def renew(self) -> None:
        owner = self.random.choice(_OWNERS)
        pairs = [(run_id, self.random.choice((run.epoch, run.epoch - 1))) for run_id, run in self.runs.items()]
        ttl = self.random.choice((_TTL, _TTL, 0))
        answers = await self.store.renew(owner, pairs, ttl_ns=ttl)
        for (run_id, epoch), answer in zip(pairs, answers, strict=True):
            run = self.runs[run_id]
            if (run.owner, run.epoch) == (owner, epoch):
                assert answer == (run_id, run.last_sequence)
                run.renew(ttl, self.clock.ns)
            else:
                assert isinstance(answer, LeaseLost)

    async def others(self) -> None:
        """A void, or a hold set or released by a host."""
        run_id = self.random.choice(sorted(self.runs))
        run, owner = self.runs[run_id], self.random.choice(_OWNERS)
        if not run.last_sequence or self.random.random() < 0.2:
            dead = [run for run in self.runs.values() if run.owner == owner]
            assert await self.store.void(owner) == len(dead)
            for run in dead:
                run.void()
        elif self.random.random() < 0.6:
            assert await self.store.release_hold(run_id) == (run.hold is not None)
            run.release_hold()
        else:
            hold = json.dumps({"code": "c", "builds": ["b2"]})
            allowed = not run.ended and not run.live(self.clock.ns)
            assert await self.store.set_hold(run_id, hold, expected_sequence=run.last_sequence) == allowed
            if allowed:
                run.hold = frozenset(["b2"])


def _refusal(run: _Run, lease: Lease | None, now: int) -> type[FlowError] | None:
    if lease is None:
        return None
    if lease.epoch is not None and (run.owner, run.epoch) != (lease.owner, lease.epoch):
        return LeaseLost
    others = run.live(now) and run.owner != lease.owner
    return LeaseHeld if others and (lease.claim == "firm" or lease.unless_leased) else None


def _ahead(ns: int) -> int:
    return -(-ns // 1000) * 1000


def _past(ns: int) -> int:
    return ns // 1000 * 1000


def hold_builds(hold: str | None) -> frozenset[str] | None:
    """The builds a hold names, None for no hold."""
    return None if hold is None else frozenset(json.loads(hold)["builds"])
