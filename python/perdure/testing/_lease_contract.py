"""The part of the store suite about leases, parking, failures and holds (R2, R3, R43, R44, R47)."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from random import Random
from typing import Final

from perdure.errors import (
    EventConflict,
    FlowError,
    HookTokenConflict,
    LeaseHeld,
    LeaseLost,
    RunNotFound,
)
from perdure.instant import format_instant
from perdure.stores.base import Append, Claimed, FlowEventStore, Lease, LeaseState, Outlook, RunFilter
from perdure.testing._lease_model import compare_on_a_random_trace
from perdure.testing._store_suite import StoreSuite, on_a_store, raised, told
from perdure.testing._stories import SECOND, START, Story, child, created, hook, started, wait, wait_done

__all__ = ["LeaseContract"]

TTL: Final = 30 * SECOND
ME: Final = Lease("me", TTL)
OTHER: Final = Lease("other", TTL)
HOLD: Final = '{"code":"nondeterministic","builds":["b1"]}'
ENDED: Final = {"type": "run_completed", "output": None}


def us(ns: int) -> int:
    """Microseconds, for times that are whole ones."""
    assert ns % 1000 == 0
    return ns // 1000


class LeaseContract(StoreSuite):
    """What every store must do with leases. The clock stands still but where a test moves it."""

    async def leased(self, store: FlowEventStore, run_id: str = "r", by: Lease = ME) -> Story:
        """A run of two events whose lease `by` holds, with epoch 1."""
        story = self.story(run_id)
        assert (await story.write(store, created(), started(), lease=replace(by, claim="firm"))).epoch == 1
        return story

    async def refused(self, store: FlowEventStore, story: Story, lease: Lease) -> FlowError:
        """The refusal of one more event."""
        before = await store.lease(story.run_id), await store.history(story.run_id)
        (answer,) = await store.commit([Append(story.batch(wait("refused", START)), lease)])
        assert isinstance(answer, FlowError), answer
        assert (await store.lease(story.run_id), await store.history(story.run_id)) == before
        return answer

    # claims that ride on commits (R2, R47) -------------------------------------------------------------------

    @on_a_store
    async def test_a_commit_that_claims_holds_the_lease_until_it_expires(self, store: FlowEventStore) -> None:
        await self.leased(store)
        state = await store.lease("r")
        assert state == LeaseState("me", 1, -1, 0, None, None, us(START + TTL), True, 2)
        self.clock.ns = START + TTL - 1000
        assert (await store.lease("r")).live
        self.clock.ns = START + TTL
        assert not (await store.lease("r")).live

    @on_a_store
    async def test_a_firm_claim_is_refused_while_anothers_lease_is_live(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        assert told([await self.refused(store, story, replace(OTHER, claim="firm"))]) == told([LeaseHeld("r")])
        self.clock.ns += TTL
        assert (await story.write(store, wait("w", START), lease=replace(OTHER, claim="firm"))).epoch == 2
        assert told([await self.refused(store, story, replace(ME, epoch=1))]) == told([LeaseLost("r")])

    @on_a_store
    async def test_a_soft_claim_is_committed_without_the_claim(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        soft = replace(OTHER, claim="if_free")
        before = await store.lease("r")
        assert (await story.write(store, wait("a", START), lease=soft)).epoch is None
        assert await store.lease("r") == replace(before, last_sequence=3)
        self.clock.ns += TTL
        assert (await story.write(store, wait("b", START), lease=soft)).epoch == 2
        assert (await store.lease("r")).owner == "other"

    @on_a_store
    async def test_a_lease_can_be_taken_over(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        assert (await story.write(store, wait("a", START), lease=replace(OTHER, claim="take_over"))).epoch == 2
        assert told([await self.refused(store, story, replace(ME, epoch=1))]) == told([LeaseLost("r")])
        assert told([await self.refused(store, story, replace(OTHER, epoch=1))]) == told([LeaseLost("r")])
        assert (await story.write(store, wait("b", START), lease=replace(OTHER, epoch=2))).epoch == 2

    @on_a_store
    async def test_an_owner_claims_its_own_live_lease_again(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        for claim, epoch in (("firm", 2), ("if_free", 3), ("take_over", 4)):
            answer = await story.write(store, wait(claim, START), lease=Lease("me", TTL, claim=claim))  # type: ignore[arg-type]  # the three words of Claim
            assert answer.epoch == epoch
        assert told([await self.refused(store, story, replace(ME, epoch=3))]) == told([LeaseLost("r")])

    @on_a_store
    async def test_a_drive_without_a_lease_is_refused_while_one_is_live(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        without = replace(OTHER, unless_leased=True)
        assert told([await self.refused(store, story, without)]) == told([LeaseHeld("r")])
        self.clock.ns += TTL
        assert (await story.write(store, wait("w", START), lease=without)).epoch is None
        state = await store.lease("r")
        assert (state.owner, state.epoch, state.claim_at) == (None, 1, 0)

    @on_a_store
    async def test_an_epoch_is_lost_without_the_run(self, store: FlowEventStore) -> None:
        batch = self.story("r").batch(created())
        assert told(await store.commit([Append(batch, replace(ME, epoch=1))])) == told([LeaseLost("r")])

    @on_a_store
    async def test_an_expired_lease_that_nobody_took_is_renewed_by_a_commit(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        self.clock.ns += 5 * TTL
        assert (await story.write(store, wait("w", START), lease=replace(ME, epoch=1))).epoch == 1
        assert (await store.lease("r")).claim_at == us(self.clock.ns + TTL)

    @on_a_store
    async def test_a_commit_renews_when_less_than_half_is_left(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        for passed, expires in ((TTL // 2, START + TTL), (TTL // 2 + 1000, START + TTL + TTL // 2 + 1000)):
            self.clock.ns = START + passed
            answer = await story.write(store, wait(f"w{passed}", START), lease=replace(ME, epoch=1))
            assert (answer.now, answer.epoch) == (self.clock.ns, 1)
            assert (await store.lease("r")).claim_at == us(expires)

    @on_a_store
    async def test_refusals_come_in_the_order_lease_sequence_link_token(self, store: FlowEventStore) -> None:
        await self.story("owner").write(store, created(), hook("h", "canary-taken"))
        story = await self.leased(store)
        drafts = (hook("h", "canary-taken"), child("c", "missing"))
        stale = self.story("r").batch(created(), *drafts)
        both, token = story.batch(*drafts), story.batch(drafts[0])
        lost, held, mine = replace(ME, epoch=7), replace(OTHER, claim="firm"), replace(ME, epoch=1)
        for batch, lease, refusal in (
            (stale, lost, LeaseLost("r")),
            (stale, held, LeaseHeld("r")),
            (stale, mine, EventConflict("r", 0, 2)),
            (both, mine, RunNotFound("missing")),
            (token, mine, HookTokenConflict("canary-taken", "owner", "h")),
        ):
            assert told(await store.commit([Append(batch, lease)])) == told([refusal])

    @on_a_store
    async def test_a_batch_without_events_changes_the_lease_only(self, store: FlowEventStore) -> None:
        story = self.story("r")
        await story.write(store, created())
        stale = story.batch()
        assert (await story.write(store, lease=replace(ME, claim="firm"))).epoch == 1
        await story.write(store, started(), lease=replace(ME, epoch=1))
        history = await store.history("r")
        parking = replace(ME, epoch=1, after="park")
        assert told(await store.commit([Append(stale, parking)])) == told([EventConflict("r", 1, 2)])
        assert (await store.lease("r")).live
        assert (await story.write(store, lease=parking)).epoch is None
        assert await store.lease("r") == LeaseState(None, 1, 2, 0, None, None, None, False, 2)
        assert await store.history("r") == history
        assert await store.history("r", 2) == b""

    @on_a_store
    async def test_a_batch_without_events_creates_no_run(self, store: FlowEventStore) -> None:
        for lease in (replace(ME, claim="firm", after="park"), replace(ME, claim="firm"), None):
            (answer,) = await store.commit([Append(self.story("r").batch(), lease)])
            assert not isinstance(answer, FlowError)
            assert await store.run_ids() == []
            assert await store.claim("me", 9, ttl_ns=TTL) == []
            assert await store.next_claim() is None
            await raised(RunNotFound, store.history("r"))
            await raised(RunNotFound, store.lease("r"))

    # releases (R3, R44) --------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_parked_run_is_claimed_at_its_earliest_wakeup(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        drafts = [wait("late", START + 9 * SECOND), wait("soon", START + SECOND + 1)]
        await story.write(store, *drafts, lease=replace(ME, epoch=1, after="park"))
        claim_at = us(START + SECOND) + 1  # rounded up
        assert await store.lease("r") == LeaseState(None, 1, 4, 0, None, None, claim_at, False, 4)
        self.clock.ns = START + SECOND + 999
        assert await store.claim("me", 1, ttl_ns=TTL) == []
        self.clock.ns += 1
        assert await store.claim("me", 1, ttl_ns=TTL) == [Claimed("r", 2, 4)]
        assert (await store.lease("r")).parked_sequence == 4

    @on_a_store
    async def test_a_wakeup_resolved_by_the_parking_batch_does_not_count(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, wait("a", START), lease=replace(ME, epoch=1))
        await story.write(store, wait_done("a"), lease=replace(ME, epoch=1, after="park"))
        assert (await store.lease("r")).claim_at is None

    @on_a_store
    async def test_a_run_can_be_created_and_parked_by_one_commit(self, store: FlowEventStore) -> None:
        story = self.story("r")
        answer = await story.write(store, created(), started(), lease=replace(ME, claim="firm", after="park"))
        assert (answer.epoch, answer.now) == (None, START)
        assert await store.lease("r") == LeaseState(None, 1, 2, 0, None, None, None, False, 2)

    @on_a_store
    async def test_a_freed_run_can_be_claimed_at_once_and_was_not_parked(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, wait("w", START + 9 * SECOND), lease=replace(ME, epoch=1, after="free"))
        assert await store.lease("r") == LeaseState(None, 1, -1, 0, None, None, 0, False, 3)

    @on_a_store
    async def test_a_failure_that_does_not_count_frees(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, lease=replace(ME, epoch=1, after="fail"))
        assert await store.lease("r") == LeaseState(None, 1, -1, 0, None, None, 0, False, 2)

    @on_a_store
    async def test_counted_failures_back_off_longer_and_longer(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        epoch = 1
        for failures, seconds in enumerate((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600)):
            failed = replace(ME, epoch=epoch, after="fail", counted=True, fraction=0.5)
            await story.write(store, lease=failed)
            until = self.clock.ns + seconds * SECOND // 2
            expected = LeaseState(None, epoch, -1, failures + 1, until, None, us(until), False, 2)
            assert await store.lease("r") == expected
            self.clock.ns = until - 1
            assert await store.claim("me", 1, ttl_ns=TTL) == []
            self.clock.ns = until
            ((_, epoch),) = [(run.run_id, run.epoch) for run in await store.claim("me", 1, ttl_ns=TTL)]
        await story.write(store, wait("w", START), lease=replace(ME, epoch=epoch, accepted=True))
        assert (await store.lease("r")).failures == 0

    @on_a_store
    async def test_a_back_off_is_rounded_up_to_microseconds(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        self.clock.ns = START + 1
        await story.write(store, lease=replace(ME, epoch=1, after="fail", counted=True, fraction=0.0))
        state = await store.lease("r")
        assert (state.not_before, state.claim_at) == (START + 1000, us(START + 1000))

    @on_a_store
    async def test_failing_too_often_holds_the_run(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        failed = replace(ME, claim="firm", after="fail", counted=True, max_failures=2, build="b1")
        await story.write(store, lease=failed)
        assert (await store.lease("r")).hold is None
        await story.write(store, lease=failed)
        state = await store.lease("r")
        assert (state.owner, state.failures, state.claim_at) == (None, 2, None)
        assert json.loads(state.hold or "") == {
            "code": "failing",
            "reason": {"failures": 2},
            "workflow": "demo",
            "version": "1",
            "builds": ["b1"],
            "at": format_instant(START),
        }
        assert await store.claim("me", 1, ttl_ns=TTL) == []
        await story.write(store, lease=replace(failed, build="b0"))  # the builds of the hold that was there stay
        assert json.loads((await store.lease("r")).hold or "")["builds"] == ["b0", "b1"]

    @on_a_store
    async def test_some_failures_never_hold_and_a_hold_that_is_given_stands(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        failed = replace(ME, claim="firm", after="fail", counted=True, max_failures=1)
        for failures in (1, 2):
            await story.write(store, lease=replace(failed, may_hold=False))
            state = await store.lease("r")
            assert (state.failures, state.hold) == (failures, None)
        await story.write(store, lease=replace(failed, hold=HOLD))
        assert (await store.lease("r")).hold == HOLD

    @on_a_store
    async def test_an_accepted_decision_clears_failures_back_off_and_hold(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        failed = replace(ME, epoch=1, after="fail", counted=True, fraction=1.0, hold=HOLD)
        await story.write(store, lease=failed)
        assert await store.lease("r") == LeaseState(None, 1, -1, 1, START + SECOND, HOLD, None, False, 2)
        await story.write(store, lease=replace(ME, claim="firm", accepted=True))
        assert await store.lease("r") == LeaseState("me", 2, -1, 0, None, None, us(START + TTL), True, 2)

    @on_a_store
    async def test_a_commit_without_an_accepted_decision_clears_nothing(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, lease=replace(ME, epoch=1, after="fail", counted=True, hold=HOLD))
        await story.write(store, wait("w", START), lease=replace(ME, claim="firm"))
        state = await store.lease("r")
        assert (state.failures, state.hold, state.claim_at) == (1, HOLD, us(START + TTL))
        await story.write(store, wait("v", START), lease=replace(ME, epoch=2, after="free"))
        state = await store.lease("r")
        assert (state.failures, state.hold, state.claim_at) == (1, HOLD, None)

    @on_a_store
    async def test_the_end_of_a_run_ends_lease_and_hold(self, store: FlowEventStore) -> None:
        ends = (replace(ME, epoch=1), replace(ME, epoch=1, after="park"), replace(ME, epoch=1, hold=HOLD), None)
        for number, lease in enumerate(ends):
            story = await self.leased(store, f"r{number}")
            assert (await story.write(store, ENDED, lease=lease)).epoch is None
            state = await store.lease(story.run_id)
            assert (state.owner, state.epoch, state.hold, state.claim_at) == (None, 1, None, None)
        held = self.story("held")
        await held.write(store, created())
        assert await store.set_hold("held", HOLD, expected_sequence=1)
        await held.write(store, ENDED)
        assert (await store.lease("held")).hold is None
        assert await store.renew("me", [("r3", 1)], ttl_ns=TTL) != [("r3", 3)]

    # appends by calls that do not drive (R3, R44) ------------------------------------------------------------

    @on_a_store
    async def test_an_append_makes_an_unleased_run_claimable(self, store: FlowEventStore) -> None:
        new = self.story("new")
        await new.write(store, created())
        assert await store.lease("new") == LeaseState(None, 0, -1, 0, None, None, 0, False, 1)
        parked, failing = await self.leased(store, "parked"), await self.leased(store, "failing")
        await parked.write(store, lease=replace(ME, epoch=1, after="park"))
        await failing.write(store, lease=replace(ME, epoch=1, after="fail", counted=True, fraction=1.0))
        for story in (parked, failing):
            await story.write(store, wait("w", START))
        assert await store.lease("parked") == LeaseState(None, 1, 2, 0, None, None, 0, False, 3)
        assert await store.lease("failing") == LeaseState(None, 1, -1, 1, None, None, 0, False, 3)

    @on_a_store
    async def test_an_append_leaves_a_lease_and_a_hold_alone(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        before = await store.lease("r")
        await story.write(store, wait("a", START))
        assert await store.lease("r") == replace(before, last_sequence=3)
        self.clock.ns += TTL  # expired, and nobody took it
        await story.write(store, wait("b", START))
        assert await store.lease("r") == replace(before, last_sequence=4, live=False)
        held = self.story("held")
        await held.write(store, created())
        await store.set_hold("held", HOLD, expected_sequence=1)
        await held.write(store, started())
        assert await store.lease("held") == LeaseState(None, 0, -1, 0, None, HOLD, None, False, 2)

    # claims (R3, R44) ----------------------------------------------------------------------------------------

    @on_a_store
    async def test_claims_go_by_time_then_run_id_and_number_at_most_k(self, store: FlowEventStore) -> None:
        for run_id, due in (("d", 3), ("a", 3), ("c", 1)):
            parking = replace(ME, claim="firm", after="park")
            await self.story(run_id).write(store, created(), wait("w", START + due * SECOND), lease=parking)
        await self.story("e").write(store, created())
        assert [run.run_id for run in await store.claim("me", 9, ttl_ns=TTL)] == ["e"]
        self.clock.ns = START + 3 * SECOND
        first = await store.claim("me", 2, ttl_ns=TTL)
        assert first == [Claimed("c", 2, 2), Claimed("a", 2, 2)]
        assert [run.now for run in first] == [self.clock.ns] * 2
        assert [run.run_id for run in await store.claim("other", 2, ttl_ns=TTL)] == ["d"]
        assert await store.lease("d") == LeaseState("other", 2, 2, 0, None, None, us(self.clock.ns + TTL), True, 2)
        await raised(ValueError, store.claim("me", 0, ttl_ns=TTL))

    @on_a_store
    async def test_an_expired_lease_is_claimed_with_the_next_epoch(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        self.clock.ns += TTL
        assert await store.claim("other", 5, ttl_ns=TTL) == [Claimed("r", 2, 2, failures=1)]
        assert told([await self.refused(store, story, replace(ME, epoch=1))]) == told([LeaseLost("r")])

    @on_a_store
    async def test_a_first_take_over_is_counted_and_later_ones_are_told_of(self, store: FlowEventStore) -> None:
        """R44, where nobody is left to count: of a lease that expired."""
        story = await self.leased(store)
        self.clock.ns += TTL
        assert await store.claim("other", 1, ttl_ns=TTL) == [Claimed("r", 2, 2, failures=1)]
        for epoch, owner in ((3, "me"), (4, "other")):
            self.clock.ns += TTL
            assert await store.claim(owner, 1, ttl_ns=TTL) == [Claimed("r", epoch, 2, failures=1, lost=True)]
            state = await store.lease("r")
            assert (state.failures, state.not_before, state.claim_at) == (1, None, us(self.clock.ns + TTL))
        await story.write(store, lease=replace(OTHER, epoch=4, after="fail", counted=True, fraction=1.0))
        self.clock.ns += 2 * SECOND
        assert await store.claim("me", 1, ttl_ns=TTL) == [Claimed("r", 5, 2, failures=2)]  # that one was told of
        await story.write(store, wait("w", START), lease=replace(ME, epoch=5))
        assert (await store.lease("r")).failures == 2
        await story.write(store, wait("v", START), lease=replace(ME, epoch=5, accepted=True))
        self.clock.ns += TTL
        assert await store.claim("other", 1, ttl_ns=TTL) == [Claimed("r", 6, 4, failures=1)]

    @on_a_store
    async def test_a_first_voided_lease_is_counted_and_later_ones_are_told_of(self, store: FlowEventStore) -> None:
        """The same of an owner that is known to be dead."""
        story = await self.leased(store)
        assert await store.void("me") == 1
        assert await store.lease("r") == LeaseState(None, 1, -1, 1, None, None, 0, False, 2)
        assert await store.claim("other", 1, ttl_ns=TTL) == [Claimed("r", 2, 2, failures=1)]
        for epoch, dead, owner in ((3, "other", "me"), (4, "me", "other")):
            assert await store.void(dead) == 1
            assert await store.lease("r") == LeaseState(None, epoch - 1, -1, 1, 0, None, 0, False, 2)
            assert await store.claim(owner, 1, ttl_ns=TTL) == [Claimed("r", epoch, 2, failures=1, lost=True)]
        await story.write(store, lease=replace(OTHER, epoch=4, after="fail", counted=True, max_failures=2))
        state = await store.lease("r")
        assert (state.failures, json.loads(state.hold or "{}")["reason"]) == (2, {"failures": 2})

    @on_a_store
    async def test_a_lease_that_was_given_back_is_not_taken_over(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, lease=replace(ME, epoch=1, after="free"))
        assert await store.claim("other", 1, ttl_ns=TTL) == [Claimed("r", 2, 2)]
        assert await store.renew("other", [("r", 2)], ttl_ns=0) == [("r", 2)]
        assert await store.lease("r") == LeaseState(None, 2, -1, 0, None, None, us(START), False, 2)
        assert await store.claim("me", 1, ttl_ns=TTL) == [Claimed("r", 3, 2)]
        self.clock.ns += TTL
        assert await store.claim("me", 1, ttl_ns=TTL) == [Claimed("r", 4, 2)]  # it lives, or could not ask
        await story.write(store, lease=replace(ME, epoch=4, after="fail", counted=True))
        assert await store.claim("other", 1, ttl_ns=TTL) == [Claimed("r", 5, 2, failures=1)]  # which was told of
        assert (await store.lease("r")).failures == 1

    @on_a_store
    async def test_whatever_touches_a_voided_run_ends_the_news_of_it(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await store.void("me")
        await store.claim("other", 1, ttl_ns=TTL)
        await store.void("other")
        await story.write(store, wait("w", START))
        assert await store.claim("me", 1, ttl_ns=TTL) == [Claimed("r", 3, 3, failures=1)]

    @on_a_store
    async def test_only_known_workflows_and_builds_are_claimed(self, store: FlowEventStore) -> None:
        for run_id, draft in (
            ("a", created()),
            ("b", created("b1")),
            ("c", created("b2", version="2")),
            ("d", created("b1", name="other")),
        ):
            await self.story(run_id).write(store, draft)
        demo, later, other = ("demo", "1"), ("demo", "2"), ("other", "1")
        for workflows, builds, expected in (
            ([], None, ""),
            (None, [], ""),
            ([("demo", "3"), ("other", "2")], None, ""),
            ([later], ["b1"], ""),
            ([demo, other], ["b1"], "bd"),
            ([demo, later], [None, "b2"], "ac"),
        ):
            found = await store.next_claim(workflows=workflows, builds=builds)
            assert (found == 0) == bool(expected)
            runs = await store.claim("me", 9, workflows=workflows, builds=builds, ttl_ns=TTL)
            assert "".join(run.run_id for run in runs) == expected
        assert await store.claim("me", 9, ttl_ns=TTL) == []

    @on_a_store
    async def test_one_run_is_claimed_once(self, store: FlowEventStore) -> None:
        for number in range(20):
            await self.story(f"r{number:02}").write(store, created())
        claims = await asyncio.gather(*(store.claim(f"worker-{number}", 3, ttl_ns=TTL) for number in range(8)))
        run_ids = [run.run_id for runs in claims for run in runs]
        assert sorted(run_ids) == [f"r{number:02}" for number in range(20)]

    @on_a_store
    async def test_the_next_claim_is_the_earliest_of_a_run_that_is_not_held(self, store: FlowEventStore) -> None:
        assert await store.next_claim() is None
        await self.leased(store)
        assert await store.next_claim() == us(START + TTL)
        await self.story("held").write(store, created())
        assert await store.next_claim() == 0
        await store.set_hold("held", HOLD, expected_sequence=1)
        assert await store.next_claim() == us(START + TTL)

    @on_a_store
    async def test_runs_that_are_passed_over_are_not_claimed(self, store: FlowEventStore) -> None:
        for run_id in "abc":
            await self.story(run_id).write(store, created())
        assert (await store.outlook(besides=["a", "b"])).claim_at == 0
        assert (await store.outlook(besides=["a", "b", "c", "missing"])).claim_at is None
        assert await store.next_claim(besides={"a", "b", "c"}) is None
        assert [run.run_id for run in await store.claim("me", 9, besides=["a", "c"], ttl_ns=TTL)] == ["b"]
        for run_id in "ac":
            await store.set_hold(run_id, HOLD, expected_sequence=1)
        held = await store.claim_held("me", 9, build="another", besides=["a"], ttl_ns=TTL)
        assert [run.run_id for run in held] == ["c"]

    @on_a_store
    async def test_an_outlook_is_all_that_an_idle_worker_asks(self, store: FlowEventStore) -> None:
        assert await store.outlook() == Outlook(self.clock.ns, None, ())
        await self.leased(store, "a")
        await self.leased(store, "b", OTHER)
        await self.leased(store, "c")
        assert await store.outlook() == Outlook(self.clock.ns, us(START + TTL), ("me", "other"))
        assert (await store.outlook(workflows=[("demo", "2")])).claim_at is None
        assert (await store.outlook(builds=[None])).claim_at == us(START + TTL)
        self.clock.ns += 2 * TTL  # expired, and nobody took them
        assert (await store.outlook()).owners == ("me", "other")
        await store.void("me")
        assert await store.outlook() == Outlook(self.clock.ns, 0, ("other",))

    @on_a_store
    async def test_leases_are_renewed_from_another_thread(self, store: FlowEventStore) -> None:
        """R2: while the event loop stands still."""
        await self.leased(store)
        self.clock.ns += TTL // 2

        async def renew() -> list[tuple[str, int] | LeaseLost]:
            other = store.elsewhere()
            try:
                return await (other or store).renew("me", [("r", 1), ("missing", 1)], ttl_ns=TTL)
            finally:
                if other is not None:
                    await other.close()

        given: list[list[tuple[str, int] | LeaseLost]] = []
        thread = threading.Thread(target=lambda: given.append(asyncio.run(renew())), daemon=True)
        thread.start()
        thread.join(60)  # the loop of this test stands still meanwhile
        ((renewed, lost),) = given
        assert renewed == ("r", 2)
        assert isinstance(lost, LeaseLost)
        assert (await store.lease("r")).claim_at == us(self.clock.ns + TTL)

    # renewals and the dead (R2) ------------------------------------------------------------------------------

    @on_a_store
    async def test_renewals_answer_each_pair_in_order(self, store: FlowEventStore) -> None:
        for run_id in "abc":
            await self.leased(store, run_id)
        await self.leased(store, "d", OTHER)
        self.clock.ns += 2 * TTL  # expired, and nobody took them
        pairs = [("c", 1), ("missing", 1), ("b", 2), ("d", 1), ("a", 1)]
        answers = await store.renew("me", pairs, ttl_ns=TTL)
        assert [answers[0], answers[4]] == [("c", 2), ("a", 2)]
        lost = [answer for answer in answers if isinstance(answer, LeaseLost)]
        assert [answer.run_id for answer in lost] == ["missing", "b", "d"]
        live = [run_id for run_id in "abcd" if (await store.lease(run_id)).live]
        assert live == ["a", "c"]
        assert await store.renew("me", [], ttl_ns=TTL) == []

    @on_a_store
    async def test_the_leases_of_a_dead_owner_are_void(self, store: FlowEventStore) -> None:
        story = await self.leased(store, "a")
        await self.leased(store, "b", OTHER)
        held = await self.leased(store, "h")
        await held.write(store, lease=replace(ME, epoch=1, hold=HOLD))
        assert await store.void("me") == 2
        assert await store.lease("a") == LeaseState(None, 1, -1, 1, None, None, 0, False, 2)
        assert await store.lease("h") == LeaseState(None, 1, -1, 1, None, HOLD, None, False, 2)
        assert (await store.lease("b")).live
        assert told([await self.refused(store, story, replace(ME, epoch=1))]) == told([LeaseLost("a")])
        assert await store.claim("other", 9, ttl_ns=TTL) == [Claimed("a", 2, 2, failures=1)]
        assert await store.void("me") == 0

    # holds (R43) ---------------------------------------------------------------------------------------------

    @on_a_store
    async def test_a_hold_is_set_only_where_nobody_drives_and_nothing_moved(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        assert not await store.set_hold("r", HOLD, expected_sequence=2)
        self.clock.ns += TTL
        assert not await store.set_hold("r", HOLD, expected_sequence=1)
        assert await store.set_hold("r", HOLD, expected_sequence=2)
        state = await store.lease("r")
        assert (state.hold, state.claim_at, state.live) == (HOLD, None, False)
        await story.write(store, ENDED)
        assert not await store.set_hold("r", HOLD, expected_sequence=3)
        assert (await raised(RunNotFound, store.set_hold("no", HOLD, expected_sequence=1))).run_id == "no"
        assert (await raised(RunNotFound, store.release_hold("no"))).run_id == "no"
        assert (await raised(RunNotFound, store.lease("no"))).run_id == "no"

    @on_a_store
    async def test_a_released_hold_leaves_a_run_as_if_never_parked_nor_failed(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, lease=replace(ME, epoch=1, after="park"))
        assert not await store.release_hold("r")
        assert (await store.lease("r")).parked_sequence == 2
        await story.write(store, lease=replace(ME, claim="firm", after="fail", counted=True, hold=HOLD))
        assert await store.release_hold("r")
        assert await store.lease("r") == LeaseState(None, 2, -1, 0, None, None, 0, False, 2)

    @on_a_store
    async def test_a_hold_released_under_a_lease_leaves_the_lease(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, lease=replace(ME, epoch=1, hold=HOLD))
        assert await store.release_hold("r")
        assert await store.lease("r") == LeaseState("me", 1, -1, 0, None, None, us(START + TTL), True, 2)
        await story.write(store, lease=replace(ME, epoch=1, hold=HOLD))
        self.clock.ns += TTL
        assert await store.claim("other", 1, ttl_ns=TTL) == []  # takes the expired lease out of the order
        assert await store.release_hold("r")
        assert await store.claim("other", 1, ttl_ns=TTL) == [Claimed("r", 2, 2, failures=1)]

    @on_a_store
    async def test_a_claim_takes_the_expired_lease_of_a_held_run_out_of_the_order(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        await story.write(store, lease=replace(ME, epoch=1, hold=HOLD))
        await self.story("next").write(store, created())
        self.clock.ns += TTL
        assert [run.run_id for run in await store.claim("other", 1, ttl_ns=TTL)] == ["next"]
        assert (await store.lease("r")).claim_at == us(START + TTL)  # not met: the claim was satisfied before
        assert await store.claim("other", 1, workflows=[], ttl_ns=TTL) == []
        assert (await store.lease("r")).claim_at is None
        assert (await story.write(store, wait("w", START), lease=replace(ME, epoch=1))).epoch == 1
        assert (await store.lease("r")).claim_at == us(self.clock.ns + TTL)

    @on_a_store
    async def test_a_held_run_is_claimed_by_a_build_that_did_not_cause_the_hold(self, store: FlowEventStore) -> None:
        for run_id, name in (("a", "demo"), ("b", "demo"), ("c", "other")):
            story = self.story(run_id)
            await story.write(store, created("b1", name=name))
            assert await store.set_hold(run_id, HOLD, expected_sequence=1)
        await self.story("open").write(store, created("b1"))
        assert await store.claim_held("me", 9, build="b1", ttl_ns=TTL) == []
        known = [("demo", "1")]
        assert await store.claim_held("me", 9, build="b2", workflows=known, builds=["b3"], ttl_ns=TTL) == []
        assert await store.claim_held("me", 1, build="b2", workflows=known, ttl_ns=TTL) == [Claimed("a", 1, 1)]
        assert await store.lease("a") == LeaseState("me", 1, -1, 0, None, HOLD, us(START + TTL), True, 1)
        assert await store.claim_held("me", 9, build="b2", workflows=known, ttl_ns=TTL) == [Claimed("b", 1, 1)]
        self.clock.ns += TTL
        runs = await store.claim_held("other", 9, build="b2", ttl_ns=TTL)
        assert runs == [Claimed("a", 2, 1, failures=1), Claimed("b", 2, 1, failures=1), Claimed("c", 1, 1)]
        await store.void("other")
        assert await store.claim_held("me", 1, build="b2", ttl_ns=TTL) == [Claimed("a", 3, 1, failures=1, lost=True)]

    @on_a_store
    async def test_listings_show_failures(self, store: FlowEventStore) -> None:
        story = await self.leased(store)
        assert (await store.runs()).runs[0].failures == 0
        await story.write(store, lease=replace(ME, epoch=1, after="fail", counted=True))
        assert (await store.runs()).runs[0].failures == 1
        await story.write(store, wait("w", START), lease=replace(ME, claim="firm", accepted=True))
        assert (await store.runs()).runs[0].failures == 0

    @on_a_store
    async def test_listings_show_holds(self, store: FlowEventStore) -> None:
        for run_id in "abc":
            await self.story(run_id).write(store, created())
        await store.set_hold("b", HOLD, expected_sequence=1)
        assert [run.hold for run in (await store.runs()).runs] == [None, HOLD, None]
        for held, expected in ((None, "abc"), (True, "b"), (False, "ac")):
            runs = (await store.runs(RunFilter(held=held))).runs
            assert "".join(run.run_id for run in runs) == expected
        assert (await store.runs(RunFilter(held=True), after="b")).runs == ()

    # beside leases -------------------------------------------------------------------------------------------

    @on_a_store
    async def test_last_sequences_are_told_of_many_runs_at_once(self, store: FlowEventStore) -> None:
        await self.story("a").write(store, created())
        await self.leased(store, "b")
        assert await store.last_sequences(["b", "missing", "a"]) == {"a": 1, "b": 2}
        assert await store.last_sequences([]) == {}

    @on_a_store
    async def test_changes_differ_after_every_commit_and_not_without(self, store: FlowEventStore) -> None:
        story = self.story("r")
        seen = [await store.changes()]
        await story.write(store, created())
        seen.append(await store.changes())
        assert await store.claim("me", 1, ttl_ns=TTL) != []
        seen.append(await store.changes())
        await store.renew("me", [("r", 1)], ttl_ns=TTL)
        seen.append(await store.changes())
        await store.history("r")
        await store.lease("r")
        assert await store.changes() == seen[-1]
        assert len(set(seen)) == 4

    @on_a_store
    async def test_waiting_for_a_change_ends_with_it_or_with_the_time(self, store: FlowEventStore) -> None:
        story = self.story("r")
        seen = await store.changes()
        assert await store.wait_for_change(seen, 0.0) == seen
        assert await store.wait_for_change(seen, 0.02) == seen
        for change in (
            lambda: story.write(store, created()),
            lambda: store.claim("me", 1, ttl_ns=TTL),
            lambda: story.write(store, wait("w", START), lease=replace(ME, epoch=1)),
        ):
            waiting = [asyncio.create_task(store.wait_for_change(seen, 3600)) for _ in range(3)]
            await asyncio.sleep(0)
            await change()
            told = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            assert seen not in told
            assert await asyncio.wait_for(store.wait_for_change(seen, 3600), 30) != seen  # one that was missed
            seen = await store.changes()

    def test_leases_outlive_the_store_object(self) -> None:
        async def test() -> None:
            store = self.make_store()
            story = await self.leased(store)
            await store.close()
            again = self.open_again(store)
            assert (await story.write(again, wait("w", START), lease=replace(ME, epoch=1))).epoch == 1
            await again.close()

        asyncio.run(test())

    def test_on_random_traces_exactly_the_runnable_runs_can_be_claimed(self) -> None:
        for seed in range(self.random_traces):
            asyncio.run(self._compare_leases_on_a_random_trace(Random(seed)))

    async def _compare_leases_on_a_random_trace(self, random: Random) -> None:
        store = self.make_store()
        stories = [self.story(run_id) for run_id in self.run_ids[:4]]
        await compare_on_a_random_trace(store, self.clock, stories, random)
        await store.close()
