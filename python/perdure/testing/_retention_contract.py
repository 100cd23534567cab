"""The part of the store suite about pruning and retention holds (R51, spec 7.7)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from random import Random
from typing import Final

from perdure.errors import FlowError, RunConflict, RunNotFound
from perdure.instant import MAX_NS
from perdure.retention import PrunedRuns, PruneProgress, PruneReport, RunSelection
from perdure.stores.base import Append, Committed, FlowEventStore, RunFilter, RunSummary
from perdure.testing._store_suite import StoreSuite, on_a_store, raised
from perdure.testing._stories import SECOND, START, Draft, Story, child, created, hook, started, token_hash, wait

__all__ = ["RetentionContract"]

ENDED: Final[Draft] = {"type": "run_completed", "output": None}
FAILED: Final[Draft] = {"type": "run_failed", "error": "e"}
LATER: Final = START + 3600 * SECOND
"""After everything that a test writes."""


def ids(pruned: PrunedRuns) -> list[str]:
    """All ids of a small report."""
    assert pruned.count == len(pruned.first)
    return sorted(pruned.first)


@dataclass
class _Node:
    """A run of a random graph."""

    status: str
    last: int
    held: bool
    linked: set[str]

    def may_go(self, cutoff: int, wanted: RunSelection) -> bool:
        """Whether the run itself may be deleted."""
        meant = wanted.status is None or self.status in wanted.status
        return meant and self.status != "pending" and self.last < cutoff and not self.held


class RetentionContract(StoreSuite):
    """What every store must do with pruning and retention holds."""

    async def ended(self, store: FlowEventStore, run_id: str, *drafts: Draft, end: Draft = ENDED) -> Story:
        """A run that has ended."""
        story = self.story(run_id)
        await story.write(store, created(), started(), *drafts, end)
        return story

    # what goes -----------------------------------------------------------------------------------------------

    @on_a_store
    async def test_scenario_67_linked_runs_stay_together_a_hold_keeps_them_and_a_pruned_id_stays_used(
        self, store: FlowEventStore
    ) -> None:
        parent = self.story("parent")
        await self.ended(store, "kid")
        await parent.write(store, created(), started(), child("c", "kid"))
        await self.ended(store, "alone")
        report = await store.prune(LATER)
        assert (ids(report.deleted), ids(report.referenced), ids(report.non_terminal)) == (
            ["alone"],
            ["kid"],
            ["parent"],
        )

        await parent.write(store, ENDED)
        assert await store.hold_history("kid", "audit", "case 7")
        report = await store.prune(LATER)
        assert (ids(report.deleted), ids(report.held), ids(report.referenced)) == ([], ["kid"], ["parent"])
        assert await store.run_ids() == ["kid", "parent"]

        assert await store.release_history("kid", "audit")
        assert ids((await store.prune(LATER)).deleted) == ["kid", "parent"]
        assert await store.run_ids() == []
        for run_id in ("alone", "kid", "parent"):
            refused = await raised(RunConflict, self.story(run_id).write(store, created()))
            assert refused.reason == "pruned"
            await raised(RunNotFound, store.history(run_id))

    @on_a_store
    async def test_a_run_goes_if_its_last_event_lies_strictly_before_the_cutoff(self, store: FlowEventStore) -> None:
        await self.ended(store, "r")
        assert ids((await store.prune(START)).too_recent) == ["r"]
        assert ids((await store.prune(START + 1)).deleted) == ["r"]

    @on_a_store
    async def test_an_open_run_stays_whatever_its_age(self, store: FlowEventStore) -> None:
        await self.story("open").write(store, created(), started(), wait("w", START))
        report = await store.prune(MAX_NS)
        assert (ids(report.non_terminal), report.deleted.count) == (["open"], 0)
        assert await store.history("open")

    @on_a_store
    async def test_links_count_in_both_directions_and_over_any_distance(self, store: FlowEventStore) -> None:
        await self.ended(store, "d")
        await self.ended(store, "c", child("x", "d"))
        await self.ended(store, "b", child("x", "c"), child("self", "b"))
        late = self.story("a")
        late.clock = LATER
        await late.write(store, created(), child("x", "b"), ENDED)
        report = await store.prune(LATER)
        assert (ids(report.referenced), ids(report.too_recent)) == (["b", "c", "d"], ["a"])
        report = await store.prune(LATER + 1)
        assert ids(report.deleted) == ["a", "b", "c", "d"]

    @on_a_store
    async def test_runs_with_a_common_relative_are_one_component(self, store: FlowEventStore) -> None:
        await self.ended(store, "hub")
        for number in range(12):
            await self.ended(store, f"r{number}", child("x", "hub"))
        await self.story("open").write(store, created(), child("x", "r3"))
        report = await store.prune(LATER, batch=2)
        assert (report.referenced.count, report.deleted.count) == (13, 0)

    @on_a_store
    async def test_a_linked_run_that_the_filter_leaves_out_keeps_its_component(self, store: FlowEventStore) -> None:
        await self.ended(store, "kid", end=FAILED)
        await self.ended(store, "parent", child("x", "kid"))
        for filter in (
            RunSelection(status=("completed",)),
            RunSelection(run_ids=("parent",)),
            RunSelection(prefix="p"),
        ):
            report = await store.prune(LATER, filter)
            assert (ids(report.referenced), report.deleted.count) == (["parent"], 0)
        report = await store.prune(LATER, RunSelection(status=("completed", "failed"), run_ids=("kid", "parent")))
        assert ids(report.deleted) == ["kid", "parent"]

    @on_a_store
    async def test_a_filter_says_which_runs_are_meant(self, store: FlowEventStore) -> None:
        for run_id, name, version, end in (
            ("a1", "demo", "1", ENDED),
            ("a2", "demo", "2", FAILED),
            ("a3", "other", "1", ENDED),
            ("b1", "demo", "1", ENDED),
            ("b2", "demo", "1", ENDED),
        ):
            await self.story(run_id).write(store, created(name=name, version=version), end)
        for filter, meant in (
            (RunSelection(status=("failed",)), ["a2"]),
            (RunSelection(name="other"), ["a3"]),
            (RunSelection(name="demo", version="2"), ["a2"]),
            (RunSelection(prefix="b"), ["b1", "b2"]),
            (RunSelection(prefix="a", version="1"), ["a1", "a3"]),
            (RunSelection(prefix="b1"), ["b1"]),
            (RunSelection(prefix="c"), []),
            (RunSelection(run_ids=("b2", "a1", "b2")), ["a1", "b2"]),
            (RunSelection(run_ids=("a1", "a2"), status=("failed",)), ["a2"]),
            (RunSelection(), ["a1", "a2", "a3", "b1", "b2"]),
        ):
            assert ids((await store.prune(LATER, filter, dry_run=True, batch=2)).deleted) == meant, filter
        assert ids((await store.prune(LATER, RunSelection(prefix="b"))).deleted) == ["b1", "b2"]
        assert await store.run_ids() == ["a1", "a2", "a3"]

    @on_a_store
    async def test_an_id_that_never_was_is_named_before_anything_is_deleted(self, store: FlowEventStore) -> None:
        await self.ended(store, "r")
        error = await raised(RunNotFound, store.prune(LATER, RunSelection(run_ids=("r", "never"))))
        assert error.run_id == "never"
        assert await store.run_ids() == ["r"]
        for _ in range(2):  # one that was pruned is no error
            await store.prune(LATER, RunSelection(run_ids=("r",)))

    # what is left --------------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_tombstone_has_the_digest_of_the_stored_lines(self, store: FlowEventStore) -> None:
        story = await self.ended(store, "r", hook("h", "canary-1"), wait("w", LATER))
        lines = await store.history("r")
        self.clock.ns = LATER
        await store.prune(LATER)
        left = await store.tombstone("r")
        assert left is not None
        assert left.history_sha256 == hashlib.sha256(lines).hexdigest()
        assert left.terminal_event_id == json.loads(lines.splitlines()[-1])["event_id"]
        assert (left.run_id, left.terminal_sequence, left.deleted_at) == ("r", story.run.last_sequence, LATER)
        assert await store.tombstone("other") is None

    @on_a_store
    async def test_nothing_of_a_pruned_run_is_shown_and_its_token_is_free(self, store: FlowEventStore) -> None:
        await self.ended(store, "r", hook("h", "canary-1"), wait("w", LATER))
        await store.hold_history("r", "h", "why")
        await store.release_history("r", "h")
        await store.prune(LATER)
        assert await store.run_ids() == []
        assert (await store.runs()).runs == (await store.runs(RunFilter(terminal=True))).runs == ()
        assert await store.summary() == RunSummary()
        assert (await store.list_due_wakeups(MAX_NS), await store.list_active_hooks()) == ([], [])
        assert await store.last_sequences(["r"]) == {}
        assert await store.claim("me", 10, ttl_ns=SECOND) == []
        await raised(RunNotFound, store.lease("r"))
        await raised(RunNotFound, store.history("r"))
        await self.story("s").write(store, created(), hook("h", "canary-1"))
        assert [found.run_id for found in await store.find_active_hooks(token_hash("canary-1"))] == ["s"]

    @on_a_store
    async def test_a_pruned_run_takes_neither_events_nor_links(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created(), started())
        late = story.batch(wait("w", START))
        await story.write(store, ENDED)
        await store.prune(LATER)
        (answer,) = await store.commit([Append(late)])
        assert isinstance(answer, RunConflict) and answer.reason == "pruned"
        assert (await raised(RunNotFound, self.story("p").write(store, created(), child("x", "r")))).run_id == "r"

    @on_a_store
    async def test_after_opening_again_tombstones_and_holds_are_there(self, store: FlowEventStore) -> None:
        await self.ended(store, "gone")
        await self.ended(store, "kept")
        await store.hold_history("kept", "h", "why")
        await store.prune(LATER)
        left = await store.tombstone("gone")
        holds = await store.history_holds()
        await store.close()
        again = self.open_again(store)
        try:
            assert await again.tombstone("gone") == left is not None
            assert await again.history_holds() == holds
            assert (await raised(RunConflict, self.story("gone").write(again, created()))).reason == "pruned"
            assert ids((await again.prune(LATER)).held) == ["kept"]
            await again.release_history("kept", "h")
            assert ids((await again.prune(LATER)).deleted) == ["kept"]
        finally:
            await again.close()

    # how it goes ---------------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_dry_run_says_the_same_and_changes_nothing(self, store: FlowEventStore) -> None:
        for number in range(5):
            await self.ended(store, f"r{number}", *([child("x", f"r{number - 1}")] if number % 2 else []))
        await self.story("open").write(store, created())
        await store.hold_history("r0", "h", "why")
        before = await store.runs(), await store.changes()
        dry = await store.prune(LATER, dry_run=True)
        assert (await store.runs(), await store.changes()) == before
        wet = await store.prune(LATER)
        assert dry.dry_run and dry == PruneReport(
            True, wet.deleted, wet.held, wet.referenced, wet.non_terminal, wet.too_recent, wet.changed
        )
        assert (ids(wet.deleted), ids(wet.held), ids(wet.referenced)) == (["r2", "r3", "r4"], ["r0"], ["r1"])

    @on_a_store
    async def test_a_prune_that_was_cut_short_is_finished_by_the_next(self, store: FlowEventStore) -> None:
        for number in range(9):
            await self.ended(store, f"r{number}", *([child("x", f"r{number - 1}")] if number % 3 else []))

        class Stop(Exception):
            pass

        def stop(done: PruneProgress) -> None:
            if done.deleted:
                raise Stop

        await raised(Stop, store.prune(LATER, batch=3, progress=stop))
        left = await store.run_ids()
        assert 0 < len(left) < 9 and len(left) % 3 == 0  # components are whole
        assert ids((await store.prune(LATER, batch=3)).deleted) == left
        assert await store.run_ids() == []
        assert all([await store.tombstone(f"r{number}") is not None for number in range(9)])

    async def _hub(self, store: FlowEventStore) -> list[str]:
        """Twelve runs in one component."""
        await self.ended(store, "hub")
        run_ids = [f"r{number:02}" for number in range(11)]
        for run_id in run_ids:
            await self.ended(store, run_id, child("x", "hub"))
        return ["hub", *run_ids]

    @on_a_store
    async def test_a_component_larger_than_a_batch_goes_in_parts_and_can_be_cut_short(
        self, store: FlowEventStore
    ) -> None:
        run_ids = await self._hub(store)

        class Stop(Exception):
            pass

        def stop(done: PruneProgress) -> None:
            if done.deleted:
                raise Stop

        await raised(Stop, store.prune(LATER, batch=5, progress=stop))
        left = await store.run_ids()
        assert len(left) == 7
        report = await store.prune(LATER, batch=5)
        assert (ids(report.deleted), report.referenced.count) == (left, 0)
        assert all([await store.tombstone(run_id) is not None for run_id in run_ids])

    @on_a_store
    async def test_what_is_held_while_a_large_component_goes_stays(self, store: FlowEventStore) -> None:
        await self._hub(store)
        holding: list[asyncio.Task[bool]] = []

        def hold(done: PruneProgress) -> None:
            if done.deleted and not holding:
                holding.append(asyncio.ensure_future(store.hold_history("r10", "h", "why")))

        report = await store.prune(LATER, batch=5, progress=hold)
        try:
            held = await holding[0]
        except RunConflict:  # a store in memory lets nobody in between
            assert report.deleted.count == 12
            return
        assert held == ("r10" in await store.run_ids()) == ("r10" not in report.deleted.first)
        assert report.deleted.count + report.changed.count == 12

    @on_a_store
    async def test_progress_counts_up_and_a_large_report_names_the_first(self, store: FlowEventStore) -> None:
        stories = [self.story(f"r{number:03}") for number in range(120)]
        await store.commit([Append(story.batch(created(), ENDED)) for story in stories])
        heard: list[PruneProgress] = []
        report = await store.prune(LATER, batch=50, progress=heard.append)
        assert report.deleted.count == 120
        assert report.deleted.first == [f"r{number:03}" for number in range(100)]
        assert heard == sorted(heard, key=lambda done: (done.looked_at, done.deleted))
        assert heard[-1] == PruneProgress(120, 120)

    @on_a_store
    async def test_a_batch_below_one_is_refused(self, store: FlowEventStore) -> None:
        await raised(ValueError, store.prune(LATER, batch=0))

    @on_a_store
    async def test_runs_that_are_linked_held_or_made_meanwhile_are_never_lost(self, store: FlowEventStore) -> None:
        """Links, holds and pruning at once: a link or hold that was accepted keeps its run, one that came late is refused."""
        count = 24
        for number in range(count):
            await self.ended(store, f"r{number}")
        linked: list[str] = []
        held: list[str] = []

        async def link(number: int) -> None:
            story = self.story(f"p{number}")
            (answer,) = await store.commit([Append(story.batch(created(), child("x", f"r{number}")))])
            if isinstance(answer, Committed):
                linked.append(f"r{number}")
            else:
                assert isinstance(answer, RunNotFound), answer

        async def hold(number: int) -> None:
            try:
                await store.hold_history(f"r{number}", "h", "why")
            except RunConflict:
                return
            held.append(f"r{number}")

        async def prune() -> None:
            await asyncio.sleep(0)
            await store.prune(LATER, RunSelection(prefix="r"), batch=2)

        work = [(link if number % 2 else hold)(number) for number in range(count)]
        await asyncio.gather(*work[: count // 2], prune(), *work[count // 2 :], prune())
        left = await store.run_ids()
        assert {*linked, *held} <= {*left}
        for number in range(count):
            run_id = f"r{number}"
            assert (run_id in left) != (await store.tombstone(run_id) is not None)
            if run_id in left:
                assert await store.history(run_id)

    @on_a_store
    async def test_a_start_of_a_pruned_id_beside_the_prune_is_refused(self, store: FlowEventStore) -> None:
        await self.ended(store, "r")

        async def start() -> Committed | FlowError:
            (answer,) = await store.commit([Append(self.story("r").batch(created()))])
            return answer

        answers = await asyncio.gather(start(), store.prune(LATER), start(), start())
        assert not any(isinstance(answer, Committed) for answer in answers)
        assert await store.run_ids() == []

    def test_on_random_graphs_a_prune_deletes_what_the_rule_says(self) -> None:
        """Against the rule of R51 written down as a closure over the whole graph."""
        for seed in range(4):
            asyncio.run(self._on_a_random_graph(Random(seed)))

    async def _on_a_random_graph(self, random: Random) -> None:
        store = self.make_store()
        try:
            graph = await self._random_graph(store, random)
            cutoff = START + 500 * SECOND
            wanted = RunSelection(status=random.choice((None, ("completed", "failed"), ("completed",))))
            kept = {run_id for run_id, node in graph.items() if not node.may_go(cutoff, wanted)}
            while more := {a for a, node in graph.items() for b in node.linked if (a in kept) != (b in kept)}:
                kept |= more | {b for a in more for b in graph[a].linked}
            report = await store.prune(cutoff, wanted, batch=random.choice((1, 3, 500)))
            assert ids(report.deleted) == sorted(graph.keys() - kept)
            assert await store.run_ids() == sorted(kept)
            meant = {run_id for run_id, node in graph.items() if wanted.status is None or node.status in wanted.status}
            told = [ids(part) for part in (report.held, report.referenced, report.non_terminal, report.too_recent)]
            assert sorted(run_id for part in told for run_id in part) == sorted(kept & meant)
        finally:
            await store.close()

    async def _random_graph(self, store: FlowEventStore, random: Random) -> dict[str, _Node]:
        graph: dict[str, _Node] = {}
        for number in range(30):
            run_id = f"g{number:02}"
            earlier = sorted(graph)
            linked = random.sample(earlier, min(len(earlier), random.choice((0, 0, 0, 1, 2))))
            status = random.choice(("completed", "completed", "completed", "completed", "failed", "pending"))
            story = self.story(run_id)
            story.clock = START + random.choice((0, 0, 0, 0, 1000)) * SECOND
            drafts = [child(f"c{place}", other) for place, other in enumerate(linked)]
            ends = {"completed": [ENDED], "failed": [FAILED], "pending": []}[status]
            graph[run_id] = node = _Node(status, story.clock, random.random() < 0.07, set(linked))
            await story.write(store, created(), *drafts, *ends)
            for other in linked:
                graph[other].linked.add(run_id)
            if node.held:
                await store.hold_history(run_id, "h", "why")
        return graph

    # retention holds -----------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_retention_hold_is_set_once_and_keeps_its_reason(self, store: FlowEventStore) -> None:
        await self.story("r").write(store, created())
        self.clock.ns = LATER
        assert await store.hold_history("r", "audit", "case 7")
        assert not await store.hold_history("r", "audit", "case 7")
        assert (await raised(RunConflict, store.hold_history("r", "audit", "case 8"))).reason == "history_hold"
        assert await store.hold_history("r", "é 2", "a second one\nof two lines")
        (first, second) = await store.history_holds("r")
        assert (first.run_id, first.hold_id, first.reason, first.created_at) == ("r", "audit", "case 7", LATER)
        assert (second.hold_id, second.reason) == ("é 2", "a second one\nof two lines")
        assert await store.release_history("r", "audit")
        assert not await store.release_history("r", "audit")
        assert await store.history_holds("r") == [second]

    @on_a_store
    async def test_every_hold_keeps_its_run_until_the_last_is_released(self, store: FlowEventStore) -> None:
        await self.ended(store, "r")
        await store.hold_history("r", "a", "why")
        await store.hold_history("r", "b", "why")
        await store.release_history("r", "a")
        assert ids((await store.prune(LATER)).held) == ["r"]
        await store.release_history("r", "b")
        assert ids((await store.prune(LATER)).deleted) == ["r"]
        assert (await raised(RunConflict, store.hold_history("r", "a", "why"))).reason == "pruned"
        assert not await store.release_history("r", "a")
        assert await store.history_holds() == []

    @on_a_store
    async def test_retention_holds_are_listed_by_run_and_hold_page_by_page(self, store: FlowEventStore) -> None:
        for run_id in ("b", "a"):
            await self.story(run_id).write(store, created())
            for hold_id in ("y", "x", "z"):
                await store.hold_history(run_id, hold_id, "why")
        keys = [(run_id, hold_id) for run_id in "ab" for hold_id in "xyz"]
        assert [(hold.run_id, hold.hold_id) for hold in await store.history_holds()] == keys
        page = await store.history_holds(limit=2, after=("a", "y"))
        assert [(hold.run_id, hold.hold_id) for hold in page] == [("a", "z"), ("b", "x")]
        page = await store.history_holds("b", limit=2, after=("b", "x"))
        assert [(hold.run_id, hold.hold_id) for hold in page] == [("b", "y"), ("b", "z")]

    @on_a_store
    async def test_a_retention_hold_wants_a_run_an_id_and_a_reason(self, store: FlowEventStore) -> None:
        assert (await raised(RunNotFound, store.hold_history("r", "h", "why"))).run_id == "r"
        await self.story("r").write(store, created())
        for hold_id, reason in ((" ", "why"), ("h" * 513, "why"), ("a\nb", "why"), ("h", ""), ("h", "x" * 4097)):
            await raised(ValueError, store.hold_history("r", hold_id, reason))
        assert await store.history_holds() == []

    @on_a_store
    async def test_a_retention_hold_is_no_run_hold(self, store: FlowEventStore) -> None:
        await self.story("r").write(store, created())
        await store.hold_history("r", "h", "why")
        assert (await store.lease("r")).hold is None
        assert [claimed.run_id for claimed in await store.claim("me", 1, ttl_ns=SECOND)] == ["r"]
