"""`StoreContract`: what every store must do, as a suite that third parties run on their own (spec 07, R47-R50).

    class TestMyStore(StoreContract):
        def make_store(self):
            return MyEventStore(..., clock=self.clock)

Any pytest collects it; each test runs its own event loop. Batches are made by a real kernel (`kernel`), so what a test
commits is what the engine commits. For readable failures, call in `conftest.py`, before it is imported,
`pytest.register_assert_rewrite("perdure.testing.store_contract", "perdure.testing._lease_contract")`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import cast

from perdure.errors import EventConflict, FlowError, HookTokenConflict, RunNotFound
from perdure.instant import MAX_NS, MIN_NS
from perdure.kernel import Batch, Run
from perdure.stores.base import ActiveHook, Append, Committed, FlowEventStore, RunFilter, RunRecord, RunSummary, Wakeup
from perdure.testing._lease_contract import LeaseContract
from perdure.testing._retention_contract import RetentionContract
from perdure.testing._runnable_contract import RunnableContract
from perdure.testing._store_suite import on_a_store, raised, told
from perdure.testing._stories import (
    SECOND,
    START,
    Draft,
    Story,
    child,
    created,
    hook,
    hook_done,
    random_drafts,
    started,
    token_hash,
    wait,
    wait_done,
)

__all__ = ["StoreContract"]

_RANK = {"wait": 0, "retry": 2}
_RETRY = {"max_attempts": 3, "delay_ms": 1000}


class StoreContract(LeaseContract, RetentionContract, RunnableContract):
    """Subclass it, say how a store is made, and let pytest collect it. Leases are tested by the class it extends."""

    # appends (scenario 61) -----------------------------------------------------------------------------------

    @on_a_store
    async def test_a_stale_append_conflicts_and_writes_nothing(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created())
        late = story.batch(started(), hook("h", "canary-late"), wait("w", START))
        await story.write(store, started())
        before = await self._everything(store)
        assert told(await store.commit([Append(late)])) == told([EventConflict("r", 1, 2)])
        assert await self._everything(store) == before

    @on_a_store
    async def test_of_two_writers_at_one_sequence_one_wins(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created())
        rival = await self.project(store, "r")
        batches = [story.batch(started()), rival.stage([b'{"type":"run_started"}'], START).append(bytes(16))]
        answers = await asyncio.gather(*(store.commit([Append(batch)]) for batch in batches))
        found = told([answer for (answer,) in answers])
        assert sorted(found) == told([Committed(2), EventConflict("r", 1, 2)])
        assert (await store.history("r")).count(b"\n") == 2

    @on_a_store
    async def test_a_run_is_created_once(self, store: FlowEventStore) -> None:
        first, second = self.story("r"), self.story("r")
        await first.write(store, created(), started())
        assert told(await store.commit([Append(second.batch(created()))])) == told([EventConflict("r", 0, 2)])

    @on_a_store
    async def test_an_append_to_an_unknown_run_conflicts(self, store: FlowEventStore) -> None:
        story = self.story("r")
        story.accept(story.batch(created()))
        assert told(await store.commit([Append(story.batch(started()))])) == told([EventConflict("r", 1, 0)])
        assert await store.run_ids() == []

    @on_a_store
    async def test_a_batch_without_events_conflicts_and_writes_nothing(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created())
        empty = story.batch()
        before = await self._everything(store)
        assert await store.commit([Append(empty)]) == [Committed(1)]
        assert await self._everything(store) == before
        await story.write(store, started())
        assert told(await store.commit([Append(empty)])) == told([EventConflict("r", 1, 2)])

    @on_a_store
    async def test_many_writers_at_once_leave_no_gap(self, store: FlowEventStore) -> None:
        async def writer(run_id: str) -> None:
            story = self.story(run_id)
            await story.write(store, created(), started())
            for turn in range(8):
                await story.write(store, wait(f"w{turn}", START + turn))

        run_ids = [f"run-{number:02}" for number in range(24)]
        await asyncio.gather(*map(writer, run_ids))
        assert await store.run_ids() == run_ids
        for run_id in run_ids:
            assert (await self.project(store, run_id)).last_sequence == 10

    # refusals in a group (R47, R48) --------------------------------------------------------------------------

    @on_a_store
    async def test_a_refusal_touches_its_batch_only(self, store: FlowEventStore) -> None:
        stories = [self.story(run_id) for run_id in ("c", "b", "a")]
        await stories[1].write(store, created())
        batches = [
            stories[0].batch(created()),
            self.story("b").batch(created()),
            stories[2].batch(created(), started()),
        ]
        expected: list[Committed | FlowError] = [Committed(1), EventConflict("b", 0, 1), Committed(2)]
        assert told(await store.commit(_appends(batches))) == told(expected)
        assert await store.run_ids() == ["a", "b", "c"]

    @on_a_store
    async def test_refusals_come_in_the_order_sequence_link_token(self, store: FlowEventStore) -> None:
        owner, story = self.story("owner"), self.story("r")
        await owner.write(store, created(), hook("h", "canary-taken"))
        stale = self.story("owner").batch(created(), child("c", "missing"), hook("h2", "canary-other"))
        both = story.batch(created(), hook("h", "canary-taken"), child("c", "missing"))
        token = story.batch(created(), hook("h", "canary-taken"))
        before = await self._everything(store)
        assert told(await store.commit([Append(stale)])) == told([EventConflict("owner", 0, 2)])
        assert told(await store.commit([Append(both)])) == told([RunNotFound("missing")])
        assert told(await store.commit([Append(token)])) == told([HookTokenConflict("canary-taken", "owner", "h")])
        assert await self._everything(store) == before

    @on_a_store
    async def test_batches_of_a_call_are_applied_in_run_id_order(self, store: FlowEventStore) -> None:
        later = self.story("b").batch(created(), hook("h", "canary-t"))
        earlier = self.story("a").batch(created(), hook("h", "canary-t"))
        expected: list[Committed | FlowError] = [HookTokenConflict("canary-t", "a", "h"), Committed(2)]
        assert told(await store.commit(_appends([later, earlier]))) == told(expected)

    @on_a_store
    async def test_two_batches_of_one_run_in_a_call_are_a_mistake(self, store: FlowEventStore) -> None:
        batch = self.story("r").batch(created())
        assert "'r'" in str(await raised(ValueError, store.commit([Append(batch), Append(batch)])))
        assert await store.run_ids() == []

    @on_a_store
    async def test_an_empty_call_answers_nothing(self, store: FlowEventStore) -> None:
        assert await store.commit([]) == []

    # links and tokens ----------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_link_needs_the_other_run_and_its_own_run_exists(self, store: FlowEventStore) -> None:
        story = self.story("a")
        await story.write(store, created(), child("self", "a"))
        missing = story.batch(child("other", "b"))
        assert told(await store.commit([Append(missing)])) == told([RunNotFound("b")])
        await self.story("b").write(store, created())
        await story.write(store, child("other", "b"), child("again", "b"))
        await story.write(store, child("third", "b"))
        assert story.run.last_sequence == 5

    @on_a_store
    async def test_a_token_is_free_again_once_its_hook_is_resolved(self, store: FlowEventStore) -> None:
        received = {"type": "hook_received", "hook_id": "h", "payload": None}
        requested = {"type": "run_cancellation_requested", "request": {}}
        endings: list[Draft] = [hook_done("h"), received, requested, {"type": "run_completed", "output": None}]
        for number, ending in enumerate(endings):
            owner, rival = self.story(f"owner-{number}"), self.story(f"rival-{number}")
            token = f"canary-{number}"
            await owner.write(store, created(), started(), hook("h", token))
            batch = rival.batch(created(), hook("h", token))
            expected = HookTokenConflict(token, owner.run_id, "h")
            assert told(await store.commit([Append(batch)])) == told([expected])
            await owner.write(store, ending)
            assert await store.commit([Append(batch)]) == [Committed(2)]
            assert await store.find_active_hooks(token_hash(token)) == [ActiveHook(rival.run_id, "h")]

    @on_a_store
    async def test_a_token_moves_to_another_hook_of_its_run_in_one_batch(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created(), hook("first", "canary-t"))
        await story.write(store, hook_done("first"), hook("second", "canary-t"))
        assert await store.find_active_hooks(token_hash("canary-t")) == [ActiveHook("r", "second")]
        await story.write(store, hook("brief", "canary-u"), hook_done("brief"))
        assert await store.find_active_hooks(token_hash("canary-u")) == []

    @on_a_store
    async def test_hooks_are_listed_by_run_and_hook(self, store: FlowEventStore) -> None:
        for run_id in ("b", "a"):
            story = self.story(run_id)
            await story.write(store, created(), hook("y", f"canary-{run_id}1"), hook("x", f"canary-{run_id}2"))
        expected = [ActiveHook(run_id, hook_id) for run_id in "ab" for hook_id in "xy"]
        assert await store.list_active_hooks() == expected
        assert await store.find_active_hooks(token_hash("canary-b1")) == [ActiveHook("b", "y")]
        assert await store.find_active_hooks(bytes(32)) == []

    @on_a_store
    async def test_no_token_is_shown(self, store: FlowEventStore) -> None:
        await self.story("a").write(store, created(), hook("h", "canary-hidden"))
        batch = self.story("b").batch(created(), hook("h", "canary-hidden"))
        shown = repr(
            [*await store.commit([Append(batch)]), store, batch, *batch.insert_hooks, *await store.list_active_hooks()]
        )
        assert "hidden" not in shown
        assert token_hash("canary-hidden").hex() not in shown

    # histories -----------------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_history_is_given_back_byte_for_byte_from_any_sequence(self, store: FlowEventStore) -> None:
        story = self.story("r")
        drafts = [
            [created(input="é\u2028\n\\ \x7f")],
            [started(), wait("a", 0), wait("b", 1)],
            [wait_done("a"), wait_done("b")],
        ]
        written = b""
        for group in drafts:
            batch = story.batch(*group)
            assert await store.commit([Append(batch)]) == [Committed(batch.last_sequence)]
            story.accept(batch)
            written += batch.lines
        lines = written.splitlines(keepends=True)
        assert len(lines) == 6
        for after in range(8):
            assert await store.history("r", after) == b"".join(lines[after:])

    @on_a_store
    async def test_an_unknown_run_has_no_history(self, store: FlowEventStore) -> None:
        await self.story("known").write(store, created())
        for after in (0, 7):
            assert (await raised(RunNotFound, store.history("unknown", after))).run_id == "unknown"

    @on_a_store
    async def test_a_reader_never_sees_part_of_a_batch(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created(), started(), wait("w", START))

        async def write() -> None:
            for turn in range(20):
                await story.write(store, *(wait(f"w{turn}-{member}", START + turn) for member in range(3)))

        writing = asyncio.create_task(write())
        while not writing.done():
            history, due = await store.history("r"), await store.list_due_wakeups(MAX_NS)
            assert history.endswith(b"\n")
            assert history.count(b"\n") % 3 == 0
            assert len(due) % 3 == 1
            await asyncio.sleep(0)
        await writing
        assert (await self.project(store, "r")).last_sequence == 63

    @on_a_store
    async def test_cancelled_callers_leave_whole_batches_and_harm_nobody(self, store: FlowEventStore) -> None:
        run_ids = [f"run-{number:02}" for number in range(30)]
        batches = {run_id: self.story(run_id).batch(created(), started()) for run_id in run_ids}
        calls = {run_id: asyncio.create_task(_commit(store, [batch])) for run_id, batch in batches.items()}
        await asyncio.sleep(0)
        for run_id in run_ids[::3]:
            calls[run_id].cancel()
        answers = await asyncio.gather(*calls.values(), return_exceptions=True)
        kept = [answer for answer in answers if not isinstance(answer, asyncio.CancelledError)]
        assert len(kept) >= 20
        assert all(answer == [Committed(2)] for answer in kept)
        await self.story("z").write(store, created())
        for run_id in await store.run_ids():
            assert (await self.project(store, run_id)).last_sequence == (1 if run_id == "z" else 2)

    # wakeups (scenario 66) -----------------------------------------------------------------------------------

    @on_a_store
    async def test_due_at_exactly_now_is_due_and_a_nanosecond_later_is_not(self, store: FlowEventStore) -> None:
        now = START + 123_456_789
        await self.story("r").write(store, created("build-7"), started(), wait("at", now), wait("after", now + 1))
        at = Wakeup("r", "wait", "at", now, "build-7")
        assert await store.list_due_wakeups(now - 1) == []
        assert await store.list_due_wakeups(now) == [at]
        assert await store.list_due_wakeups(now + 1) == [Wakeup("r", "wait", "after", now + 1, "build-7"), at]
        assert await store.next_scheduled_wakeup() == at

    @on_a_store
    async def test_wakeups_are_ordered_and_a_limit_takes_the_earliest(self, store: FlowEventStore) -> None:
        for run_id in ("b", "a"):
            story = self.story(run_id)
            step = {"type": "step_created", "step_id": "s", "step_name": "s", "input": None, "retry": _RETRY}
            begun = {"type": "step_started", "step_id": "s", "attempt": 1}
            again = {"type": "step_retrying", "step_id": "s", "attempt": 1, "error": "e"}
            retry = {**again, "retry_after": "2027-01-15T08:00:00Z"}  # START
            await story.write(store, created(), started(), step, begun, retry, wait("z", START), wait("y", START + 1))
        waits = [Wakeup(run, "wait", id, START + late) for run in "ab" for id, late in (("y", 1), ("z", 0))]
        retries = [Wakeup(run, "retry", "s", START) for run in "ab"]
        assert await store.list_due_wakeups(START + 1) == [*waits, *retries]
        assert await store.next_scheduled_wakeup() == waits[1]
        # The earliest three by (time, run, kind, subject) are a's wait z, a's retry and b's wait z.
        assert await store.list_due_wakeups(START + 1, limit=3) == [waits[1], waits[3], retries[0]]
        assert await store.list_due_wakeups(START + 1, limit=1) == [waits[1]]

    @on_a_store
    async def test_wakeups_keep_nanoseconds_at_both_ends_of_the_calendar(self, store: FlowEventStore) -> None:
        await self.story("r").write(store, created(), wait("first", MIN_NS), wait("last", MAX_NS))
        assert await store.next_scheduled_wakeup() == Wakeup("r", "wait", "first", MIN_NS)
        assert [wakeup.subject_id for wakeup in await store.list_due_wakeups(MAX_NS - 1)] == ["first"]
        assert [wakeup.scheduled_at for wakeup in await store.list_due_wakeups(MAX_NS)] == [MIN_NS, MAX_NS]

    @on_a_store
    async def test_a_wakeup_that_is_set_again_moves(self, store: FlowEventStore) -> None:
        story, other = self.story("r"), self.story("r")
        await story.write(store, created(), wait("w", START))
        later = other.batch(created(), wait("w", START + 5))
        moved = _Altered(story.batch(started()), upsert_wakeups=later.upsert_wakeups, changes_index=True)
        assert await store.commit([Append(cast(Batch, moved))]) == [Committed(3)]
        assert await store.list_due_wakeups(START + 4) == []
        assert await store.list_due_wakeups(START + 5) == [Wakeup("r", "wait", "w", START + 5)]
        assert await store.next_scheduled_wakeup() == Wakeup("r", "wait", "w", START + 5)

    @on_a_store
    async def test_resolved_work_and_ended_runs_have_no_wakeups(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created(), started(), wait("a", START), wait("b", START))
        await story.write(store, wait_done("a"))
        assert [wakeup.subject_id for wakeup in await store.list_due_wakeups(START)] == ["b"]
        await story.write(store, {"type": "run_completed", "output": None})
        assert await store.list_due_wakeups(MAX_NS) == []
        assert await store.next_scheduled_wakeup() is None

    # listings ------------------------------------------------------------------------------------------------

    @on_a_store
    async def test_runs_are_listed_in_pages_by_id_bytes(self, store: FlowEventStore) -> None:
        run_ids = ["B", "_", "a", "a-1", "b-2", "c"]
        for run_id in reversed(run_ids):
            await self.story(run_id).write(store, created())
        assert await store.run_ids() == run_ids
        for limit in (1, 2, 3, 6, 7):
            seen: list[str] = []
            after: str | None = None
            while True:
                page = await store.runs(after=after, limit=limit)
                assert len(page.runs) <= limit
                seen += [record.run_id for record in page.runs]
                if page.next is None:
                    break
                after = page.next
            assert seen == run_ids
        assert (await store.runs(after="c")).runs == ()

    @on_a_store
    async def test_a_filter_holds_in_every_field_given(self, store: FlowEventStore) -> None:
        await self.story("a").write(store, created("build-1"))
        await self.story("b").write(store, created("build-2", version="2"), started())
        await self.story("c").write(store, created(name="other"), started(), {"type": "run_failed", "error": "e"})
        for filter, expected in (
            (RunFilter(), "abc"),
            (RunFilter(status=("pending", "failed")), "ac"),
            (RunFilter(status=()), ""),
            (RunFilter(name="demo"), "ab"),
            (RunFilter(version="2"), "b"),
            (RunFilter(build="build-1"), "a"),
            (RunFilter(terminal=True), "c"),
            (RunFilter(terminal=False, name="demo", status=("running",)), "b"),
        ):
            assert "".join(record.run_id for record in (await store.runs(filter)).runs) == expected, filter
        assert [r.run_id for r in (await store.runs(RunFilter(terminal=False), after="a")).runs] == ["b"]

    @on_a_store
    async def test_a_limit_below_one_is_a_mistake(self, store: FlowEventStore) -> None:
        await raised(ValueError, store.runs(limit=0))
        await raised(ValueError, store.list_due_wakeups(START, limit=0))

    @on_a_store
    async def test_a_row_tells_the_run_as_it_stands(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created("build-1"), started(), hook("h", "canary-t"), wait("w", START))
        record = RunRecord("r", "demo", "1", "build-1", "suspended", False, 1, 1, 0, START, START, None, 4)
        assert (await store.runs()).runs == (record,)
        await story.write(store, {"type": "run_completed", "output": None})
        (ended,) = (await store.runs()).runs
        later = START + SECOND + 1
        assert (ended.status, ended.terminal, ended.last_sequence) == ("completed", True, 5)
        assert (ended.created_at, ended.updated_at, ended.ended_at) == (START, later, later)

    @on_a_store
    async def test_the_summary_counts_open_work_of_open_runs(self, store: FlowEventStore) -> None:
        assert await store.summary() == RunSummary()
        await self.story("a").write(store, created())
        await self.story("b").write(store, created(), started(), wait("w", START), hook("h", "canary-b"))
        ended = self.story("c")
        await ended.write(store, created(), started(), wait("w", START), hook("h", "canary-c"))
        await ended.write(store, {"type": "run_failed", "error": "e"})
        assert await store.summary() == RunSummary(
            total_runs=3,
            pending_runs=1,
            suspended_runs=1,
            failed_runs=1,
            terminal_runs=1,
            non_terminal_runs=2,
            open_waits=1,
            active_hooks=1,
        )

    # the index equals a replay (scenario 65) -----------------------------------------------------------------

    def test_on_random_traces_the_index_equals_a_replay(self) -> None:
        for seed in range(self.random_traces):
            asyncio.run(self._compare_on_a_random_trace(Random(seed)))

    @on_a_store
    async def test_closing_waits_for_what_is_queued_and_may_be_repeated(self, store: FlowEventStore) -> None:
        run_ids = [f"run-{number}" for number in range(8)]
        calls = [asyncio.create_task(_commit(store, [self.story(run_id).batch(created())])) for run_id in run_ids]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*calls) == [[Committed(1)]] * 8
        await store.close()
        again = self.open_again(store)
        assert await again.run_ids() == run_ids
        await again.close()

    async def _compare_on_a_random_trace(self, random: Random) -> None:
        store = self.make_store()
        await self._random_trace(store, random)
        await self._compare_with_replay(store)
        shown = await self._everything(store)
        await store.close()
        again = self.open_again(store)
        assert await self._everything(again) == shown
        await self._compare_with_replay(again)
        await self.story("one-more").write(again, created())
        await again.close()

    async def _random_trace(self, store: FlowEventStore, random: Random) -> None:
        """Commits random legal batches and foretells every answer."""
        stories = {run_id: self.story(run_id) for run_id in self.run_ids}
        tokens = [f"canary-{number}" for number in range(6)]
        for _ in range(50):
            chosen = random.sample(sorted(stories), random.randint(1, 3))
            batches = []
            for run_id in chosen:
                drafts = random_drafts(stories[run_id], random, tokens)
                if drafts:
                    batches.append(stories[run_id].batch(*drafts))
            answers = dict(zip((batch.run_id for batch in batches), await store.commit(_appends(batches)), strict=True))
            for batch in sorted(batches, key=lambda batch: batch.run_id):
                taken = any(self._holder(stories, batch.run_id, hook.token) for hook in batch.insert_hooks)
                answer = answers[batch.run_id]
                assert isinstance(answer, HookTokenConflict if taken else Committed), answer
                if not taken:
                    stories[batch.run_id].accept(batch)

    def _holder(self, stories: dict[str, Story], run_id: str, token: str) -> str | None:
        for other in stories.values():
            if other.run_id != run_id and any(hook.token == token for hook in other.run.active_hooks()):
                return other.run_id
        return None

    async def _compare_with_replay(self, store: FlowEventStore) -> None:
        runs = [await self.project(store, run_id) for run_id in await store.run_ids()]
        wakeups = [
            Wakeup(run.run_id, kind, subject_id, due, run.build_id)
            for run in runs
            for kind, subject_id, due in run.suspensions()
            if due is not None
        ]
        by_time = sorted(wakeups, key=lambda w: (w.scheduled_at, w.run_id, _RANK[w.kind], w.subject_id))
        assert await store.next_scheduled_wakeup() == (by_time[0] if by_time else None)
        for now in (START, START + 30 * SECOND, MAX_NS):
            due = [w for w in by_time if w.scheduled_at <= now]
            assert await store.list_due_wakeups(now) == _in_due_order(due)
            assert await store.list_due_wakeups(now, limit=2) == _in_due_order(due[:2])
        hooks = {(run.run_id, hook.hook_id): hook.token for run in runs for hook in run.active_hooks()}
        assert await store.list_active_hooks() == [ActiveHook(*key) for key in sorted(hooks)]
        for token in set(hooks.values()):
            holders = [ActiveHook(*key) for key in sorted(hooks) if hooks[key] == token]
            assert await store.find_active_hooks(token_hash(token)) == holders
        for run, record in zip(runs, (await store.runs()).runs, strict=True):
            self._compare_row(run, record)

    def _compare_row(self, run: Run, record: RunRecord) -> None:
        ended_at = run.updated_at if run.terminal else None
        assert (record.run_id, record.status, record.terminal) == (run.run_id, run.status, run.terminal)
        assert ((record.name, record.version), record.build) == (run.workflow, run.build_id)
        assert (record.created_at, record.updated_at, record.ended_at) == (START, run.updated_at, ended_at)
        assert record.last_sequence == run.last_sequence
        if not run.terminal:
            kinds = [kind for kind, _, _ in run.suspensions()]
            counters = (record.open_waits, record.active_hooks, record.pending_retries)
            assert counters == tuple(kinds.count(kind) for kind in ("wait", "hook", "retry"))

    async def _everything(self, store: FlowEventStore) -> list[object]:
        """All a store shows, to see that a refusal left no trace."""
        run_ids = await store.run_ids()
        return [
            {run_id: await store.history(run_id) for run_id in run_ids},
            await store.runs(limit=1000),
            await store.summary(),
            await store.list_due_wakeups(MAX_NS),
            await store.list_active_hooks(),
        ]


class _Altered:
    """A batch with some fields replaced."""

    def __init__(self, batch: Batch, **fields: object) -> None:
        self._batch, self._fields = batch, fields

    def __getattr__(self, name: str) -> object:
        return self._fields[name] if name in self._fields else getattr(self._batch, name)


async def _commit(store: FlowEventStore, batches: Sequence[Batch]) -> list[Committed | FlowError]:
    return list(await store.commit(_appends(batches)))


def _appends(batches: Iterable[Batch]) -> list[Append]:
    return [Append(batch) for batch in batches]


def _in_due_order(wakeups: list[Wakeup]) -> list[Wakeup]:
    return sorted(wakeups, key=lambda w: (_RANK[w.kind], w.run_id, w.subject_id))
