"""What every store must say to a scheduler and its operator: which runs are runnable (R3, R46), and how many there are of each
build."""

from __future__ import annotations

from random import Random

from perdure.stores.base import Claimed, FlowEventStore, Lease, Runnable, RunSummary
from perdure.testing._store_suite import StoreSuite, on_a_store
from perdure.testing._stories import SECOND, START, Draft, Story, created, random_drafts, started, wait, wait_done

__all__ = ["RunnableContract"]

_TTL = 30 * SECOND
_PARK = Lease("me", _TTL, claim="firm", after="park")
_HOLD = '{"code":"failing","reason":{},"workflow":"demo","version":"1","builds":[],"at":"2027-01-01T00:00:00Z"}'


class RunnableContract(StoreSuite):
    """Runs for which a scheduler sends tasks."""

    async def _ids(self, store: FlowEventStore, now: int | None = None) -> list[str]:
        page = await store.runnable(self.clock.ns if now is None else now)
        return [run.run_id for run in page.runs]

    @on_a_store
    async def test_a_new_run_is_runnable_and_a_parked_one_until_its_wait(self, store: FlowEventStore) -> None:
        story, due = self.story("r"), START + 5 * SECOND + 123
        assert await store.runnable(START) == (await store.runnable(START, limit=1))
        await story.write(store, created("build-1"))
        page = await store.runnable(self.clock.ns)
        assert page.runs == (Runnable("r", "build-1", 1, 0, 0),)
        assert (page.next, page.next_at) == (None, None)
        await story.write(store, started(), wait("a", due), wait("b", due + SECOND), lease=_PARK)
        page = await store.runnable(self.clock.ns)
        assert page.runs == ()
        assert page.next_at == -(-due // 1000) * 1000
        assert (await store.runnable(due)).runs == (Runnable("r", "build-1", 4, 1, 0),)
        assert (await store.runnable(due + SECOND)).runs == (Runnable("r", "build-1", 4, 2, 0),)

    @on_a_store
    async def test_a_wakeup_due_at_exactly_now_is_due(self, store: FlowEventStore) -> None:
        """The column of claims is rounded up to microseconds; the answer is exact to the nanosecond (scenario 66)."""
        for offset in (-1, 0, 1, 999):
            story, due = self.story(f"r{offset}".replace("-", "m")), START + SECOND + offset
            await story.write(store, created(), started(), wait("w", due), lease=_PARK)
        for now, ids in [
            (-2, ""),
            (-1, "rm1"),
            (0, "rm1 r0"),
            (1, "rm1 r0 r1"),
            (998, "rm1 r0 r1"),
            (999, "rm1 r0 r1 r999"),
        ]:
            assert sorted(await self._ids(store, START + SECOND + now)) == sorted(ids.split())

    @on_a_store
    async def test_leased_held_backing_off_and_ended_runs_are_left(self, store: FlowEventStore) -> None:
        for run_id in ("leased", "held", "failing", "ended", "open"):
            story = self.story(run_id)
            await story.write(store, created(), started())
            if run_id == "leased":
                await story.write(store, lease=Lease("other", _TTL, claim="firm"))
            if run_id == "failing":
                lease = Lease("me", _TTL, claim="firm", after="fail", counted=True, fraction=1.0)
                await story.write(store, lease=lease)
            if run_id == "ended":
                await story.write(store, {"type": "run_completed", "output": None})
        assert await store.set_hold("held", _HOLD, expected_sequence=2)
        assert await self._ids(store) == ["open"]
        # Leases and back-offs end by the store's clock, however late `now` is.
        assert await self._ids(store, self.clock.ns + 3600 * SECOND) == ["open"]
        self.clock.ns += SECOND
        assert await self._ids(store) == ["open", "failing"]
        self.clock.ns += _TTL
        assert await self._ids(store) == ["open", "failing", "leased"]
        assert await store.release_hold("held")
        assert sorted(await self._ids(store)) == ["failing", "held", "leased", "open"]

    @on_a_store
    async def test_pages_are_in_the_order_of_claims_and_the_last_says_what_comes(self, store: FlowEventStore) -> None:
        for number in range(5):
            story = self.story(f"r{number}")
            await story.write(store, created(), started(), wait("w", START + (9 - number) * SECOND), lease=_PARK)
        now, found, cursor = START + 7 * SECOND, list[str](), None
        while True:
            page = await store.runnable(now, after=cursor, limit=2)
            found += [run.run_id for run in page.runs]
            cursor = page.next
            if cursor is None:
                break
            assert page.next_at is None
        assert found == ["r4", "r3", "r2"]
        assert page.next_at == START + 8 * SECOND

    @on_a_store
    async def test_random_traces_agree_with_what_each_run_says_of_itself(self, store: FlowEventStore) -> None:
        for seed in range(self.random_traces):
            await self._trace(store, Random(f"runnable {seed}"), [f"{run_id}{seed}" for run_id in self.run_ids])

    async def _trace(self, store: FlowEventStore, random: Random, run_ids: list[str]) -> None:
        stories = [self.story(run_id) for run_id in run_ids]
        for _ in range(12):
            story = random.choice(stories)
            drafts = random_drafts(story, random, [f"canary-{story.run_id}-{n}" for n in range(3)])
            if not drafts:
                continue
            await self._write(store, story, drafts, random)
            self.clock.ns += random.randint(0, 3) * SECOND + random.randint(0, 1500)
            for now in (self.clock.ns, self.clock.ns + random.randint(-5, 60) * SECOND + random.randint(0, 1500)):
                page = await store.runnable(now)
                assert list(page.runs) == await self._expected(store, now)

    async def _write(self, store: FlowEventStore, story: Story, drafts: list[Draft], random: Random) -> None:
        state = await store.lease(story.run_id) if story.run.last_sequence else None
        lease = random.choice(
            (
                None,
                _PARK,
                Lease("me", _TTL, claim="take_over"),
                Lease("me", _TTL, claim="take_over", after="free"),
                Lease("me", _TTL, claim="take_over", after="fail", counted=True, fraction=random.random()),
            )
        )
        if lease is _PARK and state is not None and state.live:
            lease = Lease("me", _TTL, epoch=state.epoch, after="park")
        await story.write(store, *drafts, lease=lease)
        if random.random() < 0.1 and not story.run.terminal:
            await store.set_hold(story.run_id, _HOLD, expected_sequence=story.run.last_sequence)
        if random.random() < 0.1:
            await store.release_hold(story.run_id)

    async def _expected(self, store: FlowEventStore, now: int) -> list[Runnable]:
        """The slow way: every run's lease columns, and all due wakeups."""
        due = await store.list_due_wakeups(now)
        found: list[tuple[int, Runnable]] = []
        for row in (await store.runs(limit=1000)).runs:
            state = await store.lease(row.run_id)
            waits = sum(w.kind == "wait" and w.run_id == row.run_id for w in due)
            retries = sum(w.kind == "retry" and w.run_id == row.run_id for w in due)
            if row.terminal or state.hold is not None or state.claim_at is None or state.live:
                continue
            if state.not_before is not None and state.not_before > self.clock.ns:
                continue
            if state.claim_at * 1000 <= now or (waits + retries and state.claim_at <= -(-now // 1000)):
                found.append((state.claim_at, Runnable(row.run_id, row.build, row.last_sequence, waits, retries)))
        return [run for _, run in sorted(found, key=lambda item: (item[0], item[1].run_id))]

    @on_a_store
    async def test_a_claim_takes_what_is_listed(self, store: FlowEventStore) -> None:
        for number in range(3):
            await self.story(f"r{number}").write(store, created())
        assert await self._ids(store) == ["r0", "r1", "r2"]
        claimed = await store.claim("me", 2, ttl_ns=_TTL)
        assert claimed == [Claimed("r0", 1, 1), Claimed("r1", 1, 1)]
        assert await self._ids(store) == ["r2"]

    @on_a_store
    async def test_counts_by_build(self, store: FlowEventStore) -> None:
        assert await store.summary_by_build() == {}
        for run_id, build in (("a", "old"), ("b", "old"), ("c", "new"), ("d", None)):
            await self.story(run_id).write(store, created(build), started(), wait("w", START))
        story = self.story("e")
        await story.write(store, created("old"), started(), wait("w", START), wait_done("w"))
        await story.write(store, {"type": "run_completed", "output": None})
        found = await store.summary_by_build()
        one = RunSummary(total_runs=1, suspended_runs=1, non_terminal_runs=1, open_waits=1)
        assert found["new"] == found[None] == one
        assert (found["old"].total_runs, found["old"].non_terminal_runs, found["old"].completed_runs) == (3, 2, 1)
        assert sum(summary.total_runs for summary in found.values()) == (await store.summary()).total_runs
